//! PMI-1 for the ranks of a job: the sockets of the ranks, which the control thread serves.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use iof_capture::PassedFile;
use iof_core::{Input, JobId, MessageOrigin};
use iof_pmi::{Event, ProtocolError, Server, ServiceAction};
use iof_proto::attribute::data_type::PMIX_STRING;
use iof_proto::{
    DataRange, Exchange, FencePurpose, FoundValue, FromTool, JobSpec, Mpi, MpiEvent, Persistence, Proc, Rank,
    ToTool,
};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::job::Job;
use crate::job::plan::planned_ranks;
use crate::mpi::pmi_spawn;
use crate::tables::log_lines::LogLines;
use crate::tables::reports::{Report, Reports};

/// The environment variable that tells a rank the number of its socket.
const PMI_FD: &str = "PMI_FD";
/// The first token of a rank's socket. Tokens of tools are below.
const FIRST_TOKEN: usize = 1 << (usize::BITS - 1);
/// The largest number of reads of one socket in one turn. A rank waits for each reply, so a read
/// usually returns one request.
const READS_PER_TURN: usize = 4;
/// The largest number of warnings about ranks that break the protocol, as a defect of a program shows
/// in all of its ranks, and about jobs that one rank cannot spawn.
const WARNINGS: usize = 10;
/// The number of turns after which the requests of a rank that has exited are left unread.
const TURNS_AT_EXIT: usize = 16;
/// The number of bytes of a read.
const READ_BYTES: usize = 16 << 10;

/// The PMI server of a job that is being started.
pub(crate) struct PmiJob {
    job: JobId,
    size: u32,
    /// Its ranks on this node.
    ranks: Vec<Rank>,
    server: Arc<Mutex<Server>>,
}

impl PmiJob {
    /// Returns the server of a job; `None` if its ranks have none.
    pub(crate) fn of(spec: &JobSpec, job: &Job) -> Option<PmiJob> {
        match spec.mpi {
            Mpi::Pmi1 | Mpi::Auto => {
                let job = job.id().clone();
                let apps: Vec<u32> = spec.apps.iter().map(|app| app.nprocs).collect();
                let mut server = match &spec.mpi_nodes {
                    None => Server::new(&format!("iof-{}", unique_name(job.run)), &apps),
                    Some(nodes) => {
                        let is_here =
                            |rank| spec.local.as_ref().is_none_or(|local| local.contains(&Rank(rank)));
                        Server::new(&format!("iof-{}", nodes.name), &apps).part(is_here, &nodes.mapping())
                    }
                };
                server.preset(&spec.pmi_values);
                let ranks = planned_ranks(spec).map(|planned| planned.rank).collect();
                // The number of ranks is limited to `MAX_RANKS`.
                let size = u32::try_from(spec.nprocs()).unwrap_or(u32::MAX);
                Some(PmiJob { job, size, ranks, server: Arc::new(Mutex::new(server)) })
            }
            _ => None,
        }
    }

    /// Returns the variables of a rank besides the number of its socket.
    pub(crate) fn variables(&self, rank: Rank) -> impl Iterator<Item = (OsString, OsString)> {
        let count = |ranks: &[Rank]| u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        let before = self.ranks.partition_point(|other| *other < rank);
        let local = count(self.ranks.get(..before).unwrap_or_default());
        let variables = iof_pmi::variables(rank.0, self.size, (local, count(&self.ranks)));
        variables.into_iter().map(|(name, value)| (name.into(), value.into()))
    }

    /// Tells the ranks of the file with the topology of the node. They are not served before
    /// [`PmiJob::started`].
    pub(crate) fn set_topology(&self, file: &Path) {
        if let Some(file) = file.to_str() {
            self.server.lock().unwrap_or_else(PoisonError::into_inner).set_topology(file);
        }
    }

    /// Returns the report by which the control thread begins to serve the ranks.
    pub(crate) fn started(&self) -> Report {
        Report::PmiStarted(self.job.clone())
    }

