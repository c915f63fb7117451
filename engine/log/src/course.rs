//! Which channels are tried when, and what that comes to (RFC0032). Pure data: who carries the steps out says what became
//! of them.

use iof_proto::log::key;
use iof_proto::{Failure, Log, LogEntry, LogOutcome, LogValue, Status};

use crate::channel::Kind;
use crate::order::Order;

/// The entries of a request, each with a channel of its own: what has none goes to those of `order`. Of these, optional
/// ones that are not `available`, by their keys, are left out. What would be logged on a channel twice is logged there
/// once.
///
/// # Errors
/// The request makes no sense: it has no message, one with a NUL byte, or none for which there is a channel.
pub fn plan(log: &Log, order: &Order, available: impl Fn(&str) -> bool) -> Result<Vec<LogEntry>, Failure> {
    let bad = |reason: String| Failure { status: Status::ERR_BAD_PARAM, reason };
    if log.data.is_empty() {
        return Err(bad("nothing is to be logged: give a message".into()));
    }
    let mut entries = Vec::new();
    let (local, global) = (key::PMIX_LOG_LOCAL_SYSLOG, key::PMIX_LOG_GLOBAL_SYSLOG);
    let syslog = if available(global) { global } else { local };
    for entry in &log.data {
        let channel = &entry.channel;
        let Some(text) = entry.text() else {
            return Err(bad(format!("what is to be logged to {channel} has no message")));
        };
        if let Some(at) = text.find('\0') {
            return Err(bad(format!(
                "the message for {channel} has a NUL byte at {at}: PMIx ends messages there"
            )));
        }
        let value_fits = matches!(entry.value, LogValue::Email(_)) == (Kind::of(channel) == Kind::Email);
        match Kind::of(channel) {
            Kind::Host => entries.push(entry.clone()),
            _ if !value_fits => return Err(bad(format!("the value for {channel} has the wrong type"))),
            Kind::Any => {
                let resolved = |channel| if Kind::of(channel) == Kind::Syslog { syslog } else { channel };
                let order = order.0.iter().map(|of| (resolved(of.channel.as_str()), of.required));
                let preferred = order.filter(|(channel, required)| *required || available(channel));
                entries.extend(preferred.map(|(channel, required)| LogEntry {
                    required: required || entry.required,
                    ..LogEntry::new(channel, text)
                }));
            }
            Kind::Syslog => entries.push(LogEntry { channel: syslog.to_owned(), ..entry.clone() }),
            _ => entries.push(entry.clone()),
        }
    }
    let mut once: Vec<LogEntry> = Vec::with_capacity(entries.len());
    for entry in entries {
        match once.iter_mut().find(|of| of.channel == entry.channel && of.value == entry.value) {
            Some(same) => same.required |= entry.required,
            None => once.push(entry),
        }
    }
    if once.is_empty() {
        let reason = "no log channel is available here: name one".into();
        return Err(Failure { status: Status::ERR_NOT_AVAILABLE, reason });
    }
    Ok(once)
}

/// A request on its way through its channels.
///
/// Usually all are tried at once. With `PMIX_LOG_ONCE` they are tried one after the other, until one has it: first those
/// that are required, which are tried in any case.
#[derive(Debug)]
pub struct Course {
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
    Begun,
    Skipped,
    Done(Result<(), Failure>),
}

impl Course {
    /// Through `entries` in their order; with `once` those that are required come before the others.
    pub fn new(mut entries: Vec<LogEntry>, once: bool) -> Course {
        if once {
            entries.sort_by_key(|entry| !entry.required);
        }
        let step = |entry| Step { entry, state: State::Waiting };
        Course { steps: entries.into_iter().map(step).collect(), once }
    }

    /// The steps that are to be begun now, by number.
    pub fn begin(&mut self) -> Vec<usize> {
        let mut begun = Vec::new();
        let mut has_it = self.steps.iter().any(Step::has_it);
        for (at, step) in self.steps.iter_mut().enumerate() {
            match step.state {
                State::Waiting if self.once && has_it && !step.entry.required => step.state = State::Skipped,
                State::Waiting => {
                    step.state = State::Begun;
                    begun.push(at);
                    if self.once {
                        break;
                    }
                }
                // Its outcome decides about the others.
                State::Begun if self.once => break,
                State::Begun | State::Skipped | State::Done(_) => {}
            }
            has_it |= step.has_it();
        }
        begun
    }

    /// What a step is to do.
    pub fn entry(&self, step: usize) -> Option<&LogEntry> {
        self.steps.get(step).map(|step| &step.entry)
    }

    /// A step that was begun is done. Said of any other, nothing changes.
    pub fn done(&mut self, step: usize, result: Result<(), Failure>) {
        if let Some(step) = self.steps.get_mut(step)
            && matches!(step.state, State::Begun)
        {
            step.state = State::Done(result);
        }
    }

