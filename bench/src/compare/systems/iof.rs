//! `iof run`, and `iof pull`.

use std::process::Command;

use super::{Attach, Full, Launch, Stdin, System, beside_us};

/// Built beside us.
pub struct Iof;

impl System for Iof {
    fn name(&self) -> &'static str {
        "iof run"
    }

    fn version(&self) -> Result<String, &'static str> {
        let output = Command::new(beside_us("iof")).arg("--version").output();
        let text = output.map_err(|_| "cargo build --release -p iof-cli")?.stdout;
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let mut command = Command::new(beside_us("iof"));
        command.args(["run", "--nspace", "bench@1", "-n", &job.ranks.to_string(), "--rendezvous-dir"]);
        command.arg(job.site);
        if job.tagged {
            command.args(["--output", "tag"]);
        }
        match job.stdin {
            Stdin::None | Stdin::Rank0 => {}
            Stdin::All => drop(command.args(["--stdin", "all"])),
        }
        match job.full {
            Full::Wait => {}
            Full::DropNewest => drop(command.args(["--drop", "newest"])),
            Full::DropOldest => drop(command.args(["--drop", "oldest"])),
        }
        command.arg("--").args(job.command);
        Some(command)
    }

    fn tool(&self, attach: &Attach) -> Option<Command> {
        let mut command = Command::new(beside_us("iof"));
        command.args(["pull", "--nspace", "bench@1", "--rendezvous-dir"]).arg(attach.site);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        "IOF_RANK"
    }

    fn tag(&self, rank: u32) -> String {
        format!("[1,{rank}]<stdout>: ")
    }
}
