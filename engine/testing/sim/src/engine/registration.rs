//! The output that a tool must receive for a registration: every stream, every byte, every end.

use std::collections::BTreeMap;

use iof_proto::{
    Channel, Channels, Directives, EffectiveOptions, Failure, Nspace, Proc, ProcInfo, ProcState, Rank, Status,
};
use iof_shm_ring::{Attached, Start};
use iof_tool::test_utils::StreamInfo;

use super::truth::{StreamRecord, Truth};

/// A pull.
#[derive(Clone, Debug)]
pub struct Pull {
    /// The processes.
    pub procs: Vec<Proc>,
    /// Their channels.
    pub channels: Channels,
    /// The point at which it starts.
    pub start: Start,
    /// Set if it continues with later jobs of the same names.
    pub persistent: bool,
    /// Set if it asks for starts and ends of ranks.
    pub reports_ranks: bool,
    /// Set if its tool is the embedder's own, which receives only what is forwarded.
    pub own: bool,
    /// Its directives.
    pub directives: Directives,
    /// The number of runs of each name that had been removed when it was sent.
    pub past: BTreeMap<Nspace, usize>,
}

/// The part of one stream that was read.
#[derive(Debug)]
pub struct Feed {
    /// Bytes that the source had produced before the first one of the registration.
    pub begin: u64,
    /// Bytes that it had produced before the next one.
    pub next: u64,
    /// Set if no byte may be lost.
    strict: bool,
    /// Set if the stream was held for it, so that no byte may be lost before the first one.
    from_first: bool,
    /// Bytes delivered and lost.
    pub delivered: u64,
    pub lost: u64,
    /// Set if it was read to its end.
    pub ended: bool,
}

/// The progress of a registration towards its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It is not being ended.
    No,
    /// The rest is read.
    Flushing,
    /// The engine was asked to end it.
    Asked,
}

/// A registration.
#[derive(Debug)]
pub struct Registration {
    /// The pull that requested it.
    pub pull: Pull,
    /// Its progress towards its end.
    pub closing: Closing,
    announced: bool,
    /// The runs of each name whose ends were reported.
    ends: BTreeMap<Nspace, Vec<u64>>,
    /// The last run of each name whose end was delivered.
    delivered: BTreeMap<Nspace, u64>,
    /// The runs and ranks whose starts were delivered, and whether their ends were.
    ranks: BTreeMap<(u64, Rank), bool>,
    /// The streams and bytes that it misses.
    missed: BTreeMap<(Nspace, Channel), (u64, u64)>,
    /// Its streams.
    pub feeds: BTreeMap<StreamInfo, Feed>,
    /// The number of runs of each name that had been removed when it was granted.
    past: BTreeMap<Nspace, usize>,
}

impl Pull {
    /// Returns the named jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &Nspace> {
        self.past.keys()
    }

    /// Returns whether it names a process, or the job of one without a rank.
    pub fn names(&self, source: &Proc) -> bool {
        let is_named = |proc: &Proc| {
            proc.nspace == source.nspace && (proc.rank == source.rank || proc.rank == Rank::WILDCARD)
        };
        self.procs.iter().any(is_named)
    }

    /// Checks that the pull may be refused.
    pub fn check_refusal(&self, failure: &Failure, truth: &Truth) {
        let is_right = match failure.status {
            // By the host.
            Status::ERR_NO_PERMISSIONS => !self.own,
            Status::ERR_NOT_FOUND if failure.reason.ends_with("no longer kept") => {
                !self.persistent && self.jobs().any(|nspace| truth.spawns.has_removed(nspace))
            }
            // A rank.
            Status::ERR_NOT_FOUND => self.procs.iter().any(|proc| proc.rank != Rank::WILDCARD),
            // Slots.
            Status::ERR_OUT_OF_RESOURCE => truth.may_miss,
            _ => false,
        };
        assert!(is_right, "{self:?} was refused: {failure}");
    }

    fn covers(&self, info: &StreamInfo) -> bool {
        self.channels.contains(Channels::from(info.channel)) && self.names(&info.source)
    }
}

