//! Sources whose pipe a thread of its own reads, because it may block.

use nix::unistd::isatty;

use super::{Close, Input, Source, SourceState, Step};
use crate::source::isolated::IsolatedReader;
use crate::source::queue::DeliveryQueue;

impl Source {
    pub(crate) fn is_terminal(&self) -> bool {
        self.pipe().is_some_and(|pipe| isatty(pipe).unwrap_or(false))
    }

    /// Requests that a thread of its own reads the pipe. Has no effect on terminals, which do not
    /// block.
    pub(crate) fn isolate(&mut self) -> Close {
        if self.closing || self.pipe().is_none() || self.is_terminal() {
            return Close::Already;
        }
        self.isolating = true;
        if self.in_flight() { Close::Cancel } else { Close::Now }
    }

    /// Returns whether isolation is requested and nothing is in flight, so that the pipe can move.
    pub(crate) fn can_be_isolated(&self) -> bool {
        self.isolating && !self.in_flight()
    }

    /// Moves the pipe to `reader`, or leaves it if the thread could not be started (`None`).
    /// Nothing may be in flight.
    pub(crate) fn isolated(&mut self, reader: Option<IsolatedReader>) -> Step {
        self.isolating = false;
        self.state = SourceState::Idle;
        match reader {
            Some(reader) => {
                if self.finish.is_some() {
                    reader.finish();
                }
                self.input = Input::Isolated(DeliveryQueue::default(), reader);
                Step::Go { readable: false }
            }
            // `finish` cancelled the read in flight. Another read might wait for ever.
            None if self.finish.is_some() => Step::Measure,
            None => Step::Go { readable: false },
        }
    }
}
