//! Pushing: the part of the capture thread that writes pushed bytes to targets.

use super::*;
use crate::target::{Done, TargetAction};

impl<B: Backend> Driver<B> {
    /// Adds the write end of a pipe as target `id` and registers it with the backend.
    pub(super) fn add_target(&mut self, id: TargetId, pipe: OwnedFd) {
        let index = self.targets.add(id, pipe);
        let Some(target) = self.targets.get_mut(index) else { absent!("target", return) };
        // SAFETY: a target closes its pipe only when it is dropped. `end_target` alone drops a
        // target, after it has deregistered it. All other targets are dropped after the backend.
        unsafe { self.backend.register(Token::Target(index), target.pipe()) };
        self.watched.add(Token::Target(index), PipeId::Target(id), target.shared_pipe());
    }

    /// Queues a push at its targets and reports the targets that do not exist.
    pub(super) fn begin_push(&mut self, id: PushId, inlet: Arc<Inlet>, closes: bool, targets: &[TargetId]) {
        let events = self.targets.begin(id, inlet, closes, targets);
        self.report_all(events);
    }

    /// Takes note that the pusher has added bytes to the inlet, or has added its last byte, and
    /// serves the targets of the push.
    pub(super) fn fill(&mut self, id: PushId, Fill { bytes, over }: Fill) {
        let Some(push) = self.targets.find_push(id).and_then(|index| self.targets.push_mut(index)) else {
            return;
        };
        push.fill(bytes, over);
        let targets: Vec<usize> = push.targets().collect();
        targets.into_iter().for_each(|index| self.serve_target(index));
    }

    /// Starts the next operation of a target, if it has one. Ends the turns of pushes that have no
    /// bytes left for it.
    fn serve_target(&mut self, index: usize) {
        loop {
            match self.targets.next(index) {
                // SAFETY: the bytes lie in the inlet of the target's first push, which stays mapped
                // as long as the push exists. A push is dropped when its last target has left it. A
                // target with a write in flight leaves no push (`Target::close`) before
                // `Target::done`, which is called with the answer, in `wrote`. If this thread
                // unwinds or the kernel fails, `Drop` of the driver gets the answers first, or
                // leaks the pushes.
                TargetAction::Write(pipe, bytes) => unsafe {
                    self.backend.write(Token::Target(index), pipe, bytes)
                },
                TargetAction::Poll(pipe) => self.backend.poll(Token::Target(index), pipe),
                TargetAction::Nothing => {}
                TargetAction::TurnOver => {
                    let turn = self.targets.get_mut(index).and_then(|target| target.turn());
                    if turn.and_then(|turn| self.targets.push_mut(turn)).is_some_and(|push| push.closes()) {
                        return self.end_target(index, PushEnd::Complete);
                    }
                    let events = self.targets.end_turn(index, PushEnd::Complete);
                    self.report_all(events);
                    continue;
                }
            }
            return;
        }
    }

    /// Handles the answer to a target's write or poll.
    pub(super) fn wrote(&mut self, index: usize, result: io::Result<usize>) {
        let Some(target) = self.targets.get_mut(index) else { absent!("target", return) };
        match target.done(result) {
            Done::Written(bytes) => {
                self.count_taken(index, bytes);
                self.serve_target(index);
            }
            Done::Close(bytes, end) => {
                self.count_taken(index, bytes);
                self.end_target(index, end);
            }
        }
    }

    /// Counts bytes that a target has taken of its first push, and reports the room that this makes
    /// in the inlet.
    fn count_taken(&mut self, index: usize, bytes: usize) {
        if bytes > 0 {
            let now = self.time;
            self.tell_stdout(index, |stdout| stdout.note_input(now));
        }
        let Some(turn) = self.targets.get_mut(index).and_then(|target| target.turn()) else { return };
        let Some(push) = self.targets.push_mut(turn) else { absent!("push", return) };
        push.record_taken(index, bytes);
        let freed = self.targets.take_credit(turn);
        self.report_all(freed);
    }

    /// Closes the targets that have taken at most `position` bytes of a push although it has more
    /// for them. A target where another push has the turn stays open.
    pub(super) fn cut_off(&mut self, id: PushId, position: u64) {
        let Some(push_index) = self.targets.find_push(id) else { return };
        let Some(push) = self.targets.push_mut(push_index) else { absent!("push", return) };
        let behind: Vec<usize> = push.behind(position).collect();
        for index in behind {
            if self.targets.get_mut(index).is_some_and(|target| target.turn() == Some(push_index)) {
                self.close_target(index, PushEnd::CutOff);
            }
        }
    }

    /// Ends a target for the reason `end`: at once, or when its request in flight is answered.
    pub(super) fn close_target(&mut self, index: usize, end: PushEnd) {
        match self.targets.get_mut(index).map(|target| target.close(end)) {
            Some(Ok(())) => self.backend.cancel(Token::Target(index)),
            Some(Err(end)) => self.end_target(index, end),
            None => {}
        }
    }

    /// Ends a target that has nothing in flight.
    pub(super) fn end_target(&mut self, index: usize, end: PushEnd) {
        self.tell_stdout(index, Stream::end_input);
        self.backend.deregister(Token::Target(index));
        self.watched.remove(Token::Target(index));
        let events = self.targets.end(index, end);
        self.report_all(events);
    }

    /// Counts the bytes of an answer for a target that the caller is about to end.
    pub(super) fn count_written(&mut self, index: usize, result: io::Result<usize>) {
        let Some(target) = self.targets.get_mut(index) else { absent!("target", return) };
        let (Done::Written(bytes) | Done::Close(bytes, _)) = target.done(result);
        self.count_taken(index, bytes);
    }

    /// Changes what the stdout of a target's process tells its readers about the target.
    fn tell_stdout(&mut self, index: usize, change: impl FnOnce(&mut Stream)) {
        let target = self.targets.get_mut(index).map(|target| SourceId(target.id().0));
        let source = target.and_then(|id| self.sources.table.find(id));
        if let Some(source) = source.and_then(|source| self.sources.table.source_mut(source)) {
            change(source.stream_mut());
        }
    }

    fn report_all(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.sources.report(event));
    }
}
