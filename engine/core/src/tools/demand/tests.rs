use super::*;
use proptest::prelude::*;

const ALL: Rank = Rank::WILDCARD;

fn proc(nspace: &str, rank: Rank) -> Proc {
    Proc::new(Nspace::new(nspace).unwrap(), rank)
}

fn procs(ranks: &[Rank]) -> Vec<Proc> {
    ranks.iter().map(|rank| proc("job", *rank)).collect()
}

fn sources(ranks: &[Rank], channels: Channels) -> ProcChannels {
    ProcChannels { procs: procs(ranks), channels }
}

impl Demand {
    /// Adds a pull that requires exactly one upcall.
    fn ask_one(&mut self, ranks: &[Rank], channels: Channels) -> (Ticket, CallId) {
        let (ticket, calls) = self.ask(&procs(ranks), channels);
        let [(call, _)] = calls[..] else { panic!("{calls:?}") };
        (ticket, call)
    }

    /// Adds a pull whose sources are all asked for or granted already.
    fn ask_covered(&mut self, ranks: &[Rank], channels: Channels) -> Ticket {
        let (ticket, calls) = self.ask(&procs(ranks), channels);
        assert_eq!(calls, []);
        ticket
    }
}

#[test]
fn only_new_sources_are_asked_for() {
    let mut demand = Demand::default();
    let both = Channels::STDOUT | Channels::STDERR;
    let (_, call) = demand.ask_one(&[Rank(0), Rank(1)], Channels::STDOUT);
    demand.answer(call, true);
    let (ticket, calls) = demand.ask(&procs(&[Rank(1), Rank(2)]), both);
    let asked: Vec<ProcChannels> = calls.iter().map(|(_, sources)| sources.clone()).collect();
    assert_eq!(asked, [sources(&[Rank(1)], Channels::STDERR), sources(&[Rank(2)], both)]);
    assert!(!demand.is_granted(ticket));
    assert_eq!(demand.answer(calls[0].0, true), Answered::default());
    assert_eq!(demand.answer(calls[1].0, true).granted, [ticket]);
    let covered = demand.ask_covered(&[Rank(0), Rank(1)], Channels::STDOUT);
    assert!(demand.is_granted(covered));
}

#[test]
fn a_job_covers_its_ranks_but_no_other_job_or_channel() {
    let mut demand = Demand::default();
    let (_, call) = demand.ask_one(&[ALL, Rank(3)], Channels::STDOUT);
    demand.answer(call, true);
    demand.ask_covered(&[Rank(7), ALL], Channels::STDOUT);
    demand.ask_one(&[Rank(7)], Channels::STDERR);
    assert_eq!(demand.ask(&[proc("other", Rank(7))], Channels::STDOUT).1.len(), 1);
}

#[test]
fn equal_and_overlapping_pulls_wait_for_one_answer() {
    let mut demand = Demand::default();
    let (first, call) = demand.ask_one(&[ALL], Channels::STDOUT);
    let second = demand.ask_covered(&[ALL], Channels::STDOUT);
    let third = demand.ask_covered(&[Rank(1)], Channels::STDOUT);
    assert!([first, second, third].iter().all(|ticket| !demand.is_granted(*ticket)));
    assert_eq!(demand.answer(call, true).granted, [first, second, third]);
    assert_eq!(demand.answer(call, false), Answered::default(), "a second answer");
}

#[test]
fn all_pulls_that_wait_for_a_denied_source_are_denied_and_hold_nothing() {
    let mut demand = Demand::default();
    let (first, call) = demand.ask_one(&[Rank(0)], Channels::STDOUT);
    let second = demand.ask_covered(&[Rank(0)], Channels::STDOUT);
    let answered = demand.answer(call, false);
    assert_eq!((answered.denied, answered.stopped), (vec![first, second], vec![]));
    assert!(demand.is_empty());
    // The host is asked again for the next pull.
    demand.ask_one(&[Rank(0)], Channels::STDOUT);
}

