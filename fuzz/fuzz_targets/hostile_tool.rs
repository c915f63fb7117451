//! A hostile tool against a live engine: whatever it sends and writes into its area and its inlets, another tool has every
//! byte that the rank writes meanwhile, and the engine answers.
#![no_main]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock};

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

#[derive(Debug, Arbitrary)]
enum Act {
    Send(Message),
    /// Half a message, two, or none.
    Raw(Vec<u8>),
    Scribble {
        at: u16,
        bytes: [u8; 8],
    },
    /// The rank writes, and the other tool reads.
    Round,
    Receive,
}

#[derive(Debug, Arbitrary)]
enum Message {
    Hello { version: u32 },
    Pull { request: u32, ranks: Vec<u32>, channels: u16, backlog: bool, directives: Vec<Directive> },
    Follow { slot: u32 },
    Deregister { request: u32, handler: u32 },
    Query { request: u32, stats: bool, key: String },
    Push { request: u32, ranks: Vec<u32>, size: Option<u16>, directives: Vec<Directive> },
    Fill { push: u32, bytes: u32, over: bool },
    Lagging { request: u32, push: u32, cut_off: Option<u32> },
    Log { request: u32, channels: Vec<u8>, text: String, directives: Vec<Directive> },
}

#[derive(Debug, Arbitrary)]
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
                FromTool::Fill { push: push % 4, bytes: u64::from(bytes % 32_768), over }
            }
            Message::Lagging { request, push, cut_off } => {
                FromTool::Lagging { request, push: push % 4, cut_off: cut_off.map(u64::from) }
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

    /// The rank writes, and the other tool reads all of it.
    fn round(&mut self) {
        let bytes: Vec<u8> = (self.written..).take(ROUND).map(byte).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            // A pipe takes so much at once.
            let (now, later) = rest.split_at(rest.len().min(4096));
            self.stdout.write_all(now).unwrap();
            rest = later;
            self.written += now.len() as u64;
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

/// The hostile tool's end.
struct Hostile {
    socket: UnixStream,
    decoder: Decoder<ToTool>,
    fds: VecDeque<OwnedFd>,
    area: Option<MmapMut>,
    inlets: Vec<MmapMut>,
}

impl Hostile {
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match socket::send(&self.socket, bytes, &[]) {
                Ok(sent) => bytes = &bytes[sent..],
                // It was let go, or does not read its answers: both as it likes.
                Err(_) => return,
            }
        }
    }

    fn receive(&mut self) {
        let mut chunk = [0; 4096];
        let Ok(count) = socket::receive(&self.socket, &mut chunk, &mut self.fds, true, false) else { return };
        let mut bytes = &chunk[..count];
        while let Ok(Some(message)) = self.decoder.decode(&mut bytes) {
            // SAFETY: nobody makes a slice of it but to write.
            let map = self.fds.pop_front().and_then(|file| unsafe { MmapMut::map_mut(&file) }.ok());
            match message {
                ToTool::Welcome { .. } => self.area = map,
                ToTool::PushBegun { .. } => self.inlets.extend(map),
                _ => {}
            }
            self.fds.clear();
        }
    }
}

fuzz_target!(|acts: Vec<Act>| {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    let mut world = WORLD.get_or_init(|| Mutex::new(World::start())).lock().unwrap();
    if world.has_no_stdin() {
        // There is nothing left to be pushed into.
        *world = World::start();
    }
    let socket = UnixStream::connect(world.engine.socket().unwrap()).unwrap();
    let mut hostile =
        Hostile { socket, decoder: Decoder::new(), fds: VecDeque::new(), area: None, inlets: Vec::new() };
    // Else most would get no further.
    if acts.len() > 1 {
        let hello = FromTool::Hello { version: PROTOCOL_VERSION, pid: 1, name: "hostile".into() };
        hostile.send(&encode(&hello).unwrap());
        while hostile.area.is_none() {
            hostile.receive();
        }
    }
    for act in acts {
        match act {
            Act::Send(message) => {
                if let Ok(frame) = encode(&message.wire()) {
                    hostile.send(&frame);
                }
            }
            Act::Raw(bytes) => hostile.send(&bytes),
            Act::Scribble { at, bytes } => {
                if let Some(area) = &mut hostile.area {
                    let at = usize::from(at) % (area.len().min(8192) / 8) * 8;
                    area[at..at + 8].copy_from_slice(&bytes);
                }
                for inlet in &mut hostile.inlets {
                    let at = usize::from(at) % (inlet.len() / 8) * 8;
                    inlet[at..at + 8].copy_from_slice(&bytes);
                }
            }
            Act::Round => world.round(),
            Act::Receive => hostile.receive(),
        }
    }
    world.round();
});
