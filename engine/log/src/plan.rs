//! Which channels are tried when, and the outcome of a request (RFC0032). Pure data: the caller
//! runs the steps and reports their results.

use iof_proto::log::key;
use iof_proto::{Failure, Log, LogEntry, LogOutcome, LogValue, Status};

use crate::channel::ChannelKind;
use crate::order::Order;

/// Resolves the entries of a request to entries with one concrete channel each.
///
/// A message without a channel goes to the channels of `order`. Optional channels of the order are
/// dropped if `available` returns false for their key. The channel `Syslog` becomes the global
/// syslog if that is available, else the local one. A message that two entries send to one channel
/// is logged there once.
///
/// # Errors
/// - `ERR_BAD_PARAM`: the request has no message, a message contains a NUL byte, or a value does
///   not fit its channel.
/// - `ERR_NOT_AVAILABLE`: no channel is left.
pub fn resolve_channels(
    log: &Log,
    order: &Order,
    available: impl Fn(&str) -> bool,
) -> Result<Vec<LogEntry>, Failure> {
    let bad = |reason: String| Failure { status: Status::ERR_BAD_PARAM, reason };
    if log.data.is_empty() {
        return Err(bad("empty log request: add a message".into()));
    }
    let mut entries = Vec::new();
    let (local, global) = (key::PMIX_LOG_LOCAL_SYSLOG, key::PMIX_LOG_GLOBAL_SYSLOG);
    let syslog = if available(global) { global } else { local };
    for entry in &log.data {
        let channel = &entry.channel;
        let Some(text) = entry.text() else {
            return Err(bad(format!("missing message for {channel}: add one")));
        };
        if let Some(offset) = text.find('\0') {
            return Err(bad(format!(
                "the message for {channel} contains a NUL byte at offset {offset}, where PMIx would end it: remove it"
            )));
        }
        let value_fits = matches!(entry.value, LogValue::Email(_))
            == (ChannelKind::from_key(channel) == ChannelKind::Email);
        match ChannelKind::from_key(channel) {
            ChannelKind::Host => entries.push(entry.clone()),
            _ if !value_fits => return Err(bad(format!("value of the wrong type for {channel}"))),
            ChannelKind::Any => {
                let resolved = |channel| {
                    if ChannelKind::from_key(channel) == ChannelKind::Syslog { syslog } else { channel }
                };
                let order = order.channels().map(|(channel, required)| (resolved(channel), required));
                let preferred = order.filter(|(channel, required)| *required || available(channel));
                entries.extend(preferred.map(|(channel, required)| LogEntry {
                    required: required || entry.required,
                    ..LogEntry::new(channel, text)
                }));
            }
            ChannelKind::Syslog => entries.push(LogEntry { channel: syslog.to_owned(), ..entry.clone() }),
            _ => entries.push(entry.clone()),
        }
    }
    let mut once: Vec<LogEntry> = Vec::with_capacity(entries.len());
    for entry in entries {
        match once.iter_mut().find(|other| other.channel == entry.channel && other.value == entry.value) {
            Some(same) => same.required |= entry.required,
            None => once.push(entry),
        }
    }
    if once.is_empty() {
        let reason = "no log channel is available here: name one".to_owned();
        return Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason));
    }
    Ok(once)
}

/// The plan of a log request: its entries as steps, with the state of each.
///
/// By default all steps start at once. With `PMIX_LOG_ONCE` they run one at a time until one
/// succeeds: the required ones first, and each of these in any case.
#[derive(Debug)]
pub struct LogPlan {
    steps: Vec<Step>,
    once: bool,
}

#[derive(Debug)]
struct Step {
    entry: LogEntry,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting,
    Started,
    Skipped,
    Done(Result<(), Failure>),
}

impl LogPlan {
    /// Creates a plan with one step for each of `entries`, in this order. With `once` the required
    /// ones move to the front.
    pub fn new(mut entries: Vec<LogEntry>, once: bool) -> LogPlan {
        if once {
            entries.sort_by_key(|entry| !entry.required);
        }
        let step = |entry| Step { entry, state: State::Waiting };
        LogPlan { steps: entries.into_iter().map(step).collect(), once }
    }

    /// Marks the steps that can run now as started, and returns their indices. The caller runs
    /// them, and passes each result to [`complete`](LogPlan::complete).
    pub fn start_next(&mut self) -> Vec<usize> {
        let mut started = Vec::new();
        let mut succeeded = self.steps.iter().any(Step::succeeded);
        for (index, step) in self.steps.iter_mut().enumerate() {
            match step.state {
                State::Waiting if self.once && succeeded && !step.entry.required => {
                    step.state = State::Skipped;
                }
                State::Waiting => {
                    step.state = State::Started;
                    started.push(index);
                    if self.once {
                        break;
                    }
                }
                // Its result decides whether the later ones run.
                State::Started if self.once => break,
                State::Started | State::Skipped | State::Done(_) => {}
            }
            succeeded |= step.succeeded();
        }
        started
    }

