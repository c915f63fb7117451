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

fn begin(targets: &mut Targets, id: u64, to: &[u64]) -> Vec<String> {
    let inlet = Arc::new(Inlet::create(4096, "test").unwrap());
    let to: Vec<TargetId> = to.iter().copied().map(TargetId).collect();
    said(targets.begin(PushId(id), inlet, false, &to))
}

fn end(targets: &mut Targets, id: u64, end: PushEnd) -> Vec<String> {
    let at = targets.find(TargetId(id)).unwrap();
    said(targets.end(at, end))
}

/// All of a push's targets take all of it.
fn complete(targets: &mut Targets, id: u64) -> Vec<String> {
    let number = targets.find_push(PushId(id)).unwrap();
    let mut all: Vec<usize> = targets.push_mut(number).unwrap().targets().collect();
    all.sort_unstable();
    all.into_iter().flat_map(|at| said(targets.end_turn(at, PushEnd::Complete))).collect()
}

fn said(events: Vec<Event>) -> Vec<String> {
    let word = |event| match event {
        Event::Fed { push, target, delivered, end } => {
            format!("{} at {}: {delivered} {end:?}", push.0, target.0)
        }
        Event::PushOver { push } => format!("{} over", push.0),
        Event::Shut { target } => format!("shut {}", target.0),
        other => panic!("{other:?}"),
    };
    events.into_iter().map(word).collect()
}

/// Whose turn it is at a target.
fn turn(targets: &mut Targets, id: u64) -> Option<u64> {
    let at = targets.find(TargetId(id)).unwrap();
    let turn = targets.get_mut(at).unwrap().turn()?;
    targets.push_mut(turn).map(|push| push.id().0)
}

#[test]
fn each_target_has_its_pushes_in_the_order_in_which_they_came() {
    let (mut targets, _reads) = targets(&[1, 2, 3]);
    assert!(begin(&mut targets, 10, &[1, 2]).is_empty());
    assert!(begin(&mut targets, 20, &[2, 3]).is_empty());
    assert_eq!([1, 2, 3].map(|id| turn(&mut targets, id)), [Some(10), Some(10), Some(20)]);
    assert_eq!(complete(&mut targets, 10), ["10 at 1: 0 Complete", "10 at 2: 0 Complete", "10 over"]);
    assert_eq!([1, 2, 3].map(|id| turn(&mut targets, id)), [None, Some(20), Some(20)]);
    assert_eq!(complete(&mut targets, 20), ["20 at 2: 0 Complete", "20 at 3: 0 Complete", "20 over"]);
}

#[test]
fn pushes_that_wait_at_a_target_that_ends_find_it_closed_and_go_on_elsewhere() {
    let (mut targets, _reads) = targets(&[1, 2]);
    for (id, to) in [(10, &[1][..]), (20, &[1, 2]), (30, &[1])] {
        begin(&mut targets, id, to);
    }
    let said = end(&mut targets, 1, PushEnd::CutOff);
    let expected =
        ["10 at 1: 0 CutOff", "10 over", "20 at 1: 0 Closed", "30 at 1: 0 Closed", "30 over", "shut 1"];
    assert_eq!(said, expected);
    assert_eq!(complete(&mut targets, 20), ["20 at 2: 0 Complete", "20 over"]);
}

#[test]
fn who_is_not_there_is_told_of_at_once_and_a_push_for_nobody_is_over() {
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
fn who_holds_a_push_back_is_named_and_whose_turn_it_is_there() {
    let (mut targets, _reads) = targets(&[1, 2, 3]);
    begin(&mut targets, 10, &[1]);
    begin(&mut targets, 20, &[1, 2, 3]);
    let lagging = |targets: &Targets| {
        let SlowTargets { position, targets } = targets.lagging(PushId(20)).unwrap();
        let mut who: Vec<_> = targets.iter().map(|who| (who.target.0, who.turn.0)).collect();
        who.sort_unstable();
        (position, who)
    };
    assert_eq!(lagging(&targets), (0, vec![]), "there is nothing yet");
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
fn a_target_takes_what_is_fed_as_long_as_it_is_there_and_has_a_reader() {
    let (mut targets, mut reads) = targets(&[1, 2]);
    assert!(targets.takes(TargetId(1)) && targets.takes(TargetId(2)) && !targets.takes(TargetId(3)));
    drop(reads.pop());
    // A process that another test is about to start may hold it for a moment.
    while targets.takes(TargetId(2)) {
        std::thread::yield_now();
    }
    end(&mut targets, 1, PushEnd::Stopped);
    assert!(!targets.takes(TargetId(1)));
}
