//! For which reasons the core may complete streams before their ends, and when it must.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use iof_capture::{ProcessId, SourceId};
use iof_core::OPEN_AFTER_KILL;
use iof_proto::Channel;

use super::EngineWorld;

/// The facts known of a local rank.
#[derive(Debug)]
struct RankStreams {
    run: u64,
    /// In the order of [`Channel::OUTPUTS`].
    streams: [SourceId; Channel::OUTPUTS.len()],
    /// The time for which they may stay open after its exit.
    grace: Option<Duration>,
    /// When the core has learned of its exit.
    exited: Option<Instant>,
    /// When the core has killed its job.
    killed: Option<Instant>,
    /// Its job has failed to start.
    withdrawn: bool,
}

/// The streams of all ranks, and which the core has completed.
#[derive(Debug, Default)]
pub struct Finishes {
    ranks: BTreeMap<SourceId, RankStreams>,
    /// The streams whose ends the core knows.
    complete: BTreeSet<SourceId>,
    finished: BTreeSet<SourceId>,
    /// The streams of remote ranks whose ends were delivered.
    delivered: BTreeSet<SourceId>,
    /// When the core has killed ranks that only the embedder can signal.
    unseen_kills: Vec<Instant>,
    /// The streams for which it is time.
    due: Vec<SourceId>,
}

impl RankStreams {
    /// Returns whether the streams may be completed at `now`.
    fn is_over(&self, now: Instant) -> bool {
        let is_past = |from: Option<Instant>, time: Option<Duration>| {
            from.zip(time).is_some_and(|(from, time)| from + time <= now)
        };
        is_past(self.exited, self.grace) || is_past(self.killed, Some(OPEN_AFTER_KILL))
    }
}

impl Finishes {
    /// Adds a rank.
    pub fn add(&mut self, run: u64, streams: [SourceId; Channel::OUTPUTS.len()], grace: Option<Duration>) {
        let rank = RankStreams { run, streams, grace, exited: None, killed: None, withdrawn: false };
        self.ranks.insert(streams[0], rank);
    }

    fn rank_of(&self, source: SourceId) -> Option<&RankStreams> {
        let (_, rank) = self.ranks.range(..=source).next_back()?;
        rank.streams.contains(&source).then_some(rank)
    }

    /// Notes that the core learns of the exit of a rank. The process has the id of the first stream.
    pub fn exited(&mut self, process: ProcessId, now: Instant) {
        let rank = self.ranks.get_mut(&SourceId(process.0)).filter(|rank| !rank.withdrawn);
        rank.into_iter().for_each(|rank| rank.exited = Some(now));
    }

    /// Notes that the core kills the ranks of a job, with these processes.
    pub fn killed(&mut self, processes: &[ProcessId], now: Instant) {
        let first = processes.first().and_then(|process| self.ranks.get(&SourceId(process.0)));
        let Some(run) = first.map(|rank| rank.run) else { return self.unseen_kills.push(now) };
        let of_job = self.ranks.values_mut().filter(|rank| rank.run == run && !rank.withdrawn);
        of_job.for_each(|rank| _ = rank.killed.get_or_insert(now));
    }

    /// Notes that the ranks of a job are removed, because it has failed to start.
    pub fn withdraw(&mut self, run: u64) {
        self.ranks.values_mut().filter(|rank| rank.run == run).for_each(|rank| rank.withdrawn = true);
    }

    /// Notes that the core learns of the end of a stream.
    pub fn complete(&mut self, source: SourceId) {
        self.complete.insert(source);
    }

    /// Notes that the end of a remote rank's stream is delivered.
    pub fn delivered_end(&mut self, source: SourceId) {
        self.delivered.insert(source);
    }

    /// Notes that the core handles what is due at `now`.
    pub fn tick(&mut self, now: Instant) {
        let over = self.ranks.values().filter(|rank| !rank.withdrawn && rank.is_over(now));
        self.due = over.flat_map(|rank| rank.streams).collect();
    }

    /// Checks that a stream may be closed: its job has failed to start.
    pub fn check_closed(&self, source: SourceId) {
        let is_right = self.rank_of(source).is_some_and(|rank| rank.withdrawn);
        assert!(is_right, "{source:?} is closed for no reason");
    }

    /// Checks that all streams are completed for which it is time, and those that only children of
    /// exited ranks may hold open without knowing.
    pub fn check_due(&mut self) {
        let is_left = |source: &SourceId| !self.finished.contains(source) && !self.complete.contains(source);
        let left: Vec<SourceId> = self.due.drain(..).filter(is_left).collect();
        assert!(left.is_empty(), "{left:?} are left open");
        for rank in self.ranks.values().filter(|rank| rank.exited.is_some() && !rank.withdrawn) {
            let [stdout, stderr, further @ ..] = rank.streams;
            let waits = [stdout, stderr].iter().all(|source| self.complete.contains(source));
            assert!(
                !(waits && further.iter().any(is_left)),
                "a stream of an exited rank is left open: {rank:?}"
            );
        }
    }
}

impl EngineWorld {
    /// Checks and notes that the core completes a stream with what was written so far.
    pub(super) fn note_finished(&mut self, source: SourceId) {
        self.finishes.finished.insert(source);
        // After a failure of the kernel all streams are complete.
        if self.engine.is_without_capture() {
            return;
        }
        let is_right = match self.finishes.rank_of(source) {
            Some(rank) => {
                let [stdout, stderr, further @ ..] = rank.streams;
                let is_complete = |source| self.finishes.complete.contains(&source);
                let leaves_further = rank.exited.is_some() && is_complete(stdout) && is_complete(stderr);
                let unseen = |time: &Instant| *time + OPEN_AFTER_KILL <= self.now;
                rank.is_over(self.now)
                    || leaves_further && further.contains(&source)
                    || self.finishes.unseen_kills.iter().any(unseen)
            }
            None => self.finishes.delivered.contains(&source) || self.is_over_for(source),
        };
        let about = (self.finishes.rank_of(source), self.truth.info(source));
        assert!(is_right, "{source:?} is finished for no reason: {about:?}");
    }

    /// Returns whether nothing more can follow in a stream of a remote rank or of logged messages.
    fn is_over_for(&self, source: SourceId) -> bool {
        let Some(info) = self.truth.info(source) else { return false };
        let mut jobs = self.jobs.list.iter();
        let job = jobs.find(|job| (&job.nspace, job.run) == (&info.source.nspace, info.run));
        let Some(job) = job.filter(|job| !job.elsewhere || job.remote_ended) else { return false };
        if !info.logged {
            return true;
        }
        let mut ranks = self.finishes.ranks.values().filter(|rank| rank.run == info.run && !rank.withdrawn);
        let mut outputs = self.truth.outputs(info.run);
        let is_complete = |source| self.finishes.complete.contains(&source);
        job.registered && ranks.all(|rank| rank.exited.is_some()) && outputs.all(is_complete)
    }
}
