//! The files of a job that are locked before it starts.

use std::fs::Metadata;
use std::path::Path;

use iof_proto::{Channels, Nspace, Rank};
use nix::unistd::gethostname;

use super::FileId;
use super::new::NewFiles;
use super::open::OpenFiles;
use super::{FileError, Files};
use crate::format::label::LabelSource;

/// The files of a job, which are locked before it starts, so that a job with the same files can be
/// refused before any of its ranks has started. A [`Printer`](crate::Printer) writes them.
#[derive(Debug)]
pub struct LockedFiles {
    pub(crate) open: OpenFiles,
    /// The FIFOs that had no reader yet.
    fifos: Vec<FileId>,
}

impl Files {
    /// Creates and locks the files of these ranks of a job on this host for these channels, up to
    /// [`Files::max_open`] files. Existing contents are kept until the printer starts with a file.
    /// Devices, and FIFOs without a reader, are not opened. Adds to `new` what this creates, also
    /// before an error, so that dropping `new` removes it.
    ///
    /// # Errors
    /// Returns [`FileError`] if another process has locked a file, or a file or directory can't be
    /// opened or created.
    pub fn lock(
        self,
        nspace: &Nspace,
        ranks: impl IntoIterator<Item = Rank>,
        channels: Channels,
        new: &mut NewFiles,
    ) -> Result<LockedFiles, FileError> {
        let nprocs = self.nprocs.unwrap_or(1);
        let host = gethostname().ok().and_then(|name| name.into_string().ok());
        let mut open = OpenFiles::new(self);
        let mut fifos = Vec::new();
        let source = |rank, channel| {
            let (nspace, host) = (nspace.clone(), host.clone());
            LabelSource { nspace, rank, channel, logged: false, host, pid: None }
        };
        let sources =
            ranks.into_iter().flat_map(|rank| channels.outputs().map(move |channel| (rank, channel)));
        for (rank, channel) in sources {
            if open.is_full() {
                break;
            }
            let (id, is_new) = open.file_for(&source(rank, channel), || nprocs);
            if is_new && !open.lock(id, new)? {
                fifos.push(id);
            }
        }
        Ok(LockedFiles { open, fifos })
    }
}

impl LockedFiles {
    /// Returns the path of one of the files that is the file with this metadata, under whatever
    /// name. Files that are not open are not compared.
    pub fn find(&self, file: &Metadata) -> Option<&Path> {
        self.open.find(file)
    }

    /// Opens the FIFOs that have a reader by now, without waiting. Returns the path of one that has
    /// none, or `None` if all are open. A printer waits for the readers of the others. Adds to
    /// `new` a file that this creates where a FIFO was.
    ///
    /// # Errors
    /// Returns [`FileError`] if a FIFO can't be opened.
    pub fn open_fifos(&mut self, new: &mut NewFiles) -> Result<Option<&Path>, FileError> {
        let mut waiting = Vec::new();
        for id in std::mem::take(&mut self.fifos) {
            if !self.open.lock(id, new)? {
                waiting.push(id);
            }
        }
        self.fifos = waiting;
        Ok(self.fifos.first().and_then(|id| self.open.path(*id)))
    }
}
