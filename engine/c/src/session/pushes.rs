//! Pushes in progress: bytes of the program are copied into inlets as there is room.

use std::collections::BTreeMap;
use std::time::Instant;

use iof_proto::{Failure, PushReport, Status};
use iof_tool::{STALL_TIMEOUT, Tool};

use crate::session::command::{Done, Payload, gone};

/// A push in progress.
struct Pushing {
    payload: Payload,
    /// The number of bytes that are in the inlet.
    filled: usize,
    /// Set if all bytes are in the inlet.
    complete: bool,
    /// Set if targets that read nothing for [`STALL_TIMEOUT`] are cut off.
    drop_slow: bool,
    /// The time of the last progress or check, and the position at that check.
    stall: (Instant, Option<u64>),
    done: Done<()>,
}

/// All pushes in progress, by number.
#[derive(Default)]
pub(crate) struct PendingPushes(BTreeMap<u32, Pushing>);

impl PendingPushes {
    pub(crate) fn begin(&mut self, push: u32, payload: Payload, drop_slow: bool, done: Done<()>) {
        let stall = (Instant::now(), None);
        self.0.insert(push, Pushing { payload, filled: 0, complete: false, drop_slow, stall, done });
    }

    /// Fills inlets that have room, and reports the results of pushes that have ended. Returns the
    /// time at which it must be called again.
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
                // The payload is dropped first: `done` lets the call that owns the bytes return.
                let Pushing { payload, done, .. } = pushing;
                drop(payload);
                done(result);
            }
        }
        due
    }

    /// Fails all pushes.
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
        if self.drop_slow {
            let until = self.stall.0.checked_add(STALL_TIMEOUT)?;
            if Instant::now() >= until {
                // Cuts off the targets that have read nothing since the last check, if there was
                // one.
                let lagging = tool.slow_targets(push, self.stall.1).ok()?;
                self.stall = (Instant::now(), Some(lagging.position));
            }
            let until = self.stall.0.checked_add(STALL_TIMEOUT);
            *due = due.iter().copied().chain(until).min();
        }
        None
    }

    fn fill(&mut self, push: u32, tool: &mut Tool) {
        while !self.complete {
            let rest = self.payload.bytes().get(self.filled..).unwrap_or_default();
            let room = tool.push_room(push);
            let count = rest.len().min(room.len());
            if count == 0 && !rest.is_empty() {
                return;
            }
            if let (Some(room), Some(rest)) = (room.get_mut(..count), rest.get(..count)) {
                room.copy_from_slice(rest);
            }
            self.filled = self.filled.saturating_add(count);
            self.complete = count == rest.len();
            self.stall = (Instant::now(), None);
            if tool.fill(push, count, self.complete).is_err() {
                return;
            }
        }
    }
}

/// Returns the result of a push that has ended.
fn outcome(report: &PushReport) -> Result<(), Failure> {
    let Some(first) = report.partial.first() else { return Ok(()) };
    let status = if report.complete > 0 { Status::ERR_PARTIAL_SUCCESS } else { Status::ERR_IOF_FAILURE };
    let (count, total) = (report.partial.len(), report.bytes);
    let reason = format!(
        "{count} targets did not receive all {total} bytes; {target} received {received}",
        target = first.target,
        received = first.delivered
    );
    Err(Failure::new(status, reason))
}
