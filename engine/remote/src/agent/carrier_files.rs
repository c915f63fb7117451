//! The files of an agent's carrier, whose readers and writers cease to wait when another carrier
//! follows.
//!
//! A carrier whose network is gone may neither end its files nor take bytes. A thread that waited
//! for it would keep the carrier's place among the links.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

use crate::carriers::NodeConnection;

/// The files of a carrier.
pub struct CarrierFiles {
    pub down: CarrierInput,
    pub up: CarrierOutput,
}

/// Ends the waits for the files of a carrier when it is dropped.
pub struct WaitEnd {
    _writer: PipeWriter,
}

/// What arrives over a carrier.
pub struct CarrierInput {
    file: File,
    end: Arc<PipeReader>,
}

/// What is sent over a carrier.
pub struct CarrierOutput {
    file: File,
    is_socket: bool,
    end: Arc<PipeReader>,
}

impl CarrierFiles {
    /// Prepares the stdin and the stdout of a carrier, which other processes may share.
    pub fn new(NodeConnection { down, up }: NodeConnection) -> io::Result<(CarrierFiles, WaitEnd)> {
        let (reader, _writer) = pipe()?;
        let end = Arc::new(reader);
        let kind = up.metadata()?.file_type();
        // O_NONBLOCK would reach the processes that share the file, but not those of a pipe that is
        // opened again. Where that is refused, a writer waits until the carrier takes its bytes.
        let again = kind.is_fifo().then(|| {
            let path = format!("/proc/self/fd/{}", up.as_raw_fd());
            File::options().write(true).custom_flags(O_NONBLOCK).open(path).ok()
        });
        let file = again.flatten().unwrap_or(up);
        let up = CarrierOutput { file, is_socket: kind.is_socket(), end: Arc::clone(&end) };
        Ok((CarrierFiles { down: CarrierInput { file: down, end }, up }, WaitEnd { _writer }))
    }
}

/// Blocks until a file is ready.
///
/// # Errors
/// Another carrier has followed.
fn wait_for(file: &File, event: PollFlags, end: &PipeReader) -> io::Result<()> {
    loop {
        let mut files = [PollFd::new(file.as_fd(), event), PollFd::new(end.as_fd(), PollFlags::empty())];
        match poll(&mut files, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            polled => polled?,
        };
        let [_, end] = files;
        return match end.any() {
            Some(false) => Ok(()),
            _ => Err(ErrorKind::ConnectionAborted.into()),
        };
    }
}

impl Read for CarrierInput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        wait_for(&self.file, PollFlags::POLLIN, &self.end)?;
        self.file.read(bytes)
    }
}

impl Write for CarrierOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let written = if self.is_socket {
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                send(self.file.as_raw_fd(), bytes, flags).map_err(io::Error::from)
            } else {
                self.file.write(bytes)
            };
            match written {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait_for(&self.file, PollFlags::POLLOUT, &self.end)?;
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
