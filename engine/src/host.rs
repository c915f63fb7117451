//! The launcher's part: what the engine asks of the process that embeds it (RFC0025's server
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
use crate::deliver::Taken;
use crate::demand::{CallId, Sources};
use crate::engine::Grant;
use crate::log::{LogCallback, LogStep};
use crate::push::StdinPush;
use crate::query::{QueryId, QueryReply};
use crate::state::PeerId;

/// What an engine asks of the launcher or resource manager that embeds it. A launcher that forwards
/// the output of its own ranks, to tools of its own user, has nothing to implement: see
/// [`Standalone`].
///
/// Upcalls come one after the other, on the engine's control thread, which serves no tool
/// meanwhile: they must return soon and must not panic. The engine's tables are free, so an upcall
/// may call the engine, and even drop it, but for what may wait for that same thread:
/// [`Engine::attach`](crate::Engine::attach), [`Job::wait`](crate::Job::wait) and
/// [`Job::flush`](crate::Job::flush). None comes once the engine has been dropped elsewhere; what
/// tools still hold then is not stopped.
///
/// What the embedder's own readers pull ([`Engine::attach`](crate::Engine::attach)) is no news to
/// the host: for them there are no upcalls.
///
/// # Example
/// ```
/// use iof_engine::{ApprovalReply, Config, Engine, Grant, Host, Rendezvous, Reply, same_user};
/// use iof_proto::{Channels, Info, Proc, Status, socket};
/// use std::sync::Arc;
///
/// /// Lets a group of operators look at stderr.
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
///             // Here a daemon would ask the nodes that run these processes, and answer later.
///             reply.grant();
///         } else {
///             reply.deny(Status::ERR_NO_PERMISSIONS, "only stderr may be looked at");
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
    /// A tool has connected and said hello, by the kernel's word (`SO_PEERCRED`, unix(7)) with
    /// these ids. The answer is whether it is let in, and whether its registrations may hold
    /// sources back where the policy is [`Policy::Block`](iof_shm_ring::Policy::Block): a tool
    /// that may, and stops reading, stops the job.
    ///
    /// The tool waits for `reply`, which may be used at once or later, on any thread; others are
    /// served meanwhile. After [`APPROVAL_LIMIT`](iof_proto::limits::APPROVAL_LIMIT) without an
    /// answer it is refused.
    fn approve(&self, tool: &socket::PeerCredentials, reply: ApprovalReply) {
        reply.answer(same_user(tool));
    }

    /// The keys of directives that this host understands, such as those of a site's credentials:
    /// asked once, when the engine starts. They come with [`Host::iof_pull`] and [`Host::log`],
    /// required or not, and it is for the host to honour them or to deny the request. With
    /// [`PMIX_LOG_SOURCE`](log::PMIX_LOG_SOURCE) among them, messages may be of processes
    /// that the engine does not know.
    fn directives(&self) -> Vec<String> {
        Vec::new()
    }

    /// A tool wants `channels` of `procs`, of which nothing was granted before
    /// (`pmix_server_iof_fn_t`): the host is to see to it that what they write there arrives,
    /// by [`Engine::deliver`](crate::Engine::deliver) if they run elsewhere; or to deny it. Of
    /// what the engine itself captures only permission is asked. A wildcard rank stands for all
    /// processes of its job; ranks that were granted before are part of it from then on. No rank
    /// ([`Rank::UNDEF`](iof_proto::Rank::UNDEF)) is what is logged of the job as a whole.
    ///
    /// The tool, and any that comes to ask for some of it, waits for `reply`, which may be used at
    /// once or later, on any thread. If it is denied, the tool is told so and gets nothing, not
    /// even what is there; so are those that asked for the same with the same directives, while
    /// for the others the host is asked again.
    ///
    /// `directives` are those of the tool that came first.
    fn iof_pull(&self, procs: &[Proc], channels: Channels, directives: &[Info], reply: Reply) {
        let (_, _, _) = (procs, channels, directives);
        reply.grant();
    }

    /// Whether [`Host::push_stdin`] brings stdin to processes that run elsewhere: asked once, when
    /// the engine starts. If not, who pushes to them is told so (`PMIX_ERR_NOT_SUPPORTED`).
    fn forwards_stdin(&self) -> bool {
        false
    }

    /// Bytes that a tool pushes to processes that run elsewhere (`pmix_server_stdin_fn_t`); none,
    /// when their stdin is to be closed. `reply` says that they were taken and that more may
    /// follow, which is the flow control: until then the push waits. A denial ends the push for
    /// these processes. A push that is not to wait is given up after a second without a reply:
    /// then no more of it comes, not its end either, and pieces of the next push may. To those
    /// that run here the engine brings it itself.
    fn push_stdin(&self, stdin: &StdinPush, bytes: &[u8], reply: Reply) {
        let (_, _) = (stdin, bytes);
        reply.deny(Status::ERR_NOT_SUPPORTED, "the host forwards no stdin");
    }

    /// The keys of queries of which this host has a part of the answer, or all, such as
    /// [`PMIX_QUERY_PROC_TABLE`](key::PMIX_QUERY_PROC_TABLE) of a job whose processes run on
    /// several nodes: asked once, when the engine starts. For these it is asked even if the
    /// engine knows something, and both are put together.
    fn queries(&self) -> Vec<String> {
        Vec::new()
    }

    /// A tool asks what the engine does not know (`pmix_server_query_fn_t`), or not wholly
    /// ([`Host::queries`]): of each query the keys that are left, and its qualifiers. The tool
    /// waits for `reply`, which may be used at once or later, on any thread.
    fn query(&self, queries: &[Query], reply: QueryReply) {
        let _ = queries;
        drop(reply);
    }

    /// The channels that this host logs to, by their keys, such as
    /// [`PMIX_LOG_GLOBAL_DATASTORE`](log::PMIX_LOG_GLOBAL_DATASTORE) and those of a site: asked
    /// once, when the engine starts. They are among those that tools are told of, and those
    /// that the engine's order may name.
    fn log_channels(&self) -> Vec<String> {
        Vec::new()
    }

    /// The socket of the gateway engine ([`LogConfig::gateway`](crate::LogConfig::gateway)), if it
    /// is reached by one: asked once, when the engine starts. To that goes what is for the
    /// global syslog, email unless the engine has a mail server of its own, and what is for
    /// channels that neither the engine nor [`Host::log_channels`] knows: the gateway says
    /// whether it does. Without it these are for [`Host::log`].
    fn gateway(&self) -> Option<PathBuf> {
        None
    }

    /// Something is to be logged to a channel that the engine does not know
    /// (`pmix_server_log_fn_t`, RFC0032), the one entry of `log`. `reply` says whether that was
    /// done, at once or later, on any thread; the tool waits for it. It must not be handed back
    /// to this engine.
    fn log(&self, log: &Log, reply: Reply) {
        let reason = match log.data.first() {
            Some(entry) => format!("there is no log channel {} here", entry.channel),
            None => "there is nothing to be logged".to_owned(),
        };
        reply.deny(Status::ERR_NOT_SUPPORTED, reason);
    }

    /// A rank has kept the engine from forwarding the output of all others for half a second or so
    /// by now: it writes to `channel` from memory that faults slowly, such as a mapped file on
    /// a hung file system, and so holds the lock of its pipe; or it reads its stdin into such
    /// memory. `remedy` says what the engine does about it. Called once for each such
    /// pipe, on a thread of the engine's that serves nothing else, possibly while another upcall
    /// runs. It must not wait for the engine, which may be stuck. Unless it is overridden, this
    /// logs a warning.
    fn stalled(&self, source: &Proc, channel: Channel, remedy: Remedy) {
        tracing::warn!(%source, %channel, ?remedy, "a rank keeps the engine from all others");
    }

    /// Nobody wants anything of `channels` of `procs` any more. Comes once for what was granted;
    /// that of a wildcard rank is for all ranks that were granted, too.
    fn iof_stop(&self, procs: &[Proc], channels: Channels) {
        let (_, _) = (procs, channels);
    }
}

