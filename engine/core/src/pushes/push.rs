//! Pushes of stdin (`PMIx_IOF_push`, RFC0025): admission of their targets, forwarding and reports.
//!
//! A tool puts its bytes into an inlet. From there the capture thread writes them into the pipes of
//! the local ranks, and the host receives the bytes for ranks elsewhere. Bytes that all targets
//! have taken free room in the inlet, and the tool receives this credit. So one inlet for each push
//! is all the memory that stdin takes, however long it is.

pub(crate) mod elsewhere;

use std::collections::BTreeMap;
use std::mem;

use iof_capture::{PushEnd, TargetId};
use iof_proto::{Info, PartialCause, PartialDelivery, Proc, PushReport};
use iof_shm_ring::Offset;

use crate::clients::quotas::Charge;
use crate::count::Count;
use crate::disconnect::DisconnectReason;
use crate::ids::PeerId;
pub(crate) use elsewhere::Elsewhere;

/// A request to push.
pub struct PushRequest {
    /// The tool's number for the request.
    pub request: u32,
    /// The processes that are to receive the bytes.
    pub targets: Vec<Proc>,
    /// The number of bytes, if the tool knows it.
    pub size: Option<u64>,
    /// The directives.
    pub infos: Vec<Info>,
}

/// A request to push to a job whose ranks are not all registered yet.
pub struct Deferred {
    /// The tool.
    pub peer_id: PeerId,
    /// The request.
    pub request: PushRequest,
    /// The charge of a push with the inlet that it will have.
    pub charge: Charge,
}

/// A push under way.
pub struct Push {
    /// The tool and its number for the push; `None` after the tool has disconnected.
    tool: Option<(PeerId, u32)>,
    /// The charge of the push and of its inlet.
    pub(crate) charge: Charge,
    /// The size of its inlet in bytes.
    capacity: u64,
    /// The number of bytes that the tool has filled into the inlet.
    filled: u64,
    /// Set if the tool has filled in its last byte.
    has_end: bool,
    /// Set if the targets' stdin ends with the push.
    completes: bool,
    /// The position up to which all local targets have taken the bytes, as last reported.
    freed: u64,
    /// The position up to which credit was returned to the tool.
    credited: u64,
    /// The local targets that still take bytes.
    local: BTreeMap<TargetId, Proc>,
    elsewhere: Option<Elsewhere>,
    /// Set if pushes that waited for this one elsewhere may continue.
    yields: bool,
    report: PushReport,
}

impl Push {
    /// Begins the push of a tool with its number for the push. `completes` specifies whether the
    /// targets' stdin ends with it.
    pub(crate) fn new(
        tool: (PeerId, u32),
        charge: Charge,
        capacity: u64,
        completes: bool,
        local: BTreeMap<TargetId, Proc>,
        elsewhere: Option<Elsewhere>,
    ) -> Push {
        Push {
            tool: Some(tool),
            charge,
            capacity,
            filled: 0,
            has_end: false,
            completes,
            freed: 0,
            credited: 0,
            local,
            elsewhere,
            yields: false,
            report: PushReport::default(),
        }
    }

    /// Returns the tool and its number for the push; `None` after the tool has disconnected.
    pub fn tool(&self) -> Option<(PeerId, u32)> {
        self.tool
    }

    /// Returns the size of the inlet in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of bytes that the tool has filled into the inlet.
    pub(crate) fn filled(&self) -> u64 {
        self.filled
    }

    /// Returns the process of a local target that still takes bytes.
    pub(crate) fn local(&self, target: TargetId) -> Option<&Proc> {
        self.local.get(&target)
    }

    /// Returns the local targets that still take bytes.
    pub fn local_targets(&self) -> impl Iterator<Item = TargetId> {
        self.local.keys().copied()
    }

    /// Returns the position up to which all local targets have taken the bytes, as last reported.
    pub(crate) fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns whether local targets still take bytes.
    pub fn has_local(&self) -> bool {
        !self.local.is_empty()
    }

