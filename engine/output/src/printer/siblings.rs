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

    /// Returns whether a stream may be announced later that has older bytes than `id` for the same
    /// place. The engine announces the streams of a process one after the other, and the process
    /// may write meanwhile.
    pub(super) fn misses_siblings(&mut self, reader: &BatchReader, id: FeedId) -> bool {
        let is_sole = reader.is_direct(id) || self.stream(id).is_some_and(|stream| stream.sole);
        let PrinterTask { siblings, destination, .. } = self;
        !is_sole && !siblings.is_whole(id, || unannounced(reader, destination))
    }

    /// Waits until all streams are known that may have older bytes than those of `incomplete`. The
    /// next poll lists them. A group without bytes stays incomplete: its other streams may not have
    /// been reported to the engine when it answers.
    pub(super) fn complete_groups(&mut self, reader: &mut BatchReader) -> Result<(), PrintError> {
        if self.incomplete.is_empty() {
            return Ok(());
        }
        reader.wait_for_streams()?;
        self.incomplete.drain(..).for_each(|id| self.siblings.complete(id));
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

/// Returns the channels whose streams may be announced later and go to the place of other streams.
fn unannounced(reader: &BatchReader, destination: &OpenDestination) -> Channels {
    let unannounced = reader.unannounced();
    match destination {
        OpenDestination::Files(open) if open.files.has_own_file(Channel::Stdout) => {
            unannounced - Channels::STDOUT
        }
        _ => unannounced,
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
