//! The bytes that ranks must read from their stdin, those that the host must receive for remote
//! ranks, and the content that the report of each push must have.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use iof_capture::{PushEnd, PushId, TargetId};
use iof_proto::{
    Failure, PartialCause, PartialDelivery, Proc, PushReport, Quota, QuotaScope, Rank, SlowTargets, Status,
};

use crate::bytes;
use crate::driver::{ConnectionId, Limits};

/// The bytes of pushes follow from numbers that no stream has.
const FIRST_PUSH: u64 = 1 << 40;

/// Returns whether something was refused because the host owes too many answers to a user.
pub fn names_owed_bytes(limits: &Limits, reason: &str) -> bool {
    let limit = limits.quotas.get(Quota::OwedBytes, QuotaScope::User);
    let counted = format!(" of at most {limit} bytes of requests that the host has not answered (");
    reason.starts_with("user ") && reason.contains(&counted)
}

/// A request of an honest tool to push.
#[derive(Clone, Debug)]
pub struct PushRequest {
    /// The bytes follow from this number.
    pub content: u64,
    pub targets: Vec<Proc>,
    /// Set if the tool is the embedder's own.
    pub own: bool,
    /// Set if targets that cannot be reached are skipped.
    pub partial: bool,
    /// Set if the targets' stdin ends with the push.
    pub completes: bool,
}

/// The end of a push at a local rank: the bytes that it has taken, and why it took no more.
type LocalEnd = (u64, Option<PartialCause>);

/// A push.
#[derive(Debug)]
pub struct PushRecord {
    /// The tool with its number for the push.
    pub tool: Option<(ConnectionId, u32)>,
    /// The number from which the bytes follow. The bytes of hostile tools are 0.
    content: Option<u64>,
    /// Set if the targets' stdin ends with it.
    pub closes: bool,
    /// The local targets.
    pub local: BTreeMap<TargetId, Option<LocalEnd>>,
    /// The local targets at which it has ended, as far as the engine knows.
    known_ends: BTreeSet<TargetId>,
    /// The positions at which slow local targets were cut off.
    cut_offs: Vec<u64>,
    /// The remote targets.
    pub elsewhere: Vec<Proc>,
    remote: Remote,
    /// The report, once the push has ended.
    report: Option<PushReport>,
}

/// The part of a push that the host has received.
#[derive(Debug, Default)]
struct Remote {
    source: Option<Proc>,
    /// The number of bytes that it has taken.
    taken: u64,
    /// The position of the last piece.
    position: u64,
    /// The length of the piece that it has not answered.
    unanswered: Option<u64>,
    /// Set if it has received the end.
    has_end: bool,
    /// Why it takes no more.
    refused: Option<PartialCause>,
    /// Set if a later push to the same ranks has begun.
    is_over: bool,
}

/// The stdin of a local rank.
#[derive(Debug)]
pub struct Stdin {
    pub proc: Proc,
    /// The pushes in the order of their turns.
    turns: VecDeque<PushId>,
    /// The bytes of the first of them that the rank has read.
    read: u64,
    /// Set if the engine has asked to close it.
    pub is_stopped: bool,
    /// Set if the capture has closed it, and the engine knows that.
    pub is_shut: bool,
    pub is_known_shut: bool,
}

/// Bytes of a push that the host receives, and its answers.
#[derive(Debug)]
pub enum HostStdin {
    Piece { push: PushId, source: Proc, targets: Vec<Proc>, position: u64, bytes: Vec<u8> },
    Answer { push: PushId, answer: Result<(), Failure> },
}

/// All pushes, and the stdin of all local ranks.
#[derive(Debug, Default)]
pub struct Stdins {
    requests: u64,
    /// The requests of honest tools that were not answered.
    asked: BTreeMap<(ConnectionId, u32), PushRequest>,
    pub pushes: BTreeMap<PushId, PushRecord>,
    by_tool: BTreeMap<(ConnectionId, u32), PushId>,
    /// The positions at which honest tools have asked to cut off slow targets of a push.
    cut_offs: BTreeMap<(ConnectionId, u32), Vec<u64>>,
    pub stdins: BTreeMap<TargetId, Stdin>,
}

