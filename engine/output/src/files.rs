//! Per-rank files: their paths, how they are opened, and their rotation by size.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use iof_proto::{Channel, Nspace, Rank};
use memchr::{memchr, memrchr};
use nix::errno::Errno;
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::unistd::{AccessFlags, access};

use crate::choice::Place;
use crate::output::write_all;
use crate::pattern::PatternValues;
use crate::style::{OpenLine, Source};

/// The largest number of files that one printer keeps open. When it is reached, all files are
/// closed, and each is opened again for its next write.
pub const MAX_OPEN_FILES: usize = 1024;

/// The largest number of full files that are kept for one output file, see [`Rotation::keep`]. Each
/// of them is renamed whenever the output file is full.
pub const MAX_KEPT_FILES: u32 = 1000;

/// The name that stands for the rank in paths of data that belongs to a whole job.
const JOB_NAME: &str = "job";

/// The mode of created directories, which the umask may narrow. prterun's value.
const DIRECTORY_MODE: u32 = 0o750;
/// The mode of created files, likewise.
const FILE_MODE: u32 = 0o644;

/// The options of per-rank files.
#[derive(Clone, Debug)]
pub struct Files {
    /// The location of the files.
    pub place: Place,
    /// Whether stderr and stddiag go to the file of stdout.
    pub merge: bool,
    /// Whether existing contents of a file are kept. Otherwise a file is emptied when its stream
    /// begins, and the full files of an earlier run are removed.
    pub append: bool,
    /// The size at which a file is full, and the number of full files kept; `None` for no limit.
    pub rotation: Option<Rotation>,
    /// The number of ranks of the job, which determines the number of digits of a rank in names.
    /// With `None`, the printer queries the engine.
    pub nprocs: Option<u32>,
}

/// The rotation of files by size: a full file is renamed and a new one begun. This happens between
/// two lines, provided the lines are written in one piece and are not longer than
/// [`FlushTimeout::max_line`](crate::FlushTimeout); other lines are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The largest size of a file in bytes, which only a single longer line may exceed. 0 counts as
    /// 1. Each full file costs a rename of every file that is kept, so small sizes are expensive.
    pub size: u64,
    /// The number of full files that are kept, at most [`MAX_KEPT_FILES`]. `NAME.1` is the newest.
    pub keep: u32,
}

/// The reason why a file can't be opened or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct FileError {
    /// The path of the file.
    pub path: PathBuf,
    /// The reason.
    pub error: io::Error,
}

impl Files {
    /// Returns the path of the file for `source`, which belongs to a job of `nprocs` ranks.
    pub fn path(&self, source: &Source, nprocs: u32) -> PathBuf {
        let Source { nspace, rank, channel, host, .. } = source;
        let width = nprocs.max(1).ilog10() as usize + 1;
        // Data without a rank belongs to the job as a whole.
        let is_of_job = *rank == Rank::UNDEF;
        let (padded, number) = match rank.0 {
            _ if is_of_job => (JOB_NAME.to_owned(), JOB_NAME.to_owned()),
            number => (format!("{number:0width$}"), number.to_string()),
        };
        let is_out = self.is_out(*channel);
        let name = match &self.place {
            Place::Tree(dir) => {
                let rank = if is_of_job { padded } else { format!("rank.{padded}") };
                let rank = dir.join(nspace.as_str()).join(rank);
                return rank.join(if is_out { "stdout" } else { "stderr" });
            }
            Place::Name(name) => {
                let mut name = name.clone().into_os_string();
                name.push(format!(".{nspace}.{padded}"));
                name
            }
            Place::Pattern(pattern) | Place::Exact(pattern) => {
                let host = host.as_deref().unwrap_or("unknown");
                let (nspace, channel) = (nspace.as_str(), if is_out { "stdout" } else { "stderr" });
                let values = PatternValues { nspace, padded: &padded, rank: &number, host, channel };
                let name = pattern.expand(values);
                if pattern.has_placeholder() || matches!(self.place, Place::Exact(_)) {
                    return name;
                }
                name.into_os_string()
            }
        };
        with_suffix(Path::new(&name), if is_out { "out" } else { "err" })
    }

