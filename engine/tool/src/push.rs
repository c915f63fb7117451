//! Pushing stdin (`PMIx_IOF_push`, RFC0025): bytes go into an inlet, from which the engine writes
//! them to their targets.

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

/// For how long a push waits for targets that take nothing before it says so, or cuts them off.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The engine is told of bytes by so many parts of the inlet, where more are at hand.
const PARTS: usize = 4;

/// What to push, to whom, and how (`PMIx_IOF_push`, RFC0025).
#[derive(Clone, Debug)]
pub struct Push {
    /// Who gets the bytes; a wildcard rank stands for a whole nspace.
    pub targets: Vec<Proc>,
    /// How it is to be done: [`PushDirectives`](iof_proto::PushDirectives) has what is understood.
    /// Without any, the targets' stdin stays open for the next push, a target that does not
    /// read is waited for, and one that can't be reached is an error.
    pub directives: Vec<Info>,
}

impl Push {
    /// Without directives.
    pub fn new(targets: Vec<Proc>) -> Push {
        Push { targets, directives: Vec::new() }
    }

    pub(crate) fn message(&self, request: u32, size: Option<u64>) -> FromTool {
        let Push { targets, directives } = self.clone();
        FromTool::Push { request, targets, size, directives }
    }
}

/// A push under way.
pub(crate) struct Pushing {
    filler: Filler,
    capacity: usize,
    /// Bytes in the inlet that the engine was not told of.
    untold: u64,
    over: bool,
    /// The engine knows that.
    told_over: bool,
    /// What became of it.
    report: Option<PushReport>,
}

/// What there is to push.
pub(crate) trait Supply {
    /// Puts bytes into `room`, which is not empty.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Read>;

    /// What becomes readable when there is more, or the end.
    fn files(&self) -> Vec<BorrowedFd<'_>>;
}

/// What came of [`Supply::read`].
pub(crate) enum Read {
    /// So many bytes, 1 at least.
    Bytes(usize),
    /// Nothing yet.
    NotNow,
    /// Nothing any more.
    End,
}

/// A blob.
struct Blob<'a>(&'a [u8]);

impl Supply for Blob<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<Read> {
        let n = room.len().min(self.0.len());
        let (now, rest) = self.0.split_at(n);
        if let Some(room) = room.get_mut(..n) {
            room.copy_from_slice(now);
        }
        self.0 = rest;
        Ok(if n > 0 { Read::Bytes(n) } else { Read::End })
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// For how long nothing has moved.
#[derive(Default)]
struct Stall {
    since: Option<Instant>,
    seen: Option<SlowTargets>,
    /// Who was named before: once is enough, also of those that are slow again and again.
    said: BTreeSet<Proc>,
}

impl Stall {
    /// Something moves.
    fn is_over(&mut self) {
        (self.since, self.seen) = (None, None);
    }
}

impl Tool {
    /// Pushes `bytes` into the stdin of `push`'s targets, and waits until all have them (RFC0025's
    /// external collection: each push has targets of its own). No bytes are a push as well:
    /// with `PMIX_IOF_COMPLETE` they are the end.
    ///
    /// At each target the bytes of one push come in one piece, behind those of pushes that came
    /// before. `on_wait` is called when they have not moved for [`PATIENCE`], with those that
    /// hold them back. Meanwhile this tool reads nothing: what it has registered for is cached
    /// or dropped. Who wants to do both at once uses two tools, or [`Tool::begin_push`].
    ///
    /// # Errors
    /// [`PushError::Request`]: a target that can't be reached, none of it was pushed then; a directive that is required
    /// and can't be honoured; a limit; or the engine is gone. Targets that go in the middle are no
    /// error: the report names them.
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
    /// let all = Proc { nspace, rank: Rank::WILDCARD };
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
        self.push_all(granted.push, drops(push), &mut Blob(bytes), on_wait)
    }

