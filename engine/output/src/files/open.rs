//! The files of one printer. A limited number of them is open.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use iof_proto::Nspace;
use nix::errno::Errno;

use super::entry::{FileEntry, WriteMode, joined};
use super::new::NewFiles;
use super::pool::{FileJob, Pool};
use super::{CacheDrops, FileError, FileId, Files, MAX_OPEN_FILES};
use crate::batch::MAX_COPIED;
use crate::format::label::LabelSource;
use crate::format::style::OpenLine;
use crate::output::{Audience, SLOW_WRITE};

/// The number of files that a printer may always keep open: the first one, for its lock, and the
/// one that it writes.
const MIN_OPEN_FILES: usize = 2;

/// The files of one printer.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    pub files: Files,
    /// The longest line that is not cut for a file's size.
    pub max_line: usize,
    /// The threads that write files which accept nothing at once. Without it, writing them blocks,
    /// and a FIFO without a reader cannot be opened.
    pub pool: Option<Box<Pool>>,
    entries: Vec<FileEntry>,
    by_path: BTreeMap<PathBuf, FileId>,
    /// The number of files that are open.
    open: usize,
    /// The numbers of ranks of jobs, as far as they were needed.
    nprocs: BTreeMap<Nspace, u32>,
}

impl OpenFiles {
    pub fn new(files: Files) -> OpenFiles {
        OpenFiles {
            files,
            max_line: usize::MAX,
            pool: None,
            entries: Vec::new(),
            by_path: BTreeMap::new(),
            open: 0,
            nprocs: BTreeMap::new(),
        }
    }

    /// Returns the file for `source`, and whether it is a new one. `count` returns the number of
    /// ranks of its job.
    pub fn file_for(&mut self, source: &LabelSource, count: impl FnOnce() -> u32) -> (FileId, bool) {
        let nprocs = match (self.files.nprocs, self.nprocs.get(&source.nspace)) {
            (Some(nprocs), _) | (None, Some(&nprocs)) => nprocs,
            (None, None) => *self.nprocs.entry(source.nspace.clone()).or_insert_with(count),
        };
        let path = self.files.path(source, nprocs);
        let next = FileId(self.entries.len());
        let id = *self.by_path.entry(path.clone()).or_insert(next);
        let is_new = id == next;
        if is_new {
            let drops = self.files.drops_cache.then(CacheDrops::default);
            let entry = FileEntry::new(path.into(), self.files.watch.clone());
            self.entries.push(FileEntry { drops, ..entry });
        }
        (id, is_new)
    }

    pub fn path(&self, id: FileId) -> Option<&Path> {
        self.entries.get(id.0).map(|entry| &*entry.path)
    }

    /// Returns the path of the open file that has this metadata.
    pub fn find(&self, file: &Metadata) -> Option<&Path> {
        let inode = |file: &Metadata| (file.dev(), file.ino());
        let is_same = |entry: &&FileEntry| {
            let open = entry.file.as_ref().and_then(|open| open.metadata().ok());
            open.is_some_and(|open| inode(&open) == inode(file))
        };
        self.entries.iter().find(is_same).map(|entry| &*entry.path)
    }

    /// Returns the effect of [`Files::drops_cache`].
    pub fn drops(&self) -> CacheDrops {
        let mut sum = CacheDrops::default();
        self.entries.iter().filter_map(|entry| entry.drops).for_each(|drops| sum.add(drops));
        sum
    }

    /// Returns whether as many files are open as may be.
    pub fn is_full(&self) -> bool {
        self.open >= self.files.max_open.clamp(MIN_OPEN_FILES, MAX_OPEN_FILES)
    }