impl Registration {
    /// Returns a registration that was granted just now.
    pub fn new(pull: Pull, truth: &Truth) -> Registration {
        let past = pull.jobs().map(|nspace| (nspace.clone(), truth.past_runs(nspace))).collect();
        Registration {
            pull,
            closing: Closing::No,
            announced: false,
            ends: BTreeMap::new(),
            delivered: BTreeMap::new(),
            ranks: BTreeMap::new(),
            missed: BTreeMap::new(),
            feeds: BTreeMap::new(),
            past,
        }
    }

    /// Adds a stream, which the tool may hold back and which was held for it (`is_first`).
    pub fn opened(
        &mut self,
        info: &StreamInfo,
        ring: &Attached,
        truth: &Truth,
        (may_block, is_first): (bool, bool),
    ) {
        assert!(self.pull.covers(info), "the ring of {info:?} was not asked for");
        let is_forwarded = truth.stream(info).forwarded || !self.pull.own;
        assert!(is_forwarded, "the embedder's own tool receives {info:?}");
        let late = self.announced && !self.pull.persistent && !info.logged;
        assert!(!late, "the ring of {info:?} follows the announcement that none does");
        let ended = self.ends.get(&info.source.nspace).is_some_and(|ends| ends.contains(&info.run));
        assert!(!ended, "the ring of {info:?} follows the end of its job");
        let begin = if self.pull.start == Start::Oldest { 0 } else { ring.start + ring.dropped };
        let whole = ring.start == 0 && ring.dropped == 0;
        let strict = may_block && whole && self.pull.directives.drop.is_none() && truth.stream(info).blocks;
        // What was delivered with a gap has one for its first reader, too.
        let from_first = is_first && self.pull.start == Start::Oldest && !truth.stream(info).is_recorded();
        assert!(
            !from_first || whole || !truth.stream(info).blocks,
            "{info:?} has lost bytes while it was held"
        );
        let feed = Feed { begin, next: begin, strict, from_first, delivered: 0, lost: 0, ended: false };
        assert!(self.feeds.insert(info.clone(), feed).is_none(), "{info:?} was announced twice");
    }

    /// Checks that a stream was announced to which a message was logged, unless it may be missed or is
    /// part of a later run.
    pub fn check_logged(&self, info: &StreamInfo, truth: &Truth) {
        let receives = self.pull.covers(info) && (truth.stream(info).forwarded || !self.pull.own);
        let is_over = !self.pull.persistent && self.ends.contains_key(&info.source.nspace);
        let may_miss = truth.may_miss || truth.may_lack_readers || truth.may_shed();
        let is_announced = self.feeds.contains_key(info) || may_miss || is_over;
        assert!(!receives || is_announced, "the answer to a message precedes the ring of {info:?}");
    }

    /// Notes that all sources are announced.
    pub fn announced(&mut self) {
        assert!(!std::mem::replace(&mut self.announced, true), "all sources were announced twice");
    }

    /// Adds up streams that it misses.
    pub fn missed(&mut self, nspace: Nspace, channel: Channel, streams: u64, bytes: u64, truth: &Truth) {
        let may_miss = truth.may_miss || truth.may_lack_readers || truth.may_shed();
        assert!(may_miss || truth.is_cut, "{streams} streams of {nspace} are missed for no reason");
        let sum = self.missed.entry((nspace, channel)).or_default();
        *sum = (sum.0 + streams, sum.1 + bytes);
    }