    /// Begins a push, of `size` bytes if that is known, and waits for nothing but the engine's
    /// word: for tools with an event loop of their own. Then put bytes where
    /// [`Tool::push_room`] says, and [`Tool::fill`]. There may be room again whenever
    /// [`Tool::next`] or [`Tool::dispatch`] has looked at what the engine says; and when all
    /// targets have all, or are gone, [`Tool::take_report`] says what became of it. A tool that
    /// goes before has pushed what it has handed over.
    ///
    /// # Errors
    /// [`RequestError`], as [`Tool::push`].
    pub fn begin_push(&mut self, push: &Push, size: Option<u64>) -> Result<PushGranted, RequestError> {
        let request = self.next_request();
        let (result, mut fds) =
            self.ask(&push.message(request, size), |received| match received.message {
                ToTool::PushBegun { request: of, result } if of == request => Ok((result, received.fds)),
                message => Err(Box::new(Received { message, ..received })),
            })?;
        let granted = result?;
        self.open_inlet(&granted, fds.pop()).map_err(|lost| self.lost(lost))?;
        Ok(granted)
    }

    /// The engine has granted a push.
    pub(crate) fn open_inlet(
        &mut self,
        granted: &PushGranted,
        inlet: Option<OwnedFd>,
    ) -> Result<(), LostError> {
        let inlet = inlet.ok_or(LostError::Unexpected { what: "a push without its inlet" })?;
        // SAFETY: the engine has made it for this push alone, of which there is one, and sent it on our
        // connection, which nobody else has (`Tool::over`); what `freed` is told comes from there,
        // too.
        let mut filler = unsafe { Filler::open(inlet) }?;
        let capacity = filler.room().len();
        self.pushes.insert(
            granted.push,
            Pushing { filler, capacity, untold: 0, over: false, told_over: false, report: None },
        );
        Ok(())
    }

    /// Where the next bytes of a push can be put now; empty if there is no room, or no such push.
    pub fn push_room(&mut self, push: u32) -> &mut [u8] {
        match self.pushes.get_mut(&push) {
            Some(pushing) if !pushing.over => pushing.filler.room(),
            _ => &mut [],
        }
    }

    /// Hands the first `bytes` of the room over to the engine, and says whether they are the last
    /// of this push. Nothing happens for a push that is over.
    ///
    /// # Errors
    /// [`LostError`]: the engine is gone.
    pub fn fill(&mut self, push: u32, bytes: usize, over: bool) -> Result<(), LostError> {
        if self.gone {
            return Err(LostError::Closed);
        }
        if let Some(pushing) = self.pushes.get_mut(&push).filter(|pushing| !pushing.over) {
            pushing.put(bytes);
            pushing.over = over;
        }
        self.tell_filled(push)
    }

    /// What became of a push that is over; then it is forgotten. `None` if it is not, or was asked
    /// for before.
    ///
    /// # Errors
    /// [`LostError::Closed`]: the engine is gone, and nobody knows how much arrived.
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

    /// Who holds a push back. Before, those are cut off who have taken no more than what lies
    /// before position `cut_off` though it was their turn: they are at the end of their stdin.
    ///
    /// # Errors
    /// [`RequestError::Lost`]: the engine is gone.
    pub fn lagging(&mut self, push: u32, cut_off: Option<u64>) -> Result<SlowTargets, RequestError> {
        let request = self.next_request();
        self.ask(&FromTool::SlowTargets { request, push, cut_off }, |received| match received.message {
            ToTool::SlowTargets { request: of, slow } if of == request => Ok(slow),
            message => Err(Box::new(Received { message, ..received })),
        })
    }

