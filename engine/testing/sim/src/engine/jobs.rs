//! The launcher: it starts jobs and their ranks, and removes jobs.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::time::Duration;

use iof_capture::{End, ProcessId, SourceId, TargetId};
use iof_proto::{Channel, Channels, Directives, KillOnBadExit, Nspace, Proc, Rank};
use iof_shm_ring::{Policy, StreamConfig};

use super::EngineWorld;
use super::configurations::{JobOptions, LEAST_CACHE};
use super::ends::Ends;
use crate::bytes;
use crate::driver::{CallToken, NewJob, RankSignals, RankStdin};
use crate::rng::Rng;

mod starts;

/// The names that jobs have, one after the other.
pub const NAMES: [&str; 3] = ["a", "b", "c"];
/// Most ranks of a job.
pub const MAX_RANKS: u32 = 3;
/// Most ranks of jobs that failed to start which may still report something.
const MAX_WITHDRAWN: usize = 8;

/// Returns the pid of a rank.
pub fn pid(rank: Rank) -> u32 {
    rank.0 + 7
}

/// Returns one of the names.
pub fn name(number: usize) -> Nspace {
    Nspace::new(NAMES[number % NAMES.len()]).expect("a valid name")
}

/// The writing end of one stream.
#[derive(Debug)]
struct RankChannel {
    source: SourceId,
    writer: Option<File>,
    number: u64,
    written: u64,
    /// The bytes that were written when the engine asked to complete the stream with them.
    finished: Option<u64>,
    /// Set if the engine has asked to close the stream, because its job failed to start.
    closed: bool,
}

/// A rank.
#[derive(Debug)]
pub struct RankProcess {
    pub process: ProcessId,
    /// 0 if it is not known.
    pub pid: u32,
    channels: Vec<RankChannel>,
    /// The reading end of its stdin, until it closes that.
    pub stdin: Option<File>,
    /// Who may push to its stdin.
    pub stdin_kind: RankStdin,
    /// Its stdin, if the capture knows it.
    pub target: Option<TargetId>,
    /// Who signals it.
    pub signals: RankSignals,
    pub stopped: bool,
    pub exited: bool,
    /// Its exit status, as wait(2) reports it.
    pub status: Option<i32>,
    /// Set if its exit was reported.
    pub reported: bool,
}

/// A job that is not removed.
#[derive(Debug)]
pub struct Job {
    /// Its name.
    pub nspace: Nspace,
    pub run: u64,
    /// The request of a client for it.
    pub spawn: Option<CallToken>,
    config: StreamConfig,
    /// The channels that the embedder's own tools receive.
    pub forward: Channels,
    /// Set if these were specified.
    forwards: bool,
    /// Set if its backlog was released.
    pub released: bool,
    /// The time for which its streams may stay open after the exit of their rank.
    grace: Option<Duration>,
    /// The number of its local ranks.
    planned: u32,
    /// The local ranks that the engine expects to be started.
    pub launching: Range<u32>,
    pub ranks: Vec<RankProcess>,
    pub registered: bool,
    /// Set if a rank could not be started. If remote ranks remain, its name is not used again.
    failed: bool,
    /// The wait(2) status with which the rank that is being started has ended already.
    pub starting_status: Option<i32>,
    /// Set if it has remote ranks, too.
    pub elsewhere: bool,
    /// Set if the host has ended its remote part.
    pub remote_ended: bool,
    /// The exit code with which the host has ended its remote part.
    pub exit_code: Option<i32>,
    /// The end that it must have.
    pub ends: Ends,
}

/// All jobs that are not removed.
#[derive(Debug, Default)]
pub struct Jobs {
    pub list: Vec<Job>,
    next_number: u64,
    /// The ranks of jobs that failed to start whose exits were not reported.
    pub killed: Vec<RankProcess>,
    /// Some ranks of jobs that failed to start, with the runs of these.
    pub withdrawn: VecDeque<(Proc, u64)>,
}

impl Jobs {
    /// Returns the channel of a local rank that has this stream, and whether its job failed to start.
    fn channel(&mut self, source: SourceId) -> Option<(&mut RankChannel, bool)> {
        let running = self.list.iter_mut().flat_map(|job| &mut job.ranks).map(|rank| (rank, false));
        let killed = self.killed.iter_mut().map(|rank| (rank, true));
        let mut ranks = running.chain(killed);
        ranks.find_map(|(rank, is_withdrawn)| {
            let channel = rank.channels.iter_mut().find(|channel| channel.source == source)?;
            Some((channel, is_withdrawn))
        })
    }

    /// Notes that the engine completes a stream with the bytes that were written so far.
    pub fn finished(&mut self, source: SourceId) {
        if let Some((channel, _)) = self.channel(source) {
            channel.finished.get_or_insert(channel.written);
        }
    }

