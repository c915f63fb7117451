//! The driver over a backend that is played: every answer comes when, and as, a random script says.

mod kernel;
mod pipe;
mod target;
mod world;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use iof_shm_ring::Policy;
use proptest::prelude::*;
use proptest::test_runner::Config;

use self::world::{PIPES, PUSHES, Panicked, World};
use super::*;

/// How a request is answered, if it can be.
#[derive(Clone, Copy, Debug)]
enum How {
    /// With all that is there.
    Well,
    /// With so many bytes at most.
    Short(usize),
    /// With an errno.
    Not(i32),
}

impl How {
    /// So many of `len` bytes.
    fn of(self, len: usize) -> usize {
        match self {
            How::Well => len,
            How::Short(most) => most.min(len),
            How::Not(_) => 0,
        }
    }
}

/// What a source reads.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Pipe,
    /// The terminal of a session whose leader is watched.
    Terminal,
    /// Nothing: its bytes are delivered.
    Queue,
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Add {
        policy: Policy,
        pages: u64,
        kind: Kind,
    },
    AddTarget,
    /// Somebody begins to push, to targets that are there, or not, or not any more.
    BeginPush {
        targets: Vec<usize>,
        pages: u64,
        closes: bool,
    },
    /// Somebody writes to a pipe, or delivers.
    Write {
        pipe: usize,
        bytes: usize,
    },
    /// The last writer of a pipe goes; the last delivery has come.
    HangUp {
        pipe: usize,
    },
    /// Somebody pushes as many bytes as there is room for; maybe the last.
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
    /// One of the requests in flight is answered; a cancelled one as if the cancellation came too
    /// `late`, or not.
    Answer {
        request: usize,
        how: How,
        late: bool,
    },
    /// The reader of a pipe's stream takes some of it.
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
    /// The bell, for no reason.
    Ring,
    Stop,
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        6 => Just(How::Well),
        4 => (1usize..2000).prop_map(How::Short),
        2 => Just(How::Not(libc::EAGAIN)),
        2 => Just(How::Not(libc::EINTR)),
        1 => prop_oneof![Just(libc::EFAULT), Just(libc::ENOMEM)].prop_map(How::Not),
        1 => prop_oneof![Just(libc::EIO), Just(libc::EBADF), Just(libc::EPIPE)].prop_map(How::Not),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let (pipe, push) = (0..PIPES, 0..PUSHES);
    let policy = prop_oneof![Just(Policy::DropNewest), Just(Policy::DropOldest), Just(Policy::Block)];
    let kind = prop_oneof![3 => Just(Kind::Pipe), 1 => Just(Kind::Terminal), 2 => Just(Kind::Queue)];
    prop_oneof![
        3 => (policy, 1u64..6, kind).prop_map(|(policy, pages, kind)| Step::Add { policy, pages, kind }),
        4 => Just(Step::AddTarget),
        4 => (prop::collection::vec(pipe.clone(), 0..5), 1u64..3, prop::bool::weighted(0.3))
            .prop_map(|(targets, pages, closes)| Step::BeginPush { targets, pages, closes }),
        8 => (pipe.clone(), 1usize..20_000).prop_map(|(pipe, bytes)| Step::Write { pipe, bytes }),
        1 => pipe.clone().prop_map(|pipe| Step::HangUp { pipe }),
        16 => (push.clone(), 0usize..10_000, prop::bool::weighted(0.1))
            .prop_map(|(push, bytes, over)| Step::Fill { push, bytes, over }),
        1 => (push, 0u64..20_000).prop_map(|(push, position)| Step::CutOff { push, position }),
        30 => (any::<usize>(), how(), any::<bool>())
            .prop_map(|(request, how, late)| Step::Answer { request, how, late }),
        6 => (pipe.clone(), 1usize..8000).prop_map(|(pipe, bytes)| Step::Consume { pipe, bytes }),
        1 => pipe.clone().prop_map(|pipe| Step::Close { pipe }),
        1 => pipe.clone().prop_map(|pipe| Step::Remove { pipe }),
        1 => pipe.clone().prop_map(|pipe| Step::Finish { pipe }),
        1 => pipe.prop_map(|target| Step::Shut { target }),
        2 => Just(Step::Ring),
    ]
}

