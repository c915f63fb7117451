//! The host's part: the upcalls of the engine to the process that embeds it (RFC0025's server
//! module).

use std::path::PathBuf;
use std::sync::Arc;

use iof_capture::Signal;
use iof_core::{Call, Grant, Input, PeerId, QueryId, ReplyCallback, SpawnId, SpawnRequest, StdinPush};
use iof_proto::limits::MAX_FAILURE_REASON;
use iof_proto::{
    Channel, Channels, Exchange, Failure, Found, Info, JobSpec, Log, Nspace, Proc, Query, Status, ToTool,
    socket,
};
use nix::unistd::{Uid, geteuid};

use crate::job::Job;
use crate::tables::reports::{Report, Reports};
#[cfg(doc)]
use iof_proto::log::key as log;
#[cfg(doc)]
use iof_proto::query::key;

/// The upcalls of an engine to the launcher or resource manager that embeds it. A launcher that
/// only forwards the output of its own ranks to tools of its own user does not need to implement
/// this trait: see [`Standalone`].
///
/// The engine makes upcalls one at a time on its control thread, which serves no tool meanwhile. So
/// an upcall must not block and must not panic. The engine's tables are not locked, so an upcall
/// may call the engine, and even drop it. It must not call a method that waits for the control
/// thread, which would deadlock: [`Engine::attach`](crate::Engine::attach),
/// [`Job::wait`](crate::Job::wait), [`Job::wait_exit`](crate::Job::wait_exit),
/// [`Job::flush`](crate::Job::flush), and the blocking methods of tools and printers that are
/// attached to this engine. After another thread has dropped the engine, no upcall follows:
/// [`Host::iof_stop`] is not called for sources that tools still read then.
///
/// The embedder's own readers ([`Engine::attach`](crate::Engine::attach)) may pull everything; the
/// engine makes no upcalls for them.
///
/// # Example
/// ```
/// use iof_engine::{ApprovalReply, Config, Engine, Grant, Host, HostReply, Rendezvous, same_user};
/// use iof_proto::{Channels, Info, Proc, Status, socket};
/// use std::sync::Arc;
///
/// /// Lets a group of operators read stderr.
/// struct Site {
///     operators: u32,
/// }
///
/// impl Host for Site {
///     fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
///         let is_operator = tool.gid == self.operators;
///         reply.answer(if is_operator { Ok(Grant::Never) } else { same_user(tool) });
///     }
///
///     fn iof_pull(&self, _: &[Proc], channels: Channels, _: &[Info], reply: HostReply) {
///         if channels == Channels::STDERR {
///             // A daemon would ask the nodes that run these processes, and answer later.
///             reply.grant();
///         } else {
///             reply.deny(Status::ERR_NO_PERMISSIONS, "only stderr may be pulled");
///         }
///     }
/// }
///
/// let config = Config::new(Rendezvous::None);
/// let engine = Engine::start_with(config, Arc::new(Site { operators: 1000 }))?;
/// # drop(engine);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Host: Send + Sync {
    /// Approves or refuses a tool that has connected. The ids in `tool` are those that the kernel
    /// reports (`SO_PEERCRED`, unix(7)). An approval contains the [`Grant`], which specifies
    /// whether the tool's registrations may hold sources back under
    /// [`Policy::Block`](iof_shm_ring::Policy::Block). If a tool with [`Grant::Block`] stops
    /// reading, the ranks that it reads stop as well.
    ///
    /// The tool waits for `reply`, which may be used during the upcall or later, on any thread.
    /// Other tools are served meanwhile. Without an answer within
    /// [`APPROVAL_LIMIT`](iof_proto::limits::APPROVAL_LIMIT) the tool is refused. The default
    /// implementation approves tools as [`same_user`] does.
    fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer(same_user(tool));
    }

    /// Returns the keys of the directives that this host supports in addition to those of the
    /// engine, such as a site's credentials. Called once, when the engine starts. The engine passes
    /// these directives, required or optional, to [`Host::iof_pull`] and [`Host::log`], which
    /// honour them or deny the request. If they include [`PMIX_LOG_SOURCE`](log::PMIX_LOG_SOURCE),
    /// messages may name processes that are unknown to the engine as their source.
    fn directives(&self) -> Vec<String> {
        Vec::new()
    }

    /// Grants or denies a tool the output `channels` of `procs` (`pmix_server_iof_fn_t`). The
    /// engine asks only for sources that are not granted at present. A host that grants output of
    /// remote processes must have it delivered to this engine
    /// ([`Engine::deliver`](crate::Engine::deliver)). For output that the engine captures, the host
    /// only gives permission. A wildcard rank stands for all processes of its job, including ranks
    /// that were granted before. [`Rank::UNDEF`](iof_proto::Rank::UNDEF) stands for messages that
    /// are logged to the job as a whole.
    ///
    /// The tool waits for `reply`, which may be used during the upcall or later, on any thread.
    /// Tools that pull some of the same sources meanwhile wait, too. A denied tool receives the
    /// reason and no bytes, not even cached ones. The denial also applies to tools that pulled the
    /// same sources with the same directives. For other waiting tools, the engine asks the host
    /// again.
    ///
    /// If several tools pull the same sources, `directives` are those of the first tool.
    fn iof_pull(&self, procs: &[Proc], channels: Channels, directives: &[Info], reply: HostReply) {
        let (_, _, _) = (procs, channels, directives);
        reply.grant();
    }

    /// Returns whether [`Host::push_stdin`] forwards stdin to remote processes. Called once, when
    /// the engine starts. If it returns `false`, pushes to remote processes fail with
    /// `PMIX_ERR_NOT_SUPPORTED`.
    fn forwards_stdin(&self) -> bool {
        false
    }

    /// Forwards bytes that a tool pushes to remote processes (`pmix_server_stdin_fn_t`). `bytes`
    /// has at most 64 KiB. If `bytes` is empty, the host closes the stdin of these processes. The
    /// engine itself pushes to local processes.
    ///
    /// `reply` is the flow control: the push waits until the host grants it, which means that the
    /// host has taken the bytes and can take more. With [`HostReply::pause`] the host has taken
    /// them, but no tool named [`StdinPush::source`] may push more until
    /// [`Engine::resume_stdin`](crate::Engine::resume_stdin). A denial ends the push for these
    /// processes; with `PMIX_ERR_IOF_COMPLETE` it states that they have ended or closed their
    /// stdin, which confirms the end of the push if `bytes` is empty. With the directive
    /// `PMIX_IOF_DROP_NEWEST`, a tool of `iof-tool` abandons a push if the host does not reply for
    /// about two seconds. The host then receives neither more bytes of that push nor its end, and
    /// may receive bytes of the next push.
    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: HostReply) {
        let (_, _) = (stdin, bytes);
        reply.deny(Status::ERR_NOT_SUPPORTED, "the host does not forward stdin");
    }

    /// Sends a signal that a tool of the engine's user requests to those of `procs` that run
    /// elsewhere. A wildcard rank stands for all remote processes of its job, or, if all ranks of the job
    /// have exited, for what the host keeps of it. Returns their number, which the tool receives. The engine itself signals local processes. The default
    /// implementation has no remote processes.
    fn signal(&self, procs: &[Proc], signal: Signal) -> usize {
        let (_, _) = (procs, signal);
        0
    }

    /// Grants or refuses the start of a job by a tool of the engine's own user (`PMIx_Spawn`). The
    /// host may change the specification before it grants it, and must not block. The engine starts
    /// the ranks of a granted job on a thread of its own, all or none, and removes the job when it
    /// has ended and its spawner can ask for it no longer.
    ///
    /// The tool waits for `reply`, which may be used during the upcall or later, on any thread. By
    /// default, tools start no jobs.
    fn spawn(&self, request: SpawnRequest, reply: SpawnReply) {
        drop(request);
        reply.deny(Status::ERR_NOT_SUPPORTED, "the launcher does not let tools start jobs");
    }

    /// Reports the end of the start of the job `nspace`, which [`Host::spawn`] has granted: a handle
    /// of the job, all of whose ranks are started, or the reason why none is. The tool receives the
    /// same afterwards. Called on the thread that has started the ranks, or on the control thread if
    /// none was started. It must not block. The default implementation does nothing.
    fn spawned(&self, nspace: &Nspace, result: Result<&Job, &Failure>) {
        let (_, _) = (nspace, result);
    }

    /// Returns the query keys that this host can answer, completely or in part. An example is
    /// [`PMIX_QUERY_PROC_TABLE`](key::PMIX_QUERY_PROC_TABLE) for a job whose processes run on
    /// several nodes. Called once, when the engine starts. For these keys the engine always asks
    /// the host, and merges the host's answer with its own.
    fn queries(&self) -> Vec<String> {
        Vec::new()
    }

    /// Answers queries of a tool (`pmix_server_query_fn_t`) that the engine can't answer, and those
    /// for the keys of [`Host::queries`]. Each query contains only these keys, and its qualifiers.
    /// The tool waits for `reply`, which may be used during the upcall or later, on any thread.
    fn query(&self, queries: &[Query], reply: QueryReply) {
        let _ = queries;
        drop(reply);
    }

    /// Returns the keys of the log channels that this host serves, such as
    /// [`PMIX_LOG_GLOBAL_DATASTORE`](log::PMIX_LOG_GLOBAL_DATASTORE) and channels of the site.
    /// Called once, when the engine starts. Tools can query these keys, and
    /// [`LogConfig::order`](crate::LogConfig::order) may contain them. With the keys of stdout and
    /// stderr ([`PMIX_LOG_STDOUT`](log::PMIX_LOG_STDOUT), [`PMIX_LOG_STDERR`](log::PMIX_LOG_STDERR)),
    /// the host serves these channels instead of the engine.
    fn log_channels(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the socket of the gateway engine
    /// ([`LogConfig::gateway`](crate::LogConfig::gateway)), if there is one. Called once, when the
    /// engine starts. The engine relays three kinds of messages to the gateway: those for the
    /// global syslog, those for email unless the engine has a mail server of its own, and those for
    /// channels that neither the engine nor [`Host::log_channels`] knows. The gateway accepts or
    /// refuses them. Without a gateway, the engine passes such messages to [`Host::log`].
    fn gateway(&self) -> Option<PathBuf> {
        None
    }

    /// Logs a message to a channel that is unknown to the engine (`pmix_server_log_fn_t`, RFC0032).
    /// `log` has exactly one entry. The tool waits for `reply`, which reports success or failure,
    /// and may be used during the upcall or later, on any thread. The host must not log the message
    /// through this engine again.
    fn log(&self, log: &Log, reply: HostReply) {
        let reason = match log.data.first() {
            Some(entry) => format!("unknown log channel '{}'", entry.channel),
            None => "the log request has no entry".to_owned(),
        };
        reply.deny(Status::ERR_NOT_SUPPORTED, reason);
    }

    /// Passes on a request of a rank of a part of a job ([`JobSpec::mpi_nodes`]) to the engine that has the whole
    /// job, which serves it by [`Job::exchange`]. `reply` is called once with the answer, on any thread. By
    /// default such requests are refused.
    fn exchange(&self, from: &Proc, exchange: Exchange, reply: ReplyCallback) {
        let _ = from;
        let failure =
            Failure::new(Status::ERR_NOT_SUPPORTED, "the launcher connects no ranks of other nodes");
        reply(ToTool::refused(&exchange, failure));
    }

    /// Reports that a rank has stalled the forwarding of all other ranks for about half a second.
    /// The cause is a write to `channel` from memory whose page faults are slow, such as a mapped
    /// file on a hung file system: the rank holds the kernel's lock of its pipe during the write.
    /// If `channel` is stdin, the cause is a read into such memory. `remedy` is the engine's
    /// reaction.
    ///
    /// Called once for each such pipe, on a watchdog thread of the engine, possibly while another
    /// upcall runs. It must not call blocking methods of the engine, which may be stalled. The
    /// default implementation logs a warning (with `tracing`).
    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        tracing::warn!(%source, %channel, ?remedy, "a rank stalls the forwarding of all other ranks");
    }

    /// Ends a grant of [`Host::iof_pull`], because no tool reads `channels` of `procs` any more.
    /// The host can stop the delivery of this output. Called once for each source that was granted.
    /// A wildcard rank includes all ranks of its job that were granted.
    ///
    /// If the host grants a job on another thread while the stop of one of its ranks is on its way,
    /// the rank is part of the job: the host ignores the stop.
    fn iof_stop(&self, procs: &[Proc], channels: Channels) {
        let (_, _) = (procs, channels);
    }
}

