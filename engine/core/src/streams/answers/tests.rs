//! Tests of the events between a request to the capture thread and its answer. A real capture
//! performs the requests, and the tests hold its answers back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use iof_capture::{Capture, Counted, End, Event, SourceId, StreamRequest, StreamStep};
use iof_log::LogOptions;
use iof_proto::limits::MAX_QUERIES_PER_TOOL;
use iof_proto::query::key;
use iof_proto::{
    Answer, Channel, Channels, Decoder, Directives, Found, FromTool, Nspace, Proc, Query, Quota, QuotaScope,
    Rank, Status, ToTool, Value,
};
use iof_shm_ring::{CreateError, MAX_SLOTS, ReaderId, ReaderPage, Start};

use super::*;
use crate::calls::DeliveredBytes;
use crate::clients::client::{Client, ClientId, ClientProcess, MessageOrigin};
use crate::effects::Command;
use crate::ids::{LogId, LogStep, PageId, PeerId, RingId, StreamName};
use crate::input::Input;
use crate::jobs::exit::Exit;
use crate::jobs::job::{JobState, Launching, Place, RankState, SignalReach};
use crate::limits::Limits;
use crate::logs::routes::LogRoutes;
use crate::logs::table::Logs;
use crate::memory::SharedMemory;
use crate::pushes::push::PushRequest;
use crate::resources::{PageSlots, Resources};
use crate::settings::Settings;
use crate::streams::completion::Completion;
use crate::streams::deliver_error::DeliverError;
use crate::streams::options::StreamOptions;
use crate::streams::state::StreamState;
use crate::tools::outgoing::Attachment;
use crate::tools::peer::Peer;
use crate::tools::pull::Pull;
use crate::tools::registration::Registration;
use crate::upcall::Upcall;

mod elsewhere;
mod forgotten;
mod published;
mod pushes;
mod removal;
mod rig;

use rig::{NoStreams, Rig, rig, rig_with_memory};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn queries_of_unnamed_ranks_are_limited_by_user_and_answered_by_callbacks() {
    let mut rig = rig();
    rig.add_stream();
    // More than one client may have.
    let limit = MAX_QUERIES_PER_TOOL + 1;
    rig.state.quotas.limits.set(Quota::Queries, QuotaScope::User, limit as u64);
    let (sender, answers) = channel();
    for _ in 0..=limit {
        let sender = sender.clone();
        let reply = Box::new(move |answer| sender.send(answer).unwrap());
        let queries = vec![Query { keys: vec![key::IOF_QUERY_STATS.into()], qualifiers: Vec::new() }];
        let message = FromTool::Query { request: 0, queries };
        let from = MessageOrigin::Rank { rank: None, reply };
        assert!(rig.state.handle(Input::Message { from, message }, Instant::now()).is_ok());
    }
    let answered = |rig: &mut Rig| {
        for upcall in rig.state.take_upcalls() {
            let Upcall::Reply { done, answer } = upcall else { panic!("another upcall") };
            done(answer);
        }
        answers.try_iter().collect::<Vec<ToTool>>()
    };
    let [ToTool::Answer { result: Err(refused), .. }] = &answered(&mut rig)[..] else {
        panic!("one is refused")
    };
    assert!(refused.reason.contains("MAX_QUERIES_PER_USER"), "{refused}");
    rig.settle();
    let all = answered(&mut rig);
    assert_eq!(all.len(), limit);
    assert!(all.iter().all(|answer| matches!(answer, ToTool::Answer { result: Ok(_), .. })), "{all:?}");
    assert!(rig.state.quotas.is_empty(), "nothing is held any more");
}

#[test]
fn the_answer_of_a_pull_precedes_the_rings_and_these_precede_the_ends() {
    let mut rig = rig();
    rig.add_stream();
    let tool = rig.connect();
    rig.pull(tool);
    // While the attachment is under way, another stream begins, and the job ends.
    rig.add_stream();
    rig.end_job();
    assert!(rig.messages(tool).is_empty());
    rig.settle();
    assert_eq!(rig.messages(tool), ["pulled", "ring 0", "ring 1", "announced", "ended"]);
}

#[test]
fn a_job_that_is_removed_while_a_tool_is_attached_reports_its_end() {
    let mut rig = rig();
    rig.add_stream();
    rig.end_job();
    let tool = rig.connect();
    rig.pull(tool);
    assert!(rig.state.remove_job(&rig.nspace).is_some());
    rig.settle();
    assert_eq!(rig.messages(tool), ["pulled", "ring 0", "announced", "ended"]);
    assert!(rig.state.tools.get(&tool).unwrap().registrations().next().is_none(), "the registration is over");
}