    /// Returns the report by which the control thread learns of a rank's socket.
    pub(crate) fn report(&self, rank: Rank, socket: UnixStream) -> Report {
        Report::Pmi { job: self.job.clone(), rank, socket, server: Arc::clone(&self.server) }
    }
}

/// Returns a name for the job with this number that no other job on this node has, at any time: MPI
/// libraries name shared memory after it. A later process may have the same pid, and a file of a
/// job that was killed may remain. Nor can other users guess the name.
pub(crate) fn unique_name(run: u64) -> String {
    // The keys of the hash function are random and secret.
    let secret = RandomState::new().hash_one(run);
    // Open MPI tells jobs apart by a hash of what precedes the @ and the number that follows it.
    format!("{run}.{}.{secret:016x}", std::process::id())
}

/// Creates the socket of a rank. Returns the engine's end and the file that the rank inherits.
pub(crate) fn socket() -> io::Result<(UnixStream, PassedFile)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((ours, PassedFile { file: theirs.into(), variable: PMI_FD.into() }))
}

/// Returns whether a launcher has set this variable of the environment to connect the processes
/// that it starts. [`Engine::spawn`](crate::Engine::spawn) hides these variables from the ranks of
/// MPI jobs.
pub fn is_launcher_variable(name: &OsStr) -> bool {
    is_of_a_launcher(name, has_pmix())
}

/// Returns whether this process is one that a server of PMIx serves.
pub(crate) fn has_pmix() -> bool {
    std::env::var_os("PMIX_NAMESPACE").is_some()
}

/// Returns whether a launcher sets this variable to connect the processes that it starts. Returns
/// `false` for settings of users: `PMIX_MCA_`, and directories unless the launcher of `has_pmix`
/// set them.
pub(crate) fn is_of_a_launcher(name: &OsStr, has_pmix: bool) -> bool {
    let name = name.as_bytes();
    let prefixes: [&[u8]; 5] = [b"PMI_", b"PMI2_", b"PMIX_", b"HYDI_", b"OMPI_COMM_WORLD_"];
    let names: [&[u8]; 3] = [b"MPI_LOCALNRANKS", b"MPI_LOCALRANKID", b"OMPI_UNIVERSE_SIZE"];
    let directories: [&[u8]; 2] = [b"PMIX_SERVER_TMPDIR", b"PMIX_SYSTEM_TMPDIR"];
    if directories.contains(&name) {
        return has_pmix;
    }
    let has_prefix = prefixes.iter().any(|prefix| name.starts_with(prefix));
    (has_prefix && !name.starts_with(b"PMIX_MCA_")) || names.contains(&name)
}

/// The sockets of all ranks.
pub(crate) struct PmiLinks {
    reports: Arc<Reports>,
    links: BTreeMap<usize, Arc<Link>>,
    /// The link of each rank, by the run of its job.
    by_rank: BTreeMap<(u64, Rank), usize>,
    /// The links to serve in this turn.
    ready: BTreeSet<usize>,
    /// The number of links that were added, from which the next token follows.
    count: usize,
    /// The number of ranks that have broken the protocol.
    warned: usize,
    log: LogLines,
}

/// A rank's socket. A request that is not answered yet has it, too.
struct Link {
    job: JobId,
    rank: Rank,
    socket: UnixStream,
    server: Arc<Mutex<Server>>,
    /// The number of its requests to spawn a job that were refused.
    refusals: AtomicUsize,
}

/// Returns a request of a rank.
fn exchange(rank: (JobId, Rank), exchange: Exchange, reply: impl FnOnce(ToTool) + Send + 'static) -> Input {
    let from = MessageOrigin::Rank { rank: Some(rank), reply: Box::new(reply) };
    Input::Message { from, message: FromTool::Exchange(exchange) }
}

/// The state of a link after it was served.
enum Served {
    /// The socket has nothing more to read for now.
    Waits,
    /// There may be more to read.
    More,
    /// The rank has closed its socket, or does not read it.
    Closed,
    /// The rank has broken the protocol.
    Broken(ProtocolError),
}

