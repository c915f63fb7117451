//! Pushes of stdin (`PMIx_IOF_push`, RFC0025): admission of their targets, forwarding and reports.
//!
//! A tool puts its bytes into an inlet. From there the capture thread writes them into the pipes of
//! the local ranks, and the host receives the bytes for ranks elsewhere. Bytes that all targets
//! have taken free room in the inlet, and the tool receives this credit. So one inlet for each push
//! is all the memory that stdin takes, however long it is.

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
use crate::push::admission::{Admitted, PushOptions};
use crate::push::elsewhere::Elsewhere;
use crate::state::{PeerId, State};

pub use self::elsewhere::StdinPush;

/// A request to push to a job whose ranks are not all registered yet.
pub(crate) struct Deferred {
    peer_id: PeerId,
    request: u32,
    targets: Vec<Proc>,
    size: Option<u64>,
    infos: Vec<Info>,
}

/// A push under way.
pub(crate) struct Push {
    /// The tool and its number for the push; `None` after the tool has disconnected.
    tool: Option<(PeerId, u32)>,
    /// The process that began the push; `None` for the embedder's own.
    client: Option<Client>,
    inlet: Arc<Inlet>,
    /// The number of bytes that the tool has filled into the inlet.
    filled: u64,
    /// Whether the tool has filled in its last byte.
    has_end: bool,
    /// Whether the targets' stdin ends with the push.
    completes: bool,
    /// The position up to which all local targets have taken the bytes, as last reported.
    freed: u64,
    /// The position up to which credit was returned to the tool.
    credited: u64,
    /// The local targets that still take bytes.
    local: BTreeMap<TargetId, Proc>,
    elsewhere: Option<Elsewhere>,
    /// Whether pushes that waited for this one elsewhere may continue.
    yields: bool,
    report: PushReport,
}

impl Push {
    /// Returns the position up to which all targets have taken the bytes.
    fn position(&self) -> u64 {
        let local = if self.local.is_empty() { u64::MAX } else { self.freed };
        let elsewhere = self.elsewhere.as_ref().map_or(u64::MAX, |targets| targets.position);
        local.min(elsewhere).min(self.filled)
    }

    fn is_done(&self) -> bool {
        self.local.is_empty() && self.elsewhere.is_none()
    }

