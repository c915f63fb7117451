//! The files of an agent's carrier, whose readers and writers cease to wait when another carrier
//! follows.
//!
//! A carrier whose network is gone may neither end its files nor take bytes. A thread that waited
//! for it would keep the carrier's place among the links.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;

use iof_nodes::Frame;
use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, Shutdown, sendmsg, shutdown};

use crate::carriers::NodeConnection;
use crate::tcp::is_cut;

/// The number of bytes that a pipe takes at once if it takes any (`PIPE_BUF` in pipe(7)).
const PIPE_ROOM: usize = 4096;

/// The interval at which a carrier that is not ready is checked for a network that is gone, in milliseconds.
const CHECK_INTERVAL: u16 = 15_000;

/// The files of a carrier.
pub struct CarrierFiles {
    pub down: CarrierInput,
    pub up: CarrierOutput,
}

/// Ends the waits for the files of a carrier when it is dropped.
pub struct WaitEnd {
    _writer: PipeWriter,
}

/// The input of a carrier.
pub struct CarrierInput {
    file: File,
    end: Arc<PipeReader>,
}

/// The output to a carrier.
#[derive(Debug)]
pub struct CarrierOutput {
    file: File,
    kind: OutputKind,
    end: Arc<PipeReader>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputKind {
    /// No other carrier follows. Its writers block.
    Only,
    Socket,
    /// A pipe that does not block.
    Pipe,
    /// A file that may block.
    Blocking,
}

impl CarrierFiles {
    /// Prepares the stdin and the stdout of a carrier, which other processes may share. `is_only`
    /// specifies that no other carrier follows.
    pub fn new(
        NodeConnection { down, up }: NodeConnection,
        is_only: bool,
    ) -> io::Result<(CarrierFiles, WaitEnd)> {
        let (reader, _writer) = pipe()?;
        let end = Arc::new(reader);
        let kind = up.metadata()?.file_type();
        // O_NONBLOCK would reach the processes that share the file, but not those of a pipe that is
        // opened again. That may be refused.
        let again = (kind.is_fifo() && !is_only).then(|| {
            let path = format!("/proc/self/fd/{}", up.as_raw_fd());
            File::options().write(true).custom_flags(O_NONBLOCK).open(path).ok()
        });
        let (file, kind) = match again.flatten() {
            Some(again) => (again, OutputKind::Pipe),
            None if is_only => (up, OutputKind::Only),
            None => (up, if kind.is_socket() { OutputKind::Socket } else { OutputKind::Blocking }),
        };
        let up = CarrierOutput { file, kind, end: Arc::clone(&end) };
        Ok((CarrierFiles { down: CarrierInput { file: down, end }, up }, WaitEnd { _writer }))
    }
}

/// Blocks until a file is ready. Ends a TCP connection whose network is gone: it is ready then, and its writers
/// go on, too.
///
/// # Errors
/// Another carrier has followed.
fn wait_for(file: &File, event: PollFlags, end: &PipeReader) -> io::Result<()> {
    loop {
        let mut files = [PollFd::new(file.as_fd(), event), PollFd::new(end.as_fd(), PollFlags::empty())];
        match poll(&mut files, PollTimeout::from(CHECK_INTERVAL)) {
            Ok(0) if is_cut(file) => drop(shutdown(file.as_raw_fd(), Shutdown::Both)),
            Ok(0) | Err(Errno::EINTR) => {}
            polled => {
                polled?;
                let [_, end] = files;
                return match end.any() {
                    Some(false) => Ok(()),
                    _ => Err(ErrorKind::ConnectionAborted.into()),
                };
            }
        }
    }
}

/// Returns whether a file is ready now.
fn is_ready(file: &File, event: PollFlags) -> bool {
    poll(&mut [PollFd::new(file.as_fd(), event)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

impl Read for CarrierInput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let waited = wait_for(&self.file, PollFlags::POLLIN, &self.end);
        if waited.is_err() && !is_ready(&self.file, PollFlags::POLLIN) {
            waited?;
        }
        self.file.read(bytes)
    }
}

impl CarrierOutput {
    /// Returns whether no other carrier follows.
    pub fn is_only(&self) -> bool {
        self.kind == OutputKind::Only
    }

    /// Blocks until the carrier takes bytes, or has ended, or another one has followed.
    pub fn wait(&self) {
        let _ = wait_for(&self.file, PollFlags::POLLOUT, &self.end);
    }
}

impl Write for &CarrierOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.kind {
            OutputKind::Only | OutputKind::Pipe => (&self.file).write_vectored(slices),
            OutputKind::Socket => {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                Ok(sendmsg::<()>(self.file.as_raw_fd(), slices, &[], flags, None)?)
            }
            OutputKind::Blocking => {
                let mut files = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
                if poll(&mut files, PollTimeout::ZERO)? == 0 {
                    return Err(ErrorKind::WouldBlock.into());
                }
                let bytes = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
                (&self.file).write(bytes.get(..PIPE_ROOM).unwrap_or(bytes))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes whole frames, and padding if they do not end in a newline: carriers may hold back what
/// follows the last one. srun does until 1,024 bytes.
pub fn write_frames(mut output: impl Write, frames: &[IoSlice<'_>]) -> io::Result<()> {
    let padding = Frame::Padding.header().unwrap_or_default();
    let mut slices = Vec::with_capacity(frames.len().saturating_add(1));
    slices.extend_from_slice(frames);
    if frames.last().and_then(|last| last.last()) != Some(&b'\n') {
        slices.push(IoSlice::new(&padding));
    }
    let mut slices = slices.as_mut_slice();
    // Leaves out empty slices.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match output.write_vectored(slices) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
