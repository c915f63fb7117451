//! Ranks whose stdin the test reads, and tools that push to them.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use iof_engine::{AdoptSpec, AdoptedRank, Engine, Grant, Job, Policy};
use iof_proto::directive::key;
use iof_proto::limits::{MAX_PUSHES_PER_TARGET, MAX_PUSHES_PER_TOOL};
use iof_proto::{Channel, Failure, Info, Nspace, PartialCause, PartialDelivery, Proc, PushReport, Rank};
use iof_tool::{Push, PushError, RequestError, Tool};

use super::streams::engine_with_policy;
use super::{nspace, reported_rank};
use crate::pipes::{self, collect, pipe};
use crate::{Pending, wait_for};

/// More bytes than a pipe holds, see pipe(7).
pub const MORE_THAN_A_PIPE: usize = 100_000;

/// Starts an engine whose pushes have this cache size by default, in bytes.
pub fn engine_with_cache(cache_size: u32) -> Engine {
    engine_with_policy(Policy::Block, cache_size)
}

/// Begins as many pushes as a target may have. Each of the returned tools has as many as it may
/// have.
pub fn begin_max_pushes(engine: &Engine, push: &Push) -> Vec<(Tool, Vec<u32>)> {
    let tools = MAX_PUSHES_PER_TARGET / MAX_PUSHES_PER_TOOL;
    assert_eq!(tools * MAX_PUSHES_PER_TOOL, MAX_PUSHES_PER_TARGET);
    let pushes = |mut tool: Tool| {
        let begun = (0..MAX_PUSHES_PER_TOOL).map(|_| tool.begin_push(push, None).unwrap().push).collect();
        (tool, begun)
    };
    (0..tools).map(|_| pushes(tool(engine))).collect()
}

/// A job, by default named `job`, whose ranks' stdins the test reads.
pub struct Stdins {
    pub job: Job,
    pipes: Vec<Option<File>>,
}

impl Stdins {
    pub fn adopt(engine: &Engine, ranks: u32) -> Stdins {
        Stdins::adopt_job(engine, nspace(), ranks, false)
    }

    /// Adopts a job. If `elsewhere`, other ranks of it run on other nodes.
    pub fn adopt_job(engine: &Engine, nspace: Nspace, ranks: u32, elsewhere: bool) -> Stdins {
        let (reads, writes): (Vec<OwnedFd>, Vec<File>) = (0..ranks).map(|_| pipe()).unzip();
        let ranks = (0..).zip(writes).map(|(rank, stdin)| adopted(rank, Some(stdin.into()))).collect();
        let job = engine.adopt(AdoptSpec { elsewhere, ..AdoptSpec::new(nspace, ranks) }).unwrap();
        Stdins { job, pipes: reads.into_iter().map(|read| Some(read.into())).collect() }
    }

    /// Moves the read end out.
    pub fn take(&mut self, rank: usize) -> File {
        self.pipes[rank].take().unwrap()
    }

    /// Closes the read end.
    pub fn close(&mut self, rank: usize) {
        drop(self.take(rank));
    }

    /// Blocks until `count` bytes are read.
    pub fn read(&self, rank: usize, count: usize) -> Vec<u8> {
        let file = self.pipes[rank].as_ref().unwrap().try_clone().unwrap();
        let read = move || {
            let mut bytes = vec![0; count];
            (&file).read_exact(&mut bytes).unwrap();
            bytes
        };
        Pending::start(read).get()
    }

    /// Reads all bytes up to the end.
    pub fn rest(&mut self, rank: usize) -> Vec<u8> {
        collect(self.take(rank)).get()
    }

    /// Returns whether neither bytes nor the end can be read.
    pub fn is_quiet(&self, rank: usize) -> bool {
        pipes::is_quiet(self.pipes[rank].as_ref().unwrap())
    }

    /// Blocks until bytes can be read.
    pub fn wait_for_bytes(&self, rank: usize) {
        wait_for("bytes of stdin", || (!self.is_quiet(rank)).then_some(()));
    }
}

pub fn adopted(rank: u32, stdin: Option<OwnedFd>) -> AdoptedRank {
    let mut adopted = reported_rank(rank);
    adopted.files.extend(stdin.map(|stdin| (Channel::Stdin, stdin)));
    adopted
}

pub fn procs(ranks: &[u32]) -> Vec<Proc> {
    ranks.iter().map(|rank| Proc { nspace: nspace(), rank: Rank(*rank) }).collect()
}

pub fn all_ranks() -> Vec<Proc> {
    procs(&[Rank::WILDCARD.0])
}

/// Returns a push that leaves the targets' stdin open.
pub fn push_to(targets: Vec<Proc>) -> Push {
    Push::new(targets)
}

/// Returns a push with these directives, all required.
pub fn push_with(targets: Vec<Proc>, directives: &[&str]) -> Push {
    let directives = directives.iter().map(|key| Info::required(*key, true)).collect();
    Push { directives, ..Push::new(targets) }
}

/// Returns a push that ends the targets' stdin.
pub fn final_push(targets: Vec<Proc>) -> Push {
    push_with(targets, &[key::PMIX_IOF_COMPLETE])
}

pub fn tool(engine: &Engine) -> Tool {
    engine.attach("pushes", Grant::Never).unwrap()
}

/// Pushes `bytes` with a new tool, and blocks until the push has ended.
pub fn push(engine: &Engine, push: &Push, bytes: &[u8]) -> PushReport {
    pushing(engine, push, bytes.to_vec()).report()
}

/// A push under way, by a tool of its own.
pub struct Pushing(JoinHandle<Result<PushReport, PushError>>);

pub fn pushing(engine: &Engine, push: &Push, bytes: Vec<u8>) -> Pushing {
    let (mut tool, push) = (tool(engine), push.clone());
    Pushing(thread::spawn(move || tool.push(&push, &bytes, |_| {})))
}

impl Pushing {
    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    pub fn result(self) -> Result<PushReport, PushError> {
        wait_for("the end of a push", || self.0.is_finished().then_some(()));
        self.0.join().unwrap()
    }

    pub fn report(self) -> PushReport {
        self.result().unwrap()
    }
}

/// Returns the reason why a push was refused.
pub fn refusal<T: std::fmt::Debug>(result: Result<T, impl Into<PushError>>) -> Failure {
    match result.map_err(Into::into) {
        Err(PushError::Request(RequestError::Denied(failure))) => failure,
        other => panic!("{other:?}"),
    }
}

pub fn complete_report(bytes: usize, targets: u64) -> PushReport {
    PushReport { bytes: bytes as u64, complete: targets, partial: Vec::new() }
}

pub fn partial_delivery(rank: u32, delivered: u64, cause: PartialCause) -> PartialDelivery {
    PartialDelivery { target: procs(&[rank]).remove(0), delivered, cause }
}
