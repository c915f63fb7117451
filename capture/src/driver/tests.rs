//! The driver over a backend that is played: every answer comes when, and as, a random script says.

mod pipe;
mod world;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam::channel::unbounded;
use iof_shm_ring::{Area, Policy, bell};
use proptest::prelude::*;
use proptest::test_runner::Config;

use self::world::{Asked, PIPES, Played, World};
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

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Add {
        policy: Policy,
        pages: u64,
    },
    /// Somebody writes to a pipe.
    Write {
        pipe: usize,
        bytes: usize,
    },
    /// The last writer of a pipe goes.
    HangUp {
        pipe: usize,
    },
    /// One of the requests in flight is answered; a cancelled one as if the cancellation came too `late`, or not.
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
        1 => prop_oneof![Just(How::Not(libc::EIO)), Just(How::Not(libc::EBADF))],
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let pipe = 0..PIPES;
    let policy = prop_oneof![Just(Policy::DropNewest), Just(Policy::DropOldest), Just(Policy::Block)];
    prop_oneof![
        3 => (policy, 1u64..4).prop_map(|(policy, pages)| Step::Add { policy, pages }),
        8 => (pipe.clone(), 1usize..20_000).prop_map(|(pipe, bytes)| Step::Write { pipe, bytes }),
        1 => pipe.clone().prop_map(|pipe| Step::HangUp { pipe }),
        24 => (any::<usize>(), how(), any::<bool>())
            .prop_map(|(request, how, late)| Step::Answer { request, how, late }),
        6 => (pipe.clone(), 1usize..8000).prop_map(|(pipe, bytes)| Step::Consume { pipe, bytes }),
        1 => pipe.clone().prop_map(|pipe| Step::Close { pipe }),
        1 => pipe.prop_map(|pipe| Step::Remove { pipe }),
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
    /// It does not even give answers back.
    for_good: bool,
}

/// How a source ended.
#[derive(Debug)]
struct End {
    produced: u64,
    error: bool,
}

/// Plays to the end; gives how each source ended, which is at most once, and the world as it is then.
fn play_out(
    steps: Vec<Step>,
    discards: Vec<How>,
    breaks: Option<Break>,
) -> (HashMap<SourceId, End>, Rc<RefCell<World>>) {
    let (ringer, listen) = bell().unwrap();
    let (commands, receive) = unbounded();
    let (tell, events) = std::sync::mpsc::channel();
    let world = Rc::new(RefCell::new(World {
        steps: steps.into(),
        discards: discards.into(),
        breaks,
        settling: 0,
        stopped: false,
        commands,
        ringer,
        pipes: Vec::new(),
        files: HashMap::new(),
        requests: Vec::new(),
        answers: Vec::new(),
    }));
    let on_event: OnEvent = Box::new(move |event| tell.send(event).unwrap());
    let ringer = Arc::new(world.borrow().ringer.try_clone().unwrap());
    let area = Arc::new(Area::create(ringer.try_clone().unwrap()).unwrap());
    let targets = Targets::new(area, ringer);
    Driver::new(Played(Rc::clone(&world)), listen, receive, targets, on_event).run();

    let mut ends = HashMap::new();
    for event in events {
        let Event::Complete { source, produced, dropped, end } = event else { panic!("{event:?}") };
        assert!(dropped <= produced);
        let end = End { produced, error: matches!(end, crate::End::Error(_)) };
        assert!(ends.insert(source, end).is_none(), "{source:?} completed twice");
    }
    (ends, world)
}

proptest! {
    #![proptest_config(Config { cases: 500, failure_persistence: None, ..Config::default() })]

    #[test]
    fn whatever_a_pipe_does_each_source_ends_once_and_every_byte_is_delivered_or_counted(
        steps in play(),
        discards in prop::collection::vec(how(), 0..20),
    ) {
        let (ends, world) = play_out(steps, discards, None);
        let mut world = world.borrow_mut();
        prop_assert_eq!(ends.len(), world.pipes.len());
        let files: Vec<Token> = world.files.keys().map(|word| Token::from(*word)).collect();
        prop_assert_eq!(files, [Token::Bell]);
        for (number, pipe) in world.pipes.iter_mut().enumerate() {
            let end = &ends[&SourceId(number as u64)];
            pipe.check(number, end);
            prop_assert!(!end.error || pipe.failed, "pipe {number} failed by itself");
            prop_assert!(pipe.buffered == 0 || pipe.closed || pipe.failed, "pipe {number} ended too early");
        }
    }

    #[test]
    fn when_the_kernel_stops_serving_each_source_ends_once_or_stays_where_the_kernel_may_write(
        steps in play(),
        after in 0usize..300,
        for_good in any::<bool>(),
    ) {
        let (ends, world) = play_out(steps, Vec::new(), Some(Break { after, for_good }));
        let mut world = world.borrow_mut();
        for (number, pipe) in world.pipes.iter_mut().enumerate() {
            if let Some(end) = ends.get(&SourceId(number as u64)) {
                pipe.check(number, end);
            }
        }
        if for_good && world.breaks.is_some_and(|breaks| breaks.after == 0) {
            // They share the mappings of the streams.
            world.pipes.clear();
            for request in &world.requests {
                if let Asked::Read(span) = &request.asked {
                    // SAFETY: as the kernel may. Nobody reads it any more.
                    unsafe { span.ptr.write_bytes(1, span.len) };
                }
            }
        } else {
            let asked = world.files.keys().filter(|word| matches!(Token::from(**word), Token::Source(_)));
            prop_assert_eq!(asked.count(), 0, "all that were captured have ended");
        }
    }
}
