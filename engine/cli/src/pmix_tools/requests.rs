//! The requests of a tool of PMIx: queries, logs and stdin have threads and connections to the
//! engine of their own, so that one that waits does not delay others, or the output.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_pmix_server::ToolRequest;
use iof_pmix_server::limits::MAX_PMIX_TOOL_REQUESTS;
use iof_proto::attribute::key::{
    PMIX_IOF_COMPLETE, PMIX_IOF_PUSH_STDIN, PMIX_QUERY_DEBUG_SUPPORT, PMIX_QUERY_SPAWN_SUPPORT,
    PMIX_SERVER_URI,
};
use iof_proto::attribute::{self, Place};
use iof_proto::{Answer, Found, Info, Query, Status, Value};
use iof_tool::{Push, PushError, RequestError, Tool};
use nix::libc::SIGKILL;

use crate::error::Failure;
use crate::processes::threads::start_thread;

/// The name of a tool of PMIx among the readers of the engine.
pub const NAME: &str = "PMIx tool";

/// Takes requests from libpmix's thread.
pub struct Intake {
    output: Sender<ToolRequest>,
    other: Sender<ToolRequest>,
    stdin: Sender<ToolRequest>,
    waiting: Waiting,
}

/// The number of requests that wait, and what wakes the thread that relays them.
#[derive(Clone)]
pub struct Waiting {
    count: Arc<AtomicUsize>,
    waker: Arc<UnixStream>,
}

impl Waiting {
    pub fn new(waker: UnixStream) -> Waiting {
        Waiting { count: Arc::default(), waker: Arc::new(waker) }
    }

    /// Returns whether more requests may be received.
    pub fn has_room(&self) -> bool {
        // Relaxed: only the number counts. A wake-up follows each of its changes.
        self.count.load(Relaxed) < MAX_PMIX_TOOL_REQUESTS
    }

    fn begin(&self) {
        // Relaxed: as above.
        self.count.fetch_add(1, Relaxed);
    }

    /// Notes that a request was answered.
    pub fn end(&self) {
        // Relaxed: as above.
        self.count.fetch_sub(1, Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // If its buffer is full, the thread is woken anyway.
        let _ = (&*self.waker).write(&[0]);
    }
}

impl Intake {
    /// Starts the threads. Returns also the queue of requests for the thread that calls libpmix.
    /// `uri` is the address of the tool's server.
    pub fn start(
        engine: &Path,
        uri: &str,
        waiting: Waiting,
    ) -> Result<(Intake, Receiver<ToolRequest>), Failure> {
        let (output, for_output) = unbounded();
        let (other, for_other) = unbounded();
        let (stdin, for_stdin) = unbounded();
        for (name, queue) in [("iof-pmix-query", for_other), ("iof-pmix-stdin", for_stdin)] {
            let (engine, uri, waiting) = (engine.to_owned(), uri.to_owned(), waiting.clone());
            start_thread(name, move || serve(&engine, &uri, &queue, &waiting))?;
        }
        Ok((Intake { output, other, stdin, waiting }, for_output))
    }

