//! The part of the capture thread that feeds targets.

use super::*;
use crate::target::{Close, Next};

impl<B: Backend> Driver<B> {
    /// Goes on with targets whose streams moved; from here on the bell rings if one does.
    pub(super) fn hear_news(&mut self) {
        if self.stopping || self.targets.is_empty() {
            return;
        }
        let news = self.targets.take_news();
        if !news.is_empty() {
            for at in news {
                self.feed(at);
            }
            // A target may have ended, or been found sealed; nobody is to sleep on that.
            self.desk.publish();
        }
        self.targets.arm();
    }

    pub(super) fn begin_to_feed(&mut self, id: TargetId, pipe: OwnedFd, reader: Reader) {
        let at = self.targets.add(id, pipe, reader);
        if let Some(target) = self.targets.get_mut(at) {
            // SAFETY: a target goes in `end_feed` alone, which deregisters it before, or after the backend.
            unsafe { self.backend.register(Token::Target(at), target.pipe()) };
        }
        self.feed(at);
    }

    /// Does what a target needs, as far as that can be done now.
    fn feed(&mut self, at: usize) {
        let Some(target) = self.targets.get_mut(at) else { return };
        let id = target.id();
        match target.next() {
            // SAFETY: the bytes are borrowed by the target's reader, so its ring stays mapped and the writer claims none
            // of them until the reader consumes, releases, moves or goes. `Target` does none of these before
            // `Target::done`, which is called with the answer, in `wrote`, and no target is dropped before
            // (`Target::close`). If this thread unwinds or the kernel fails, `Drop` of the driver gets the answers
            // first, or leaks the readers.
            Next::Write(pipe, bytes) => unsafe { self.backend.write(Token::Target(at), pipe, bytes) },
            Next::Poll(pipe) => self.backend.poll(Token::Target(at), pipe),
            Next::Sealed => self.desk.report(Event::Sealed { target: id }),
            Next::End(end) => self.end_feed(at, end),
            Next::Nothing => {}
        }
    }

    pub(super) fn wrote(&mut self, at: usize, result: io::Result<usize>) {
        let Some(target) = self.targets.get_mut(at) else { return };
        match target.done(result) {
            Some(end) => self.end_feed(at, end),
            None => self.feed(at),
        }
    }

    pub(super) fn bring_along(&mut self, id: TargetId, Follow(given): Follow) {
        let Some(at) = self.targets.find(id) else { return };
        self.targets.stand_up(at);
        let Some(target) = self.targets.get_mut(at) else { return };
        // SAFETY: promised to `Follow::new`.
        let end = unsafe { target.follow(given) };
        self.targets.sit_down(at);
        match end {
            Some(end) => self.end_feed(at, end),
            None => self.feed(at),
        }
    }

    pub(super) fn unfeed(&mut self, at: usize) {
        match self.targets.get_mut(at).map(|target| target.close()) {
            Some(Close::Cancel) => self.backend.cancel(Token::Target(at)),
            Some(Close::Now(end)) => self.end_feed(at, end),
            None => {}
        }
    }

    /// Ends a target that has nothing in flight: before the event, so that its slot is free then.
    pub(super) fn end_feed(&mut self, at: usize, end: FeedEnd) {
        self.backend.deregister(Token::Target(at));
        if let Some(event) = self.targets.end(at, end) {
            self.desk.report(event);
        }
    }
}
