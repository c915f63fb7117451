//! The requests of PMIx tools and ranks to their server, and the callbacks with which requests are answered.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use iof_proto::{Answer, Channels, FoundValue, FromTool, Info, Log, Nspace, Proc, Query, Status, ToTool};

use crate::library::info::{CInfos, Value, c_string};
use crate::library::types::{
    InfoCallback, LookupCallback, ModexCallback, OpCallback, RawProc, SpawnCallback,
};
use crate::requests::answer;
use crate::requests::spawn::ToolSpawn;

/// A request of a PMIx tool.
#[derive(Debug)]
#[non_exhaustive]
pub enum ToolRequest {
    /// Output (`PMIx_IOF_pull`), or the reason why it cannot be pulled. libpmix does nothing else
    /// before it has the answer: libpmix 4 uses memory that it has freed if the answer comes later.
    Pull {
        /// libpmix's number of the pull, which is in use until [`ToolServer::forget_pull`].
        ///
        /// [`ToolServer::forget_pull`]: crate::ToolServer::forget_pull
        number: u32,
        /// The request.
        pull: Result<PullRequest, Status>,
        /// Grants or refuses it.
        reply: PullReply,
    },
    /// Bytes for the stdin of `targets` (`PMIx_IOF_push`).
    Push {
        /// The processes.
        targets: Vec<Proc>,
        /// The directives.
        directives: Vec<Info>,
        /// The bytes. None: the stdin is to be closed.
        bytes: Vec<u8>,
        /// Reports that the targets have the bytes: the tool may then push the next ones.
        reply: StatusReply,
    },
    /// The end of processes (`PMIx_Abort`). A tool learns of no refusal: its libpmix always reports
    /// success.
    Abort {
        /// The processes.
        procs: Vec<Proc>,
        /// Reports that they were killed.
        reply: StatusReply,
    },
    /// A signal (`PMIx_Job_control`).
    Signal {
        /// The processes.
        procs: Vec<Proc>,
        /// The number of the signal, or the reason why none can be sent.
        signal: Result<i32, Status>,
        /// Reports that it was sent, by an answer without keys.
        reply: AnswerReply,
    },
    /// A job to be started (`PMIx_Spawn`), or the reason why it cannot be.
    Spawn {
        /// The job.
        spawn: Result<Box<ToolSpawn>, Status>,
        /// Names it once it has started.
        reply: NspaceReply,
    },
    /// Queries (`PMIx_Query_info`).
    Query {
        /// The queries.
        queries: Vec<Query>,
        /// Answers them.
        reply: AnswerReply,
    },
    /// A message to be logged (`PMIx_Log`), or the reason why it cannot be: libpmix holds locks
    /// during its upcall that the answer needs, so that the receiver gives it.
    Log {
        /// The message.
        log: Result<Log, Status>,
        /// Reports whether it was logged.
        reply: StatusReply,
    },
}

impl ToolRequest {
    /// Refuses the request, if it waits for an answer.
    pub fn refuse(self, status: Status) {
        match self {
            ToolRequest::Pull { reply, .. } => drop(reply.send(status)),
            ToolRequest::Push { reply, .. }
            | ToolRequest::Abort { reply, .. }
            | ToolRequest::Log { reply, .. } => reply.send(status),
            ToolRequest::Signal { reply, .. } | ToolRequest::Query { reply, .. } => reply.refuse(status),
            ToolRequest::Spawn { reply, .. } => reply.send(Err(status)),
        }
    }
}

/// The arguments of a pull.
#[derive(Debug)]
pub struct PullRequest {
    /// The processes.
    pub procs: Vec<Proc>,
    /// The channels.
    pub channels: Channels,
    /// The directives.
    pub directives: Vec<Info>,
}

/// Grants or refuses a pull, within [`MAX_PMIX_PULL_WAIT`](crate::limits::MAX_PMIX_PULL_WAIT).
/// Dropping it refuses the pull.
#[derive(Debug)]
pub struct PullReply(pub(crate) SyncSender<Status>);

