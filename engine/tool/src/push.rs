//! Pushing stdin (`PMIx_IOF_push`, RFC0025): the tool puts bytes into an inlet, from which the
//! engine writes them to the targets.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use iof_proto::directive::key;
use iof_proto::{FromTool, Info, InfoValue, Proc, PushGranted, PushReport, SlowTargets, ToTool};
use iof_shm_ring::Filler;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};

use crate::error::{LostError, PushError, RequestError};
use crate::link::Received;
use crate::tool::Tool;

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
}

/// The state of a push that has begun.
pub(crate) struct Pushing {
    filler: Filler,
    capacity: usize,
    /// Bytes in the inlet that were not reported to the engine yet.
    unreported: u64,
    /// No more bytes follow.
    over: bool,
    /// Whether the engine was notified of that.
    over_reported: bool,
    /// The result, once the engine has sent it.
    report: Option<PushReport>,
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
struct BlobSupply<'a>(&'a [u8]);

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
struct Stall {
    since: Option<Instant>,
    last: Option<SlowTargets>,
    /// The targets reported so far. Each is reported once, even if it is slow repeatedly.
    reported: BTreeSet<Proc>,
}

impl Stall {
    /// Ends the stall: something has moved.
    fn end(&mut self) {
        (self.since, self.last) = (None, None);
    }
}

