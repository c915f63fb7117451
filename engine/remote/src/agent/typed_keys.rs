//! Stdin that is typed at the terminal of a rank.

use std::io;
use std::os::fd::AsFd;

use iof_engine::{InputKeys, PtyMaster};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The keys that another node sends for the terminal of a rank.
pub struct TypedKeys {
    /// `None` if the rank has exited.
    master: Option<PtyMaster>,
    input: InputKeys,
}

impl TypedKeys {
    pub fn new(master: Option<PtyMaster>) -> TypedKeys {
        TypedKeys { master, input: InputKeys::default() }
    }

    /// Types all input, or the end key if there is none. Blocks until the terminal has taken it.
    ///
    /// # Errors
    /// No process has the terminal open.
    pub fn type_all(&mut self, input: &[u8]) -> io::Result<()> {
        let master = self.master.as_ref().ok_or(Errno::EIO)?;
        let keys = if input.is_empty() { self.input.end(master) } else { self.input.of(input, master) }?;
        let mut keys = keys.as_slice();
        while !keys.is_empty() {
            let mut files = [PollFd::new(master.as_fd(), PollFlags::POLLOUT)];
            match poll(&mut files, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let hung_up = PollFlags::POLLHUP | PollFlags::POLLERR;
            if files.iter().any(|file| file.revents().is_some_and(|events| events.intersects(hung_up))) {
                return Err(Errno::EIO.into());
            }
            match master.type_keys(keys) {
                Ok(taken) => keys = keys.get(taken..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
