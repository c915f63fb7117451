//! `iof pmix`: serves one tool of PMIx, whose connection is its stdin.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use crossbeam::channel::Receiver;
use iof_pmix_server::limits::{MAX_PMIX_PULL_WAIT, MAX_PMIX_TOOL_MEMORY, PMIX_TOOL_LINGER};
use iof_pmix_server::{
    Carried, HeldRequest, NspaceReply, PullRequest, Relay, ToolRequest, ToolServer, ToolSpawn,
};
use iof_proto::{Answer, Failure as Refusal, Nspace, Proc, Status};
use iof_tool::{Delivery, Pull, Reply, Tool, poll_timeout};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::SigSet;

use super::daemons;
use super::deliveries::Deliveries;
use super::jobs::{KnownJobs, table};
use super::pace::Pace;
use super::requests::{Intake, NAME, Waiting, status};
use crate::error::Failure;

/// The interval at which to look for the engine's end while its messages are not read.
const ENGINE_CHECK: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct PmixArgs {
    /// The socket of the engine
    engine: PathBuf,
    /// The PMIx library
    library: PathBuf,
    /// The name of the server in PMIx
    nspace: String,
}

/// Serves the tool. Returns when it has disconnected, or has everything after the engine's end.
pub fn serve(args: &PmixArgs) -> Result<ExitCode, Failure> {
    // Otherwise it would be that of /proc/self/exe.
    prctl::set_name(c"iof-pmix-tool").map_err(Failure::running)?;
    // The blocked signals of the launcher's threads are inherited.
    SigSet::empty().thread_set_mask().map_err(Failure::running)?;
    // libpmix queues answers without a limit.
    setrlimit(Resource::RLIMIT_DATA, MAX_PMIX_TOOL_MEMORY, MAX_PMIX_TOOL_MEMORY).map_err(Failure::running)?;
    let connection = io::stdin().as_fd().try_clone_to_owned().map_err(Failure::running)?;
    let mut tool = Tool::connect(&args.engine, NAME).map_err(Failure::running)?;
    let (mut jobs, mut deliveries) = (KnownJobs::default(), Deliveries::default());
    jobs.watch(&mut tool, &mut deliveries).map_err(Failure::running)?;
    let (wakeups, waker) = UnixStream::pair().map_err(Failure::running)?;
    for socket in [&wakeups, &waker] {
        socket.set_nonblocking(true).map_err(Failure::running)?;
    }
    let waiting = Waiting::new(waker);
    let connection = TcpStream::from(connection);
    let address = connection.local_addr().map_err(Failure::running)?;
    let uri = format!("{}.0;tcp4://{address}", args.nspace);
    let (intake, requests) = Intake::start(&args.engine, &uri, waiting.clone())?;
    let server = ToolServer::start(&args.library, &args.nspace, move |request| intake.receive(request));
    let server = server.map_err(Failure::running)?;
    let relay = Relay::connect(connection, server.address()).map_err(Failure::running)?;
    server.serve_only(relay.server_side().map_err(Failure::running)?);
    let mut session = Session {
        server,
        relay,
        tool,
        deliveries,
        pace: Pace::default(),
        requests,
        waiting,
        wakeups,
        jobs,
        starting: BTreeMap::new(),
        uri,
        ending: None,
        upcall: None,
        lingers: None,
    };
    // The connection ends the same way, whatever the reason.
    let ended = session.run();
    session.server.end_process(ended.is_err().into())
}

/// A tool that is served.
struct Session {
    server: ToolServer,
    relay: Relay,
    tool: Tool,
    deliveries: Deliveries,
    pace: Pace,
    requests: Receiver<ToolRequest>,
    waiting: Waiting,
    wakeups: UnixStream,
    jobs: KnownJobs,
    /// The jobs that the engine starts for the tool, by the numbers of the requests.
    starting: BTreeMap<u32, (Box<ToolSpawn>, NspaceReply)>,
    /// The address of tools' servers.
    uri: String,
    /// The registration that is being ended.
    ending: Option<u32>,
    /// Until when libpmix must not be called, because it waits in its upcall for a pull, or will.
    upcall: Option<Instant>,
    /// Since when the engine is gone and the tool has read nothing, with the bytes that it had.
    lingers: Option<(Instant, u64)>,
}

