//! Requests: performed in order with the other commands, and answered in order with the events.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::channel;

use iof_capture::{
    Capture, Command, EndedStreams, Event, Gating, IdInUse, Joined, NewProcess, NewSource, PushEnd, PushId,
    RequestId, SendError, SourceId, StreamAnswer, StreamRequest, StreamStep, TargetId,
};
use iof_shm_ring::{Inlet, Policy, Start};

use super::rig;
use iof_testing::capture::{
    CaptureRig, TestTool, add, deliver, next, open, stream, tool, wait_end, wait_until,
};
use iof_testing::pipes::pipe;

const ID: SourceId = SourceId(1);

fn attach(tool: &TestTool, source: SourceId, start: Start) -> StreamStep {
    let reader = tool.page.take_slot().unwrap();
    let (page, gating) = (tool.page.clone(), Gating::Keep);
    StreamStep::Attach { source, page, reader, start, gating, group: 0, remote: true }
}

fn request(id: u64, steps: Vec<StreamStep>) -> StreamRequest {
    StreamRequest { id: Some(RequestId(id)), steps }
}

/// Returns the answers to request `id`, which must be the only event.
fn answer(events: Vec<Event>, id: u64) -> Vec<StreamAnswer> {
    let [Event::Answered { request, answers }]: [Event; 1] = events.try_into().unwrap() else {
        panic!("another event")
    };
    assert_eq!(request, RequestId(id));
    answers
}

