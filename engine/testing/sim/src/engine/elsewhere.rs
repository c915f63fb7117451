//! Remote ranks: their output with its gaps and ends, and the ends of remote parts of jobs.

use iof_core::DeliverError;
use iof_proto::{Channel, Proc, Rank};
use iof_tool::test_utils::StreamInfo;

use super::EngineWorld;
use super::jobs::MAX_RANKS;
use crate::bytes;
use crate::driver::{Output, OutputEnd};
use crate::rng::Rng;

impl EngineWorld {
    /// Delivers output of a remote rank, or ends the remote part of a job.
    pub(super) fn deliver(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.job(actor) else { return };
        if !self.jobs.list[index].elsewhere {
            return;
        }
        if rng.chance(8) {
            return self.end_remote_part(index, rng);
        }
        let rank = Rank(MAX_RANKS + rng.below(2) as u32);
        let mut bytes = vec![0; rng.size(8192) as usize];
        bytes::fill(rng.word(), 0, &mut bytes);
        let (nspace, run) = (self.jobs.list[index].nspace.clone(), self.jobs.list[index].run);
        let (source, channel) = (Proc::new(nspace, rank), rng.pick(&Channel::OUTPUTS));
        let end = if rng.chance(8) { OutputEnd::Complete } else { OutputEnd::Open };
        let mut output = Output { bytes, offset: None, end };
        let info = StreamInfo { source: source.clone(), channel, logged: false, run };
        let position = self.truth.handed(&info).unwrap_or(0);
        if self.setting.subject.has_embedder() {
            let beyond = position + rng.size(20_000);
            let offset = rng.pick(&[None, Some(position), Some(beyond)]);
            output.offset = if rng.chance(8) { position.checked_sub(1) } else { offset };
            if rng.chance(12) {
                output.end = OutputEnd::Broken(rng.size(1000));
                output.bytes.truncate(rng.index(2));
            }
        }
        let end = output.end;
        let overlaps = output.offset.is_some_and(|offset| offset < position);
        let number = self.host.expect_callback();
        match self.engine.deliver(&source, channel, output, number) {
            Ok(stream) => {
                assert!(!self.engine.is_without_capture(), "output was accepted without a capture");
                assert!(!overlaps, "output before position {position} was accepted");
                if end == OutputEnd::Complete {
                    self.finishes.delivered_end(stream);
                }
                self.follow_up();
                if let OutputEnd::Broken(missing) = end {
                    self.truth.break_off(stream, missing);
                }
                if self.capture.has_ended() {
                    // The driver learns from the command that the capture has ended.
                    self.engine.withdraw_delivery(stream);
                    self.host.withdraw_callback(number);
                }
            }
            Err(error) => {
                let is_right = !matches!(error, DeliverError::Offset { .. }) || overlaps;
                assert!(is_right, "output at position {position} was refused: {error}");
                self.host.withdraw_callback(number);
            }
        }
    }

    /// Delivers output of the ranks of all jobs, if an embedder does so.
    pub(super) fn deliver_much(&mut self, rng: &mut Rng) {
        if self.setting.subject.has_embedder() {
            (0..24).for_each(|actor| self.deliver(actor, rng));
        }
    }

    fn end_remote_part(&mut self, index: usize, rng: &mut Rng) {
        let with_code = self.setting.subject.has_embedder() && rng.chance(128);
        let code = with_code.then(|| rng.below(4) as i32);
        let job = &mut self.jobs.list[index];
        if self.engine.end_job(&job.nspace, code) {
            job.remote_ended = true;
            job.exit_code = code;
        }
    }
}