impl Session {
    fn run(&mut self) -> Result<(), String> {
        loop {
            if self.relay.carry(self.waiting.has_room()) == Carried::Ended {
                return Ok(());
            }
            self.take_requests();
            self.pace.update(&self.relay);
            self.upcall.take_if(|end| *end <= Instant::now());
            let is_busy = self.upcall.is_none() && {
                self.serve_held();
                self.upcall.is_none() && self.deliver()?
            };
            if self.is_over() {
                return Ok(());
            }
            if !is_busy {
                self.wait()?;
            }
        }
    }

    /// Takes the requests for output and signals.
    fn take_requests(&mut self) {
        while let Ok(request) = self.requests.try_recv() {
            match request {
                ToolRequest::Pull { number, pull, reply } => {
                    self.upcall = None;
                    let granted = pull.and_then(|pull| self.pull(number, pull));
                    let is_known = reply.send(granted.err().unwrap_or(Status::SUCCESS));
                    if let Ok(handler) = granted
                        && !is_known
                    {
                        self.deliveries.remove(handler);
                        // It fails if the engine has ended.
                        let _ = self.tool.deregister(handler);
                    }
                }
                ToolRequest::Signal { procs, signal, reply } => {
                    let sent = signal
                        .and_then(|signal| self.tool.signal(&procs, signal).map_err(|error| status(&error)));
                    reply.send(&Answer { status: sent.err().unwrap_or(Status::SUCCESS), found: Vec::new() });
                    self.jobs.forget_others(&procs, &self.server);
                }
                ToolRequest::Spawn { spawn, reply } => {
                    let submitted = spawn.and_then(|mut spawn| {
                        let table = |job: &Nspace| table(&mut self.tool, job).map_err(|error| status(&error));
                        daemons::prepare(&mut spawn, &self.uri, table)?;
                        let request = self.tool.submit_spawn(&spawn.spawn);
                        request.map(|request| (request, spawn)).map_err(|error| status(&error))
                    });
                    match submitted {
                        Ok((request, spawn)) => {
                            self.starting.insert(request, (spawn, reply));
                            // It waits until the job has started.
                            continue;
                        }
                        Err(status) => reply.send(Err(status)),
                    }
                }
                request => request.refuse(Status::ERR_NOT_SUPPORTED),
            }
            self.waiting.end();
        }
    }

    /// Reports the start of a job to the tool, for whose output libpmix may have registered it.
    fn started(&mut self, request: u32, result: Result<Nspace, Refusal>) {
        let Some((spawn, reply)) = self.starting.remove(&request) else { return };
        if let Ok(nspace) = &result {
            let number = self.server.number_spawn(&spawn);
            let job = vec![Proc::all(nspace.clone())];
            // They fail if the engine has ended.
            let _ = self.jobs.watch_all([nspace].into_iter(), &mut self.tool, &mut self.deliveries);
            if !spawn.forwarded.is_empty()
                && let Ok(granted) = self.tool.pull(&Pull::new(job.clone(), spawn.forwarded))
            {
                self.deliveries.add(granted.handler, number, job);
            }
        }
        if result.is_err() && spawn.tools.is_some() {
            daemons::forget(&spawn.spawn.spec.nspace);
        }
        reply.send(result.as_ref().map_err(|failure| failure.status));
        self.waiting.end();
    }

    /// Registers for output. Returns the engine's number of the registration.
    fn pull(&mut self, number: u32, pull: PullRequest) -> Result<u32, Status> {
        let PullRequest { procs, channels, directives } = pull;
        let pull = Pull { directives, ..Pull::new(procs.clone(), channels) };
        let granted = self.tool.pull(&pull).map_err(|error| status(&error))?;
        self.deliveries.add(granted.handler, number, procs);
        Ok(granted.handler)
    }