#[test]
fn granted_parts_of_a_denied_pull_are_stopped() {
    let mut demand = Demand::default();
    let (_, call) = demand.ask_one(&[Rank(0)], Channels::STDERR);
    demand.answer(call, true);
    let both = Channels::STDOUT | Channels::STDERR;
    let (ticket, calls) = demand.ask(&procs(&[Rank(0), Rank(1)]), both);
    assert_eq!(calls.len(), 2);
    demand.answer(calls[1].0, true);
    let answered = demand.answer(calls[0].0, false);
    assert_eq!(answered.denied, [ticket]);
    assert_eq!(answered.stopped, [calls[1].1.clone()], "not a source that another pull holds");
}

#[test]
fn a_grant_after_the_pull_was_denied_or_abandoned_is_stopped() {
    let mut demand = Demand::default();
    let (ticket, call) = demand.ask_one(&[Rank(0)], Channels::STDOUT);
    assert_eq!(demand.release(ticket), []);
    let answered = demand.answer(call, true);
    assert_eq!(answered.granted, []);
    assert_eq!(answered.stopped, [sources(&[Rank(0)], Channels::STDOUT)]);
    assert!(demand.is_empty());
    // A denial after the pull was abandoned leaves nothing either.
    let (ticket, call) = demand.ask_one(&[Rank(0)], Channels::STDOUT);
    demand.release(ticket);
    assert_eq!(demand.answer(call, false), Answered::default());
    assert!(demand.is_empty());
}

#[test]
fn a_pending_upcall_of_an_abandoned_pull_serves_a_later_pull() {
    let mut demand = Demand::default();
    let (first, call) = demand.ask_one(&[Rank(0)], Channels::STDOUT);
    demand.release(first);
    let second = demand.ask_covered(&[Rank(0)], Channels::STDOUT);
    assert_eq!(demand.answer(call, true), Answered { granted: vec![second], ..Answered::default() });
}

#[test]
fn a_source_is_stopped_once_when_its_last_hold_is_released() {
    let mut demand = Demand::default();
    let (first, call) = demand.ask_one(&[Rank(0)], Channels::STDOUT);
    demand.answer(call, true);
    let second = demand.ask_covered(&[Rank(0)], Channels::STDOUT);
    assert_eq!(demand.release(first), []);
    assert_eq!(demand.release(second), [sources(&[Rank(0)], Channels::STDOUT)]);
    assert_eq!(demand.release(second), []);
    assert!(demand.is_empty());
}

#[test]
fn granted_ranks_become_part_of_a_job_that_is_granted_later() {
    let mut demand = Demand::default();
    let (rank, call) = demand.ask_one(&[Rank(4)], Channels::STDOUT);
    demand.answer(call, true);
    let (job, call) = demand.ask_one(&[ALL], Channels::STDOUT);
    demand.answer(call, true);
    assert_eq!(demand.release(job), [], "another pull holds one of its ranks");
    assert_eq!(demand.release(rank), [sources(&[ALL], Channels::STDOUT)]);
    assert!(demand.is_empty());
}

/// A model of the host, for which a stop of a job is also a stop of the job's ranks.
#[derive(Default)]
struct HostModel {
    forwards: BTreeSet<Source>,
}

impl HostModel {
    fn granted(&mut self, sources: &ProcChannels) {
        self.forwards.extend(all(&sources.procs, sources.channels));
    }

    fn stop(&mut self, stopped: &[ProcChannels]) {
        for source in stopped.iter().flat_map(|sources| all(&sources.procs, sources.channels)) {
            assert!(self.forwards.remove(&source), "{source:?} is not forwarded");
            if source.rank == ALL {
                self.forwards.retain(|forwarded| forwarded.job() != source);
            }
        }
    }

    fn forwards(&self, source: &Source) -> bool {
        self.forwards.contains(source) || self.forwards.contains(&source.job())
    }
}

/// Returns each of `channels` of each of `procs`.
fn all(procs: &[Proc], channels: Channels) -> impl Iterator<Item = Source> {
    procs.iter().flat_map(move |proc| {
        let source = |channel| Source { nspace: Arc::new(proc.nspace.clone()), channel, rank: proc.rank };
        channels.outputs().map(source)
    })
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Vec<Proc>, Channels),
    Answer { which: usize, granted: bool },
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let rank = prop_oneof![3 => (0u32..3).prop_map(Rank), 2 => Just(ALL)];
    let proc = (prop_oneof![4 => Just("job"), 1 => Just("other")], rank)
        .prop_map(|(nspace, rank)| proc(nspace, rank));
    let channels = prop_oneof![
        Just(Channels::STDOUT),
        Just(Channels::STDERR),
        Just(Channels::STDOUT | Channels::STDERR),
        Just(Channels::ALL)
    ];
    prop_oneof![
        3 => (prop::collection::vec(proc, 1..4), channels).prop_map(|(procs, channels)| Step::Ask(procs, channels)),
        3 => (any::<usize>(), prop::bool::weighted(0.7)).prop_map(|(which, granted)| Step::Answer { which, granted }),
        2 => any::<usize>().prop_map(Step::Release),
    ]
}

