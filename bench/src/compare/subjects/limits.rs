//! The limits: what the kernel itself needs to bring bytes from here to there.

use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{Attach, Full, Launch, Missing, Stdin, System, Tools, cache};
use crate::bare;

/// The name of the limit to which all figures are related.
pub const BARE: &str = "bare loop";

/// One process: epoll_wait(2), read(2), write(2).
pub struct Bare;

impl System for Bare {
    fn name(&self) -> &'static str {
        BARE
    }

    fn version(&self) -> Result<String, Missing> {
        Ok("epoll_wait, read and write of 64 KiB at most; no tags, no lines".to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["bare", "-n", &job.ranks.to_string()]);
        match job.full {
            Full::Wait => {}
            Full::DropNewest => drop(command.arg("--drop")),
            Full::DropOldest => return None,
        }
        match job.stdin {
            Stdin::None => {}
            Stdin::Rank0 => drop(command.args(["--feed", "1"])),
            Stdin::All => drop(command.args(["--feed", &job.ranks.to_string()])),
        }
        let tools = if let Tools::Early(tools) = job.tools { tools } else { 0 };
        for number in 0..tools {
            let copy = job.site.join(format!("copy{number}"));
            // There may be one of an earlier job.
            let _ = mkfifo(&copy, Mode::S_IRWXU);
            command.arg("--copy").arg(copy);
        }
        command.arg("--").args(job.command);
        Some(command)
    }

    fn tool(&self, attach: &Attach) -> Option<Command> {
        let mut command = Command::new("cat");
        command.arg(match attach.number {
            Some(number) => attach.site.join(format!("copy{number}")),
            None => cache(attach.site),
        });
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare::RANK
    }
}

/// `rank | cat`.
pub struct Cat;

impl System for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn version(&self) -> Result<String, Missing> {
        Ok("cat(1) behind one rank; no tags".to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let only_copies =
            !job.tagged && job.full == Full::Wait && job.tools == Tools::None && job.stdin == Stdin::None;
        if job.ranks != 1 || !only_copies {
            return None;
        }
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\" | cat", "sh"]).args(job.command).env(bare::RANK, "0");
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare::RANK
    }
}

/// tee(1) from the launcher's stdin into the ranks'.
pub struct Tee;

/// The directory, the number of ranks, what they run.
const TEE: &str = r#"
fifos="$1/stdin"; ranks=$2; shift 2
rm -f "$fifos".*; set -- "$fifos" "$ranks" "$@"
rank=0; others=
while [ $rank -lt $ranks ]; do
    mkfifo "$fifos.$rank"
    (shift 2; IOF_BENCH_RANK=$rank exec "$@" < "$fifos.$rank") &
    [ $rank = 0 ] || others="$others $fifos.$rank"
    rank=$((rank + 1))
done
tee $others > "$fifos.0"
wait
"#;

impl System for Tee {
    fn name(&self) -> &'static str {
        "tee"
    }

    fn version(&self) -> Result<String, Missing> {
        Ok("tee(1) into the stdin of ranks".to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let feeds = job.stdin == Stdin::All || job.stdin == Stdin::Rank0 && job.ranks == 1;
        if !feeds || job.tagged || job.tools != Tools::None || job.full != Full::Wait {
            return None;
        }
        let mut command = Command::new("sh");
        command.args(["-c", TEE, "sh"]).arg(job.site).arg(job.ranks.to_string()).args(job.command);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare::RANK
    }
}
