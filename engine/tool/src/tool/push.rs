//! Pushing stdin (`PMIx_IOF_push`, RFC0025).

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use iof_proto::{FromTool, PushGranted, PushReport, SlowTargets};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};

use super::Tool;
use crate::error::{LostError, PushError, RequestError};
use crate::push::{BlobSupply, Push, Pushing, STALL_TIMEOUT, Stall, Supplied, Supply};
use crate::session::request::Request;

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
    /// use iof_proto::directive::key;
    /// use iof_proto::{Info, Nspace, Proc, Rank};
    /// use iof_tool::Push;
    ///
    /// # let engine = Engine::start(Config::new(Rendezvous::None))?;
    /// # let mut tool = engine.attach("example", Grant::Never)?;
    /// let nspace = Nspace::new("job1")?;
    /// let app = App::new("grep", ["-q", "hello"]).ranks(3);
    /// let mut spec = JobSpec::new(nspace.clone(), vec![app]);
    /// spec.stdin = BTreeMap::from([(Rank::WILDCARD, Stdin::Pipe)]);
    /// let job = engine.spawn(&spec)?;
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
        self.push_all(granted.push, push.drops(), &mut BlobSupply(bytes), on_wait)
    }

    /// Pushes `bytes` as the rest of a push that [`Tool::begin_push`] has begun. Blocks until every
    /// target has received them or can receive no more, and waits for targets that do not read.
    ///
    /// # Errors
    /// Returns [`PushError`] if the engine is gone.
    pub fn push_rest(&mut self, push: u32, bytes: &[u8]) -> Result<PushReport, PushError> {
        self.push_all(push, false, &mut BlobSupply(bytes), |_| {})
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
        let request = self.submit_push(push, size)?;
        self.wait(request)
    }

    /// Sends the request of [`Tool::begin_push`] without waiting for the answer, see
    /// [`Reply`](crate::Reply).
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_push(&mut self, push: &Push, size: Option<u64>) -> Result<u32, RequestError> {
        self.submit(Request::Push, |request| push.message(request, size))
    }

    /// Returns the memory for the next bytes of a push. It is empty while no memory is free, and if
    /// the push does not exist or has ended. Does not block.
    pub fn push_room(&mut self, push: u32) -> &mut [u8] {
        self.session.pushes.get_mut(&push).map_or(&mut [], Pushing::room)
    }

    /// Hands the first `bytes` bytes of [`Tool::push_room`] over to the engine. `over` specifies
    /// that no more bytes follow. Does nothing for a push that has ended.
    ///
    /// # Errors
    /// Returns [`LostError`] if the engine is gone.
    pub fn fill(&mut self, push: u32, bytes: usize, over: bool) -> Result<(), LostError> {
        if self.session.gone {
            return Err(LostError::Closed);
        }
        if let Some(pushing) = self.session.pushes.get_mut(&push) {
            pushing.put(bytes);
            if over {
                pushing.end_bytes();
            }
        }
        self.report_filled(push)
    }

    /// Returns the report of a push that has ended, and removes the push. Returns `None` if the
    /// push has not ended, does not exist, or its report was taken before.
    ///
    /// # Errors
    /// Returns [`LostError::Closed`] if the engine is gone; it is unknown how much arrived.
    pub fn take_report(&mut self, push: u32) -> Result<Option<PushReport>, LostError> {
        let report = self.session.pushes.get_mut(&push).and_then(Pushing::take_report);
        match report {
            Some(report) => {
                self.session.pushes.remove(&push);
                Ok(Some(report))
            }
            None if self.session.gone => Err(LostError::Closed),
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
        let request = self.submit_slow_targets(push, cut_off)?;
        self.wait(request)
    }

    /// Sends the request of [`Tool::slow_targets`] without waiting for the answer, see
    /// [`Reply`](crate::Reply).
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_slow_targets(&mut self, push: u32, cut_off: Option<u64>) -> Result<u32, RequestError> {
        self.submit(Request::SlowTargets, |request| FromTool::SlowTargets { request, push, cut_off })
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
        let mut reads_messages = true;
        loop {
            // Not for each read of the file: that would cost a call each time.
            if mem::replace(&mut reads_messages, true) {
                self.take_messages()?;
            }
            if let Some(report) = self.take_report(push)? {
                return Ok(report);
            }
            let Some(pushing) = self.session.pushes.get_mut(&push) else {
                return Err(LostError::Closed.into());
            };
            let part = pushing.part();
            let room = pushing.room();
            if !room.is_empty() {
                stall.end();
                // Only a part of the room is filled, so that the engine can begin with it.
                let room = room.get_mut(..part).unwrap_or_default();
                match supply.read(room).map_err(PushError::Read)? {
                    Supplied::Bytes(n) => {
                        pushing.put(n);
                        reads_messages = pushing.unreported() >= part as u64;
                        if reads_messages {
                            self.report_filled(push)?;
                        }
                        continue;
                    }
                    Supplied::End => pushing.end_bytes(),
                    Supplied::NotNow => {
                        self.report_filled(push)?;
                        self.wait_readable(&supply.files(), None)?;
                        continue;
                    }
                }
            }
            self.report_filled(push)?;
            let until = stall.since.get_or_insert_with(Instant::now).checked_add(STALL_TIMEOUT);
            if self.wait_readable(&[], until)? {
                self.take_messages()?;
            } else {
                self.report_slow_targets(push, drop, &mut stall, &mut on_wait)?;
            }
            // New room ends the stall.
            if !self.push_room(push).is_empty() {
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
    fn wait_readable(
        &mut self,
        files: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<bool, LostError> {
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
        self.session.report_filled(push);
        self.send_outgoing()
    }
}
