//! The bytes that were really written to each stream, whichever way they reach the engine.

use std::collections::BTreeMap;
use std::ops::Range;

use iof_capture::{End, SourceId};
use iof_proto::{Answer, Failure, Nspace, Rank, StreamStats, Value};
use iof_tool::test_utils::StreamInfo;

use super::configurations::Configurations;
use super::exchanges::Exchanges;
use super::logs::Messages;
use super::queries::Queries;
use super::spawns::Spawns;
use super::stdins::Stdins;
use crate::bytes;
use crate::driver::{ConnectionId, Limits};

/// The bytes of a stream.
#[derive(Debug)]
enum Content {
    /// Those that a rank writes to a pipe follow from this number.
    Made(u64),
    /// Those that were handed to the capture, with zeros for those that were lost before, and the
    /// positions of these.
    Recorded(Vec<u8>, Vec<Range<u64>>),
}

/// The facts known of a stream.
#[derive(Debug)]
pub struct StreamRecord {
    content: Content,
    /// The bytes that it has, once it is complete.
    pub produced: Option<u64>,
    /// Set if a reader with the grant to block holds it back from its first byte on.
    pub blocks: bool,
    /// Set if the embedder's own tools receive it.
    pub forwarded: bool,
    /// The number of bytes that are missing after its end, if it is broken.
    pub missing: Option<u64>,
    /// Set if it has ended before its source: it is broken if its pipe had more.
    pub closed: bool,
    /// Set if its rank belongs to a job that failed to start, so that later registrations do not
    /// receive it.
    pub withdrawn: bool,
}

impl StreamRecord {
    /// Returns whether the stream holds output of a remote rank, or what was logged.
    pub fn is_recorded(&self) -> bool {
        matches!(self.content, Content::Recorded(..))
    }

    fn new(content: Content, blocks: bool, forwarded: bool) -> StreamRecord {
        StreamRecord {
            content,
            produced: None,
            blocks,
            forwarded,
            missing: None,
            closed: false,
            withdrawn: false,
        }
    }
}

/// One run of a job's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// Its number.
    pub run: u64,
    /// Set once it has left the engine's tables.
    pub removed: bool,
}

/// All streams and runs.
#[derive(Debug, Default)]
pub struct Truth {
    streams: BTreeMap<StreamInfo, StreamRecord>,
    by_source: BTreeMap<SourceId, StreamInfo>,
    runs: BTreeMap<Nspace, Vec<RunRecord>>,
    exit_codes: BTreeMap<(Nspace, u64), Option<i32>>,
    /// The exit codes of local ranks that have exited, if they are known.
    pub exits: BTreeMap<(u64, Rank), Option<i32>>,
    /// The messages with texts of their own.
    pub messages: Messages,
    /// The queries of tools.
    pub queries: Queries,
    /// The jobs that clients spawn.
    pub spawns: Spawns,
    /// The values that ranks have published.
    pub exchanges: Exchanges,
    /// The configurations of streams.
    pub configurations: Configurations,
    /// The pushes, and the stdin of local ranks.
    pub stdins: Stdins,
    /// The number of remote ranks that the host has signalled for a request of a tool.
    pub signalled: BTreeMap<(ConnectionId, u32), usize>,
    /// Memory or slots have run out for some streams, so that registrations miss these.
    pub may_miss: bool,
    /// The limits of the engine.
    pub limits: Limits,
    /// A tool has reached the limit on its readers of a stream, or on its streams of removed jobs.
    pub may_lack_readers: bool,
    /// The capture has ended: what was handed to it last is lost.
    pub is_cut: bool,
}

impl Truth {
    /// Returns what is known before a run in which streams may be missed from the begin, or memory
    /// may run out.
    pub fn new(may_miss: bool, may_lack_memory: bool, limits: Limits) -> Truth {
        let configurations = Configurations::new(may_lack_memory);
        Truth { may_miss, limits, configurations, ..Truth::default() }
    }