    /// Checks that the files can probably be created, without creating anything. Checks neither the
    /// files of [`Place::Tree`] nor existing files whose paths have placeholders.
    ///
    /// # Errors
    /// Returns [`FileError`] if a path ends in `/` or is a directory, or if an existing file or the
    /// directory of a new one is not writable.
    pub fn check(&self) -> Result<(), FileError> {
        let (path, checked) = match &self.place {
            Place::Tree(_) => return Ok(()),
            Place::Name(name) => (name.clone(), check_name(name).and_then(|()| check_parent(name))),
            Place::Pattern(pattern) | Place::Exact(pattern) => {
                let values = PatternValues {
                    nspace: JOB_NAME,
                    padded: "0",
                    rank: "0",
                    host: "unknown",
                    channel: "stdout",
                };
                let path = pattern.expand(values);
                let named = check_name(&path);
                let checked = named.and_then(|()| match &self.place {
                    _ if pattern.has_placeholder() && path.exists() => Ok(()),
                    Place::Pattern(_) if !pattern.has_placeholder() => check_file(&with_suffix(&path, "out")),
                    _ => check_file(&path),
                });
                (path, checked)
            }
        };
        checked.map_err(|error| FileError { path, error })
    }

    /// Creates the directory of the files, so that an unusable path is an error before the job
    /// starts. Does nothing for patterns, whose directories depend on the rank.
    ///
    /// # Errors
    /// Returns [`FileError`] if the directory can't be created.
    pub fn prepare(&self) -> Result<(), FileError> {
        let directory = match &self.place {
            Place::Tree(directory) => Some(directory.as_path()),
            Place::Name(name) => name.parent().filter(|parent| !parent.as_os_str().is_empty()),
            Place::Pattern(_) | Place::Exact(_) => None,
        };
        let make =
            |path: &Path| make_directory(path).map_err(|error| FileError { path: path.to_owned(), error });
        directory.map_or(Ok(()), make)
    }

    fn is_out(&self, channel: Channel) -> bool {
        self.merge || channel == Channel::Stdout
    }

    /// Returns whether each rank has a file of its own for `channel`.
    pub(crate) fn has_own_file(&self, channel: Channel) -> bool {
        let is_separate = match &self.place {
            Place::Tree(_) | Place::Name(_) => true,
            Place::Pattern(pattern) | Place::Exact(pattern) => pattern.names_stream(),
        };
        is_separate && !self.merge && channel == Channel::Stdout
    }

    /// Returns whether paths may contain the host, which only the engine knows.
    pub(crate) fn shows_host(&self) -> bool {
        matches!(self.place, Place::Pattern(_) | Place::Exact(_))
    }
}

fn with_suffix(name: &Path, suffix: &str) -> PathBuf {
    let mut name = name.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// Locks a file against other jobs until it is closed: the files of two jobs must not be mixed. On a
/// file system without locks this has no effect.
///
/// # Errors
/// [`ErrorKind::ResourceBusy`] if the file is locked. Any process that can open the file can lock it,
/// so the holder of the lock is not necessarily another job.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            ErrorKind::ResourceBusy,
            "another process, or another option of this command, has locked this file: give the job \
             another name or the file another path, or end that process",
        )),
        Err(TryLockError::Error(_)) | Ok(()) => Ok(()),
    }
}

/// Checks that `path` ends in the name of a file.
fn check_name(path: &Path) -> io::Result<()> {
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next();
    if matches!(last, None | Some(b"" | b"." | b"..")) { Err(Errno::EISDIR.into()) } else { Ok(()) }
}

