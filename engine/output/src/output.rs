//! The destination that lines of many streams share: a file, a pipe or a terminal.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::sys::uio::writev;
use nix::unistd::isatty;

use crate::format::style::OpenLine;
use crate::watch::{Busy, WATCHED_WRITE, WriteWatch, lock};

/// The largest number of slices that one writev(2) takes.
pub(crate) const IOV_MAX: usize = 1024;

/// The largest number of bytes that [`Output::write_now`] writes: a pipe takes this many whole or
/// not at all (`PIPE_BUF`, pipe(7)).
const MAX_WRITTEN_NOW: usize = 4096;

/// The time after which a write shows that a pipe ([`Output::write_now`]) or a file is slow. Longer
/// than a thread of a busy machine waits for a processor.
pub(crate) const SLOW_WRITE: Duration = Duration::from_millis(100);

/// The time between two checks, in milliseconds, of a thread whose file accepts nothing: it ends if
/// its printer has.
const OWNER_CHECK: u16 = 1000;

/// A pipe that was opened a second time, in non-blocking mode.
#[derive(Debug)]
struct SecondPipe {
    file: File,
    /// A write has taken long. Relaxed: it only prevents further ones.
    slow: AtomicBool,
}

/// The reader of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// None at the moment: the output is a file or a device such as /dev/null.
    Nobody,
    /// A program: the output is a pipe or a socket.
    Program,
    /// A person: the output is a terminal.
    Person,
}

impl Audience {
    /// Returns the reader of `file`.
    pub fn of(file: impl AsFd) -> Audience {
        match fstat(&file) {
            _ if isatty(&file).unwrap_or(false) => Audience::Person,
            Ok(found) if is_kind(&found, SFlag::S_IFIFO) || is_kind(&found, SFlag::S_IFSOCK) => {
                Audience::Program
            }
            _ => Audience::Nobody,
        }
    }
}

/// A file, pipe or terminal to which one or several printers write whole lines.
///
/// Its descriptor may be in blocking or non-blocking mode, which is not changed. An output counts
/// as shared while a clone of it exists, or another output of the same file that [`Output::beside`]
/// created. A printer of a shared output writes a part of a line only if its end is late (see
/// [`FlushTimeout`](crate::FlushTimeout)).
#[derive(Clone, Debug)]
pub struct Output {
    file: Arc<OwnedFd>,
    open: Arc<Mutex<OpenLine>>,
    /// A counter of the outputs of this file: each holds one reference.
    shared: Arc<()>,
    /// `None` if the file is not a pipe.
    pipe: Option<Arc<SecondPipe>>,
    audience: Audience,
    watch: Option<WriteWatch>,
}

/// An [`Output`] for printers that start later. It does not make the output count as shared.
#[derive(Clone, Debug)]
pub struct LaterOutput {
    output: Output,
    /// The counter of the outputs of this file, while one exists.
    shared: Weak<()>,
}

impl LaterOutput {
    /// Returns another output of the same file.
    pub fn open(&self) -> Output {
        let shared = self.shared.upgrade().unwrap_or_else(|| Arc::clone(&self.output.shared));
        Output { shared, ..self.output.clone() }
    }
}

/// A writer of a program's own messages to the file of an [`Output`].
///
/// Each call of [`Write::write`] must pass whole lines. They are not mixed with the lines of
/// printers: if a printer has written a part of a line, that line is ended first. A call blocks
/// until the lines are written.
#[derive(Clone, Debug)]
pub struct Notes {
    file: Arc<OwnedFd>,
    open: Arc<Mutex<OpenLine>>,
    watch: Option<WriteWatch>,
}

impl Output {
    /// Creates an output that writes to a duplicate of `file`'s descriptor.
    ///
    /// # Errors
    /// Fails if the process can open no further descriptor.
    pub fn new(file: impl AsFd) -> io::Result<Output> {
        let file = Arc::new(file.as_fd().try_clone_to_owned()?);
        let pipe = open_pipe(file.as_fd()).map(Arc::new);
        let audience = Audience::of(&file);
        Ok(Output { file, open: Arc::default(), shared: Arc::default(), pipe, audience, watch: None })
    }