#[test]
fn a_tool_that_disconnects_while_it_is_attached_leaves_no_reader() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.connect();
    let page = rig.memory.page(PageId::Tool(tool)).unwrap();
    rig.pull(tool);
    rig.state.detach(tool, None);
    rig.state.tools.remove(tool);
    rig.settle();
    assert_eq!(rig.readers(source, &page), 0);
}

#[test]
fn a_slot_that_is_reused_while_its_reader_is_attached_has_the_second_reader_only() {
    let mut rig = rig();
    let (one, two) = (rig.add_stream(), rig.add_stream());
    rig.settle();
    let tool = rig.connect();
    let page = rig.memory.page(PageId::Tool(tool)).unwrap();
    rig.pull(tool);
    // A hostile tool reports readers as drained that it does not know yet.
    rig.state.drained(tool, (0..8).map(ReaderId::from));
    rig.pull(tool);
    rig.settle();
    assert_eq!(rig.messages(tool), ["pulled", "pulled", "ring 0", "ring 1"]);
    assert_eq!((rig.readers(one, &page), rig.readers(two, &page)), (1, 1));
    assert_eq!(rig.state.tools.get(&tool).unwrap().readings().count(), 2);
}

#[test]
fn a_reader_that_ends_while_it_moves_is_detached_from_both_generations() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.connect();
    let page = rig.memory.page(PageId::Tool(tool)).unwrap();
    rig.pull(tool);
    rig.settle();
    let larger = iof_shm_ring::StreamConfig { capacity: 4 << 20, policy: iof_shm_ring::Policy::Block };
    let steps = vec![StreamStep::Reconfigure { source, config: larger }];
    rig.state.request_unanswered(steps);
    rig.state.effects.commands.push(Command::Deliver { source, delivery: vec![0; 4096].into() });
    rig.send();
    rig.complete(source, u64::MAX);
    rig.state.drained(tool, (0..8).map(ReaderId::from));
    rig.settle();
    assert_eq!(rig.readers(source, &page), 0);
    rig.pull(tool);
    rig.settle();
    assert_eq!(rig.readers(source, &page), 1);
}

#[test]
fn the_last_ring_of_a_stream_precedes_the_end_of_its_job() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.connect();
    rig.pull(tool);
    rig.settle();
    let larger = iof_shm_ring::StreamConfig { capacity: 4 << 20, policy: iof_shm_ring::Policy::Block };
    rig.state.request_unanswered(vec![StreamStep::Reconfigure { source, config: larger }]);
    rig.state.effects.commands.push(Command::Deliver { source, delivery: vec![0; 4096].into() });
    rig.state.effects.commands.push(Command::Finish(source));
    rig.send();
    let generation = loop {
        if let Event::Complete { generation, .. } = rig.events.recv_timeout(LIMIT).unwrap() {
            break generation;
        }
    };
    assert_eq!(generation, 1);
    rig.complete(source, generation);
    rig.end_job();
    rig.settle();
    assert_eq!(rig.messages(tool), ["pulled", "ring 0", "next ring 0", "announced", "ended"]);
}

#[test]
fn a_tool_that_sees_the_end_of_its_ring_before_the_engine_follows_the_stream_once_it_has_moved() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.reading_tool();
    for _ in 0..2 {
        rig.state.follow(tool, ReaderId::from(0));
        assert!(rig.state.effects.commands.is_empty(), "the capture thread is not woken");
    }
    rig.state.stream_moved(source, 1);
    rig.state.follow(tool, ReaderId::from(0));
    let [Command::Request(request)] = &rig.state.effects.commands[..] else { panic!("one request") };
    assert!(matches!(request.steps[..], [StreamStep::Follow { .. }]));
}

#[test]
fn requests_of_a_tool_wait_while_one_waits_for_the_capture_thread() {
    let mut rig = rig();
    rig.add_stream();
    let tool = rig.connect();
    rig.pull(tool);
    let peer = |rig: &mut Rig| rig.state.tools.get_mut(&tool).unwrap().awaited();
    assert_eq!(peer(&mut rig), 1);
    rig.settle();
    assert_eq!(peer(&mut rig), 0);
}