/// Checks that a file can be written, or created if it does not exist.
fn check_file(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(Errno::EISDIR.into()),
        Ok(_) => Ok(access(path, AccessFlags::W_OK)?),
        Err(error) if error.kind() == ErrorKind::NotFound => check_parent(path),
        Err(error) => Err(error),
    }
}

/// Checks that an entry can be created in the directory of `path`, or in the closest existing
/// directory above it, as missing directories are created.
fn check_parent(path: &Path) -> io::Result<()> {
    for parent in path.ancestors().skip(1) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match fs::metadata(parent) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(metadata) if !metadata.is_dir() => return Err(Errno::ENOTDIR.into()),
            // For root, access(2) allows writing there, but no file can be created.
            Ok(_) if statfs(parent)?.filesystem_type() == PROC_SUPER_MAGIC => {
                return Err(Errno::ENOENT.into());
            }
            Ok(_) => return Ok(access(parent, AccessFlags::W_OK | AccessFlags::X_OK)?),
        }
    }
    Ok(())
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// The id of one of the [`OpenFiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(usize);

/// The files of one printer.
pub(crate) struct OpenFiles {
    pub files: Files,
    /// The longest line that is not cut for a file's size.
    max_line: usize,
    entries: Vec<Entry>,
    by_path: BTreeMap<PathBuf, FileId>,
    /// The number of files that are open.
    open: usize,
    /// The numbers of ranks of jobs, as far as they were needed.
    nprocs: BTreeMap<Nspace, u32>,
}

/// A file that is, was or will be open.
struct Entry {
    path: PathBuf,
    file: Option<File>,
    /// Whether it was opened before, so that it is not to be emptied.
    begun: bool,
    size: u64,
    line: OpenLine,
}

impl OpenFiles {
    pub fn new(files: Files, max_line: usize) -> OpenFiles {
        OpenFiles {
            files,
            max_line,
            entries: Vec::new(),
            by_path: BTreeMap::new(),
            open: 0,
            nprocs: BTreeMap::new(),
        }
    }

    /// Returns the file for `source`. `count` returns the number of ranks of its job.
    pub fn file_for(&mut self, source: &Source, count: impl FnOnce() -> u32) -> FileId {
        let nprocs = match (self.files.nprocs, self.nprocs.get(&source.nspace)) {
            (Some(nprocs), _) | (None, Some(&nprocs)) => nprocs,
            (None, None) => *self.nprocs.entry(source.nspace.clone()).or_insert_with(count),
        };
        let path = self.files.path(source, nprocs);
        let next = FileId(self.entries.len());
        let id = *self.by_path.entry(path.clone()).or_insert(next);
        if id == next {
            self.entries.push(Entry { path, file: None, begun: false, size: 0, line: None });
        }
        id
    }