impl Tool {
    /// Pushes `bytes` into the stdin of the targets of `push`. Blocks until the bytes are in the
    /// pipe of every target, or the target can receive no more. An empty push is valid: with
    /// `PMIX_IOF_COMPLETE` it closes the targets' stdin. (RFC0025 calls this external collection:
    /// the tool itself reads the bytes that it pushes.)
    ///
    /// Each target receives the bytes of one push in one piece, after those of earlier pushes. If
    /// the push makes no progress for [`STALL_TIMEOUT`], `on_wait` is called with the targets that
    /// delay it, once for each target. During the push this tool reads no output: the output that
    /// it has registered for is cached or dropped. To push and read together, use two tools or
    /// [`Tool::begin_push`].
    ///
    /// # Errors
    /// Returns [`PushError::Request`] if a target does not exist or its stdin is not open, a
    /// required directive can't be honoured, or a limit is reached. Nothing was pushed in these
    /// cases. The same error is returned if the connection ends; then it is unknown how many bytes
    /// arrived. Targets that exit or close their stdin during the push are not an error: the report
    /// names them.
    ///
    /// # Example
    /// ```
    /// use std::collections::BTreeMap;
    /// use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous, Stdin};
    /// use iof_proto::directive::{Info, key};
    /// use iof_proto::{Nspace, Proc, Rank};
    /// use iof_tool::Push;
    ///
    /// # let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
    /// # let mut tool = engine.attach("example", Grant::Never)?;
    /// let nspace = Nspace::new("job1")?;
    /// let stdin = BTreeMap::from([(Rank::WILDCARD, Stdin::Pipe)]);
    /// let app = App { nprocs: 3, ..App::new("grep", ["-q", "hello"]) };
    /// let job = engine.spawn(&JobSpec { stdin, ..JobSpec::new(nspace.clone(), vec![app]) })?;
    /// let all = Proc::all(nspace);
    /// let push = Push { directives: vec![Info::new(key::PMIX_IOF_COMPLETE, true)], ..Push::new(vec![all]) };
    /// let report = tool.push(&push, b"hello\n", |waits| eprintln!("waiting for {waits:?}"))?;
    /// assert_eq!((report.bytes, report.complete), (6, 3));
    /// assert_eq!(job.wait().code(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push(
        &mut self,
        push: &Push,
        bytes: &[u8],
        on_wait: impl FnMut(&SlowTargets),
    ) -> Result<PushReport, PushError> {
        let granted = self.begin_push(push, Some(bytes.len() as u64))?;
        self.push_all(granted.push, drops(push), &mut BlobSupply(bytes), on_wait)
    }

    /// Begins a push, for tools with their own event loop. `size` is the number of bytes, or `None`
    /// if it is unknown. Blocks only until the engine has granted the push.
    ///
    /// Afterwards, store bytes in the slice that [`Tool::push_room`] returns and hand them over
    /// with [`Tool::fill`]. There may be new room after each call of [`Tool::try_recv`] or another
    /// method that receives the engine's messages. When all targets have received everything or can
    /// receive no more, [`Tool::take_report`] returns the result. If the tool is dropped before,
    /// the bytes handed over are still pushed.
    ///
    /// # Errors
    /// Returns [`RequestError`] in the cases of [`Tool::push`].
    pub fn begin_push(&mut self, push: &Push, size: Option<u64>) -> Result<PushGranted, RequestError> {
        let request = self.next_request();
        let (result, mut fds) =
            self.ask(&push.message(request, size), |received| match received.message {
                ToTool::PushBegun { request: answered, result } if answered == request => {
                    Ok((result, received.fds))
                }
                message => Err(Box::new(Received { message, ..received })),
            })?;
        let granted = result?;
        self.open_inlet(&granted, fds.pop()).map_err(|lost| self.lost(lost))?;
        Ok(granted)
    }

    /// Maps the inlet of a push that the engine has granted.
    pub(crate) fn open_inlet(
        &mut self,
        granted: &PushGranted,
        inlet: Option<OwnedFd>,
    ) -> Result<(), LostError> {
        let inlet = inlet.ok_or(LostError::Unexpected { what: "a granted push without its inlet" })?;
        // SAFETY: the engine created the inlet for this push alone, and there is one push of this
        // number. It sent the inlet on this tool's connection, which nothing else uses (see
        // `Tool::over`). The positions passed to `freed` come from the same connection.
        let mut filler = unsafe { Filler::open(inlet) }?;
        let capacity = filler.room().len();
        self.pushes.insert(
            granted.push,
            Pushing { filler, capacity, unreported: 0, over: false, over_reported: false, report: None },
        );
        Ok(())
    }

    /// Returns the memory for the next bytes of a push. It is empty while no memory is free, and if
    /// the push does not exist or has ended. Does not block.
    pub fn push_room(&mut self, push: u32) -> &mut [u8] {
        match self.pushes.get_mut(&push) {
            Some(pushing) if !pushing.over => pushing.filler.room(),
            _ => &mut [],
        }
    }

    /// Hands the first `bytes` bytes of [`Tool::push_room`] over to the engine. `over` specifies
    /// that no more bytes follow. Does nothing for a push that has ended.
    ///
    /// # Errors
    /// Returns [`LostError`] if the engine is gone.
    pub fn fill(&mut self, push: u32, bytes: usize, over: bool) -> Result<(), LostError> {
        if self.gone {
            return Err(LostError::Closed);
        }
        if let Some(pushing) = self.pushes.get_mut(&push).filter(|pushing| !pushing.over) {
            pushing.put(bytes);
            pushing.over = over;
        }
        self.report_filled(push)
    }

    /// Returns the report of a push that has ended, and removes the push. Returns `None` if the
    /// push has not ended, does not exist, or its report was taken before.
    ///
    /// # Errors
    /// Returns [`LostError::Closed`] if the engine is gone; it is unknown how much arrived.
    pub fn take_report(&mut self, push: u32) -> Result<Option<PushReport>, LostError> {
        let report = self.pushes.get_mut(&push).and_then(|pushing| pushing.report.take());
        match report {
            Some(report) => {
                self.pushes.remove(&push);
                Ok(Some(report))
            }
            None if self.gone => Err(LostError::Closed),
            None => Ok(None),
        }
    }

    /// Returns the targets that delay a push. If `cut_off`, a position in bytes, is given, the
    /// engine first closes the stdin of each target that has taken no byte beyond this position and
    /// for which no earlier push is in progress. Blocks until the engine answers.
    ///
    /// # Errors
    /// Returns [`RequestError::Lost`] if the engine is gone.
    pub fn slow_targets(&mut self, push: u32, cut_off: Option<u64>) -> Result<SlowTargets, RequestError> {
        let request = self.next_request();
        self.ask(&FromTool::SlowTargets { request, push, cut_off }, |received| match received.message {
            ToTool::SlowTargets { request: answered, slow } if answered == request => Ok(slow),
            message => Err(Box::new(Received { message, ..received })),
        })
    }

    /// Pushes everything that `supply` provides. Blocks until the report arrives.
    pub(crate) fn push_all(
        &mut self,
        push: u32,
        drop: bool,
        supply: &mut dyn Supply,
        mut on_wait: impl FnMut(&SlowTargets),
    ) -> Result<PushReport, PushError> {
        let mut stall = Stall::default();
        loop {
            self.take_messages()?;
            if let Some(report) = self.take_report(push)? {
                return Ok(report);
            }
            let Some(pushing) = self.pushes.get_mut(&push) else {
                return Err(LostError::Closed.into());
            };
            let (over, part) = (pushing.over, pushing.part());
            let room = pushing.filler.room();
            if !over && !room.is_empty() {
                stall.end();
                // Only a part of the room is filled, so that the engine can begin with it.
                let room = room.get_mut(..part).unwrap_or_default();
                match supply.read(room).map_err(PushError::Read)? {
                    Supplied::Bytes(n) => {
                        pushing.put(n);
                        if pushing.unreported >= part as u64 {
                            self.report_filled(push)?;
                        }
                        continue;
                    }
                    Supplied::End => pushing.over = true,
                    Supplied::NotNow => {
                        self.report_filled(push)?;
                        self.wait(&supply.files(), None)?;
                        continue;
                    }
                }
            }
            self.report_filled(push)?;
            let until = stall.since.get_or_insert_with(Instant::now).checked_add(STALL_TIMEOUT);
            if self.wait(&[], until)? {
                self.take_messages()?;
            } else {
                self.report_slow_targets(push, drop, &mut stall, &mut on_wait)?;
            }
            // New room ends the stall.
            if self
                .pushes
                .get_mut(&push)
                .is_some_and(|pushing| !pushing.over && !pushing.filler.room().is_empty())
            {
                stall.end();
            }
        }
    }

    /// Reports the targets that hold up a push in which nothing has moved. With `drop`, cuts off
    /// those that have taken nothing since the last call.
    fn report_slow_targets(
        &mut self,
        push: u32,
        drop: bool,
        stall: &mut Stall,
        on_wait: &mut impl FnMut(&SlowTargets),
    ) -> Result<(), RequestError> {
        stall.since = Some(Instant::now());
        let before = stall.last.as_ref().map_or(0, |last| last.position);
        let slow = self.slow_targets(push, (drop && stall.last.is_some()).then_some(before))?;
        // A target that does not read is cut off, but one that must finish an earlier push first is
        // waited for.
        let waits = slow.targets.iter().filter(|slow| !drop || !slow.stalled);
        if waits.filter(|slow| stall.reported.insert(slow.target.clone())).count() > 0 {
            on_wait(&slow);
        }
        stall.last = Some(slow);
        Ok(())
    }

    /// Blocks until the engine or one of `files` becomes readable, or until `deadline`. Returns
    /// whether any is readable.
    fn wait(&mut self, files: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Result<bool, LostError> {
        if self.link.has_received() {
            return Ok(true);
        }
        let socket = PollFd::new(self.link.as_fd(), PollFlags::POLLIN);
        let mut fds: Vec<PollFd<'_>> =
            files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).chain([socket]).collect();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match ppoll(&mut fds, left.map(Into::into), None) {
            Ok(found) => Ok(found > 0),
            Err(Errno::EINTR) => Ok(true),
            Err(errno) => Err(LostError::Socket(errno.into())),
        }
    }

    /// Reports to the engine the bytes put into an inlet since the last report, and their end.
    fn report_filled(&mut self, push: u32) -> Result<(), LostError> {
        let Some(pushing) = self.pushes.get_mut(&push).filter(|pushing| pushing.report.is_none()) else {
            return Ok(());
        };
        let (bytes, over) = (mem::take(&mut pushing.unreported), pushing.over);
        if bytes == 0 && over == pushing.over_reported {
            return Ok(());
        }
        pushing.over_reported = over;
        self.notify(&FromTool::Fill { push, bytes, last: over })
    }
}

impl Pushing {
    /// Returns the largest number of bytes to put into the inlet at a time.
    fn part(&mut self) -> usize {
        self.filler.room().len().min((self.capacity / PARTS).max(1))
    }

    fn put(&mut self, bytes: usize) {
        let put = self.filler.fill(bytes);
        self.unreported = self.unreported.saturating_add(put as u64);
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
}

/// Returns whether targets that do not read are to be cut off. The tool requests this from the
/// engine, because the tool is the side that waits.
pub(crate) fn drops(push: &Push) -> bool {
    let last = push.directives.iter().rfind(|info| info.key == key::PMIX_IOF_DROP_NEWEST);
    last.is_some_and(|info| info.value == InfoValue::Bool(true))
}
