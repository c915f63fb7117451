//! Files that the kernel holds for us, so that it need not look one up for each request, see
//! io_uring_register(2).
//!
//! From Linux 6.13 on. Earlier ones let go of files in the order in which they were removed, each
//! when everything that was asked before has been answered: a closed pipe would stay open as long
//! as any other is idle (liburing issue 1192), and its writer would wait for a reader that is not
//! there.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::IoUring;
use io_uring::types::{Fd, Fixed};
use nix::sys::utsname::uname;

use crate::backend::Token;

/// Files that are held at most; more are looked up for each request.
const HELD: u32 = 16 * 1024;
/// "No file", in the kernel's table.
const VACANT: RawFd = -1;

/// How a request names its file.
#[derive(Clone, Copy)]
pub(super) enum Name {
    Held(Fixed),
    LookedUp(Fd),
}

/// Which files are held, and where in the kernel's table.
pub(super) struct Files {
    /// By the token's word.
    places: Vec<Option<u32>>,
    /// Places that were given back.
    free: Vec<u32>,
    /// Places from here on were never used.
    fresh: u32,
    /// Places in all: none where the kernel has no table that lets go at once.
    room: u32,
}

impl Files {
    /// An empty table for `ring`, if this kernel has one that lets go at once.
    pub(super) fn new(ring: &IoUring) -> Files {
        let kernel = uname().ok();
        Files::on(ring, kernel.as_ref().and_then(|kernel| kernel.release().to_str()).unwrap_or_default())
    }

    /// The same on a kernel of this release, such as "6.12.9-amd64".
    fn on(ring: &IoUring, release: &str) -> Files {
        // The kernel refuses more than RLIMIT_NOFILE.
        let sizes = if lets_go_at_once(release) { &[HELD, HELD / 16][..] } else { &[] };
        let room = sizes.iter().copied().find(|size| ring.submitter().register_files_sparse(*size).is_ok());
        Files { places: Vec::new(), free: Vec::new(), fresh: 0, room: room.unwrap_or(0) }
    }

    /// Has the kernel hold `file` for `token`, if it can.
    pub(super) fn hold(&mut self, ring: &IoUring, token: Token, file: BorrowedFd<'_>) {
        let Some(place) = self.free.pop().or_else(|| self.next()) else { return };
        if let Err(error) = put(ring, place, file.as_raw_fd()) {
            tracing::debug!(?token, %error, "io_uring looks a file up for each request");
            return self.free.push(place);
        }
        let word = token.index();
        if self.places.len() <= word {
            self.places.resize(word.saturating_add(1), None);
        }
        if let Some(of) = self.places.get_mut(word) {
            *of = Some(place);
        }
    }

    fn next(&mut self) -> Option<u32> {
        let place = self.fresh;
        (place < self.room).then(|| {
            self.fresh = place.saturating_add(1);
            place
        })
    }

    /// Has it let go.
    pub(super) fn unregister(&mut self, ring: &IoUring, token: Token) {
        let Some(place) = self.places.get_mut(token.index()).and_then(Option::take) else { return };
        match put(ring, place, VACANT) {
            Ok(()) => self.free.push(place),
            // It goes with the io_uring.
            Err(error) => tracing::warn!(?token, %error, "io_uring does not let go of a file"),
        }
    }

    /// How requests for `token` name `file`.
    pub(super) fn name(&self, token: Token, file: BorrowedFd<'_>) -> Name {
        match self.places.get(token.index()) {
            Some(Some(place)) => Name::Held(Fixed(*place)),
            _ => Name::LookedUp(Fd(file.as_raw_fd())),
        }
    }
}

fn lets_go_at_once(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 13)
}

fn put(ring: &IoUring, place: u32, fd: RawFd) -> io::Result<()> {
    ring.submitter().register_files_update(place, &[fd]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_held_from_linux_6_13_on_and_where_nobody_knows_they_are_not() {
        let holds = |release| Files::on(&IoUring::new(8).unwrap(), release).room > 0;
        assert!(["6.13.0", "6.13-rc1", "6.18.44-fc-v657", "7.0.0"].into_iter().all(holds));
        let old = ["6.12.99", "6.1.0-13-amd64", "5.19.0", "5.7", "2.6.78", "6", "", "unknown"];
        assert!(!old.into_iter().any(holds));
    }
}