    /// Watches the writes to this output from now on, by which a program can notice a reader that
    /// accepts nothing. Clones, [notes](Output::notes) and outputs of the [same
    /// file](Output::beside) that are created later are watched, too.
    pub fn watch_writes(&mut self) -> WriteWatch {
        self.watch.get_or_insert_default().clone()
    }

    /// Creates an output for `file`. If `file` is the same file as that of this output, as when
    /// stdout and stderr are one terminal, neither output writes into the middle of the other's
    /// lines.
    ///
    /// # Errors
    /// Fails if the process can open no further descriptor.
    pub fn beside(&self, file: impl AsFd) -> io::Result<Output> {
        let same = is_same(self.file.as_fd(), file.as_fd());
        let other = Output::new(file)?;
        Ok(if same { Output { file: other.file, pipe: other.pipe, ..self.clone() } } else { other })
    }

    /// Returns what creates further outputs of this file later.
    pub fn later(&self) -> LaterOutput {
        let output = Output { shared: Arc::default(), ..self.clone() };
        LaterOutput { output, shared: Arc::downgrade(&self.shared) }
    }

    /// Returns whether `other` writes to the same file and was created from this output by
    /// [`Output::beside`] or by cloning. One [`Printer`](crate::Printer) should then write the
    /// streams of both, because only streams of one printer are written in the order in which they
    /// were read.
    pub fn is_same_file(&self, other: &Output) -> bool {
        Arc::ptr_eq(&self.open, &other.open)
    }

    /// Creates a writer for the program's own messages. It does not make the output count as
    /// shared.
    pub fn notes(&self) -> Notes {
        Notes { file: Arc::clone(&self.file), open: Arc::clone(&self.open), watch: self.watch.clone() }
    }

    /// Returns whether other printers may write to the file, too.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.shared) > 1
    }

    /// Locks the file for whole lines: no other output or message is written to it while the guards exist.
    pub(crate) fn lock(&self) -> (MutexGuard<'_, OpenLine>, Option<Busy<'_>>) {
        let busy = self.watch.as_ref().map(|watch| watch.begin_lines(None));
        (lock(&self.open), busy)
    }

    /// Locks the file, unless it is locked.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, OpenLine>> {
        match self.open.try_lock() {
            Ok(open) => Some(open),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the reader of the file.
    pub fn audience(&self) -> Audience {
        self.audience
    }

    /// Returns whether [`Output::write_now`] may succeed.
    pub(crate) fn is_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    /// Writes all bytes of `slices`, or none if they have more than [`MAX_WRITTEN_NOW`] bytes, are
    /// more than [`IOV_MAX`] slices, or if the file is not a pipe. Returns whether they were
    /// written; after an error they were not, and [`Output::write`] reports it.
    ///
    /// Does not wait for room. But it waits for the lock of the pipe, which a reader holds while it
    /// stores what it reads, perhaps into memory whose pages arrive slowly. After it has waited so
    /// for [`SLOW_WRITE`] once, it writes nothing any more.
    pub(crate) fn write_now(&self, slices: &[IoSlice<'_>]) -> bool {
        let length = slices.iter().fold(0usize, |sum, slice| sum.saturating_add(slice.len()));
        if length > MAX_WRITTEN_NOW || self.watch.as_ref().is_some_and(WriteWatch::is_stopped) {
            return false;
        }
        let Some(pipe) = self.pipe.as_ref().filter(|pipe| !pipe.slow.load(Relaxed)) else { return false };
        let began = Instant::now();
        let busy = self.watch.as_ref().map(|watch| watch.begin(None));
        let written = writev(&pipe.file, slices);
        if let (Some(busy), Ok(written)) = (&busy, written) {
            busy.accepted(written);
        }
        if began.elapsed() > SLOW_WRITE {
            pipe.slow.store(true, Relaxed);
        }
        written.is_ok()
    }

    /// Writes all bytes of `slices`. Blocks until they are written.
    pub(crate) fn write(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        write_all(self.file.as_fd(), slices, self.watch.as_ref(), None)
    }
}

impl Write for Notes {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut open = lock(&self.open);
        let end: &[u8] = if open.take().is_some() { b"\n" } else { b"" };
        let slices = &mut [IoSlice::new(end), IoSlice::new(lines)];
        write_all(self.file.as_fd(), slices, self.watch.as_ref(), None)?;
        Ok(lines.len())
    }

    /// Does nothing: messages are not buffered.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a pipe a second time, in non-blocking mode. Other users of the first descriptor would
/// notice if its mode was changed. Returns `None` for other files, and if the kernel refuses.
fn open_pipe(file: BorrowedFd<'_>) -> Option<SecondPipe> {
    let is_pipe = fstat(file).is_ok_and(|found| is_kind(&found, SFlag::S_IFIFO));
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let open = || File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).ok();
    is_pipe.then(open).flatten().map(|file| SecondPipe { file, slow: AtomicBool::new(false) })
}

