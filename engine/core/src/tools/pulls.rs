//! Pulls that wait for the host, and their registration once it has granted them.

use iof_proto::{Failure, Granted, Info, Nspace, Status, ToTool};
use iof_shm_ring::Start;

use crate::Core;
use crate::clients::owed::{size_of_infos, size_of_procs};
use crate::ids::{Call, PeerId};
use crate::tools::demand::{CallId, ProcChannels, Ticket};
use crate::tools::peer::Peer;
use crate::tools::pull::{Pull, RegisteredPull};
use crate::tools::registration::Registration;
use crate::upcall::Upcall;

impl Core {
    /// Registers a pull of `peer_id`, at once or when the host has granted it.
    pub(crate) fn pull(&mut self, peer_id: PeerId, mut pull: Pull) {
        let Some(peer) = self.tools.get(&peer_id) else {
            absent!("tool", return self.end_registration(pull.registration))
        };
        if peer.is_own() {
            return self.register(peer_id, pull);
        }
        let (ticket, calls) = self.demand.ask(pull.registration.procs(), pull.registration.channels());
        pull.registration.hold(ticket);
        if self.demand.is_granted(ticket) {
            return self.register(peer_id, pull);
        }
        if let Err(failure) = self.owe_all(&calls, peer_id, &pull.directives) {
            // These upcalls are not made, so all of them count as denied.
            for (call, _) in &calls {
                let answered = self.demand.answer(*call, false);
                self.stop(answered.stopped);
            }
            self.end_registration(pull.registration);
            return self.refuse_pull(peer_id, pull.request, failure);
        }
        let Some(peer) = self.tools.get_mut(&peer_id) else {
            absent!("tool", return self.end_registration(pull.registration))
        };
        let directives = pull.directives.clone();
        peer.add_waiting(ticket, pull);
        self.pulls_by_call.extend(calls.iter().map(|(call, _)| (*call, ticket)));
        let upcall = |(call, sources)| Upcall::Pull { call, sources, directives: directives.clone() };
        self.effects.upcalls.extend(calls.into_iter().map(upcall));
    }

    /// Records that the host owes answers to all of `calls` for `peer_id`.
    ///
    /// # Errors
    /// Fails if one call exceeds the user's limit. None is recorded then.
    fn owe_all(
        &mut self,
        calls: &[(CallId, ProcChannels)],
        peer_id: PeerId,
        directives: &[Info],
    ) -> Result<(), Failure> {
        let Some(payer) = self.tools.get(&peer_id).map(Peer::payer) else { absent!("tool", return Ok(())) };
        for (call, ProcChannels { procs, .. }) in calls {
            let size = size_of_procs(procs).saturating_add(size_of_infos(directives));
            if let Err(failure) = self.owe(Call::Pull(*call), payer, size) {
                calls.iter().for_each(|(call, _)| self.owes_no_more(Call::Pull(*call)));
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Processes the host's answer to an upcall.
    pub(crate) fn answered(&mut self, call: CallId, answer: Result<(), Failure>) {
        let answered = self.demand.answer(call, answer.is_ok());
        self.stop(answered.stopped);
        for ticket in answered.granted {
            let Some((peer_id, pull)) = self.take_waiting(ticket) else { absent!("pull", continue) };
            self.register(peer_id, pull);
        }
        let causing_pull = self.pulls_by_call.remove(&call);
        let Err(failure) = answer else { return };
        let pulls: Vec<(Ticket, (PeerId, Pull))> = answered
            .denied
            .into_iter()
            .filter_map(|ticket| Some((ticket, self.take_waiting(ticket)?)))
            .collect();
        let first = pulls.iter().find(|(ticket, _)| Some(*ticket) == causing_pull);
        let first = first.map(|(_, (_, pull))| pull.asks_for());
        for (_, (peer_id, pull)) in pulls {
            if first.as_ref().is_some_and(|first| *first == pull.asks_for()) {
                self.end_registration(pull.registration);
                self.refuse_pull(peer_id, pull.request, failure.clone());
            } else {
                // This pull asks for something else, so it makes its own upcalls.
                self.pull(peer_id, pull);
            }
        }
    }

    fn take_waiting(&mut self, ticket: Ticket) -> Option<(PeerId, Pull)> {
        self.tools.iter_mut().find_map(|(id, peer)| Some((id, peer.take_waiting(ticket)?)))
    }

    /// Attaches a tool to the existing streams.
    fn register(&mut self, peer_id: PeerId, pull: Pull) {
        let Pull { request, registration, ignored, directives: _ } = pull;
        let Some(peer) = self.tools.get(&peer_id) else {
            absent!("tool", return self.end_registration(registration))
        };
        let handler = peer.next_handler();
        let may_lose = peer.may_lose();
        let check = || self.check_not_gone(&registration).and_then(|()| self.check_pulled(&registration));
        if may_lose && let Err(failure) = check() {
            self.end_registration(registration);
            return self.refuse_pull(peer_id, request, failure);
        }
        self.tools.add_registration(peer_id, handler, registration);
        if let Err(failure) = self.attach_existing(peer_id, RegisteredPull { request, handler, ignored }) {
            let ended = self.tools.remove_registration(peer_id, handler);
            ended.into_iter().for_each(|registration| self.end_registration(registration));
            return self.refuse_pull(peer_id, request, failure);
        }
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        peer.use_handler(handler);
        let claims = peer.registration(handler).filter(|registration| registration.start() == Start::Oldest);
        self.spawns.claim(peer_id, claims.into_iter().flat_map(Registration::jobs));
    }

    /// Checks that no named job is one that tools have started and the engine has forgotten, for which
    /// the tool would wait in vain.
    fn check_not_gone(&self, registration: &Registration) -> Result<(), Failure> {
        let is_gone = |nspace: &Nspace| self.jobs.get(nspace).is_none() && self.spawns.is_gone(nspace);
        let Some(nspace) = registration.gone_job(is_gone) else { return Ok(()) };
        let reason = format!("job {nspace} has ended, and its output is no longer kept");
        Err(Failure::new(Status::ERR_NOT_FOUND, reason))
    }

    /// Answers a pull whose readers are attached. Their rings follow the answer.
    pub(crate) fn answer_pull(&mut self, peer_id: PeerId, pull: RegisteredPull) {
        let RegisteredPull { request, handler, ignored } = pull;
        if let Some(peer) = self.tools.get_mut(&peer_id) {
            peer.answer(&ToTool::Pulled { request, result: Ok(Granted { handler, ignored }) });
            peer.registration_mut(handler).into_iter().for_each(|registration| registration.answered = true);
        }
        // A tool knows its registration from the answer on.
        self.miss_ended(peer_id, handler);
    }

    /// Sends a tool the reason why its pull failed.
    pub(crate) fn refuse_pull(&mut self, peer_id: PeerId, request: u32, failure: Failure) {
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        peer.answer(&ToTool::Pulled { request, result: Err(failure) });
    }

    /// Releases the sources that a pull holds. The host is informed of those that no pull wants any
    /// more.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        let stopped = self.demand.release(ticket);
        self.stop(stopped);
    }

    fn stop(&mut self, stopped: Vec<ProcChannels>) {
        self.effects.upcalls.extend(stopped.into_iter().map(Upcall::Stop));
    }
}
