//! Many ranks that say one word and end.

use std::time::Duration;

use super::{Outcome, Work, boxed};
use crate::compare::job::{self, Site};
use crate::compare::output::Out;
use crate::compare::sample::{Figure, Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Launch, System};
use crate::compare::trouble::Trouble;

const WORD: &str = "hi";
const RANKS: u64 = 1000;
/// What takes longer has stood still.
const LIMIT: Duration = Duration::from_secs(60);

struct Short {
    ranks: u32,
    limit: Duration,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    vec![boxed(Short { ranks: scale.part(RANKS) as u32, limit: scale.time(LIMIT) })]
}

impl Work for Short {
    fn family(&self) -> String {
        "ranks that say one word and end".to_owned()
    }

    fn size(&self) -> (u32, &'static str) {
        (self.ranks, "rank")
    }

    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
        let command = ["echo", WORD].map(str::to_owned);
        let launcher = system.launch(&Launch::new(site.path(), self.ranks, &command))?;
        let ran = job::whole(site, launcher, Out::counted(), self.limit);
        Some(ran.and_then(|whole| {
            if !whole.status.success() {
                return Err(Trouble::failed(whole.status.to_string()));
            }
            let bytes = (WORD.len() as u64 + 1) * u64::from(self.ranks);
            let figures = vec![
                (Figure::Wall, whole.elapsed.as_secs_f64()),
                (Figure::CpuOfAll, whole.cpu.as_secs_f64()),
            ];
            let bytes_lost = bytes.saturating_sub(whole.taken.bytes);
            Ok(Sample { figures, verdict: Verdict { bytes_lost, ..Verdict::default() } })
        }))
    }
}
