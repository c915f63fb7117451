//! Pulls on their way: to the host where it has to be asked, and into the tables when it has
//! granted them.

use iof_capture::Capture;
use iof_proto::{Channels, Failure, Granted, Info, Proc, ToTool};

use crate::demand::{CallId, Sources, Ticket};
use crate::host::{Call, Upcall};
use crate::owed::{size_of_infos, size_of_procs};
use crate::peer::Peer;
use crate::registrations::Registration;
use crate::state::{PeerId, State};

/// A pull that makes sense.
pub(crate) struct Pull {
    /// The tool's number for it.
    pub request: u32,
    pub registration: Registration,
    /// All of them, as they came.
    pub directives: Vec<Info>,
    /// The keys of directives that can't be honoured.
    pub ignored: Vec<String>,
}

impl Pull {
    /// What it asks the host for.
    fn what(&self) -> (Vec<Proc>, Channels, Vec<Info>) {
        (self.registration.procs().to_vec(), self.registration.channels, self.directives.clone())
    }
}

impl State {
    /// Registers `peer_id` as it asks, now or when the host has granted it.
    pub(crate) fn pull(&mut self, capture: &Capture, peer_id: PeerId, mut pull: Pull) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        if peer.own {
            return self.register(capture, peer_id, pull);
        }
        let (ticket, calls) = self.demand.ask(pull.registration.procs(), pull.registration.channels);
        pull.registration.ticket = Some(ticket);
        if self.demand.is_granted(ticket) {
            return self.register(capture, peer_id, pull);
        }
        if let Err(failure) = self.owe(&calls, peer_id, &pull.directives) {
            // These upcalls are not made, so all of them are denied.
            for (call, _) in &calls {
                let answered = self.demand.answer(*call, false);
                self.stop(answered.stopped);
            }
            self.release(ticket);
            return self.refuse_pull(peer_id, pull.request, failure);
        }
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let directives = pull.directives.clone();
        peer.procs = peer.procs.saturating_add(pull.registration.weight());
        peer.waiting.insert(ticket, pull);
        self.askers.extend(calls.iter().map(|(call, _)| (*call, ticket)));
        let upcall = |(call, sources)| Upcall::Pull { call, sources, directives: directives.clone() };
        self.upcalls.extend(calls.into_iter().map(upcall));
    }

    /// Notes that the host is to be asked all of `calls` for `peer_id`, or none.
    fn owe(
        &mut self,
        calls: &[(CallId, Sources)],
        peer_id: PeerId,
        directives: &[Info],
    ) -> Result<(), Failure> {
        let client = self.peers.get(&peer_id).and_then(Peer::counted);
        for (call, Sources { procs, .. }) in calls {
            let size = size_of_procs(procs).saturating_add(size_of_infos(directives));
            if let Err(failure) = self.owed.note(Call::Pull(*call), client, size) {
                calls.iter().for_each(|(call, _)| self.owed.answered(Call::Pull(*call)));
                return Err(failure);
            }
        }
        Ok(())
    }

    /// The host has answered an upcall.
    pub(crate) fn answered(&mut self, capture: &Capture, call: CallId, answer: Result<(), Failure>) {
        let answered = self.demand.answer(call, answer.is_ok());
        self.stop(answered.stopped);
        for ticket in answered.granted {
            if let Some((peer_id, pull)) = self.take_waiting(ticket) {
                self.register(capture, peer_id, pull);
            }
        }
        let asker = self.askers.remove(&call);
        let Err(failure) = answer else { return };
        let pulls: Vec<(Ticket, (PeerId, Pull))> = answered
            .denied
            .into_iter()
            .filter_map(|ticket| Some((ticket, self.take_waiting(ticket)?)))
            .collect();
        let first = pulls.iter().find(|(ticket, _)| Some(*ticket) == asker);
        let first = first.map(|(_, (_, pull))| pull.what());
        for (_, (peer_id, pull)) in pulls {
            if first.as_ref().is_some_and(|first| *first == pull.what()) {
                self.refuse_pull(peer_id, pull.request, failure.clone());
            } else {
                // It asked for something else, and for itself.
                self.pull(capture, peer_id, pull);
            }
        }
    }

    fn take_waiting(&mut self, ticket: Ticket) -> Option<(PeerId, Pull)> {
        self.peers.iter_mut().find_map(|(id, peer)| {
            let pull = peer.waiting.remove(&ticket)?;
            peer.procs = peer.procs.saturating_sub(pull.registration.weight());
            Some((*id, pull))
        })
    }

    /// Attaches to what exists, and answers before the rings follow.
    fn register(&mut self, capture: &Capture, peer_id: PeerId, pull: Pull) {
        let Pull { request, registration, ignored, directives: _ } = pull;
        let Some(peer) = self.peers.get(&peer_id) else { return };
        let handler = peer.last_handler.saturating_add(1);
        let ticket = registration.ticket;
        self.add_registration(peer_id, handler, registration);
        let attached = match self.attach_existing(capture, peer_id, handler) {
            Ok(attached) => attached,
            Err(failure) => {
                self.remove_registration(peer_id, handler);
                ticket.inspect(|ticket| self.release(*ticket));
                return self.refuse_pull(peer_id, request, failure);
            }
        };
        if let Some(peer) = self.peers.get_mut(&peer_id) {
            peer.last_handler = handler;
            peer.answer(&ToTool::Pulled { request, result: Ok(Granted { handler, ignored }) });
        }
        self.announce(peer_id, handler, attached);
        self.announce_if_complete(peer_id, handler);
        self.tell_ends(peer_id, handler);
    }

    /// Tells a tool that it gets nothing.
    pub(crate) fn refuse_pull(&mut self, peer_id: PeerId, request: u32, failure: Failure) {
        if let Some(peer) = self.peers.get_mut(&peer_id) {
            peer.answer(&ToTool::Pulled { request, result: Err(failure) });
        }
    }

    /// Gives back what a pull holds of the host's; the host hears of what nobody wants any more.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        let stopped = self.demand.release(ticket);
        self.stop(stopped);
    }

    fn stop(&mut self, stopped: Vec<Sources>) {
        self.upcalls.extend(stopped.into_iter().map(Upcall::Stop));
    }
}
