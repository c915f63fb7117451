//! Stdin that the front end sends to ranks of this node.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam::channel::{Sender, unbounded};
use iof_engine::{Engine, Grant};
use iof_nodes::{StdinOutcome, ToFrontEnd, cut_text};
use iof_proto::directive::key;
use iof_proto::{Info, Nspace, Proc, Rank, SlowTargets};
use iof_tool::{Push, PushError, Tool};

use super::NAME;
use super::uplink::Uplink;
use crate::error::Failure;
use crate::threads::start_thread;

/// The largest number of threads that push stdin. Each serves one set of ranks.
const MAX_STDIN_THREADS: usize = 64;

/// The pieces for one set of ranks, each with the number of its request.
type Pieces = Sender<(u64, Vec<u8>)>;

/// The threads that push stdin. Each waits for its ranks; other ranks go on.
pub struct StdinWorkers {
    engine: Arc<Engine>,
    uplink: Arc<Uplink>,
    nspace: Nspace,
    workers: HashMap<Vec<Rank>, Pieces>,
}

impl StdinWorkers {
    pub fn new(engine: Arc<Engine>, uplink: Arc<Uplink>, nspace: Nspace) -> StdinWorkers {
        StdinWorkers { engine, uplink, nspace, workers: HashMap::new() }
    }

    /// Pushes a piece. The front end sends the next piece for these ranks after the answer, so that one
    /// piece waits for each set.
    pub fn push(&mut self, call: u64, ranks: Vec<Rank>, bytes: Vec<u8>) {
        let worker = match self.workers.get(&ranks) {
            Some(worker) => Ok(worker.clone()),
            None => self.start(ranks),
        };
        let reason = match worker.map(|worker| worker.send((call, bytes))) {
            Ok(Ok(())) => return,
            Ok(Err(_)) => "the thread that pushes stdin has ended".into(),
            Err(reason) => reason,
        };
        let outcome = StdinOutcome::Failed(cut_text(&reason));
        self.uplink.send(&ToFrontEnd::StdinTaken { call, outcome });
    }

    fn start(&mut self, ranks: Vec<Rank>) -> Result<Pieces, String> {
        if self.workers.len() >= MAX_STDIN_THREADS {
            return Err(format!("more than {MAX_STDIN_THREADS} sets of ranks receive stdin on this node"));
        }
        let tool = self.engine.attach(NAME, Grant::Never).map_err(|error| error.to_string())?;
        let (pieces, queue) = unbounded::<(u64, Vec<u8>)>();
        let target = |rank: &Rank| Proc { nspace: self.nspace.clone(), rank: *rank };
        let (targets, uplink) = (ranks.iter().map(target).collect::<Vec<Proc>>(), Arc::clone(&self.uplink));
        let mut tool: Tool = tool;
        let body = move || {
            for (call, bytes) in queue {
                let outcome = push(&mut tool, &targets, &bytes);
                uplink.send(&ToFrontEnd::StdinTaken { call, outcome });
            }
        };
        start_thread("iof-stdin", body).map_err(|failure| match failure {
            Failure::Running(reason) => reason,
            _ => "cannot start a thread".into(),
        })?;
        self.workers.insert(ranks, pieces.clone());
        Ok(pieces)
    }
}

/// Pushes a piece, or the end. Blocks until the ranks have it.
fn push(tool: &mut Tool, targets: &[Proc], bytes: &[u8]) -> StdinOutcome {
    let directives = vec![
        Info::new(key::PMIX_IOF_COMPLETE, bytes.is_empty()),
        // Some of the ranks may have ended.
        Info::new(key::IOF_PARTIAL, true),
    ];
    let push = Push { targets: targets.to_vec(), directives };
    match tool.push(&push, bytes, |_: &SlowTargets| {}) {
        Ok(report) if report.partial.len() < targets.len() => StdinOutcome::Taken,
        // The engine refuses a push to ranks that have all ended or closed their stdin.
        Ok(_) | Err(PushError::Request(_)) => StdinOutcome::Closed,
        Err(error) => StdinOutcome::Failed(cut_text(&error.to_string())),
    }
}
