//! Ranks that are pipes in the test's hand, and what a tool is handed out of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use iof_engine::{AdoptSpec, AdoptedRank, Config, Engine, Exit, Job, Policy, Process, Rendezvous};
use iof_proto::query::key;
use iof_proto::{Channel, Nspace, Proc, Rank, Value};
use iof_tool::{Counts, Delivery, LostError, Tool};
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::{PATIENCE, wait_for};

pub fn engine_that(policy: Policy, cache_size: u32) -> Engine {
    Engine::start(Config { rendezvous: Rendezvous::None, policy, cache_size, ..Config::default() }).unwrap()
}

pub fn all_of(nspace: &str) -> Proc {
    Proc { nspace: Nspace::new(nspace).unwrap(), rank: Rank::WILDCARD }
}

/// A job whose ranks' stdouts the test writes.
pub struct Pipes {
    pub job: Job,
    pipes: Vec<Option<File>>,
}

impl Pipes {
    pub fn of(engine: &Engine, nspace: &str, ranks: u32) -> Pipes {
        let (reads, writes): (Vec<OwnedFd>, Vec<OwnedFd>) =
            (0..ranks).map(|_| pipe2(OFlag::O_CLOEXEC).unwrap()).unzip();
        let rank = |(rank, stdout)| AdoptedRank {
            rank: Rank(rank),
            executable: "test".into(),
            stdin: None,
            stdout: Some(stdout),
            stderr: None,
            stddiag: None,
            process: Process::Reported { pid: 0 },
        };
        let spec = AdoptSpec::new(Nspace::new(nspace).unwrap(), (0..).zip(reads).map(rank).collect());
        let job = engine.adopt(spec).unwrap();
        Pipes { job, pipes: writes.into_iter().map(|write| Some(write.into())).collect() }
    }

    pub fn write(&self, rank: usize, bytes: &[u8]) {
        self.pipes[rank].as_ref().unwrap().write_all(bytes).unwrap();
    }

    /// Another writer of the same rank.
    pub fn writer(&self, rank: usize) -> File {
        self.pipes[rank].as_ref().unwrap().try_clone().unwrap()
    }

    pub fn close(&mut self, rank: usize) {
        self.pipes[rank] = None;
    }

    /// Ends all ranks with `code`.
    pub fn end(mut self, code: i32) -> Job {
        use std::os::unix::process::ExitStatusExt;
        for rank in 0..self.pipes.len() {
            self.close(rank);
            let status = Exit::Status(ExitStatus::from_raw(code << 8));
            assert!(self.job.report_exit(Rank(rank.try_into().unwrap()), status));
        }
        self.job
    }
}

/// Waits until the engine has read so many bytes of a rank's stdout, as it tells `asker`.
pub fn wait_for_produced(asker: &mut Tool, nspace: &str, rank: u32, bytes: u64) {
    let proc = Proc { nspace: Nspace::new(nspace).unwrap(), rank: Rank(rank) };
    wait_for("bytes to be read", || {
        let found = asker.query(&[key::IOF_STATS]).unwrap();
        let Value::Streams(streams) = &found[0].value else { panic!("{found:?}") };
        let of =
            |stream: &&iof_proto::StreamStats| stream.source == proc && stream.channel == Channel::Stdout;
        streams.iter().find(of).filter(|stream| stream.produced >= bytes).map(|_| ())
    });
}

/// What the deliveries of one stream have come to; each is checked against those before it.
#[derive(Debug, Default)]
pub struct Stream {
    pub bytes: Vec<u8>,
    pub lost: u64,
    next: Option<u64>,
    pub complete: Option<Counts>,
    pub gone: bool,
}

/// What all deliveries have come to, by registration.
#[derive(Debug, Default)]
pub struct Ledger {
    pub streams: BTreeMap<(u32, String, Channel), Stream>,
    pub job_ends: BTreeMap<(u32, String), Option<i32>>,
    pub deregistered: Vec<u32>,
}

impl Ledger {
    pub fn note(&mut self, delivery: &Delivery<'_>) {
        let handler = delivery.handler();
        assert!(!self.deregistered.contains(&handler), "after its end: {delivery:?}");
        if let Some(origin) = delivery.origin() {
            let job = (handler, origin.source.nspace.to_string());
            assert!(!self.job_ends.contains_key(&job), "after the job's end: {delivery:?}");
            let stream =
                self.streams.entry((handler, origin.source.to_string(), origin.channel)).or_default();
            stream.note(delivery);
        }
        match delivery {
            Delivery::JobEnded { nspace, exit_code, .. } => {
                let mut of_it = self
                    .streams
                    .iter()
                    .filter(|((of, source, _), _)| *of == handler && source.starts_with(nspace.as_str()));
                assert!(of_it.all(|(_, stream)| stream.complete.is_some()), "{delivery:?}: {self:?}");
                assert_eq!(self.job_ends.insert((handler, nspace.to_string()), *exit_code), None);
            }
            Delivery::Deregistered { .. } => self.deregistered.push(handler),
            _ => {}
        }
    }

    /// All that comes until nothing more will.
    pub fn of(tool: &mut Tool) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.note_until(tool, |_| false);
        assert!(tool.is_done());
        ledger
    }

    /// What comes, until `enough` of it came or nothing more will.
    pub fn note_until(&mut self, tool: &mut Tool, enough: impl Fn(&Ledger) -> bool) {
        while !enough(self) {
            if let Some(delivery) = tool.next(Some(PATIENCE)).unwrap() {
                self.note(&delivery);
                continue;
            }
            assert!(tool.is_done(), "nothing comes any more: {self:?}");
            return;
        }
    }

    /// The stdout of one rank.
    pub fn stdout(&self, handler: u32, nspace: &str, rank: u32) -> &Stream {
        let source = Proc { nspace: Nspace::new(nspace).unwrap(), rank: Rank(rank) };
        &self.streams[&(handler, source.to_string(), Channel::Stdout)]
    }
}

impl Stream {
    fn note(&mut self, delivery: &Delivery<'_>) {
        assert!(self.complete.is_none() && !self.gone, "after its end: {delivery:?}");
        match delivery {
            Delivery::Bytes(bytes) => {
                assert!(!bytes.is_empty());
                assert_eq!(bytes.offset(), self.next.unwrap_or(bytes.offset()), "{delivery:?}");
                self.next = Some(bytes.offset() + bytes.len() as u64);
                self.bytes.extend_from_slice(bytes);
            }
            Delivery::Gap { gap, .. } => {
                assert_eq!(gap.offset, self.next.unwrap_or(gap.offset), "{delivery:?}");
                self.next = Some(gap.offset + gap.lost);
                self.lost += gap.lost;
            }
            Delivery::Complete { counts, .. } => {
                assert_eq!((counts.delivered, counts.lost), (self.bytes.len() as u64, self.lost));
                self.complete = Some(*counts);
            }
            Delivery::Gone { counts, .. } => {
                assert_eq!((counts.delivered, counts.lost), (self.bytes.len() as u64, self.lost));
                self.gone = true;
            }
            other => panic!("{other:?} is of no stream"),
        }
    }
}

/// The tool's view of an engine that went away.
pub fn assert_gone(result: Result<impl std::fmt::Debug, iof_tool::RequestError>) {
    assert!(matches!(result, Err(iof_tool::RequestError::Lost(LostError::Closed))), "{result:?}");
}
