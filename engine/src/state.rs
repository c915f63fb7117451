//! The engine's tables: jobs, streams, tools, and who registered for what.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use iof_capture::{Capture, ProcessId, SourceId};
use iof_proto::{Channel, Channels, Nspace, Proc, Rank, ToTool};
use iof_shm_ring::{Area, Attached, CreateError, Start, Stream};

use crate::control::Reports;
use crate::job::JobState;
use crate::peer::{Peer, Reading};

/// Names a tool for as long as it is connected; also its token in the poll set.
pub(crate) type PeerId = usize;

/// One stream, by name.
#[derive(Clone)]
pub(crate) struct StreamName {
    pub source: Proc,
    pub channel: Channel,
}

/// All tables, behind the engine's one lock. The capture thread never takes it.
pub(crate) struct State {
    pub jobs: BTreeMap<Nspace, JobState>,
    pub streams: BTreeMap<SourceId, StreamName>,
    pub processes: HashMap<ProcessId, Proc>,
    pub peers: BTreeMap<PeerId, Peer>,
    next_source: u64,
    next_peer: PeerId,
    /// The engine ends.
    pub stopping: bool,
}

/// The tables behind their lock, and who waits for them to change.
pub(crate) struct Tables {
    state: Mutex<State>,
    changed: Condvar,
    /// To the control thread.
    pub reports: Arc<Reports>,
}

impl Tables {
    pub(crate) fn new(state: State, reports: Arc<Reports>) -> Self {
        Tables { state: Mutex::new(state), changed: Condvar::new(), reports }
    }

    /// A thread that died with the lock left the tables whole: each change is one insertion or removal.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until somebody [notifies](Tables::notify).
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who waits for a change.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }
}

impl State {
    /// No jobs, no tools; the first tool gets number `first_peer`.
    pub(crate) fn new(first_peer: PeerId) -> Self {
        State {
            jobs: BTreeMap::new(),
            streams: BTreeMap::new(),
            processes: HashMap::new(),
            peers: BTreeMap::new(),
            next_source: 0,
            next_peer: first_peer,
            stopping: false,
        }
    }

    pub(crate) fn add_peer(&mut self, peer: Peer) -> PeerId {
        let id = self.next_peer;
        self.next_peer = self.next_peer.wrapping_add(1);
        self.peers.insert(id, peer);
        id
    }

    /// Names a new stream, and attaches everybody who registered for it before its first byte.
    pub(crate) fn add_stream(&mut self, name: StreamName, stream: &mut Stream) -> SourceId {
        let id = SourceId(self.next_source);
        self.next_source = self.next_source.saturating_add(1);
        for (peer_id, peer) in &mut self.peers {
            let wants: Vec<(u32, Start)> = peer
                .registrations
                .iter()
                .filter(|(_, registration)| registration.channels.contains(Channels::from(name.channel)))
                .filter(|(_, registration)| registration.covers(&name.source))
                .map(|(handler, registration)| (*handler, registration.start))
                .collect();
            for (handler, start) in wants {
                let attached = peer
                    .area
                    .take_slot()
                    .and_then(|slot| stream.attach(&peer.area, slot, start, peer.may_block));
                match attached {
                    Ok(attached) => peer.announce_ring(handler, id, &name, None, attached),
                    Err(error) => tracing::warn!(tool = peer_id, %error, "a tool misses a new source"),
                }
            }
        }
        self.streams.insert(id, name);
        id
    }

    /// Attaches `peer` to the existing streams that its registration `handler` covers; they are to be announced.
    ///
    /// # Errors
    /// The tool has no slots left; nothing was attached then.
    pub(crate) fn attach_existing(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        handler: u32,
    ) -> Result<Vec<(SourceId, Attached)>, CreateError> {
        let registered =
            self.peers.get(&peer_id).and_then(|peer| Some((peer, peer.registrations.get(&handler)?)));
        let Some((peer, registration)) = registered else { return Ok(Vec::new()) };
        let covered = self.streams.iter().filter(|(_, name)| {
            registration.channels.contains(Channels::from(name.channel)) && registration.covers(&name.source)
        });
        let mut wanted: Vec<(SourceId, u32)> = Vec::new();
        for (source, _) in covered {
            match peer.area.take_slot() {
                Ok(slot) => wanted.push((*source, slot)),
                Err(error) => {
                    wanted.iter().for_each(|(_, slot)| peer.area.return_slot(*slot));
                    return Err(error);
                }
            }
        }
        let attached = capture.with_streams(|streams| {
            let attach = |(source, slot): &(SourceId, u32)| {
                let mut stream = streams.get_mut(*source)?;
                Some((*source, stream.attach(&peer.area, *slot, registration.start, peer.may_block).ok()?))
            };
            wanted.iter().filter_map(attach).collect()
        });
        // A capture thread that has ended has no streams either.
        Ok(attached.unwrap_or_default())
    }

