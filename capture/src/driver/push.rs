//! The part of the capture thread that pushes.

use super::*;
use crate::target::{Done, Next};

impl<B: Backend> Driver<B> {
    pub(super) fn add_target(&mut self, id: TargetId, pipe: OwnedFd) {
        let at = self.targets.add(id, pipe);
        if let Some(target) = self.targets.get_mut(at) {
            // SAFETY: a target goes in `end_target` alone, which deregisters it before, or after the backend.
            unsafe { self.backend.register(Token::Target(at), target.pipe()) };
            self.watched.add(Token::Target(at), PipeId::Target(id), target.shared_pipe());
        }
    }

    pub(super) fn begin_push(&mut self, id: PushId, inlet: Arc<Inlet>, closes: bool, targets: &[TargetId]) {
        let events = self.targets.begin(id, inlet, closes, targets);
        self.report_all(events);
    }

    /// There are more bytes for the targets of a push, or no more.
    pub(super) fn fill(&mut self, id: PushId, Fill { bytes, over }: Fill) {
        let Some(push) = self.targets.find_push(id).and_then(|at| self.targets.push_mut(at)) else { return };
        push.fill(bytes, over);
        let targets: Vec<usize> = push.targets().collect();
        targets.into_iter().for_each(|at| self.go_on(at));
    }

    /// Does what a target needs, as far as that can be done now.
    fn go_on(&mut self, at: usize) {
        loop {
            match self.targets.next(at) {
                // SAFETY: the bytes lie in the inlet of the target's first push, which stays mapped as long
                // as the push. A push goes when its last target has left it, and a target
                // with a write in flight leaves none (`Target::close`) before `Target::done`,
                // which is called with the answer, in `wrote`. If this thread unwinds or the
                // kernel fails, `Drop` of the driver gets the answers first, or leaks the pushes.
                Next::Write(pipe, bytes) => unsafe { self.backend.write(Token::Target(at), pipe, bytes) },
                Next::Poll(pipe) => self.backend.poll(Token::Target(at), pipe),
                Next::Nothing => {}
                Next::TurnOver => {
                    let turn = self.targets.get_mut(at).and_then(|target| target.turn());
                    if turn.and_then(|turn| self.targets.push_mut(turn)).is_some_and(|push| push.closes()) {
                        return self.end_target(at, PushEnd::Complete);
                    }
                    let events = self.targets.end_turn(at, PushEnd::Complete);
                    self.report_all(events);
                    continue;
                }
            }
            return;
        }
    }

    pub(super) fn wrote(&mut self, at: usize, result: io::Result<usize>) {
        let Some(target) = self.targets.get_mut(at) else { return };
        match target.done(result) {
            Done::Took(bytes) => {
                self.count_taken(at, bytes);
                self.go_on(at);
            }
            Done::Close(bytes, end) => {
                self.count_taken(at, bytes);
                self.end_target(at, end);
            }
        }
    }

    fn count_taken(&mut self, at: usize, bytes: usize) {
        let Some(turn) = self.targets.get_mut(at).and_then(|target| target.turn()) else { return };
        if let Some(push) = self.targets.push_mut(turn) {
            push.took(at, bytes);
        }
        let news = self.targets.news(turn);
        self.report_all(news);
    }

    /// Closes those targets of a push that have taken no more than `position` of it, and could.
    pub(super) fn cut_off(&mut self, id: PushId, position: u64) {
        let Some(number) = self.targets.find_push(id) else { return };
        let Some(push) = self.targets.push_mut(number) else { return };
        let behind: Vec<usize> = push.behind(position).collect();
        for at in behind {
            if self.targets.get_mut(at).is_some_and(|target| target.turn() == Some(number)) {
                self.close_target(at, PushEnd::CutOff);
            }
        }
    }

    pub(super) fn close_target(&mut self, at: usize, end: PushEnd) {
        match self.targets.get_mut(at).map(|target| target.close(end)) {
            Some(Ok(())) => self.backend.cancel(Token::Target(at)),
            Some(Err(end)) => self.end_target(at, end),
            None => {}
        }
    }

    /// Ends a target that has nothing in flight.
    pub(super) fn end_target(&mut self, at: usize, end: PushEnd) {
        self.backend.deregister(Token::Target(at));
        self.watched.remove(Token::Target(at));
        let events = self.targets.end(at, end);
        self.report_all(events);
    }

    /// What came back of a target that is about to be ended with all others.
    pub(super) fn count_written(&mut self, at: usize, result: io::Result<usize>) {
        let Some(target) = self.targets.get_mut(at) else { return };
        let (Done::Took(bytes) | Done::Close(bytes, _)) = target.done(result);
        self.count_taken(at, bytes);
    }

    fn report_all(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.sources.report(event));
    }
}
