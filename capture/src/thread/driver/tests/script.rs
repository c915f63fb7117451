//! Scripts: the actions of the outside world, and how the simulated kernel answers and fails.

use iof_shm_ring::Policy;
use proptest::prelude::*;

use super::pipe::PIPES;
use super::target::PUSHES;

/// The answer to a request, where the state of its file allows it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// All available bytes.
    All,
    /// At most this many bytes.
    AtMost(usize),
    /// An errno.
    Error(i32),
}

impl Outcome {
    /// Returns how many of `len` bytes are transferred.
    pub(super) fn bytes(self, len: usize) -> usize {
        match self {
            Outcome::All => len,
            Outcome::AtMost(most) => most.min(len),
            Outcome::Error(_) => 0,
        }
    }
}

/// The origin of a source's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum SourceKind {
    Pipe,
    /// The terminal of a session whose leader is watched.
    Terminal,
    /// Deliveries instead of a file.
    Queue,
}

/// One action of a script.
#[derive(Clone, Debug)]
pub(super) enum Action {
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

pub(super) fn outcome() -> impl Strategy<Value = Outcome> {
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
pub(super) fn script() -> impl Strategy<Value = Vec<Action>> {
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
pub(super) struct Breakdown {
    /// The number of turns before the failure.
    pub(super) after: usize,
    pub(super) kind: BreakdownKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BreakdownKind {
    /// One turn fails.
    OneTurn,
    /// All turns fail, so that not even cancelled requests are answered.
    AllTurns,
    /// The request for the bell fails.
    Bell,
}
