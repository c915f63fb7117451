//! A tool's pushes.

use iof_proto::PushReport;
use iof_shm_ring::Filler;

/// What a tool pushes.
#[derive(Clone, Copy, Debug)]
pub struct PushPlan {
    /// The number of bytes.
    pub size: u64,
}

/// A push under way.
#[derive(Debug)]
pub struct Push {
    plan: PushPlan,
    filler: Filler,
    over: bool,
}

impl Push {
    /// Begins to fill an inlet.
    pub fn new(plan: PushPlan, filler: Filler) -> Push {
        Push { plan, filler, over: false }
    }

    /// Fills in at most `most` bytes. Returns what the engine is to be told.
    pub fn fill(&mut self, most: u64) -> Option<(u64, bool)> {
        if self.over {
            return None;
        }
        let left = self.plan.size - self.filler.filled();
        let bytes = self.filler.fill(left.min(most) as usize) as u64;
        let last = bytes == left;
        self.over = last;
        (bytes > 0 || last).then_some((bytes, last))
    }

    /// Takes back room.
    pub fn freed(&mut self, position: u64) {
        assert!(self.filler.freed(position), "room at {position} for bytes that were not filled in");
    }

    /// Checks the report at its end.
    pub fn check(&self, report: &PushReport) {
        assert!(report.complete == 0 || self.over, "a push is complete before its end");
        // When no target is left, the engine takes no more bytes.
        let filled = self.filler.filled();
        assert!(
            report.bytes == filled || report.complete == 0 && report.bytes < filled,
            "{report:?} of {filled}"
        );
        for partial in &report.partial {
            assert!(partial.delivered <= report.bytes, "{partial:?} of {} bytes", report.bytes);
        }
    }
}
