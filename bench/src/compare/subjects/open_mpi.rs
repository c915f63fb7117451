//! Open MPI 4's mpirun.

use std::process::Command;

use super::{Full, Launch, Missing, Stdin, System, Tools, find, word_behind};

const PROGRAMS: [&str; 2] = ["mpirun.openmpi", "mpirun"];
/// What each version of it says.
const OPEN_MPI: &str = "(Open MPI)";
const SIGN: &str = "(Open MPI) 4";

/// The Debian package.
pub struct OpenMpi;

impl System for OpenMpi {
    fn name(&self) -> &'static str {
        "mpirun"
    }

    fn version(&self) -> Result<String, Missing> {
        let version = |text: &str| format!("Open MPI {}", word_behind(text, OPEN_MPI));
        if let Some((_, text)) = find(&PROGRAMS, SIGN) {
            return Ok(version(&text));
        }
        Err(match find(&PROGRAMS, OPEN_MPI) {
            Some((_, text)) => Missing::LeftOut(format!("found {}, needs Open MPI 4", version(&text))),
            None => Missing::until("apt install openmpi-bin"),
        })
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.full != Full::Wait || job.tools != Tools::None {
            return None;
        }
        let mut command = Command::new(find(&PROGRAMS, SIGN)?.0);
        // By itself it binds a job of one or two ranks to as many processors, as nobody else does.
        command.args(["--oversubscribe", "--bind-to", "none", "-np", &job.ranks.to_string()]);
        if nix::unistd::getuid().is_root() {
            command.arg("--allow-run-as-root");
        }
        if job.tagged {
            command.arg("--tag-output");
        }
        if job.stdin == Stdin::All {
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
