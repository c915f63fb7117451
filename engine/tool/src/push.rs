//! A push of stdin (`PMIx_IOF_push`, RFC0025): its parameters, its bytes and its state. The tool
//! puts bytes into an inlet, from which the engine writes them to the targets.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use iof_proto::directive::key;
use iof_proto::{FromTool, Info, InfoValue, Proc, PushReport, SlowTargets};
use iof_shm_ring::Filler;

/// The time without progress of a push after which the slowest targets are reported to `on_wait`.
/// If the push has the directive `PMIX_IOF_DROP_NEWEST`, targets that have taken nothing during
/// another such time are cut off: their stdin is closed.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of parts in which a full inlet is reported to the engine, so that the engine can
/// begin early.
const PARTS: usize = 4;

/// The parameters of a push (`PMIx_IOF_push`, RFC0025).
#[derive(Clone, Debug)]
pub struct Push {
    /// The processes that receive the bytes. A wildcard rank means all ranks of the job.
    pub targets: Vec<Proc>,
    /// The directives, see [`PushDirectives`](iof_proto::PushDirectives). Without directives, the
    /// targets' stdin stays open for the next push, the push waits for targets that do not read,
    /// and it fails if a target's stdin is not open.
    pub directives: Vec<Info>,
}

impl Push {
    /// Creates the parameters of a push to `targets` without directives.
    pub fn new(targets: Vec<Proc>) -> Push {
        Push { targets, directives: Vec::new() }
    }

    pub(crate) fn message(&self, request: u32, size: Option<u64>) -> FromTool {
        let Push { targets, directives } = self.clone();
        FromTool::Push { request, targets, size, directives }
    }

    /// Returns whether targets that do not read are to be cut off. The tool requests this from the
    /// engine, because the tool is the side that waits.
    pub(crate) fn drops(&self) -> bool {
        let last = self.directives.iter().rfind(|info| info.key == key::PMIX_IOF_DROP_NEWEST);
        last.is_some_and(|info| info.value == InfoValue::Bool(true))
    }
}

/// The state of a push that has begun.
pub(crate) struct Pushing {
    filler: Filler,
    capacity: usize,
    /// Bytes in the inlet that were not reported to the engine yet.
    unreported: u64,
    /// No more bytes follow.
    over: bool,
    /// Set if the engine was notified of that.
    over_reported: bool,
    /// The result, once the engine has sent it.
    report: Option<PushReport>,
}

impl Pushing {
    /// Begins a push into an empty inlet.
    pub(crate) fn new(mut filler: Filler) -> Pushing {
        let capacity = filler.room().len();
        Pushing { filler, capacity, unreported: 0, over: false, over_reported: false, report: None }
    }

    /// Returns the memory for the next bytes, which is empty once no more bytes follow.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.over { &mut [] } else { self.filler.room() }
    }

    /// Returns the largest number of bytes to put into the inlet at a time.
    pub(crate) fn part(&mut self) -> usize {
        self.filler.room().len().min((self.capacity / PARTS).max(1))
    }

    /// Records that the first `bytes` bytes of the room were stored. Does nothing if no more bytes
    /// follow.
    pub(crate) fn put(&mut self, bytes: usize) {
        if !self.over {
            let put = self.filler.fill(bytes);
            self.unreported = self.unreported.saturating_add(put as u64);
        }
    }

    /// Records that no more bytes follow.
    pub(crate) fn end_bytes(&mut self) {
        self.over = true;
    }

    /// Returns the number of bytes that were not reported to the engine yet.
    pub(crate) fn unreported(&self) -> u64 {
        self.unreported
    }

    /// Returns what is to be reported to the engine, if anything: the number of bytes put into the
    /// inlet since the last report, and whether no more follow.
    pub(crate) fn take_unreported(&mut self) -> Option<(u64, bool)> {
        if self.report.is_some() || self.unreported == 0 && self.over == self.over_reported {
            return None;
        }
        self.over_reported = self.over;
        Some((mem::take(&mut self.unreported), self.over))
    }

    /// Adds the room below `position`, which the engine has emptied. Returns `false` if that
    /// position was never filled.
    pub(crate) fn freed(&mut self, position: u64) -> bool {
        self.filler.freed(position)
    }

    /// Records the end of the push.
    pub(crate) fn ended(&mut self, report: PushReport) {
        self.over = true;
        self.report = Some(report);
    }

    /// Returns the result, once, if the engine has sent it.
    pub(crate) fn take_report(&mut self) -> Option<PushReport> {
        self.report.take()
    }
}

/// A source of bytes to push.
pub(crate) trait Supply {
    /// Reads bytes into `room`, which is not empty.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Supplied>;

    /// Returns the descriptors that become readable when there are more bytes or the end is
    /// reached.
    fn files(&self) -> Vec<BorrowedFd<'_>>;
}

/// The result of [`Supply::read`].
pub(crate) enum Supplied {
    /// This many bytes, at least 1.
    Bytes(usize),
    /// Nothing at present.
    NotNow,
    /// The end of the bytes.
    End,
}

/// A slice of bytes that is pushed as a whole.
pub(crate) struct BlobSupply<'a>(pub(crate) &'a [u8]);

impl Supply for BlobSupply<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<Supplied> {
        let n = room.len().min(self.0.len());
        let (now, rest) = self.0.split_at(n);
        if let Some(room) = room.get_mut(..n) {
            room.copy_from_slice(now);
        }
        self.0 = rest;
        Ok(if n > 0 { Supplied::Bytes(n) } else { Supplied::End })
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// The state of a push in which nothing moves.
#[derive(Default)]
pub(crate) struct Stall {
    pub since: Option<Instant>,
    pub last: Option<SlowTargets>,
    /// The targets reported so far. Each is reported once, even if it is slow repeatedly.
    pub reported: BTreeSet<Proc>,
}

impl Stall {
    /// Ends the stall: something has moved.
    pub(crate) fn end(&mut self) {
        (self.since, self.last) = (None, None);
    }
}