    /// Returns whether unread streams of removed jobs may be dropped.
    pub fn may_shed(&self) -> bool {
        let (limits, default) = (self.limits, Limits::default());
        limits.forgotten_per_tool < default.forgotten_per_tool || limits.forgotten < default.forgotten
    }

    /// Adds a stream whose bytes follow from `number`, or are recorded.
    pub fn add(
        &mut self,
        source: SourceId,
        info: StreamInfo,
        number: Option<u64>,
        (blocks, forwarded): (bool, bool),
    ) {
        let content = number.map_or(Content::Recorded(Vec::new(), Vec::new()), Content::Made);
        self.by_source.insert(source, info.clone());
        let before = self.streams.insert(info, StreamRecord::new(content, blocks, forwarded));
        assert!(before.is_none(), "a stream was created twice");
    }

    /// Records bytes that are handed to the capture, after `lost` others.
    pub fn record(&mut self, source: SourceId, lost: u64, bytes: &[u8]) {
        let Some(info) = self.by_source.get(&source) else { return };
        let record = self.streams.get_mut(info);
        if let Some(StreamRecord { content: Content::Recorded(content, gaps), .. }) = record {
            self.messages.handed(info, content.len() as u64 + lost, bytes);
            let begin = content.len() as u64;
            gaps.extend((lost > 0).then(|| begin..begin + lost));
            content.resize((begin + lost) as usize, 0);
            content.extend_from_slice(bytes);
        }
    }

    /// Records that a stream is broken off, and how many bytes are missing.
    pub fn break_off(&mut self, source: SourceId, missing: u64) {
        let info = self.by_source.get(&source).expect("a known stream");
        self.streams.get_mut(info).expect("a known stream").missing = Some(missing);
    }

    /// Returns the name of a stream.
    pub fn info(&self, source: SourceId) -> Option<&StreamInfo> {
        self.by_source.get(&source)
    }

    /// Returns the streams of what the ranks of a run write, without those of a job that failed to
    /// start.
    pub fn outputs(&self, run: u64) -> impl Iterator<Item = SourceId> {
        let is_output = move |(_, info): &(&SourceId, &StreamInfo)| {
            info.run == run && !info.logged && !self.stream(info).withdrawn
        };
        self.by_source.iter().filter(is_output).map(|(source, _)| *source)
    }

    /// Returns the number of bytes that were handed to the capture for a stream, with those that
    /// were lost before; `None` if it does not exist.
    pub fn handed(&self, info: &StreamInfo) -> Option<u64> {
        match &self.streams.get(info)?.content {
            Content::Recorded(content, _) => Some(content.len() as u64),
            Content::Made(_) => None,
        }
    }

    /// Records the exit code with which tools must be informed of the end of a run.
    pub fn has_exit_code(&mut self, nspace: &Nspace, run: u64, code: Option<i32>) {
        let before = self.exit_codes.insert((nspace.clone(), run), code);
        assert!(before.is_none_or(|before| before == code), "another exit code of {nspace}");
    }

    /// Checks the exit code with which a tool was informed of the end of a run.
    pub fn check_exit_code(&self, nspace: &Nspace, run: u64, code: Option<i32>) {
        let right = self.exit_codes.get(&(nspace.clone(), run));
        assert!(right.is_none_or(|right| *right == code), "exit code {code:?} of {nspace}, not {right:?}");
    }

    /// Checks the answer to a query.
    pub fn check_query(&self, number: u32, result: &Result<Answer, Failure>) {
        self.queries.check(number, result);
        for found in result.iter().flat_map(|answer| &answer.found) {
            if let Value::Streams(rows) = &found.value {
                rows.iter().for_each(|row| self.check_counters(row));
            }
        }
    }

    /// Checks the counters of a stream. A job of the same name that was removed may be meant.
    fn check_counters(&self, row: &StreamStats) {
        let is_meant = |info: &StreamInfo| {
            (&info.source, info.channel, info.logged) == (&row.source, row.channel, row.logged)
        };
        let is_right = |record: &StreamRecord| match &record.content {
            _ if row.complete => record.produced == Some(row.produced),
            Content::Recorded(content, _) => row.produced <= content.len() as u64,
            Content::Made(_) => true,
        };
        let mut meant = self.streams.iter().filter(|(info, _)| is_meant(info));
        assert!(row.produced == 0 || meant.any(|(_, record)| is_right(record)), "the counters {row:?}");
    }

