//! Open MPI 4's mpirun.

use std::process::Command;

use super::{FullPolicy, Launch, StdinTarget, Subject, ToolTiming, Unavailable, find_program, word_after};

const PROGRAMS: [&str; 2] = ["mpirun.openmpi", "mpirun"];
/// The part of the version output that all versions have in common.
const OPEN_MPI: &str = "(Open MPI)";
const SIGN: &str = "(Open MPI) 4";

/// Open MPI as Debian packages it.
pub struct OpenMpi;

impl Subject for OpenMpi {
    fn name(&self) -> &'static str {
        "mpirun"
    }

    fn version(&self) -> Result<String, Unavailable> {
        let version = |text: &str| format!("Open MPI {}", word_after(text, OPEN_MPI));
        if let Some((_, text)) = find_program(&PROGRAMS, SIGN) {
            return Ok(version(&text));
        }
        Err(match find_program(&PROGRAMS, OPEN_MPI) {
            Some((_, text)) => Unavailable::Optional(format!("found {}, needs Open MPI 4", version(&text))),
            None => Unavailable::not_installed("apt install openmpi-bin"),
        })
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.full != FullPolicy::Wait || job.tools != ToolTiming::None {
            return None;
        }
        let mut command = Command::new(find_program(&PROGRAMS, SIGN)?.0);
        // By default mpirun binds each rank of a job of one or two ranks to a processor. No other
        // subject does that.
        command.args(["--oversubscribe", "--bind-to", "none", "-np", &job.ranks.to_string()]);
        if nix::unistd::getuid().is_root() {
            command.arg("--allow-run-as-root");
        }
        if job.tagged {
            command.arg("--tag-output");
        }
        if job.stdin == StdinTarget::All {
            command.args(["--stdin", "all"]);
        }
        command.args(job.command);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        "OMPI_COMM_WORLD_RANK"
    }

    fn tag(&self, rank: u32) -> String {
        format!("[1,{rank}]<stdout>:")
    }
}