    /// Records that `target` gets no more bytes.
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
    /// Begins a push if the request is valid and all targets can be reached.
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
        let waiting = self.deferred.iter().filter(|deferred| deferred.peer_id == peer_id).count();
        let begun = if peer.pushes.len().saturating_add(waiting) >= MAX_PUSHES_PER_TOOL {
            let reason =
                format!("a tool may have {MAX_PUSHES_PER_TOOL} pushes under way: wait for one to end");
            Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason))
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

    /// Returns whether the ranks of a target's job are not all registered yet.
    fn is_starting(&self, target: &Proc) -> bool {
        self.jobs.get(&target.nspace).is_some_and(|job| job.is_local && !job.started)
    }

    /// Begins the deferred pushes whose jobs have all their ranks now.
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
        let PushOptions { directives, ignored, capacity } = self.push_options(&infos, size)?;
        let own = self.peers.get(&peer_id).is_some_and(|peer| peer.own);
        let Admitted { local, elsewhere, unavailable } = self.admit_push(capture, targets, own)?;
        if !unavailable.is_empty() && !(directives.partial && !(local.is_empty() && elsewhere.is_empty())) {
            return Err(admission::refusal(&unavailable));
        }
        let client = self.peers.get(&peer_id).and_then(Peer::counted);
        self.check_room(client, capacity)?;
        let out_of_memory =
            |error: &dyn ToString| Failure { status: Status::ERR_OUT_OF_RESOURCE, reason: error.to_string() };
        let inlet = Inlet::create(capacity, "stdin").map_err(|error| out_of_memory(&error))?;
        check_spare_files(inlet.as_fd())?;
        let inlet = Arc::new(inlet);
        let id = self.next_push();
        if !local.is_empty() {
            let targets = local.keys().copied().collect();
            capture
                .begin_push(id, Arc::clone(&inlet), targets, directives.complete)
                .map_err(|error| out_of_memory(&error))?;
        }
        let elsewhere = (!elsewhere.is_empty()).then(|| {
            let waits_for = self.earlier_elsewhere(&elsewhere);
            Elsewhere::new(id, elsewhere, infos, waits_for)
        });
        let Some(peer) = self.peers.get_mut(&peer_id) else {
            return Err(Failure::new(Status::ERR_UNREACH, "the tool has disconnected"));
        };
        peer.last_push = peer.last_push.saturating_add(1);
        peer.pushes.insert(peer.last_push, id);
        let push = Push {
            tool: Some((peer_id, peer.last_push)),
            client,
            inlet: Arc::clone(&inlet),
            filled: 0,
            has_end: false,
            completes: directives.complete,
            freed: 0,
            credited: 0,
            local,
            elsewhere,
            yields: false,
            report: PushReport::default(),
        };
        self.pushes.insert(id, push);
        // At most as many as a request may name, so the answer fits a message.
        let skipped = unavailable.into_iter().take(MAX_PROCS_PER_PULL);
        let skipped = skipped.map(|(target, reason)| Skipped { target, reason }).collect();
        Ok((PushGranted { push: peer.last_push, skipped, ignored }, inlet))
    }

    /// Records that a tool has put more bytes into the inlet of its push `number`.
    pub(crate) fn fill(
        &mut self,
        capture: &Capture,
        peer_id: PeerId,
        number: u32,
        bytes: u64,
        last: bool,
    ) -> Result<(), DisconnectReason> {
        let Some(peer) = self.peers.get(&peer_id) else { return Ok(()) };
        let Some(&id) = peer.pushes.get(&number) else {
            // The push has ended and the report is on its way, or it never existed.
            let known = number > 0 && number <= peer.last_push;
            return if known {
                Ok(())
            } else {
                Err(DisconnectReason::Unexpected("bytes for a push that does not exist"))
            };
        };
        let Some(push) = self.pushes.get_mut(&id) else { return Ok(()) };
        if bytes == 0 && !last {
            return Err(DisconnectReason::Unexpected("an empty fill"));
        }
        let room = push.inlet.capacity().saturating_sub(push.filled.saturating_sub(push.credited));
        if bytes > room {
            return Err(DisconnectReason::Unexpected("more bytes to push than its credit allows"));
        }
        if push.has_end {
            return Err(DisconnectReason::Unexpected("bytes after the end of a push"));
        }
        push.filled = push.filled.saturating_add(bytes);
        push.has_end = last;
        if !push.local.is_empty() {
            // The call fails only if the capture thread has ended, which has reported the end of
            // all its pushes.
            let _ = capture.fill(id, bytes, last);
        }
        self.continue_push(id);
        Ok(())
    }

    /// Reports the slowest targets of a push. If they are still at position `cut_off`, they are cut
    /// off first.
    pub(crate) fn report_slow_targets(
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
        let slow = id.and_then(|id| self.slow_targets(capture, id)).unwrap_or_default();
        if let Some(peer) = self.peers.get_mut(&peer_id) {
            peer.answer(&ToTool::SlowTargets { request, slow });
        }
    }

    /// Shuts the targets at which a push waits for another push whose tool has disconnected, as no
    /// tool could cut them off.
    fn cut_off_orphans(&self, capture: &Capture, id: PushId, position: u64) {
        let lagging = capture.with_streams(|streams| streams.lagging(id)).ok().flatten();
        let lagging = lagging.filter(|lagging| lagging.position <= position).unwrap_or_default();
        for slow in lagging.targets.into_iter().filter(|slow| slow.turn != id) {
            if self.pushes.get(&slow.turn).is_some_and(|push| push.tool.is_none()) {
                let _ = capture.shut(slow.target);
            }
        }
    }

    fn slow_targets(&self, capture: &Capture, id: PushId) -> Option<SlowTargets> {
        let push = self.pushes.get(&id)?;
        let local = capture.with_streams(|streams| streams.lagging(id)).ok().flatten();
        let (freed, lagging) = local.map_or((u64::MAX, Vec::new()), |local| (local.position, local.targets));
        let elsewhere = push.elsewhere.as_ref();
        let position = freed.min(elsewhere.map_or(u64::MAX, |elsewhere| elsewhere.position)).min(push.filled);
        let slow_here = lagging.into_iter().filter(|_| freed == position).filter_map(|slow| {
            let target = push.local.get(&slow.target)?.clone();
            Some(SlowTarget { target, stalled: slow.turn == id })
        });
        let elsewhere =
            elsewhere.filter(|elsewhere| elsewhere.position == position && elsewhere.position < push.filled);
        let slow_elsewhere = elsewhere.into_iter().flat_map(|elsewhere| {
            let stalled = elsewhere.has_turn();
            elsewhere.targets().iter().map(move |target| SlowTarget { target: target.clone(), stalled })
        });
        Some(SlowTargets { position, targets: slow_here.chain(slow_elsewhere).collect() })
    }

    /// Records that the local targets have taken all bytes before `position`.
    pub(crate) fn freed(&mut self, id: PushId, position: u64) {
        if let Some(push) = self.pushes.get_mut(&id) {
            push.freed = position;
        }
        self.continue_push(id);
    }

    /// Records that a local target has taken all bytes or gets no more.
    pub(crate) fn fed(&mut self, id: PushId, target: TargetId, delivered: u64, end: PushEnd) {
        let Some(proc) = self.pushes.get_mut(&id).and_then(|push| push.local.remove(&target)) else {
            return;
        };
        let end = match end {
            // The target was shut because the rank had exited.
            PushEnd::Stopped if self.rank(&proc).is_some_and(|rank| rank.exit.is_some()) => PushEnd::Closed,
            end => end,
        };
        if let Some(push) = self.pushes.get_mut(&id) {
            push.ended(proc, delivered, end);
        }
        self.continue_push(id);
    }

    /// Records that nothing can be pushed to a target any more.
    pub(crate) fn shut(&mut self, target: TargetId) {
        let Some(proc) = self.stdins.remove(&target) else { return };
        let rank = self.jobs.get_mut(&proc.nspace).and_then(|job| job.ranks.get_mut(&proc.rank));
        if let Some(rank) = rank.filter(|rank| rank.target() == target) {
            rank.stdin_unavailable = Some(StdinUnavailable::Closed);
        }
    }

    /// Shuts the stdin of a rank that has exited, unless another process reads it. Otherwise a push
    /// with nothing to write would not notice the end.
    pub(crate) fn shut_if_unread(&self, capture: &Capture, proc: &Proc) {
        let Some(rank) = self.rank(proc).filter(|rank| rank.stdin_unavailable.is_none()) else { return };
        let target = rank.target();
        if capture.with_streams(|streams| streams.takes(target)).is_ok_and(|takes| !takes) {
            let _ = capture.shut(target);
        }
    }

    fn rank(&self, proc: &Proc) -> Option<&RankState> {
        self.jobs.get(&proc.nspace)?.ranks.get(&proc.rank)
    }

    /// Completes the pushes of a tool that has disconnected. Bytes that it has filled in still
    /// arrive.
    pub(crate) fn leave_pushes(&mut self, capture: &Capture, pushes: impl IntoIterator<Item = PushId>) {
        let peers = &self.peers;
        self.deferred.retain(|deferred| peers.contains_key(&deferred.peer_id));
        for id in pushes {
            let Some(push) = self.pushes.get_mut(&id) else { continue };
            push.tool = None;
            if !mem::replace(&mut push.has_end, true) {
                let _ = capture.fill(id, 0, true);
            }
            self.continue_push(id);
        }
    }

    /// Advances a push: gives the host its next piece, returns credit to the tool, and reports the
    /// end. Does the same for the pushes that waited behind it.
    fn continue_push(&mut self, id: PushId) {
        let mut due = vec![id];
        while let Some(id) = due.pop() {
            self.continue_elsewhere(id);
            if self.pushes.get_mut(&id).is_some_and(|push| mem::take(&mut push.yields)) {
                due.extend(self.yield_elsewhere(id));
            }
            self.return_credit(id);
        }
    }

    fn return_credit(&mut self, id: PushId) {
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if push.is_done() {
            return self.end_push(id);
        }
        let position = push.position();
        // For the host, each of its answers is a step. The capture thread reports local progress in
        // quarters of the inlet.
        if position > push.credited {
            push.credited = position;
            let tool = push.tool.and_then(|(peer, number)| Some((self.peers.get_mut(&peer)?, number)));
            if let Some((peer, number)) = tool {
                peer.return_credit(number, position);
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
