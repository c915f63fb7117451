//! The host's part: the upcalls of the engine to the process that embeds it (RFC0025's server
//! module).

use std::path::PathBuf;
use std::sync::Arc;

use iof_capture::PushId;
#[cfg(doc)]
use iof_proto::log::key as log;
#[cfg(doc)]
use iof_proto::query::key;
use iof_proto::socket;
use iof_proto::{Channel, Channels, Failure, Info, Log, LogReport, Proc, Query, Status};
use nix::unistd::{Uid, geteuid};

use crate::control::{Report, Reports};
use crate::deliver::TakenCallback;
use crate::demand::{CallId, Sources};
use crate::engine::Grant;
use crate::log::{LogCallback, LogStep};
use crate::push::StdinPush;
use crate::query::{QueryId, QueryReply};
use crate::state::PeerId;

/// The upcalls of an engine to the launcher or resource manager that embeds it. A launcher that
/// only forwards the output of its own ranks to tools of its own user needs no host of its own: see
/// [`Standalone`].
///
/// The engine makes upcalls one at a time on its control thread, which serves no tool meanwhile. An
/// upcall must return soon and must not panic. The engine's tables are not locked, so an upcall may
/// call the engine, and even drop it. It must not call what may wait for the control thread:
/// [`Engine::attach`](crate::Engine::attach), [`Job::wait`](crate::Job::wait),
/// [`Job::wait_exit`](crate::Job::wait_exit) and [`Job::flush`](crate::Job::flush). After another
/// thread has dropped the engine there are no upcalls: [`Host::iof_stop`] is not called for sources
/// that tools still hold then.
///
/// The engine makes no upcalls for what the embedder's own readers pull
/// ([`Engine::attach`](crate::Engine::attach)).
///
/// # Example
/// ```
/// use iof_engine::{ApprovalReply, Config, Engine, Grant, Host, Rendezvous, Reply, same_user};
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
///     fn iof_pull(&self, _: &[Proc], channels: Channels, _: &[Info], reply: Reply) {
///         if channels == Channels::STDERR {
///             // A daemon would ask the nodes that run these processes, and answer later.
///             reply.grant();
///         } else {
///             reply.deny(Status::ERR_NO_PERMISSIONS, "only stderr may be pulled");
///         }
///     }
/// }
///
/// let config = Config { rendezvous: Rendezvous::None, ..Config::default() };
/// let engine = Engine::start_with(config, Arc::new(Site { operators: 1000 }))?;
/// # drop(engine);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Host: Send + Sync {
    /// Approves or refuses a tool that has connected. The ids in `tool` are those that the kernel
    /// reports (`SO_PEERCRED`, unix(7)). An approval contains the [`Grant`], which specifies
    /// whether the tool's registrations may hold sources back under
    /// [`Policy::Block`](iof_shm_ring::Policy::Block). A tool with that grant that stops reading
    /// stops the job.
    ///
    /// The tool waits for `reply`, which may be used during the upcall or later, on any thread.
    /// Other tools are served meanwhile. Without an answer within
    /// [`APPROVAL_LIMIT`](iof_proto::limits::APPROVAL_LIMIT) the tool is refused. The default
    /// implementation approves tools as [`same_user`] does.
    fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer(same_user(tool));
    }

    /// Returns the keys of the directives that this host supports, such as those of a site's
    /// credentials. Called once, when the engine starts. The engine passes these directives,
    /// required or optional, to [`Host::iof_pull`] and [`Host::log`], which honour them or deny the
    /// request. If they include [`PMIX_LOG_SOURCE`](log::PMIX_LOG_SOURCE), messages may name
    /// processes that are unknown to the engine as their source.
    fn directives(&self) -> Vec<String> {
        Vec::new()
    }

    /// Grants or denies a tool `channels` of `procs`, none of which was granted before
    /// (`pmix_server_iof_fn_t`). A host that grants output of remote processes must have it
    /// delivered to this engine ([`Engine::deliver`](crate::Engine::deliver)). For output that the
    /// engine captures, the host only gives permission. A wildcard rank stands for all processes of
    /// its job; ranks that were granted before are part of it from then on.
    /// [`Rank::UNDEF`](iof_proto::Rank::UNDEF) stands for messages that are logged to the job as a
    /// whole.
    ///
    /// The tool waits for `reply`, which may be used during the upcall or later, on any thread.
    /// Tools that pull some of the same sources meanwhile wait, too. A denied tool receives the
    /// reason and no bytes, not even cached ones. The denial also applies to tools that pulled the
    /// same sources with the same directives. For the other waiting tools the host is asked again.
    ///
    /// `directives` are those of the tool that was first to pull.
    fn iof_pull(&self, procs: &[Proc], channels: Channels, directives: &[Info], reply: Reply) {
        let (_, _, _) = (procs, channels, directives);
        reply.grant();
    }

    /// Returns whether [`Host::push_stdin`] forwards stdin to remote processes. Called once, when
    /// the engine starts. If it returns `false`, pushes to remote processes fail with
    /// `PMIX_ERR_NOT_SUPPORTED`.
    fn forwards_stdin(&self) -> bool {
        false
    }

    /// Forwards bytes that a tool pushes to remote processes (`pmix_server_stdin_fn_t`). Empty
    /// `bytes` ask the host to close their stdin. The engine itself pushes to local processes.
    ///
    /// `reply` is the flow control: the push waits until the host has granted it, which means that
    /// the bytes were taken and more may follow. A denial ends the push for these processes. A push
    /// with the directive not to wait is abandoned after one second without a reply. The host then
    /// receives neither more bytes of that push nor its end, and may receive bytes of the next
    /// push.
    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: Reply) {
        let (_, _) = (stdin, bytes);
        reply.deny(Status::ERR_NOT_SUPPORTED, "the host does not forward stdin");
    }

    /// Returns the keys of the queries to which this host knows a part of the answer or all of it,
    /// such as [`PMIX_QUERY_PROC_TABLE`](key::PMIX_QUERY_PROC_TABLE) of a job whose processes run
    /// on several nodes. Called once, when the engine starts. For these keys the engine asks the
    /// host even if it knows a part of the answer itself, and merges both parts.
    fn queries(&self) -> Vec<String> {
        Vec::new()
    }

    /// Answers queries of a tool that the engine can't answer (`pmix_server_query_fn_t`), or not
    /// completely ([`Host::queries`]). Each query contains its remaining keys and its qualifiers.
    /// The tool waits for `reply`, which may be used during the upcall or later, on any thread.
    fn query(&self, queries: &[Query], reply: QueryReply) {
        let _ = queries;
        drop(reply);
    }

    /// Returns the keys of the channels that this host logs to, such as
    /// [`PMIX_LOG_GLOBAL_DATASTORE`](log::PMIX_LOG_GLOBAL_DATASTORE) and those of a site. Called
    /// once, when the engine starts. Tools can query them, and the engine's order may name them.
    fn log_channels(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the socket of the gateway engine
    /// ([`LogConfig::gateway`](crate::LogConfig::gateway)), if there is one. Called once, when the
    /// engine starts. The engine sends the gateway messages for the global syslog, for email unless
    /// it has a mail server of its own, and for channels that neither it nor [`Host::log_channels`]
    /// names; the gateway accepts or refuses them. Without a gateway, such messages are passed to
    /// [`Host::log`].
    fn gateway(&self) -> Option<PathBuf> {
        None
    }

    /// Logs a message to a channel that is unknown to the engine (`pmix_server_log_fn_t`, RFC0032).
    /// `log` has exactly one entry. The tool waits for `reply`, which reports success or failure,
    /// and may be used during the upcall or later, on any thread. The host must not log the message
    /// through this engine again.
    fn log(&self, log: &Log, reply: Reply) {
        let reason = match log.data.first() {
            Some(entry) => format!("unknown log channel '{}'", entry.channel),
            None => "the log request has no entry".to_owned(),
        };
        reply.deny(Status::ERR_NOT_SUPPORTED, reason);
    }

    /// Reports that a rank has stalled the forwarding of all other ranks for about half a second.
    /// The rank writes to `channel` from memory that faults slowly, such as a mapped file on a hung
    /// file system, and so holds the lock of its pipe; or it reads its stdin into such memory.
    /// `remedy` is the engine's reaction.
    ///
    /// Called once for each such pipe, on a watchdog thread of the engine, possibly while another
    /// upcall runs. It must not wait for the engine, which may be stalled. The default
    /// implementation logs a warning.
    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        tracing::warn!(%source, %channel, ?remedy, "a rank stalls the forwarding of all other ranks");
    }

    /// Ends what was granted: no tool wants `channels` of `procs` any more. Called once for each
    /// source that was granted. A wildcard rank includes all ranks of its job that were granted.
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
    /// The engine does nothing, because too many streams have threads of their own. The stall may
    /// happen again.
    TooMany {
        /// The largest number of such streams,
        /// [`MAX_ISOLATED_STREAMS`](iof_proto::limits::MAX_ISOLATED_STREAMS).
        limit: usize,
    },
    /// The engine does nothing, because the pipe is the rank's stdin or the stream is its terminal.
    /// The stall may happen again; on stdin, only when bytes are pushed to the rank.
    None,
}

