//! Accounting: `delivered + lost == produced` for every tool, stream and policy, while tools
//! attach, stall, deregister and die.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::Duration;

use iof_engine::{AdoptSpec, AdoptedRank, BackendKind, Config, Engine, Exit, Grant, Policy, Rendezvous};
use iof_proto::directive::key;
use iof_proto::{Channel, Channels, Info, Proc, Rank, Status};
use iof_testing::engine::{nspace, reported_rank};
use iof_testing::pipes::pipe;
use iof_testing::wait_for;
use iof_tool::{Counts, Delivery, Pull, RequestError, Tool};

/// The number of bytes that each rank writes to each of its two channels, many times the cache
/// size.
const WRITTEN: u64 = 400_000;
const CACHE: u32 = 16 * 1024;

/// A deterministic random number generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Returns the byte at `offset` of what a rank writes to a channel.
fn byte(rank: u32, channel: Channel, offset: u64) -> u8 {
    let salt = u64::from(rank).wrapping_mul(2) + u64::from(channel == Channel::Stderr);
    (offset.wrapping_add(salt.wrapping_mul(977)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Ranks in this process, each a thread that writes to its stdout and stderr in turns.
struct Job {
    engine: Engine,
    /// Registered before the first byte. It may hold back the ranks if the policy allows it.
    granted: Tool,
    _directory: tempfile::TempDir,
    writers: Vec<thread::JoinHandle<()>>,
}

impl Job {
    fn start(backend: BackendKind, policy: Policy, ranks: u32, seed: u64) -> Job {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::new(Rendezvous::Session(Some(directory.path().into())));
        (config.policy, config.cache_size, config.backend) = (policy, Some(CACHE), Some(backend));
        let engine = Engine::start(config).unwrap();
        let mut granted = engine.attach("granted", Grant::Block).unwrap();
        granted.pull(&all(Channels::STDOUT | Channels::STDERR)).unwrap();
        let (adopted, outputs): (Vec<_>, Vec<_>) = (0..ranks).map(rank).unzip();
        let job = engine.adopt(AdoptSpec::new(nspace(), adopted)).unwrap();
        let writers = (0..ranks).zip(outputs).map(|(rank, outputs)| {
            let job = job.clone();
            thread::spawn(move || {
                write(rank, outputs, Random(seed ^ u64::from(rank)));
                assert!(job.report_exit(Rank(rank), Exit::Unknown));
            })
        });
        let writers = writers.collect();
        Job { engine, granted, _directory: directory, writers }
    }

    fn connect(&self, name: &str) -> Tool {
        Tool::connect(self.engine.socket().unwrap(), name).unwrap()
    }
}

fn rank(number: u32) -> (AdoptedRank, [File; 2]) {
    let [(stdout, out), (stderr, err)] = [(); 2].map(|()| pipe());
    let rank = reported_rank(number).with(Channel::Stdout, stdout).with(Channel::Stderr, stderr);
    (rank, [out, err])
}

fn write(rank: u32, mut outputs: [File; 2], mut random: Random) {
    let mut written = [0; 2];
    while written != [WRITTEN; 2] {
        let index = random.below(2) as usize;
        let left = WRITTEN - written[index];
        let n = (1 + random.below(9000)).min(left);
        let channel = [Channel::Stdout, Channel::Stderr][index];
        let bytes: Vec<u8> =
            (written[index]..).take(n as usize).map(|offset| byte(rank, channel, offset)).collect();
        outputs[index].write_all(&bytes).unwrap();
        written[index] += n;
    }
}

/// The counters of a tool.
#[derive(Default)]
struct Accounting {
    /// By rank and channel: the number of delivered and of lost bytes.
    streams: BTreeMap<(u32, Channel), Counts>,
    complete: usize,
    ended: bool,
}

impl Accounting {
    /// Processes one delivery. Returns `false` if nothing more will follow.
    fn take(&mut self, tool: &mut Tool, timeout: Option<Duration>) -> bool {
        let delivery = match timeout {
            Some(timeout) => tool.recv_timeout(timeout),
            None => tool.recv(),
        };
        let Some(delivery) = delivery.unwrap() else { return !tool.is_done() };
        match &delivery {
            Delivery::Bytes(bytes) => {
                let origin = bytes.origin();
                let (rank, channel) = (origin.source.rank.0, origin.channel);
                let counts = self.streams.entry((rank, channel)).or_default();
                let offset = counts.delivered + counts.lost;
                let matches =
                    bytes.iter().zip(offset..).all(|(got, offset)| *got == byte(rank, channel, offset));
                assert!(matches, "rank {rank} {channel}: wrong bytes at offset {offset}");
                counts.delivered += bytes.len() as u64;
            }
            Delivery::Gap { origin, gap } => {
                let counts = self.streams.entry((origin.source.rank.0, origin.channel)).or_default();
                assert_eq!(gap.offset, counts.delivered + counts.lost, "a gap starts at the next offset");
                counts.lost += gap.lost;
            }
            Delivery::Complete { origin, counts } => {
                assert!(!self.ended, "a stream completed after its job had ended");
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
    Pull::new(vec![Proc::all(nspace())], channels)
}

fn directives(random: &mut Random) -> Vec<Info> {
    let drop = [key::PMIX_IOF_DROP_NEWEST, key::PMIX_IOF_DROP_OLDEST];
    let mut infos = Vec::new();
    match random.below(4) {
        index @ (0 | 1) => infos.push(Info::required(drop[index as usize], true)),
        2 => infos.push(Info::required(key::PMIX_IOF_CACHE_SIZE, 4 * u64::from(CACHE))),
        _ => {}
    }
    if random.below(3) == 0 {
        infos.push(Info::required(key::PMIX_IOF_BUFFERING_SIZE, 1 + random.below(5000)));
    }
    infos
}

/// Runs a tool that attaches and reads at random times. It stays to the end, deregisters early, or
/// dies.
fn run_tool(mut tool: Tool, ranks: u32, mut random: Random) {
    let pause = |random: &mut Random| thread::sleep(Duration::from_micros(random.below(3000)));
    pause(&mut random);
    let channels = [Channels::STDOUT, Channels::STDERR, Channels::STDOUT | Channels::STDERR];
    let channels = channels[random.below(3) as usize];
    let granted = tool.pull(&Pull { directives: directives(&mut random), ..all(channels) }).unwrap();
    assert_eq!((granted.handler, granted.ignored), (1, vec![]));
    let fate = random.below(4);
    let steps = if fate < 2 { u64::MAX } else { random.below(200) };
    let mut accounting = Accounting::default();
    for _ in 0..steps {
        if random.below(20) == 0 {
            pause(&mut random);
        }
        if !accounting.take(&mut tool, None) {
            assert_eq!(accounting.complete, ranks as usize * channels.outputs().count());
            assert!(accounting.ended);
            return;
        }
    }
    match fate {
        // The tool dies, possibly while it borrows a slice.
        2 => drop(tool),
        // The tool deregisters properly, possibly from a registration that is over already.
        _ => match tool.deregister(granted.handler) {
            Err(RequestError::Denied(failure)) if failure.status == Status::ERR_NOT_FOUND => {}
            begun => begun.unwrap(),
        },
    }
}

fn check_accounting(policy: Policy) {
    for backend in [BackendKind::IoUring, BackendKind::Epoll] {
        for seed in 0..3 {
            let ranks = 4;
            let mut fixture = Job::start(backend, policy, ranks, seed);
            let tools: Vec<_> = (0..12)
                .map(|number| {
                    let tool = fixture.connect(&format!("tool {number}"));
                    thread::spawn(move || run_tool(tool, ranks, Random(seed * 1000 + number)))
                })
                .collect();
            let mut accounting = Accounting::default();
            while accounting.take(&mut fixture.granted, None) {}
            assert_eq!(accounting.complete, 2 * ranks as usize);
            if policy == Policy::Block {
                assert_eq!(accounting.lost(), 0, "{backend} {seed}");
            }
            fixture.writers.into_iter().chain(tools).for_each(|thread| thread.join().unwrap());
        }
    }
}

#[test]
fn drop_newest_delivers_or_counts_every_byte_for_every_tool() {
    check_accounting(Policy::DropNewest);
}

#[test]
fn drop_oldest_delivers_or_counts_every_byte_for_every_tool() {
    check_accounting(Policy::DropOldest);
}

#[test]
fn block_delivers_or_counts_every_byte_for_every_tool() {
    check_accounting(Policy::Block);
}

#[test]
fn sixty_four_tools_can_read_sixty_four_sources() {
    let ranks = 32;
    let fixture = Job::start(BackendKind::IoUring, Policy::DropNewest, ranks, 64);
    let tools: Vec<_> = (0..64)
        .map(|number| {
            let mut tool = fixture.connect(&format!("tool {number}"));
            thread::spawn(move || {
                tool.pull(&all(Channels::STDOUT | Channels::STDERR)).unwrap();
                let mut accounting = Accounting::default();
                while accounting.take(&mut tool, None) {}
                assert_eq!((accounting.complete, accounting.ended), (64, true));
            })
        })
        .collect();
    wait_for("the tools to finish", || tools.iter().all(thread::JoinHandle::is_finished).then_some(()));
    tools.into_iter().chain(fixture.writers).for_each(|thread| thread.join().unwrap());
}
