//! Requests: performed in order with the other commands, and answered in order with the events.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::channel;

use iof_capture::{
    Capture, EndedStreams, Event, Gating, Joined, NewStream, PushId, RequestId, SourceId, StreamAnswer,
    StreamRequest, StreamStep, TargetId,
};
use iof_shm_ring::{Policy, Start};

use super::rig;
use crate::common::{CaptureRig, TestTool, next, pipe, stream, tool, wait_end, wait_until};

const ID: SourceId = SourceId(1);

fn attach(tool: &TestTool, source: SourceId, start: Start) -> StreamStep {
    let reader = tool.page.take_slot().unwrap();
    let (page, gating) = (tool.page.clone(), Gating::Keep);
    StreamStep::Attach { source, page, reader, start, gating, group: 0, remote: true }
}

fn request(id: u64, steps: Vec<StreamStep>) -> StreamRequest {
    StreamRequest { id: Some(RequestId(id)), steps }
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
    rig.capture.add(ID, read, NewStream { stream: stream(4096, Policy::DropNewest), first }).unwrap();
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
    rig.capture.open(ID, stream(4096, Policy::DropNewest)).unwrap();
    rig.capture.request(request(1, vec![attach(&tool, ID, Start::Oldest)])).unwrap();
    rig.capture.finish(ID).unwrap();
    rig.capture.request(request(2, vec![attach(&tool, ID, Start::Oldest)])).unwrap();
    rig.capture.remove(ID).unwrap();
    rig.capture.request(request(3, vec![attach(&tool, ID, Start::Oldest)])).unwrap();
    assert!(matches!(answers(&rig, 1)[..], [StreamAnswer::Joined(Some(_))]));
    assert!(matches!(next(&rig.events), Event::Complete { source: ID, .. }));
    assert!(matches!(answers(&rig, 2)[..], [StreamAnswer::Joined(Some(_))]), "a complete stream has readers");
    assert!(matches!(answers(&rig, 3)[..], [StreamAnswer::Joined(None)]), "a removed stream has none");
}

#[test]
fn each_step_that_has_an_answer_is_answered_and_the_others_are_performed() {
    let (rig, tool) = (rig(), tool());
    rig.capture.open(ID, stream(4096, Policy::DropNewest)).unwrap();
    let step = attach(&tool, ID, Start::Oldest);
    let StreamStep::Attach { reader, .. } = step else { unreachable!() };
    let readers = vec![(tool.page.clone(), reader)];
    let count = || StreamStep::Count { source: ID, readers: readers.clone() };
    let detach = StreamStep::Detach { source: ID, page: tool.page.clone(), reader };
    rig.capture.deliver(ID, b"four".to_vec()).unwrap();
    let steps = vec![step, count(), detach, count()];
    rig.capture.request(request(1, steps)).unwrap();
    rig.capture.request(StreamRequest { id: None, steps: vec![count()] }).unwrap();
    let steps = vec![StreamStep::Takes(TargetId(9)), StreamStep::Lagging(PushId(9))];
    rig.capture.request(request(2, steps)).unwrap();
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
    capture.open(ID, stream(4096, Policy::DropNewest)).unwrap();
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
    capture.open(ID, stream(4096, Policy::DropNewest)).unwrap();
    capture.deliver(ID, b"four".to_vec()).unwrap();
    drop(capture);
    let Some(Event::Ended { mut streams }) = events.iter().last() else { panic!("the end was not last") };
    let join = |streams: &mut EndedStreams, id| match streams
        .perform(request(id, vec![attach(&tool, ID, Start::Oldest)]))
    {
        Some(Event::Answered { request, answers }) if request == RequestId(id) => answers,
        other => panic!("unexpected {other:?}"),
    };
    assert!(matches!(join(&mut streams, 1)[..], [StreamAnswer::Joined(Some(_))]));
    streams.remove(ID);
    assert!(matches!(join(&mut streams, 2)[..], [StreamAnswer::Joined(None)]));
}

#[test]
fn dropping_the_streams_of_a_capture_that_has_ended_frees_their_rings() {
    let ((sender, events), tool) = (channel(), tool());
    let capture = Capture::start(move |event| drop(sender.send(event))).unwrap();
    // A request to the kernel is in flight for this one as the capture ends.
    let (read, _write) = pipe();
    capture.add(ID, read, stream(4096, Policy::DropNewest)).unwrap();
    wait_until(&capture, ID, |_| true);
    drop(capture);
    let Some(Event::Ended { mut streams }) = events.iter().last() else { panic!("the end was not last") };
    let joined = streams.perform(request(1, vec![attach(&tool, ID, Start::Oldest)]));
    let Some(Event::Answered { answers, .. }) = joined else { panic!("no answer") };
    let [StreamAnswer::Joined(Some(joined))] = &answers[..] else { panic!("{answers:?}") };
    let ring = Arc::downgrade(&joined.attached.ring);
    drop(answers);
    assert!(ring.upgrade().is_some());
    drop(streams);
    assert!(ring.upgrade().is_none());
}
