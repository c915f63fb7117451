//! One file: how it is opened, locked against other jobs, and written.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC,
    fstatfs,
};

use super::new::NewFiles;
use super::uncached::{drop_written, length, write_uncached};
use super::{CacheDrops, Rotation, make_directory};
use crate::format::style::OpenLine;
use crate::output::{Audience, write_all, write_ready};
use crate::watch::WriteWatch;

/// The mode of created files, which the umask may narrow.
pub(super) const FILE_MODE: u32 = 0o644;

/// The largest number of attempts to open a file that its job replaces meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// The file systems without a server, on which a write waits for nothing but a disk. The printer
/// writes files there without another thread. nix has no names for ZFS and XFS.
const LOCAL: [FsType; 7] = [
    BTRFS_SUPER_MAGIC,
    EXT4_SUPER_MAGIC,
    F2FS_SUPER_MAGIC,
    OVERLAYFS_SUPER_MAGIC,
    TMPFS_MAGIC,
    FsType(0x2fc1_2fc1),
    FsType(0x5846_5342),
];

/// The paths of files that a process has open, see proc_pid_fd(5).
const OPEN_FILES: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc/self/fd"];

/// A file that is, was or will be open.
#[derive(Debug)]
pub(super) struct FileEntry {
    pub path: Arc<Path>,
    pub watch: Option<WriteWatch>,
    /// Shared with [`NewFiles`] until the job has started.
    pub file: Option<Arc<File>>,
    /// Set if it was opened before, so that it is not to be emptied.
    pub begun: bool,
    /// Set if the path names an open file of this process, such as `/dev/stdout`, which is never
    /// emptied.
    pub is_open_elsewhere: bool,
    /// Set if the open file is a regular one. Others, such as pipes and devices, do not rotate.
    pub is_regular: bool,
    /// The reader of the file, once that is known.
    pub audience: Option<Audience>,
    /// Set for a regular file to which a write may take long, so that a thread of its own does it.
    pub may_hang: bool,
    /// The effect of [`Files::drops_cache`](super::Files::drops_cache), if that is set.
    pub drops: Option<CacheDrops>,
    /// The number of bytes in short writes since [`drop_written`] had an effect.
    pub cached: usize,
    pub line: OpenLine,
    /// The event of the pool, if a thread of it has the file or has had it.
    pub owner: Option<Weak<EventFd>>,
    /// While a thread has the file: the bytes that it is to write after those that it has.
    pub queued: Option<Vec<u8>>,
}

/// The way in which files are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteMode {
    pub append: bool,
    pub rotation: Option<Rotation>,
    /// The longest line that is not cut for a file's size.
    pub max_line: usize,
}

impl FileEntry {
    pub fn new(path: Arc<Path>, watch: Option<WriteWatch>) -> FileEntry {
        let is_open_elsewhere = OPEN_FILES.iter().any(|open| path.starts_with(open));
        FileEntry {
            path,
            watch,
            file: None,
            begun: false,
            is_open_elsewhere,
            is_regular: false,
            audience: None,
            may_hang: false,
            drops: None,
            cached: 0,
            line: None,
            owner: None,
            queued: None,
        }
    }

    /// Returns the reader of the file.
    pub fn audience(&mut self) -> Audience {
        if self.audience.is_none() {
            self.audience = self.file.as_ref().map(Audience::of);
        }
        self.audience.unwrap_or(Audience::Nobody)
    }