    /// Notes that the engine completes a stream with the bytes that were read so far.
    pub fn closed(&mut self, source: SourceId) {
        if let Some((channel, is_withdrawn)) = self.channel(source) {
            assert!(is_withdrawn, "{channel:?} is closed");
            channel.closed = true;
        }
    }

    /// Checks with how many bytes the stream of a local rank is complete.
    pub fn check_complete(&mut self, source: SourceId, produced: u64, end: &End) {
        let Some((channel, _)) = self.channel(source) else { return };
        match end {
            End::EndOfFile => {
                assert!(channel.writer.is_none(), "{channel:?} ended before its end");
                assert_eq!(produced, channel.written, "{channel:?} ended too early");
            }
            End::Closed => {
                let least = channel.finished.filter(|_| !channel.closed);
                assert!(channel.closed || least.is_some(), "{channel:?} ended for no reason");
                assert!(least.is_none_or(|least| produced >= least), "{channel:?} was finished too early");
            }
            // The kernel has failed.
            End::Error(_) => {}
        }
    }
}

impl RankProcess {
    /// Closes everything that the rank has.
    pub fn exit(&mut self) {
        self.channels.iter_mut().for_each(|channel| channel.writer = None);
        self.stdin = None;
        self.exited = true;
    }
}

impl Job {
    /// Returns whether a rank is still to be started.
    pub fn is_starting(&self) -> bool {
        !self.registered && (self.ranks.len() as u32) < self.planned
    }

    /// Returns the options of its next stream.
    pub fn options(&self, channel: Channel) -> JobOptions {
        let forward = self.forwards.then(|| self.forward.contains(channel.into()));
        JobOptions { config: self.config, forward, released: self.released }
    }

    /// Returns whether further ranks may appear.
    pub fn may_have_more(&self) -> bool {
        !self.registered || self.elsewhere && !self.remote_ended
    }

    /// Adds the rank that was being started. It may have ended meanwhile.
    fn add_rank(&mut self, mut rank: RankProcess) {
        self.ends.add_rank(rank.signals == RankSignals::ToProcess);
        self.launching.start += 1;
        if let Some(status) = self.starting_status.take() {
            rank.status = Some(status);
            rank.exit();
        }
        self.ranks.push(rank);
    }
}

impl EngineWorld {
    pub(super) fn job(&self, actor: usize) -> Option<usize> {
        actor.checked_rem(self.jobs.list.len())
    }

    pub(super) fn rank(&mut self, actor: usize) -> Option<&mut RankProcess> {
        let job = self.job(actor)?;
        let ranks = &mut self.jobs.list[job].ranks;
        let index = (actor >> 8).checked_rem(ranks.len())?;
        ranks.get_mut(index)
    }

    /// Begins a job, or registers all ranks of one.
    pub(super) fn begin_job(&mut self, actor: usize, rng: &mut Rng) {
        if let Some(job) = self.jobs.list.iter().position(|job| !job.registered)
            && rng.chance(160)
        {
            return self.finish_registering(job, rng);
        }
        let nspace = name(actor);
        let drop = rng.pick(&[None, None, Some(Policy::DropOldest), Some(Policy::DropNewest)]);
        let forward = rng.pick(&[None, None, Some(Channels::STDOUT), Some(Channels::ALL)]);
        let cache_size = rng.pick(&[None, Some(1), Some(40_000)]);
        let directives = Directives { drop, forward, cache_size, ..Directives::default() };
        let mut new = NewJob {
            nspace: nspace.clone(),
            ranks: rng.below(u64::from(MAX_RANKS) + 1) as u32,
            elsewhere: rng.chance(96),
            grace: rng.pick(&[None, Some(Duration::ZERO), Some(Duration::from_secs(1))]),
            timeout: rng.pick(&[None, None, None, Some(Duration::from_secs(3))]),
            kill_on_bad_exit: rng.pick(&[KillOnBadExit::Never, KillOnBadExit::Always]),
            directives,
        };
        if self.setting.subject.has_embedder() && rng.chance(96) {
            new.kill_on_bad_exit = KillOnBadExit::Signal;
        }
        if let Some(run) = self.engine.begin(&new, &[]) {
            self.add_job(&new, run, None);
        }
    }

