//! A job: its ranks, their streams and their exit statuses.

use std::process::ExitStatus;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use iof_capture::{Capture, Command, Event, PtyMaster, Signal, SourceId, Streams, WindowSize};
use iof_core::{Exit, JobId, JobState, JobStatus, RankState};
use iof_proto::{Channel, Nspace, Rank};
use iof_shm_ring::{ReaderId, ReaderPage};

use crate::tables::Tables;
use crate::tables::handles::JobEnd;

pub(crate) mod binding;
pub(crate) mod endings;
pub(crate) mod plan;

/// Interval at which [`Job::flush`] polls the positions of readers.
const FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// A handle of a job. Dropping it does not affect the job, which the engine keeps until the job is
/// [removed](crate::Engine::remove) or the engine ends.
///
/// After the job was removed, the handle returns its exit status and its endings, and its other methods
/// have no effect. It does not refer to a later job of the same name.
#[derive(Clone)]
pub struct Job {
    pub(crate) tables: Arc<Tables>,
    /// A weak reference, so that the capture thread ends with the engine.
    pub(crate) capture: Weak<Capture>,
    pub(crate) id: JobId,
    /// Set when the job is removed.
    pub(crate) end: Arc<OnceLock<JobEnd>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("nspace", &self.id.nspace).finish_non_exhaustive()
    }
}

impl Job {
    /// Returns the id of the job.
    pub(crate) fn id(&self) -> &JobId {
        &self.id
    }

    /// Returns the job's name.
    pub fn nspace(&self) -> &Nspace {
        &self.id.nspace
    }

    /// Blocks until every local rank, and every rank on other nodes of the job
    /// ([`Engine::begin_on_nodes`](crate::Engine::begin_on_nodes)), has exited and all streams of
    /// these ranks are complete, including streams that a child of a rank holds open and streams of
    /// [logged](crate::Engine::log) messages. Returns the exit status so far if the engine ends
    /// first. Must not be called in an [upcall](crate::Host).
    pub fn wait(&self) -> JobStatus {
        self.wait_until(JobState::is_drained_with_logs)
    }

    /// Blocks until every one of these ranks has exited. More of their output may arrive afterwards.
    /// Returns the exit status so far if the engine ends first. Must not be called in an
    /// [upcall](crate::Host).
    pub fn wait_exit(&self) -> JobStatus {
        self.wait_until(JobState::has_exited)
    }

    /// Returns the exit status, or `None` if one of these ranks has not exited. Does not block.
    pub fn try_wait_exit(&self) -> Option<JobStatus> {
        match self.tables.lock().job(&self.id) {
            Some(job) => job.has_exited().then(|| job.status()),
            None => self.end.get().map(|(status, _)| status.clone()),
        }
    }

    /// Blocks until the job has `reached` a state, is removed, or the engine ends.
    fn wait_until(&self, reached: impl Fn(&JobState) -> bool) -> JobStatus {
        self.tables.wait_for(|core| match core.job(&self.id) {
            Some(job) if !reached(job) && !core.is_stopping() => None,
            Some(job) => Some(job.status()),
            None => Some(self.end.get().map(|(status, _)| status.clone()).unwrap_or_default()),
        })
    }

    /// Reports to the engine that a rank has exited, which was adopted with
    /// [`Process::Reported`](crate::Process::Reported). Returns `false` if the rank was not adopted
    /// in this way, or its exit was reported before.
    pub fn report_exit(&self, rank: Rank, exit: Exit) -> bool {
        let Some(process) = self.tables.lock().report_exit(&self.id, rank) else { return false };
        let status = match exit {
            Exit::Status(status) => Ok(status),
            // Exit code 0. The engine knows whether the rank has called `MPI_Finalize`.
            Exit::Unfinalized => Ok(ExitStatus::default()),
            Exit::Unknown => Err(io::Error::other("the embedder reported an unknown status")),
        };
        self.tables.reports.send(Event::Exited { process, status, used: None });
        true
    }

    /// Sends `signal` to every local rank and every rank on other nodes of the job. If a rank leads a process group, the whole group
    /// receives the signal, even if the rank itself has exited and left children in the group.
    /// Before Linux 6.9, the children of an exited rank do not receive it. If a rank leads no
    /// process group, its descendants in the embedder's group receive the signal, as
    /// [`Signaller::send`](iof_capture::Signaller::send) specifies. Returns the number of ranks and
    /// groups that were signalled.
    pub fn signal(&self, signal: Signal) -> usize {
        self.send(signal, false)
    }