/// The tables and a model of the host, which are compared after each step.
#[derive(Default)]
struct World {
    demand: Demand,
    host: HostModel,
    /// The upcalls without an answer.
    calls: Vec<(CallId, ProcChannels)>,
    /// The pulls that were neither denied nor released.
    pulls: BTreeMap<Ticket, (Vec<Proc>, Channels)>,
}

impl World {
    /// Applies a step, and checks that every granted pull is forwarded.
    fn play(&mut self, step: Step) {
        match step {
            Step::Ask(procs, channels) => {
                let (ticket, calls) = self.demand.ask(&procs, channels);
                for (_, sources) in &calls {
                    for source in all(&sources.procs, sources.channels) {
                        assert!(!self.host.forwards(&source), "{source:?} is forwarded");
                        let asked = |(_, pending): &(CallId, ProcChannels)| {
                            all(&pending.procs, pending.channels)
                                .any(|pending| pending == source || pending == source.job())
                        };
                        assert!(!self.calls.iter().any(asked), "{source:?} was asked for");
                    }
                }
                self.calls.extend(calls);
                self.pulls.insert(ticket, (procs, channels));
            }
            Step::Answer { which, granted } if !self.calls.is_empty() => {
                let (call, sources) = self.calls.swap_remove(which % self.calls.len());
                if granted {
                    self.host.granted(&sources);
                }
                let answered = self.demand.answer(call, granted);
                assert!(granted || answered.granted.is_empty());
                assert!(!granted || answered.denied.is_empty());
                self.host.stop(&answered.stopped);
                for ticket in answered.denied {
                    self.pulls.remove(&ticket).expect("it was released");
                }
                assert!(answered.granted.iter().all(|ticket| self.pulls.contains_key(ticket)));
            }
            Step::Release(which) if !self.pulls.is_empty() => {
                let ticket = *self.pulls.keys().nth(which % self.pulls.len()).unwrap();
                self.pulls.remove(&ticket);
                let stopped = self.demand.release(ticket);
                self.host.stop(&stopped);
            }
            Step::Answer { .. } | Step::Release(_) => {}
        }
        for (ticket, (procs, channels)) in &self.pulls {
            if self.demand.is_granted(*ticket) {
                for source in all(procs, *channels) {
                    assert!(self.host.forwards(&source), "{source:?} is not forwarded for {ticket:?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn granted_pulls_are_forwarded_and_nothing_remains_after_the_last(
        steps in prop::collection::vec(step(), 0..60)
    ) {
        let mut world = World::default();
        steps.into_iter().for_each(|step| world.play(step));
        let answers = world.calls.len();
        let pulls = world.pulls.len();
        (0..answers).for_each(|_| world.play(Step::Answer { which: 0, granted: true }));
        assert!(world.pulls.keys().all(|ticket| world.demand.is_granted(*ticket)));
        (0..pulls).for_each(|_| world.play(Step::Release(0)));
        assert!(world.demand.is_empty());
        assert_eq!(world.host.forwards, BTreeSet::new());
    }
}

#[test]
fn a_granted_job_includes_what_is_logged_for_it_as_a_whole() {
    let mut demand = Demand::default();
    let (logs, call) = demand.ask_one(&[Rank::UNDEF], Channels::STDOUT);
    demand.answer(call, true);
    let (job, call) = demand.ask_one(&[Rank::WILDCARD], Channels::STDOUT);
    demand.answer(call, true);
    assert_eq!(demand.release(logs), []);
    assert_eq!(demand.release(job), [sources(&[Rank::WILDCARD], Channels::STDOUT)]);
    assert!(demand.is_empty());
}