    /// Returns the entry of a step.
    pub fn entry(&self, step: usize) -> Option<&LogEntry> {
        self.steps.get(step).map(|step| &step.entry)
    }

    /// Records the result of a started step. Ignores a step in any other state, and an unknown one.
    pub fn complete(&mut self, step: usize, result: Result<(), Failure>) {
        if let Some(step) = self.steps.get_mut(step)
            && matches!(step.state, State::Started)
        {
            step.state = State::Done(result);
        }
    }

    /// Returns the status of the request and the result of each step that ran. Returns `None` while
    /// a step is waiting or running.
    pub fn outcome(&self) -> Option<(Status, Vec<LogOutcome>)> {
        let mut outcomes = Vec::new();
        let mut missing = false;
        for Step { entry, state } in &self.steps {
            match state {
                State::Waiting | State::Started => return None,
                State::Skipped => {}
                State::Done(result) => {
                    missing |= result.is_err() && entry.required;
                    outcomes.push(LogOutcome { channel: entry.channel.clone(), result: result.clone() });
                }
            }
        }
        let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
        let status = match failed {
            _ if missing => Status::ERR_OPERATION_FAILED,
            failed if failed == outcomes.len() => Status::ERR_OPERATION_FAILED,
            0 => Status::SUCCESS,
            _ if self.once => Status::SUCCESS,
            _ => Status::ERR_PARTIAL_COMPLETION,
        };
        Some((status, outcomes))
    }
}