/// A host that forwards the output of its own ranks to all tools of its own user and of root.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standalone;

impl Host for Standalone {}

/// A host that behaves as [`Standalone`], and in addition names the socket of a gateway engine.
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

/// The subject of an upcall that the host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Approve(PeerId),
    Query(QueryId),
    Pull(CallId),
    Stdin(PushId),
    Log(LogStep),
}

/// The means to answer [`Host::iof_pull`], [`Host::push_stdin`] or [`Host::log`], once and on any
/// thread. Dropping it denies the request with [`Status::ERR_NOT_AVAILABLE`]. An answer after the
/// engine has ended has no effect.
#[derive(Debug)]
pub struct Reply {
    call: Call,
    /// `None` once the answer is sent.
    reports: Option<Arc<Reports>>,
}

impl Reply {
    pub(crate) fn new(call: Call, reports: Arc<Reports>) -> Reply {
        Reply { call, reports: Some(reports) }
    }

    /// Grants the request: the output will be delivered, the bytes were taken, or the message was
    /// logged.
    pub fn grant(mut self) {
        self.send(Ok(()));
    }

    /// Denies the request with `status` and `reason`, which the tool receives.
    pub fn deny(mut self, status: Status, reason: impl Into<String>) {
        self.send(Err(Failure::new(status, reason)));
    }