impl PmiLinks {
    pub(crate) fn new(reports: &Arc<Reports>) -> PmiLinks {
        PmiLinks {
            reports: Arc::clone(reports),
            links: BTreeMap::new(),
            by_rank: BTreeMap::new(),
            ready: BTreeSet::new(),
            count: 0,
            warned: 0,
            log: LogLines::default(),
        }
    }

    /// Adds the socket of a rank. Its requests are not read before [`PmiLinks::start`].
    pub(crate) fn add(&mut self, (job, rank): (JobId, Rank), socket: UnixStream, server: Arc<Mutex<Server>>) {
        let token = FIRST_TOKEN.saturating_add(self.count);
        self.count = self.count.saturating_add(1);
        self.by_rank.insert((job.run, rank), token);
        self.links.insert(token, Arc::new(Link { job, rank, socket, server, refusals: AtomicUsize::new(0) }));
    }

    /// Begins to serve the ranks of a job, as all of them are started. Until then they wait for the
    /// reply to their first request without using a processor. With it they would wait for each
    /// other by polling, and delay the start of the others.
    pub(crate) fn start(&mut self, registry: &Registry, job: &JobId) {
        for key in self.ranks_of(job) {
            let Some(token) = self.by_rank.get(&key).copied() else { continue };
            let Some(fd) = self.links.get(&token).map(|link| link.socket.as_raw_fd()) else { continue };
            if let Err(error) = registry.register(&mut SourceFd(&fd), Token(token), Interest::READABLE) {
                // The rank finds its socket closed.
                self.by_rank.remove(&key);
                self.links.remove(&token);
                let (job, rank) = (job.nspace.clone(), key.1);
                self.log.push(move || tracing::error!(%job, %rank, %error, "cannot serve PMI to a rank"));
            }
        }
    }

    /// Returns the keys of the ranks of a job that have a link.
    fn ranks_of(&self, job: &JobId) -> Vec<(u64, Rank)> {
        let links = self.by_rank.range((job.run, Rank(0))..=(job.run, Rank(u32::MAX)));
        links.map(|(key, _)| *key).collect()
    }

    /// Notes that a token of the poll set is ready.
    pub(crate) fn now_ready(&mut self, token: usize) {
        if token >= FIRST_TOKEN {
            self.ready.insert(token);
        }
    }

    /// Serves all links that are ready. Returns what the ranks report, and whether some are to be
    /// served again without waiting.
    pub(crate) fn serve_ready(&mut self) -> (Vec<Input>, bool) {
        let mut reports = Vec::new();
        let mut again = BTreeSet::new();
        for token in std::mem::take(&mut self.ready) {
            let (inputs, served) = self.serve(token);
            reports.extend(inputs);
            if matches!(served, Served::More) {
                again.insert(token);
            }
        }
        let more = !again.is_empty();
        self.ready.append(&mut again);
        (reports, more)
    }

    /// Ends the link of a rank that has exited: its children may hold the socket open. Returns what
    /// the rank had reported and was not read yet.
    pub(crate) fn end(&mut self, job: &JobId, rank: Rank) -> Vec<Input> {
        let Some(&token) = self.by_rank.get(&(job.run, rank)) else { return Vec::new() };
        let mut reports = Vec::new();
        for _ in 0..TURNS_AT_EXIT {
            let (inputs, served) = self.serve(token);
            reports.extend(inputs);
            if !matches!(served, Served::More) {
                break;
            }
        }
        self.by_rank.remove(&(job.run, rank));
        // Closing the socket removes it from the poll set.
        self.links.remove(&token);
        reports
    }

    /// Removes all links of a job.
    pub(crate) fn forget(&mut self, job: &JobId) {
        for key in self.ranks_of(job) {
            self.by_rank.remove(&key).and_then(|token| self.links.remove(&token));
        }
    }