    /// Sends `signal` to the ranks that lead process groups, and to their groups. An embedder calls
    /// this for signals that it received from its terminal: the other ranks are in its own group
    /// and received the signal already. Returns the number of groups that were signalled.
    pub fn signal_groups(&self, signal: Signal) -> usize {
        self.send(signal, true)
    }

    fn send(&self, signal: Signal, groups_only: bool) -> usize {
        let mut tables = self.tables.lock();
        // Noted before they are sent, because a rank may end at once.
        let receivers = tables.signal_job(&self.id, signal, groups_only, Instant::now());
        let count = tables.handles().signal(&receivers, signal, false);
        drop(tables);
        // Steps for nodes may follow.
        self.tables.reports.wake();
        count
    }

    /// Ends the job as one that has failed: its ranks receive SIGTERM, and SIGKILL after
    /// [`JobSpec::kill_wait`](crate::JobSpec::kill_wait). Its exit code is 1, whatever its ranks return. Has no effect on a
    /// job that the engine ends already, or that is over.
    pub fn fail(&self) {
        self.tables.lock().fail_job(&self.id, Instant::now());
        self.tables.reports.wake();
    }

    /// Completes an output stream of a local rank with the bytes written so far. Later writes to it
    /// raise SIGPIPE. Readers receive the bytes and then the end of the stream. Returns `false` if
    /// the job has no such local rank, `channel` is stdin, the stream was complete already, or the
    /// engine has ended.
    pub fn close(&self, rank: Rank, channel: Channel) -> bool {
        let Some(capture) = self.capture.upgrade() else { return false };
        let index = Channel::OUTPUTS.iter().position(|output| *output == channel);
        let rank = self.rank(rank, |rank| rank.streams().to_vec());
        let Some(&id) = rank.as_ref().zip(index).and_then(|(streams, index)| streams.get(index)) else {
            return false;
        };
        let open = capture.with_streams(|streams| Some(!streams.get(id)?.stats().complete));
        matches!(open, Ok(Some(true))) && capture.send([Command::Finish(id)]).is_ok()
    }

    /// Stops keeping the first output for tools that have not registered yet. Before this call, a
    /// stream that no registration reads keeps its first bytes in two cases. Under
    /// [`Policy::DropNewest`](iof_shm_ring::Policy::DropNewest) it drops the bytes that do not fit.
    /// Under [`Policy::Block`](iof_shm_ring::Policy::Block), with a directive such as
    /// `PMIX_FWD_STDOUT` for its channel, its rank waits. After this call such a stream keeps its
    /// newest bytes, and its rank does not wait. A launcher calls this when it no longer waits for
    /// the tool for which it spawned the job.
    pub fn release_backlog(&self) {
        self.tables.lock().release_backlog_of(&self.id);
    }

    /// Blocks until the engine has read all bytes that the ranks wrote before the call, and the
    /// embedder's own readers ([`Engine::attach`](crate::Engine::attach)) have consumed them. Other
    /// tools can then read these bytes from the rings. Returns `false` if that did not happen
    /// within `timeout` (`None`: without limit), or the engine has ended. Must not be called in an
    /// [upcall](crate::Host).
    pub fn flush(&self, timeout: Option<Duration>) -> bool {
        let streams = self.tables.lock().job(&self.id).map(JobState::streams).unwrap_or_default();
        self.flush_streams(&streams, None, timeout)
    }

    /// Blocks as [`Job::flush`] does, but only for the output of one rank. Of a remote rank, this
    /// is the output that was delivered.
    pub fn flush_rank(&self, rank: Rank, timeout: Option<Duration>) -> bool {
        let streams = self.tables.lock().job(&self.id).map(|job| job.streams_of(rank)).unwrap_or_default();
        self.flush_streams(&streams, Some(rank), timeout)
    }

