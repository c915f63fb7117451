//! The engine under attack, its rank, and a tool that must not be affected.

use std::fs::File;
use std::io::{Read, Write};

use iof_engine::{AdoptSpec, AdoptedRank, Config, Engine, Grant, Process, Rendezvous};
use iof_fuzz::pattern;
use iof_proto::query::key::IOF_QUERY_STATS;
use iof_proto::{Channel, Channels, Nspace, Proc, Rank};
use iof_tool::{Delivery, Pull, Tool};
use nix::fcntl::OFlag;
use tempfile::TempDir;

/// Bytes that the rank writes for each input: more than its cache, so that readers are in each
/// other's way.
const ROUND: usize = 48 * 1024;
const CACHE: u32 = 16 * 1024;

pub fn nspace() -> Nspace {
    Nspace::new("job").unwrap()
}

/// An engine with a rank whose stdout the target writes, and the tool that must not be affected.
pub struct World {
    pub engine: Engine,
    stdout: File,
    /// The rank's end of its stdin, non-blocking.
    stdin: File,
    other: Tool,
    written: u64,
    read: u64,
    _directory: TempDir,
}

impl World {
    pub fn start() -> World {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::new(Rendezvous::Session(Some(directory.path().to_owned())));
        config.cache_size = Some(CACHE);
        let engine = Engine::start(config).unwrap();
        let mut other = engine.attach("other", Grant::Block).unwrap();
        let all = Proc::all(nspace());
        other.pull(&Pull::new(vec![all], Channels::STDOUT)).unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        let (stdin, pushed) = nix::unistd::pipe2(OFlag::O_NONBLOCK).unwrap();
        let rank = AdoptedRank::new(Rank(0), "fuzz", Process::Reported { pid: 0 })
            .with(Channel::Stdin, pushed)
            .with(Channel::Stdout, read);
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
    pub fn has_no_stdin(&mut self) -> bool {
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
    pub fn round(&mut self, mut meanwhile: impl FnMut()) {
        let mut rest = pattern(self.written, ROUND);
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
                let right = *bytes == *pattern(self.read, bytes.len());
                assert!(right, "not what was written, from {} on", self.read);
                self.read += bytes.len() as u64;
            }
            Some(Delivery::Gap { gap, .. }) => panic!("the other tool lost {gap:?}"),
            _ => panic!("the stream is at its end"),
        }
    }
}
