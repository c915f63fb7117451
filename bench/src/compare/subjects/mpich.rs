//! MPICH's mpiexec, which is Hydra.

use std::process::Command;

use super::{Full, Launch, Missing, Stdin, System, Tools, find, word_behind};

const PROGRAMS: [&str; 3] = ["mpiexec.hydra", "mpiexec.mpich", "mpiexec"];
const SIGN: &str = "HYDRA";

/// The Debian package.
pub struct Mpich;

impl System for Mpich {
    fn name(&self) -> &'static str {
        "mpiexec"
    }

    fn version(&self) -> Result<String, Missing> {
        let (_, text) = find(&PROGRAMS, SIGN).ok_or_else(|| Missing::until("apt install mpich"))?;
        Ok(format!("MPICH {}", word_behind(&text, "Version:")))
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.full != Full::Wait || job.tools != Tools::None || job.stdin == Stdin::All {
            return None;
        }
        let mut command = Command::new(find(&PROGRAMS, SIGN)?.0);
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
