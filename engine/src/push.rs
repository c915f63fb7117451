//! Pushes of stdin (`PMIx_IOF_push`, RFC0025): who may get the bytes, and what becomes of them.
//!
//! A tool puts its bytes into an inlet, from which the capture thread writes them into the pipes of
//! the ranks that run here, and from which the host is brought what is for ranks elsewhere. What
//! all of them have taken is room again, of which the tool is told. So one inlet for each push is
//! all the memory that stdin takes, whatever its size.

mod admission;
mod elsewhere;

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;

use iof_capture::{Capture, PushEnd, PushId, TargetId};
use iof_proto::limits::{MAX_PROCS_PER_PULL, MAX_PUSHES_PER_TOOL};
use iof_proto::{
    Failure, Info, PartialCause, PartialDelivery, Proc, PushGranted, PushReport, Skipped, SlowTarget,
    SlowTargets, Status, StdinUnavailable, ToTool,
};
use iof_shm_ring::Inlet;

use crate::client::Client;
use crate::control::check_spare_files;
use crate::job::RankState;
use crate::peer::{DisconnectReason, Peer};
use crate::push::admission::{Admitted, Asked};
use crate::push::elsewhere::Elsewhere;
use crate::state::{PeerId, State};

pub use self::elsewhere::StdinPush;

/// A request to push to a job of which not all ranks are there yet.
pub(crate) struct Deferred {
    peer_id: PeerId,
    request: u32,
    targets: Vec<Proc>,
    size: Option<u64>,
    infos: Vec<Info>,
}

/// A push under way.
pub(crate) struct Push {
    /// Whose it is, and its number there; `None` when that tool has gone.
    tool: Option<(PeerId, u32)>,
    /// The process that began it; `None` if that is the embedder's.
    client: Option<Client>,
    inlet: Arc<Inlet>,
    filled: u64,
    over: bool,
    /// Its targets' stdin ends with it.
    completes: bool,
    /// What all targets here have taken, as far as we were told.
    freed: u64,
    /// What the tool was told that all have taken.
    told: u64,
    /// The targets here that have neither got all nor gone.
    here: BTreeMap<TargetId, Proc>,
    elsewhere: Option<Elsewhere>,
    /// Others that have waited for their turn elsewhere are to have it.
    yields: bool,
    report: PushReport,
}

impl Push {
    /// What all targets have taken.
    fn position(&self) -> u64 {
        let here = if self.here.is_empty() { u64::MAX } else { self.freed };
        let elsewhere = self.elsewhere.as_ref().map_or(u64::MAX, |targets| targets.position);
        here.min(elsewhere).min(self.filled)
    }

    fn is_done(&self) -> bool {
        self.here.is_empty() && self.elsewhere.is_none()
    }

    /// Notes that `target` gets no more.
    fn ended(&mut self, target: Proc, delivered: u64, end: PushEnd) {
        let cause = match end {
            PushEnd::Complete => {
                self.report.complete = self.report.complete.saturating_add(1);
                return;
            }
            PushEnd::Closed => PartialCause::Closed,
            PushEnd::CutOff => PartialCause::CutOff,
            PushEnd::Stopped => PartialCause::Stopped,
            PushEnd::Error(error) => PartialCause::Failed(error.to_string()),
        };
        self.report.partial.push(PartialDelivery { target, delivered, cause });
    }
}

impl State {
    /// Begins a push, if it makes sense and all targets can be reached.
    pub(crate) fn push(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        request: u32,
        targets: &[Proc],
        size: Option<u64>,
        infos: Vec<Info>,
    ) {
        let Some(peer) = self.peers.get(&peer_id) else { return };
        let waiting = self.deferred.iter().filter(|of| of.peer_id == peer_id).count();
        let begun = if peer.pushes.len().saturating_add(waiting) >= MAX_PUSHES_PER_TOOL {
            let reason =
                format!("a tool may have {MAX_PUSHES_PER_TOOL} pushes under way: wait for one to end");
            Err(Failure { status: Status::ERR_OUT_OF_RESOURCE, reason })
        } else if targets.iter().any(|target| self.is_starting(target)) {
            let targets = targets.to_vec();
            return self.deferred.push(Deferred { peer_id, request, targets, size, infos });
        } else {
            self.begin_push(capture, peer_id, targets, size, infos)
        };
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        match begun {
            Ok((granted, inlet)) => {
                peer.answer_with_inlet(&ToTool::PushBegun { request, result: Ok(granted) }, inlet);
            }
            Err(failure) => peer.answer(&ToTool::PushBegun { request, result: Err(failure) }),
        }
    }

    /// Whether not all ranks of a target's job are there yet.
    fn is_starting(&self, target: &Proc) -> bool {
        self.jobs.get(&target.nspace).is_some_and(|job| job.here && !job.started)
    }

    /// All ranks of a job have come: who wants to push to them gets its answer.
    pub(crate) fn begin_deferred(&mut self, capture: &Capture) {
        for Deferred { peer_id, request, targets, size, infos } in mem::take(&mut self.deferred) {
            self.push(capture, peer_id, request, &targets, size, infos);
        }
    }