impl PullReply {
    /// Answers the request. Returns whether the tool gets the answer: otherwise the pull was refused
    /// after the limit.
    pub fn send(self, status: Status) -> bool {
        self.0.send(status).is_ok()
    }
}

/// libpmix's pointer to a request.
struct CallData(*mut c_void);

// SAFETY: libpmix lets a host answer on any thread. Only its callback uses the pointer.
unsafe impl Send for CallData {}

/// A request that libpmix waits for.
struct Call<Callback> {
    done: Callback,
    data: CallData,
}

/// Answers a request with a status, on any thread. Dropping it refuses the request.
pub struct StatusReply(Option<Call<OpCallback>>);

impl StatusReply {
    pub(crate) fn new(done: OpCallback, data: *mut c_void) -> StatusReply {
        StatusReply(Some(Call { done, data: CallData(data) }))
    }

    /// Answers the request.
    pub fn send(mut self, status: Status) {
        self.call(status);
    }

    fn call(&mut self, status: Status) {
        if let Some(Call { done: Some(done), data }) = self.0.take() {
            // SAFETY: libpmix waits for one call, which is this one.
            unsafe { done(status.0, data.0) }
        }
    }
}

impl Drop for StatusReply {
    fn drop(&mut self) {
        self.call(Status::ERR_NOT_AVAILABLE);
    }
}

impl fmt::Debug for StatusReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusReply").finish_non_exhaustive()
    }
}

/// Answers queries, on any thread. Dropping it refuses them.
pub struct AnswerReply(Option<Call<InfoCallback>>);

impl AnswerReply {
    pub(crate) fn new(done: InfoCallback, data: *mut c_void) -> AnswerReply {
        AnswerReply(Some(Call { done, data: CallData(data) }))
    }

    /// Answers the queries.
    pub fn send(self, answer: &Answer) {
        self.send_infos(answer.status, answer::infos(answer));
    }

    fn send_infos(mut self, status: Status, infos: Vec<crate::library::info::Info>) {
        self.call(status, Some(Box::new(CInfos::new(infos))));
    }

    /// Refuses the queries.
    pub fn refuse(mut self, status: Status) {
        self.call(status, None);
    }

    fn call(&mut self, status: Status, infos: Option<Box<CInfos>>) {
        let Some(Call { done: Some(done), data }) = self.0.take() else { return };
        let Some(mut infos) = infos else {
            // SAFETY: libpmix waits for one call, which is this one.
            return unsafe { done(status.0, std::ptr::null_mut(), 0, data.0, None, std::ptr::null_mut()) };
        };
        let (array, length) = infos.as_parts();
        // SAFETY: libpmix waits for one call, which is this one. The infos are valid until it
        // releases them.
        unsafe { done(status.0, array, length, data.0, Some(release), Box::into_raw(infos).cast()) }
    }
}

impl Drop for AnswerReply {
    fn drop(&mut self) {
        self.call(Status::ERR_NOT_AVAILABLE, None);
    }
}

impl fmt::Debug for AnswerReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerReply").finish_non_exhaustive()
    }
}

/// Answers a lookup, on any thread. Dropping it refuses the lookup.
pub(crate) struct LookupReply(Option<Call<LookupCallback>>);

impl LookupReply {
    pub(crate) fn new(done: LookupCallback, data: *mut c_void) -> LookupReply {
        LookupReply(Some(Call { done, data: CallData(data) }))
    }

    fn call(&mut self, status: Status, found: &[FoundValue]) {
        let Some(Call { done: Some(done), data }) = self.0.take() else { return };
        let (mut rows, texts) = answer::published(found);
        // SAFETY: libpmix waits for one call, which is this one, and copies the values.
        unsafe { done(status.0, rows.as_mut_ptr(), rows.len(), data.0) }
        drop(texts);
    }
}

