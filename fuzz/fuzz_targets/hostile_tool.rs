//! Hostile tools against a live engine. They send any message in any order, write into their reader pages and inlets, and
//! withhold what the protocol lets them withhold: their hello, the reading of their socket. Another tool receives
//! every byte that the rank writes meanwhile, the engine answers it, and files, maps and memory stay within what the
//! hostile tools' connections, registrations and pushes account for. They are given back when the connections close.
#![no_main]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use iof_engine::{AdoptSpec, AdoptedRank, Config, Engine, Grant, Policy, Process, Rendezvous};
use iof_proto::query::key::IOF_STATS;
use iof_proto::{
    Channels, Decoder, FromTool, Info, InfoValue, Log, Nspace, PROTOCOL_VERSION, Proc, Query, Rank, ToTool,
    encode, socket,
};
use iof_tool::{Delivery, Pull, Tool};
use libfuzzer_sys::fuzz_target;
use memmap2::MmapMut;
use nix::fcntl::OFlag;
use tempfile::TempDir;

/// What the rank writes for each input: more than its cache, so that readers are in each other's way.
const ROUND: usize = 48 * 1024;
const CACHE: u32 = 16 * 1024;

/// Hostile connections of one input at a time.
const MAX_CONNECTIONS: usize = 16;
/// Streams of the job, what is logged to it included: one pull reads each at most once.
const STREAMS: u64 = 6;
/// Files and maps of a connection: its socket, reader page and doorbell.
const PER_CONNECTION: u64 = 8;
/// Files and maps that one more generation, or one inlet, costs the engine. A data area is mapped twice.
const PER_RING: u64 = 6;
/// What the engine and the fuzzer may have opened meanwhile for themselves: spare rings, a corpus file.
const SLACK: u64 = 64;
/// Bytes of shared memory of one ring or inlet at most, its index included: what a directive may ask for.
const RING_BYTES: u64 = 17 << 20;
/// Bytes that the fuzzer and the engine may allocate on their heaps.
const HEAP_SLACK: u64 = 512 << 20;

#[derive(Debug, Arbitrary)]
enum Act {
    Send(Message),
    /// The same again and again, without reading anything in between.
    Flood {
        message: Message,
        times: u8,
    },
    /// Another connection, which the acts that follow use. Without a hello it stays silent.
    Connect {
        greets: bool,
        pulls: bool,
    },
    /// The oldest connection is closed.
    Close,
    /// Half a message, two, or none.
    Raw(Vec<u8>),
    Scribble {
        at: u16,
        bytes: [u8; 8],
    },
    /// The rank writes, and the other tool reads.
    Round,
    /// The same several times, while the last connection says again and again that it is done with its ring.
    Following {
        slot: u32,
        rounds: u8,
    },
    Receive,
}

#[derive(Clone, Debug, Arbitrary)]
enum Message {
    Hello {
        version: u32,
    },
    Pull {
        request: u32,
        ranks: Vec<u32>,
        channels: u16,
        backlog: bool,
        directives: Vec<Directive>,
    },
    /// Of processes of jobs that do not exist.
    PullUnknown {
        request: u32,
        procs: u16,
    },
    Drained {
        slots: Vec<u32>,
    },
    Follow {
        slot: u32,
    },
    Deregister {
        request: u32,
        handler: u32,
    },
    Query {
        request: u32,
        stats: bool,
        key: String,
    },
    Push {
        request: u32,
        ranks: Vec<u32>,
        size: Option<u16>,
        directives: Vec<Directive>,
    },
    Fill {
        push: u32,
        bytes: u32,
        over: bool,
    },
    SlowTargets {
        request: u32,
        push: u32,
        cut_off: Option<u32>,
    },
    Log {
        request: u32,
        channels: Vec<u8>,
        text: String,
        directives: Vec<Directive>,
    },
}

#[derive(Clone, Debug, Arbitrary)]
struct Directive {
    known: u8,
    number: Option<u64>,
    truth: bool,
    required: bool,
}

