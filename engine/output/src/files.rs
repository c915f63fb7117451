//! A file for each rank: where it lies, how it is opened, how large it may become.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use iof_proto::{Channel, Nspace, Rank};
use memchr::{memchr, memrchr};
use nix::errno::Errno;

use crate::choice::Place;
use crate::output::write_all;
use crate::pattern::Words;
use crate::style::{Open, Source};

/// Files that one printer keeps open; beyond, they are closed and opened again when they are
/// written.
pub const MAX_OPEN_FILES: usize = 1024;

/// Full files that are kept of one at most: each is renamed whenever one is full.
pub const MAX_KEPT_FILES: u32 = 1000;

/// What stands for the rank where there is none.
const OF_JOB: &str = "job";

/// The modes of what is made, which the umask may narrow: prterun's.
const DIRECTORY_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o644;

/// Per-rank files.
#[derive(Clone, Debug)]
pub struct Files {
    /// Where they lie.
    pub place: Place,
    /// Whether stderr and stddiag go to stdout's file.
    pub merge: bool,
    /// Whether what was in a file stays. Else it is emptied when its stream begins, and the full
    /// ones of an earlier run are removed.
    pub append: bool,
    /// When a file is full, if ever.
    pub rotation: Option<Rotation>,
    /// How many ranks the job has, which says how many digits a rank has in names; the engine is
    /// asked if this is `None`.
    pub nprocs: Option<u32>,
}

/// A full file is renamed and a new one begun, between two lines if those are no longer than
/// [`Patience::max_line`](crate::Patience) and written in one piece; others are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Bytes in a file at most, but for one line that is longer; 1 at least, and 0 is 1. Each full
    /// file costs a rename of every one that is kept, so few bytes are a bad idea.
    pub size: u64,
    /// Full ones that are kept: `NAME.1` is the newest. More than [`MAX_KEPT_FILES`] are as many as
    /// that.
    pub keep: u32,
}

/// Why a file can't be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct FileError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

impl Files {
    /// Where what `source`, of a job of `nprocs` ranks, writes goes.
    pub fn path(&self, source: &Source, nprocs: u32) -> PathBuf {
        let Source { nspace, rank, channel, host, .. } = source;
        let width = nprocs.max(1).ilog10() as usize + 1;
        // What is of no rank is of the job as a whole.
        let of_job = *rank == Rank::UNDEF;
        let (padded, number) = match rank.0 {
            _ if of_job => (OF_JOB.to_owned(), OF_JOB.to_owned()),
            number => (format!("{number:0width$}"), number.to_string()),
        };
        let is_out = self.is_out(*channel);
        let name = match &self.place {
            Place::Tree(dir) => {
                let rank = if of_job { padded } else { format!("rank.{padded}") };
                let rank = dir.join(nspace.as_str()).join(rank);
                return rank.join(if is_out { "stdout" } else { "stderr" });
            }
            Place::Name(name) => {
                let mut name = name.clone().into_os_string();
                name.push(format!(".{nspace}.{padded}"));
                name
            }
            Place::Pattern(pattern) => {
                let host = host.as_deref().unwrap_or("unknown");
                let words = Words { nspace: nspace.as_str(), padded: &padded, rank: &number, host };
                pattern.expand(words).into_os_string()
            }
        };
        with_suffix(Path::new(&name), if is_out { "out" } else { "err" })
    }

    /// Makes the directory in which the files are to lie, as far as it is known before there are
    /// any.
    ///
    /// # Errors
    /// It can't be made.
    pub fn prepare(&self) -> Result<(), FileError> {
        let directory = match &self.place {
            Place::Tree(directory) => Some(directory.as_path()),
            Place::Name(name) => name.parent().filter(|parent| !parent.as_os_str().is_empty()),
            Place::Pattern(_) => None,
        };
        let make =
            |path: &Path| make_directory(path).map_err(|error| FileError { path: path.to_owned(), error });
        directory.map_or(Ok(()), make)
    }

    fn is_out(&self, channel: Channel) -> bool {
        self.merge || channel == Channel::Stdout
    }

    /// Whether each rank's `channel` has a file for itself.
    pub(crate) fn is_alone(&self, channel: Channel) -> bool {
        let is_of_rank = !matches!(&self.place, Place::Pattern(pattern) if !pattern.names_rank());
        is_of_rank && !self.merge && channel == Channel::Stdout
    }

    /// Whether names hold what only the engine knows.
    pub(crate) fn shows_host(&self) -> bool {
        matches!(self.place, Place::Pattern(_))
    }
}

