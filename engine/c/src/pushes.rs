//! Pushes under way: bytes of C's go into inlets as there is room.

use std::collections::BTreeMap;
use std::time::Instant;

use iof_proto::{Failure, PushReport, Status};
use iof_tool::{STALL_TIMEOUT, Tool};

use crate::session::Done;

/// Bytes to be pushed.
pub(crate) enum Payload {
    /// Our own copy: C does not wait.
    Copied(Vec<u8>),
    /// C's: the call that has them waits until we are done with them.
    Lent(*const u8, usize),
}

// SAFETY: it is read only while its owner waits, see `Payload::bytes`.
unsafe impl Send for Payload {}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match self {
            Payload::Copied(bytes) => bytes,
            // SAFETY: the call that made it has checked the pointer, and returns only when what has it is
            // gone: it waits for the answer, or for the end of the one who could give it
            // (`Session::blocking`).
            Payload::Lent(at, size) => unsafe { std::slice::from_raw_parts(*at, *size) },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes().len()
    }
}

/// One of them.
struct Pushing {
    payload: Payload,
    at: usize,
    over: bool,
    /// Who takes nothing for a while is cut off.
    drop: bool,
    /// Since when nothing has moved, and how far it was when somebody looked.
    stall: (Instant, Option<u64>),
    done: Done<()>,
}

/// All of them, by number.
#[derive(Default)]
pub(crate) struct Pushes(BTreeMap<u32, Pushing>);

impl Pushes {
    pub(crate) fn begin(&mut self, push: u32, payload: Payload, drop: bool, done: Done<()>) {
        let stall = (Instant::now(), None);
        self.0.insert(push, Pushing { payload, at: 0, over: false, drop, stall, done });
    }

    /// Puts bytes where there is room, and tells what became of pushes that are over. Gives when to
    /// look again.
    pub(crate) fn advance(&mut self, tool: &mut Tool) -> Option<Instant> {
        let mut due = None;
        let numbers: Vec<u32> = self.0.keys().copied().collect();
        for push in numbers {
            let result = match self.0.get_mut(&push) {
                Some(pushing) => pushing.advance(push, tool, &mut due),
                None => None,
            };
            if let Some(result) = result
                && let Some(pushing) = self.0.remove(&push)
            {
                // C may have its bytes back.
                let Pushing { payload, done, .. } = pushing;
                drop(payload);
                done(result);
            }
        }
        due
    }

    /// Nothing will come of any.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        for Pushing { payload, done, .. } in std::mem::take(&mut self.0).into_values() {
            drop(payload);
            done(Err(failure.clone()));
        }
    }
}

impl Pushing {
    fn advance(
        &mut self,
        push: u32,
        tool: &mut Tool,
        due: &mut Option<Instant>,
    ) -> Option<Result<(), Failure>> {
        self.fill(push, tool);
        match tool.take_report(push) {
            Ok(Some(report)) => return Some(outcome(&report)),
            Ok(None) => {}
            Err(lost) => return Some(Err(gone(lost))),
        }
        if self.drop {
            let until = self.stall.0.checked_add(STALL_TIMEOUT)?;
            if Instant::now() >= until {
                // Those that took nothing since the last look, if there was one.
                let lagging = tool.slow_targets(push, self.stall.1).ok()?;
                self.stall = (Instant::now(), Some(lagging.position));
            }
            let until = self.stall.0.checked_add(STALL_TIMEOUT);
            *due = due.iter().copied().chain(until).min();
        }
        None
    }

    fn fill(&mut self, push: u32, tool: &mut Tool) {
        while !self.over {
            let rest = self.payload.bytes().get(self.at..).unwrap_or_default();
            let room = tool.push_room(push);
            let count = rest.len().min(room.len());
            if count == 0 && !rest.is_empty() {
                return;
            }
            if let (Some(room), Some(rest)) = (room.get_mut(..count), rest.get(..count)) {
                room.copy_from_slice(rest);
            }
            self.at = self.at.saturating_add(count);
            self.over = count == rest.len();
            self.stall = (Instant::now(), None);
            if tool.fill(push, count, self.over).is_err() {
                return;
            }
        }
    }
}

/// What C is told of a push that is over.
fn outcome(report: &PushReport) -> Result<(), Failure> {
    let Some(first) = report.partial.first() else { return Ok(()) };
    let status = if report.complete > 0 { Status::ERR_PARTIAL_SUCCESS } else { Status::ERR_IOF_FAILURE };
    let (short, all) = (report.partial.len(), report.bytes);
    let reason = format!(
        "{short} targets did not get all of {all} bytes; {target} got {got}",
        target = first.target,
        got = first.delivered
    );
    Err(Failure::new(status, reason))
}

/// The engine has gone.
pub(crate) fn gone(why: impl std::fmt::Display) -> Failure {
    Failure::new(Status::ERR_UNREACH, why.to_string())
}