    /// Reads the requests of one rank, and writes the replies. A barrier's end is a reply to other
    /// ranks, too. Removes links that end.
    fn serve(&mut self, token: usize) -> (Vec<Input>, Served) {
        let Some(link) = self.links.get(&token) else { return (Vec::new(), Served::Waits) };
        let (run, rank, server) = (link.job.run, link.rank, Arc::clone(&link.server));
        // Once the job has started, the others that lock it only answer a request.
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reports = Vec::new();
        let mut ended = Vec::new();
        let served = match link.read(&mut server, &mut reports) {
            Served::Broken(error) => {
                self.warn(run, rank, error);
                Served::Closed
            }
            served => served,
        };
        if matches!(served, Served::Closed) {
            ended.push(rank);
        }
        if let Some(data) = server.take_fence() {
            reports.extend(self.fence(run, rank, data));
        }
        for rank in server.take_answered().into_iter().map(Rank) {
            let link = self.by_rank.get(&(run, rank)).and_then(|token| self.links.get(token));
            if link.is_some_and(|link| !link.write(&mut server)) {
                ended.push(rank);
            }
        }
        for rank in ended {
            self.by_rank.remove(&(run, rank)).and_then(|token| self.links.remove(&token));
        }
        (reports, served)
    }

    /// Returns the request by which this node enters a fence, since the last of its ranks has.
    fn fence(&self, run: u64, rank: Rank, data: Vec<u8>) -> Option<Input> {
        let own = self.links.get(self.by_rank.get(&(run, rank))?)?;
        let links = self.by_rank.range((run, Rank(0))..=(run, Rank(u32::MAX)));
        let links = links.filter_map(|(_, token)| self.links.get(token)).map(Arc::downgrade);
        let (job, links) = (own.job.clone(), links.collect::<Vec<Weak<Link>>>());
        let (server, from, reports) =
            (Arc::clone(&own.server), (job.clone(), rank), Arc::clone(&self.reports));
        let reply = move |answer: ToTool| {
            let ToTool::Fenced(values) = answer else { return };
            let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
            let is_failed = values.is_err();
            if let Err(reason) = server.fenced(values.as_deref().map_err(|failure| failure.reason.clone()))
                && !is_failed
            {
                reports.send(exchange(from, Exchange::Fail(reason), |_| ()));
            }
            // Nothing else is answered meanwhile.
            server.take_answered();
            links.iter().filter_map(Weak::upgrade).for_each(|link| link.write_answer(&mut server));
        };
        Some(exchange(
            (job, rank),
            Exchange::Fence { mpi: Mpi::Pmi1, purpose: FencePurpose::Values, members: Vec::new(), data },
            reply,
        ))
    }

    fn warn(&mut self, run: u64, rank: Rank, error: ProtocolError) {
        let link = self.by_rank.get(&(run, rank)).and_then(|token| self.links.get(token));
        let Some(link) = link else { return };
        let (job, warns) = (link.job.nspace.clone(), self.warned < WARNINGS);
        self.log.push(move || {
            if warns {
                tracing::warn!(%job, %rank, %error, "the rank cannot use MPI any more");
            } else {
                tracing::debug!(%job, %rank, %error, "the rank cannot use MPI any more");
            }
        });
        self.warned = self.warned.saturating_add(1);
    }

    /// Removes and returns the lines of the log since the last call.
    pub(crate) fn take_log(&mut self) -> LogLines {
        std::mem::take(&mut self.log)
    }
}

