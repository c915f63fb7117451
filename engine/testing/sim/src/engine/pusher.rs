//! A tool's pushes.

use iof_proto::PushReport;
use iof_tool::test_utils::ProtocolSide;

use super::stdins;

/// The bytes that a tool pushes.
#[derive(Clone, Copy, Debug)]
pub struct PushPlan {
    /// The number of bytes.
    pub size: u64,
    /// The number from which the bytes follow.
    pub content: u64,
}

/// A push under way.
#[derive(Debug)]
pub struct Push {
    plan: PushPlan,
    filled: u64,
    over: bool,
}

impl Push {
    /// Begins to fill an inlet.
    pub fn new(plan: PushPlan) -> Push {
        Push { plan, filled: 0, over: false }
    }

    /// Fills in at most `most` bytes of the push `number` of a tool.
    pub fn fill(&mut self, side: &mut ProtocolSide, number: u32, most: u64) {
        if !self.over {
            let left = self.plan.size - self.filled;
            let room = side.push_room(number);
            let bytes = left.min(most).min(room.len() as u64);
            stdins::fill(self.plan.content, self.filled, &mut room[..bytes as usize]);
            self.filled += bytes;
            self.over = bytes == left;
            side.fill(number, bytes as usize, self.over);
        }
    }

    /// Checks the report at its end.
    pub fn check(&self, report: &PushReport) {
        assert!(report.complete == 0 || self.over, "a push is complete before its end");
        // When no target is left, the engine takes no more bytes.
        let filled = self.filled;
        assert!(
            report.bytes == filled || report.complete == 0 && report.bytes < filled,
            "{report:?} of {filled}"
        );
        for partial in &report.partial {
            assert!(partial.delivered <= report.bytes, "{partial:?} of {} bytes", report.bytes);
        }
    }
}