/// A play: at most one Stop in it.
fn play() -> impl Strategy<Value = Vec<Step>> {
    (prop::collection::vec(step(), 0..200), prop::option::of(0usize..400)).prop_map(|(mut steps, stop)| {
        if let Some(at) = stop.filter(|at| *at < steps.len()) {
            steps.insert(at, Step::Stop);
        }
        steps
    })
}

/// The kernel stops serving.
#[derive(Clone, Copy, Debug)]
struct Break {
    /// After so many turns.
    after: usize,
    how: Fails,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fails {
    /// One turn.
    Once,
    /// It does not even give answers back.
    ForGood,
    /// It does not tell of the bell any more.
    Bell,
}

/// How a source ended.
#[derive(Debug)]
struct End {
    produced: u64,
    error: bool,
}

/// Plays to the end; gives the world as it is then.
fn play_out(
    steps: Vec<Step>,
    discards: Vec<How>,
    breaks: Option<Break>,
    panics: Option<usize>,
) -> Rc<RefCell<World>> {
    let (world, driver) = World::new(steps, discards, breaks, panics);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| driver.run()))
        && !panic.is::<Panicked>()
    {
        resume_unwind(panic);
    }
    world.borrow_mut().hear();
    world
}

proptest! {
    #![proptest_config(Config { cases: 500, failure_persistence: None, ..Config::default() })]

    #[test]
    fn whatever_a_pipe_does_each_source_and_target_ends_once_and_every_byte_is_delivered_or_counted(
        steps in play(),
        discards in prop::collection::vec(how(), 0..20),
    ) {
        let world = play_out(steps, discards, None, None);
        let mut world = world.borrow_mut();
        let files: Vec<Token> = world.files.keys().map(|word| Token::from(*word)).collect();
        prop_assert_eq!(files, [Token::Bell]);
        for (number, pipe) in world.pipes.iter_mut().enumerate() {
            prop_assert!(pipe.check(number), "pipe {number} has not ended");
        }
        prop_assert!(world.targets.iter().all(|target| target.ended));
        prop_assert!(world.pushes.iter().all(|push| push.ended));
    }

    #[test]
    fn when_the_kernel_stops_serving_each_source_and_target_ends_once_or_stays_where_the_kernel_may_use_it(
        steps in play(),
        after in 0usize..300,
        how in prop_oneof![Just(Fails::Once), Just(Fails::ForGood), Just(Fails::Bell)],
    ) {
        let world = play_out(steps, Vec::new(), Some(Break { after, how }), None);
        let mut world = world.borrow_mut();
        for (number, pipe) in world.pipes.iter_mut().enumerate() {
            pipe.check(number);
        }
        if world.broken && how == Fails::ForGood {
            world.use_what_is_lent();
        } else {
            prop_assert!(world.requests.is_empty());
            let mut left = world.files.keys().map(|word| Token::from(*word));
            prop_assert!(!left.any(|token| matches!(token, Token::Source(_) | Token::Target(_))));
            // Also what was on its way to the driver when it failed.
            prop_assert!(world.targets.iter().all(|target| target.ended));
            prop_assert!(world.pushes.iter().all(|push| push.ended));
        }
    }

    #[test]
    fn when_on_event_panics_nothing_is_released_before_it_is_answered(
        steps in play(),
        panics in 1usize..6,
        breaks in prop::option::of(0usize..300),
    ) {
        let breaks = breaks.map(|after| Break { after, how: Fails::ForGood });
        let world = play_out(steps, Vec::new(), breaks, Some(panics));
        let mut world = world.borrow_mut();
        prop_assert!(world.broken || world.requests.is_empty());
        world.use_what_is_lent();
    }
}