/// What the engine does about a rank that keeps it from all others, see [`Host::stalled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// The rank's output is read by threads of its own from now on: it delays nothing but itself.
    Isolated,
    /// None: too many streams have threads of their own. It may happen again.
    TooMany {
        /// How many may, [`MAX_ISOLATED_STREAMS`](iof_proto::limits::MAX_ISOLATED_STREAMS).
        limit: usize,
    },
    /// None: it is the rank's stdin or terminal. It may happen again, with stdin when something is
    /// pushed to the rank.
    None,
}

/// A host that forwards what its own ranks write to all tools of its own user.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standalone;

impl Host for Standalone {}

/// A host that is a [`Standalone`], and whose engine reaches a gateway engine by the Unix socket on
/// which that listens.
#[derive(Clone, Debug)]
pub struct ViaGateway {
    /// The gateway's socket, [`Engine::socket`](crate::Engine::socket) there.
    pub socket: PathBuf,
}

impl Host for ViaGateway {
    fn gateway(&self) -> Option<PathBuf> {
        Some(self.socket.clone())
    }
}

/// Lets tools in that belong to the engine's own user or to root, and lets none of them hold
/// sources back.
///
/// # Errors
/// The tool belongs to another user.
pub fn same_user(tool: &socket::PeerCredentials) -> Result<Grant, Failure> {
    if Uid::from_raw(tool.uid) == geteuid() || tool.uid == 0 {
        return Ok(Grant::Never);
    }
    let reason = format!("user {} may not attach to an engine of user {}", tool.uid, geteuid());
    Err(Failure { status: Status::ERR_NO_PERMISSIONS, reason })
}

