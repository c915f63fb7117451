//! GNU parallel, which runs jobs that are no ranks of one another, and passes their lines on.

use std::process::Command;

use super::{Full, Launch, Missing, Stdin, System, Tools, find, word_behind};

/// The Debian package.
pub struct Parallel;

impl System for Parallel {
    fn name(&self) -> &'static str {
        "parallel"
    }

    fn version(&self) -> Result<String, Missing> {
        let (_, text) =
            find(&["parallel"], "GNU parallel").ok_or_else(|| Missing::until("apt install parallel"))?;
        Ok(format!("GNU parallel {}", word_behind(&text, "GNU parallel")))
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.full != Full::Wait || job.tools != Tools::None || job.stdin != Stdin::None {
            return None;
        }
        let mut command = Command::new("parallel");
        command.args(["--will-cite", "--line-buffer", "-N0", "-j", &job.ranks.to_string()]);
        if job.tagged {
            command.args(["--tagstring", "{#}"]);
        }
        // It gives the words to a shell.
        let quoted: Vec<String> =
            job.command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        command.arg(quoted.join(" ")).arg(":::").args((0..job.ranks).map(|rank| rank.to_string()));
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        "PARALLEL_SEQ"
    }

    fn tag(&self, rank: u32) -> String {
        // Its numbers begin at 1, here and in the variable.
        format!("{rank}\t")
    }
}