impl Step {
    fn succeeded(&self) -> bool {
        matches!(self.state, State::Done(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a plan over `channels`, where `!` before a name means required. The channels in
    /// `working` succeed. Returns the status and the channels that were tried.
    fn run(channels: &[&str], once: bool, working: &[&str]) -> (Status, Vec<String>) {
        let entry = |name: &&str| LogEntry {
            required: name.starts_with('!'),
            ..LogEntry::new(name.trim_start_matches('!'), "text")
        };
        let mut plan = LogPlan::new(channels.iter().map(entry).collect(), once);
        while plan.outcome().is_none() {
            let started = plan.start_next();
            assert!(!started.is_empty() || plan.outcome().is_some(), "the plan makes progress");
            assert!(!once || (started.len() <= 1 && plan.start_next().is_empty()), "one at a time");
            for step in started {
                let name = plan.entry(step).unwrap().channel.clone();
                let failure = Failure::new(Status::ERR_NOT_AVAILABLE, name.clone());
                plan.complete(step, if working.contains(&name.as_str()) { Ok(()) } else { Err(failure) });
            }
        }
        let (status, outcomes) = plan.outcome().unwrap();
        (status, outcomes.into_iter().map(|outcome| outcome.channel).collect())
    }

    const FAILED: Status = Status::ERR_OPERATION_FAILED;
    const PARTIAL: Status = Status::ERR_PARTIAL_COMPLETION;

    #[test]
    fn without_once_all_channels_are_tried_and_partial_success_has_a_status() {
        let all = ["a", "b", "c"];
        for (working, expected) in
            [(&all[..], Status::SUCCESS), (&["a"], PARTIAL), (&["c", "b"], PARTIAL), (&[], FAILED)]
        {
            let (status, tried) = run(&all, false, working);
            assert_eq!((status, &tried[..]), (expected, &all.map(str::to_owned)[..]), "{working:?}");
        }
    }

    #[test]
    fn a_required_channel_that_fails_fails_the_request() {
        assert_eq!(run(&["a", "!b"], false, &["a"]).0, FAILED);
        assert_eq!(run(&["a", "!b"], false, &["b"]).0, PARTIAL);
        assert_eq!(run(&["!a", "!b"], false, &["a", "b"]).0, Status::SUCCESS);
        assert_eq!(run(&["a", "!b"], true, &["a"]).0, FAILED);
        assert_eq!(run(&["!a", "b"], true, &["b"]), (FAILED, vec!["a".into(), "b".into()]));
    }

    #[test]
    fn with_once_no_optional_channel_is_tried_after_the_first_success() {
        let tried = |working: &[&str]| run(&["a", "b", "c"], true, working);
        assert_eq!(tried(&["a", "b", "c"]), (Status::SUCCESS, vec!["a".into()]));
        assert_eq!(tried(&["b", "c"]), (Status::SUCCESS, vec!["a".into(), "b".into()]));
        assert_eq!(tried(&[]), (FAILED, vec!["a".into(), "b".into(), "c".into()]));
        assert_eq!(run(&["a", "b", "!c"], true, &["a", "c"]), (Status::SUCCESS, vec!["c".into()]));
        let required = run(&["a", "!b", "c", "!d"], true, &["a", "b", "d"]);
        assert_eq!(required, (Status::SUCCESS, vec!["b".into(), "d".into()]));
        assert_eq!(run(&["a", "b", "!c"], true, &["b"]), (FAILED, vec!["c".into(), "a".into(), "b".into()]));
    }

    #[test]
    fn a_result_that_is_reported_twice_or_too_early_is_ignored() {
        let mut plan = LogPlan::new(vec![LogEntry::new("a", "text")], false);
        let failure = || Err(Failure { status: FAILED, reason: String::new() });
        plan.complete(0, Ok(()));
        assert!(plan.outcome().is_none());
        assert_eq!(plan.start_next(), [0]);
        plan.complete(0, failure());
        plan.complete(0, Ok(()));
        plan.complete(7, Ok(()));
        assert_eq!(plan.outcome().unwrap().0, FAILED);
        assert!(plan.start_next().is_empty());
    }

    fn planned(log: &Log, order: &str, available: &[&str]) -> Vec<(String, bool)> {
        let order = order.parse().unwrap();
        let entries = resolve_channels(log, &order, |channel| available.contains(&channel)).unwrap();
        entries.into_iter().map(|entry| (entry.channel, entry.required)).collect()
    }

    #[test]
    fn a_message_without_a_channel_goes_to_available_and_required_channels_of_the_order() {
        let order = "email,local_syslog:req,stderr";
        let plan = planned(&Log::new("text"), order, &[key::PMIX_LOG_STDERR]);
        assert_eq!(plan, [(key::PMIX_LOG_LOCAL_SYSLOG.into(), true), (key::PMIX_LOG_STDERR.into(), false)]);
        let named = Log::to(["site.x", key::PMIX_LOG_STDOUT], "text");
        assert_eq!(
            planned(&named, order, &[]),
            [("site.x".into(), false), (key::PMIX_LOG_STDOUT.into(), false)]
        );
        let nowhere = super::resolve_channels(&Log::new("text"), &"email".parse().unwrap(), |_| false);
        assert_eq!(nowhere.unwrap_err().status, Status::ERR_NOT_AVAILABLE);
    }

    #[test]
    fn a_message_for_a_channel_that_is_named_twice_is_logged_there_once() {
        let stderr = key::PMIX_LOG_STDERR;
        let mut log = Log::to([stderr, key::PMIX_LOG_MSG, "site.x", stderr, "site.x"], "text");
        log.data[3].required = true;
        let plan = planned(&log, "email,stderr,email", &[stderr, key::PMIX_LOG_EMAIL]);
        assert_eq!(
            plan,
            [(stderr.into(), true), (key::PMIX_LOG_EMAIL.into(), false), ("site.x".into(), false)]
        );
        log.data[3] = LogEntry::new(stderr, "another text");
        assert_eq!(planned(&log, "", &[]).len(), 3);
    }

    #[test]
    fn the_channel_syslog_is_the_global_syslog_if_available_else_the_local_one() {
        let log = Log::to([key::PMIX_LOG_SYSLOG], "text");
        for (available, expected) in [
            (&[key::PMIX_LOG_GLOBAL_SYSLOG][..], key::PMIX_LOG_GLOBAL_SYSLOG),
            (&[], key::PMIX_LOG_LOCAL_SYSLOG),
        ] {
            assert_eq!(planned(&log, "", available), [(expected.to_owned(), false)]);
            let ordered = Log::new("text");
            assert_eq!(planned(&ordered, "syslog:req", available), [(expected.to_owned(), true)]);
            let there = [available, &[key::PMIX_LOG_LOCAL_SYSLOG]].concat();
            assert_eq!(planned(&ordered, "syslog", &there), [(expected.to_owned(), false)]);
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let text = |channel: &str| LogEntry {
            channel: channel.into(),
            value: LogValue::Text("x".into()),
            required: false,
        };
        let email = LogEntry { value: LogValue::Email(vec![]), ..text(key::PMIX_LOG_EMAIL) };
        let bad = [
            vec![],
            vec![LogEntry::new(key::PMIX_LOG_STDOUT, "a\0b")],
            vec![LogEntry::new(key::PMIX_LOG_EMAIL, "a\0b")],
            vec![text(key::PMIX_LOG_EMAIL)],
            vec![email.clone()],
            vec![LogEntry {
                channel: key::PMIX_LOG_STDOUT.into(),
                ..LogEntry::new(key::PMIX_LOG_EMAIL, "x")
            }],
        ];
        for data in bad {
            let log = Log { data, directives: vec![] };
            let failure = resolve_channels(&log, &Order::default(), |_| true).unwrap_err();
            assert_eq!(failure.status, Status::ERR_BAD_PARAM, "{log:?}");
        }
    }
}
