//! Checks of all tables, for the simulator: what counts other things counts them right, and nothing
//! that has ended keeps anything. `limit_checks` checks the limits.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::{PushId, SourceId};

use crate::core::Core;
use crate::core::awaited::Awaited;
use crate::core::ids::PeerId;
use crate::core::logs::ReplyTo;
use crate::core::outgoing::Attachment;
use crate::core::peer::Peer;
use crate::core::push::Push;
use crate::core::push_table::PushRecord;
use crate::core::registration::Registration;

impl Core {
    /// Panics if the tables contradict each other. The host has not sent the
    /// signals that the tools `signalling` have asked for.
    pub(crate) fn check(&self, signalling: &[PeerId]) {
        self.check_connections();
        self.tools.iter().for_each(|(id, peer)| self.check_tool(id, peer));
        self.check_streams();
        self.check_jobs();
        self.check_pushes();
        self.check_requests(signalling);
        self.owed.check();
        let tickets: BTreeSet<_> = self.tools.values().flat_map(Peer::tickets).collect();
        self.demand.check(&tickets);
    }

    /// Returns what the driver keeps for messages to each tool.
    pub(crate) fn attachments(&self) -> BTreeMap<PeerId, BTreeSet<Attachment>> {
        self.tools.iter().map(|(id, peer)| (id, peer.attachments())).collect()
    }

    /// Returns all pushes.
    pub(crate) fn push_ids(&self) -> BTreeSet<PushId> {
        self.pushes.iter().map(|(id, _)| id).collect()
    }

    fn check_connections(&self) {
        let tools = self.tools.values().filter(|peer| !peer.is_own()).count();
        let pending = self.pending.values().filter(|pending| !pending.is_own()).count();
        assert!(tools + pending + self.departed.len() <= self.settings.places, "too many connections");
        let names = |registration: &Registration| registration.jobs().count();
        let registrations = self.tools.values().flat_map(|peer| peer.registrations().map(|(_, found)| found));
        assert_eq!(
            registrations.map(names).sum::<usize>(),
            self.tools.indexed(),
            "the index of registrations"
        );
    }

    fn check_tool(&self, id: PeerId, peer: &Peer) {
        peer.check();
        let is_granted = |ticket| self.demand.is_granted(ticket);
        let are_granted = peer.registrations().all(|(_, found)| found.ticket().is_some_and(is_granted));
        assert!(peer.is_own() || are_granted, "tool {id} has a registration that the host has not granted");
        for (_, reading) in peer.readings() {
            let stream = self.streams.get(&reading.source);
            let reads = stream.is_some_and(|stream| stream.readers().any(|key| key == (id, reading.handler)));
            assert_eq!(reads, reading.forgotten().is_none(), "a reader of tool {id} at its stream");
        }
    }

    fn check_streams(&self) {
        for (source, stream) in self.streams.iter() {
            for (peer_id, handler) in stream.readers() {
                let peer = self.tools.get(&peer_id);
                let reads = peer.is_some_and(|peer| peer.reader_of(*source, handler).is_some());
                assert!(reads, "a reader of {source:?} has ended");
            }
            for (peer_id, handler) in stream.missing() {
                let registration = self.tools.get(&peer_id).and_then(|peer| peer.registration(handler));
                assert!(registration.is_some(), "a registration that misses {source:?} has ended");
            }
            let job = self.jobs.get(&stream.name().source.nspace);
            let has = job.is_some_and(|job| job.run() == stream.name().run);
            assert!(has || stream.is_withdrawn(), "{source:?} is a stream of a removed job");
        }
        let stranded: BTreeSet<SourceId> = self.stranded().map(|(_, _, reading)| reading.source).collect();
        let is_awaited = |source: &SourceId| stranded.contains(source);
        assert!(self.kept_streams.iter().all(is_awaited), "a stream is kept for no reader");
        for source in self.graces.streams() {
            let stream = self.streams.get(&source);
            let is_kept = stream.is_some_and(|stream| !stream.is_withdrawn());
            assert!(is_kept, "{source:?} was removed and has a grace period");
        }
    }