impl Link {
    fn read(self: &Arc<Link>, server: &mut Server, reports: &mut Vec<Input>) -> Served {
        let mut bytes = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            let count = match (&self.socket).read(&mut bytes) {
                Ok(0) => return Served::Closed,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Served::Waits,
                Err(_) => return Served::Closed,
            };
            let mut events = Vec::new();
            let received = server.receive(self.rank.0, bytes.get(..count).unwrap_or_default(), &mut events);
            reports.extend(events.into_iter().map(|event| self.report(event)));
            if let Err(error) = received {
                return Served::Broken(error);
            }
            if !self.write(server) {
                return Served::Closed;
            }
            // The socket is empty, and the next bytes are reported anew, see epoll(7).
            if count < bytes.len() {
                return Served::Waits;
            }
        }
        Served::More
    }

    /// Sends the rank its reply. Returns `false` if the socket does not take it: a rank reads each
    /// reply before its next request, so there is room unless it breaks the protocol.
    fn write(&self, server: &mut Server) -> bool {
        let rank = self.rank.0;
        while !server.unsent(rank).is_empty() {
            match (&self.socket).write(server.unsent(rank)) {
                Ok(count) => server.sent(rank, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Answers a request about a service or to spawn a job. A rank that does not take the answer
    /// breaks the protocol, and finds its socket closed.
    fn answer(&self, answer: ToTool) {
        let port = |found: FoundValue| String::from_utf8_lossy(&found.bytes).into_owned();
        let answer = match answer {
            ToTool::Exchanged(result) => result.map(|found| found.into_iter().next().map(port)),
            ToTool::Spawned { result, .. } => result.map(|_| None).inspect_err(|failure| {
                // MPICH does not show the reason. Relaxed: nothing else depends on it.
                if self.refusals.fetch_add(1, Ordering::Relaxed) < WARNINGS {
                    let (job, rank, reason) = (&self.job.nspace, self.rank, &failure.reason);
                    tracing::warn!(%job, %rank, reason, "cannot start the job that a rank spawns");
                }
            }),
            _ => return,
        };
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        server.answer(self.rank.0, answer.map_err(|failure| failure.reason));
        self.write_answer(&mut server);
    }

    fn write_answer(&self, server: &mut Server) {
        if !self.write(server) {
            // Fails if the rank has closed it.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns the request about published values that the rank makes about a service.
    fn exchange(&self, key: String, action: ServiceAction) -> Exchange {
        let range = DataRange::Session;
        match action {
            ServiceAction::Publish(port) => {
                let source = Proc::new(self.job.nspace.clone(), self.rank);
                let port = FoundValue { source, key, kind: PMIX_STRING, bytes: port.into_bytes() };
                Exchange::Publish { values: vec![port], range, persistence: Persistence::Job }
            }
            ServiceAction::Unpublish => Exchange::Unpublish { keys: vec![key], range },
            ServiceAction::Lookup => Exchange::Lookup { keys: vec![key], range, wait: 0, limit: None },
        }
    }

    fn report(self: &Arc<Link>, event: Event) -> Input {
        let request = |message| {
            let (rank, link) = (Some((self.job.clone(), self.rank)), Arc::clone(self));
            let from = MessageOrigin::Rank { rank, reply: Box::new(move |answer| link.answer(answer)) };
            Input::Message { from, message }
        };
        let (rank, event) = match event {
            Event::Service { service, action, .. } => {
                return request(FromTool::Exchange(self.exchange(service, action)));
            }
            Event::Spawn { request: asked, .. } => {
                let spawn = Box::new(pmi_spawn::spawn(asked, &self.job.nspace));
                return request(FromTool::Spawn { request: 0, spawn });
            }
            Event::Initialized { rank } => (rank, MpiEvent::Initialized),
            Event::Finalized { rank } => (rank, MpiEvent::Finalized),
            Event::Aborted { rank, code } => (rank, MpiEvent::Aborted { code }),
        };
        Input::Mpi { job: self.job.clone(), rank: Rank(rank), event }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_launchers_are_distinguished_from_those_of_users() {
        for name in
            ["PMI_FD", "PMI_RANK", "PMIX_RANK", "HYDI_CONTROL_FD", "OMPI_COMM_WORLD_RANK", "MPI_LOCALNRANKS"]
        {
            assert!(is_of_a_launcher(OsStr::new(name), false), "{name}");
        }
        for name in [
            "PATH",
            "PMIX_MCA_gds",
            "PMIX_SERVER_TMPDIR",
            "OMPI_MCA_btl",
            "MPICH_ASYNC_PROGRESS",
            "SLURM_JOB_ID",
            "PMI",
        ] {
            assert!(!is_of_a_launcher(OsStr::new(name), false), "{name}");
        }
        assert!(is_of_a_launcher(OsStr::new("PMIX_SERVER_TMPDIR"), true));
    }
}
