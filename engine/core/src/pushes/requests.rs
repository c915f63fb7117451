//! Pushes under way.

use std::collections::BTreeSet;

use iof_capture::{PushEnd, PushId, StreamStep, TargetId};
use iof_proto::limits::MAX_PROCS_PER_PULL;
use iof_proto::{Failure, Proc, PushGranted, Skipped, SlowTarget, SlowTargets, Status, ToTool};

use crate::Core;
use crate::disconnect::DisconnectReason;
use crate::effects::{Command, HandleOp};
use crate::ids::PeerId;
use crate::jobs::job::{JobState, RankState};
use crate::pushes::admission::{Admitted, PushOptions, refusal};
use crate::pushes::push::{Deferred, Elsewhere, Push, PushRequest};
use crate::streams::awaited::{Awaited, SlowTargetsRequest};
use crate::tools::outgoing::Attachment;
use crate::tools::peer::Peer;

impl Core {
    /// Begins a push if the request is valid and all targets can be reached.
    pub(crate) fn push(&mut self, peer_id: PeerId, request: PushRequest) {
        let Some(peer) = self.tools.get(&peer_id) else { absent!("tool", return) };
        if request.targets.iter().any(|target| self.is_starting(target)) {
            return self.defer_push(peer_id, request);
        }
        match self.admit_push(&request.targets, peer.is_own()) {
            Ok(Admitted { local, .. }) if local.is_empty() => {
                self.begin_push(peer_id, request, &[], &BTreeSet::new());
            }
            Ok(Admitted { local, .. }) => {
                let targets: Vec<TargetId> = local.into_keys().collect();
                let steps = targets.iter().copied().map(StreamStep::Takes).collect();
                self.request_begun(peer_id);
                self.request(Awaited::Push { peer_id, request, targets }, steps);
            }
            Err(failure) => self.answer_push(peer_id, request.request, Err(failure)),
        }
    }

    fn answer_push(&mut self, peer_id: PeerId, request: u32, result: Result<(PushId, PushGranted), Failure>) {
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        match result {
            Ok((push, granted)) => {
                let message = ToTool::PushBegun { request, result: Ok(granted) };
                peer.send_with(&message, Attachment::Inlet(push));
            }
            Err(failure) => peer.answer(&ToTool::PushBegun { request, result: Err(failure) }),
        }
    }

    /// Returns whether the ranks of a target's job are not all registered yet.
    fn is_starting(&self, target: &Proc) -> bool {
        self.jobs.get(&target.nspace).is_some_and(JobState::is_starting)
    }

    /// Keeps a request until the ranks of its jobs are started, within the limits of pushes.
    fn defer_push(&mut self, peer_id: PeerId, request: PushRequest) {
        let Some(payer) = self.tools.get(&peer_id).map(Peer::payer) else { absent!("tool", return) };
        let charge = self
            .push_options(&request.infos, request.size)
            .and_then(|options| self.charge_push(payer, options.capacity));
        match charge {
            Ok(charge) => self.pushes.defer(Deferred { peer_id, request, charge }),
            Err(failure) => self.answer_push(peer_id, request.request, Err(failure)),
        }
    }

    /// Begins the deferred pushes whose jobs have all their ranks now.
    pub(crate) fn begin_deferred(&mut self) {
        for Deferred { peer_id, request, charge } in self.pushes.take_deferred() {
            self.quotas.give_back([charge]);
            self.push(peer_id, request);
        }
    }

    /// Begins a push. The capture thread was asked about the local targets `asked`. Those in
    /// `open` can be fed.
    pub(crate) fn begin_push(
        &mut self,
        peer_id: PeerId,
        request: PushRequest,
        asked: &[TargetId],
        open: &BTreeSet<TargetId>,
    ) {
        let Some(peer) = self.tools.get(&peer_id) else { absent!("tool", return) };
        // The job was replaced by another of the same name, whose ranks are not all registered.
        if request.targets.iter().any(|target| self.is_starting(target)) {
            return self.defer_push(peer_id, request);
        }
        let number = request.request;
        let begun = match self.admit_push(&request.targets, peer.is_own()) {
            // The job was replaced by another of the same name.
            Ok(admitted) if admitted.local.keys().any(|target| !asked.contains(target)) => {
                return self.push(peer_id, request);
            }
            Ok(admitted) => self.begin_admitted(peer_id, request, self.exclude_closed(admitted, open)),
            Err(failure) => Err(failure),
        };
        self.answer_push(peer_id, number, begun);
    }

