//! The targets of a push that run elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use iof_capture::PushId;
use iof_proto::{Info, Proc};

use crate::core::upcall::StdinPush;

/// The targets of a push that run elsewhere, for which the host answers together.
pub(super) struct Elsewhere {
    pub(super) stdin: Arc<StdinPush>,
    /// The earlier pushes that this push waits for.
    pub(super) waits_for: BTreeSet<PushId>,
    /// The number of bytes that the host has taken.
    pub position: u64,
    /// The length of the piece that the host has not answered, in bytes.
    pub(super) unanswered: Option<u64>,
    /// Whether the host was sent the end of the push.
    pub(super) end_sent: bool,
}

impl Elsewhere {
    pub(super) fn new(
        id: PushId,
        source: Proc,
        targets: Vec<Proc>,
        directives: Vec<Info>,
        waits_for: BTreeSet<PushId>,
    ) -> Elsewhere {
        let stdin = Arc::new(StdinPush { id: id.0, source, targets, directives });
        Elsewhere { stdin, waits_for, position: 0, unanswered: None, end_sent: false }
    }

    /// Returns whether the host may receive the next piece.
    pub(super) fn has_turn(&self) -> bool {
        self.waits_for.is_empty()
    }

    pub(super) fn source(&self) -> &Proc {
        &self.stdin.source
    }

    pub(super) fn targets(&self) -> &[Proc] {
        &self.stdin.targets
    }
}
