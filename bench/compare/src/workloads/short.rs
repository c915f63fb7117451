//! Many ranks that write one word, or nothing, and end.

use std::time::Duration;

use super::{Outcome, Workload, boxed};
use crate::error::JobError;
use crate::job::{self, Sandbox};
use crate::output::Sink;
use crate::sample::{Metric, Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, Subject};

const WORD: &str = "hi";
const RANKS: u64 = 1024;
/// The time limit, after which a job counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

struct Short {
    /// The ranks write nothing.
    silent: bool,
    ranks: u32,
    limit: Duration,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    let (ranks, limit) = (scale.part(RANKS) as u32, scale.time(LIMIT));
    [false, true].map(|silent| boxed(Short { silent, ranks, limit })).into()
}

impl Workload for Short {
    fn family(&self) -> String {
        let word = if self.silent { "nothing" } else { "one word" };
        format!("ranks that write {word} and end")
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let words: &[&str] = if self.silent { &["true"] } else { &["echo", WORD] };
        let command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let launcher = subject.launch(&Launch::new(sandbox.path(), self.ranks, &command))?;
        let report = job::run_whole(sandbox, launcher, Sink::counted(), self.limit);
        Some(report.and_then(|whole| {
            if !whole.status.success() {
                return Err(JobError::failed(whole.status.to_string()));
            }
            let each = if self.silent { 0 } else { WORD.len() as u64 + 1 };
            let bytes = each * u64::from(self.ranks);
            let figures = vec![
                (Metric::Wall, whole.elapsed.as_secs_f64()),
                (Metric::CpuOfAll, whole.cpu.as_secs_f64()),
            ];
            let bytes_lost = bytes.saturating_sub(whole.received.bytes);
            Ok(Sample { figures, verdict: Verdict { bytes_lost, ..Verdict::default() } })
        }))
    }
}