    /// Records that a stream is complete.
    pub fn complete(&mut self, source: SourceId, produced: u64, end: &End) {
        let info = self.by_source.get(&source).expect("a known stream");
        let record = self.streams.get_mut(info).expect("a known stream");
        assert!(record.produced.replace(produced).is_none(), "{info:?} was completed twice");
        record.closed = !matches!(end, End::EndOfFile);
        if let Content::Recorded(content, _) = &record.content {
            let (handed, is_cut) = (content.len() as u64, self.is_cut);
            let right = produced == handed || is_cut && produced < handed;
            assert!(right, "{info:?}: {produced} bytes of {handed} that were delivered");
        }
    }

    /// Returns a stream.
    pub fn stream(&self, info: &StreamInfo) -> &StreamRecord {
        self.streams.get(info).unwrap_or_else(|| panic!("{info:?} does not exist"))
    }

    /// Returns whether `found` are the bytes of a stream from `offset` on.
    pub fn has(&self, info: &StreamInfo, offset: u64, found: &[u8]) -> bool {
        match &self.stream(info).content {
            Content::Made(number) => bytes::are_of(*number, offset, found),
            Content::Recorded(content, gaps) => {
                let end = offset + found.len() as u64;
                let in_gap = gaps.iter().any(|gap| gap.start < end && offset < gap.end);
                !in_gap && content.get(offset as usize..).is_some_and(|c| c.starts_with(found))
            }
        }
    }

    /// Returns the streams of one run.
    pub fn of_run(&self, nspace: &Nspace, run: u64) -> impl Iterator<Item = (&StreamInfo, &StreamRecord)> {
        let of_run =
            move |(info, _): &(&StreamInfo, &StreamRecord)| info.source.nspace == *nspace && info.run == run;
        self.streams.iter().filter(of_run)
    }

    /// Returns the streams of all runs of a name, with those of jobs that failed to start.
    pub fn of_name(&self, nspace: &Nspace) -> impl Iterator<Item = (&StreamInfo, &StreamRecord)> {
        self.streams.iter().filter(move |(info, _)| info.source.nspace == *nspace)
    }

    /// Records that a run begins.
    pub fn begin(&mut self, nspace: &Nspace, run: u64) {
        let runs = self.runs.entry(nspace.clone()).or_default();
        assert!(runs.last().is_none_or(|last| last.run < run && last.removed), "run {run} of {nspace}");
        runs.push(RunRecord { run, removed: false });
    }

    /// Records that the present run of a name was removed.
    pub fn remove(&mut self, nspace: &Nspace) {
        if let Some(run) = self.runs.get_mut(nspace).and_then(|runs| runs.last_mut()) {
            run.removed = true;
        }
    }

    /// Records that the local ranks of a run are removed, because another one can't be started.
    pub fn withdraw_ranks(&mut self, nspace: &Nspace, run: u64) {
        self.configurations.withdraw(nspace, run);
        self.exits.retain(|(of_run, _), _| *of_run != run);
        for (info, record) in &mut self.streams {
            let is_of_run = info.source.nspace == *nspace && info.run == run;
            record.withdrawn |= is_of_run && matches!(record.content, Content::Made(_));
        }
    }

    /// Removes the present run of a name, because its job did not begin after all.
    pub fn withdraw(&mut self, nspace: &Nspace) {
        self.runs.get_mut(nspace).and_then(Vec::pop);
    }

    /// Returns all runs of a name.
    pub fn runs(&self, nspace: &Nspace) -> &[RunRecord] {
        self.runs.get(nspace).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the number of runs that a registration of now can't be part of.
    pub fn past_runs(&self, nspace: &Nspace) -> usize {
        self.runs(nspace).iter().filter(|run| run.removed).count()
    }
}