/// Returns whether `found` describes a file of this kind.
fn is_kind(found: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == kind
}

fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    matches!((fstat(one), fstat(other)), (Ok(one), Ok(other)) if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Writes all bytes of `slices` to `file`. Blocks until they are written, also in non-blocking
/// mode. Gives up a file in non-blocking mode that accepts nothing within [`OWNER_CHECK`] of the end
/// of `owner`.
pub(crate) fn write_all(
    file: BorrowedFd<'_>,
    mut slices: &mut [IoSlice<'_>],
    watch: Option<&WriteWatch>,
    owner: Option<&Weak<EventFd>>,
) -> io::Result<()> {
    let busy = watch.map(|watch| watch.begin(None));
    loop {
        write_ready(file, &mut slices, (watch, busy.as_ref()))?;
        if slices.is_empty() {
            return Ok(());
        }
        wait_writable(file, owner)?;
    }
}

/// Writes bytes of `slices` to `file` until it is full, which blocks in blocking mode. Removes them
/// from `slices`.
pub(crate) fn write_ready(
    file: BorrowedFd<'_>,
    slices: &mut &mut [IoSlice<'_>],
    (watch, busy): (Option<&WriteWatch>, Option<&Busy<'_>>),
) -> io::Result<()> {
    // The first slice is never empty: a write of nothing would look like an output that is full.
    IoSlice::advance_slices(slices, 0);
    let is_file = watch.is_some() && is_regular(file, slices);
    while !slices.is_empty() {
        let limit = watch.map_or(usize::MAX, |watch| watch.largest_write(is_file));
        match with_first(slices, limit, |first| writev(file, first)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(slices, written);
                busy.iter().for_each(|busy| busy.accepted(written));
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Returns whether `file` is a regular one. Short writes are not limited, so `false` is returned
/// for them without a system call.
fn is_regular(file: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> bool {
    let length = slices.iter().fold(0usize, |sum, slice| sum.saturating_add(slice.len()));
    length > WATCHED_WRITE && fstat(file).is_ok_and(|found| is_kind(&found, SFlag::S_IFREG))
}

/// Passes the first slices to `write`, about `limit` bytes.
pub(crate) fn with_first<T>(
    slices: &[IoSlice<'_>],
    limit: usize,
    write: impl FnOnce(&[IoSlice<'_>]) -> T,
) -> T {
    let mut room = limit;
    let fits = |slice: &&IoSlice<'_>| {
        let left = room.checked_sub(slice.len());
        room = left.unwrap_or(0);
        left.is_some()
    };
    let count = slices.iter().take(IOV_MAX).take_while(fits).count();
    match slices.first() {
        Some(first) if count == 0 => write(&[IoSlice::new(first.get(..limit).unwrap_or(first))]),
        _ => write(slices.get(..count).unwrap_or(slices)),
    }
}

/// Blocks until `file` can be written or its reader has gone. With an owner, at most for
/// [`OWNER_CHECK`].
///
/// # Errors
/// `TimedOut` if `owner` is gone then.
fn wait_writable(file: BorrowedFd<'_>, owner: Option<&Weak<EventFd>>) -> io::Result<()> {
    let limit = owner.map_or(PollTimeout::NONE, |_| OWNER_CHECK.into());
    match poll(&mut [PollFd::new(file, PollFlags::POLLOUT)], limit) {
        Ok(0) if owner.is_some_and(|owner| owner.strong_count() == 0) => Err(ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::sync::mpsc::channel;
    use std::thread;

    use iof_testing::stalled::StalledPage;

    use super::*;

    fn pipe() -> (File, File) {
        let (read, write) = nix::unistd::pipe().unwrap();
        (read.into(), write.into())
    }

    #[test]
    fn a_write_of_more_slices_than_one_call_takes_is_whole_but_not_written_at_once() {
        let (mut read, write) = pipe();
        let mut output = Output::new(&write).unwrap();
        let watch = output.watch_writes();
        let lines: Vec<String> = (0..3000).map(|number| format!("{number:03}\n")).collect();
        let mut slices: Vec<IoSlice<'_>> = lines.iter().map(|line| IoSlice::new(line.as_bytes())).collect();
        assert!(!output.write_now(&slices[..IOV_MAX + 1]));
        assert_eq!(watch.progress().accepted, 0);
        assert!(output.write_now(&slices[..3]));
        let progress = watch.progress();
        assert!((progress.accepted, progress.is_busy) == (12, false) && progress.steps > 0, "{progress:?}");
        output.write(&mut slices[3..]).unwrap();
        drop((write, output));
        let mut written = String::new();
        read.read_to_string(&mut written).unwrap();
        assert!(written == lines.concat());
    }

    #[test]
    fn only_what_a_pipe_takes_whole_is_written_at_once() {
        let (_read, write) = pipe();
        let output = Output::new(&write).unwrap();
        let bytes = [b'x'; MAX_WRITTEN_NOW + 1];
        assert!(!output.write_now(&[IoSlice::new(&bytes)]));
        assert!(output.write_now(&[IoSlice::new(&bytes[1..])]));
        let null = File::options().write(true).open("/dev/null").unwrap();
        let output = Output::new(&null).unwrap();
        assert!(!output.is_pipe() && !output.write_now(&[IoSlice::new(b"x")]));
    }

    #[test]
    fn a_pipe_whose_lock_is_held_for_long_gets_no_writes_at_once_any_more() {
        let Ok(page) = StalledPage::new().map(Arc::new) else { return };
        let (read, mut write) = pipe();
        write.write_all(b"x").unwrap();
        let output = Output::new(&write).unwrap();
        let (reader_page, end) = (Arc::clone(&page), read.try_clone().unwrap());
        let reader = thread::spawn(move || reader_page.read_from(end, 1).unwrap());
        page.wait_for_use().unwrap();
        let ((sender, task), slow) = (channel(), output.clone());
        let writer = thread::spawn(move || {
            sender.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
            slow.write_now(&[IoSlice::new(b"slow\n")])
        });
        let state = std::path::Path::new("/proc").join(task.recv().unwrap()).join("stat");
        while !fs::read_to_string(&state).unwrap().contains(") D ") {
            thread::yield_now();
        }
        // The time that makes the pipe slow.
        thread::sleep(SLOW_WRITE * 2);
        page.resolve(b"").unwrap();
        assert!(writer.join().unwrap());
        assert_eq!(reader.join().unwrap(), 1);
        assert!(!output.write_now(&[IoSlice::new(b"never\n")]));
        output.write(&mut [IoSlice::new(b"later\n")]).unwrap();
        drop((write, output));
        assert_eq!(io::read_to_string(read).unwrap(), "slow\nlater\n");
    }
}