/// Returns whether pushes to these remote targets share one.
fn share_target(some: &[Proc], others: &[Proc]) -> bool {
    let meets = |one: &Proc, other: &Proc| {
        one.nspace == other.nspace
            && (one.rank == other.rank || one.rank == Rank::WILDCARD || other.rank == Rank::WILDCARD)
    };
    some.iter().any(|one| others.iter().any(|other| meets(one, other)))
}

/// Fills `buffer` with the bytes of a push from `offset` on.
pub fn fill(content: u64, offset: u64, buffer: &mut [u8]) {
    bytes::fill(FIRST_PUSH + content, offset, buffer);
}

impl PushRecord {
    fn new() -> PushRecord {
        PushRecord {
            tool: None,
            content: None,
            closes: false,
            local: BTreeMap::new(),
            known_ends: BTreeSet::new(),
            cut_offs: Vec::new(),
            elsewhere: Vec::new(),
            remote: Remote::default(),
            report: None,
        }
    }

    fn has(&self, offset: u64, found: &[u8]) -> bool {
        match self.content {
            Some(content) => bytes::are_of(FIRST_PUSH + content, offset, found),
            None => found.iter().all(|byte| *byte == 0),
        }
    }

    /// Returns whether the stdin of a local target ends with it.
    pub fn ends(&self, target: TargetId) -> bool {
        self.closes && self.local.contains_key(&target)
    }

    fn check_piece(&mut self, source: Proc, targets: &[Proc], position: u64, found: &[u8]) {
        assert_eq!(targets, self.elsewhere, "the remote targets of a push");
        let Remote { taken, unanswered, has_end, refused, is_over, .. } = &self.remote;
        assert!(unanswered.is_none(), "the host has not answered the piece before");
        assert!(!has_end && refused.is_none() && !is_over, "a piece after the end of a push");
        assert_eq!(position, *taken, "the position of a piece");
        assert!(self.has(position, found), "wrong bytes for the host at position {position}");
        assert!(self.closes || !found.is_empty(), "the end of a push that ends no stdin");
        let before = self.remote.source.get_or_insert(source.clone());
        assert_eq!(*before, source, "the tool of a push");
        self.remote.has_end = found.is_empty();
        self.remote.position = position;
        self.remote.unanswered = Some(found.len() as u64);
    }

    fn note_answer(&mut self, answer: Result<(), Failure>) {
        let remote = &mut self.remote;
        let Some(bytes) = remote.unanswered.take().filter(|_| self.report.is_none()) else { return };
        match answer {
            Ok(()) => remote.taken += bytes,
            Err(failure) if failure.status == Status::ERR_IOF_XOFF => remote.taken += bytes,
            Err(failure) if failure.status == Status::ERR_IOF_COMPLETE => {
                remote.refused = Some(PartialCause::Closed).filter(|_| !remote.has_end);
            }
            Err(failure) => remote.refused = Some(PartialCause::Refused(failure)),
        }
    }

    /// Checks what was delivered to a remote target, which is listed in the report as `found`.
    fn check_remote(
        &self,
        found: Option<&PartialDelivery>,
        report: &PushReport,
        (asked, limits): (&[u64], &Limits),
    ) {
        let Remote { taken, position, has_end, refused, .. } = &self.remote;
        match (found, refused) {
            (None, _) => {
                assert!(refused.is_none(), "{report:?} although the host has refused bytes");
                assert_eq!(*taken, report.bytes, "the host has not taken all bytes");
                assert_eq!(*has_end, self.closes, "whether the host has received the end");
            }
            (Some(partial), Some(cause)) if partial.cause != PartialCause::CutOff => {
                assert_eq!((partial.delivered, &partial.cause), (*taken, cause), "{partial:?}");
            }
            (Some(PartialDelivery { delivered, cause: PartialCause::Failed(reason), .. }), None) => {
                // The host was not asked.
                assert!(names_owed_bytes(limits, reason), "{reason}");
                assert_eq!(delivered, taken, "{report:?}");
            }
            (Some(partial), _) => {
                // The host may have answered the last piece after the push was cut off.
                let delivered = partial.delivered;
                let is_cut_off = partial.cause == PartialCause::CutOff;
                let is_asked = self.content.is_none() || asked.iter().any(|asked| *asked >= delivered);
                let is_right = [taken, position].contains(&&delivered);
                assert!(is_cut_off && is_right && is_asked, "{partial:?} after {taken} bytes");
            }
        }
    }
}

