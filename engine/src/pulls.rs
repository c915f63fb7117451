//! Pulls on their way: to the host where it has to be asked, and into the tables when it has granted them.

use std::collections::BTreeSet;

use iof_capture::Capture;
use iof_proto::{Channels, Failure, Granted, Info, Nspace, Proc, Status, ToTool};

use crate::demand::{CallId, Sources, Ticket};
use crate::host::Upcall;
use crate::peer::Registration;
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
        let Registration { procs, channels, .. } = &self.registration;
        (procs.clone(), *channels, self.directives.clone())
    }
}

impl State {
    /// Registers `peer_id` as it asks, now or when the host has granted it.
    pub(crate) fn pull(&mut self, capture: &Capture, peer_id: PeerId, mut pull: Pull) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        if peer.own {
            return self.register(capture, peer_id, pull);
        }
        let Registration { procs, channels, .. } = &pull.registration;
        let (ticket, calls) = self.demand.ask(procs, *channels);
        pull.registration.ticket = Some(ticket);
        if self.demand.is_granted(ticket) {
            return self.register(capture, peer_id, pull);
        }
        let directives = pull.directives.clone();
        peer.waiting.insert(ticket, pull);
        self.askers.extend(calls.iter().map(|(call, _)| (*call, ticket)));
        let upcall = |(call, sources)| Upcall::Pull { call, sources, directives: directives.clone() };
        self.upcalls.extend(calls.into_iter().map(upcall));
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
        let waits =
            |(id, peer): (&PeerId, &mut crate::peer::Peer)| Some((*id, peer.waiting.remove(&ticket)?));
        self.peers.iter_mut().find_map(waits)
    }

    /// Attaches to what exists, and answers before the rings follow.
    fn register(&mut self, capture: &Capture, peer_id: PeerId, pull: Pull) {
        let Pull { request, registration, ignored, directives: _ } = pull;
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let handler = peer.last_handler.saturating_add(1);
        let ticket = registration.ticket;
        let nspaces: BTreeSet<Nspace> = registration.procs.iter().map(|proc| proc.nspace.clone()).collect();
        peer.registrations.insert(handler, registration);
        let attached = match self.attach_existing(capture, peer_id, handler) {
            Ok(attached) => attached,
            Err(error) => {
                if let Some(peer) = self.peers.get_mut(&peer_id) {
                    peer.registrations.remove(&handler);
                }
                ticket.inspect(|ticket| self.release(*ticket));
                let status = Status::ERR_OUT_OF_RESOURCE;
                return self.refuse_pull(peer_id, request, Failure { status, reason: error.to_string() });
            }
        };
        if let Some(peer) = self.peers.get_mut(&peer_id) {
            peer.last_handler = handler;
            peer.answer(&ToTool::Pulled { request, result: Ok(Granted { handler, ignored }) });
        }
        self.announce(peer_id, handler, attached);
        self.announce_complete_registrations();
        nspaces.iter().for_each(|nspace| self.announce_end(nspace));
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