#[test]
fn the_end_of_the_capture_thread_answers_pulls_and_ends_jobs() {
    let mut rig = rig();
    let stream = rig.add_stream();
    // The job waits for the stream.
    rig.state.jobs.get_mut(&rig.nspace).unwrap().add_delivered(Rank(0), Channel::Stdout, stream);
    let tool = rig.connect();
    rig.pull(tool);
    rig.end_job();
    rig.end_capture();
    // The command with the stream was discarded.
    assert_eq!(rig.messages(tool), ["pulled", "missed", "announced", "ended"]);
    assert!(rig.state.awaited.is_empty());
    assert_eq!(rig.state.tools.get(&tool).unwrap().awaited(), 0);
}

#[test]
fn the_end_of_the_capture_thread_ends_ranks_and_pushes() {
    let mut rig = rig();
    let nspace = rig.nspace.clone();
    let options = rig.state.jobs.get(&nspace).unwrap().options();
    rig.state.jobs.remove(&nspace);
    rig.state.jobs.get_or_add(&nspace, || JobState::new(None, options, None)).all_registered();
    let streams = Channel::OUTPUTS.map(|_| rig.add_stream());
    let rank = RankState::new(Place::Here(streams), Launching::default(), SignalReach::Nothing);
    let target = rank.target().unwrap();
    let proc = Proc::new(nspace.clone(), Rank(0));
    rig.state.jobs.add_rank(proc.clone(), rank);
    let tool = rig.connect();
    let request =
        |request| PushRequest { request, targets: vec![proc.clone()], size: None, infos: Vec::new() };
    // One push has begun, and one waits for the capture thread.
    rig.state.begin_push(tool, request(1), &[target], &[target].into());
    rig.state.push(tool, request(2));
    rig.end_capture();
    let job = rig.state.jobs.get(&nspace).unwrap();
    assert!(job.is_drained() && job.rank(Rank(0)).unwrap().exit() == Some(Exit::Unknown));
    assert!(job.ending(0).is_some() && job.ending(1).is_none());
    assert_eq!(rig.messages(tool), ["push begun", "pushed", "push refused"]);
}

#[test]
fn a_message_that_the_capture_thread_does_not_take_is_not_logged() {
    let mut rig = rig();
    let source = Proc::new(rig.nspace.clone(), Rank::UNDEF);
    let mut options = LogOptions::default();
    options.source = Some(source);
    let step = LogStep { log: LogId(1), step: 0 };
    let log = |rig: &mut Rig| rig.state.log_output(step, Channel::Stdout, "text", &options);
    assert!(log(&mut rig).is_none(), "the result follows");
    let stream =
        rig.state.jobs.get(&rig.nspace).unwrap().logged_stream(Rank::UNDEF, Channel::Stdout).unwrap();
    rig.send();
    let answers = loop {
        if let Event::Answered { request, answers } = rig.events.recv_timeout(LIMIT).unwrap() {
            break rig.memory.keep_rings(&[], request, answers);
        }
    };
    assert_eq!(rig.state.output_logged(stream, &answers), Ok(()));
    assert!(rig.state.output_logged(stream, &[]).is_err());
    assert!(rig.state.streams.delivery(stream).unwrap().pop().is_none(), "it was withdrawn");
    rig.end_capture();
    assert!(log(&mut rig).is_some_and(|result| result.is_err()), "no message is taken any more");
}

#[test]
fn a_stream_is_kept_while_a_reader_of_its_removed_job_waits_for_a_free_slot() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.reading_tool();
    let peer = rig.state.tools.get_mut(&tool).unwrap();
    while peer.take_slot(&rig.memory).is_ok() {}
    let larger = iof_shm_ring::StreamConfig { capacity: 4 << 20, policy: iof_shm_ring::Policy::Block };
    rig.state.request_unanswered(vec![StreamStep::Reconfigure { source, config: larger }]);
    rig.state.effects.commands.push(Command::Deliver { source, delivery: vec![0; 4096].into() });
    rig.state.effects.commands.push(Command::Finish(source));
    rig.send();
    rig.complete(source, 1);
    rig.end_job();
    assert!(rig.state.remove_job(&rig.nspace).is_some());
    rig.settle();
    assert_eq!(rig.messages(tool), ["announced", "ended"]);
    // The tool has drained its generation.
    rig.state.follow(tool, ReaderId::from(0));
    rig.settle();
    assert_eq!(rig.messages(tool), ["next ring 0"]);
    assert!(rig.state.kept_streams.is_empty());
}

