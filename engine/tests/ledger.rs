//! The ledger: `delivered + lost == produced` for every tool, stream and policy, while tools come,
//! stall, leave and die.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::Duration;

use common::{nspace, wait_for};
use iof_engine::{
    AdoptSpec, AdoptedRank, BackendKind, Config, Engine, Exit, Grant, Policy, Process, Rendezvous,
};
use iof_proto::directive::key;
use iof_proto::{Channel, Channels, Info, Proc, Rank};
use iof_tool::{Counts, Delivery, Pull, Tool};

/// Bytes that each rank writes to each of its two channels: many times the cache.
const WRITTEN: u64 = 400_000;
const CACHE: u32 = 16 * 1024;

/// Numbers that look random, the same for the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

/// The byte at `at` of what a rank writes on a channel.
fn byte(rank: u32, channel: Channel, at: u64) -> u8 {
    let salt = u64::from(rank).wrapping_mul(2) + u64::from(channel == Channel::Stderr);
    (at.wrapping_add(salt.wrapping_mul(977)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Ranks that run in this process, each on a thread that writes its stdout and stderr by turns.
struct World {
    engine: Engine,
    /// Registered before the first byte, and may hold the ranks back where the policy lets it.
    granted: Tool,
    _directory: tempfile::TempDir,
    writers: Vec<thread::JoinHandle<()>>,
}

impl World {
    fn start(backend: BackendKind, policy: Policy, ranks: u32, seed: u64) -> World {
        let directory = tempfile::tempdir().unwrap();
        let rendezvous = Rendezvous::Session(Some(directory.path().into()));
        let config =
            Config { rendezvous, policy, cache_size: CACHE, backend: Some(backend), ..Config::default() };
        let engine = Engine::start(config).unwrap();
        let mut granted = engine.attach("granted", Grant::Block).unwrap();
        granted.pull(&all(Channels::STDOUT | Channels::STDERR)).unwrap();
        let (adopted, outputs): (Vec<_>, Vec<_>) = (0..ranks).map(rank).unzip();
        let job = engine.adopt(AdoptSpec::new(nspace(), adopted)).unwrap();
        let writers = (0..ranks).zip(outputs).map(|(rank, outputs)| {
            let job = job.clone();
            thread::spawn(move || {
                write(rank, outputs, Dice(seed ^ u64::from(rank)));
                assert!(job.report_exit(Rank(rank), Exit::Unknown));
            })
        });
        let writers = writers.collect();
        World { engine, granted, _directory: directory, writers }
    }

    fn connect(&self, name: &str) -> Tool {
        Tool::connect(self.engine.socket().unwrap(), name).unwrap()
    }
}

fn rank(number: u32) -> (AdoptedRank, [File; 2]) {
    let (stdout, out) = nix::unistd::pipe().unwrap();
    let (stderr, err) = nix::unistd::pipe().unwrap();
    let rank = AdoptedRank {
        rank: Rank(number),
        executable: "test".into(),
        stdin: None,
        stdout: Some(stdout),
        stderr: Some(stderr),
        stddiag: None,
        process: Process::Reported { pid: 0 },
    };
    (rank, [out.into(), err.into()])
}

fn write(rank: u32, mut outputs: [File; 2], mut dice: Dice) {
    let mut written = [0; 2];
    while written != [WRITTEN; 2] {
        let which = dice.roll(2) as usize;
        let left = WRITTEN - written[which];
        let n = (1 + dice.roll(9000)).min(left);
        let channel = [Channel::Stdout, Channel::Stderr][which];
        let bytes: Vec<u8> = (written[which]..).take(n as usize).map(|at| byte(rank, channel, at)).collect();
        outputs[which].write_all(&bytes).unwrap();
        written[which] += n;
    }
}

/// What a tool did and saw.
#[derive(Default)]
struct Books {
    /// By rank and channel: where it stands, delivered and lost.
    streams: BTreeMap<(u32, Channel), Counts>,
    complete: usize,
    ended: bool,
}

impl Books {
    /// Takes one delivery; `false` if nothing more will come.
    fn take(&mut self, tool: &mut Tool, timeout: Option<Duration>) -> bool {
        let Some(delivery) = tool.next(timeout).unwrap() else { return !tool.is_done() };
        match &delivery {
            Delivery::Bytes(bytes) => {
                let origin = bytes.origin();
                let (rank, channel) = (origin.source.rank.0, origin.channel);
                let counts = self.streams.entry((rank, channel)).or_default();
                let at = counts.delivered + counts.lost;
                let right = bytes.iter().zip(at..).all(|(got, at)| *got == byte(rank, channel, at));
                assert!(right, "rank {rank} {channel}: not what was written at {at}");
                counts.delivered += bytes.len() as u64;
            }
            Delivery::Gap { origin, gap } => {
                let counts = self.streams.entry((origin.source.rank.0, origin.channel)).or_default();
                assert_eq!(gap.offset, counts.delivered + counts.lost, "a gap is where it is");
                counts.lost += gap.lost;
            }
            Delivery::Complete { origin, counts } => {
                assert!(!self.ended, "a stream after its job");
                let seen = self.streams.entry((origin.source.rank.0, origin.channel)).or_default();
                assert_eq!((counts.delivered, counts.lost), (seen.delivered, seen.lost));
                assert_eq!(counts.delivered + counts.lost, counts.produced, "{origin:?}");
                let written = if origin.channel == Channel::Stddiag { 0 } else { WRITTEN };
                assert_eq!(counts.produced, written);
                self.complete += 1;
            }
            Delivery::JobEnded { .. } => self.ended = true,
            other => panic!("{other:?}"),
        }
        true
    }

    fn lost(&self) -> u64 {
        self.streams.values().map(|counts| counts.lost).sum()
    }
}

fn all(channels: Channels) -> Pull {
    Pull::new(vec![Proc { nspace: nspace(), rank: Rank::WILDCARD }], channels)
}

fn directives(dice: &mut Dice) -> Vec<Info> {
    let drop = [key::PMIX_IOF_DROP_NEWEST, key::PMIX_IOF_DROP_OLDEST];
    let mut infos = Vec::new();
    match dice.roll(4) {
        which @ (0 | 1) => infos.push(Info::required(drop[which as usize], true)),
        2 => infos.push(Info::required(key::PMIX_IOF_CACHE_SIZE, 4 * u64::from(CACHE))),
        _ => {}
    }
    if dice.roll(3) == 0 {
        infos.push(Info::required(key::PMIX_IOF_BUFFERING_SIZE, 1 + dice.roll(5000)));
    }
    infos
}

/// A tool that comes when it likes, reads as it likes, and stays to the end, leaves in the middle,
/// or dies.
fn live(mut tool: Tool, ranks: u32, mut dice: Dice) {
    let pause = |dice: &mut Dice| thread::sleep(Duration::from_micros(dice.roll(3000)));
    pause(&mut dice);
    let channels = [Channels::STDOUT, Channels::STDERR, Channels::STDOUT | Channels::STDERR];
    let channels = channels[dice.roll(3) as usize];
    let granted = tool.pull(&Pull { directives: directives(&mut dice), ..all(channels) }).unwrap();
    assert_eq!((granted.handler, granted.ignored), (1, vec![]));
    let fate = dice.roll(4);
    let steps = if fate < 2 { u64::MAX } else { dice.roll(200) };
    let mut books = Books::default();
    for _ in 0..steps {
        if dice.roll(20) == 0 {
            pause(&mut dice);
        }
        if !books.take(&mut tool, None) {
            assert_eq!(books.complete, ranks as usize * channels.outputs().count());
            assert!(books.ended);
            return;
        }
    }
    match fate {
        // It dies, in the middle of a borrowed slice maybe.
        2 => drop(tool),
        // It leaves as it should.
        _ => tool.deregister(granted.handler).unwrap(),
    }
}

fn tools_come_and_go(policy: Policy) {
    for backend in [BackendKind::IoUring, BackendKind::Epoll] {
        for seed in 0..3 {
            let ranks = 4;
            let mut world = World::start(backend, policy, ranks, seed);
            let tools: Vec<_> = (0..12)
                .map(|number| {
                    let tool = world.connect(&format!("tool {number}"));
                    thread::spawn(move || live(tool, ranks, Dice(seed * 1000 + number)))
                })
                .collect();
            let mut books = Books::default();
            while books.take(&mut world.granted, None) {}
            assert_eq!(books.complete, 2 * ranks as usize);
            if policy == Policy::Block {
                assert_eq!(books.lost(), 0, "{backend} {seed}");
            }
            world.writers.into_iter().chain(tools).for_each(|thread| thread.join().unwrap());
        }
    }
}

#[test]
fn under_drop_newest_every_tool_has_every_byte_or_its_loss_while_others_come_and_go() {
    tools_come_and_go(Policy::DropNewest);
}

#[test]
fn under_drop_oldest_every_tool_has_every_byte_or_its_loss_while_others_come_and_go() {
    tools_come_and_go(Policy::DropOldest);
}

#[test]
fn under_block_every_tool_has_every_byte_or_its_loss_while_others_come_and_go() {
    tools_come_and_go(Policy::Block);
}

#[test]
fn sixty_four_tools_on_sixty_four_sources() {
    let ranks = 32;
    let world = World::start(BackendKind::IoUring, Policy::DropNewest, ranks, 64);
    let tools: Vec<_> = (0..64)
        .map(|number| {
            let mut tool = world.connect(&format!("tool {number}"));
            thread::spawn(move || {
                tool.pull(&all(Channels::STDOUT | Channels::STDERR)).unwrap();
                let mut books = Books::default();
                while books.take(&mut tool, None) {}
                assert_eq!((books.complete, books.ended), (64, true));
            })
        })
        .collect();
    wait_for("the tools", || tools.iter().all(thread::JoinHandle::is_finished).then_some(()));
    tools.into_iter().chain(world.writers).for_each(|thread| thread.join().unwrap());
}
