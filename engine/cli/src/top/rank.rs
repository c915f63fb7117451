//! The state of a rank, as its engine and its node know it.

use std::collections::BTreeMap;

use iof_proto::{ProcInfo, ProcState};

use crate::commands::inspect::process_state;
use crate::reports::exits::exit;

/// The state of all streams of an engine that does not answer.
pub const NO_ANSWER: &str = "does not answer";

/// The state of a rank and its host.
#[derive(Clone, Debug)]
pub struct RankInfo {
    pub host: String,
    state: ProcState,
    exit_code: Option<i32>,
    is_stopped: bool,
}

impl RankInfo {
    /// Creates the description of a rank. A rank on the host `here` may be stopped.
    pub fn new(info: ProcInfo, here: &str) -> RankInfo {
        let ProcInfo { host, state, exit_code, pid, .. } = info;
        let runs_here = state == ProcState::Running && host == here;
        let is_stopped = runs_here && process_state(pid.into()) == "stopped";
        RankInfo { host, state, exit_code, is_stopped }
    }

    /// Returns the word for the state.
    pub fn word(&self) -> &'static str {
        match self.state {
            ProcState::Running if self.is_stopped => "stopped",
            ProcState::Running => "running",
            ProcState::Launching => "starting",
            ProcState::Terminated | ProcState::Failed | ProcState::Unfinalized => "exited",
            ProcState::Killed => "killed",
            ProcState::FailedToStart => "not started",
            ProcState::Unknown => "unknown",
        }
    }

    /// Returns the exit code, unless a signal ended the rank.
    pub fn code(&self) -> Option<i32> {
        self.exit_code.filter(|_| self.state != ProcState::Killed)
    }

    /// Returns the number of the signal that ended the rank.
    pub fn signal(&self) -> Option<i32> {
        self.exit_code.filter(|_| self.state == ProcState::Killed)?.checked_sub(128)
    }

    /// Returns the state with the exit code or the signal.
    pub fn text(&self) -> String {
        match (self.word(), self.code()) {
            ("exited", Some(code)) => format!("exited {code}"),
            ("killed", _) if self.signal().is_some() => {
                format!("killed by {}", exit(self.exit_code, self.state))
            }
            (word, _) => word.into(),
        }
    }

    /// Returns `true` if the rank failed or is stopped.
    pub fn needs_attention(&self) -> bool {
        self.is_stopped || self.exit_code.is_some_and(|code| code != 0)
    }
}

/// Returns the number of ranks in each state, such as `62 running, 2 exited 1`.
pub fn count_states<'a>(ranks: impl Iterator<Item = &'a RankInfo>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for rank in ranks {
        let count = counts.entry(rank.text()).or_default();
        *count = count.saturating_add(1);
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.iter().map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(", ")
}
