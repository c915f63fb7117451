//! The state that is kept of forgotten streams for tools that have not received their rings: of
//! streams whose readers were moved meanwhile, and for tools that no longer receive anything.

use super::*;

impl Rig {
    /// Lets `source` continue in a second ring and complete there, and moves its readers.
    fn complete_in_second_ring(&mut self, source: SourceId) {
        let larger = iof_shm_ring::StreamConfig { capacity: 4 << 20, policy: iof_shm_ring::Policy::Block };
        self.state.request_unanswered(vec![StreamStep::Reconfigure { source, config: larger }]);
        self.state.effects.commands.push(Command::Deliver { source, delivery: vec![0; 4096].into() });
        self.state.effects.commands.push(Command::Finish(source));
        self.complete(source, 1);
        self.settle();
    }

    /// Ends and removes the job.
    fn remove(&mut self) {
        self.end_job();
        assert!(self.state.remove_job(&self.nspace).is_some());
        self.settle();
    }

    fn peer(&mut self, tool: PeerId) -> &mut Peer {
        self.state.tools.get_mut(&tool).unwrap()
    }
}

#[test]
fn a_forgotten_stream_is_dropped_with_both_rings_of_a_reader_that_was_moved() {
    let mut rig = rig();
    rig.state.settings.limits.forgotten = 0;
    let source = rig.add_stream();
    let tool = rig.connect();
    rig.pull(tool);
    rig.settle();
    rig.complete_in_second_ring(source);
    assert_eq!(rig.peer(tool).readings().next().map(|(id, _)| id), Some(ReaderId::from(1)));
    rig.remove();
    let peer = rig.peer(tool);
    assert_eq!((peer.unread().forgotten(), peer.unread().unsent()), (0, 0));
    assert!(peer.readings().next().is_none());
    assert_eq!(peer.take_discarded().len(), 2);
    assert_eq!(rig.messages(tool), ["pulled", "missed", "announced", "ended"]);
    let memory = Arc::clone(&rig.memory);
    let peer = rig.peer(tool);
    assert_eq!(std::iter::from_fn(|| peer.take_slot(&memory).ok()).count(), MAX_SLOTS);
}

#[test]
fn a_tool_without_streams_to_drop_does_not_protect_those_of_others() {
    let mut rig = rig();
    rig.state.settings.limits.forgotten = 2;
    let sources = [rig.add_stream(), rig.add_stream()];
    let keeps = rig.connect();
    rig.pull(keeps);
    rig.settle();
    // It has received the first rings, so it must receive the second ones.
    rig.send_queue(keeps);
    let drops = rig.connect();
    rig.pull(drops);
    rig.settle();
    sources.into_iter().for_each(|source| rig.complete_in_second_ring(source));
    rig.remove();
    assert_eq!(rig.messages(keeps), ["next ring 0", "next ring 1", "announced", "ended"]);
    assert_eq!(rig.messages(drops), ["pulled", "missed", "announced", "ended"]);
}

#[test]
fn nothing_is_queued_or_counted_for_a_tool_that_receives_nothing() {
    let mut rig = rig();
    let (first, second) = (rig.add_stream(), rig.add_stream());
    let tool = rig.connect();
    rig.pull(tool);
    rig.settle();
    rig.complete(first, 0);
    rig.state.forget_stream(first);
    let counts = |rig: &mut Rig| {
        let peer = rig.peer(tool);
        (peer.unread().forgotten(), peer.unread().unsent(), peer.take_discarded().len())
    };
    assert_eq!(counts(&mut rig), (1, 1, 0));
    rig.peer(tool).stop_sending();
    // The answer and two rings.
    assert_eq!(counts(&mut rig), (0, 0, 3));
    // One ring is on its way, and another stream is forgotten.
    rig.add_stream();
    rig.complete(second, 0);
    rig.state.forget_stream(second);
    rig.settle();
    assert_eq!(counts(&mut rig), (0, 0, 1));
    assert_eq!(rig.peer(tool).readings().count(), 1, "it reads the third stream");
    rig.end_job();
    assert!(rig.peer(tool).front().is_none());
    assert_eq!(rig.peer(tool).unread().ends(), 0);
}

#[test]
fn a_stream_that_was_kept_for_a_tool_is_removed_when_the_tool_receives_nothing_any_more() {
    let mut rig = rig();
    let source = rig.add_stream();
    let tool = rig.reading_tool();
    let memory = Arc::clone(&rig.memory);
    while rig.peer(tool).take_slot(&memory).is_ok() {}
    rig.complete_in_second_ring(source);
    rig.remove();
    assert_eq!(rig.state.kept_streams.len(), 1, "the reader waits for a slot");
    rig.peer(tool).stop_sending();
    assert!(rig.peer(tool).take_stopped() && !rig.peer(tool).take_stopped());
    rig.state.remove_kept_streams();
    assert!(rig.state.kept_streams.is_empty());
}