    /// Opens and locks a file, and leaves its contents. Adds to `new` what this creates. Returns
    /// `false` for a FIFO without a reader.
    pub fn lock(&mut self, id: FileId, new: &mut NewFiles) -> Result<bool, FileError> {
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(true) };
        let locked = entry.lock(new);
        self.open = self.open.saturating_add(usize::from(entry.file.is_some()));
        locked.map_err(|error| self.failed(id, error))
    }

    /// Creates a file. Unless existing contents are kept, it is emptied, and if files have a
    /// limited size, the full files of an earlier run are removed. Returns whether a thread does it,
    /// see [`OpenFiles::take_written`].
    pub fn begin(&mut self, id: FileId) -> Result<bool, FileError> {
        if self.entries.get(id.0).is_none_or(|entry| entry.begun) {
            return Ok(false);
        }
        let watch = self.files.watch.clone();
        let _busy = watch.as_ref().map(|watch| watch.begin(self.entries.get(id.0).map(|entry| &entry.path)));
        let is_open = self.open(id).map_err(|error| self.failed(id, error))?;
        let keeps_full = self.files.append || self.files.rotation.is_none();
        if !is_open {
            self.submit(id, Vec::new(), None);
        } else if let Some(entry) = self.entries.get(id.0).filter(|_| !keeps_full) {
            entry.remove_full().map_err(|error| self.failed(id, error))?;
        }
        Ok(!is_open)
    }

    /// Returns the line that the file is in the middle of.
    pub fn open_line(&mut self, id: FileId) -> OpenLine {
        self.entries.get(id.0).and_then(|entry| entry.line)
    }

    /// Returns the reader of the file.
    pub fn audience(&mut self, id: FileId) -> Audience {
        self.entries.get_mut(id.0).map_or(Audience::Nobody, FileEntry::audience)
    }

    /// Writes `slices` to a file, which is then in the middle of `line`. Returns whether a thread
    /// does it, see [`OpenFiles::take_written`].
    pub fn write(
        &mut self,
        id: FileId,
        mut slices: Vec<IoSlice<'_>>,
        line: OpenLine,
    ) -> Result<bool, FileError> {
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(false) };
        if let Some(queued) = &mut entry.queued {
            slices.iter().for_each(|slice| queued.extend_from_slice(slice));
            entry.line = line;
            return Ok(true);
        }
        let (watch, path) = (entry.watch.clone(), Arc::clone(&entry.path));
        let _busy = watch.as_ref().map(|watch| watch.begin_lines(Some(&path)));
        let rest = self.write_now(id, &mut slices, line).map_err(|error| self.failed(id, error))?;
        let is_late = rest.is_some();
        rest.into_iter().for_each(|rest| self.submit(id, rest, line));
        Ok(is_late)
    }

    /// Opens a file and writes `slices`, as far as that is sure not to take long. Returns the bytes
    /// that are left, or an empty vector if the file could not be opened; `None` if all is done.
    fn write_now(
        &mut self,
        id: FileId,
        slices: &mut [IoSlice<'_>],
        line: OpenLine,
    ) -> io::Result<Option<Vec<u8>>> {
        let (is_open, mode, has_pool) = (self.open(id)?, self.mode(), self.pool.is_some());
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(None) };
        if !is_open || has_pool && entry.may_hang && slices.iter().any(|slice| !slice.is_empty()) {
            return Ok(Some(joined(slices)));
        }
        if has_pool && !entry.is_regular {
            let rest = entry.put_ready(slices, mode.append)?;
            entry.line = line;
            return Ok(Some(rest).filter(|rest| !rest.is_empty()));
        }
        let began = Instant::now();
        let written = entry.put(slices, line, mode);
        entry.may_hang = entry.is_regular && (entry.may_hang || began.elapsed() > SLOW_WRITE);
        written.map(|()| None)
    }

    /// Returns whether a file waits for [`MIN_UNCACHED`] bytes, so that they leave the page cache.
    pub fn gathers(&self, id: FileId) -> bool {
        self.entries
            .get(id.0)
            .is_some_and(|entry| entry.is_regular && entry.drops.is_some_and(|drops| drops.refusals == 0))
    }

    /// Returns the number of bytes that the next write to a file should have at most. Those that
    /// the file does not accept at once are copied.
    pub fn room(&self, id: FileId) -> usize {
        match self.entries.get(id.0) {
            // One more line.
            Some(entry) if entry.queued.is_some() => 1,
            Some(_) if self.gathers(id) => usize::MAX,
            Some(entry) if entry.may_hang || !entry.is_regular => MAX_COPIED,
            _ => usize::MAX,
        }
    }

    fn mode(&self) -> WriteMode {
        let Files { append, rotation, .. } = self.files;
        WriteMode { append, rotation, max_line: self.max_line }
    }

    fn failed(&self, id: FileId, error: io::Error) -> FileError {
        FileError { path: self.path(id).unwrap_or(Path::new("")).to_owned(), error }
    }

    /// Passes a file to a thread of the pool, which opens it if necessary and writes `bytes`. What
    /// is written until it comes back is queued.
    fn submit(&mut self, id: FileId, bytes: Vec<u8>, line: OpenLine) {
        let mode = self.mode();
        let (Some(entry), Some(pool)) = (self.entries.get_mut(id.0), &mut self.pool) else { return };
        let away = FileEntry::new(Arc::clone(&entry.path), None);
        let away =
            FileEntry { file: entry.file.clone(), begun: true, line, queued: Some(Vec::new()), ..away };
        let mut entry = mem::replace(entry, away);
        if let (Some(all), Some(own)) = (&self.files.watch, &entry.watch)
            && all.is_same(own)
        {
            entry.watch = Some(all.add_file());
        }
        pool.submit(FileJob { id, entry, bytes, line, mode });
    }

    /// Returns a file that a thread has written, with the result, unless bytes were queued for it:
    /// then a thread writes these. If `waits`, blocks until a file comes back.
    pub fn take_written(&mut self, waits: bool) -> Option<(FileId, Result<(), FileError>)> {
        while let Some((id, entry, written)) = self.pool.as_mut()?.take(waits) {
            let Some(place) = self.entries.get_mut(id.0) else { continue };
            let (queued, line) = (place.queued.take().unwrap_or_default(), place.line);
            self.open = self.open.saturating_add(usize::from(entry.file.is_some() && place.file.is_none()));
            *place = entry;
            if queued.is_empty() || written.is_err() {
                return Some((id, written.map_err(|error| self.failed(id, error))));
            }
            self.submit(id, queued, line);
        }
        None
    }

    /// Opens a file, and empties it if it is used for the first time. If too many are open, by
    /// [`Files::max_open`] or by the limit of the process, closes all others first. Returns `false`
    /// for a FIFO without a reader.
    fn open(&mut self, id: FileId) -> io::Result<bool> {
        let append = self.files.append;
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(true) };
        if entry.file.is_some() {
            return entry.file(append).map(|_| true);
        }
        if self.is_full() {
            self.close_all();
        }
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(true) };
        if !entry.open_if_fifo()? {
            let no_reader = io::Error::new(ErrorKind::NotConnected, "no process reads this FIFO");
            return if self.pool.is_some() { Ok(false) } else { Err(no_reader) };
        }
        match entry.file(append) {
            Err(error) if self.open > 0 && error.raw_os_error() == Some(Errno::EMFILE as i32) => {
                self.close_all();
                self.entries.get_mut(id.0).map_or(Ok(()), |entry| entry.file(append).map(drop))?;
            }
            opened => drop(opened?),
        }
        self.open = self.open.saturating_add(1);
        Ok(true)
    }

    /// Closes all files except the first, and those that a thread writes.
    fn close_all(&mut self) {
        let idle = self.entries.iter_mut().skip(1).filter(|entry| entry.queued.is_none());
        idle.for_each(|entry| {
            entry.audience();
            entry.file = None;
        });
        self.open = self.entries.iter().filter(|entry| entry.file.is_some()).count();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use iof_proto::Channel;
    use iof_testing::stalled::StalledPage;
    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::files::entry::lock;
    use crate::files::tests::{files, source};
    use crate::files::{Rotation, with_suffix};
    use crate::format::choice::FilePlace;

    /// Longer than anything here takes.
    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn beginning_a_file_empties_it_and_removes_full_files_only_if_it_rotates() {
        let directory = tempfile::tempdir().unwrap();
        let limit = Some(Rotation { size: 4096, keep: 1 });
        for (append, rotation) in [(true, None), (true, limit), (false, None), (false, limit)] {
            let place = FilePlace::Name(directory.path().join("log"));
            let mut open = OpenFiles::new(Files { append, rotation, ..files(place) });
            let source = source(0, Channel::Stdout);
            let path = open.files.path(&source, 1);
            let full = ["1", "2", "3"].map(|number| with_suffix(&path, number));
            [&path].into_iter().chain(&full).for_each(|path| fs::write(path, "old").unwrap());
            let (id, _) = open.file_for(&source, || 1);
            open.begin(id).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), if append { "old" } else { "" });
            assert!(full.iter().all(|full| full.exists() == (append || rotation.is_none())));
            open.write(id, vec![IoSlice::new(b"new")], None).unwrap();
            open.begin(id).unwrap();
            assert!(fs::read_to_string(&path).unwrap().ends_with("new"), "a file is begun only once");
        }
    }

    #[test]
    fn a_file_that_another_job_writes_is_refused_and_keeps_its_contents() {
        let directory = tempfile::tempdir().unwrap();
        let place = FilePlace::Name(directory.path().join("log"));
        let mut open = [(); 2].map(|()| OpenFiles::new(files(place.clone())));
        let source = source(0, Channel::Stdout);
        let ids = open.each_mut().map(|open| open.file_for(&source, || 1).0);
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
    fn files_are_emptied_or_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("log");
        let mut contents = Vec::new();
        for append in [false, true, false] {
            let mut open = OpenFiles::new(Files { append, ..files(FilePlace::Name(name.clone())) });
            let (id, _) = open.file_for(&source(0, Channel::Stderr), || 1);
            open.write(id, vec![IoSlice::new(b"x\n")], None).unwrap();
            open.entries[0].file = None;
            open.write(id, vec![IoSlice::new(b"y\n")], None).unwrap();
            contents.push(fs::read_to_string(&open.entries[0].path).unwrap());
        }
        assert_eq!(contents, ["x\ny\n", "x\ny\nx\ny\n", "x\ny\n"]);
    }

    #[test]
    fn a_slow_file_is_written_by_a_thread_in_order_and_rotates_as_others_do() {
        for rotation in [None, Some(Rotation { size: 12, keep: 1 })] {
            let directory = tempfile::tempdir().unwrap();
            let place = FilePlace::Name(directory.path().join("log"));
            let mut open = OpenFiles::new(Files { rotation, ..files(place) });
            open.pool = Some(Box::new(Pool::new().unwrap()));
            let source = source(0, Channel::Stdout);
            let (id, _) = open.file_for(&source, || 1);
            assert!(!open.begin(id).unwrap());
            open.entries[0].may_hang = true;
            for (text, line) in [("one\n", None), ("two", Some(1)), ("2\n", None), ("end\n", None)] {
                let written = open.write(id, vec![IoSlice::new(text.as_bytes())], line).unwrap();
                assert_eq!((written, open.open_line(id)), (true, line));
            }
            assert!(matches!(open.take_written(true), Some((file, Ok(()))) if file == id));
            let path = open.files.path(&source, 1);
            let full = fs::read_to_string(with_suffix(&path, "1")).unwrap_or_default();
            assert_eq!(full + &fs::read_to_string(path).unwrap(), "one\ntwo2\nend\n");
        }
    }

    #[test]
    fn a_thread_whose_fifo_accepts_nothing_ends_soon_after_its_printer() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = OpenFiles::new(files(FilePlace::Name(directory.path().join("log"))));
        open.pool = Some(Box::new(Pool::new().unwrap()));
        let source = source(0, Channel::Stdout);
        let path = open.files.path(&source, 1);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let _reader = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path).unwrap();
        let (id, _) = open.file_for(&source, || 1);
        assert!(!open.begin(id).unwrap());
        let more_than_a_pipe_takes = vec![b'x'; 2 << 20];
        assert!(open.write(id, vec![IoSlice::new(&more_than_a_pipe_takes)], None).unwrap());
        // The thread owns the path, too.
        let path = Arc::downgrade(&open.entries[0].path);
        drop(open);
        let began = Instant::now();
        while path.strong_count() > 0 {
            assert!(began.elapsed() < LIMIT, "the thread has not ended");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_regular_file_whose_write_was_slow_once_is_written_by_a_thread_from_then_on() {
        let Ok(page) = StalledPage::new() else { return };
        let directory = tempfile::tempdir().unwrap();
        let mut open = OpenFiles::new(files(FilePlace::Name(directory.path().join("log"))));
        open.pool = Some(Box::new(Pool::new().unwrap()));
        let source = source(0, Channel::Stdout);
        let path = open.files.path(&source, 1);
        let (id, _) = open.file_for(&source, || 1);
        let mut write = |text: &str| open.write(id, vec![IoSlice::new(text.as_bytes())], None).unwrap();
        assert!(!write("one\n"));
        let other = File::options().append(true).open(&path).unwrap();
        thread::scope(|scope| {
            // The kernel holds the lock of the file while it waits for the page.
            let writer = scope.spawn(|| page.write_to(&other, 4).unwrap());
            page.wait_for_use().unwrap();
            let ((sender, task), page) = (channel(), &page);
            scope.spawn(move || {
                let state = Path::new("/proc").join(task.recv().unwrap()).join("stat");
                let began = Instant::now();
                let waits = || fs::read_to_string(&state).unwrap().contains(") D ");
                while !waits() && began.elapsed() < LIMIT {
                    thread::yield_now();
                }
                // The time that makes the file slow.
                thread::sleep(SLOW_WRITE * 2);
                page.resolve(b"two\n").unwrap();
            });
            sender.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            assert!(!write("three\n"), "the printer waits for this write");
            assert_eq!(writer.join().unwrap(), 4);
        });
        assert!(write("four\n") && write("five\n"));
        assert!(matches!(open.take_written(true), Some((file, Ok(()))) if file == id));
        assert_eq!(fs::read_to_string(path).unwrap(), "one\ntwo\nthree\nfour\nfive\n");
    }

    #[test]
    fn a_running_job_goes_on_if_its_file_is_locked_while_closed() {
        let directory = tempfile::tempdir().unwrap();
        let place = FilePlace::Name(directory.path().join("log"));
        let rotation = Some(Rotation { size: 4, keep: 1 });
        let mut open = OpenFiles::new(Files { rotation, ..files(place) });
        open.max_line = 64;
        let source = source(0, Channel::Stdout);
        let (id, _) = open.file_for(&source, || 1);
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
}