impl Drop for LookupReply {
    fn drop(&mut self) {
        self.call(Status::ERR_NOT_AVAILABLE, &[]);
    }
}

/// Answers a request to spawn a job, on any thread. Dropping it refuses the request.
pub struct NspaceReply(Option<Call<SpawnCallback>>);

impl NspaceReply {
    pub(crate) fn new(done: SpawnCallback, data: *mut c_void) -> NspaceReply {
        NspaceReply(Some(Call { done, data: CallData(data) }))
    }

    /// Answers the request.
    pub fn send(mut self, result: Result<&Nspace, Status>) {
        match result {
            Ok(nspace) => self.call(Status::SUCCESS, nspace.as_str()),
            Err(status) => self.call(status, ""),
        }
    }

    fn call(&mut self, status: Status, nspace: &str) {
        let Some(Call { done: Some(done), data }) = self.0.take() else { return };
        // SAFETY: libpmix waits for one call, which is this one, and copies the name.
        unsafe { done(status.0, c_string(nspace).as_ptr().cast_mut(), data.0) }
    }
}

impl fmt::Debug for NspaceReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NspaceReply").finish_non_exhaustive()
    }
}

impl Drop for NspaceReply {
    fn drop(&mut self) {
        self.call(Status::ERR_NOT_AVAILABLE, "");
    }
}

/// Answers a request for values of ranks of other nodes, on any thread. Dropping it refuses the request.
pub(crate) struct ValuesReply(Option<Call<ModexCallback>>);

impl ValuesReply {
    pub(crate) fn new(done: ModexCallback, data: *mut c_void) -> ValuesReply {
        ValuesReply(Some(Call { done, data: CallData(data) }))
    }

    fn call(&mut self, values: Result<Arc<[u8]>, Status>) {
        let Some(Call { done: Some(done), data }) = self.0.take() else { return };
        match values {
            Ok(values) => {
                let (start, length) = (values.as_ptr().cast(), values.len());
                let owner = Box::into_raw(Box::new(values)).cast();
                // SAFETY: libpmix waits for one call, which is this one. The values are valid until it releases
                // them.
                unsafe { done(Status::SUCCESS.0, start, length, data.0, Some(release_values), owner) }
            }
            // SAFETY: libpmix waits for one call, which is this one.
            Err(status) => unsafe { done(status.0, ptr::null(), 0, data.0, None, ptr::null_mut()) },
        }
    }
}

impl Drop for ValuesReply {
    fn drop(&mut self) {
        self.call(Err(Status::ERR_NOT_AVAILABLE));
    }
}

/// Frees the values of an answer.
unsafe extern "C" fn release_values(values: *mut c_void) {
    // SAFETY: libpmix calls it once, with the pointer that `ValuesReply` has passed.
    drop(unsafe { Box::from_raw(values.cast::<Arc<[u8]>>()) });
}

/// A request of a rank.
#[derive(Debug)]
pub struct RankRequest {
    /// The name of its job in PMIx, and the rank. libpmix does not tell it with queries.
    pub from: Option<(String, u32)>,
    /// The request, as a tool would send it, with number 0.
    pub message: FromTool,
    /// Answers it.
    pub reply: RankReply,
}

/// The callback with which a request of a rank is answered.
pub(crate) enum RankCallback {
    Status(StatusReply),
    Answer(AnswerReply),
    /// That of a group with these members.
    Group(AnswerReply, Vec<RawProc>),
    Lookup(LookupReply),
    Spawn(NspaceReply),
    Values(ValuesReply),
}

/// Lets the thread that calls libpmix give an answer. libpmix holds locks during its upcalls that
/// the answer needs.
pub(crate) type Post = Arc<dyn Fn((RankCallback, Result<ToTool, Status>)) + Send + Sync>;