    /// Adds a job that has begun, possibly for a client.
    pub(super) fn add_job(&mut self, new: &NewJob, run: u64, spawn: Option<CallToken>) {
        let NewJob { nspace, directives: Directives { drop, forward, cache_size, .. }, .. } = new;
        let known = self.jobs.list.iter().position(|job| job.nspace == *nspace);
        let policy = drop.unwrap_or(self.policy);
        let capacity = cache_size.map_or(self.setting.capacity, u64::from).max(LEAST_CACHE);
        let job = Job {
            nspace: nspace.clone(),
            run,
            spawn,
            config: StreamConfig { capacity, policy },
            forward: forward.unwrap_or(Channels::ALL),
            forwards: forward.is_some(),
            released: false,
            grace: new.grace,
            planned: new.ranks,
            launching: 0..new.ranks,
            ranks: Vec::new(),
            registered: false,
            failed: false,
            starting_status: None,
            elsewhere: new.elsewhere,
            remote_ended: false,
            exit_code: None,
            ends: Ends::new(new.kill_on_bad_exit, new.timeout.map(|timeout| self.now + timeout)),
        };
        // A job that had remote ranks only gets local ones.
        if let Some(known) = known {
            let old = &self.jobs.list[known];
            assert!(old.run == run && new.elsewhere && !old.failed, "two jobs {nspace}");
            self.jobs.list[known] = job;
        } else {
            self.truth.begin(nspace, run);
            self.jobs.list.push(job);
        }
    }

    /// A rank writes.
    pub(super) fn write(&mut self, actor: usize, rng: &mut Rng) {
        let most = rng.pick(&[80, 80, 4096, 20_000]);
        let (len, channel) = (rng.size(most) as usize, rng.index(Channel::OUTPUTS.len()));
        let Some(rank) = self.rank(actor).filter(|rank| !rank.stopped) else { return };
        let Some(channel) = rank.channels.get_mut(channel) else { return };
        let RankChannel { writer, number, written, .. } = channel;
        let Some(file) = writer else { return };
        let mut buffer = vec![0; len];
        bytes::fill(*number, *written, &mut buffer);
        match file.write(&buffer) {
            Ok(taken) => *written += taken as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The reading end is closed.
            Err(_) => *writer = None,
        }
    }

    /// A rank is stopped, or continues.
    pub(super) fn stop_rank(&mut self, actor: usize) {
        self.rank(actor).into_iter().for_each(|rank| rank.stopped = !rank.stopped);
    }

    /// A rank closes a channel.
    pub(super) fn close_channel(&mut self, actor: usize, rng: &mut Rng) {
        let channel = rng.index(Channel::OUTPUTS.len() + 1);
        let Some(rank) = self.rank(actor) else { return };
        match rank.channels.get_mut(channel) {
            Some(channel) => channel.writer = None,
            None => rank.stdin = None,
        }
    }

    /// A rank reads its stdin.
    pub(super) fn read_stdin(&mut self, actor: usize, most: usize) {
        let Some(job) = self.job(actor) else { return };
        let Job { ranks, .. } = &mut self.jobs.list[job];
        let Some(number) = (actor >> 8).checked_rem(ranks.len()) else { return };
        let RankProcess { stdin: Some(stdin), target: Some(target), .. } = &mut ranks[number] else { return };
        let mut buffer = vec![0; most];
        let result = stdin.read(&mut buffer);
        let (has_ended, read) = (matches!(result, Ok(0)), result.unwrap_or(0));
        if most > 0 {
            self.truth.stdins.check_read(*target, &buffer[..read], read < most);
            if read == 0 && !self.truth.is_cut {
                self.truth.stdins.check_end(*target, has_ended);
            }
        }
    }

    /// Releases the backlog of a job.
    pub(super) fn release_backlog(&mut self, actor: usize) {
        if let Some(job) = self.job(actor) {
            self.engine.release_backlog(&self.jobs.list[job].nspace);
            self.note_released(job);
        }
    }

    /// Removes a job that has ended.
    pub(super) fn remove_job(&mut self, actor: usize) {
        let Some(index) = self.job(actor).filter(|index| self.jobs.list[*index].registered) else { return };
        self.check_ends();
        let nspace = self.jobs.list[index].nspace.clone();
        if self.engine.remove(&nspace) {
            self.truth.remove(&nspace);
            let job = self.jobs.list.remove(index);
            self.truth.exchanges.exited(job.run, None);
        }
    }

    /// Ends all jobs: their ranks are started and exit.
    pub(super) fn end_jobs(&mut self) {
        while let Some(index) = self.jobs.list.iter().position(|job| !job.registered) {
            self.finish_registering(index, &mut Rng::new(0));
        }
        // Pushes that have waited for the jobs begin before the remote parts end.
        self.follow_up();
        for job in &mut self.jobs.list {
            job.ranks.iter_mut().for_each(RankProcess::exit);
            job.remote_ended |= self.engine.end_job(&job.nspace, None);
            self.engine.release_backlog(&job.nspace);
        }
        (0..self.jobs.list.len()).for_each(|job| self.note_released(job));
        self.follow_up();
    }
}
