//! Ranks whose output the test writes through pipes, and a checked record of a tool's deliveries.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use iof_engine::{AdoptSpec, Config, Engine, Exit, Job, Policy, Rendezvous};
use iof_proto::query::key;
use iof_proto::{Channel, Nspace, Proc, Rank, Value};
use iof_tool::{Counts, Delivery, LostError, Tool};

use super::reported_rank;
use crate::pipes::pipe;
use crate::{TIMEOUT, wait_for};

pub fn engine_with_policy(policy: Policy, cache_size: u32) -> Engine {
    let mut config = Config::new(Rendezvous::None);
    (config.policy, config.cache_size) = (policy, Some(cache_size));
    Engine::start(config).unwrap()
}

pub fn all_of(nspace: &str) -> Proc {
    Proc::all(Nspace::new(nspace).unwrap())
}

/// A job whose ranks' stdouts the test writes.
pub struct Pipes {
    pub job: Job,
    pipes: Vec<Option<File>>,
}

impl Pipes {
    pub fn adopt(engine: &Engine, nspace: &str, ranks: u32) -> Pipes {
        let (reads, writes): (Vec<OwnedFd>, Vec<File>) = (0..ranks).map(|_| pipe()).unzip();
        let rank = |(rank, stdout)| reported_rank(rank).with(Channel::Stdout, stdout);
        let spec = AdoptSpec::new(Nspace::new(nspace).unwrap(), (0..).zip(reads).map(rank).collect());
        let job = engine.adopt(spec).unwrap();
        Pipes { job, pipes: writes.into_iter().map(Some).collect() }
    }

    pub fn write(&self, rank: usize, bytes: &[u8]) {
        self.pipes[rank].as_ref().unwrap().write_all(bytes).unwrap();
    }

    /// Returns another writer to the same rank.
    pub fn writer(&self, rank: usize) -> File {
        self.pipes[rank].as_ref().unwrap().try_clone().unwrap()
    }

    pub fn close(&mut self, rank: usize) {
        self.pipes[rank] = None;
    }

    /// Ends all ranks with exit code `code`.
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

/// Blocks until the engine has read at least `bytes` bytes of a rank's stdout. `tool` queries it.
pub fn wait_for_produced(tool: &mut Tool, nspace: &str, rank: u32, bytes: u64) {
    let proc = Proc::new(Nspace::new(nspace).unwrap(), Rank(rank));
    wait_for("bytes to be read", || {
        let found = tool.query(&[key::IOF_QUERY_STATS]).unwrap();
        let Value::Streams(streams) = &found[0].value else { panic!("{found:?}") };
        let is_wanted =
            |stream: &&iof_proto::StreamStats| stream.source == proc && stream.channel == Channel::Stdout;
        streams.iter().find(is_wanted).filter(|stream| stream.produced >= bytes).map(|_| ())
    });
}

/// The deliveries of one stream. Each delivery is checked against the previous ones.
#[derive(Debug, Default)]
pub struct Stream {
    pub bytes: Vec<u8>,
    pub lost: u64,
    next: Option<u64>,
    pub complete: Option<Counts>,
    pub gone: bool,
}

/// All deliveries of a tool, by registration.
#[derive(Debug, Default)]
pub struct DeliveryRecord {
    pub streams: BTreeMap<(u32, String, Channel), Stream>,
    pub job_ends: BTreeMap<(u32, String), Option<i32>>,
    pub deregistered: Vec<u32>,
}

impl DeliveryRecord {
    pub fn add(&mut self, delivery: &Delivery<'_>) {
        let handler = delivery.handler();
        assert!(!self.deregistered.contains(&handler), "after its end: {delivery:?}");
        if let Some(origin) = delivery.origin() {
            let job = (handler, origin.source.nspace.to_string());
            assert!(!self.job_ends.contains_key(&job), "after the job's end: {delivery:?}");
            let stream =
                self.streams.entry((handler, origin.source.to_string(), origin.channel)).or_default();
            stream.add(delivery);
        }
        match delivery {
            Delivery::JobEnded { nspace, exit_code, .. } => {
                let mut streams = self.streams.iter().filter(|((other, source, _), _)| {
                    *other == handler && source.starts_with(nspace.as_str())
                });
                assert!(streams.all(|(_, stream)| stream.complete.is_some()), "{delivery:?}: {self:?}");
                assert_eq!(self.job_ends.insert((handler, nspace.to_string()), *exit_code), None);
            }
            Delivery::Deregistered { .. } => self.deregistered.push(handler),
            _ => {}
        }
    }

    /// Records all deliveries until no more will follow.
    pub fn read_all(tool: &mut Tool) -> DeliveryRecord {
        let mut record = DeliveryRecord::default();
        record.add_until(tool, |_| false);
        assert!(tool.is_done());
        record
    }

    /// Records deliveries until `enough` returns true or no more will follow.
    pub fn add_until(&mut self, tool: &mut Tool, enough: impl Fn(&DeliveryRecord) -> bool) {
        while !enough(self) {
            if let Some(delivery) = tool.recv_timeout(TIMEOUT).unwrap() {
                self.add(&delivery);
                continue;
            }
            assert!(tool.is_done(), "no more deliveries: {self:?}");
            return;
        }
    }

    /// Returns the record of one rank's stdout.
    pub fn stdout(&self, handler: u32, nspace: &str, rank: u32) -> &Stream {
        let source = Proc::new(Nspace::new(nspace).unwrap(), Rank(rank));
        &self.streams[&(handler, source.to_string(), Channel::Stdout)]
    }
}

impl Stream {
    fn add(&mut self, delivery: &Delivery<'_>) {
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
            other => panic!("{other:?} does not belong to a stream"),
        }
    }
}

/// Asserts that a request failed because the engine has closed the connection.
pub fn assert_gone(result: Result<impl std::fmt::Debug, iof_tool::RequestError>) {
    assert!(matches!(result, Err(iof_tool::RequestError::Lost(LostError::Closed))), "{result:?}");
}