    fn flush_streams(&self, streams: &[SourceId], rank: Option<Rank>, timeout: Option<Duration>) -> bool {
        let edges = self.tables.lock().handles().edges(&self.id);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let Some(mut wanted) = self.written(streams) else { return false };
        loop {
            let readers = self.own_readers();
            let Some(capture) = self.capture.upgrade() else { return false };
            if capture.with_streams(|streams| retain_unflushed(streams, &readers, &mut wanted)).is_err() {
                return false;
            }
            drop(capture);
            if wanted.is_empty() && edges.as_ref().is_none_or(|edges| edges.is_written(rank)) {
                return true;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
            // Readers do not notify the engine of their progress, so it is polled.
            thread::sleep(FLUSH_INTERVAL);
        }
    }

    /// Returns the embedder's own readers, sorted by their sources.
    fn own_readers(&self) -> Vec<OwnReader> {
        let tables = self.tables.lock();
        let memory = &self.tables.memory;
        let reader = |(source, id, page)| Some((source, id, memory.page(page)?));
        tables.own_readers().into_iter().filter_map(reader).collect()
    }

    /// Returns how many bytes were written to each of the streams `ids` by now.
    fn written(&self, ids: &[SourceId]) -> Option<Vec<(SourceId, u64)>> {
        let capture = self.capture.upgrade()?;
        let written = capture
            .with_streams(|streams| ids.iter().filter_map(|id| Some((*id, streams.written(*id)?))).collect());
        written.ok()
    }

    /// Returns what `read` returns for a local rank.
    fn rank<R>(&self, rank: Rank, read: impl FnOnce(&RankState) -> R) -> Option<R> {
        self.tables.lock().job(&self.id)?.rank(rank).map(read)
    }

    /// Returns a handle of the pty of `rank`, through which the embedder types input; `None` if the
    /// rank has no pty or has exited. The rank's terminal is hung up when the engine ends and no
    /// handle exists any more.
    ///
    /// # Errors
    /// The process can open no further descriptor.
    pub fn pty(&self, rank: Rank) -> io::Result<Option<PtyMaster>> {
        let Some(process) = self.rank(rank, RankState::process).flatten() else { return Ok(None) };
        self.tables.lock().handles().pty(process)
    }

    /// Changes the window size of the ptys of all ranks. The foreground process group of each pty
    /// receives SIGWINCH. Returns the number of ptys of this node that were changed.
    pub fn resize_ptys(&self, size: WindowSize) -> usize {
        let mut tables = self.tables.lock();
        let Some(job) = tables.job(&self.id) else { return 0 };
        let ranks: Vec<_> = job.ranks().filter_map(|(_, rank)| rank.process()).collect();
        let nodes: Vec<_> = job.open_nodes().map(|node| (self.id.run, node)).collect();
        tables.handles().resize_ptys(&ranks, &nodes, size)
    }

    /// Returns the pids of the ranks, in the order of the ranks; 0 if the embedder did not specify one.
    pub fn pids(&self) -> Vec<u32> {
        let tables = self.tables.lock();
        let ranks = tables.job(&self.id).into_iter().flat_map(JobState::ranks);
        ranks.map(|(_, rank)| rank.pid()).collect()
    }

    /// Returns the running rank of this node whose process has the id `pid`, if there is one.
    pub fn rank_of_process(&self, pid: u32) -> Option<Rank> {
        self.find_rank(|rank| rank.pid() == pid && rank.exit().is_none() && rank.node().is_none())
    }

    /// Returns the rank of this node that leads the process group `group`, if there is one.
    pub fn rank_of_group(&self, group: u32) -> Option<Rank> {
        self.find_rank(|rank| rank.pid() == group && rank.leads_group())
    }

    fn find_rank(&self, is_wanted: impl Fn(&RankState) -> bool) -> Option<Rank> {
        let tables = self.tables.lock();
        tables.job(&self.id)?.ranks().find(|(_, rank)| is_wanted(rank)).map(|(rank, _)| rank)
    }
}

/// A stream and one of the embedder's own readers of it.
type OwnReader = (SourceId, ReaderId, Arc<ReaderPage>);

/// Removes from `wanted` (streams, each with a number of bytes) the streams from which that many
/// bytes were captured and read by the embedder's own `readers`.
fn retain_unflushed(streams: &mut Streams<'_>, readers: &[OwnReader], wanted: &mut Vec<(SourceId, u64)>) {
    wanted.retain(|(id, written)| {
        let Some(stream) = streams.get(*id) else { return false };
        let stats = stream.stats();
        // The bytes produced since then; a reader may be this far behind.
        let Some(since) = stats.produced.checked_sub(*written) else { return !stats.complete };
        let from = readers.partition_point(|(source, ..)| source < id);
        let on_stream = readers.iter().skip(from).take_while(|(source, ..)| source == id);
        on_stream.filter_map(|(_, reader_id, page)| stream.lag(page, *reader_id)).any(|lag| lag > since)
    });
}
