//! Values that ranks publish for others.

use std::sync::mpsc::TryRecvError;

use iof_proto::{
    DataRange, Exchange, Failure, FoundValue, FromTool, Info, Persistence, Quota, QuotaScope,
    StdinUnavailable,
};

use super::*;
use crate::ids::JobId;
use crate::jobs::job::StdinAccess;

/// The answer of a request, if there is one.
type Reply = std::sync::mpsc::Receiver<ToTool>;

/// Starts a job with the ranks 0 and 1. Returns their processes.
fn rig_with_ranks() -> (Rig, [iof_capture::ProcessId; 2]) {
    let mut rig = rig();
    let processes = add_ranks(&mut rig);
    (rig, processes)
}

/// Replaces the job of this name by one with the ranks 0 and 1. Returns their processes.
fn add_ranks(rig: &mut Rig) -> [iof_capture::ProcessId; 2] {
    let options = rig.state.jobs.iter().next().unwrap().1.options();
    rig.state.jobs.remove(&rig.nspace);
    rig.state.jobs.get_or_add(&rig.nspace, || JobState::new(None, options, None));
    let processes = [0, 1].map(|rank| {
        let stdin = StdinAccess::None(StdinUnavailable::NotOpen);
        let rank = rig.state.register_rank(&rig.nspace, Rank(rank), SignalReach::Nothing, stdin);
        rank.ok().unwrap().process
    });
    rig.state.all_registered(&rig.nspace.clone(), Instant::now());
    processes
}

/// Lets a rank request something.
fn ask(rig: &mut Rig, rank: u32, exchange: Exchange, now: Instant) -> Reply {
    let (sender, reply) = channel();
    let run = rig.state.jobs.get(&rig.nspace).unwrap().run();
    let rank = Some((JobId { nspace: rig.nspace.clone(), run }, Rank(rank)));
    let from = MessageOrigin::Rank { rank, reply: Box::new(move |answer| sender.send(answer).unwrap()) };
    let input = Input::Message { from, message: FromTool::Exchange(exchange) };
    assert!(rig.state.handle(input, now).is_ok());
    reply_to_all(rig);
    reply
}

fn reply_to_all(rig: &mut Rig) {
    for upcall in rig.state.take_upcalls() {
        let Upcall::Reply { done, answer } = upcall else { panic!("another upcall") };
        done(answer);
    }
}

fn publish(keys: &[&str], range: DataRange, persistence: Persistence) -> Exchange {
    let source = Proc::new(Nspace::new("job").unwrap(), Rank(0));
    let value = |key: &&str| FoundValue {
        source: source.clone(),
        key: key.to_string(),
        kind: 3,
        bytes: key.as_bytes().to_vec(),
    };
    Exchange::Publish { values: keys.iter().map(value).collect(), range, persistence }
}

fn lookup(key: &str, wait: usize) -> Exchange {
    Exchange::Lookup { keys: vec![key.into()], range: DataRange::Session, wait, limit: Some(LIMIT) }
}

fn result(reply: &Reply) -> Result<Vec<FoundValue>, Failure> {
    let ToTool::Exchanged(result) = reply.try_recv().unwrap() else { panic!("another answer") };
    result
}

fn status(reply: &Reply) -> Status {
    result(reply).map_or_else(|failure| failure.status, |_| Status::SUCCESS)
}

#[test]
fn a_lookup_waits_until_the_value_is_published_or_its_time_is_over_or_its_rank_exits() {
    let ((mut rig, processes), now) = (rig_with_ranks(), Instant::now());
    let waiting = ask(&mut rig, 1, lookup("key", 1), now);
    assert_eq!(waiting.try_recv(), Err(TryRecvError::Empty));
    let published = ask(&mut rig, 0, publish(&["key"], DataRange::Session, Persistence::FirstRead), now);
    assert_eq!(status(&published), Status::SUCCESS);
    reply_to_all(&mut rig);
    let [found] = &result(&waiting).unwrap()[..] else { panic!("one value") };
    assert_eq!((found.source.rank, found.bytes.as_slice()), (Rank(0), &b"key"[..]));
    assert_eq!(status(&ask(&mut rig, 1, lookup("key", 0), now)), Status::ERR_NOT_FOUND, "it was read once");

    let late = ask(&mut rig, 1, lookup("key", 1), now);
    assert!(rig.state.next_deadline().unwrap() <= now + LIMIT);
    assert!(rig.state.handle(Input::Time, now + LIMIT).is_ok());
    reply_to_all(&mut rig);
    assert_eq!(status(&late), Status::ERR_TIMEOUT);

    let abandoned = ask(&mut rig, 1, lookup("key", 1), now);
    rig.state.exited(processes[1], (Ok(Default::default()), None), now);
    assert_eq!(abandoned.try_recv(), Err(TryRecvError::Disconnected));
    assert!(rig.state.quotas.is_empty(), "nothing is held any more");
}

