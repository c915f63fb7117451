//! Hostile tools against a live engine. They send any message in any order, write to their reader
//! pages and inlets, and withhold what the protocol lets them withhold: their hello, or reading
//! from their socket. Another tool must receive every byte that the rank writes meanwhile, and the
//! engine must answer it. Files, maps and memory must stay within what the hostile tools'
//! connections, registrations and pushes account for, and must be released when the connections
//! close.
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
use iof_proto::query::key::IOF_QUERY_STATS;
use iof_proto::{
    Channels, Decoder, FromTool, Info, InfoValue, Log, Nspace, PROTOCOL_VERSION, Proc, Query, Rank, ToTool,
    encode, socket,
};
use iof_tool::{Delivery, Pull, Tool};
use libfuzzer_sys::fuzz_target;
use memmap2::MmapMut;
use nix::fcntl::OFlag;
use tempfile::TempDir;

/// Bytes that the rank writes for each input: more than its cache, so that readers are in each
/// other's way.
const ROUND: usize = 48 * 1024;
const CACHE: u32 = 16 * 1024;

/// Greatest number of hostile connections of one input at a time.
const MAX_CONNECTIONS: usize = 16;
/// Streams of the job, including those of logged messages: one pull reads each at most once.
const STREAMS: u64 = 6;
/// Files and maps of a connection: its socket, reader page and doorbell.
const PER_CONNECTION: u64 = 8;
/// Files and maps that one more generation, or one inlet, costs the engine. A data area is mapped
/// twice.
const PER_RING: u64 = 6;
/// Files and maps that the engine and the fuzzer may open for themselves: spare rings, a corpus
/// file.
const SLACK: u64 = 64;
/// Greatest size of one ring or inlet in bytes, with its index: the most that a directive may
/// request.
const RING_BYTES: u64 = 17 << 20;
/// Bytes that the fuzzer and the engine may allocate on their heaps.
const HEAP_SLACK: u64 = 512 << 20;

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
    /// A pull from processes of jobs that do not exist.
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
                let key = if stats { IOF_QUERY_STATS.into() } else { key };
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

/// An engine with a rank whose stdout the target writes, and the tool that must not be affected.
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
        let all = Proc::all(nspace());
        other.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        let (stdin, pushed) = nix::unistd::pipe2(OFlag::O_NONBLOCK).unwrap();
        let rank = AdoptedRank {
            stdin: Some(pushed),
            stdout: Some(read),
            ..AdoptedRank::new(Rank(0), "fuzz", Process::Reported { pid: 0 })
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

    /// Reads all of the rank's stdin that is there, and returns whether it is at its end.
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

    /// Lets the rank write, and the other tool read all of it. Calls `meanwhile` after each piece.
    fn round(&mut self, mut meanwhile: impl FnMut()) {
        let bytes: Vec<u8> = (self.written..).take(ROUND).map(byte).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            // A pipe takes this much at once.
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
        self.other.query(&[IOF_QUERY_STATS]).expect("the engine answers");
    }

    /// Waits for the next delivery, and checks it.
    fn take(&mut self) {
        match self.other.recv().unwrap() {
            Some(Delivery::Bytes(bytes)) => {
                let right = bytes.iter().zip(self.read..).all(|(got, number)| *got == byte(number));
                assert!(right, "not what was written, from {} on", self.read);
                self.read += bytes.len() as u64;
            }
            Some(Delivery::Gap { gap, .. }) => panic!("the other tool lost {gap:?}"),
            _ => panic!("the stream is at its end"),
        }
    }
}

fn byte(number: u64) -> u8 {
    (number % 251) as u8
}

/// The resources that the process uses.
#[derive(Clone, Copy, Debug)]
struct Resources {
    files: u64,
    maps: u64,
    /// Resident bytes of shared memory.
    shared: u64,
    /// Resident bytes of the heap.
    heap: u64,
}

impl Resources {
    fn now() -> Resources {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = |field| {
            let line: &str = status.lines().find_map(|line: &str| line.strip_prefix(field)).unwrap();
            line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap()
        };
        Resources {
            files: std::fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            maps: std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64,
            shared: kib("RssShmem:") << 10,
            heap: kib("RssAnon:") << 10,
        }
    }

    /// Returns whether this is at most `before` plus what `requested` accounts for.
    fn is_within(&self, before: &Resources, requested: &Requested) -> bool {
        let Requested { connections, pulls, pushes } = *requested;
        // A pull has at most one old generation of each of its streams, and may cause a new one for
        // all.
        let rings = pulls * STREAMS * 2 + pushes;
        let files = connections * PER_CONNECTION + rings * PER_RING + SLACK;
        self.files <= before.files + files
            && self.maps <= before.maps + files
            && self.shared <= before.shared + (rings + 8) * RING_BYTES
            && self.heap <= before.heap + HEAP_SLACK
    }
}

/// The requests that the hostile tools of one input have sent.
#[derive(Clone, Copy, Debug, Default)]
struct Requested {
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
    /// Connects to `engine`, sends a hello if it `greets`, and then waits for the welcome, because
    /// most other messages need it. Returns `None` if the engine closes the connection.
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

    /// Sends as much as the socket takes without waiting. The rest is lost, so the following bytes
    /// are garbage.
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match socket::send(&self.socket, bytes, &[]) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(_) => return,
            }
        }
    }

    /// Receives pending messages. Returns `false` if the connection is at its end.
    fn receive(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let count = match socket::receive(&self.socket, &mut chunk, &mut self.fds, true, false) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        };
        let mut bytes = &chunk[..count];
        while let Ok(Some(message)) = self.decoder.decode(&mut bytes) {
            // SAFETY: slices of the map are made only to write to it.
            let map = self.fds.pop_front().and_then(|file| unsafe { MmapMut::map_mut(&file) }.ok());
            match message {
                ToTool::Welcome { .. } => self.page = map,
                ToTool::PushBegun { .. } => self.inlets.extend(map),
                ToTool::Refused { .. } => return false,
                _ => {}
            }
            self.fds.clear();
        }
        true
    }

    fn scribble(&mut self, offset: u16, bytes: [u8; 8]) {
        if let Some(page) = &mut self.page {
            let start = usize::from(offset) % (page.len().min(8192) / 8) * 8;
            page[start..start + 8].copy_from_slice(&bytes);
        }
        for inlet in &mut self.inlets {
            let start = usize::from(offset) % (inlet.len() / 8) * 8;
            inlet[start..start + 8].copy_from_slice(&bytes);
        }
    }
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
                Message::Pull { .. } => self.requested.pulls += 1,
                Message::Push { .. } => self.requested.pushes += 1,
                _ => {}
            }
            hostile.send(&frame);
        }
    }
}

/// Waits until the engine has released the resources of closed connections.
fn settle(before: &Resources) {
    let start = Instant::now();
    loop {
        let used = Resources::now();
        if used.is_within(before, &Requested::default()) {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "used before: {before:?}; after all connections are closed: {used:?}"
        );
        thread::sleep(Duration::from_millis(1));
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
    attack.connect(&world.engine, true, acts.len() % 2 == 0);
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