/// The engine's reaction to a rank that stalls the forwarding of all others, see [`Host::stalled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Separate threads read the rank's output from now on, so that it delays only itself.
    Isolated,
    /// The engine does nothing, because too many streams have threads of their own already. The
    /// rank may stall the engine again.
    TooMany {
        /// The largest number of such streams,
        /// [`MAX_ISOLATED_STREAMS`](iof_proto::limits::MAX_ISOLATED_STREAMS).
        limit: usize,
    },
    /// The engine does nothing, because the pipe is the rank's stdin, or the rank writes to a
    /// terminal. The rank may stall the engine again; on stdin, only when bytes are pushed to it.
    None,
}

/// The default host. It approves tools of the engine's own user and of root, and grants everything
/// that they pull. It does not forward stdin to remote ranks, and serves no queries or log
/// channels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standalone;

impl Host for Standalone {}

/// A host that behaves as [`Standalone`], and also names a gateway engine, to which the engine
/// relays log messages (see [`Host::gateway`]).
#[derive(Clone, Debug)]
pub struct ViaGateway {
    /// The gateway's Unix socket: [`Engine::socket`](crate::Engine::socket) of the gateway engine.
    pub socket: PathBuf,
}

impl Host for ViaGateway {
    fn gateway(&self) -> Option<PathBuf> {
        Some(self.socket.clone())
    }
}