    /// Returns the file. Opens it if necessary, and empties it when it is used for the first time.
    pub fn file(&mut self, append: bool) -> io::Result<&File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => Arc::new(self.open()?),
        };
        if !self.begun {
            // ext4 writes a file that was truncated to the disk when it is closed, also one that was empty.
            if !append && !self.is_open_elsewhere && self.is_regular && file.metadata()?.len() > 0 {
                file.set_len(0)?;
            }
            self.begun = true;
        }
        Ok(self.file.insert(file))
    }

    /// Opens and locks the file, and leaves its contents. Adds to `new` what this creates. Returns
    /// `false` if it is a FIFO without a reader, for which opening it would wait.
    pub fn lock(&mut self, new: &mut NewFiles) -> io::Result<bool> {
        let found = fs::metadata(&self.path).map(|metadata| metadata.file_type());
        let file = match found {
            Ok(kind) if kind.is_fifo() => match open_fifo(&self.path) {
                Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => return Ok(false),
                opened => Arc::new(opened?),
            },
            // A device is opened only for writing, because opening it may have an effect.
            Ok(kind) if !kind.is_file() && !kind.is_dir() => return Ok(true),
            found => {
                if let Some(directory) = self.path.parent().filter(|_| found.is_err()) {
                    new.make_directory(directory)?;
                }
                let file = Arc::new(self.open()?);
                if found.is_err() && self.is_regular && file.metadata()?.len() == 0 {
                    new.add_file(&self.path, &file);
                }
                file
            }
        };
        self.file = Some(file);
        Ok(true)
    }

    /// Opens the file if it is a FIFO, without waiting for its reader. Returns `false` if it has
    /// none.
    pub fn open_if_fifo(&mut self) -> io::Result<bool> {
        if self.file.is_none() && fs::metadata(&self.path).is_ok_and(|found| found.file_type().is_fifo()) {
            match open_fifo(&self.path) {
                Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => return Ok(false),
                opened => self.file = Some(Arc::new(opened?)),
            }
        }
        Ok(true)
    }

    /// Opens the file, which is created if necessary.
    fn open(&mut self) -> io::Result<File> {
        let mut options = File::options();
        // Another program may truncate the file meanwhile.
        options.create(true).mode(FILE_MODE).append(true);
        let file = if self.begun { self.open_locked(&options)? } else { self.open_current(&options)? };
        self.is_regular = file.metadata()?.is_file();
        self.may_hang = self.is_regular && (self.may_hang || !is_local(&file));
        if !self.is_regular {
            let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
            fcntl(&file, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        Ok(file)
    }

    /// Opens and locks the file that has the path. A full file that its job replaced before it was
    /// locked here must keep its contents.
    fn open_current(&self, options: &OpenOptions) -> io::Result<File> {
        for _ in 0..MAX_ATTEMPTS {
            let file = self.open_locked(options)?;
            if !file.metadata()?.is_file() || self.is_at_path(&file)? {
                return Ok(file);
            }
        }
        Err(busy())
    }

    /// Opens the file, with its directory, and locks it.
    fn open_locked(&self, options: &OpenOptions) -> io::Result<File> {
        let file = match options.open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if let Some(directory) = self.path.parent() {
                    make_directory(directory)?;
                }
                options.open(&self.path)?
            }
            opened => opened?,
        };
        // Other kinds of files, such as pipes and devices, have several writers by intention.
        if file.metadata()?.is_file() {
            match lock(&file) {
                // A running job does not end because another process locked the file while it was
                // closed here.
                Err(_) if self.begun => {}
                locked => locked?,
            }
        }
        Ok(file)
    }

    /// Returns whether `file` is still the file at the path.
    pub fn is_at_path(&self, file: &File) -> io::Result<bool> {
        let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            found => Ok(inode(found?) == inode(file.metadata()?)),
        }
    }

    pub fn write(&mut self, append: bool, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let (watch, owner) = (self.watch.clone(), self.owner.clone());
        self.file(append)?;
        let FileEntry { file: Some(file), is_regular, drops, cached, .. } = self else { return Ok(()) };
        if let Some(drops) = drops.as_mut().filter(|_| *is_regular) {
            write_uncached(file.as_fd(), &mut slices, drops, watch.as_ref())?;
            if drops.refusals == 0 {
                *cached = cached.saturating_add(length(slices));
            }
        }
        write_all(file.as_fd(), slices, watch.as_ref(), owner.as_ref())?;
        drop_written(file.as_fd(), cached);
        Ok(())
    }

    /// Writes `slices`, after which the file is in the middle of `line`. Opens it if necessary.
    pub fn put(
        &mut self,
        slices: &mut [IoSlice<'_>],
        line: OpenLine,
        WriteMode { append, rotation, max_line }: WriteMode,
    ) -> io::Result<()> {
        self.file(append)?;
        let written = match rotation {
            None => self.write(append, slices),
            Some(rotation) => self.write_rotating(append, (rotation, max_line), &joined(slices)),
        };
        self.line = line;
        written
    }

    /// Writes bytes of `slices` to the open file until it is full. Returns the others.
    pub fn put_ready(&mut self, mut slices: &mut [IoSlice<'_>], append: bool) -> io::Result<Vec<u8>> {
        let watch = self.watch.clone();
        let busy = watch.as_ref().map(|watch| watch.begin(None));
        write_ready(self.file(append)?.as_fd(), &mut slices, (watch.as_ref(), busy.as_ref()))?;
        Ok(joined(slices))
    }
}

/// Returns a copy of all bytes.
pub(super) fn joined(slices: &[IoSlice<'_>]) -> Vec<u8> {
    slices.iter().map(|slice| &slice[..]).collect::<Vec<_>>().concat()
}

/// Opens a FIFO that has a reader, in non-blocking mode.
///
/// # Errors
/// `ENXIO` if it has none.
fn open_fifo(path: &Path) -> io::Result<File> {
    File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}

/// Returns whether `file` is on a [local file system](LOCAL).
fn is_local(file: &File) -> bool {
    fstatfs(file).is_ok_and(|found| LOCAL.contains(&found.filesystem_type()))
}

/// Locks a file against other jobs until it is closed: the files of two jobs must not be mixed. On
/// a file system without locks this has no effect.
///
/// # Errors
/// [`busy`] if the file is locked.
pub(super) fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(busy()),
        Err(TryLockError::Error(_)) | Ok(()) => Ok(()),
    }
}

/// Returns the error for a file that is locked. Any process that can open the file can lock it, so
/// the holder of the lock is not necessarily another job.
fn busy() -> io::Error {
    io::Error::new(
        ErrorKind::ResourceBusy,
        "another process, or another option of this command, has locked this file: give the job \
         another name or the file another path, or end that process",
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::files::with_suffix;

    #[test]
    fn a_file_that_was_renamed_is_told_from_the_one_at_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let entry = FileEntry::new(path.clone().into(), None);
        let file = File::create(&path).unwrap();
        assert!(entry.is_at_path(&file).unwrap());
        fs::rename(&path, with_suffix(&path, "1")).unwrap();
        assert!(!entry.is_at_path(&file).unwrap());
        let _new = File::create(&path).unwrap();
        assert!(!entry.is_at_path(&file).unwrap());
    }

    #[test]
    fn each_file_system_that_is_not_known_to_be_local_may_hang() {
        assert!(is_local(&tempfile::tempfile().unwrap()));
        assert!(!is_local(&File::open("/proc/self/status").unwrap()));
    }
}