    fn check_jobs(&self) {
        for (nspace, job) in self.jobs.iter() {
            job.check();
            let streams = job.streams();
            assert!(
                streams.iter().all(|stream| self.streams.get(stream).is_some()),
                "{nspace} lacks a stream"
            );
        }
    }

    /// Takes what was answered to requests to push and reported at the ends of pushes.
    pub(crate) fn take_push_record(&mut self) -> PushRecord {
        std::mem::take(&mut self.pushes.record)
    }

    fn check_pushes(&self) {
        for (id, push) in self.pushes.iter() {
            push.check();
            if let Some((peer_id, number)) = push.tool() {
                let peer = self.tools.get(&peer_id);
                let known = peer.and_then(|peer| peer.push(number));
                assert_eq!(known, Some(id), "the tool of {id:?}");
            }
        }
        let named = self.tools.values().flat_map(Peer::pushes);
        assert!(named.into_iter().all(|id| self.pushes.get(&id).is_some()), "a tool has a push that is over");
        let alive = self.pushes.deferred().all(|deferred| self.tools.get(&deferred.peer_id).is_some());
        assert!(alive, "a push of a tool that has disconnected is deferred");
    }

    fn check_requests(&self, signalling: &[PeerId]) {
        let (for_counters, _) = self.queries.waiting_tools();
        let mut begun: BTreeMap<PeerId, usize> = BTreeMap::new();
        let of_awaited = self.awaited.iter().filter_map(|awaited| match awaited {
            Awaited::Join { pull, .. } => pull.as_ref().map(|(peer_id, _)| *peer_id),
            Awaited::Push { peer_id, .. } => Some(*peer_id),
            Awaited::SlowTargets(request) => Some(request.peer_id),
            Awaited::Counters(_) | Awaited::LogStep { .. } => None,
        });
        of_awaited
            .chain(for_counters)
            .chain(signalling.iter().copied())
            .for_each(|peer| *begun.entry(peer).or_default() += 1);
        for (id, peer) in self.tools.iter() {
            assert_eq!(peer.awaited(), begun.remove(&id).unwrap_or(0), "requests of tool {id}");
        }
        for (requester, _) in self.logs.requesters() {
            let ReplyTo::Tool { peer, .. } = requester else { continue };
            assert!(self.tools.get(peer).is_some(), "a log of a tool that has disconnected");
        }
    }

    /// Returns the names of the tables that are not empty, without what waits for the host alone:
    /// the upcalls that it has not answered, with the sources that it was asked for, and the pushes
    /// that it takes.
    pub(crate) fn remains_without_owed(&self) -> Vec<String> {
        let is_owed = |push: &Push| push.tool().is_none() && !push.has_local() && push.elsewhere().is_some();
        let mut remains = self.remains();
        remains.retain(|table| match table.as_str() {
            "owed answers" | "pulls by call" | "demand" => self.owed.is_empty(),
            "stdin calls" => false,
            "pushes" => !self.pushes.iter().all(|(_, push)| is_owed(push)),
            _ => true,
        });
        remains
    }

    /// Returns the names of the tables that are not empty.
    pub(crate) fn remains(&self) -> Vec<String> {
        let (for_counters, for_host) = self.queries.waiting_tools();
        let is_empty = [
            ("jobs", self.jobs.is_empty()),
            ("streams", self.streams.is_empty()),
            ("kept streams", self.kept_streams.is_empty()),
            ("tools", self.tools.values().next().is_none() && self.tools.indexed() == 0),
            ("pushes", self.pushes.values().next().is_none()),
            ("deferred pushes", self.pushes.deferred().next().is_none()),
            ("queries", for_counters.is_empty() && for_host.is_empty()),
            ("logs", self.logs.requesters().next().is_none()),
            ("demand", self.demand.is_empty()),
            ("pulls by call", self.pulls_by_call.is_empty()),
            ("owed answers", self.owed.is_empty()),
            ("stdin calls", self.stdin_calls.is_empty()),
            ("awaited answers", self.awaited.is_empty()),
            ("grace periods", self.graces.next_end().is_none()),
            ("pending connections", self.pending.is_empty()),
            ("departed connections", self.departed.is_empty()),
        ];
        is_empty.iter().filter(|(_, empty)| !empty).map(|(name, _)| (*name).to_owned()).collect()
    }
}