    /// Passes a request on. Does not block.
    pub fn receive(&self, request: ToolRequest) {
        self.waiting.begin();
        let queue = match &request {
            ToolRequest::Push { .. } => &self.stdin,
            ToolRequest::Pull { .. } | ToolRequest::Signal { .. } | ToolRequest::Spawn { .. } => &self.output,
            _ => &self.other,
        };
        // A request that is dropped is refused thereby.
        if queue.send(request).is_err() {
            self.waiting.end();
        }
        self.waiting.wake();
    }
}

/// Serves requests one after the other.
fn serve(engine: &Path, uri: &str, queue: &Receiver<ToolRequest>, waiting: &Waiting) {
    let mut tool = None;
    for request in queue {
        if tool.is_none() {
            tool = Tool::connect(engine, NAME).ok();
        }
        match &mut tool {
            Some(tool) => answer(tool, request, uri),
            None => request.refuse(Status::ERR_UNREACH),
        }
        tool = tool.filter(|tool| !tool.is_gone());
        waiting.end();
    }
}

fn answer(tool: &mut Tool, request: ToolRequest, uri: &str) {
    match request {
        ToolRequest::Query { queries, reply } => match query(tool, queries, uri) {
            Ok(answer) => reply.send(&answer),
            Err(error) => reply.refuse(status(&error)),
        },
        ToolRequest::Abort { procs, reply } => match tool.signal(&procs, SIGKILL) {
            Ok(_) => reply.send(Status::SUCCESS),
            Err(error) => reply.send(status(&error)),
        },
        ToolRequest::Log { log: Err(status), reply } => reply.send(status),
        ToolRequest::Log { log: Ok(log), reply } => match tool.log(&log) {
            Ok(report) => reply.send(report.status),
            Err(error) => reply.send(status(&error)),
        },
        ToolRequest::Push { targets, mut directives, bytes, reply } => {
            // The tool reads its stdin itself.
            directives.retain(|directive| directive.key != PMIX_IOF_PUSH_STDIN);
            if bytes.is_empty() && !directives.iter().any(|directive| directive.key == PMIX_IOF_COMPLETE) {
                directives.push(Info::new(PMIX_IOF_COMPLETE, true));
            }
            let pushed = tool.push(&Push { targets, directives }, &bytes, |_| {});
            reply.send(match pushed {
                Ok(_) => Status::SUCCESS,
                Err(PushError::Request(error)) => status(&error),
                Err(_) => Status::ERR_NOT_AVAILABLE,
            });
        }
        request => request.refuse(Status::ERR_NOT_SUPPORTED),
    }
}

/// Adds the attributes of what this process carries out to those of the engine and its host.
fn add_attributes(Found { key, value, .. }: &mut Found) {
    let Value::Text(text) = value else { return };
    let is_debug = key == PMIX_QUERY_DEBUG_SUPPORT;
    if !is_debug && key != PMIX_QUERY_SPAWN_SUPPORT {
        return;
    }
    let mut keys: Vec<&str> = text.split(',').filter(|key| !key.is_empty()).collect();
    for row in attribute::at(Place::PmixSpawn) {
        if (!is_debug || row.name.starts_with("PMIX_DEBUG")) && !keys.contains(&row.key) {
            keys.push(row.key);
        }
    }
    *text = keys.join(",");
}

/// Answers queries.
fn query(tool: &mut Tool, mut queries: Vec<Query>, uri: &str) -> Result<Answer, RequestError> {
    let mut found = Vec::new();
    for (query, asked) in (0u32..).zip(&mut queries) {
        asked.keys.retain(|key| {
            let is_own = key == PMIX_SERVER_URI;
            // The address to which the rendezvous files lead.
            found.extend(is_own.then(|| Found { query, key: key.clone(), value: Value::Text(uri.into()) }));
            !is_own
        });
    }
    if !found.is_empty() && queries.iter().all(|query| query.keys.is_empty()) {
        return Ok(Answer { status: Status::SUCCESS, found });
    }
    let status = match tool.queries(queries) {
        Ok(mut answer) => {
            answer.found.iter_mut().for_each(add_attributes);
            found.extend(answer.found);
            answer.status
        }
        Err(RequestError::Denied(failure))
            if failure.status == Status::ERR_NOT_FOUND && !found.is_empty() =>
        {
            Status::ERR_PARTIAL_SUCCESS
        }
        Err(error) => return Err(error),
    };
    Ok(Answer { status, found })
}

/// Returns the status of a request that failed.
pub fn status(error: &RequestError) -> Status {
    match error {
        RequestError::Denied(failure) => failure.status,
        RequestError::Lost(_) => Status::ERR_UNREACH,
        _ => Status::ERR_OUT_OF_RESOURCE,
    }
}