    /// Notes the end of a job.
    pub fn job_ended(&mut self, nspace: &Nspace, run: u64, skipped: u64, truth: &Truth) {
        let runs = truth.runs(nspace);
        let index = runs.iter().position(|record| record.run == run).expect("a run that exists");
        let ends = self.ends.entry(nspace.clone()).or_default();
        let first = index.checked_sub(skipped as usize).expect("that many runs before");
        match ends.last() {
            Some(last) => {
                assert!(self.pull.persistent, "{nspace} has ended twice");
                let before = runs.iter().position(|record| record.run == *last);
                assert_eq!(before.map(|before| before + 1), Some(first), "ends of {nspace}");
            }
            None => {
                let (past, certain) = (self.pull.past[nspace], self.past[nspace]);
                assert!((past..=certain).contains(&first), "the first end of {nspace}: {first}");
            }
        }
        ends.extend(runs[first..=index].iter().map(|record| record.run));
        let known = truth.exits.range((run, Rank(0))..=(run, Rank(u32::MAX)));
        for (of_run, _) in known.filter(|_| self.pull.reports_ranks && !truth.is_cut) {
            let is_named = self.pull.names(&Proc::new(nspace.clone(), of_run.1));
            assert_eq!(self.ranks.get(of_run), is_named.then_some(&true), "rank {} of {nspace}", of_run.1);
        }
        // The rings that arrive for a registration that is ending are not used.
        if self.is_open() {
            self.check_streams(nspace, truth);
        }
    }

    /// Notes that a rank has started or ended: once each, in this order and before the end of its job.
    pub fn rank(&mut self, run: u64, info: &ProcInfo, truth: &Truth) {
        let ProcInfo { proc, state, exit_code, used, .. } = info;
        assert!(self.pull.reports_ranks && self.pull.names(proc), "{info:?} was not asked for");
        let is_over = self.ends.get(&proc.nspace).is_some_and(|ends| ends.contains(&run));
        assert!(!is_over, "{info:?} follows the end of its job");
        let has_ended = *state != ProcState::Running;
        let before = self.ranks.insert((run, proc.rank), has_ended);
        assert_eq!(before, has_ended.then_some(false), "{info:?}");
        let exit = truth.exits.get(&(run, proc.rank)).copied().flatten().filter(|_| has_ended);
        assert_eq!(*exit_code, exit, "{info:?}");
        assert_eq!(used.map(|used| used.peak_memory), exit.map(|_| proc.rank.0.into()), "{info:?}");
    }

    /// Returns whether nothing ends it.
    pub fn is_open(&self) -> bool {
        self.closing == Closing::No
    }

    /// Notes that the end of a run is delivered: everything of it was read, and it is delivered
    /// once.
    pub fn end_delivered(&mut self, nspace: &Nspace, run: u64) {
        assert_eq!(self.closing, Closing::No, "the end of {nspace} after the end of the registration");
        let reported = self.ends.get(nspace).is_some_and(|runs| runs.contains(&run));
        assert!(reported, "the end of {nspace}, which the engine has not reported");
        let before = self.delivered.insert(nspace.clone(), run);
        assert!(before.is_none_or(|before| before < run), "the end of {nspace} twice");
        let of_run = |info: &StreamInfo| info.source.nspace == *nspace && info.run <= run;
        let are_read = self.feeds.iter().filter(|(info, _)| of_run(info)).all(|(_, feed)| feed.ended);
        assert!(are_read, "the end of {nspace} precedes that of a stream");
    }

    /// Checks that all streams of ended runs were announced or are missed.
    fn check_streams(&self, nspace: &Nspace, truth: &Truth) {
        for channel in self.pull.channels.outputs() {
            let (mut expected, mut found) = (0, 0);
            for run in self.ends.get(nspace).into_iter().flatten() {
                let streams = truth.of_run(nspace, *run).filter(|(info, record)| {
                    let received = record.forwarded || !self.pull.own;
                    info.channel == channel && self.pull.covers(info) && received && !record.withdrawn
                });
                streams.for_each(|(info, _)| {
                    expected += 1;
                    found += u64::from(self.feeds.contains_key(info));
                });
            }
            let missed = self.missed.get(&(nspace.clone(), channel)).map_or(0, |sum| sum.0);
            assert!(found + missed >= expected, "{nspace} {channel}: {found} of {expected} streams");
            self.check_missed(nspace, channel, truth);
        }
    }

