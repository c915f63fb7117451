//! The driver on a simulated kernel. A random script decides when and how each request is answered.

mod kernel;
mod pipe;
mod simulation;
mod target;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use iof_shm_ring::Policy;
use proptest::prelude::*;
use proptest::test_runner::Config;

use self::simulation::{InjectedPanic, PIPES, PUSHES, Simulation};
use super::*;

/// The answer to a request, where the state of its file allows it.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// All available bytes.
    All,
    /// At most this many bytes.
    AtMost(usize),
    /// An errno.
    Error(i32),
}

impl Outcome {
    /// Returns how many of `len` bytes are transferred.
    fn bytes(self, len: usize) -> usize {
        match self {
            Outcome::All => len,
            Outcome::AtMost(most) => most.min(len),
            Outcome::Error(_) => 0,
        }
    }
}

/// The origin of a source's bytes.
#[derive(Clone, Copy, Debug)]
enum SourceKind {
    Pipe,
    /// The terminal of a session whose leader is watched.
    Terminal,
    /// Deliveries instead of a file.
    Queue,
}

/// One action of a script.
#[derive(Clone, Debug)]
enum Action {
    Add {
        policy: Policy,
        pages: u64,
        kind: SourceKind,
    },
    AddTarget,
    /// A push begins. Some of its targets may not exist yet, or not any more.
    BeginPush {
        targets: Vec<usize>,
        pages: u64,
        closes: bool,
    },
    /// Bytes are written to a pipe, or delivered.
    Write {
        pipe: usize,
        bytes: usize,
    },
    /// The last writer of a pipe closes it, or the last delivery was made.
    HangUp {
        pipe: usize,
    },
    /// As many bytes are pushed as there is room for; they are the last if `over`.
    Fill {
        push: usize,
        bytes: usize,
        over: bool,
    },
    CutOff {
        push: usize,
        position: u64,
    },
    Shut {
        target: usize,
    },
    /// One of the requests in flight is answered. If the request was cancelled, `late` decides
    /// whether the cancellation came too late.
    Answer {
        request: usize,
        outcome: Outcome,
        late: bool,
    },
    /// The reader of a pipe's stream consumes some of its bytes.
    Consume {
        pipe: usize,
        bytes: usize,
    },
    Close {
        pipe: usize,
    },
    Remove {
        pipe: usize,
    },
    Finish {
        pipe: usize,
    },
    /// The bell rings without a command.
    Ring,
    Stop,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        6 => Just(Outcome::All),
        4 => (1usize..2000).prop_map(Outcome::AtMost),
        2 => Just(Outcome::Error(libc::EAGAIN)),
        2 => Just(Outcome::Error(libc::EINTR)),
        1 => prop_oneof![Just(libc::EFAULT), Just(libc::ENOMEM)].prop_map(Outcome::Error),
        1 => prop_oneof![Just(libc::EIO), Just(libc::EBADF), Just(libc::EPIPE)].prop_map(Outcome::Error),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let (pipe, push) = (0..PIPES, 0..PUSHES);
    let policy = prop_oneof![Just(Policy::DropNewest), Just(Policy::DropOldest), Just(Policy::Block)];
    let kind = prop_oneof![3 => Just(SourceKind::Pipe), 1 => Just(SourceKind::Terminal), 2 => Just(SourceKind::Queue)];
    prop_oneof![
        3 => (policy, 1u64..6, kind).prop_map(|(policy, pages, kind)| Action::Add { policy, pages, kind }),
        4 => Just(Action::AddTarget),
        4 => (prop::collection::vec(pipe.clone(), 0..5), 1u64..3, prop::bool::weighted(0.3))
            .prop_map(|(targets, pages, closes)| Action::BeginPush { targets, pages, closes }),
        8 => (pipe.clone(), 1usize..20_000).prop_map(|(pipe, bytes)| Action::Write { pipe, bytes }),
        1 => pipe.clone().prop_map(|pipe| Action::HangUp { pipe }),
        16 => (push.clone(), 0usize..10_000, prop::bool::weighted(0.1))
            .prop_map(|(push, bytes, over)| Action::Fill { push, bytes, over }),
        1 => (push, 0u64..20_000).prop_map(|(push, position)| Action::CutOff { push, position }),
        30 => (any::<usize>(), outcome(), any::<bool>())
            .prop_map(|(request, outcome, late)| Action::Answer { request, outcome, late }),
        6 => (pipe.clone(), 1usize..8000).prop_map(|(pipe, bytes)| Action::Consume { pipe, bytes }),
        1 => pipe.clone().prop_map(|pipe| Action::Close { pipe }),
        1 => pipe.clone().prop_map(|pipe| Action::Remove { pipe }),
        1 => pipe.clone().prop_map(|pipe| Action::Finish { pipe }),
        1 => pipe.prop_map(|target| Action::Shut { target }),
        2 => Just(Action::Ring),
    ]
}

