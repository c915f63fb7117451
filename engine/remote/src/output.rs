//! The output of all nodes, which goes directly to the printers of the job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use iof_nodes::{Bundle, StreamKey};
use iof_proto::Rank;
use iof_tool::{DirectInput, DirectItem};

use crate::edge::EdgeEnds;

/// The printers of a job, and the bytes that they have not written.
#[derive(Debug)]
pub struct DirectOutput {
    printers: Vec<DirectInput>,
    /// By rank.
    unwritten: Arc<[AtomicU64]>,
}

/// Bytes of a record, for which credit is given when no printer needs them.
struct Arrived {
    bytes: Vec<u8>,
    rank: Rank,
    bundle: Bundle,
    ends: Arc<EdgeEnds>,
    unwritten: Arc<[AtomicU64]>,
}

impl AsRef<[u8]> for Arrived {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        if let Some(unwritten) = self.unwritten.get(self.rank.0 as usize) {
            // Relaxed: only the number matters.
            unwritten.fetch_sub(self.bytes.len() as u64, Relaxed);
        }
        self.ends.give_credit(self.bundle, self.bytes.len());
    }
}

impl DirectOutput {
    /// Returns the output of a job with this number of ranks.
    pub fn new(printers: Vec<DirectInput>, ranks: u64) -> DirectOutput {
        DirectOutput { printers, unwritten: (0..ranks).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Gives bytes that have arrived, and were read at this time, to the printers of their stream.
    pub fn print(
        &self,
        ends: &Arc<EdgeEnds>,
        (stream, bundle): (StreamKey, Bundle),
        (time, bytes): (u64, &[u8]),
    ) {
        let (rank, bytes) = (stream.rank, bytes.to_vec());
        if let Some(unwritten) = self.unwritten.get(rank.0 as usize) {
            unwritten.fetch_add(bytes.len() as u64, Relaxed);
        }
        let (ends, unwritten) = (Arc::clone(ends), Arc::clone(&self.unwritten));
        let bytes = Arc::new(Arrived { bytes, rank, bundle, ends, unwritten });
        self.push(stream, &DirectItem::Bytes { bytes, time });
    }

    /// Gives the printers of a stream an item of it.
    pub fn push(&self, StreamKey { rank, channel }: StreamKey, item: &DirectItem) {
        self.printers.iter().for_each(|printer| printer.push(rank, channel, item));
    }

    /// Lets the printers have what was pushed.
    pub fn flush(&self) {
        self.printers.iter().for_each(DirectInput::flush);
    }

    /// Returns the number of bytes of a rank, or of all ranks, that the printers have not written.
    pub fn unwritten(&self, rank: Option<Rank>) -> u64 {
        let load = |unwritten: &AtomicU64| unwritten.load(Relaxed);
        match rank {
            Some(rank) => self.unwritten.get(rank.0 as usize).map_or(0, load),
            None => self.unwritten.iter().map(load).fold(0, u64::saturating_add),
        }
    }
}