    /// Creates a file. Unless existing contents are kept, it is emptied, and the full files of an
    /// earlier run are removed.
    pub fn begin(&mut self, id: FileId) -> Result<(), FileError> {
        if self.entries.get(id.0).is_none_or(|entry| entry.begun) {
            return Ok(());
        }
        let opened = self.open(id);
        let append = self.files.append;
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(()) };
        // To save descriptors, the file is closed again until there is something to write. The first
        // one stays open for its lock.
        if id != FileId(0) {
            self.open = self.open.saturating_sub(usize::from(entry.file.take().is_some()));
        }
        let begun = opened.and_then(|()| if append { Ok(()) } else { entry.remove_full() });
        begun.map_err(|error| FileError { path: entry.path.clone(), error })
    }

    /// Returns the line that the file is in the middle of.
    pub fn open_line(&mut self, id: FileId) -> OpenLine {
        self.entries.get(id.0).and_then(|entry| entry.line)
    }

    /// Writes `slices` to a file, which is then in the middle of `line`.
    pub fn write(
        &mut self,
        id: FileId,
        mut slices: Vec<IoSlice<'_>>,
        line: OpenLine,
    ) -> Result<(), FileError> {
        let opened = self.open(id);
        let Files { append, rotation, .. } = self.files;
        let max_line = self.max_line;
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(()) };
        let done = opened.and_then(|()| match rotation {
            None => entry.write(append, &mut slices),
            Some(rotation) => {
                let all = slices.iter().fold(Vec::new(), |mut all, slice| {
                    all.extend_from_slice(slice);
                    all
                });
                entry.write_rotating(append, (rotation, max_line), &all)
            }
        });
        entry.line = line;
        done.map_err(|error| FileError { path: entry.path.clone(), error })
    }

    /// Opens a file. If too many are open, by [`MAX_OPEN_FILES`] or by the limit of the process,
    /// closes all others first.
    fn open(&mut self, id: FileId) -> io::Result<()> {
        let append = self.files.append;
        if self.open >= MAX_OPEN_FILES {
            self.close_all();
        }
        let Some(entry) = self.entries.get_mut(id.0).filter(|entry| entry.file.is_none()) else {
            return Ok(());
        };
        match entry.file(append) {
            Err(error) if self.open > 0 && error.raw_os_error() == Some(Errno::EMFILE as i32) => {
                self.close_all();
                self.entries.get_mut(id.0).map_or(Ok(()), |entry| entry.file(append).map(drop))?;
            }
            opened => drop(opened?),
        }
        self.open = self.open.saturating_add(1);
        Ok(())
    }

    /// Closes all files except the first.
    fn close_all(&mut self) {
        self.entries.iter_mut().skip(1).for_each(|entry| entry.file = None);
        self.open = self.entries.iter().filter(|entry| entry.file.is_some()).count();
    }
}

impl Entry {
    fn file(&mut self, append: bool) -> io::Result<&File> {
        if let Some(ref file) = self.file {
            return Ok(file);
        }
        let mut options = File::options();
        options.create(true).mode(FILE_MODE);
        let is_emptied = !(append || self.begun);
        if is_emptied {
            options.write(true);
        } else {
            options.append(true);
        }
        let mut file = self.open_locked(&options)?;
        if is_emptied && file.metadata()?.is_file() {
            // A full file that its job renamed before it was locked here must keep its contents. The
            // second attempt gets the file that replaced it.
            if !self.is_at_path(&file)? {
                file = self.open_locked(&options)?;
            }
            file.set_len(0)?;
        }
        self.size = file.metadata()?.len();
        self.begun = true;
        Ok(self.file.insert(file))
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
    fn is_at_path(&self, file: &File) -> io::Result<bool> {
        let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            found => Ok(inode(found?) == inode(file.metadata()?)),
        }
    }

    fn write(&mut self, append: bool, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        write_all(self.file(append)?.as_fd(), slices)?;
        self.size = self.size.saturating_add(length as u64);
        Ok(())
    }

