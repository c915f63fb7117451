//! Hostile tools against a live engine. They send any message in any order, write to their reader
//! pages and inlets, and withhold what the protocol lets them withhold: their hello, or reading
//! from their socket. Another tool must receive every byte that the rank writes meanwhile, and the
//! engine must answer it. Files, maps and memory must stay within what the hostile tools'
//! connections, registrations and pushes account for, and must be released when the connections
//! close.
#![no_main]

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock};

use arbitrary::Arbitrary;
use iof_engine::Engine;
use iof_proto::{Channels, encode};
use libfuzzer_sys::fuzz_target;

use crate::hostile::Hostile;
use crate::message::Message;
use crate::resources::{Requested, Resources, settle};
use crate::world::World;

mod hostile;
mod message;
mod resources;
mod world;

/// Greatest number of hostile connections of one input at a time.
const MAX_CONNECTIONS: usize = 16;

#[derive(Debug, Arbitrary)]
enum Act {
    Send(Message),
    /// The same message several times, without reading anything in between.
    Flood {
        message: Message,
        times: u8,
    },
    /// Another connection, which the following acts use. Without a hello it stays silent.
    Connect {
        greets: bool,
        pulls: bool,
    },
    /// Closes the oldest connection.
    Close,
    /// Raw bytes: half a message, two, or none.
    Raw(Vec<u8>),
    Scribble {
        offset: u16,
        bytes: [u8; 8],
    },
    /// The rank writes, and the other tool reads.
    Round,
    /// Several rounds, while the last connection repeatedly requests the next generation of its
    /// ring.
    Following {
        slot: u32,
        rounds: u8,
    },
    Receive,
}

/// The hostile tools of one input.
#[derive(Default)]
struct Attack {
    connections: VecDeque<Hostile>,
    requested: Requested,
}

impl Attack {
    fn act(&mut self, world: &mut World, act: Act) {
        match act {
            Act::Send(message) => self.send(message, 1),
            Act::Flood { message, times } => self.send(message, times),
            Act::Connect { greets, pulls } => self.connect(&world.engine, greets, pulls),
            Act::Close => drop(self.connections.pop_front()),
            Act::Raw(bytes) => {
                if let Some(hostile) = self.connections.back_mut() {
                    hostile.send(&bytes);
                }
            }
            Act::Scribble { offset, bytes } => {
                if let Some(hostile) = self.connections.back_mut() {
                    hostile.scribble(offset, bytes);
                }
            }
            Act::Round => world.round(|| {}),
            Act::Following { slot, rounds } => {
                for _ in 0..rounds {
                    world.round(|| self.send(Message::Follow { slot }, 1));
                }
            }
            Act::Receive => {
                if let Some(hostile) = self.connections.back_mut() {
                    hostile.receive();
                }
            }
        }
    }

    /// Connects once more, if there are not too many connections. A connection that `pulls`
    /// registers for the rank's output.
    fn connect(&mut self, engine: &Engine, greets: bool, pulls: bool) {
        if self.connections.len() < MAX_CONNECTIONS {
            self.requested.connections += 1;
            self.connections.extend(Hostile::connect(engine, greets));
            if pulls {
                let (ranks, channels) = (vec![0], Channels::STDOUT.bits());
                let pull =
                    Message::Pull { request: 0, ranks, channels, from: (0, 0), directives: Vec::new() };
                self.send(pull, 1);
            }
        }
    }

    fn send(&mut self, message: Message, times: u8) {
        let Some(hostile) = self.connections.back_mut() else { return };
        let Ok(frame) = encode(&message.clone().wire()) else { return };
        for _ in 0..times {
            match message {
                Message::Pull { .. } => self.requested.pulls += 1,
                Message::Push { .. } => self.requested.pushes += 1,
                _ => {}
            }
            hostile.send(&frame);
        }
    }
}

fuzz_target!(|acts: Vec<Act>| {
    static WORLD: OnceLock<Mutex<(World, Resources)>> = OnceLock::new();
    let begin = || {
        let mut world = World::start();
        world.round(|| {});
        (world, Resources::now())
    };
    let mut world = WORLD.get_or_init(|| Mutex::new(begin())).lock().unwrap();
    if world.0.has_no_stdin() {
        // The rank's stdin is closed, so nothing can be pushed any more.
        *world = begin();
    }
    let (world, before) = &mut *world;
    let mut attack = Attack::default();
    attack.connect(&world.engine, true, acts.len().is_multiple_of(2));
    for act in acts {
        attack.act(world, act);
        let used = Resources::now();
        assert!(
            used.is_within(before, &attack.requested),
            "{before:?}, then {used:?} for {:?}",
            attack.requested
        );
    }
    world.round(|| {});
    drop(attack);
    settle(before);
});