    fn begin_admitted(
        &mut self,
        peer_id: PeerId,
        PushRequest { size, infos, .. }: PushRequest,
        Admitted { local, elsewhere, unavailable }: Admitted,
    ) -> Result<(PushId, PushGranted), Failure> {
        let PushOptions { directives, ignored, capacity } = self.push_options(&infos, size)?;
        self.check_turns(&local)?;
        if !unavailable.is_empty() && !(directives.partial && !(local.is_empty() && elsewhere.is_empty())) {
            return Err(refusal(&unavailable));
        }
        let gone = || Failure::new(Status::ERR_UNREACH, "the tool has disconnected");
        let payer = self.tools.get(&peer_id).map(Peer::payer).ok_or_else(gone)?;
        let charge = self.charge_push(payer, capacity)?;
        let id = self.pushes.next_id();
        let capacity = match self.resources.create_inlet(id, peer_id, capacity) {
            Ok(capacity) => capacity,
            Err(failure) => {
                self.quotas.give_back([charge]);
                return Err(failure);
            }
        };
        if !local.is_empty() {
            let (targets, closes) = (local.keys().copied().collect(), directives.complete);
            self.effects.commands.push(Command::BeginPush { push: id, inlet: (), targets, closes });
        }
        let waits_for = self.earlier_elsewhere(&elsewhere);
        let shares = self.shares(elsewhere);
        let Some(peer) = self.tools.get_mut(&peer_id) else {
            self.effects.handles.push(HandleOp::DropInlet(id));
            self.quotas.give_back([charge]);
            return Err(gone());
        };
        let elsewhere =
            (!shares.is_empty()).then(|| Elsewhere::new(id, peer.proc(), shares, infos, waits_for));
        let number = peer.add_push(id);
        let push = Push::new((peer_id, number), charge, capacity, directives.complete, local, elsewhere);
        self.pushes.insert(id, push);
        // At most as many as a request may name, so the answer fits a message.
        let skipped = unavailable.into_iter().take(MAX_PROCS_PER_PULL);
        let skipped = skipped.map(|(target, reason)| Skipped { target, reason }).collect();
        Ok((id, PushGranted { push: number, skipped, ignored }))
    }

    /// Records that a tool has put more bytes into the inlet of its push `number`.
    pub(crate) fn fill(
        &mut self,
        peer_id: PeerId,
        number: u32,
        bytes: u64,
        last: bool,
    ) -> Result<(), DisconnectReason> {
        let Some(peer) = self.tools.get(&peer_id) else { absent!("tool", return Ok(())) };
        let Some(id) = peer.push(number) else {
            // The push has ended and the report is on its way, or it never existed.
            let known = peer.has_had_push(number);
            return if known {
                Ok(())
            } else {
                Err(DisconnectReason::Unexpected("bytes for a push that does not exist"))
            };
        };
        let Some(push) = self.pushes.get_mut(&id) else { absent!("push", return Ok(())) };
        push.fill(bytes, last)?;
        if push.has_local() {
            self.effects.commands.push(Command::Fill { push: id, bytes, last });
        }
        self.continue_push(id);
        Ok(())
    }

    /// Reports the slowest targets of a push. If they are still at position `cut_off`, they are cut
    /// off first.
    pub(crate) fn report_slow_targets(
        &mut self,
        peer_id: PeerId,
        request: u32,
        number: u32,
        cut_off: Option<u64>,
    ) {
        let id = self.tools.get(&peer_id).and_then(|peer| peer.push(number));
        let Some(push) = id else {
            return self.answer_slow_targets(peer_id, request, SlowTargets::default());
        };
        if let Some(position) = cut_off {
            self.effects.commands.push(Command::CutOff { push, position });
        }
        self.ask_lagging(SlowTargetsRequest { peer_id, request, push, cut_off });
    }

    fn ask_lagging(&mut self, request: SlowTargetsRequest) {
        self.request_begun(request.peer_id);
        self.request(Awaited::SlowTargets(request), vec![StreamStep::Lagging(request.push)]);
    }

    /// Continues with the local targets that lag behind, which are `None` if all have ended.
    pub(crate) fn slow_targets_known(
        &mut self,
        request: SlowTargetsRequest,
        lagging: Option<iof_capture::SlowTargets>,
    ) {
        let SlowTargetsRequest { peer_id, request: number, push, cut_off } = request;
        if let Some(position) = cut_off {
            let shut = self.cut_off_orphans(push, position, lagging.as_ref());
            self.cut_off_elsewhere(push, position);
            if shut {
                return self.ask_lagging(SlowTargetsRequest { cut_off: None, ..request });
            }
        }
        let slow = self.slow_targets(push, lagging).unwrap_or_default();
        self.answer_slow_targets(peer_id, number, slow);
    }

    fn answer_slow_targets(&mut self, peer_id: PeerId, request: u32, slow: SlowTargets) {
        if let Some(peer) = self.tools.get_mut(&peer_id) {
            peer.answer(&ToTool::SlowTargets { request, slow });
        }
    }

    /// Shuts the targets at which a push waits for another push whose tool has disconnected, as no
    /// tool could cut them off. Returns whether it shuts any.
    fn cut_off_orphans(
        &mut self,
        id: PushId,
        position: u64,
        lagging: Option<&iof_capture::SlowTargets>,
    ) -> bool {
        let targets = lagging.filter(|lagging| lagging.position <= position).map(|lagging| &lagging.targets);
        let is_orphan = |push: PushId| self.pushes.get(&push).is_some_and(|push| push.tool().is_none());
        let waits = targets.into_iter().flatten().filter(|slow| slow.turn != id && is_orphan(slow.turn));
        let before = self.effects.commands.len();
        self.effects.commands.extend(waits.map(|slow| Command::Shut(slow.target)));
        self.effects.commands.len() > before
    }