    /// Checks how much it misses: all of the streams of ended runs that it has not received, and
    /// nothing but such streams. Those of later runs, and of jobs that failed to start, may be among
    /// them.
    fn check_missed(&self, nspace: &Nspace, channel: Channel, truth: &Truth) {
        let is_missing = |info: &StreamInfo| {
            info.channel == channel && self.pull.covers(info) && !self.feeds.contains_key(info)
        };
        let (mut least, mut most) = ((0, 0), (0, 0));
        for (info, record) in truth.of_name(nspace).filter(|(info, _)| is_missing(info)) {
            let ended = self.ends.get(nspace).is_some_and(|ends| ends.contains(&info.run));
            let bytes = record.produced.unwrap_or(0);
            most = (most.0 + 1, most.1 + bytes);
            let is_certain = ended && !record.withdrawn && (record.forwarded || !self.pull.own);
            // A registration without the backlog misses only what follows it.
            let certain = if self.pull.start == Start::Oldest { bytes } else { 0 };
            least = if is_certain { (least.0 + 1, least.1 + certain) } else { least };
        }
        let (streams, bytes) = self.missed.get(&(nspace.clone(), channel)).copied().unwrap_or_default();
        let is_right = (least.0..=most.0).contains(&streams) && (least.1..=most.1).contains(&bytes);
        assert!(is_right, "{streams} streams of {nspace} with {bytes} bytes, not {least:?} to {most:?}");
    }

    /// Returns the effective options with which it reads.
    pub fn options(&self) -> EffectiveOptions {
        let buffering_size = self.pull.directives.buffering_size.unwrap_or(0).into();
        EffectiveOptions { buffering_size, buffering_time: None }
    }

    /// Returns whether nothing can follow: each name's first job has ended, and everything is read.
    pub fn is_over(&self) -> bool {
        let ended = self.pull.jobs().all(|nspace| self.ends.contains_key(nspace));
        !self.pull.persistent && ended && self.is_drained()
    }

    /// Returns whether its streams were read to their ends.
    pub fn is_drained(&self) -> bool {
        self.feeds.values().all(|feed| feed.ended)
    }

    /// Returns whether all ended jobs of its names were reported.
    pub fn has_all_ends(&self, truth: &Truth) -> bool {
        self.pull.jobs().all(|nspace| {
            let runs = truth.runs(nspace);
            match self.ends.get(nspace).and_then(|ends| ends.last()) {
                Some(last) => !self.pull.persistent || runs.last().is_some_and(|run| run.run == *last),
                None => runs.len() <= self.past[nspace],
            }
        })
    }
}

impl Feed {
    /// Records bytes.
    pub fn deliver(&mut self, bytes: u64) {
        self.delivered += bytes;
        self.next += bytes;
    }

    /// Records a gap.
    pub fn lose(&mut self, info: &StreamInfo, offset: u64, lost: u64) {
        assert_eq!(offset, self.next, "a gap of {info:?} is elsewhere");
        assert!(lost > 0, "an empty gap of {info:?}");
        assert!(!self.strict, "a reader that holds {info:?} back lost {lost} bytes at {offset}");
        assert!(offset > 0 || !self.from_first, "the first reader of {info:?} lost its first bytes");
        self.lost += lost;
        self.next += lost;
    }

    /// Notes the end of a stream, with `missing` bytes after it if it is broken.
    pub fn complete(&mut self, info: &StreamInfo, produced: u64, missing: Option<u64>, truth: &Truth) {
        self.ended = true;
        let StreamRecord { missing: expected, closed, .. } = *truth.stream(info);
        let is_right = missing == expected || closed && missing.is_some() || truth.is_cut;
        assert!(is_right, "{missing:?} bytes of {info:?} are missing, not {expected:?}");
        assert_eq!(produced, self.next, "{info:?} ended too early");
        assert_eq!(Some(produced), truth.stream(info).produced, "{info:?} has another end");
        assert_eq!(self.begin + self.delivered + self.lost, produced, "{info:?}");
    }
}