impl Stdins {
    /// Returns what the bytes of the next push follow from.
    pub fn next_content(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Notes a request of an honest tool.
    pub fn note_request(&mut self, request: (ConnectionId, u32), asked: PushRequest) {
        self.asked.insert(request, asked);
    }

    /// Removes and returns the request of an honest tool.
    pub fn take_request(&mut self, request: (ConnectionId, u32)) -> Option<PushRequest> {
        self.asked.remove(&request)
    }

    /// Notes that an honest tool asks to cut off targets that have taken at most `position` bytes.
    pub fn note_cut_off(&mut self, push: (ConnectionId, u32), position: u64) {
        self.cut_offs.entry(push).or_default().push(position);
    }

    /// Adds the stdin of a local rank that the capture knows.
    pub fn add(&mut self, target: TargetId, proc: Proc) {
        let (turns, read) = (VecDeque::new(), 0);
        let stdin = Stdin { proc, turns, read, is_stopped: false, is_shut: false, is_known_shut: false };
        assert!(self.stdins.insert(target, stdin).is_none(), "a stdin was added twice");
    }

    /// Returns the position at which a push has ended at a target, once it has.
    fn end(&self, push: PushId, target: TargetId) -> Option<&LocalEnd> {
        self.pushes.get(&push)?.local.get(&target)?.as_ref()
    }

    /// Notes that a push is queued at local ranks.
    pub fn begun(&mut self, push: PushId, targets: &[TargetId], closes: bool) {
        for target in targets {
            let is_ended = self.pushes.values().any(|push| push.ends(*target));
            assert!(!is_ended, "{push:?} follows the end of a rank's stdin");
            if let Some(stdin) = self.stdins.get_mut(target) {
                stdin.turns.push_back(push);
            }
        }
        let local = targets.iter().map(|target| (*target, None)).collect();
        let record = PushRecord { local, closes, ..PushRecord::new() };
        assert!(self.pushes.insert(push, record).is_none(), "{push:?} has begun twice");
    }

    /// Notes what is known of a push from the answer to its request. `asked` is `None` for that of a
    /// hostile tool.
    pub fn granted(&mut self, push: PushId, tool: (ConnectionId, u32), asked: Option<&PushRequest>) {
        self.by_tool.insert(tool, push);
        let record = self.pushes.entry(push).or_insert_with(PushRecord::new);
        record.tool = Some(tool);
        if let Some(asked) = asked {
            record.content = Some(asked.content);
            record.closes |= asked.completes && record.local.is_empty();
            assert_eq!(record.closes, asked.completes, "whether {push:?} ends stdin");
        }
    }

    /// Notes that the engine cuts off local targets of a push.
    pub fn cut_off(&mut self, push: PushId, position: u64) {
        let Some(record) = self.pushes.get_mut(&push) else { return };
        record.cut_offs.push(position);
        let asked = record.tool.and_then(|tool| self.cut_offs.get(&tool));
        let is_asked = record.content.is_none() || asked.is_some_and(|asked| asked.contains(&position));
        assert!(is_asked, "targets of {push:?} are cut off at {position} unasked");
    }

    /// Notes the end of a push at a local target.
    pub fn fed(&mut self, push: PushId, target: TargetId, delivered: u64, end: &PushEnd) {
        let record = self.pushes.get_mut(&push).expect("a push that has begun");
        let cause = match end {
            PushEnd::Complete => None,
            PushEnd::Closed => Some(PartialCause::Closed),
            PushEnd::CutOff => {
                // A write under way may have added bytes.
                assert!(!record.cut_offs.is_empty(), "{push:?} was cut off unasked");
                Some(PartialCause::CutOff)
            }
            PushEnd::Stopped => Some(PartialCause::Stopped),
            PushEnd::Error(error) => Some(PartialCause::Failed(error.to_string())),
        };
        let before = record.local.get_mut(&target).expect("a target of the push").replace((delivered, cause));
        assert!(before.is_none(), "{push:?} has ended twice at {target:?}");
    }

    /// Returns whether what has ended at a target explains that its stdin is closed.
    pub fn explains_shut(&self, target: TargetId) -> bool {
        let explains = |push: &PushRecord| match push.local.get(&target) {
            Some(Some((_, None))) => push.closes,
            Some(Some((_, Some(cause)))) => matches!(cause, PartialCause::CutOff | PartialCause::Failed(_)),
            _ => false,
        };
        self.pushes.values().any(explains)
    }

    /// Notes that the engine learns of the end of a push at a local target.
    pub fn note_known_end(&mut self, push: PushId, target: TargetId) {
        self.pushes.get_mut(&push).expect("a push that has begun").known_ends.insert(target);
    }

    /// Returns the pushes that have not ended at a target, as far as the engine knows, in the order of
    /// their turns.
    pub fn waiting(&self, target: TargetId) -> impl Iterator<Item = &PushRecord> {
        let waits =
            move |push: &&PushRecord| push.local.contains_key(&target) && !push.known_ends.contains(&target);
        self.pushes.values().filter(waits)
    }

    /// Returns whether a push before `next` ends the stdin of a target.
    pub fn will_end(&self, target: TargetId, next: Option<PushId>) -> bool {
        let is_earlier = |push: &PushId| next.is_none_or(|next| *push < next);
        let mut earlier = self.pushes.iter().take_while(|(push, _)| is_earlier(push));
        earlier.any(|(_, record)| record.ends(target))
    }

    /// Returns whether slow targets of a push were to be cut off.
    pub fn was_cut_off(push: &PushRecord) -> bool {
        !push.cut_offs.is_empty()
    }

    /// Checks the bytes that a rank has read from its stdin. With `is_empty`, no more were there.
    pub fn check_read(&mut self, target: TargetId, mut found: &[u8], is_empty: bool) {
        loop {
            let Stdin { turns, read, proc, .. } = &self.stdins[&target];
            let Some(turn) = turns.front().copied() else {
                assert!(found.is_empty(), "{proc} has read {} bytes of no push", found.len());
                break;
            };
            let (read, end) = (*read, self.end(turn, target).map(|(delivered, _)| *delivered));
            let left = end.map_or(u64::MAX, |end| end.checked_sub(read).expect("no more than was delivered"));
            let (now, later) = found.split_at(found.len().min(left.try_into().unwrap_or(usize::MAX)));
            assert!(self.pushes[&turn].has(read, now), "{proc} has read wrong bytes of {turn:?} at {read}");
            found = later;
            let stdin = self.stdins.get_mut(&target).expect("a known stdin");
            stdin.read += now.len() as u64;
            if now.len() as u64 == left {
                stdin.turns.pop_front();
                stdin.read = 0;
            } else if found.is_empty() {
                assert!(end.is_none() || !is_empty, "{} lacks bytes of {turn:?}", stdin.proc);
                break;
            }
        }
    }

    /// Checks whether the stdin of a rank that reads nothing more has ended.
    pub fn check_end(&self, target: TargetId, has_ended: bool) {
        let Stdin { is_shut, proc, .. } = &self.stdins[&target];
        assert_eq!(*is_shut, has_ended, "whether the stdin of {proc} has ended");
    }

    /// Checks what the host receives, and notes its answers.
    pub fn note_host(&mut self, event: HostStdin) {
        match event {
            HostStdin::Piece { push, source, targets, position, bytes } => {
                let record = self.pushes.entry(push).or_insert_with(PushRecord::new);
                if record.content.is_none() && record.remote.source.is_none() {
                    // The request of a hostile tool was not checked.
                    record.elsewhere = targets.clone();
                    record.closes |= bytes.is_empty();
                }
                record.check_piece(source, &targets, position, &bytes);
                for (_, earlier) in self.pushes.range_mut(..push) {
                    earlier.remote.is_over |= share_target(&earlier.elsewhere, &targets);
                }
            }
            HostStdin::Answer { push, answer } => {
                self.pushes.get_mut(&push).expect("a push of the host").note_answer(answer);
            }
        }
    }

    /// Returns whether a later push was to be cut off that waits at the host for `push`, directly or
    /// because another waits for it. The targets of a hostile tool's push may be unknown.
    pub fn is_cut_off_behind(&self, push: PushId) -> bool {
        let Some(record) = self.pushes.get(&push) else { return false };
        let mut before = vec![&record.elsewhere];
        self.pushes.range(push..).skip(1).any(|(_, later)| {
            let waits = before.iter().any(|targets| share_target(targets, &later.elsewhere));
            before.extend(waits.then_some(&later.elsewhere));
            let was_cut_off = later.tool.is_some_and(|tool| self.cut_offs.contains_key(&tool));
            later.content.is_none() || waits && was_cut_off
        })
    }

    /// Checks the report of a push that has ended. `may_be_lost` specifies that the capture may have
    /// ended before, `may_be_cut_off` that remote targets may be cut off for a later push, and
    /// `may_be_closed` that a rank may have exited.
    pub fn check_report(
        &mut self,
        push: PushId,
        report: PushReport,
        (may_be_lost, may_be_cut_off, limits): (bool, bool, &Limits),
        may_be_closed: impl Fn(TargetId) -> bool,
    ) {
        let record = self.pushes.entry(push).or_insert_with(PushRecord::new);
        let mut asked = record.tool.and_then(|tool| self.cut_offs.get(&tool)).cloned().unwrap_or_default();
        asked.extend(may_be_cut_off.then_some(u64::MAX));
        let mut partial: BTreeMap<&Proc, &PartialDelivery> = BTreeMap::new();
        for found in &report.partial {
            assert!(partial.insert(&found.target, found).is_none(), "{:?} is reported twice", found.target);
        }
        let mut complete = 0;
        for (target, end) in &record.local {
            let Some(stdin) = self.stdins.get(target) else { continue };
            let found = partial.remove(&stdin.proc);
            let is_right = match (found, end) {
                (None, Some((delivered, None))) => {
                    complete += 1;
                    *delivered == report.bytes
                }
                (Some(found), Some((delivered, Some(cause)))) => {
                    let is_cause = found.cause == *cause
                        || *cause == PartialCause::Stopped
                            && found.cause == PartialCause::Closed
                            && may_be_closed(*target);
                    found.delivered == *delivered && is_cause
                }
                _ => false,
            };
            let is_lost = || may_be_lost && found.is_some_and(|found| found.cause == PartialCause::Stopped);
            assert!(is_right || is_lost(), "{found:?} of {report:?} at {}, not {end:?}", stdin.proc);
        }
        for target in &record.elsewhere {
            let found = partial.remove(target);
            complete += u64::from(found.is_none());
            record.check_remote(found, &report, (&asked, limits));
        }
        if record.content.is_some() {
            assert!(partial.is_empty(), "reported of others: {partial:?}");
            assert_eq!(report.complete, complete, "the targets that have all bytes");
        }
        self.note_over(push, report);
    }

    /// Notes that a push has ended.
    pub fn note_over(&mut self, push: PushId, report: PushReport) {
        let record = self.pushes.entry(push).or_insert_with(PushRecord::new);
        assert!(record.report.replace(report).is_none(), "{push:?} has ended twice");
    }

    /// Checks the report that a tool receives.
    pub fn check_received(&self, push: (ConnectionId, u32), report: &PushReport) {
        let record = self.by_tool.get(&push).and_then(|push| self.pushes.get(push));
        assert_eq!(record.and_then(|push| push.report.as_ref()), Some(report), "the report of a push");
    }

    /// Checks the slow targets of a push.
    pub fn check_slow(&self, push: (ConnectionId, u32), slow: &SlowTargets) {
        let record = self.by_tool.get(&push).and_then(|push| self.pushes.get(push)).expect("a known push");
        let is_local = |proc: &Proc| record.local.keys().any(|target| self.stdins[target].proc == *proc);
        for found in &slow.targets {
            let is_target = is_local(&found.target) || record.elsewhere.contains(&found.target);
            assert!(is_target, "{found:?} is no target of the push");
        }
    }
}