fn with_suffix(name: &Path, suffix: &str) -> PathBuf {
    let mut name = name.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Names one of the [`OpenFiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(usize);

/// The files of one printer.
pub(crate) struct OpenFiles {
    pub files: Files,
    /// Up to which length a line is not cut for a file's size.
    max_line: usize,
    written: Vec<Written>,
    by_path: BTreeMap<PathBuf, FileId>,
    open: usize,
    nprocs: BTreeMap<Nspace, u32>,
}

/// A file that is, or was, open.
struct Written {
    path: PathBuf,
    file: Option<File>,
    /// It was opened before, so it is not to be emptied.
    begun: bool,
    size: u64,
    line: Open,
}

impl OpenFiles {
    pub fn new(files: Files, max_line: usize) -> OpenFiles {
        OpenFiles {
            files,
            max_line,
            written: Vec::new(),
            by_path: BTreeMap::new(),
            open: 0,
            nprocs: BTreeMap::new(),
        }
    }

    /// The file for `source`, whose job has as many ranks as `count` says.
    pub fn of(&mut self, source: &Source, count: impl FnOnce() -> u32) -> FileId {
        let nprocs = match (self.files.nprocs, self.nprocs.get(&source.nspace)) {
            (Some(nprocs), _) | (None, Some(&nprocs)) => nprocs,
            (None, None) => *self.nprocs.entry(source.nspace.clone()).or_insert_with(count),
        };
        let path = self.files.path(source, nprocs);
        let next = FileId(self.written.len());
        let id = *self.by_path.entry(path.clone()).or_insert(next);
        if id == next {
            self.written.push(Written { path, file: None, begun: false, size: 0, line: None });
        }
        id
    }

    /// Makes a file, empty if what was in it is not to stay, and removes the full ones of an
    /// earlier run with it.
    pub fn begin(&mut self, id: FileId) -> Result<(), FileError> {
        if self.written.get(id.0).is_none_or(|written| written.begun) {
            return Ok(());
        }
        let opened = self.open(id);
        let append = self.files.append;
        let Some(written) = self.written.get_mut(id.0) else { return Ok(()) };
        // Until there is something to write, the process has better use for the descriptor.
        self.open = self.open.saturating_sub(usize::from(written.file.take().is_some()));
        let begun = opened.and_then(|()| if append { Ok(()) } else { written.remove_full() });
        begun.map_err(|error| FileError { path: written.path.clone(), error })
    }

    /// Whose line the file is in the middle of.
    pub fn line(&mut self, id: FileId) -> Open {
        self.written.get(id.0).and_then(|written| written.line)
    }

    /// Writes to a file, which is then in the middle of `line`.
    pub fn write(&mut self, id: FileId, mut slices: Vec<IoSlice<'_>>, line: Open) -> Result<(), FileError> {
        let opened = self.open(id);
        let Files { append, rotation, .. } = self.files;
        let max_line = self.max_line;
        let Some(written) = self.written.get_mut(id.0) else { return Ok(()) };
        let done = opened.and_then(|()| match rotation {
            None => written.write(append, &mut slices),
            Some(rotation) => {
                let all = slices.iter().fold(Vec::new(), |mut all, slice| {
                    all.extend_from_slice(slice);
                    all
                });
                written.write_rotating(append, (rotation, max_line), &all)
            }
        });
        written.line = line;
        done.map_err(|error| FileError { path: written.path.clone(), error })
    }

    /// Opens a file, and closes all others first where they are too many, by our own limit or by
    /// the process's.
    fn open(&mut self, id: FileId) -> io::Result<()> {
        let append = self.files.append;
        if self.open >= MAX_OPEN_FILES {
            self.close_all();
        }
        let Some(written) = self.written.get_mut(id.0).filter(|written| written.file.is_none()) else {
            return Ok(());
        };
        match written.file(append) {
            Err(error) if self.open > 0 && error.raw_os_error() == Some(Errno::EMFILE as i32) => {
                self.close_all();
                self.written.get_mut(id.0).map_or(Ok(()), |written| written.file(append).map(drop))?;
            }
            opened => drop(opened?),
        }
        self.open = self.open.saturating_add(1);
        Ok(())
    }

    fn close_all(&mut self) {
        self.written.iter_mut().for_each(|written| written.file = None);
        self.open = 0;
    }
}

impl Written {
    fn file(&mut self, append: bool) -> io::Result<&File> {
        if let Some(ref file) = self.file {
            return Ok(file);
        }
        let mut options = File::options();
        options.create(true).mode(FILE_MODE);
        if append || self.begun {
            options.append(true);
        } else {
            options.write(true).truncate(true);
        }
        let file = match options.open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if let Some(directory) = self.path.parent() {
                    make_directory(directory)?;
                }
                options.open(&self.path)?
            }
            opened => opened?,
        };
        self.size = file.metadata()?.len();
        self.begun = true;
        Ok(self.file.insert(file))
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
            let now = if bytes.len() <= room {
                bytes.len()
            } else if let Some(at) = bytes.get(..room).and_then(|fits| memrchr(b'\n', fits)) {
                at.saturating_add(1)
            } else if self.size > 0 && self.line.is_none() {
                0
            } else {
                // A line that is too long for a file, or whose beginning is in this one.
                let end = memchr(b'\n', bytes).map(|at| at.saturating_add(1));
                end.filter(|end| *end <= max_line).unwrap_or(room)
            };
            let (fits, rest) = bytes.split_at(now.min(bytes.len()));
            if !fits.is_empty() {
                self.write(append, &mut [IoSlice::new(fits)])?;
                self.line = None;
            }
            bytes = rest;
            if !bytes.is_empty() {
                self.rotate(rotation.keep.min(MAX_KEPT_FILES))?;
            }
        }
        Ok(())
    }

    /// Removes the full files that came before this one, as many as there are.
    fn remove_full(&self) -> io::Result<()> {
        for number in 1.. {
            match fs::remove_file(self.full(number)) {
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                removed => removed?,
            }
        }
        Ok(())
    }

    /// The name of the full file that was renamed so many times; 0 is the file itself.
    fn full(&self, number: u32) -> PathBuf {
        match number {
            0 => self.path.clone(),
            number => with_suffix(&self.path, &number.to_string()),
        }
    }

    /// Renames the file, and those before it, and begins a new one.
    fn rotate(&mut self, keep: u32) -> io::Result<()> {
        self.file = None;
        for number in (0..keep).rev() {
            match fs::rename(self.full(number), self.full(number.saturating_add(1))) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if keep == 0 {
            fs::remove_file(&self.path)?;
        }
        Ok(())
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
    fn files_lie_where_prterun_puts_them() {
        let tree = files(Place::Tree("d".into()));
        let path = |files: &Files, rank, channel, nprocs| files.path(&source(rank, channel), nprocs);
        let at = |text: &str| PathBuf::from(text);
        assert_eq!(path(&tree, 7, Channel::Stdout, 9), at("d/prterun-node1-77@1/rank.7/stdout"));
        assert_eq!(path(&tree, 7, Channel::Stdout, 10), at("d/prterun-node1-77@1/rank.07/stdout"));
        assert_eq!(path(&tree, 7, Channel::Stddiag, 1000), at("d/prterun-node1-77@1/rank.0007/stderr"));
        let merged = Files { merge: true, ..tree };
        assert_eq!(path(&merged, 0, Channel::Stderr, 1), at("d/prterun-node1-77@1/rank.0/stdout"));
        let name = files(Place::Name("x/f".into()));
        assert_eq!(path(&name, 3, Channel::Stderr, 12), at("x/f.prterun-node1-77@1.03.err"));
        let pattern = Place::Pattern(crate::Pattern::new(Path::new("%h/%n-%r-%R")).unwrap());
        assert_eq!(path(&files(pattern), 3, Channel::Stdout, 12), at("node1/prterun-node1-77@1-03-3.out"));
    }

    #[test]
    fn what_is_of_the_job_as_a_whole_lies_in_files_of_the_job() {
        let of_job = source(Rank::UNDEF.0, Channel::Stderr);
        let path = |place| files(place).path(&of_job, 12).to_str().unwrap().to_owned();
        assert_eq!(path(Place::Tree("d".into())), "d/prterun-node1-77@1/job/stderr");
        assert_eq!(path(Place::Name("x/f".into())), "x/f.prterun-node1-77@1.job.err");
        let pattern = Place::Pattern(crate::Pattern::new(Path::new("%n-%r-%R")).unwrap());
        assert_eq!(path(pattern), "prterun-node1-77@1-job-job.err");
    }

    #[test]
    fn a_full_file_makes_room_between_lines_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::Name(directory.path().join("log"));
        let rotation = Some(Rotation { size: 10, keep: 2 });
        let mut open = OpenFiles::new(Files { rotation, ..files(place) }, 64);
        let of = source(0, Channel::Stdout);
        let id = open.of(&of, || 1);
        for text in ["one\ntwo\n", "three\n", "four\nfive\n", "a line that is too long\n", "si", "x\n"] {
            let line = (!text.ends_with('\n')).then_some(1);
            open.write(id, vec![IoSlice::new(text.as_bytes())], line).unwrap();
        }
        let path = open.files.path(&of, 1);
        let read = |number: &str| {
            let path = if number.is_empty() { path.clone() } else { with_suffix(&path, number) };
            fs::read_to_string(path).ok()
        };
        let texts = ["", "1", "2", "3"].map(read);
        let wanted = ["six\n", "a line that is too long\n", "four\nfive\n"].map(|text| Some(text.to_owned()));
        assert_eq!(texts[..3], wanted);
        assert_eq!(texts[3], None, "no more than were to be kept");
    }

    #[test]
    fn no_more_full_files_are_kept_than_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let old = |number: u32| with_suffix(&path, &number.to_string());
        for file in [path.clone(), old(MAX_KEPT_FILES - 1), old(MAX_KEPT_FILES)] {
            fs::write(&file, "full\n").unwrap();
        }
        let mut written = Written { path: path.clone(), file: None, begun: true, size: 0, line: None };
        let rotation = Rotation { size: 5, keep: MAX_KEPT_FILES + 1 };
        written.write_rotating(true, (rotation, usize::MAX), b"new\n").unwrap();
        let there = [1, MAX_KEPT_FILES, MAX_KEPT_FILES + 1].map(|number| old(number).exists());
        assert_eq!(there, [true, true, false]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_where_a_file_is_full() {
        let directory = tempfile::tempdir().unwrap();
        let rotation = Some(Rotation { size: 10, keep: 9 });
        let mut open =
            OpenFiles::new(Files { rotation, ..files(Place::Name(directory.path().join("log"))) }, 15);
        let of = source(0, Channel::Stdout);
        let id = open.of(&of, || 1);
        for text in ["10%\r20%\r", "30%\r", "40%\r50%\r", "\n", "a line that is much too long\n"] {
            let line = (!text.ends_with('\n')).then_some(1);
            open.write(id, vec![IoSlice::new(text.as_bytes())], line).unwrap();
        }
        let path = open.files.path(&of, 1);
        let full = ["4", "3", "2", "1"].map(|number| fs::read_to_string(with_suffix(&path, number)).unwrap());
        assert_eq!(full, ["10%\r20%\r30", "%\r40%\r50%\r\n", "a line tha", "t is much "]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "too long\n");
    }

    #[test]
    fn files_of_hardly_any_size_come_to_an_end() {
        for size in [0, 1, 2] {
            let directory = tempfile::tempdir().unwrap();
            let rotation = Some(Rotation { size, keep: 20 });
            let mut open =
                OpenFiles::new(Files { rotation, ..files(Place::Name(directory.path().join("log"))) }, 3);
            let of = source(0, Channel::Stdout);
            let id = open.of(&of, || 1);
            for text in ["\n\n", "ab\n", "a line\n", "no end", "", "\n"] {
                open.write(id, vec![IoSlice::new(text.as_bytes())], None).unwrap();
            }
            let path = open.files.path(&of, 1);
            let full =
                (1..=20).rev().filter_map(|number| fs::read(with_suffix(&path, &number.to_string())).ok());
            let all: Vec<u8> = full.flatten().chain(fs::read(&path).unwrap()).collect();
            assert_eq!(all, b"\n\nab\na line\nno end\n", "{size}");
        }
    }

    #[test]
    fn a_file_that_is_begun_is_empty_and_has_no_full_ones_of_an_earlier_run() {
        let directory = tempfile::tempdir().unwrap();
        for append in [true, false] {
            let place = Place::Name(directory.path().join("log"));
            let mut open = OpenFiles::new(Files { append, ..files(place) }, 64);
            let of = source(0, Channel::Stdout);
            let path = open.files.path(&of, 1);
            let full = ["1", "2", "3"].map(|number| with_suffix(&path, number));
            [&path].into_iter().chain(&full).for_each(|path| fs::write(path, "old").unwrap());
            let id = open.of(&of, || 1);
            open.begin(id).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), if append { "old" } else { "" });
            assert!(full.iter().all(|full| full.exists() == append));
            open.write(id, vec![IoSlice::new(b"new")], None).unwrap();
            open.begin(id).unwrap();
            assert!(fs::read_to_string(&path).unwrap().ends_with("new"), "it is begun once");
        }
    }

    #[test]
    fn files_are_emptied_or_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("log");
        let mut contents = Vec::new();
        for append in [false, true, false] {
            let mut open = OpenFiles::new(Files { append, ..files(Place::Name(name.clone())) }, 64);
            let id = open.of(&source(0, Channel::Stderr), || 1);
            open.write(id, vec![IoSlice::new(b"x\n")], None).unwrap();
            open.written[0].file = None;
            open.write(id, vec![IoSlice::new(b"y\n")], None).unwrap();
            contents.push(fs::read_to_string(&open.written[0].path).unwrap());
        }
        assert_eq!(contents, ["x\ny\n", "x\ny\nx\ny\n", "x\ny\n"]);
    }
}