    /// Sends `peer_id` the rings that [`State::attach_existing`] attached it to.
    pub(crate) fn announce(&mut self, peer_id: PeerId, handler: u32, attached: Vec<(SourceId, Attached)>) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        for (source, attached) in attached {
            if let Some(name) = self.streams.get(&source) {
                peer.announce_ring(handler, source, name, None, attached);
            }
        }
    }

    /// Moves the reader at `slot` of `peer_id` to `new_slot` in the newest generation, if it is not there yet; whether
    /// it was moved.
    pub(crate) fn follow(&mut self, capture: &Capture, peer_id: PeerId, slot: u32, new_slot: u32) -> bool {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return false };
        let Some(&Reading { source, handler, .. }) = peer.readings.get(&slot) else { return false };
        let Some(name) = self.streams.get(&source) else { return false };
        let area = Arc::clone(&peer.area);
        let followed = capture
            .with_streams(|streams| streams.get_mut(source)?.follow(&area, slot, new_slot))
            .ok()
            .flatten();
        let Some(attached) = followed else { return false };
        peer.readings.remove(&slot);
        peer.announce_ring(handler, source, name, Some(slot), attached);
        true
    }

    /// Sends the last generation of a completed stream to the readers that are not in it yet: they need not ask,
    /// so they get it even if the engine is gone by the time they have drained theirs.
    pub(crate) fn bring_along(&mut self, capture: &Capture, source: SourceId) {
        let behind = capture.with_streams(|streams| Some(streams.get_mut(source)?.left_behind()));
        for (area, slot) in behind.ok().flatten().unwrap_or_default() {
            let peer = self.peers.iter().find(|(_, peer)| Arc::ptr_eq(&peer.area, &area));
            // A tool that has no slot left asks when it has drained its generation.
            if let Some((&peer_id, _)) = peer
                && let Ok(new_slot) = area.take_slot()
            {
                let moved = self.follow(capture, peer_id, slot, new_slot);
                let reading = self.peers.get_mut(&peer_id).and_then(|peer| peer.readings.get_mut(&new_slot));
                match reading.filter(|_| moved) {
                    // The tool may be borrowing bytes by its old slot.
                    Some(reading) => reading.old_slot = Some(slot),
                    None => area.return_slot(new_slot),
                }
            }
        }
    }

    /// Takes `peer_id`'s readers of `handler` (all, if `None`) off their streams.
    pub(crate) fn detach(&mut self, capture: &Capture, peer_id: PeerId, handler: Option<u32>) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let of = |reading: &Reading| handler.is_none_or(|handler| reading.handler == handler);
        let gone: Vec<(u32, Reading)> = peer.readings.extract_if(|_, reading| of(reading)).collect();
        let area: &Arc<Area> = &peer.area;
        let _ = capture.with_streams(|streams| {
            for (slot, reading) in &gone {
                if let Some(mut stream) = streams.get_mut(reading.source) {
                    stream.detach(area, *slot);
                }
            }
        });
        // A tool drops its readers before it deregisters.
        for (slot, reading) in gone {
            area.return_slot(slot);
            reading.old_slot.inspect(|old| area.return_slot(*old));
        }
    }

    /// Tells tools whose registrations can get no further source.
    pub(crate) fn announce_complete_registrations(&mut self) {
        for peer in self.peers.values_mut() {
            let jobs = &self.jobs;
            let mut told = Vec::new();
            for (handler, registration) in &mut peer.registrations {
                let started = |proc: &Proc| jobs.get(&proc.nspace).is_some_and(|job| job.started);
                if !registration.announced && registration.procs.iter().all(started) {
                    registration.announced = true;
                    told.push(*handler);
                }
            }
            for handler in told {
                peer.answer(&ToTool::Announced { handler });
            }
        }
    }

    /// Whether `proc` is, or may yet become, a source.
    pub(crate) fn may_exist(&self, proc: &Proc) -> bool {
        match self.jobs.get(&proc.nspace) {
            Some(job) if job.started => proc.rank == Rank::WILDCARD || job.ranks.contains_key(&proc.rank),
            _ => true,
        }
    }
}

impl Peer {
    /// Notes that the tool reads `attached`, and sends it.
    fn announce_ring(
        &mut self,
        handler: u32,
        source: SourceId,
        name: &StreamName,
        follows: Option<u32>,
        attached: Attached,
    ) {
        let Attached { ring, slot, start, dropped } = attached;
        self.readings.insert(slot, Reading { source, handler, old_slot: None });
        let message = ToTool::Ring {
            handler,
            source: name.source.clone(),
            channel: name.channel,
            slot,
            follows,
            start,
            dropped,
        };
        self.announce(&message, ring);
    }
}