impl Message {
    fn wire(self) -> FromTool {
        let nspace = nspace();
        match self {
            Message::Hello { version } => FromTool::Hello { version, pid: 1, name: "hostile".into() },
            Message::Pull { request, ranks, channels, backlog, directives } => FromTool::Pull {
                request,
                procs: ranks
                    .into_iter()
                    .map(|rank| Proc { nspace: nspace.clone(), rank: Rank(rank % 3) })
                    .collect(),
                channels: Channels::from_bits_truncate(channels),
                backlog,
                persistent: request % 2 == 0,
                directives: directives.into_iter().map(Directive::wire).collect(),
            },
            Message::PullUnknown { request, procs } => FromTool::Pull {
                request,
                procs: (0..u32::from(procs % 4096))
                    .map(|rank| Proc {
                        nspace: Nspace::new(format!("later-{}", rank % 7)).unwrap(),
                        rank: Rank(rank),
                    })
                    .collect(),
                channels: Channels::STDOUT,
                backlog: true,
                persistent: request % 2 == 0,
                directives: Vec::new(),
            },
            Message::Drained { slots } => {
                FromTool::Drained { slots: slots.into_iter().map(|slot| slot % 8).collect() }
            }
            Message::Follow { slot } => FromTool::Follow { slot: slot % 8 },
            Message::Deregister { request, handler } => {
                FromTool::Deregister { request, handler: handler % 8 }
            }
            Message::Query { request, stats, key } => {
                let key = if stats { IOF_STATS.into() } else { key };
                FromTool::Query { request, queries: vec![Query::new([key])] }
            }
            Message::Push { request, ranks, size, directives } => FromTool::Push {
                request,
                targets: ranks
                    .into_iter()
                    .map(|rank| Proc { nspace: nspace.clone(), rank: Rank(rank % 3) })
                    .collect(),
                size: size.map(u64::from),
                directives: directives.into_iter().map(Directive::wire).collect(),
            },
            Message::Fill { push, bytes, over } => {
                FromTool::Fill { push: push % 4, bytes: u64::from(bytes % 32_768), last: over }
            }
            Message::SlowTargets { request, push, cut_off } => {
                FromTool::SlowTargets { request, push: push % 4, cut_off: cut_off.map(u64::from) }
            }
            Message::Log { request, channels, text, directives } => {
                const CHANNELS: [&str; 5] =
                    ["pmix.log.stderr", "pmix.log.jrec", "pmix.log.email", "pmix.log.gstore", "x"];
                let channel = |known: u8| CHANNELS[usize::from(known) % CHANNELS.len()];
                let directives = directives.into_iter().map(Directive::wire).collect();
                FromTool::Log {
                    request,
                    log: Log { directives, ..Log::to(channels.into_iter().map(channel), &text) },
                }
            }
        }
    }
}

impl Directive {
    fn wire(self) -> Info {
        const KEYS: [&str; 11] = [
            "pmix.iof.csize",
            "pmix.iof.old",
            "pmix.iof.new",
            "pmix.iof.bsize",
            "pmix.iof.btime",
            "pmix.iof.cmp",
            "iof.push.partial",
            "pmix.log.once",
            "pmix.log.tag",
            "pmix.log.syspri",
            "x",
        ];
        let value = self.number.map_or(InfoValue::Bool(self.truth), InfoValue::Number);
        Info { key: KEYS[usize::from(self.known) % KEYS.len()].into(), value, required: self.required }
    }
}

fn nspace() -> Nspace {
    Nspace::new("job").unwrap()
}

/// An engine with a rank whose stdout is written by hand, and the tool that must not notice anything.
struct World {
    engine: Engine,
    stdout: File,
    /// The rank's end of its stdin, non-blocking.
    stdin: File,
    other: Tool,
    written: u64,
    read: u64,
    _directory: TempDir,
}

