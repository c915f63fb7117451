//! Pushes of stdin (`PMIx_IOF_push`, RFC0025): admission of their targets, forwarding and reports.
//!
//! A tool puts its bytes into an inlet. From there the capture thread writes them into the pipes of
//! the local ranks, and the host receives the bytes for ranks elsewhere. Bytes that all targets
//! have taken free room in the inlet, and the tool receives this credit. So one inlet for each push
//! is all the memory that stdin takes, however long it is.

use std::collections::BTreeMap;

use iof_capture::{PushEnd, TargetId};
use iof_proto::{Info, PartialCause, PartialDelivery, Proc, PushReport};

use crate::core::client::Client;
use crate::core::elsewhere::Elsewhere;
use crate::core::ids::PeerId;

/// A request to push.
pub(crate) struct PushRequest {
    /// The tool's number for the request.
    pub request: u32,
    pub targets: Vec<Proc>,
    /// The number of bytes, if the tool knows it.
    pub size: Option<u64>,
    pub infos: Vec<Info>,
}

/// A request to push to a job whose ranks are not all registered yet.
pub(crate) struct Deferred {
    pub(super) peer_id: PeerId,
    pub(super) request: PushRequest,
}

/// A push under way.
pub(crate) struct Push {
    /// The tool and its number for the push; `None` after the tool has disconnected.
    pub(super) tool: Option<(PeerId, u32)>,
    /// The process that began the push; `None` for the embedder's own.
    pub(super) client: Option<Client>,
    /// The size of its inlet in bytes.
    pub(super) capacity: u64,
    /// The number of bytes that the tool has filled into the inlet.
    pub(super) filled: u64,
    /// Whether the tool has filled in its last byte.
    pub(super) has_end: bool,
    /// Whether the targets' stdin ends with the push.
    pub(super) completes: bool,
    /// The position up to which all local targets have taken the bytes, as last reported.
    pub(super) freed: u64,
    /// The position up to which credit was returned to the tool.
    pub(super) credited: u64,
    /// The local targets that still take bytes.
    pub(super) local: BTreeMap<TargetId, Proc>,
    pub(super) elsewhere: Option<Elsewhere>,
    /// Whether pushes that waited for this one elsewhere may continue.
    pub(super) yields: bool,
    pub(super) report: PushReport,
}

impl Push {
    /// Returns the position up to which all targets have taken the bytes.
    pub(super) fn position(&self) -> u64 {
        let local = if self.local.is_empty() { u64::MAX } else { self.freed };
        let elsewhere = self.elsewhere.as_ref().map_or(u64::MAX, |targets| targets.position);
        local.min(elsewhere).min(self.filled)
    }

    pub(super) fn is_done(&self) -> bool {
        self.local.is_empty() && self.elsewhere.is_none()
    }

    /// Records that `target` gets no more bytes.
    pub(super) fn ended(&mut self, target: Proc, delivered: u64, end: PushEnd) {
        let cause = match end {
            PushEnd::Complete => {
                self.report.complete = self.report.complete.saturating_add(1);
                return;
            }
            PushEnd::Closed => PartialCause::Closed,
            PushEnd::CutOff => PartialCause::CutOff,
            PushEnd::Stopped => PartialCause::Stopped,
            PushEnd::Error(error) => PartialCause::Failed(error.to_string()),
        };
        self.report.partial.push(PartialDelivery { target, delivered, cause });
    }
}
