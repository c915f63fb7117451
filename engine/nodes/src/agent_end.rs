//! The agent's end of an edge: what it may send now.

use iof_proto::Channel;

use crate::EdgeError;
use crate::control::{ToAgent, decode};
use crate::frame::{Bundle, Frame, HEADER, VERSION};
use crate::limits::{MAX_RECORD, MAX_WINDOW};

/// What a record counts for at least, in bytes: the memory of a short one is more than its length.
const MIN_CHARGE: u64 = 256;

/// The smallest part of waiting bytes for which a record is worth its header, in bytes.
const WORTHWHILE: usize = 4 << 10;

/// What a frame of the front end means to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// Nothing to do.
    None,
    /// A bundle may send again.
    Credit,
    /// A control message.
    Message(ToAgent),
}

/// The agent's end of an edge.
#[derive(Debug, Default)]
pub struct AgentEnd {
    greeted: bool,
    /// The bytes that each bundle may still send, headers of records included. The front end opens
    /// the windows.
    windows: [u64; Bundle::ALL.len()],
}

impl AgentEnd {
    /// Processes a frame of the front end.
    ///
    /// # Errors
    /// [`EdgeError`]: the edge is to be closed.
    pub fn receive(&mut self, frame: &Frame<'_>) -> Result<AgentEvent, EdgeError> {
        match frame {
            Frame::Hello { version } if !self.greeted => {
                self.greeted = true;
                check_version(*version).map(|()| AgentEvent::None)
            }
            _ if !self.greeted => Err(EdgeError::NoHello),
            Frame::Padding => Ok(AgentEvent::None),
            Frame::Credit { bundle, bytes } => {
                let window = self.window(*bundle);
                let used = MAX_WINDOW.saturating_sub(*window);
                if *bytes > used {
                    return Err(EdgeError::Window { bytes: *bytes, left: used });
                }
                *window = window.saturating_add(*bytes);
                Ok(AgentEvent::Credit)
            }
            Frame::Control(payload) => Ok(AgentEvent::Message(decode(payload)?)),
            Frame::Hello { .. } => Err(EdgeError::Unexpected("second hello")),
            Frame::Record { .. } | Frame::Gap { .. } | Frame::End { .. } => {
                Err(EdgeError::Unexpected("output of the front end"))
            }
        }
    }

    /// Takes window for a record of `channel`, which has `waiting` bytes to send. Returns the
    /// number of bytes that the record may have; 0 if it must wait for credit, or nothing waits.
    pub fn take_window(&mut self, channel: Channel, waiting: usize) -> usize {
        let Some(bundle) = Bundle::of(channel).filter(|_| waiting > 0) else { return 0 };
        let window = self.window(bundle);
        let room = usize::try_from(*window).unwrap_or(usize::MAX).saturating_sub(HEADER);
        let bytes = waiting.min(MAX_RECORD).min(room);
        match window.checked_sub(charge(bytes)) {
            Some(rest) if bytes >= waiting.min(WORTHWHILE) => *window = rest,
            _ => return 0,
        }
        bytes
    }

    fn window(&mut self, bundle: Bundle) -> &mut u64 {
        let [stdout, errors] = &mut self.windows;
        match bundle {
            Bundle::Stdout => stdout,
            Bundle::Errors => errors,
        }
    }
}

/// Returns what a record of this length takes of the window.
pub(crate) fn charge(bytes: usize) -> u64 {
    (HEADER.saturating_add(bytes) as u64).max(MIN_CHARGE)
}

/// Checks the version in a hello.
pub(crate) fn check_version(theirs: u32) -> Result<(), EdgeError> {
    if theirs == VERSION { Ok(()) } else { Err(EdgeError::Version { theirs, ours: VERSION }) }
}