#[test]
fn a_reader_that_is_dropped_while_it_moves_returns_both_of_its_slots() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.connect();
    rig.pull(tool);
    rig.settle();
    rig.complete(source, u64::MAX);
    rig.state.forget_stream(source);
    let peer = rig.state.tools.get_mut(&tool).unwrap();
    peer.shed(1, 0);
    assert!(peer.readings().next().is_none());
    let slots = std::iter::from_fn(|| peer.take_slot(&rig.memory).ok()).count();
    assert_eq!(slots, MAX_SLOTS);
}

#[test]
fn the_ring_of_a_stream_that_is_dropped_before_it_is_sent_is_returned() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.connect();
    rig.pull(tool);
    let [request] = rig.state.awaited.ids()[..] else { panic!("one request") };
    rig.settle();
    rig.complete(source, 0);
    rig.state.forget_stream(source);
    let ring = Attachment::Ring(RingId { request, index: 0 });
    assert!(rig.memory.unsent(tool, ring).is_some());
    let peer = rig.state.tools.get_mut(&tool).unwrap();
    peer.shed(1, 0);
    assert_eq!(peer.take_discarded(), [ring]);
}

#[test]
fn an_older_answer_leaves_a_newer_request_for_counters_as_it_is() {
    let mut rig = rig();
    let tool = rig.connect();
    let now = Instant::now();
    let stats = || vec![Query { keys: vec![key::IOF_QUERY_STATS.into()], qualifiers: Vec::new() }];
    // The embedder's own tools always get new counters.
    rig.query(tool, 1, stats(), now);
    rig.query(tool, 2, stats(), now);
    let [older, newer] = rig.state.awaited.ids()[..] else { panic!("two requests") };
    rig.state.stream_answered(older, Vec::new(), now);
    assert_eq!(rig.state.queries.counting(), Some(newer));
    rig.state.stream_answered(newer, Vec::new(), now);
    assert!(rig.state.queries.has_counters(now));
}

#[test]
fn counters_include_a_stream_that_began_after_they_were_requested() {
    let mut rig = rig();
    rig.add_stream();
    let tool = rig.connect();
    let stats = vec![Query { keys: vec![key::IOF_QUERY_STATS.into()], qualifiers: Vec::new() }];
    rig.query(tool, 1, stats, Instant::now());
    rig.add_stream();
    rig.settle();
    assert_eq!(rig.messages(tool), ["counters of 2"]);
}

#[test]
fn the_counters_of_a_removed_job_serve_no_later_query() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.connect();
    let stats = vec![Query { keys: vec![key::IOF_QUERY_STATS.into()], qualifiers: Vec::new() }];
    let now = Instant::now();
    rig.query(tool, 1, stats, now);
    rig.settle();
    assert_eq!(rig.messages(tool), ["counters of 1"]);
    rig.complete(source, 0);
    rig.end_job();
    assert!(rig.state.queries.has_counters(now));
    rig.state.remove_job(&rig.nspace.clone()).unwrap();
    assert!(!rig.state.queries.has_counters(now));
}

#[test]
fn a_pause_of_a_tool_that_has_gone_is_forgotten_once_its_pushes_have_ended() {
    let mut rig = rig();
    let tool = rig.connect();
    let source = rig.state.tools.get(&tool).unwrap().proc();
    rig.state.set_stdin_flow(Some(source.clone()), true);
    assert!(rig.state.pushes.is_paused(&source));
    drop(rig.state.disconnected(tool));
    assert!(!rig.state.pushes.is_paused(&source));
}

#[test]
fn a_remote_rank_that_a_tool_names_twice_is_signalled_once() {
    let mut rig = rig();
    let tool = rig.connect();
    let mut signalled = |ranks: &[Rank]| -> Vec<Rank> {
        let procs: Vec<Proc> = ranks.iter().map(|rank| Proc::new(rig.nspace.clone(), *rank)).collect();
        rig.state.signal(tool, 1, &procs, 15, Instant::now());
        match rig.state.effects.upcalls.pop() {
            Some(Upcall::Signal { procs, .. }) => procs.iter().map(|proc| proc.rank).collect(),
            _ => panic!("the host signals remote ranks"),
        }
    };
    assert_eq!(signalled(&[Rank(2), Rank(1), Rank(2)]), [Rank(1), Rank(2)]);
    assert_eq!(signalled(&[Rank(2), Rank::WILDCARD, Rank(1)]), [Rank::WILDCARD]);
}