    fn begin_push(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        targets: &[Proc],
        size: Option<u64>,
        infos: Vec<Info>,
    ) -> Result<(PushGranted, Arc<Inlet>), Failure> {
        let Asked { directives, ignored, capacity } = self.asked(&infos, size)?;
        let own = self.peers.get(&peer_id).is_some_and(|peer| peer.own);
        let Admitted { here, elsewhere, unopen } = self.admit_push(capture, targets, own)?;
        if !unopen.is_empty() && !(directives.partial && !(here.is_empty() && elsewhere.is_empty())) {
            return Err(admission::refusal(&unopen));
        }
        let client = self.peers.get(&peer_id).and_then(Peer::counted);
        self.check_room(client, capacity)?;
        let out_of_memory =
            |error: &dyn ToString| Failure { status: Status::ERR_OUT_OF_RESOURCE, reason: error.to_string() };
        let inlet = Inlet::create(capacity, "stdin").map_err(|error| out_of_memory(&error))?;
        check_spare_files(inlet.as_fd())?;
        let inlet = Arc::new(inlet);
        let id = self.next_push();
        if !here.is_empty() {
            let targets = here.keys().copied().collect();
            capture
                .begin_push(id, Arc::clone(&inlet), targets, directives.complete)
                .map_err(|error| out_of_memory(&error))?;
        }
        let elsewhere = (!elsewhere.is_empty()).then(|| {
            let behind = self.ahead_elsewhere(&elsewhere);
            Elsewhere::new(id, elsewhere, infos, behind)
        });
        let Some(peer) = self.peers.get_mut(&peer_id) else {
            return Err(Failure { status: Status::ERR_UNREACH, reason: "the tool has gone".into() });
        };
        peer.last_push = peer.last_push.saturating_add(1);
        peer.pushes.insert(peer.last_push, id);
        let push = Push {
            tool: Some((peer_id, peer.last_push)),
            client,
            inlet: Arc::clone(&inlet),
            filled: 0,
            over: false,
            completes: directives.complete,
            freed: 0,
            told: 0,
            here,
            elsewhere,
            yields: false,
            report: PushReport::default(),
        };
        self.pushes.insert(id, push);
        // As many as were named, or as fit a message.
        let skipped = unopen.into_iter().take(MAX_PROCS_PER_PULL);
        let skipped = skipped.map(|(target, reason)| Skipped { target, reason }).collect();
        Ok((PushGranted { push: peer.last_push, skipped, ignored }, inlet))
    }

    /// A tool has put more bytes into the inlet of its push `number`.
    pub(crate) fn fill(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        number: u32,
        bytes: u64,
        over: bool,
    ) -> Result<(), DisconnectReason> {
        let Some(peer) = self.peers.get(&peer_id) else { return Ok(()) };
        let Some(&id) = peer.pushes.get(&number) else {
            // One that is over, of which the tool is about to hear, or one that never was.
            let known = number > 0 && number <= peer.last_push;
            return if known {
                Ok(())
            } else {
                Err(DisconnectReason::Unexpected("bytes for a push that never was"))
            };
        };
        let Some(push) = self.pushes.get_mut(&id) else { return Ok(()) };
        if bytes == 0 && !over {
            return Err(DisconnectReason::Unexpected("nothing, as if it were something to push"));
        }
        let room = push.inlet.capacity().saturating_sub(push.filled.saturating_sub(push.told));
        if bytes > room {
            return Err(DisconnectReason::Unexpected("more bytes to push than there is room for"));
        }
        if push.over {
            return Err(DisconnectReason::Unexpected("bytes behind the last of a push"));
        }
        push.filled = push.filled.saturating_add(bytes);
        push.over = over;
        if !push.here.is_empty() {
            // A capture that has ended has told of the end of all its pushes.
            let _ = capture.fill(id, bytes, over);
        }
        self.go_on(id);
        Ok(())
    }

    /// Says who holds a push back; those who do not read are cut off before, if they still are at
    /// `cut_off`.
    pub(crate) fn lagging(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        request: u32,
        number: u32,
        cut_off: Option<u64>,
    ) {
        let id = self.peers.get(&peer_id).and_then(|peer| peer.pushes.get(&number)).copied();
        if let (Some(id), Some(position)) = (id, cut_off) {
            let _ = capture.cut_off(id, position);
            self.cut_off_orphans(capture, id, position);
            self.cut_off_elsewhere(id, position);
        }
        let slow = id.and_then(|id| self.who_lags(capture, id)).unwrap_or_default();
        if let Some(peer) = self.peers.get_mut(&peer_id) {
            peer.answer(&ToTool::SlowTargets { request, slow });
        }
    }

    /// Shuts the targets at which a push waits for one whose tool has gone: nobody else is left to
    /// do so.
    fn cut_off_orphans(&self, capture: &Capture, id: PushId, position: u64) {
        let lagging = capture.with_streams(|streams| streams.lagging(id)).ok().flatten();
        let lagging = lagging.filter(|lagging| lagging.position <= position).unwrap_or_default();
        for of in lagging.targets.into_iter().filter(|of| of.turn != id) {
            if self.pushes.get(&of.turn).is_some_and(|push| push.tool.is_none()) {
                let _ = capture.shut(of.target);
            }
        }
    }

