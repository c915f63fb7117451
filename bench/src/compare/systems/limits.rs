//! The limits: what the kernel itself needs to bring bytes from here to there.

use std::process::Command;

use super::{Launch, System};
use crate::bare;

/// The name of the limit to which all figures are related.
pub const BARE: &str = "bare loop";

/// One process: epoll_wait(2), read(2), write(2).
pub struct Bare;

impl System for Bare {
    fn name(&self) -> &'static str {
        BARE
    }

    fn version(&self) -> Result<String, &'static str> {
        Ok("epoll_wait, read and write of 64 KiB at most; no tags, no lines".to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["bare", "-n", &job.ranks.to_string(), "--"]).args(job.command);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare::RANK
    }

    fn tag(&self, _: u32) -> String {
        String::new()
    }
}

/// `rank | cat`.
pub struct Cat;

impl System for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn version(&self) -> Result<String, &'static str> {
        Ok("cat(1) behind one rank; no tags".to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.ranks != 1 || job.tagged {
            return None;
        }
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\" | cat", "sh"]).args(job.command).env(bare::RANK, "0");
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare::RANK
    }

    fn tag(&self, _: u32) -> String {
        String::new()
    }
}
