//! The ends of sources: at once, when the bytes of the pipe are read, or broken.

use super::{Close, Finish, Input, Source, SourceState, Step};
use crate::ids::End;

impl Source {
    /// Notes that the stream is broken: at least `missing` bytes will not be there when it ends. Only
    /// the first call has an effect.
    pub(crate) fn break_off(&mut self, missing: u64) {
        self.missing.get_or_insert(missing);
    }

    /// Requests the end of the source once the bytes that the pipe has now are read. Only the first
    /// call has an effect.
    pub(crate) fn finish(&mut self) -> Close {
        if self.closing || self.finish.is_some() || self.has_ended() {
            return Close::Already;
        }
        self.finish = Some(Finish::Requested);
        if self.in_flight() { Close::Cancel } else { Close::Now }
    }

    /// Takes the number of bytes in the pipe of a source that is to be finished. `unread` may
    /// include bytes that were read or flushed since. Nothing may be in flight.
    pub(crate) fn measured(&mut self, unread: u64) -> Step {
        let wanted = match self.finish {
            Some(Finish::Wanted(wanted)) => wanted.min(unread),
            _ => unread,
        };
        self.finish = Some(Finish::Wanted(wanted));
        if wanted == 0 { Step::End(End::Closed) } else { Step::Go { readable: false } }
    }

    /// Requests the end of the source with the bytes that the stream has.
    pub(crate) fn close(&mut self) -> Close {
        self.closing = true;
        match self.state {
            SourceState::Ended => Close::Already,
            _ if self.in_flight() => Close::Cancel,
            _ => Close::Now,
        }
    }

    /// Returns whether the source is to end without what its pipe has.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Closes the pipe and completes the stream. Nothing may be in flight.
    pub(crate) fn end(&mut self) {
        self.input = Input::Ended;
        self.state = SourceState::Ended;
        self.abandon();
    }

    /// Completes the stream with the bytes that it has. A read may be in flight.
    pub(crate) fn abandon(&mut self) {
        match self.missing {
            Some(missing) => self.stream.break_off(missing),
            None => self.stream.complete(),
        }
        self.is_ready = true;
    }
}
