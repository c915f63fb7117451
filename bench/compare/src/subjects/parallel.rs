//! GNU parallel, which runs independent jobs and forwards their lines.

use std::process::Command;

use super::{FullPolicy, Launch, StdinTarget, Subject, ToolTiming, Unavailable, find_program, word_after};

/// GNU parallel as Debian packages it.
pub struct Parallel;

impl Subject for Parallel {
    fn name(&self) -> &'static str {
        "parallel"
    }

    fn version(&self) -> Result<String, Unavailable> {
        let (_, text) = find_program(&["parallel"], "GNU parallel")
            .ok_or_else(|| Unavailable::not_installed("apt install parallel"))?;
        Ok(format!("GNU parallel {}", word_after(&text, "GNU parallel")))
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.full != FullPolicy::Wait || job.tools != ToolTiming::None || job.stdin != StdinTarget::None {
            return None;
        }
        let mut command = Command::new("parallel");
        command.args(["--will-cite", "--line-buffer", "-N0", "-j", &job.ranks.to_string()]);
        if job.tagged {
            command.args(["--tagstring", "{#}"]);
        }
        // parallel passes the words to a shell.
        let quoted: Vec<String> =
            job.command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        command.arg(quoted.join(" ")).arg(":::").args((0..job.ranks).map(|rank| rank.to_string()));
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        "PARALLEL_SEQ"
    }

    fn tag(&self, rank: u32) -> String {
        // The numbers of parallel start at 1, here and in the variable.
        format!("{rank}\t")
    }
}