/// What the host is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Approve(PeerId),
    Query(QueryId),
    Pull(CallId),
    Stdin(PushId),
    Log(LogStep),
}

/// The host's answer to [`Host::iof_pull`], [`Host::push_stdin`] or [`Host::log`], to be given
/// once, on any thread. Dropping it is a denial, with [`Status::ERR_NOT_AVAILABLE`]. Once the
/// engine is gone nothing follows from it.
#[derive(Debug)]
pub struct Reply {
    call: Call,
    /// Until it is used.
    reports: Option<Arc<Reports>>,
}

impl Reply {
    pub(crate) fn new(call: Call, reports: Arc<Reports>) -> Reply {
        Reply { call, reports: Some(reports) }
    }

    /// What was asked for will arrive; the bytes were taken; the message was logged.
    pub fn grant(mut self) {
        self.send(Ok(()));
    }

    /// It will not, for this reason.
    pub fn deny(mut self, status: Status, reason: impl Into<String>) {
        self.send(Err(Failure { status, reason: reason.into() }));
    }

    fn send(&mut self, answer: Result<(), Failure>) {
        if let Some(reports) = self.reports.take() {
            reports.send(Report::Answered { call: self.call, answer });
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let reason = "the host has dropped the request without an answer".into();
        self.send(Err(Failure { status: Status::ERR_NOT_AVAILABLE, reason }));
    }
}

/// The host's answer to [`Host::approve`], to be given once, on any thread. Dropping it is a
/// refusal, with [`Status::ERR_NOT_AVAILABLE`]. Once the tool has gone, or was refused because the
/// answer came too late, nothing follows from it.
#[derive(Debug)]
pub struct ApprovalReply {
    peer: PeerId,
    /// Until it is used.
    reports: Option<Arc<Reports>>,
}

impl ApprovalReply {
    pub(crate) fn new(peer: PeerId, reports: Arc<Reports>) -> ApprovalReply {
        ApprovalReply { peer, reports: Some(reports) }
    }

    /// Lets the tool in, with this grant, or refuses it for this reason.
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
        let reason = "the host has dropped the request without an answer".into();
        self.send(Err(Failure { status: Status::ERR_NOT_AVAILABLE, reason }));
    }
}

/// What is to be said to the host as soon as nobody holds the tables.
pub(crate) enum Upcall {
    Approve { peer: PeerId, other: socket::PeerCredentials },
    Pull { call: CallId, sources: Sources, directives: Vec<Info> },
    Stop(Sources),
    Stdin { push: PushId, stdin: Arc<StdinPush>, bytes: Vec<u8> },
    Query { id: QueryId, queries: Vec<Query> },
    Log { step: LogStep, log: Log },
    Logged { done: LogCallback, report: LogReport },
    Taken(Taken),
}

impl Upcall {
    /// What is to be called for a delivery.
    pub(crate) fn taken(self) -> Option<Taken> {
        if let Upcall::Taken(taken) = self { Some(taken) } else { None }
    }

    /// Says it.
    pub(crate) fn make(self, host: &dyn Host, reports: &Arc<Reports>) {
        match self {
            Upcall::Approve { peer, other } => {
                host.approve(&other, ApprovalReply::new(peer, Arc::clone(reports)));
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
            Upcall::Taken(taken) => taken(),
        }
    }
}
