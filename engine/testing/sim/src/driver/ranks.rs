//! Requests of the simulated engine's ranks.

use iof_core::{Input, JobId, MessageOrigin};
use iof_proto::{FromTool, Nspace, Quota, Rank, ToTool};

use super::SimulatedEngine;

impl SimulatedEngine {
    /// Handles a request of a rank. Its answer has this number.
    pub fn request_of_rank(
        &mut self,
        (nspace, run): (&Nspace, u64),
        rank: Rank,
        message: FromTool,
        number: u64,
    ) {
        self.digest.add_debug(&message);
        let answers = self.answers.0.clone();
        // The engine that receives it exists while it calls.
        let reply = Box::new(move |answer| _ = answers.send((number, answer)));
        let rank = Some((JobId { nspace: nspace.clone(), run }, rank));
        self.handle(Input::Message { from: MessageOrigin::Rank { rank, reply }, message });
    }

    /// Returns the answers to ranks since the last call.
    pub fn take_answers_of_ranks(&mut self) -> Vec<(u64, ToTool)> {
        self.answers.1.try_iter().collect()
    }

    /// Returns the amount of a quota that all clients hold.
    pub fn held(&self, quota: Quota) -> u64 {
        self.core.quotas.total(quota)
    }
}