    /// Prepares for the request that waits in the relay, and lets it pass.
    fn serve_held(&mut self) {
        match self.relay.held() {
            None => {}
            Some(HeldRequest::EndOfPull(number)) => self.end_pull(number),
            Some(HeldRequest::Pull) => {
                self.upcall = Instant::now().checked_add(MAX_PMIX_PULL_WAIT);
                self.relay.release(false);
            }
            Some(HeldRequest::Jobs) => {
                // Without an engine, libpmix answers from what it knows.
                let _ = self.jobs.update(&mut self.tool, &self.server, &mut self.deliveries);
                self.relay.release(false);
            }
        }
    }

    /// Ends the pull that the tool ends, and lets libpmix know when everything unread was delivered:
    /// libpmix delivers nothing for a pull that has ended.
    fn end_pull(&mut self, number: u32) {
        if let Some(handler) = self.deliveries.registration(number) {
            let is_new = self.ending.replace(handler) != Some(handler);
            // It fails if the engine has ended.
            if !is_new || self.tool.deregister(handler).is_ok() {
                return;
            }
            self.deliveries.remove(handler);
        }
        self.ending = None;
        self.relay.release(self.server.forget_pull(number));
    }

    /// Delivers what there is, up to a batch. Returns whether there is more to do now.
    fn deliver(&mut self) -> Result<bool, String> {
        let mut is_busy = false;
        while self.pace.has_room() {
            let Some(delivery) = self.tool.try_recv().map_err(|error| error.to_string())? else { break };
            is_busy = true;
            if let Delivery::Reply { request, reply: Reply::Spawned(result) } = delivery {
                self.started(request, result);
                continue;
            }
            let passed = self.deliveries.pass(&delivery, &self.server)?;
            if let Some(bytes) = passed.consumed {
                self.tool.consume(bytes);
            }
            if let Some(bytes) = passed.bytes {
                self.pace.delivered(bytes, &self.relay);
            }
        }
        self.pace.end_batch();
        if self.tool.is_gone() && self.tool.is_done() {
            self.deliveries.give_up();
        }
        for (nspace, exit_code) in self.deliveries.take_ended() {
            self.server.job_ended(&Proc::all(nspace.clone()), exit_code)?;
            self.jobs.ended(&nspace, &self.server);
            daemons::forget(&nspace);
            self.pace.delivered(0, &self.relay);
        }
        Ok(is_busy)
    }

    /// Returns whether the engine has ended, and the tool has everything or does not read it.
    fn is_over(&mut self) -> bool {
        // Messages of the engine are not read while the tool has too much to take.
        if !self.tool.has_hung_up() {
            return false;
        }
        let carried = self.relay.carried();
        let (since, _) = *self.lingers.get_or_insert((Instant::now(), carried));
        if self.lingers.is_some_and(|(_, before)| before != carried) {
            self.lingers = Some((Instant::now(), carried));
            return false;
        }
        (self.tool.is_done() && self.pace.is_clear()) || since.elapsed() >= PMIX_TOOL_LINGER
    }

    /// Waits until there is something to do.
    fn wait(&mut self) -> Result<(), String> {
        let linger = self.lingers.map(|(since, _)| PMIX_TOOL_LINGER.saturating_sub(since.elapsed()));
        let engine = if self.pace.has_room() { self.tool.timeout() } else { None };
        let is_received = self.upcall.is_none() && self.pace.has_room() && !self.tool.is_done();
        let check = (!is_received).then_some(ENGINE_CHECK);
        let upcall = self.upcall.map(|end| end.saturating_duration_since(Instant::now()));
        let pace = self.pace.deadline(&self.relay);
        let timeout = [linger, engine, check, pace, upcall].into_iter().flatten().min();
        let [tool, server] = self.relay.poll_fds(self.waiting.has_room());
        let mut fds = vec![tool, server, PollFd::new(self.wakeups.as_fd(), PollFlags::POLLIN)];
        if is_received {
            fds.push(PollFd::new(self.tool.as_fd(), PollFlags::POLLIN));
        }
        let timeout = PollTimeout::try_from(poll_timeout(timeout)).unwrap_or(PollTimeout::NONE);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        let result = |fd: Option<&PollFd<'_>>| fd.map_or(Some(PollFlags::empty()), PollFd::revents);
        let results = [result(fds.first()), result(fds.get(1))];
        self.relay.polled(results);
        while (&self.wakeups).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        Ok(())
    }
}