/// Approves tools of the engine's own user and of root, with [`Grant::Never`].
///
/// # Errors
/// The tool belongs to another user.
pub fn same_user(tool: &socket::PeerCredentials) -> Result<Grant, Failure> {
    if Uid::from_raw(tool.uid) == geteuid() || tool.uid == 0 {
        return Ok(Grant::Never);
    }
    let reason = format!("user {} may not attach to an engine of user {}", tool.uid, geteuid());
    Err(Failure::new(Status::ERR_NO_PERMISSIONS, reason))
}

/// A handle with which the host answers one call of [`Host::iof_pull`], [`Host::push_stdin`] or
/// [`Host::log`], on any thread and without blocking. Dropping it denies the request with
/// [`Status::ERR_NOT_AVAILABLE`]. An answer after the engine has ended has no effect.
#[derive(Debug)]
pub struct HostReply {
    call: Call,
    /// `None` once the answer is sent.
    reports: Option<Arc<Reports>>,
}

impl HostReply {
    pub(crate) fn new(call: Call, reports: Arc<Reports>) -> HostReply {
        HostReply { call, reports: Some(reports) }
    }

    /// Grants the request: the output will be delivered, the bytes were taken, or the message was
    /// logged.
    pub fn grant(mut self) {
        self.send(Ok(()));
    }

