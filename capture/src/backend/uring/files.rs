//! Files that the kernel holds for us, so that it need not look one up for each request, see io_uring_register(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::IoUring;
use io_uring::types::{Fd, Fixed};

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
    /// Places in all: none where the kernel has no such table.
    room: u32,
}

impl Files {
    /// An empty table for `ring`: Linux 5.19, else none.
    pub(super) fn new(ring: &IoUring) -> Files {
        // The kernel refuses more than RLIMIT_NOFILE.
        let sizes = [HELD, HELD / 16];
        let room = sizes.into_iter().find(|size| ring.submitter().register_files_sparse(*size).is_ok());
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
    pub(super) fn let_go(&mut self, ring: &IoUring, token: Token) {
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

fn put(ring: &IoUring, place: u32, fd: RawFd) -> io::Result<()> {
    ring.submitter().register_files_update(place, &[fd]).map(drop)
}