    fn slow_targets(&self, id: PushId, lagging: Option<iof_capture::SlowTargets>) -> Option<SlowTargets> {
        let push = self.pushes.get(&id)?;
        let (freed, lagging) =
            lagging.map_or((u64::MAX, Vec::new()), |local| (local.position, local.targets));
        let elsewhere = push.elsewhere();
        let position = freed.min(elsewhere.map_or(u64::MAX, Elsewhere::position)).min(push.filled());
        let slow_here = lagging.into_iter().filter(|_| freed == position).filter_map(|slow| {
            let target = push.local(slow.target)?.clone();
            Some(SlowTarget { target, stalled: slow.turn == id })
        });
        let elsewhere =
            elsewhere.filter(|elsewhere| elsewhere.position() == position && position < push.filled());
        let slow_elsewhere = elsewhere.into_iter().flat_map(|elsewhere| {
            let stalled = elsewhere.has_turn();
            elsewhere.slow_targets().map(move |target| SlowTarget { target: target.clone(), stalled })
        });
        Some(SlowTargets { position, targets: slow_here.chain(slow_elsewhere).collect() })
    }

    /// Records that the local targets have taken all bytes before `position`.
    pub(crate) fn freed(&mut self, id: PushId, position: u64) {
        let Some(push) = self.pushes.get_mut(&id) else { absent!("push", return) };
        push.free(position);
        self.continue_push(id);
    }

    /// Records that a local target has taken all bytes or gets no more.
    pub(crate) fn fed(&mut self, id: PushId, target: TargetId, delivered: u64, end: PushEnd) {
        let Some(proc) = self.pushes.get(&id).and_then(|push| push.local(target)) else {
            // The end of the capture thread has ended it, and the refusal of its begin follows.
            debug_assert!(!self.has_capture, "{id:?} does not feed {target:?}");
            return;
        };
        let end = match end {
            // The target was shut because the rank had exited.
            PushEnd::Stopped if self.jobs.rank(proc).is_some_and(|rank| rank.exit().is_some()) => {
                PushEnd::Closed
            }
            end => end,
        };
        if let Some(push) = self.pushes.get_mut(&id) {
            push.target_ended(target, delivered, end);
        }
        self.continue_push(id);
    }

    /// Records that nothing can be pushed to a target any more.
    pub(crate) fn shut(&mut self, target: TargetId) {
        self.jobs.shut(target);
    }

    /// Shuts the stdin of a rank that has exited, unless another process reads it. Otherwise a push
    /// with nothing to write would not notice the end.
    pub(crate) fn shut_if_unread(&mut self, proc: &Proc) {
        let rank = self.jobs.rank(proc).filter(|rank| rank.stdin_unavailable(true).is_none());
        let target = rank.and_then(RankState::target);
        self.effects.commands.extend(target.map(Command::ShutUnread));
    }

    /// Completes the pushes of a tool that has disconnected. Bytes that it has filled in still
    /// arrive.
    pub(crate) fn leave_pushes(&mut self, peer_id: PeerId, pushes: impl IntoIterator<Item = PushId>) {
        self.quotas.give_back(self.pushes.forget(peer_id));
        for id in pushes {
            let Some(push) = self.pushes.get_mut(&id) else { absent!("push", continue) };
            if push.leave() {
                self.effects.commands.push(Command::Fill { push: id, bytes: 0, last: true });
            }
            self.continue_push(id);
        }
    }

    /// Advances a push: gives the host its next piece, returns credit to the tool, and reports the
    /// end. Does the same for the pushes that waited behind it.
    pub(crate) fn continue_push(&mut self, id: PushId) {
        let mut due = vec![id];
        while let Some(id) = due.pop() {
            self.continue_elsewhere(id);
            if self.pushes.get_mut(&id).is_some_and(Push::take_yields) {
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
        // For the host, each of its answers is a step. The capture thread reports local progress in
        // quarters of the inlet.
        let Some(position) = push.take_credit() else { return };
        let tool = push.tool().and_then(|(peer, number)| Some((self.tools.get_mut(&peer)?, number)));
        if let Some((peer, number)) = tool {
            peer.return_credit(number, position);
        }
    }

    fn end_push(&mut self, id: PushId) {
        let Some(push) = self.pushes.remove(id) else { absent!("push", return) };
        self.effects.handles.push(HandleOp::DropInlet(id));
        let tool = push.tool();
        let (report, charge) = push.into_report();
        self.quotas.give_back([charge]);
        let Some((peer_id, number)) = tool else { return self.forget_pauses() };
        if let Some(peer) = self.tools.get_mut(&peer_id) {
            peer.remove_push(number);
            peer.answer(&ToTool::Pushed { push: number, report });
        }
    }
}