#[test]
fn values_last_as_long_as_their_rank_job_or_engine_and_keys_are_unique_in_their_range() {
    let ((mut rig, processes), now) = (rig_with_ranks(), Instant::now());
    let kinds = [("rank", Persistence::Process), ("job", Persistence::Job), ("all", Persistence::Session)];
    let unread = ask(&mut rig, 0, publish(&["unread"], DataRange::Session, Persistence::FirstRead), now);
    assert_eq!(status(&unread), Status::SUCCESS);
    for (key, persistence) in kinds {
        let published = ask(&mut rig, 0, publish(&[key], DataRange::Session, persistence), now);
        assert_eq!(status(&published), Status::SUCCESS);
        let twice = ask(&mut rig, 1, publish(&["new", key], DataRange::Session, persistence), now);
        assert_eq!(status(&twice), Status::ERR_DUPLICATE_KEY);
        let own = ask(&mut rig, 0, publish(&[key], DataRange::Process, Persistence::Process), now);
        assert_eq!(status(&own), Status::SUCCESS, "another range has other keys");
        assert_eq!(status(&ask(&mut rig, 1, lookup("new", 0), now)), Status::ERR_NOT_FOUND, "all or none");
    }
    let found = |rig: &mut Rig| kinds.map(|(key, _)| status(&ask(rig, 1, lookup(key, 0), now)).0 == 0);
    assert_eq!(found(&mut rig), [true; 3]);
    rig.state.exited(processes[0], (Ok(Default::default()), None), now);
    assert_eq!(found(&mut rig), [false, true, true]);
    rig.state.exited(processes[1], (Ok(Default::default()), None), now);
    assert_eq!(found(&mut rig), [false, false, true]);
    assert_eq!(rig.state.quotas.total(Quota::Published), 1, "nor is the value kept that was not read");
}

#[test]
fn endless_publishes_are_refused_with_the_name_of_the_limit_and_removing_some_makes_room() {
    let ((mut rig, _), now) = (rig_with_ranks(), Instant::now());
    rig.state.quotas.limits.set(Quota::Published, QuotaScope::User, 2);
    let publish =
        |rig: &mut Rig, key: &str| ask(rig, 0, publish(&[key], DataRange::Job, Persistence::Job), now);
    let published = ["a", "b"].map(|key| status(&publish(&mut rig, key)));
    assert_eq!(published, [Status::SUCCESS; 2]);
    let refused = result(&publish(&mut rig, "c")).unwrap_err();
    assert!(refused.reason.contains("MAX_PUBLISHED_PER_USER"), "{refused}");
    let remove = |keys: &[&str]| Exchange::Unpublish {
        keys: keys.iter().map(ToString::to_string).collect(),
        range: DataRange::Job,
    };
    assert_eq!(status(&ask(&mut rig, 1, remove(&["a"]), now)), Status::ERR_NOT_FOUND, "it is another's");
    assert_eq!(status(&ask(&mut rig, 0, remove(&["a"]), now)), Status::SUCCESS);
    assert_eq!(status(&publish(&mut rig, "c")), Status::SUCCESS);
    assert_eq!(status(&ask(&mut rig, 0, remove(&[]), now)), Status::SUCCESS);
    assert!(rig.state.quotas.is_empty(), "nothing is held any more");
}

#[test]
fn a_job_that_has_published_all_that_it_may_leaves_room_for_others() {
    let ((mut rig, _), now) = (rig_with_ranks(), Instant::now());
    rig.state.quotas.limits.set(Quota::Published, QuotaScope::Job, 2);
    let publish = |rig: &mut Rig, rank, key: &str| {
        result(&ask(rig, rank, publish(&[key], DataRange::Session, Persistence::Job), now))
    };
    assert_eq!([publish(&mut rig, 0, "a"), publish(&mut rig, 1, "b")], [Ok(Vec::new()), Ok(Vec::new())]);
    let refused = publish(&mut rig, 1, "c").unwrap_err();
    assert!(refused.reason.starts_with("this job has 2 of at most 2 values"), "{refused}");
    assert!(refused.reason.contains("MAX_PUBLISHED_PER_JOB"), "{refused}");
    rig.nspace = Nspace::new("other").unwrap();
    add_ranks(&mut rig);
    assert_eq!([publish(&mut rig, 0, "c"), publish(&mut rig, 1, "d")], [Ok(Vec::new()), Ok(Vec::new())]);
}

#[test]
fn groups_have_numbers_of_their_own_until_they_are_destructed_or_their_job_ends() {
    let ((mut rig, processes), now) = (rig_with_ranks(), Instant::now());
    rig.state.quotas.limits.set(Quota::Groups, QuotaScope::User, 2);
    let group = |rig: &mut Rig, name: &str, constructs| {
        let name = name.to_owned();
        let reply =
            ask(rig, 0, Exchange::Group { name, members: Vec::new(), constructs, with_context: true }, now);
        let ToTool::Answer { result, .. } = reply.try_recv().unwrap() else { panic!("another answer") };
        result.map(|answer| answer.found.into_iter().map(|found| found.value).collect::<Vec<Value>>())
    };
    let context = |number: u32| vec![Value::Infos(vec![Info::new("pmix.grp.ctxid", number)])];
    // Those of disjoint ranks may have one name.
    assert_eq!(group(&mut rig, "a", true), Ok(context(1)));
    assert_eq!(group(&mut rig, "a", true), Ok(context(2)));
    let refused = group(&mut rig, "b", true).unwrap_err();
    assert!(refused.reason.contains("MAX_GROUPS_PER_USER"), "{refused}");
    assert_eq!(group(&mut rig, "a", false), Ok(Vec::new()));
    assert_eq!(group(&mut rig, "b", true), Ok(context(3)));
    assert_eq!(group(&mut rig, "a", false), Ok(Vec::new()));
    assert_eq!(group(&mut rig, "a", false).unwrap_err().status, Status::ERR_NOT_FOUND);
    processes.into_iter().for_each(|process| rig.state.exited(process, (Ok(Default::default()), None), now));
    assert!(rig.state.quotas.is_empty(), "nothing is held any more");
}
