//! Reports of ranks, and of streams that are not delivered.

use std::io::IoSlice;
use std::mem;

use iof_proto::{Channel, Missed, Proc, ProcInfo};
use iof_tool::Gap;

use super::{PrintError, PrinterTask};
use crate::batch::Batch;
use crate::destination::OpenDestination;

impl PrinterTask {
    /// Writes the object of a rank that has started or ended.
    pub(super) fn write_rank(&self, rank: &ProcInfo) -> Result<(), PrintError> {
        let Some(object) = self.options.rank_object else { return Ok(()) };
        let object = object(&self.options.style, rank);
        let OpenDestination::Output(output) = &self.destination else { return Ok(()) };
        let _locked = output.lock();
        output.write(&mut [IoSlice::new(object.as_bytes())]).map_err(PrintError::Write)
    }

    /// Reports bytes of streams that are not delivered, as a gap.
    pub(super) fn report_missed(
        &mut self,
        missed: &Missed,
        on_gap: &mut impl FnMut(&Proc, Channel, Gap),
    ) -> Result<(), PrintError> {
        let Missed { nspace, rank, channel, bytes, streams, offset, .. } = missed;
        if *bytes == 0 {
            return Ok(());
        }
        self.report.missed = self.report.missed.saturating_add(*streams);
        let lost = self.report.lost.entry(*channel).or_default();
        *lost = lost.saturating_add(*bytes);
        let gap = Gap { offset: offset.unwrap_or_default(), lost: *bytes };
        on_gap(&Proc::new(nspace.clone(), *rank), *channel, gap);
        // These streams have no files.
        let OpenDestination::Output(output) = &self.destination else { return Ok(()) };
        let mut batch = Batch::new(mem::take(&mut self.buffer));
        self.options.style.write_missed(missed, &mut batch);
        let locked = output.lock();
        output.write(&mut batch.slices()).map_err(PrintError::Write)?;
        drop(locked);
        self.buffer = batch.into_buffer();
        Ok(())
    }
}