/// Answers a request of a rank, on any thread and without blocking. Dropping it refuses the request.
pub struct RankReply {
    reply: Option<RankCallback>,
    post: Post,
}

impl RankReply {
    pub(crate) fn new(reply: RankCallback, post: Post) -> RankReply {
        RankReply { reply: Some(reply), post }
    }

    /// Answers the request with the message that a tool would receive.
    pub fn send(mut self, answer: ToTool) {
        self.post(Ok(answer));
    }

    /// Refuses the request.
    pub fn refuse(mut self, status: Status) {
        self.post(Err(status));
    }

    fn post(&mut self, answer: Result<ToTool, Status>) {
        if let Some(reply) = self.reply.take() {
            (self.post)((reply, answer));
        }
    }
}

impl Drop for RankReply {
    fn drop(&mut self) {
        self.post(Err(Status::ERR_NOT_AVAILABLE));
    }
}

impl fmt::Debug for RankReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankReply").finish_non_exhaustive()
    }
}

/// Gives an answer to a rank.
pub(crate) fn answer_rank((reply, answer): (RankCallback, Result<ToTool, Status>)) {
    if let RankCallback::Values(mut reply) = reply {
        return reply.call(match answer {
            Ok(ToTool::Fenced(result)) => result.map_err(|failure| failure.status),
            Ok(_) => Err(Status::ERR_NOT_SUPPORTED),
            Err(status) => Err(status),
        });
    }
    let (mut published, mut nspace) = (Vec::new(), String::new());
    let answer = match answer {
        Ok(ToTool::Exchanged(result)) => Err(result.map_or_else(
            |failure| failure.status,
            |found| {
                published = found;
                Status::SUCCESS
            },
        )),
        Ok(ToTool::Spawned { result, .. }) => Err(result.map_or_else(
            |failure| failure.status,
            |name| {
                nspace = name.to_string();
                Status::SUCCESS
            },
        )),
        Ok(ToTool::Fenced(result)) => Err(result.map_or_else(|failure| failure.status, |_| Status::SUCCESS)),
        Ok(ToTool::Logged { result, .. }) => {
            Err(result.map_or_else(|failure| failure.status, |report| report.status))
        }
        Ok(ToTool::Signalled { result, .. }) => {
            let sent = result.map(|_| Answer { status: Status::SUCCESS, found: Vec::new() });
            sent.map_err(|failure| failure.status)
        }
        Ok(ToTool::Answer { result, .. }) => result.map_err(|failure| failure.status),
        Ok(_) => Err(Status::ERR_NOT_SUPPORTED),
        Err(status) => Err(status),
    };
    match (reply, answer) {
        (RankCallback::Lookup(mut reply), answer) => {
            reply.call(answer.map_or_else(|status| status, |answer| answer.status), &published);
        }
        (RankCallback::Spawn(mut reply), answer) => {
            reply.call(answer.map_or_else(|status| status, |answer| answer.status), &nspace);
        }
        (RankCallback::Values(_), _) => {}
        (RankCallback::Answer(reply), Ok(answer)) => reply.send(&answer),
        (RankCallback::Group(reply, members), Ok(answer)) => {
            // libpmix 5 reads the members from the answer.
            let mut infos = answer::infos(&answer);
            infos.push(crate::library::info::Info::new("pmix.grp.mbrs", Value::Procs(members)));
            reply.send_infos(answer.status, infos);
        }
        (RankCallback::Answer(reply) | RankCallback::Group(reply, _), Err(status)) => reply.refuse(status),
        (RankCallback::Status(reply), answer) => {
            reply.send(answer.map_or_else(|status| status, |answer| answer.status))
        }
    }
}

/// Frees the infos of an answer.
unsafe extern "C" fn release(infos: *mut c_void) {
    // SAFETY: libpmix calls it once, with the pointer that `AnswerReply` has passed.
    drop(unsafe { Box::from_raw(infos.cast::<CInfos>()) });
}