    fn send(&mut self, answer: Result<(), Failure>) {
        if let Some(reports) = self.reports.take() {
            reports.send(Report::Answered { call: self.call, answer });
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let reason = "the host dropped the request without an answer";
        self.send(Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason)));
    }
}

/// The means to answer [`Host::approve`], once and on any thread. Dropping it refuses the tool with
/// [`Status::ERR_NOT_AVAILABLE`]. An answer has no effect if the tool has disconnected, or was
/// refused because the time limit had passed.
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
            reports.send(Report::Approved { peer: self.peer, answer });
        }
    }
}

impl Drop for ApprovalReply {
    fn drop(&mut self) {
        let reason = "the host dropped the request without an answer";
        self.send(Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason)));
    }
}

/// An upcall or callback that the control thread makes after it has unlocked the tables.
pub(crate) enum Upcall {
    Approve { peer: PeerId, credentials: socket::PeerCredentials },
    Pull { call: CallId, sources: Sources, directives: Vec<Info> },
    Stop(Sources),
    Stdin { push: PushId, stdin: Arc<StdinPush>, bytes: Vec<u8> },
    Query { id: QueryId, queries: Vec<Query> },
    Log { step: LogStep, log: Log },
    Logged { done: LogCallback, report: LogReport },
    Taken(TakenCallback),
}

impl Upcall {
    /// Returns the callback of a delivery, if this is one.
    pub(crate) fn into_callback(self) -> Option<TakenCallback> {
        if let Upcall::Taken(callback) = self { Some(callback) } else { None }
    }

    /// Makes the upcall.
    pub(crate) fn make(self, host: &dyn Host, reports: &Arc<Reports>) {
        match self {
            Upcall::Approve { peer, credentials } => {
                host.approve(&credentials, ApprovalReply::new(peer, Arc::clone(reports)));
            }
            Upcall::Pull { call, sources: Sources { procs, channels }, directives } => {
                host.iof_pull(
                    &procs,
                    channels,
                    &directives,
                    Reply::new(Call::Pull(call), Arc::clone(reports)),
                );
            }
            Upcall::Stop(Sources { procs, channels }) => host.iof_stop(&procs, channels),
            Upcall::Stdin { push, stdin, bytes } => {
                host.push_stdin(&stdin, &bytes, Reply::new(Call::Stdin(push), Arc::clone(reports)));
            }
            Upcall::Query { id, queries } => host.query(&queries, QueryReply::new(id, Arc::clone(reports))),
            Upcall::Log { step, log } => host.log(&log, Reply::new(Call::Log(step), Arc::clone(reports))),
            Upcall::Logged { done, report } => done(report),
            Upcall::Taken(callback) => callback(),
        }
    }
}