    /// Takes the bytes of [`Host::push_stdin`], and pauses the stdin of their source until
    /// [`Engine::resume_stdin`](crate::Engine::resume_stdin). For other requests this is a denial
    /// with
    /// [`Status::ERR_IOF_XOFF`].
    pub fn pause(self) {
        self.deny(Status::ERR_IOF_XOFF, "the host takes no more stdin at present");
    }

    /// Denies the request with `status` and `reason`, which the tool receives: up to
    /// [`MAX_FAILURE_REASON`] bytes.
    pub fn deny(mut self, status: Status, reason: impl Into<String>) {
        self.send(Err(Failure::new(status, reason)));
    }

    fn send(&mut self, answer: Result<(), Failure>) {
        if let Some(reports) = self.reports.take() {
            reports.send(Input::Answered { call: self.call, answer: answer.map_err(with_short_reason) });
        }
    }
}

impl Drop for HostReply {
    fn drop(&mut self) {
        let reason = "the host dropped the request without an answer";
        self.send(Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason)));
    }
}

/// Cuts the reason of a failure to its limit.
fn with_short_reason(mut failure: Failure) -> Failure {
    failure.reason.truncate(failure.reason.floor_char_boundary(MAX_FAILURE_REASON));
    failure
}

/// A handle with which the host answers one call of [`Host::approve`], on any thread and without
/// blocking. Dropping it refuses the tool with [`Status::ERR_NOT_AVAILABLE`]. An answer has no
/// effect if the tool has disconnected, or was refused because the time limit had passed.
#[derive(Debug)]
pub struct ApprovalReply {
    peer: PeerId,
    /// `None` once the answer is sent.
    reports: Option<Arc<Reports>>,
}

