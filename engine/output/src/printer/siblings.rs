//! The part of the printer that keeps streams of one process in the order of their reads.

use std::mem;

use iof_proto::{Channel, Channels, Proc};
use iof_tool::{BatchReader, FeedId, Gap};

use super::{PrintError, PrinterTask};
use crate::destination::OpenDestination;
use crate::order::{Found, pieces};
use crate::stream::ReadyStream;

impl PrinterTask {
    /// Adds the streams that are listed for the first time to their groups. Creates their files, if
    /// they have any.
    pub(super) fn add_new(&mut self, reader: &mut BatchReader, ids: &[FeedId]) -> Result<(), PrintError> {
        for &id in ids {
            if self.siblings.contains(id) {
                continue;
            }
            if matches!(self.destination, OpenDestination::Files(_)) {
                self.add(reader, id)?;
            }
            let file = self.stream(id).and_then(|stream| stream.file);
            if let Some(origin) = reader.origin(id) {
                let written = if origin.logged { Channels::empty() } else { origin.channel.into() };
                self.siblings.add(id, origin.source, written, file);
            }
        }
        Ok(())
    }

    /// Waits until all streams of the process of `id` are known that may have older bytes than
    /// `id`. The engine announces the streams of a process one after the other, and the process may
    /// write meanwhile.
    pub(super) fn complete_group(&mut self, reader: &mut BatchReader, id: FeedId) -> Result<(), PrintError> {
        let is_sole = self.stream(id).is_some_and(|stream| stream.sole);
        if is_sole || self.siblings.is_whole(id, reader.unannounced()) {
            return Ok(());
        }
        reader.wait_for_streams()?;
        let listed = reader.listed();
        self.add_new(reader, &listed)?;
        self.siblings.complete(id);
        Ok(())
    }

    /// Peeks at the other streams of the group of `first`, which has bytes, and adds all of them to
    /// `ready`, in pieces if their bytes have to alternate.
    pub(super) fn peek_siblings(
        &mut self,
        reader: &mut BatchReader,
        first: ReadyStream,
        ready: &mut Vec<ReadyStream>,
        on_gap: &mut impl FnMut(&Proc, Channel, Gap),
    ) -> Result<(), PrintError> {
        self.complete_group(reader, first.id)?;
        let mut members = mem::take(&mut self.members);
        self.siblings.group_of(first.id, &mut members);
        // Bytes that were read before those of `first` are visible by now, because one thread reads
        // all streams of a process.
        let mut horizon = None;
        for &id in members.iter().filter(|id| **id != first.id) {
            match self.peek(reader, id, on_gap)? {
                Some(found) if found.has_bytes => {
                    // It may have been deferred, and not all of its bytes may be written now.
                    reader.rearm(id);
                    horizon = horizon.max(Some(find(reader, id).newest()));
                }
                found => ready.extend(found),
            }
        }
        match horizon {
            None => ready.push(first),
            Some(horizon) => {
                let horizon = horizon.max(find(reader, first.id).newest());
                // What was read up to the horizon is visible at this second peek.
                for &id in &members {
                    ready.extend(self.peek(reader, id, on_gap)?.filter(|found| !found.has_bytes));
                }
                let found: Vec<Found> = members.iter().map(|id| find(reader, *id)).collect();
                let ids = pieces(&found, horizon);
                ready.extend(ids.iter().enumerate().filter_map(|(number, piece)| {
                    let id = *members.get(piece.stream)?;
                    Some(ReadyStream { id, until: piece.end, follows: number > 0, ..first })
                }));
            }
        }
        self.members = members;
        Ok(())
    }
}

/// Returns the bytes of a stream that the last peek found, with their times.
fn find(reader: &BatchReader, id: FeedId) -> Found {
    let mut found = Found { offset: 0, len: 0, times: Vec::new() };
    if let Some(bytes) = reader.bytes(id).filter(|bytes| !bytes.is_empty()) {
        (found.offset, found.len) = (bytes.offset(), bytes.len());
        bytes.times(&mut found.times);
    }
    found
}