    fn write_rotating(
        &mut self,
        append: bool,
        (rotation, max_line): (Rotation, usize),
        mut bytes: &[u8],
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            self.file(append)?;
            let size = rotation.size.max(1);
            let room = usize::try_from(size.saturating_sub(self.size)).unwrap_or(usize::MAX);
            let count = if bytes.len() <= room {
                bytes.len()
            } else if let Some(index) = bytes.get(..room).and_then(|fits| memrchr(b'\n', fits)) {
                index.saturating_add(1)
            } else if self.size > 0 && self.line.is_none() {
                0
            } else {
                // The line is too long for a file, or its beginning is in this file.
                let end = memchr(b'\n', bytes).map(|index| index.saturating_add(1));
                end.filter(|end| *end <= max_line).unwrap_or(room)
            };
            let (fits, rest) = bytes.split_at(count.min(bytes.len()));
            if !fits.is_empty() {
                self.write(append, &mut [IoSlice::new(fits)])?;
                self.line = None;
            }
            bytes = rest;
            if !bytes.is_empty() {
                self.rotate(append, rotation.keep.min(MAX_KEPT_FILES))?;
            }
        }
        Ok(())
    }

    /// Removes the full files of an earlier run.
    fn remove_full(&self) -> io::Result<()> {
        for number in 1.. {
            match fs::remove_file(self.full_path(number)) {
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Returns the path of a file after `number` renames; 0 is the file itself.
    fn full_path(&self, number: u32) -> PathBuf {
        match number {
            0 => self.path.clone(),
            number => with_suffix(&self.path, &number.to_string()),
        }
    }

    /// Renames the file and the full files before it, and begins a new file. The full file stays
    /// locked until the new one is, so that another job never finds both unlocked.
    fn rotate(&mut self, append: bool, keep: u32) -> io::Result<()> {
        for number in (0..keep).rev() {
            match fs::rename(self.full_path(number), self.full_path(number.saturating_add(1))) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if keep == 0 {
            fs::remove_file(&self.path)?;
        }
        let full = self.file.take();
        match self.file(append) {
            Err(error) if error.raw_os_error() == Some(Errno::EMFILE as i32) => {
                drop(full);
                self.file(append).map(|_| ())
            }
            opened => opened.map(|_| ()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn files(place: Place) -> Files {
        Files { place, merge: false, append: false, rotation: None, nprocs: None }
    }

    fn source(rank: u32, channel: Channel) -> Source {
        let nspace = Nspace::new("prterun-node1-77@1").unwrap();
        Source { nspace, rank: Rank(rank), channel, logged: false, host: Some("node1".into()), pid: None }
    }

    #[test]
    fn paths_are_those_of_prterun() {
        let tree = files(Place::Tree("d".into()));
        let path = |files: &Files, rank, channel, nprocs| files.path(&source(rank, channel), nprocs);
        let wanted = |text: &str| PathBuf::from(text);
        assert_eq!(path(&tree, 7, Channel::Stdout, 9), wanted("d/prterun-node1-77@1/rank.7/stdout"));
        assert_eq!(path(&tree, 7, Channel::Stdout, 10), wanted("d/prterun-node1-77@1/rank.07/stdout"));
        assert_eq!(path(&tree, 7, Channel::Stddiag, 1000), wanted("d/prterun-node1-77@1/rank.0007/stderr"));
        let merged = Files { merge: true, ..tree };
        assert_eq!(path(&merged, 0, Channel::Stderr, 1), wanted("d/prterun-node1-77@1/rank.0/stdout"));
        let name = files(Place::Name("x/f".into()));
        assert_eq!(path(&name, 3, Channel::Stderr, 12), wanted("x/f.prterun-node1-77@1.03.err"));
        let pattern = Place::Pattern(crate::Pattern::new(Path::new("%h/%n-%r-%R")).unwrap());
        assert_eq!(path(&files(pattern), 3, Channel::Stdout, 12), wanted("node1/prterun-node1-77@1-03-3"));
        let plain = Place::Pattern(crate::Pattern::new(Path::new("log")).unwrap());
        assert_eq!(path(&files(plain), 3, Channel::Stderr, 12), wanted("log.err"));
    }

    #[test]
    fn data_of_a_whole_job_goes_to_files_of_the_job() {
        let source = source(Rank::UNDEF.0, Channel::Stderr);
        let path = |place| files(place).path(&source, 12).to_str().unwrap().to_owned();
        assert_eq!(path(Place::Tree("d".into())), "d/prterun-node1-77@1/job/stderr");
        assert_eq!(path(Place::Name("x/f".into())), "x/f.prterun-node1-77@1.job.err");
        let pattern = Place::Pattern(crate::Pattern::new(Path::new("%n-%r-%R.%c")).unwrap());
        assert_eq!(path(pattern), "prterun-node1-77@1-job-job.stderr");
    }

    #[test]
    fn a_full_file_is_renamed_between_lines_and_the_oldest_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::Name(directory.path().join("log"));
        let rotation = Some(Rotation { size: 10, keep: 2 });
        let mut open = OpenFiles::new(Files { rotation, ..files(place) }, 64);
        let source = source(0, Channel::Stdout);
        let id = open.file_for(&source, || 1);
        for text in ["one\ntwo\n", "three\n", "four\nfive\n", "a line that is too long\n", "si", "x\n"] {
            let line = (!text.ends_with('\n')).then_some(1);
            open.write(id, vec![IoSlice::new(text.as_bytes())], line).unwrap();
        }
        let path = open.files.path(&source, 1);
        let read = |number: &str| {
            let path = if number.is_empty() { path.clone() } else { with_suffix(&path, number) };
            fs::read_to_string(path).ok()
        };
        let texts = ["", "1", "2", "3"].map(read);
        let wanted = ["six\n", "a line that is too long\n", "four\nfive\n"].map(|text| Some(text.to_owned()));
        assert_eq!(texts[..3], wanted);
        assert_eq!(texts[3], None, "only two full files are kept");
    }

    #[test]
    fn no_more_full_files_are_kept_than_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let old = |number: u32| with_suffix(&path, &number.to_string());
        for file in [path.clone(), old(MAX_KEPT_FILES - 1), old(MAX_KEPT_FILES)] {
            fs::write(&file, "full\n").unwrap();
        }
        let mut entry = Entry { path: path.clone(), file: None, begun: true, size: 0, line: None };
        let rotation = Rotation { size: 5, keep: MAX_KEPT_FILES + 1 };
        entry.write_rotating(true, (rotation, usize::MAX), b"new\n").unwrap();
        let exists = [1, MAX_KEPT_FILES, MAX_KEPT_FILES + 1].map(|number| old(number).exists());
        assert_eq!(exists, [true, true, false]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_where_a_file_is_full() {
        let directory = tempfile::tempdir().unwrap();
        let rotation = Some(Rotation { size: 10, keep: 9 });
        let mut open =
            OpenFiles::new(Files { rotation, ..files(Place::Name(directory.path().join("log"))) }, 15);
        let source = source(0, Channel::Stdout);
        let id = open.file_for(&source, || 1);
        for text in ["10%\r20%\r", "30%\r", "40%\r50%\r", "\n", "a line that is much too long\n"] {
            let line = (!text.ends_with('\n')).then_some(1);
            open.write(id, vec![IoSlice::new(text.as_bytes())], line).unwrap();
        }
        let path = open.files.path(&source, 1);
        let full = ["4", "3", "2", "1"].map(|number| fs::read_to_string(with_suffix(&path, number)).unwrap());
        assert_eq!(full, ["10%\r20%\r30", "%\r40%\r50%\r\n", "a line tha", "t is much "]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "too long\n");
    }

    #[test]
    fn files_of_very_small_sizes_keep_every_byte() {
        for size in [0, 1, 2] {
            let directory = tempfile::tempdir().unwrap();
            let rotation = Some(Rotation { size, keep: 20 });
            let mut open =
                OpenFiles::new(Files { rotation, ..files(Place::Name(directory.path().join("log"))) }, 3);
            let source = source(0, Channel::Stdout);
            let id = open.file_for(&source, || 1);
            for text in ["\n\n", "ab\n", "a line\n", "no end", "", "\n"] {
                open.write(id, vec![IoSlice::new(text.as_bytes())], None).unwrap();
            }
            let path = open.files.path(&source, 1);
            let full =
                (1..=20).rev().filter_map(|number| fs::read(with_suffix(&path, &number.to_string())).ok());
            let all: Vec<u8> = full.flatten().chain(fs::read(&path).unwrap()).collect();
            assert_eq!(all, b"\n\nab\na line\nno end\n", "{size}");
        }
    }

    #[test]
    fn beginning_a_file_empties_it_and_removes_full_files_of_an_earlier_run() {
        let directory = tempfile::tempdir().unwrap();
        for append in [true, false] {
            let place = Place::Name(directory.path().join("log"));
            let mut open = OpenFiles::new(Files { append, ..files(place) }, 64);
            let source = source(0, Channel::Stdout);
            let path = open.files.path(&source, 1);
            let full = ["1", "2", "3"].map(|number| with_suffix(&path, number));
            [&path].into_iter().chain(&full).for_each(|path| fs::write(path, "old").unwrap());
            let id = open.file_for(&source, || 1);
            open.begin(id).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), if append { "old" } else { "" });
            assert!(full.iter().all(|full| full.exists() == append));
            open.write(id, vec![IoSlice::new(b"new")], None).unwrap();
            open.begin(id).unwrap();
            assert!(fs::read_to_string(&path).unwrap().ends_with("new"), "a file is begun only once");
        }
    }

    #[test]
    fn a_file_that_another_job_writes_is_refused_and_keeps_its_contents() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::Name(directory.path().join("log"));
        let mut open = [(); 2].map(|()| OpenFiles::new(files(place.clone()), 64));
        let source = source(0, Channel::Stdout);
        let ids = open.each_mut().map(|open| open.file_for(&source, || 1));
        open[0].begin(ids[0]).unwrap();
        open[0].write(ids[0], vec![IoSlice::new(b"mine")], None).unwrap();
        open[0].close_all();
        let error = open[1].begin(ids[1]).unwrap_err();
        assert!(error.to_string().contains("has locked this file"), "{error}");
        assert_eq!(fs::read_to_string(&error.path).unwrap(), "mine");
        let [first, mut second] = open;
        drop(first);
        second.begin(ids[1]).unwrap();
        assert_eq!(fs::read_to_string(&error.path).unwrap(), "");
    }

    #[test]
    fn a_running_job_goes_on_if_its_file_is_locked_while_closed() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::Name(directory.path().join("log"));
        let rotation = Some(Rotation { size: 4, keep: 1 });
        let mut open = OpenFiles::new(Files { rotation, ..files(place) }, 64);
        let source = source(0, Channel::Stdout);
        let id = open.file_for(&source, || 1);
        open.begin(id).unwrap();
        let path = open.files.path(&source, 1);
        open.entries[0].file = None;
        let other = File::open(&path).unwrap();
        other.lock().unwrap();
        open.write(id, vec![IoSlice::new(b"one\n")], None).unwrap();
        open.write(id, vec![IoSlice::new(b"two\n")], None).unwrap();
        assert_eq!(fs::read_to_string(with_suffix(&path, "1")).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert!(lock(&File::open(&path).unwrap()).is_err(), "the new file is locked");
    }

    #[test]
    fn a_file_that_was_renamed_is_told_from_the_one_at_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let entry = Entry { path: path.clone(), file: None, begun: false, size: 0, line: None };
        let file = File::create(&path).unwrap();
        assert!(entry.is_at_path(&file).unwrap());
        fs::rename(&path, with_suffix(&path, "1")).unwrap();
        assert!(!entry.is_at_path(&file).unwrap());
        let _new = File::create(&path).unwrap();
        assert!(!entry.is_at_path(&file).unwrap());
    }

    #[test]
    fn files_are_emptied_or_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("log");
        let mut contents = Vec::new();
        for append in [false, true, false] {
            let mut open = OpenFiles::new(Files { append, ..files(Place::Name(name.clone())) }, 64);
            let id = open.file_for(&source(0, Channel::Stderr), || 1);
            open.write(id, vec![IoSlice::new(b"x\n")], None).unwrap();
            open.entries[0].file = None;
            open.write(id, vec![IoSlice::new(b"y\n")], None).unwrap();
            contents.push(fs::read_to_string(&open.entries[0].path).unwrap());
        }
        assert_eq!(contents, ["x\ny\n", "x\ny\nx\ny\n", "x\ny\n"]);
    }
}
