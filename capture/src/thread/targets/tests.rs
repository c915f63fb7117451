use super::*;

fn targets(ids: &[u64]) -> (Targets, Vec<OwnedFd>) {
    let mut targets = Targets::default();
    let add = |id: &u64| {
        let (read, write) = nix::unistd::pipe().unwrap();
        targets.add(TargetId(*id), write);
        read
    };
    let reads = ids.iter().map(add).collect();
    (targets, reads)
}

/// Begins push `id` to the targets `target_ids`. Returns the reported events as text.
fn begin(targets: &mut Targets, id: u64, target_ids: &[u64]) -> Vec<String> {
    let inlet = Arc::new(Inlet::create(4096, "test").unwrap());
    let target_ids: Vec<TargetId> = target_ids.iter().copied().map(TargetId).collect();
    described(targets.begin(PushId(id), inlet, false, &target_ids))
}

/// Ends target `id`. Returns the reported events as text.
fn end(targets: &mut Targets, id: u64, end: PushEnd) -> Vec<String> {
    let index = targets.find(TargetId(id)).unwrap();
    described(targets.end(index, end))
}

/// Completes push `id` at all its targets. Returns the reported events as text.
fn complete(targets: &mut Targets, id: u64) -> Vec<String> {
    let push = targets.find_push(PushId(id)).unwrap();
    let mut indexes: Vec<usize> = targets.push_mut(push).unwrap().targets().collect();
    indexes.sort_unstable();
    indexes.into_iter().flat_map(|index| described(targets.end_turn(index, PushEnd::Complete))).collect()
}

fn described(events: Vec<Event>) -> Vec<String> {
    let describe = |event| match event {
        Event::Fed { push, target, delivered, end } => {
            format!("{} at {}: {delivered} {end:?}", push.0, target.0)
        }
        Event::PushOver { push } => format!("{} over", push.0),
        Event::Shut { target } => format!("shut {}", target.0),
        other => panic!("{other:?}"),
    };
    events.into_iter().map(describe).collect()
}

/// Returns the push that has the turn at target `id`.
fn turn(targets: &mut Targets, id: u64) -> Option<u64> {
    let index = targets.find(TargetId(id)).unwrap();
    let turn = targets.get_mut(index).unwrap().turn()?;
    targets.push_mut(turn).map(|push| push.id().0)
}

#[test]
fn each_target_serves_its_pushes_in_the_order_in_which_they_began() {
    let (mut targets, _reads) = targets(&[1, 2, 3]);
    assert!(begin(&mut targets, 10, &[1, 2]).is_empty());
    assert!(begin(&mut targets, 20, &[2, 3]).is_empty());
    assert_eq!([1, 2, 3].map(|id| turn(&mut targets, id)), [Some(10), Some(10), Some(20)]);
    assert_eq!(complete(&mut targets, 10), ["10 at 1: 0 Complete", "10 at 2: 0 Complete", "10 over"]);
    assert_eq!([1, 2, 3].map(|id| turn(&mut targets, id)), [None, Some(20), Some(20)]);
    assert_eq!(complete(&mut targets, 20), ["20 at 2: 0 Complete", "20 at 3: 0 Complete", "20 over"]);
}

#[test]
fn when_a_target_ends_waiting_pushes_are_closed_there_and_continue_at_others() {
    let (mut targets, _reads) = targets(&[1, 2]);
    for (id, target_ids) in [(10, &[1][..]), (20, &[1, 2]), (30, &[1])] {
        begin(&mut targets, id, target_ids);
    }
    let events = end(&mut targets, 1, PushEnd::CutOff);
    let expected =
        ["10 at 1: 0 CutOff", "10 over", "20 at 1: 0 Closed", "30 at 1: 0 Closed", "30 over", "shut 1"];
    assert_eq!(events, expected);
    assert_eq!(complete(&mut targets, 20), ["20 at 2: 0 Complete", "20 over"]);
}

#[test]
fn a_missing_target_is_reported_at_once_and_a_push_without_targets_is_over() {
    let (mut targets, _reads) = targets(&[1]);
    assert_eq!(begin(&mut targets, 10, &[7, 1]), ["10 at 7: 0 Closed"]);
    assert_eq!(begin(&mut targets, 20, &[7]), ["20 at 7: 0 Closed", "20 over"]);
    assert_eq!(begin(&mut targets, 30, &[]), ["30 over"]);
    end(&mut targets, 1, PushEnd::Stopped);
    assert_eq!(begin(&mut targets, 40, &[1]), ["40 at 1: 0 Closed", "40 over"]);
}

#[test]
fn a_target_that_is_named_twice_is_fed_once() {
    let (mut targets, _reads) = targets(&[1]);
    assert_eq!(begin(&mut targets, 10, &[1, 7, 1, 7]), ["10 at 7: 0 Closed"]);
    assert_eq!(complete(&mut targets, 10), ["10 at 1: 0 Complete", "10 over"]);
    begin(&mut targets, 20, &[1]);
    assert_eq!(turn(&mut targets, 1), Some(20));
    assert_eq!(complete(&mut targets, 20), ["20 at 1: 0 Complete", "20 over"]);
    assert_eq!(turn(&mut targets, 1), None);
}

#[test]
fn slow_targets_are_reported_with_the_push_that_has_the_turn_there() {
    let (mut targets, _reads) = targets(&[1, 2, 3]);
    begin(&mut targets, 10, &[1]);
    begin(&mut targets, 20, &[1, 2, 3]);
    let lagging = |targets: &Targets| {
        let SlowTargets { position, targets } = targets.lagging(PushId(20)).unwrap();
        let mut slow: Vec<_> = targets.iter().map(|slow| (slow.target.0, slow.turn.0)).collect();
        slow.sort_unstable();
        (position, slow)
    };
    assert_eq!(lagging(&targets), (0, vec![]), "nothing was pushed yet");
    let number = targets.find_push(PushId(20)).unwrap();
    let third = targets.find(TargetId(3)).unwrap();
    targets.push_mut(number).unwrap().fill(100, false);
    targets.push_mut(number).unwrap().record_taken(third, 100);
    assert_eq!(lagging(&targets), (0, vec![(1, 10), (2, 20)]));
    end(&mut targets, 1, PushEnd::Stopped);
    end(&mut targets, 2, PushEnd::Stopped);
    assert_eq!(lagging(&targets), (100, vec![]));
    end(&mut targets, 3, PushEnd::Stopped);
    assert_eq!(targets.lagging(PushId(20)), None);
}

#[test]
fn a_target_accepts_pushes_while_it_exists_and_its_pipe_has_a_reader() {
    let (mut targets, mut reads) = targets(&[1, 2]);
    assert!(targets.takes(TargetId(1)) && targets.takes(TargetId(2)) && !targets.takes(TargetId(3)));
    drop(reads.pop());
    // A process that another test is starting may hold the read end for a moment.
    while targets.takes(TargetId(2)) {
        std::thread::yield_now();
    }
    end(&mut targets, 1, PushEnd::Stopped);
    assert!(!targets.takes(TargetId(1)));
}