/// Waits for the answer to request `id`, which must be the next event.
fn answers(rig: &CaptureRig, id: u64) -> Vec<StreamAnswer> {
    match next(&rig.events) {
        Event::Answered { request: RequestId(request), answers } if request == id => answers,
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_request_given_with_a_source_is_performed_before_its_first_byte() {
    let (rig, tool) = (rig(), tool());
    let (read, mut write) = pipe();
    write.write_all(b"seven!!").unwrap();
    let first = Some(request(1, vec![attach(&tool, ID, Start::Now)]));
    let source = NewSource { id: ID, pipe: read, stream: stream(4096, Policy::DropNewest), first };
    rig.capture.send([Command::Add(NewProcess { sources: vec![source], ..NewProcess::default() })]).unwrap();
    drop(write);
    let answers = answers(&rig, 1);
    let [StreamAnswer::Joined(Some(Joined { attached, generation: 0 }))] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((attached.start, attached.dropped), (0, 0));
    assert_eq!(wait_end(&rig.events, ID).produced, 7);
}

#[test]
fn answers_and_ends_are_reported_in_the_order_in_which_they_happened() {
    let (rig, tool) = (rig(), tool());
    rig.capture.send([open(ID, stream(4096, Policy::DropNewest))]).unwrap();
    rig.capture.send([Command::Request(request(1, vec![attach(&tool, ID, Start::Oldest)]))]).unwrap();
    rig.capture.send([Command::Finish(ID)]).unwrap();
    rig.capture.send([Command::Request(request(2, vec![attach(&tool, ID, Start::Oldest)]))]).unwrap();
    rig.capture.send([Command::Remove(ID)]).unwrap();
    rig.capture.send([Command::Request(request(3, vec![attach(&tool, ID, Start::Oldest)]))]).unwrap();
    assert!(matches!(answers(&rig, 1)[..], [StreamAnswer::Joined(Some(_))]));
    assert!(matches!(next(&rig.events), Event::Complete { source: ID, .. }));
    assert!(matches!(answers(&rig, 2)[..], [StreamAnswer::Joined(Some(_))]), "a complete stream has readers");
    assert!(matches!(answers(&rig, 3)[..], [StreamAnswer::Joined(None)]), "a removed stream has none");
}

#[test]
fn each_step_that_has_an_answer_is_answered_and_the_others_are_performed() {
    let (rig, tool) = (rig(), tool());
    rig.capture.send([open(ID, stream(4096, Policy::DropNewest))]).unwrap();
    let step = attach(&tool, ID, Start::Oldest);
    let StreamStep::Attach { reader, .. } = step else { unreachable!() };
    let readers = vec![(tool.page.clone(), reader)];
    let count = || StreamStep::Count { source: ID, readers: readers.clone() };
    let detach = StreamStep::Detach { source: ID, page: tool.page.clone(), reader };
    rig.capture.send([deliver(ID, b"four".to_vec())]).unwrap();
    let steps = vec![step, count(), detach, count()];
    rig.capture.send([Command::Request(request(1, steps))]).unwrap();
    rig.capture.send([Command::Request(StreamRequest { id: None, steps: vec![count()] })]).unwrap();
    let steps = vec![StreamStep::Takes(TargetId(9)), StreamStep::Lagging(PushId(9))];
    rig.capture.send([Command::Request(request(2, steps))]).unwrap();
    assert!(matches!(next(&rig.events), Event::Delivered { .. }));
    let first = answers(&rig, 1);
    let [StreamAnswer::Joined(Some(_)), StreamAnswer::Counted(Some(one)), StreamAnswer::Counted(Some(two))] =
        &first[..]
    else {
        panic!("{first:?}")
    };
    assert_eq!((one.stats.produced, &one.lags, &two.lags), (4, &vec![Some(4)], &vec![None]));
    assert!(matches!(answers(&rig, 2)[..], [StreamAnswer::Takes(false), StreamAnswer::Lagging(None)]));
}

#[test]
fn the_end_of_a_capture_is_its_last_event() {
    let (sender, events) = channel();
    let capture = Capture::start(move |event| drop(sender.send(event))).unwrap();
    capture.send([open(ID, stream(4096, Policy::DropNewest))]).unwrap();
    drop(capture);
    let all: Vec<Event> = events.iter().collect();
    let ends = all.iter().filter(|event| matches!(event, Event::Ended { .. })).count();
    assert_eq!(ends, 1, "{all:?}");
    assert!(matches!(all[..], [.., Event::Complete { source: ID, .. }, Event::Ended { .. }]), "{all:?}");
}

#[test]
fn the_streams_of_a_capture_that_has_ended_take_readers_until_they_are_removed() {
    let ((sender, events), tool) = (channel(), tool());
    let capture = Capture::start(move |event| drop(sender.send(event))).unwrap();
    capture.send([open(ID, stream(4096, Policy::DropNewest))]).unwrap();
    capture.send([deliver(ID, b"four".to_vec())]).unwrap();
    drop(capture);
    let Some(Event::Ended { mut streams }) = events.iter().last() else { panic!("the end was not last") };
    let join = |streams: &mut EndedStreams, id| {
        let request = request(id, vec![attach(&tool, ID, Start::Oldest)]);
        answer(streams.perform([Command::Request(request)]), id)
    };
    assert!(matches!(join(&mut streams, 1)[..], [StreamAnswer::Joined(Some(_))]));
    assert!(streams.perform([Command::Remove(ID)]).is_empty());
    assert!(matches!(join(&mut streams, 2)[..], [StreamAnswer::Joined(None)]));
}

#[test]
fn a_batch_is_performed_in_order_or_refused_as_a_whole() {
    let (rig, tool) = (rig(), tool());
    let count =
        |source| Command::Request(request(1, vec![StreamStep::Count { source, readers: Vec::new() }]));
    let open = |source| open(source, stream(4096, Policy::DropNewest));
    rig.capture.send([open(ID), deliver(ID, b"four".to_vec()), Command::Finish(ID), count(ID)]).unwrap();
    assert!(matches!(next(&rig.events), Event::Delivered { .. }));
    wait_end(&rig.events, ID);
    let [StreamAnswer::Counted(Some(counted))] = &answers(&rig, 1)[..] else { panic!("no counters") };
    assert_eq!((counted.stats.produced, counted.stats.complete), (4, true));
    let (other, attached) = (SourceId(2), request(3, vec![attach(&tool, ID, Start::Oldest)]));
    let push = Command::BeginPush {
        push: PushId(1),
        inlet: Arc::new(Inlet::create(4096, "test").unwrap()),
        targets: vec![TargetId(7)],
        closes: false,
    };
    let refused = rig.capture.send([open(other), Command::Request(attached), push, open(ID)]).unwrap_err();
    assert_eq!(refused.reason, SendError::IdInUse(IdInUse::Source(ID)));
    rig.capture.send([count(other)]).unwrap();
    assert!(matches!(answers(&rig, 1)[..], [StreamAnswer::Counted(None)]));
    // The events of a capture that has ended: what waits for these commands must not wait for ever.
    let [answered, fed] = &refused.into_events()[..] else { panic!("two events") };
    assert!(
        matches!(answered, Event::Answered { request: RequestId(3), answers } if answers.is_empty()),
        "{answered:?}"
    );
    let Event::Fed { target: TargetId(7), delivered: 0, end: PushEnd::Stopped, .. } = fed else {
        panic!("{fed:?}")
    };
    // Its ids are still free.
    rig.capture.send([open(other)]).unwrap();
}

#[test]
fn dropping_the_streams_of_a_capture_that_has_ended_frees_their_rings() {
    let ((sender, events), tool) = (channel(), tool());
    let capture = Capture::start(move |event| drop(sender.send(event))).unwrap();
    // A request to the kernel is in flight for this one as the capture ends.
    let (read, _write) = pipe();
    capture.send([add(ID, read, stream(4096, Policy::DropNewest))]).unwrap();
    wait_until(&capture, ID, |_| true);
    drop(capture);
    let Some(Event::Ended { mut streams }) = events.iter().last() else { panic!("the end was not last") };
    let request = request(1, vec![attach(&tool, ID, Start::Oldest)]);
    let answers = answer(streams.perform([Command::Request(request)]), 1);
    let [StreamAnswer::Joined(Some(joined))] = &answers[..] else { panic!("{answers:?}") };
    let ring = Arc::downgrade(&joined.attached.ring);
    drop(answers);
    assert!(ring.upgrade().is_some());
    drop(streams);
    assert!(ring.upgrade().is_none());
}