    /// Pushes all that `supply` has; waits for the report.
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
                stall.is_over();
                // Not all of it, so that the engine can begin.
                let room = room.get_mut(..part).unwrap_or_default();
                match supply.read(room).map_err(PushError::Read)? {
                    Read::Bytes(n) => {
                        pushing.put(n);
                        if pushing.untold >= part as u64 {
                            self.tell_filled(push)?;
                        }
                        continue;
                    }
                    Read::End => pushing.over = true,
                    Read::NotNow => {
                        self.tell_filled(push)?;
                        self.wait(&supply.files(), None)?;
                        continue;
                    }
                }
            }
            self.tell_filled(push)?;
            let until = stall.since.get_or_insert_with(Instant::now).checked_add(PATIENCE);
            if self.wait(&[], until)? {
                self.take_messages()?;
            } else {
                self.look_who_lags(push, drop, &mut stall, &mut on_wait)?;
            }
            // What moves is not stalled.
            if self
                .pushes
                .get_mut(&push)
                .is_some_and(|pushing| !pushing.over && !pushing.filler.room().is_empty())
            {
                stall.is_over();
            }
        }
    }

    /// Nothing has come for a while: says whom that is due to, or cuts them off, if they took
    /// nothing since the last look.
    fn look_who_lags(
        &mut self,
        push: u32,
        drop: bool,
        stall: &mut Stall,
        on_wait: &mut impl FnMut(&SlowTargets),
    ) -> Result<(), RequestError> {
        stall.since = Some(Instant::now());
        let before = stall.seen.as_ref().map_or(0, |seen| seen.position);
        let lagging = self.lagging(push, (drop && stall.seen.is_some()).then_some(before))?;
        // Whoever does not read is cut off, but those who have another push before this are waited for.
        let waits = lagging.targets.iter().filter(|of| !drop || !of.stalled);
        if waits.filter(|of| stall.said.insert(of.target.clone())).count() > 0 {
            on_wait(&lagging);
        }
        stall.seen = Some(lagging);
        Ok(())
    }

    /// Waits for the engine or one of `files`, until `until` at most; whether there was anything.
    fn wait(&mut self, files: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<bool, LostError> {
        if self.link.has_received() {
            return Ok(true);
        }
        let socket = PollFd::new(self.link.as_fd(), PollFlags::POLLIN);
        let mut fds: Vec<PollFd<'_>> =
            files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).chain([socket]).collect();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match ppoll(&mut fds, left.map(Into::into), None) {
            Ok(found) => Ok(found > 0),
            Err(Errno::EINTR) => Ok(true),
            Err(errno) => Err(LostError::Socket(errno.into())),
        }
    }

    /// Tells the engine what lies in an inlet, and of its end.
    fn tell_filled(&mut self, push: u32) -> Result<(), LostError> {
        let Some(pushing) = self.pushes.get_mut(&push).filter(|pushing| pushing.report.is_none()) else {
            return Ok(());
        };
        let (bytes, over) = (mem::take(&mut pushing.untold), pushing.over);
        if bytes == 0 && over == pushing.told_over {
            return Ok(());
        }
        pushing.told_over = over;
        self.tell(&FromTool::Fill { push, bytes, last: over })
    }
}

impl Pushing {
    /// What is put there at once at most.
    fn part(&mut self) -> usize {
        self.filler.room().len().min((self.capacity / PARTS).max(1))
    }

    fn put(&mut self, bytes: usize) {
        let put = self.filler.fill(bytes);
        self.untold = self.untold.saturating_add(put as u64);
    }

    /// There is room from `position` on; `false` if that can't be.
    pub(crate) fn freed(&mut self, position: u64) -> bool {
        self.filler.freed(position)
    }

    /// It is over.
    pub(crate) fn ended(&mut self, report: PushReport) {
        self.over = true;
        self.report = Some(report);
    }
}

/// Whether targets that do not read are to be cut off, which is for the tool to see to: it is the
/// one that waits.
pub(crate) fn drops(push: &Push) -> bool {
    let last = push.directives.iter().rfind(|info| info.key == key::PMIX_IOF_DROP_NEWEST);
    last.is_some_and(|info| info.value == InfoValue::Bool(true))
}