impl World {
    fn start() -> World {
        let directory = tempfile::tempdir().unwrap();
        let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
        let config = Config { rendezvous, cache_size: CACHE, policy: Policy::Block, ..Config::default() };
        let engine = Engine::start(config).unwrap();
        let mut other = engine.attach("other", Grant::Block).unwrap();
        let all = Proc { nspace: nspace(), rank: Rank::WILDCARD };
        other.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        let (stdin, pushed) = nix::unistd::pipe2(OFlag::O_NONBLOCK).unwrap();
        let rank = AdoptedRank {
            rank: Rank(0),
            executable: "fuzz".into(),
            stdin: Some(pushed),
            stdout: Some(read),
            stderr: None,
            stddiag: None,
            process: Process::Reported { pid: 0 },
        };
        engine.adopt(AdoptSpec::new(nspace(), vec![rank])).unwrap();
        World {
            engine,
            stdout: write.into(),
            stdin: stdin.into(),
            other,
            written: 0,
            read: 0,
            _directory: directory,
        }
    }

    /// Whether the rank's stdin is at its end. Takes what is there.
    fn has_no_stdin(&mut self) -> bool {
        let mut chunk = [0; 65536];
        loop {
            match self.stdin.read(&mut chunk) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// The rank writes, and the other tool reads all of it. `meanwhile` is called after each piece.
    fn round(&mut self, mut meanwhile: impl FnMut()) {
        let bytes: Vec<u8> = (self.written..).take(ROUND).map(byte).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            // A pipe takes so much at once.
            let (now, later) = rest.split_at(rest.len().min(4096));
            self.stdout.write_all(now).unwrap();
            rest = later;
            self.written += now.len() as u64;
            meanwhile();
            while self.read + 32 * 1024 < self.written {
                self.take();
            }
        }
        while self.read < self.written {
            self.take();
        }
        self.other.query(&[IOF_STATS]).expect("the engine answers");
    }

    /// Waits for something, and takes it.
    fn take(&mut self) {
        match self.other.next(None).unwrap() {
            Some(Delivery::Bytes(bytes)) => {
                let right = bytes.iter().zip(self.read..).all(|(got, at)| *got == byte(at));
                assert!(right, "not what was written, from {} on", self.read);
                self.read += bytes.len() as u64;
            }
            Some(Delivery::Gap { gap, .. }) => panic!("the other tool lost {gap:?}"),
            _ => panic!("the stream is at its end"),
        }
    }
}

fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

/// What the process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    files: u64,
    maps: u64,
    /// Resident bytes of shared memory.
    shared: u64,
    /// Resident bytes of the heap.
    heap: u64,
}

impl Held {
    fn now() -> Held {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = |field| {
            let line: &str = status.lines().find_map(|line: &str| line.strip_prefix(field)).unwrap();
            line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap()
        };
        Held {
            files: std::fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            maps: std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64,
            shared: kib("RssShmem:") << 10,
            heap: kib("RssAnon:") << 10,
        }
    }

    /// Whether no more is held than `before`, and what `asked` accounts for.
    fn is_within(&self, before: &Held, asked: &Asked) -> bool {
        let Asked { connections, pulls, pushes } = *asked;
        // A pull has one old generation of each of its streams at most, and may bring a new one for all.
        let rings = pulls * STREAMS * 2 + pushes;
        let files = connections * PER_CONNECTION + rings * PER_RING + SLACK;
        self.files <= before.files + files
            && self.maps <= before.maps + files
            && self.shared <= before.shared + (rings + 8) * RING_BYTES
            && self.heap <= before.heap + HEAP_SLACK
    }
}

/// What the hostile tools of one input have asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    connections: u64,
    pulls: u64,
    pushes: u64,
}

/// A hostile tool's end of its connection.
struct Hostile {
    socket: UnixStream,
    decoder: Decoder<ToTool>,
    fds: VecDeque<OwnedFd>,
    page: Option<MmapMut>,
    inlets: Vec<MmapMut>,
}

