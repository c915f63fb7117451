//! Signals to the ranks of a job.

use std::collections::BTreeMap;
use std::time::Instant;

use iof_capture::{ProcessId, Signal};
use iof_proto::Rank;

use super::{JobState, SignalReach};
use crate::jobs::nodes::NodeKey;

/// The receivers of a signal to ranks of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receivers {
    /// The processes of local ranks.
    pub processes: Vec<ProcessId>,
    /// The running ranks on other nodes, by the run of their job and their node.
    pub there: BTreeMap<NodeKey, Vec<Rank>>,
}

impl JobState {
    /// Notes that `signal` is sent to the ranks for which `is_wanted`, see
    /// `Job::signal`. Returns the processes and the nodes that are to receive
    /// it: all nodes that have not ended, with their running ranks among those.
    pub(crate) fn signal(
        &mut self,
        signal: Signal,
        now: Instant,
        is_wanted: impl Fn(Rank, SignalReach) -> bool,
    ) -> Receivers {
        let there = self.nodes.open().map(|node| ((self.run, node), Vec::new())).collect();
        let mut receivers = Receivers { there, ..Receivers::default() };
        for (rank, state) in &mut self.ranks {
            if state.signal_reach().is_some_and(|reach| is_wanted(*rank, reach)) {
                state.note_signal(signal, now);
                receivers.processes.extend(state.process());
                let node = state.node().filter(|_| state.exit().is_none());
                let ranks = node.and_then(|node| receivers.there.get_mut(&(self.run, node)));
                ranks.into_iter().for_each(|ranks| ranks.push(*rank));
            }
        }
        receivers
    }

    /// Notes that the terminal has sent `signal` to the ranks in the embedder's process group.
    pub(crate) fn note_signal_of_terminal(&mut self, signal: Signal, now: Instant) {
        for state in self.ranks.values_mut().filter(|state| state.shares_group()) {
            state.note_signal(signal, now);
        }
    }
}
