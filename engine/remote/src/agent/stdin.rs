//! Stdin that the front end sends to ranks of this node.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crossbeam::channel::{Sender, unbounded};
use iof_engine::{Engine, Grant, Job};
use iof_nodes::{ToFrontEnd, cut_text};
use iof_proto::directive::key;
use iof_proto::{Failure, Info, PartialCause, PartialDelivery, Proc, Rank, Skipped, Status, UntakenStdin};
use iof_tool::{Push, RequestError, Tool};

use super::NAME;
use super::typed_keys::TypedKeys;
use super::uplink::Uplink;
use crate::thread::start_thread;

/// The largest number of threads that push stdin. Each serves one set of ranks.
const MAX_STDIN_THREADS: usize = 64;

/// The ranks that did not take all of a piece, or why none did.
type StdinAnswer = Result<Vec<UntakenStdin>, Failure>;

/// A function that gives a piece of stdin to ranks, and returns when they have it.
type Taker = Box<dyn FnMut(&[u8]) -> StdinAnswer + Send>;

/// A piece of stdin.
struct Piece {
    /// The number of the request.
    call: u64,
    bytes: Vec<u8>,
    /// Kept until the answer.
    _busy: Arc<()>,
}

/// The thread that pushes stdin to one set of ranks. It ends with the sender of its pieces.
#[derive(Clone)]
struct Worker {
    pieces: Sender<Piece>,
    busy: Arc<()>,
}

impl Worker {
    /// Returns whether the worker has answered all pieces.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.busy) == 1
    }
}

/// The threads that push stdin. Each waits for its ranks; other ranks go on.
pub struct StdinWorkers {
    engine: Arc<Engine>,
    uplink: Arc<Uplink>,
    job: Job,
    /// The rank whose stdin is typed at its terminal.
    typed: Option<Rank>,
    workers: HashMap<Vec<Rank>, Worker>,
}

impl StdinWorkers {
    pub fn new(engine: Arc<Engine>, uplink: Arc<Uplink>, job: Job, typed: Option<Rank>) -> StdinWorkers {
        StdinWorkers { engine, uplink, job, typed, workers: HashMap::new() }
    }

    /// Pushes a piece to ranks of this node, which has `all`. The front end sends the next piece for
    /// these ranks after the answer, so that one piece waits for each set.
    pub fn push(&mut self, call: u64, (ranks, all): (Option<Vec<Rank>>, &BTreeSet<Rank>), bytes: Vec<u8>) {
        let ranks = ranks.unwrap_or_else(|| all.iter().copied().collect());
        let worker = match self.workers.remove(&ranks) {
            Some(worker) => Ok(worker),
            None => self.start(&ranks),
        };
        let is_end = bytes.is_empty();
        let sent = worker.map(|worker| {
            let sent = worker.pieces.send(Piece { call, bytes, _busy: Arc::clone(&worker.busy) });
            if !is_end {
                self.workers.insert(ranks, worker);
            }
            sent
        });
        let reason = match sent {
            Ok(Ok(())) => return,
            Ok(Err(_)) => "the thread that pushes stdin has ended".into(),
            Err(reason) => reason,
        };
        let answer = Err(failure(Status::ERR_NOT_AVAILABLE, &reason));
        self.uplink.send(&ToFrontEnd::StdinTaken { call, answer });
    }

    fn start(&mut self, ranks: &[Rank]) -> Result<Worker, String> {
        let idle = self.workers.iter().find(|(_, worker)| worker.is_idle()).map(|(ranks, _)| ranks.clone());
        if self.workers.len() >= MAX_STDIN_THREADS
            && idle.is_none_or(|ranks| self.workers.remove(&ranks).is_none())
        {
            return Err(format!("more than {MAX_STDIN_THREADS} sets of ranks receive stdin on this node"));
        }
        let mut take = self.taker(ranks)?;
        let ((pieces, queue), uplink) = (unbounded::<Piece>(), Arc::clone(&self.uplink));
        let body = move || {
            for Piece { call, bytes, _busy } in queue {
                uplink.send(&ToFrontEnd::StdinTaken { call, answer: take(&bytes) });
            }
        };
        start_thread("iof-stdin", body).map_err(|error| error.to_string())?;
        Ok(Worker { pieces, busy: Arc::default() })
    }

    /// Returns what gives pieces of stdin to these ranks, and blocks until they have them.
    fn taker(&self, ranks: &[Rank]) -> Result<Taker, String> {
        if let (Some(typed), [rank]) = (self.typed, ranks)
            && typed == *rank
        {
            let mut keys = TypedKeys::new(self.job.pty(typed).map_err(|error| error.to_string())?);
            // If it fails, no process has the terminal open.
            return Ok(Box::new(move |bytes| {
                keys.type_all(bytes).map(|()| Vec::new()).map_err(|_| closed())
            }));
        }
        let mut tool = self.engine.attach(NAME, Grant::Never).map_err(|error| error.to_string())?;
        let target = |rank: &Rank| Proc { nspace: self.job.nspace().clone(), rank: *rank };
        let targets = ranks.iter().map(target).collect::<Vec<Proc>>();
        Ok(Box::new(move |bytes| push(&mut tool, &targets, bytes)))
    }
}

/// Pushes a piece, or the end. Blocks until the ranks have it.
fn push(tool: &mut Tool, targets: &[Proc], bytes: &[u8]) -> StdinAnswer {
    let directives = vec![
        Info::new(key::PMIX_IOF_COMPLETE, bytes.is_empty()),
        // Some of the ranks may have ended.
        Info::new(key::IOF_PARTIAL, true),
    ];
    let push = Push { targets: targets.to_vec(), directives };
    let granted = tool.begin_push(&push, Some(bytes.len() as u64)).map_err(|error| match error {
        // The engine refuses a push to ranks none of which has an open stdin.
        RequestError::Denied(denied) => failure(denied.status, &denied.reason),
        error => failure(Status::ERR_NOT_AVAILABLE, &error.to_string()),
    })?;
    let report = tool.push_rest(granted.push, bytes);
    let report = report.map_err(|error| failure(Status::ERR_NOT_AVAILABLE, &error.to_string()))?;
    let skipped = |Skipped { target, .. }| UntakenStdin {
        rank: target.rank,
        delivered: 0,
        cause: PartialCause::Closed,
    };
    let partial =
        |PartialDelivery { target, delivered, cause }| UntakenStdin { rank: target.rank, delivered, cause };
    let skipped = granted.skipped.into_iter().map(skipped);
    let untaken: Vec<UntakenStdin> = skipped.chain(report.partial.into_iter().map(partial)).collect();
    let known = report.complete.saturating_add(untaken.len() as u64);
    if known < targets.len() as u64 {
        // The engine shortens lists that are too long for a message.
        let reason = format!(
            "only {} of {} ranks have it, and the list of the others is too long",
            report.complete,
            targets.len()
        );
        return Err(failure(Status::ERR_OUT_OF_RESOURCE, &reason));
    }
    Ok(untaken)
}

fn closed() -> Failure {
    failure(Status::ERR_IOF_COMPLETE, "these ranks have ended or closed their stdin")
}

fn failure(status: Status, reason: &str) -> Failure {
    Failure::new(status, cut_text(reason))
}