impl Hostile {
    /// Connects to `engine`, says hello if it `greets`, and waits then for the welcome, as most would get no further
    /// without it. `None` if the engine closes the connection.
    fn connect(engine: &Engine, greets: bool) -> Option<Hostile> {
        let socket = UnixStream::connect(engine.socket().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut hostile =
            Hostile { socket, decoder: Decoder::new(), fds: VecDeque::new(), page: None, inlets: Vec::new() };
        if greets {
            let hello = FromTool::Hello { version: PROTOCOL_VERSION, pid: 1, name: "hostile".into() };
            hostile.send(&encode(&hello).unwrap());
            while hostile.page.is_none() {
                if !hostile.receive() {
                    return None;
                }
                thread::yield_now();
            }
        }
        Some(hostile)
    }

    /// Sends what the socket takes without waiting. The rest is lost, so that what follows is garbage.
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match socket::send(&self.socket, bytes, &[]) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(_) => return,
            }
        }
    }

    /// Takes what has come; `false` if the connection is at its end.
    fn receive(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let count = match socket::receive(&self.socket, &mut chunk, &mut self.fds, true, false) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        };
        let mut bytes = &chunk[..count];
        while let Ok(Some(message)) = self.decoder.decode(&mut bytes) {
            // SAFETY: nothing makes a slice of it but to write.
            let map = self.fds.pop_front().and_then(|file| unsafe { MmapMut::map_mut(&file) }.ok());
            match message {
                ToTool::Welcome { .. } => self.page = map,
                ToTool::PushBegun { .. } => self.inlets.extend(map),
                ToTool::ClaimError { .. } => return false,
                _ => {}
            }
            self.fds.clear();
        }
        true
    }

    fn scribble(&mut self, at: u16, bytes: [u8; 8]) {
        if let Some(page) = &mut self.page {
            let at = usize::from(at) % (page.len().min(8192) / 8) * 8;
            page[at..at + 8].copy_from_slice(&bytes);
        }
        for inlet in &mut self.inlets {
            let at = usize::from(at) % (inlet.len() / 8) * 8;
            inlet[at..at + 8].copy_from_slice(&bytes);
        }
    }
}

/// The hostile tools of one input.
#[derive(Default)]
struct Attack {
    connections: VecDeque<Hostile>,
    asked: Asked,
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
            Act::Scribble { at, bytes } => {
                if let Some(hostile) = self.connections.back_mut() {
                    hostile.scribble(at, bytes);
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

    /// Connects once more, if there are not too many; a connection that `pulls` registers for the rank's output.
    fn connect(&mut self, engine: &Engine, greets: bool, pulls: bool) {
        if self.connections.len() < MAX_CONNECTIONS {
            self.asked.connections += 1;
            self.connections.extend(Hostile::connect(engine, greets));
            if pulls {
                let (ranks, channels) = (vec![0], Channels::STDOUT.bits());
                let pull =
                    Message::Pull { request: 0, ranks, channels, backlog: true, directives: Vec::new() };
                self.send(pull, 1);
            }
        }
    }

    fn send(&mut self, message: Message, times: u8) {
        let Some(hostile) = self.connections.back_mut() else { return };
        let Ok(frame) = encode(&message.clone().wire()) else { return };
        for _ in 0..times {
            match message {
                Message::Pull { .. } => self.asked.pulls += 1,
                Message::Push { .. } => self.asked.pushes += 1,
                _ => {}
            }
            hostile.send(&frame);
        }
    }
}

/// Waits until the engine has given back what it held for connections that are closed.
fn settle(before: &Held) {
    let start = Instant::now();
    loop {
        let held = Held::now();
        if held.is_within(before, &Asked::default()) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(8), "held before: {before:?}; for nothing: {held:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fuzz_target!(|acts: Vec<Act>| {
    static WORLD: OnceLock<Mutex<(World, Held)>> = OnceLock::new();
    let begin = || {
        let mut world = World::start();
        world.round(|| {});
        (world, Held::now())
    };
    let mut world = WORLD.get_or_init(|| Mutex::new(begin())).lock().unwrap();
    if world.0.has_no_stdin() {
        // There is nothing left to be pushed into.
        *world = begin();
    }
    let (world, before) = &mut *world;
    let mut attack = Attack::default();
    attack.connect(&world.engine, true, acts.len() % 2 == 0);
    for act in acts {
        attack.act(world, act);
        let held = Held::now();
        assert!(held.is_within(before, &attack.asked), "{before:?}, then {held:?} for {:?}", attack.asked);
    }
    world.round(|| {});
    drop(attack);
    settle(before);
});