    fn who_lags(&self, capture: &Capture, id: PushId) -> Option<SlowTargets> {
        let push = self.pushes.get(&id)?;
        let here = capture.with_streams(|streams| streams.lagging(id)).ok().flatten();
        let (freed, lagging) = here.map_or((u64::MAX, Vec::new()), |here| (here.position, here.targets));
        let far = push.elsewhere.as_ref();
        let position = freed.min(far.map_or(u64::MAX, |far| far.position)).min(push.filled);
        let named = lagging.into_iter().filter(|_| freed == position).filter_map(|of| {
            let target = push.here.get(&of.target)?.clone();
            Some(SlowTarget { target, stalled: of.turn == id })
        });
        let far = far.filter(|far| far.position == position && far.position < push.filled);
        let far = far.into_iter().flat_map(|far| {
            far.targets().iter().map(|target| SlowTarget { target: target.clone(), stalled: far.has_turn() })
        });
        Some(SlowTargets { position, targets: named.chain(far).collect() })
    }

    /// The targets here have taken what lies before `position`.
    pub(crate) fn freed(&mut self, id: PushId, position: u64) {
        if let Some(push) = self.pushes.get_mut(&id) {
            push.freed = position;
        }
        self.go_on(id);
    }

    /// A target here has all, or gets no more.
    pub(crate) fn fed(&mut self, id: PushId, target: TargetId, delivered: u64, end: PushEnd) {
        let Some(proc) = self.pushes.get_mut(&id).and_then(|push| push.here.remove(&target)) else {
            return;
        };
        let end = match end {
            // It was shut because of that.
            PushEnd::Stopped if self.rank(&proc).is_some_and(|rank| rank.exit.is_some()) => PushEnd::Closed,
            end => end,
        };
        if let Some(push) = self.pushes.get_mut(&id) {
            push.ended(proc, delivered, end);
        }
        self.go_on(id);
    }

    /// Nothing can be pushed to a target any more.
    pub(crate) fn shut(&mut self, target: TargetId) {
        let Some(proc) = self.stdins.remove(&target) else { return };
        let rank = self.jobs.get_mut(&proc.nspace).and_then(|job| job.ranks.get_mut(&proc.rank));
        if let Some(rank) = rank.filter(|rank| rank.target() == target) {
            rank.unopen = Some(StdinUnavailable::Closed);
        }
    }

    /// A rank has exited: if nobody else reads its stdin, its pushes are over, which those that
    /// have nothing to write would not find out.
    pub(crate) fn shut_if_unread(&self, capture: &Capture, proc: &Proc) {
        let Some(rank) = self.rank(proc).filter(|rank| rank.unopen.is_none()) else { return };
        let target = rank.target();
        if capture.with_streams(|streams| streams.takes(target)).is_ok_and(|takes| !takes) {
            let _ = capture.shut(target);
        }
    }

    fn rank(&self, proc: &Proc) -> Option<&RankState> {
        self.jobs.get(&proc.nspace)?.ranks.get(&proc.rank)
    }

    /// A tool has gone: what it handed over arrives all the same, and then its pushes are over.
    pub(crate) fn leave_pushes(&mut self, capture: &Capture, pushes: impl IntoIterator<Item = PushId>) {
        let peers = &self.peers;
        self.deferred.retain(|of| peers.contains_key(&of.peer_id));
        for id in pushes {
            let Some(push) = self.pushes.get_mut(&id) else { continue };
            push.tool = None;
            if !mem::replace(&mut push.over, true) {
                let _ = capture.fill(id, 0, true);
            }
            self.go_on(id);
        }
    }

    /// Tells the tool of room that there is, or of the end; has the host go on, also with those
    /// that have waited for it.
    fn go_on(&mut self, id: PushId) {
        let mut due = vec![id];
        while let Some(id) = due.pop() {
            self.go_on_elsewhere(id);
            if self.pushes.get_mut(&id).is_some_and(|push| mem::take(&mut push.yields)) {
                due.extend(self.yield_elsewhere(id));
            }
            self.tell(id);
        }
    }

    fn tell(&mut self, id: PushId) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if push.is_done() {
            return self.end_push(id);
        }
        let position = push.position();
        // With the host its own answers are the steps; here the capture thread tells by quarters.
        if position > push.told {
            push.told = position;
            let tool = push.tool.and_then(|(peer, number)| Some((self.peers.get_mut(&peer)?, number)));
            if let Some((peer, number)) = tool {
                peer.tell_room(number, position);
            }
        }
    }

    fn end_push(&mut self, id: PushId) {
        let Some(Push { tool, filled, report, .. }) = self.pushes.remove(&id) else { return };
        let Some((peer_id, push)) = tool else { return };
        if let Some(peer) = self.peers.get_mut(&peer_id) {
            peer.pushes.remove(&push);
            peer.answer(&ToTool::Pushed { push, report: PushReport { bytes: filled, ..report } });
        }
    }
}