/// Generates a script with at most one `Stop`.
fn script() -> impl Strategy<Value = Vec<Action>> {
    (prop::collection::vec(action(), 0..200), prop::option::of(0usize..400)).prop_map(
        |(mut actions, stop)| {
            if let Some(index) = stop.filter(|index| *index < actions.len()) {
                actions.insert(index, Action::Stop);
            }
            actions
        },
    )
}

/// A failure of the simulated kernel.
#[derive(Clone, Copy, Debug)]
struct Breakdown {
    /// The number of turns before the failure.
    after: usize,
    kind: BreakdownKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum BreakdownKind {
    /// One turn fails.
    OneTurn,
    /// All turns fail, so that not even cancelled requests are answered.
    AllTurns,
    /// The request for the bell fails.
    Bell,
}

/// The end of a source, as the driver reported it.
#[derive(Debug)]
struct SourceEnd {
    produced: u64,
    error: bool,
}

/// Runs the driver until it ends. Returns the final state of the simulation.
fn run_script(
    actions: Vec<Action>,
    discards: Vec<Outcome>,
    breakdown: Option<Breakdown>,
    panic_after: Option<usize>,
) -> Rc<RefCell<Simulation>> {
    let (simulation, driver) = Simulation::new(actions, discards, breakdown, panic_after);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| driver.run()))
        && !panic.is::<InjectedPanic>()
    {
        resume_unwind(panic);
    }
    simulation.borrow_mut().check_events();
    simulation
}

proptest! {
    #![proptest_config(Config { cases: 500, failure_persistence: None, ..Config::default() })]

    #[test]
    fn sources_and_targets_end_once_and_every_byte_is_delivered_or_counted(
        actions in script(),
        discards in prop::collection::vec(outcome(), 0..20),
    ) {
        let simulation = run_script(actions, discards, None, None);
        let mut simulation = simulation.borrow_mut();
        let files: Vec<Token> = simulation.files.keys().map(|word| Token::from(*word)).collect();
        prop_assert_eq!(files, [Token::Bell]);
        for (number, pipe) in simulation.pipes.iter_mut().enumerate() {
            prop_assert!(pipe.check(number), "pipe {number} has not ended");
        }
        prop_assert!(simulation.targets.iter().all(|target| target.ended));
        prop_assert!(simulation.pushes.iter().all(|push| push.ended));
    }

    #[test]
    fn after_a_kernel_failure_everything_ends_once_or_stays_mapped(
        actions in script(),
        after in 0usize..300,
        kind in prop_oneof![
            Just(BreakdownKind::OneTurn),
            Just(BreakdownKind::AllTurns),
            Just(BreakdownKind::Bell),
        ],
    ) {
        let simulation = run_script(actions, Vec::new(), Some(Breakdown { after, kind }), None);
        let mut simulation = simulation.borrow_mut();
        for (number, pipe) in simulation.pipes.iter_mut().enumerate() {
            pipe.check(number);
        }
        if simulation.broken && kind == BreakdownKind::AllTurns {
            simulation.use_lent_memory();
        } else {
            prop_assert!(simulation.requests.is_empty());
            let mut left = simulation.files.keys().map(|word| Token::from(*word));
            prop_assert!(!left.any(|token| matches!(token, Token::Source(_) | Token::Target(_))));
            // This includes targets and pushes that were still queued as commands at the failure.
            prop_assert!(simulation.targets.iter().all(|target| target.ended));
            prop_assert!(simulation.pushes.iter().all(|push| push.ended));
        }
    }

    #[test]
    fn when_on_event_panics_no_memory_is_released_while_a_request_uses_it(
        actions in script(),
        panic_after in 1usize..6,
        breakdown in prop::option::of(0usize..300),
    ) {
        let breakdown = breakdown.map(|after| Breakdown { after, kind: BreakdownKind::AllTurns });
        let simulation = run_script(actions, Vec::new(), breakdown, Some(panic_after));
        let mut simulation = simulation.borrow_mut();
        prop_assert!(simulation.broken || simulation.requests.is_empty());
        simulation.use_lent_memory();
    }
}