    /// What it came to, when nothing is left to be done.
    pub fn outcome(&self) -> Option<(Status, Vec<LogOutcome>)> {
        let mut outcomes = Vec::new();
        let mut missing = false;
        for Step { entry, state } in &self.steps {
            match state {
                State::Waiting | State::Begun => return None,
                State::Skipped => {}
                State::Done(result) => {
                    missing |= result.is_err() && entry.required;
                    outcomes.push(LogOutcome { channel: entry.channel.clone(), result: result.clone() });
                }
            }
        }
        let failed = outcomes.iter().filter(|of| of.result.is_err()).count();
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
    fn has_it(&self) -> bool {
        matches!(self.state, State::Done(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a course of channels, of which `works` says which do; `!` before a name: required.
    fn run(channels: &[&str], once: bool, works: &[&str]) -> (Status, Vec<String>) {
        let entry = |name: &&str| LogEntry {
            required: name.starts_with('!'),
            ..LogEntry::new(name.trim_start_matches('!'), "text")
        };
        let mut course = Course::new(channels.iter().map(entry).collect(), once);
        while course.outcome().is_none() {
            let begun = course.begin();
            assert!(!begun.is_empty() || course.outcome().is_some(), "it goes on");
            assert!(!once || (begun.len() <= 1 && course.begin().is_empty()), "one after the other");
            for step in begun {
                let name = course.entry(step).unwrap().channel.clone();
                let failure = Failure { status: Status::ERR_NOT_AVAILABLE, reason: name.clone() };
                course.done(step, if works.contains(&name.as_str()) { Ok(()) } else { Err(failure) });
            }
        }
        let (status, outcomes) = course.outcome().unwrap();
        (status, outcomes.into_iter().map(|of| of.channel).collect())
    }

    const FAILED: Status = Status::ERR_OPERATION_FAILED;
    const PARTIAL: Status = Status::ERR_PARTIAL_COMPLETION;

    #[test]
    fn without_once_all_channels_are_tried_and_the_status_says_how_many_have_it() {
        let all = ["a", "b", "c"];
        for (works, wanted) in
            [(&all[..], Status::SUCCESS), (&["a"], PARTIAL), (&["c", "b"], PARTIAL), (&[], FAILED)]
        {
            let (status, tried) = run(&all, false, works);
            assert_eq!((status, &tried[..]), (wanted, &all.map(str::to_owned)[..]), "{works:?}");
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
    fn with_once_the_first_that_takes_it_is_the_only_one_but_for_required_ones() {
        let tried = |works: &[&str]| run(&["a", "b", "c"], true, works);
        assert_eq!(tried(&["a", "b", "c"]), (Status::SUCCESS, vec!["a".into()]));
        assert_eq!(tried(&["b", "c"]), (Status::SUCCESS, vec!["a".into(), "b".into()]));
        assert_eq!(tried(&[]), (FAILED, vec!["a".into(), "b".into(), "c".into()]));
        assert_eq!(run(&["a", "b", "!c"], true, &["a", "c"]), (Status::SUCCESS, vec!["c".into()]));
        let required = run(&["a", "!b", "c", "!d"], true, &["a", "b", "d"]);
        assert_eq!(required, (Status::SUCCESS, vec!["b".into(), "d".into()]));
        assert_eq!(run(&["a", "b", "!c"], true, &["b"]), (FAILED, vec!["c".into(), "a".into(), "b".into()]));
    }

    #[test]
    fn what_is_said_of_a_step_twice_or_too_early_counts_for_nothing() {
        let mut course = Course::new(vec![LogEntry::new("a", "text")], false);
        let failure = || Err(Failure { status: FAILED, reason: String::new() });
        course.done(0, Ok(()));
        assert!(course.outcome().is_none());
        assert_eq!(course.begin(), [0]);
        course.done(0, failure());
        course.done(0, Ok(()));
        course.done(7, Ok(()));
        assert_eq!(course.outcome().unwrap().0, FAILED);
        assert!(course.begin().is_empty());
    }

    fn planned(log: &Log, order: &str, available: &[&str]) -> Vec<(String, bool)> {
        let order = order.parse().unwrap();
        let entries = plan(log, &order, |channel| available.contains(&channel)).unwrap();
        entries.into_iter().map(|entry| (entry.channel, entry.required)).collect()
    }

    #[test]
    fn a_message_without_a_channel_goes_to_those_of_the_order_that_are_there_or_required() {
        let order = "email,local_syslog:req,stderr";
        let plan = planned(&Log::new("text"), order, &[key::PMIX_LOG_STDERR]);
        assert_eq!(plan, [(key::PMIX_LOG_LOCAL_SYSLOG.into(), true), (key::PMIX_LOG_STDERR.into(), false)]);
        let named = Log::to(["site.x", key::PMIX_LOG_STDOUT], "text");
        assert_eq!(
            planned(&named, order, &[]),
            [("site.x".into(), false), (key::PMIX_LOG_STDOUT.into(), false)]
        );
        let nowhere = super::plan(&Log::new("text"), &"email".parse().unwrap(), |_| false);
        assert_eq!(nowhere.unwrap_err().status, Status::ERR_NOT_AVAILABLE);
    }

    #[test]
    fn what_names_a_channel_twice_is_logged_there_once() {
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
    fn the_syslog_is_the_global_one_if_there_is_one() {
        let log = Log::to([key::PMIX_LOG_SYSLOG], "text");
        for (available, wanted) in [
            (&[key::PMIX_LOG_GLOBAL_SYSLOG][..], key::PMIX_LOG_GLOBAL_SYSLOG),
            (&[], key::PMIX_LOG_LOCAL_SYSLOG),
        ] {
            assert_eq!(planned(&log, "", available), [(wanted.to_owned(), false)]);
            let ordered = Log::new("text");
            assert_eq!(planned(&ordered, "syslog:req", available), [(wanted.to_owned(), true)]);
            let there = [available, &[key::PMIX_LOG_LOCAL_SYSLOG]].concat();
            assert_eq!(planned(&ordered, "syslog", &there), [(wanted.to_owned(), false)]);
        }
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
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
            let failure = plan(&log, &Order::default(), |_| true).unwrap_err();
            assert_eq!(failure.status, Status::ERR_BAD_PARAM, "{log:?}");
        }
    }
}
