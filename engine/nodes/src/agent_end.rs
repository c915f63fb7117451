//! The agent's end of an edge: what it may send now.

use iof_proto::limits::MAX_FENCE_BYTES_PER_JOB;

use crate::EdgeError;
use crate::control::{ToAgent, decode};
use crate::frame::{Bundle, Frame, HEADER, VERSION};
use crate::limits::{MAX_RECORD, MAX_WINDOW};
use crate::pieces::PieceBuffer;

/// The least number of bytes for which a record counts: the memory of a short one is more than its
/// length.
const MIN_CHARGE: u64 = 256;

/// The meaning of a frame of the front end to the agent.
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
    pieces: PieceBuffer,
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
            Frame::Control(payload) => self.message(decode(payload)?),
            Frame::Hello { .. } => Err(EdgeError::Unexpected("second hello")),
            Frame::Ack { .. } | Frame::Resume { .. } => Err(EdgeError::Unexpected("frame of a link")),
            Frame::Record { .. } | Frame::Gap { .. } | Frame::End { .. } => {
                Err(EdgeError::Unexpected("output of the front end"))
            }
        }
    }

    fn message(&mut self, mut message: ToAgent) -> Result<AgentEvent, EdgeError> {
        match &mut message {
            ToAgent::Piece(piece) => {
                self.pieces.add(piece, MAX_FENCE_BYTES_PER_JOB)?;
                return Ok(AgentEvent::None);
            }
            ToAgent::Exchanged { answer, .. } => self.pieces.complete_answer(answer)?,
            _ => {}
        }
        Ok(AgentEvent::Message(message))
    }

    /// Takes window for a record of `bundle` with this number of bytes. Returns whether the record
    /// may be sent now; otherwise it waits for credit, unless it is empty or longer than
    /// [`MAX_RECORD`]. A record that has waited fits when the front end has everything before it.
    pub fn take_window(&mut self, bundle: Bundle, bytes: usize) -> bool {
        if !(1..=MAX_RECORD).contains(&bytes) {
            return false;
        }
        let window = self.window(bundle);
        let rest = window.checked_sub(charge(bytes));
        *window = rest.unwrap_or(*window);
        rest.is_some()
    }

    fn window(&mut self, bundle: Bundle) -> &mut u64 {
        let [stdout, errors, pulls] = &mut self.windows;
        match bundle {
            Bundle::Stdout => stdout,
            Bundle::Errors => errors,
            Bundle::Pulls => pulls,
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