#[test]
fn the_report_of_a_missed_stream_precedes_that_no_further_source_follows() {
    let mut rig = rig();
    let tool = rig.connect_with_slots(1, true, false);
    rig.pull(tool);
    rig.add_stream();
    let missed = rig.add_stream();
    // The job waits for the stream.
    let name = rig.nspace.clone();
    rig.state.jobs.get_mut(&name).unwrap().add_delivered(Rank(1), Channel::Stderr, missed);
    rig.end_job();
    rig.settle();
    assert_eq!(rig.messages(tool), ["pulled", "ring 0"]);
    rig.complete(missed, 0);
    assert_eq!(rig.messages(tool), ["missed", "announced"]);
    rig.state.jobs.get_mut(&name).unwrap().delivery_completed();
    rig.state.announce_end(&name);
    assert_eq!(rig.messages(tool), ["ended"]);
}

#[test]
fn a_delivery_to_a_new_stream_is_refused_if_an_own_gating_reader_would_miss_it() {
    let mut rig = rig();
    let tools = [rig.connect_with_slots(2, true, true), rig.connect_with_slots(1, true, true)];
    tools.iter().for_each(|tool| rig.pull(*tool));
    let mut deliver = |rank| {
        let from = Proc::new(rig.nspace.clone(), Rank(rank));
        let (channel, bytes) = (Channel::Stdout, b"bytes".to_vec());
        let delivered =
            DeliveredBytes { from: &from, channel, bytes, offset: None, time: None, input: None, end: None };
        rig.state.deliver(delivered, Box::new(|| {})).map(drop)
    };
    assert!(deliver(0).is_ok());
    for _ in 0..2 {
        assert!(matches!(deliver(1), Err(DeliverError::Ring(CreateError::Slots))));
    }
    rig.settle();
    for (tool, free) in tools.into_iter().zip([1, 0]) {
        assert_eq!(rig.messages(tool), ["pulled", "ring 0"]);
        assert_eq!(rig.free_slots(tool), free);
    }
}

#[test]
fn slots_that_are_reserved_for_ranks_serve_their_streams_only_until_all_are_registered() {
    let mut rig = rig();
    let tool = rig.connect_with_slots(2, true, true);
    rig.pull(tool);
    let name = rig.nspace.clone();
    let reserve = |rig: &mut Rig, rank| rig.state.reserve_readers_of(&name, Rank(rank));
    assert!(reserve(&mut rig, 0).is_ok() && reserve(&mut rig, 1).is_ok());
    assert!(matches!(reserve(&mut rig, 2), Err(CreateError::Slots)));
    assert_eq!(rig.free_slots(tool), 0);
    rig.add_stream();
    rig.settle();
    assert_eq!(rig.messages(tool), ["pulled", "ring 0"]);
    rig.state.all_registered(&name, Instant::now());
    assert_eq!(rig.free_slots(tool), 1);
}

#[test]
fn a_stream_that_is_not_created_leaves_the_slots_that_are_reserved_for_ranks() {
    // One tool has a slot for the stream and the other has no slot, or memory is exhausted.
    for (slots, mut rig) in [([2, 1], rig()), ([2, 2], rig_with_memory(Box::new(NoStreams)))] {
        let tools = slots.map(|slots| rig.connect_with_slots(slots, true, true));
        tools.iter().for_each(|tool| rig.pull(*tool));
        rig.state.reserve_readers_of(&rig.nspace, Rank(0)).unwrap();
        let free = tools.map(|tool| rig.free_slots(tool));
        let mut logged = LogOptions::default();
        logged.source = Some(Proc::new(rig.nspace.clone(), Rank::UNDEF));
        let step = LogStep { log: LogId(1), step: 0 };
        let refused = rig.state.log_output(step, Channel::Stdout, "text", &logged);
        assert_eq!(refused.unwrap().unwrap_err().status, Status::ERR_OUT_OF_RESOURCE);
        let from = Proc::new(rig.nspace.clone(), Rank(1));
        let (channel, bytes) = (Channel::Stdout, b"bytes".to_vec());
        let delivered =
            DeliveredBytes { from: &from, channel, bytes, offset: None, time: None, input: None, end: None };
        let refused = rig.state.deliver(delivered, Box::new(|| {}));
        assert!(matches!(refused, Err(DeliverError::Ring(_))), "{refused:?}");
        assert_eq!(tools.map(|tool| rig.free_slots(tool)), free);
        rig.state.all_registered(&rig.nspace.clone(), Instant::now());
        assert_eq!(tools.map(|tool| rig.free_slots(tool)), slots, "the slot of the rank is there");
    }
}
