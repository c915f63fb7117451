//! The registrations of a tool, and which parts of them are over.

use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use iof_proto::{Channels, Missed, Nspace, Position, Proc};

use crate::pull::{Pull, StreamKey};
use crate::session::delivery::Delivery;

/// The function that receives the deliveries of a registration.
pub(crate) type Callback = Box<dyn FnMut(&Delivery<'_>) + Send>;

/// The state of a registration.
pub(crate) struct RegistrationState {
    pub from: Position,
    /// The offsets at which single streams begin.
    begins: BTreeMap<StreamKey, u64>,
    /// The time before which bytes were read that it delivers, in nanoseconds since 1970.
    pub until: Option<u64>,
    /// When it ends because of `until`.
    pub ends_at: Option<Instant>,
    /// The channels that it delivers.
    pub channels: Channels,
    /// The rings contain all that was cached when the registration was made.
    pub cached: bool,
    /// [`Event::Cached`](super::event::Event) follows the delivery of that.
    pub reports_cached: bool,
    /// The number of streams that have not delivered all of that.
    pub behind: usize,
    /// Set if the engine has announced all streams of this registration.
    pub announced: bool,
    /// The callback that receives the deliveries; without one, [`Tool::recv`](crate::Tool::recv)
    /// returns them.
    pub callback: Option<Callback>,
    pub closing: Closing,
    /// Set if it continues when its jobs have ended.
    persistent: bool,
    jobs: BTreeMap<Nspace, Job>,
}

/// The progress of ending a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// The registration is not being ended.
    No,
    /// The output that has arrived is delivered, and more may be on its way. The answer to the
    /// barrier arrives after every ring that the engine had announced when the end was requested.
    Awaiting,
    /// Everything due has arrived and is being delivered.
    Flushing,
    /// The engine was asked to end the registration.
    Asked,
}

/// The successive jobs of one name.
#[derive(Default)]
struct Job {
    /// The jobs whose end was not delivered yet, by the engine's number of the run.
    runs: BTreeMap<u64, Run>,
    /// The number of the last job whose end was delivered; 0 if there was none.
    delivered: u64,
}

/// The state of one job.
#[derive(Default)]
struct Run {
    /// The number of streams that were announced and have not ended.
    open: usize,
    /// The end of the job, once the engine has reported it.
    end: Option<End>,
}

/// The end of a job as the engine reports it.
#[derive(Clone, Copy)]
struct End {
    exit_code: Option<i32>,
    /// Earlier jobs of the name whose ends are not reported separately.
    skipped: u64,
}

/// The end of a job as it is delivered.
#[derive(Debug)]
pub(crate) struct JobEnd {
    pub run: u64,
    pub exit_code: Option<i32>,
    pub skipped: u64,
}

impl RegistrationState {
    pub(crate) fn new(pull: &Pull, callback: Option<Callback>) -> RegistrationState {
        RegistrationState {
            from: pull.from,
            begins: pull.begins.clone(),
            until: pull.until,
            ends_at: pull.until.and_then(instant),
            channels: pull.channels,
            cached: false,
            reports_cached: pull.reports_cached,
            behind: 0,
            announced: false,
            callback,
            closing: Closing::No,
            persistent: pull.persistent,
            jobs: pull.procs.iter().map(|proc| (proc.nspace.clone(), Job::default())).collect(),
        }
    }

    /// Returns the offset at which a stream begins, if it is known.
    pub(crate) fn begin(&self, stream: &StreamKey) -> Option<u64> {
        let from = if let Position::Offset(offset) = self.from { Some(offset) } else { None };
        self.begins.get(stream).copied().or(from)
    }

    /// Returns a separate report for each stream of `missed` whose end is known, and one for the other streams.
    /// Bytes before the offset at which a stream begins do not count.
    pub(crate) fn divide(&self, missed: Missed) -> Vec<Missed> {
        let (mut rest, mut all) = (missed, Vec::new());
        for (rank, end) in mem::take(&mut rest.ended) {
            (rest.streams, rest.bytes) = (rest.streams.saturating_sub(1), rest.bytes.saturating_sub(end));
            let stream = (Proc::new(rest.nspace.clone(), rank), rest.channel, false);
            // Nothing is known about one that is to begin behind its end.
            let offset = self.begin(&stream).filter(|begin| *begin <= end).unwrap_or_default();
            let (bytes, offset) = (end.saturating_sub(offset), Some(offset));
            all.push(Missed { rank, streams: 1, bytes, offset, ..rest.clone() });
        }
        let is_missed = |one: &Missed| one.streams > 0 && one.offset.is_none_or(|_| one.bytes > 0);
        all.into_iter().chain([rest]).filter(is_missed).collect()
    }

    /// Records that a stream of a job was announced.
    pub(crate) fn opened(&mut self, nspace: &Nspace, run: u64) {
        if let Some(job) = self.jobs.get_mut(nspace) {
            let run = job.runs.entry(run).or_default();
            run.open = run.open.saturating_add(1);
        }
    }

    /// Records that a stream of a job has ended.
    pub(crate) fn closed(&mut self, nspace: &Nspace, run: u64) {
        if let Some(run) = self.jobs.get_mut(nspace).and_then(|job| job.runs.get_mut(&run)) {
            run.open = run.open.saturating_sub(1);
        }
    }

