//! The minimal baselines, whose cost is mostly the kernel's cost of moving bytes.

use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{FullPolicy, Launch, StdinTarget, Subject, ToolLaunch, ToolTiming, Unavailable, cache};
use crate::bare_launcher;

/// The name of the baseline to which all figures are related.
pub const BARE: &str = "bare loop";

/// One process: epoll_wait(2), read(2), write(2).
pub struct Bare;

impl Subject for Bare {
    fn name(&self) -> &'static str {
        BARE
    }

    fn version(&self) -> Result<String, Unavailable> {
        Ok("epoll_wait, read and write of 64 KiB at most; no tags, no lines".to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["bare", "-n", &job.ranks.to_string()]);
        match job.full {
            FullPolicy::Wait => {}
            FullPolicy::DropNewest => drop(command.arg("--drop")),
            FullPolicy::DropOldest => return None,
        }
        match job.stdin {
            StdinTarget::None => {}
            StdinTarget::Rank0 => drop(command.args(["--feed", "1"])),
            StdinTarget::All => drop(command.args(["--feed", &job.ranks.to_string()])),
        }
        let tools = if let ToolTiming::Early(tools) = job.tools { tools } else { 0 };
        for number in 0..tools {
            let copy = job.directory.join(format!("copy{number}"));
            // The FIFO may exist from an earlier job.
            let _ = mkfifo(&copy, Mode::S_IRWXU);
            command.arg("--copy").arg(copy);
        }
        command.arg("--").args(job.command);
        Some(command)
    }

    fn tool(&self, launch: &ToolLaunch) -> Option<Command> {
        let mut command = Command::new("cat");
        command.arg(match launch.number {
            Some(number) => launch.directory.join(format!("copy{number}")),
            None => cache(launch.directory),
        });
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare_launcher::RANK_VARIABLE
    }
}

/// `rank | cat`.
pub struct Cat;

impl Subject for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn version(&self) -> Result<String, Unavailable> {
        Ok("cat(1) behind one rank; no tags".to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let only_copies = !job.tagged
            && job.full == FullPolicy::Wait
            && job.tools == ToolTiming::None
            && job.stdin == StdinTarget::None;
        if job.ranks != 1 || !only_copies {
            return None;
        }
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\" | cat", "sh"]).args(job.command).env(bare_launcher::RANK_VARIABLE, "0");
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare_launcher::RANK_VARIABLE
    }
}

/// tee(1) from the launcher's stdin into the stdin of the ranks.
pub struct Tee;

/// The script. Its arguments are the directory, the number of ranks and their command.
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

impl Subject for Tee {
    fn name(&self) -> &'static str {
        "tee"
    }

    fn version(&self) -> Result<String, Unavailable> {
        Ok("tee(1) into the stdin of ranks".to_owned())
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let feeds = job.stdin == StdinTarget::All || job.stdin == StdinTarget::Rank0 && job.ranks == 1;
        if !feeds || job.tagged || job.tools != ToolTiming::None || job.full != FullPolicy::Wait {
            return None;
        }
        let mut command = Command::new("sh");
        command.args(["-c", TEE, "sh"]).arg(job.directory).arg(job.ranks.to_string()).args(job.command);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare_launcher::RANK_VARIABLE
    }
}
