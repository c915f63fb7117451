//! Checks of one tool's state, for simulators.

use std::collections::{BTreeMap, BTreeSet};

use iof_core::{Attachment, Limits, Outgoing, Peer, QueuedItem, StreamName, is_request};
use iof_proto::{Decoder, FromTool, ToTool};
use iof_shm_ring::ReaderId;

use super::reached::ReachedLimits;

/// Panics if the state contradicts itself.
pub(super) fn check(peer: &Peer) {
    check_queues(peer);
    let counted =
        peer.outgoing().count() + peer.answers().0 + peer.unread().forgotten() + peer.unread().ends();
    assert!(peer.receives() || counted == 0, "tool {} receives nothing", peer.name());
    let id = peer.name();
    check_readings(peer);
    let items = |matches: fn(&QueuedItem) -> bool| peer.outgoing().filter(|out| matches(out.item())).count();
    assert_eq!(
        items(|item| matches!(item, QueuedItem::End { .. })),
        peer.unread().ends(),
        "ends for tool {id}"
    );
    // One that is encoded is about to be sent, and adds nothing up any more.
    let adds_up = |out: &&Outgoing| matches!(out.item(), QueuedItem::Missed(_)) && out.frame().is_empty();
    assert_eq!(peer.outgoing().filter(adds_up).count(), peer.unread().sums());
}

/// Returns what the driver keeps for messages to the tool.
pub(super) fn attachments(peer: &Peer) -> BTreeSet<Attachment> {
    let unsent = peer.outgoing().filter(|out| !out.is_begun()).map(Outgoing::attachment);
    let all = unsent.chain(peer.discarded().iter().copied());
    all.filter(|attachment| *attachment != Attachment::None).collect()
}

fn check_readings(peer: &Peer) {
    let (id, mut slots) = (peer.name(), BTreeSet::new());
    let (mut forgotten, mut unsent) = (0, 0);
    let mut joining: BTreeMap<u32, usize> = BTreeMap::new();
    let queued: BTreeSet<ReaderId> = peer.outgoing().filter_map(Outgoing::ring_reader).collect();
    for (reader, reading) in peer.readings() {
        let known = peer.reader_of(reading.source, reading.handler);
        assert_eq!(known, Some(reader), "the id of a reader of tool {id}");
        let is_due = reading.joining().is_some() || queued.contains(&reader);
        assert!(reading.is_sent() || is_due, "a ring of tool {id} is neither sent nor queued");
        for slot in reading.slots(reader) {
            assert!(slots.insert(slot), "two readers of tool {id} have the slot {slot:?}");
        }
        forgotten += usize::from(reading.forgotten().is_some());
        unsent += usize::from(reading.forgotten().is_some() && !reading.is_sent());
        *joining.entry(reading.handler).or_default() += usize::from(reading.joining().is_some());
    }
    assert_eq!(peer.indexed_readers(), peer.readings().count(), "readers of tool {id}");
    assert_eq!(
        (forgotten, unsent),
        (peer.unread().forgotten(), peer.unread().unsent()),
        "unread by tool {id}"
    );
    for (handler, registration) in peer.registrations() {
        let joining = joining.remove(&handler).unwrap_or(0);
        // A reader that was detached while it moved is still waited for.
        assert!(registration.joining() >= joining, "readers of registration {handler} of tool {id}");
    }
}

/// Panics if the counters of the queues are wrong.
fn check_queues(peer: &Peer) {
    let answers = peer.outgoing().filter(|out| out.is_answer());
    let bytes = answers.clone().map(|out| out.frame().len()).sum::<usize>();
    assert_eq!((answers.count(), bytes), peer.answers(), "answers of {}", peer.name());
    let (deferred, counted) = peer.deferred();
    let deferred: usize = deferred.map(<[u8]>::len).sum();
    assert_eq!(deferred, counted, "deferred requests of {}", peer.name());
}

/// Panics if a limit of this tool is exceeded, and notes those that are reached.
pub(super) fn check_limits(peer: &Peer, limits: &Limits, reached: &mut ReachedLimits) {
    let (mut deferred, deferred_bytes) = peer.deferred();
    let (answers, answer_bytes) = peer.answers();
    // The last request may exceed the limit.
    let before = deferred_bytes.saturating_sub(deferred.next_back().map_or(0, <[u8]>::len));
    assert!(before == 0 || before < limits.deferred_bytes, "{before} bytes are deferred");
    reached.note("deferred_bytes", deferred_bytes >= limits.deferred_bytes);
    reached.note("answers_waiting", peer.has_deferred() && answers >= limits.answers_waiting);
    reached.note("bytes_waiting", peer.has_deferred() && answer_bytes >= limits.bytes_waiting);
    reached.note("forgotten_per_tool", peer.is_behind());
}

/// Panics if `message` must not be served yet.
pub(super) fn check_serves(peer: &Peer, limits: &Limits, message: &FromTool) {
    let (answers, answer_bytes) = peer.answers();
    let has_room = answers < limits.answers_waiting && answer_bytes < limits.bytes_waiting;
    assert!(!is_request(message) || has_room, "a request was not deferred: {message:?}");
}

/// Panics if the tool has more unread data of forgotten jobs than it may have, and some of it
/// can be dropped.
pub(super) fn check_shed(peer: &Peer, limits: &Limits) {
    if !peer.may_lose() {
        return;
    }
    let (limit, mut ends) = (limits.forgotten_per_tool, BTreeMap::new());
    let unsent = peer.outgoing().filter(|out| !out.is_begun());
    for out in unsent {
        if let QueuedItem::End { handler, nspace, .. } = out.item() {
            *ends.entry((*handler, nspace.clone())).or_insert(0) += 1;
        }
    }
    let can_merge = ends.values().any(|ends| *ends > 1);
    assert!(peer.unread().ends() <= limit || !can_merge, "{} ends of jobs are kept", peer.unread().ends());
    let (forgotten, droppable) = (peer.unread().forgotten(), unsent_streams(peer));
    assert!(forgotten <= limit || droppable == 0, "{droppable} of {forgotten} streams are kept");
}

/// Returns the number of forgotten streams whose first ring was not sent, found by the streams
/// that the messages name.
pub(super) fn unsent_streams(peer: &Peer) -> usize {
    let unsent = peer.outgoing().filter(|out| !out.is_begun());
    let mut streams: BTreeSet<(u32, StreamName)> = unsent.filter_map(first_ring).collect();
    let forgotten =
        peer.readings().map(|(_, reading)| reading).filter(|reading| reading.forgotten().is_some());
    forgotten.filter(|reading| streams.remove(&(reading.handler, (*reading.name).clone()))).count()
}
/// Returns the registration and the stream whose first ring a message announces.
fn first_ring(out: &Outgoing) -> Option<(u32, StreamName)> {
    match Decoder::new().decode(&mut out.frame()) {
        Ok(Some(ToTool::Ring { handler, source, channel, logged, run, follows: None, .. })) => {
            Some((handler, StreamName { source, channel, logged, run }))
        }
        _ => None,
    }
}