    /// Records the end of a job, as reported by the engine.
    pub(crate) fn ended(&mut self, nspace: &Nspace, run: u64, exit_code: Option<i32>, skipped: u64) {
        if let Some(job) = self.jobs.get_mut(nspace).filter(|job| run > job.delivered) {
            job.runs.entry(run).or_default().end.get_or_insert(End { exit_code, skipped });
        }
    }

    /// Returns the end of the oldest job of this name that was not delivered yet, once all streams
    /// of that job have ended.
    pub(crate) fn take_end(&mut self, nspace: &Nspace) -> Option<JobEnd> {
        let job = self.jobs.get_mut(nspace).filter(|_| self.closing == Closing::No)?;
        loop {
            let (&run, first) = job.runs.first_key_value().filter(|(_, run)| run.open == 0)?;
            let end = first.end;
            // The engine reports the ends of skipped jobs together with a later one.
            if end.is_none() && !job.runs.values().any(|run| run.end.is_some()) {
                return None;
            }
            job.runs.remove(&run);
            // A job without an end of its own delivers none: what is due to the name is still to come.
            if let Some(End { exit_code, skipped }) = end {
                job.delivered = run;
                return Some(JobEnd { run, exit_code, skipped });
            }
        }
    }

    /// Returns whether every announced stream has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.jobs.values().flat_map(|job| job.runs.values()).all(|run| run.open == 0)
    }

    /// Returns whether everything about the registration was delivered.
    pub(crate) fn is_over(&self) -> bool {
        !self.persistent && self.closing == Closing::No && self.jobs.values().all(|job| job.delivered > 0)
    }

    /// Returns whether streams were still to be announced, and are missing if the engine is gone.
    pub(crate) fn misses_streams(&self) -> bool {
        !self.persistent && !self.has_all_streams()
    }

    /// Returns whether no further stream will be announced.
    pub(crate) fn has_all_streams(&self) -> bool {
        !self.persistent && (self.announced || self.is_over())
    }
}

/// Returns the instant of a time in nanoseconds since 1970, at the earliest now; `None` if it is too
/// late to be one.
fn instant(time: u64) -> Option<Instant> {
    let wait = UNIX_EPOCH.checked_add(Duration::from_nanos(time))?.duration_since(SystemTime::now());
    Instant::now().checked_add(wait.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use iof_proto::{Channel, Rank};

    use super::*;

    #[test]
    fn streams_with_known_ends_are_missed_by_themselves_from_where_they_begin() {
        let nspace = Nspace::new("a").unwrap();
        let missed = |rank, streams, bytes, offset| {
            let (nspace, channel, ended) = (nspace.clone(), Channel::Stdout, Vec::new());
            Missed { nspace, rank, channel, streams, bytes, ended, offset }
        };
        let begins = [0, 1].map(|rank| ((Proc::new(nspace.clone(), Rank(rank)), Channel::Stdout, false), 30));
        let pull = Pull::new(vec![Proc::all(nspace.clone())], Channels::STDOUT);
        let continued = RegistrationState::new(&Pull { begins: begins.into(), ..pull.clone() }, None);
        let from = RegistrationState::new(&pull.from(Position::Offset(30)), None);
        let one = |rank, offset, bytes| missed(Rank(rank), 1, bytes, Some(offset));
        let rest = |streams, bytes| missed(Rank::WILDCARD, streams, bytes, None);
        for (registration, ended, others, mut wanted) in [
            (&continued, vec![(0, 100), (1, 30), (2, 9)], 0, vec![one(0, 30, 70), one(2, 0, 9)]),
            (&continued, vec![(1, 30)], 2, Vec::new()),
            (&continued, Vec::new(), 2, Vec::new()),
            // The last one ends before that.
            (&from, vec![(6, 100), (7, 20)], 1, vec![one(6, 30, 70), one(7, 0, 20)]),
        ] {
            let (streams, bytes) = (ended.len() as u64, ended.iter().map(|(_, end)| end).sum::<u64>());
            let ended = ended.into_iter().map(|(rank, end)| (Rank(rank), end)).collect();
            wanted.extend((others > 0).then(|| rest(others, others * 10)));
            let all = rest(streams + others, bytes + others * 10);
            assert_eq!(registration.divide(Missed { ended, ..all }), wanted);
        }
    }

    #[test]
    fn a_registration_is_not_over_before_an_end_of_each_name_was_delivered() {
        let name = Nspace::new("a").unwrap();
        let pull = Pull::new(vec![Proc::new(name.clone(), Rank::WILDCARD)], Channels::STDOUT);
        let mut registration = RegistrationState::new(&pull, None);
        // Job 1 failed to start after its stream was announced, so the engine reports no end of it.
        registration.opened(&name, 1);
        registration.opened(&name, 2);
        registration.ended(&name, 2, Some(3), 0);
        registration.closed(&name, 1);
        assert!(registration.take_end(&name).is_none());
        assert!(!registration.is_over());
        registration.closed(&name, 2);
        assert_eq!(registration.take_end(&name).map(|end| (end.run, end.exit_code)), Some((2, Some(3))));
        assert!(registration.is_over());
    }
}
