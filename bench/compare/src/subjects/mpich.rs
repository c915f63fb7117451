//! MPICH's mpiexec (Hydra).

use std::process::Command;

use super::{FullPolicy, Launch, StdinTarget, Subject, ToolTiming, Unavailable, find_program, word_after};

const PROGRAMS: [&str; 3] = ["mpiexec.hydra", "mpiexec.mpich", "mpiexec"];
const SIGN: &str = "HYDRA";

/// MPICH as Debian packages it.
pub struct Mpich;

impl Subject for Mpich {
    fn name(&self) -> &'static str {
        "mpiexec"
    }

    fn version(&self) -> Result<String, Unavailable> {
        let (_, text) =
            find_program(&PROGRAMS, SIGN).ok_or_else(|| Unavailable::not_installed("apt install mpich"))?;
        Ok(format!("MPICH {}", word_after(&text, "Version:")))
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.full != FullPolicy::Wait || job.tools != ToolTiming::None || job.stdin == StdinTarget::All {
            return None;
        }
        let mut command = Command::new(find_program(&PROGRAMS, SIGN)?.0);
        if job.tagged {
            command.arg("-prepend-rank");
        }
        command.args(["-n", &job.ranks.to_string()]).args(job.command);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        "PMI_RANK"
    }

    fn tag(&self, rank: u32) -> String {
        format!("[{rank}] ")
    }
}