impl ApprovalReply {
    pub(crate) fn new(peer: PeerId, reports: Arc<Reports>) -> ApprovalReply {
        ApprovalReply { peer, reports: Some(reports) }
    }

    /// Approves the tool with a grant, or refuses it with a reason.
    pub fn answer(mut self, answer: Result<Grant, Failure>) {
        self.send(answer);
    }

    fn send(&mut self, answer: Result<Grant, Failure>) {
        if let Some(reports) = self.reports.take() {
            reports.send(Report::Approved { peer: self.peer, answer: answer.map_err(with_short_reason) });
        }
    }
}

impl Drop for ApprovalReply {
    fn drop(&mut self) {
        let reason = "the host dropped the request without an answer";
        self.send(Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason)));
    }
}

/// A handle with which the host answers one call of [`Host::query`](crate::Host::query), on any
/// thread and without blocking. Dropping it answers that the host knows nothing.
#[derive(Debug)]
pub struct QueryReply {
    id: QueryId,
    /// `None` after the answer was given.
    reports: Option<Arc<Reports>>,
}

impl QueryReply {
    pub(crate) fn new(id: QueryId, reports: Arc<Reports>) -> QueryReply {
        QueryReply { id, reports: Some(reports) }
    }

    /// Answers with the values that the host knows. [`Found::query`] is the index of the query in
    /// the list that the host received. The engine ignores keys that were not requested.
    pub fn answer(mut self, found: Vec<Found>) {
        self.send(Ok(found));
    }

    /// Answers that the host knows nothing. If the engine knows nothing either, the tool receives
    /// this status and reason.
    pub fn deny(mut self, status: Status, reason: impl Into<String>) {
        self.send(Err(Failure::new(status, reason)));
    }

    fn send(&mut self, answer: Result<Vec<Found>, Failure>) {
        if let Some(reports) = self.reports.take() {
            reports.send(Input::QueryAnswered { id: self.id, answer: answer.map_err(with_short_reason) });
        }
    }
}

impl Drop for QueryReply {
    fn drop(&mut self) {
        self.send(Ok(Vec::new()));
    }
}

/// A handle with which the host answers one call of [`Host::spawn`], on any thread and without
/// blocking. Dropping it refuses the request with [`Status::ERR_NOT_AVAILABLE`].
#[derive(Debug)]
pub struct SpawnReply {
    id: SpawnId,
    /// `None` once the answer is sent.
    reports: Option<Arc<Reports>>,
}

impl SpawnReply {
    pub(crate) fn new(id: SpawnId, reports: Arc<Reports>) -> SpawnReply {
        SpawnReply { id, reports: Some(reports) }
    }

    /// Grants the job as `spec` specifies it: that of the request, which the host may have changed.
    pub fn grant(mut self, spec: JobSpec) {
        self.send(Ok(Box::new(spec)));
    }

    /// Refuses the job with `status` and `reason`, which the tool receives: up to
    /// [`MAX_FAILURE_REASON`] bytes.
    pub fn deny(mut self, status: Status, reason: impl Into<String>) {
        self.send(Err(Failure::new(status, reason)));
    }

    /// Answers with a job that the host has started itself in place of the engine, such as on other nodes
    /// ([`Engine::begin_on_nodes`](crate::Engine::begin_on_nodes)). It has the name of the request.
    pub fn started(mut self, job: &Job) {
        if let Some(reports) = self.reports.take() {
            reports.send(Input::SpawnStarted { id: self.id, job: job.id().clone() });
        }
    }

    fn send(&mut self, answer: Result<Box<JobSpec>, Failure>) {
        if let Some(reports) = self.reports.take() {
            reports.send(Input::SpawnAnswered { id: self.id, answer: answer.map_err(with_short_reason) });
        }
    }
}

impl Drop for SpawnReply {
    fn drop(&mut self) {
        let reason = "the host dropped the request without an answer";
        self.send(Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason)));
    }
}