    /// Returns whether the stdin of `target` ends with the push.
    pub(crate) fn completes(&self, target: TargetId) -> bool {
        self.completes && self.local.contains_key(&target)
    }

    /// Returns the targets elsewhere whose stdin ends with the push.
    pub(crate) fn ending_elsewhere(&self) -> impl Iterator<Item = &Proc> {
        self.elsewhere.iter().filter(|_| self.completes).flat_map(Elsewhere::targets)
    }

    /// Returns the targets elsewhere that still take bytes.
    pub fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_ref()
    }

    /// Notes that the tool has put `bytes` more bytes into the inlet, and whether these are the
    /// last.
    ///
    /// # Errors
    /// The tool has filled in nothing, more than its credit allows, or bytes after its last one.
    pub(crate) fn fill(&mut self, bytes: u64, last: bool) -> Result<(), DisconnectReason> {
        if bytes == 0 && !last {
            return Err(DisconnectReason::Unexpected("an empty fill"));
        }
        if bytes > self.capacity.since(self.filled.since(self.credited)) {
            return Err(DisconnectReason::Unexpected("more bytes to push than its credit allows"));
        }
        if self.has_end {
            return Err(DisconnectReason::Unexpected("bytes after the end of a push"));
        }
        self.filled.raise(bytes);
        self.has_end = last;
        Ok(())
    }

    /// Notes that the tool has disconnected. Returns whether the push ends because of that.
    pub(crate) fn leave(&mut self) -> bool {
        self.tool = None;
        !mem::replace(&mut self.has_end, true)
    }

    /// Notes that all local targets have taken the bytes before `position`.
    pub(crate) fn free(&mut self, position: u64) {
        debug_assert!(self.freed <= position, "{position} bytes are taken after {}", self.freed);
        self.freed = position;
    }

    /// Returns the position up to which all targets have taken the bytes, if it is behind the one
    /// up to which credit was returned. Marks the credit as returned.
    pub(crate) fn take_credit(&mut self) -> Option<u64> {
        let position = self.position();
        (position > self.credited).then(|| {
            self.credited = position;
            position
        })
    }

    /// Returns the position up to which all targets have taken the bytes.
    fn position(&self) -> u64 {
        let local = if self.local.is_empty() { u64::MAX } else { self.freed };
        let elsewhere = self.elsewhere.as_ref().map_or(u64::MAX, Elsewhere::position);
        local.min(elsewhere).min(self.filled)
    }

    /// Returns whether no target takes bytes any more.
    pub(crate) fn is_done(&self) -> bool {
        self.local.is_empty() && self.elsewhere.is_none()
    }

    /// Records that a local target gets no more bytes.
    pub(crate) fn target_ended(&mut self, target: TargetId, delivered: u64, end: PushEnd) {
        let Some(target) = self.local.remove(&target) else { absent!("target", return) };
        let cause = match end {
            PushEnd::Complete => {
                self.report.complete.raise(1);
                return;
            }
            PushEnd::Closed => PartialCause::Closed,
            PushEnd::CutOff => PartialCause::CutOff,
            PushEnd::Stopped => PartialCause::Stopped,
            PushEnd::Error(error) => PartialCause::Failed(error.to_string()),
        };
        self.report.partial.push(PartialDelivery { target, delivered, cause });
    }

    /// Returns what the tool receives at the end of the push.
    pub(crate) fn into_report(self) -> (PushReport, Charge) {
        (PushReport { bytes: self.filled, ..self.report }, self.charge)
    }
}

/// Checks for simulators.
impl Push {
    /// Panics if the positions contradict each other or the push is over.
    pub fn check(&self) {
        // One without targets ends with its first message.
        assert!(!self.is_done() || self.filled == 0 && !self.has_end, "a push is over");
        assert!(self.filled.saturating_sub(self.credited) <= self.capacity, "a push has no room");
        assert!(self.credited <= self.filled, "a push has credit for bytes that were not filled");
    }
}
