//! The core of a session. The thread that has it sends the program's requests to the engine, and
//! calls the program's callbacks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::attribute::key::*;
use iof_proto::directive::key::PMIX_IOF_DROP_NEWEST;
use iof_proto::{Answer, Channel, Failure, LogReport, Nspace, Proc, Status};
use iof_tool::{Delivery, Gap, LineDivider, Origin, Push, Reply, RequestError, Tool};

use crate::ffi::callbacks::iof_iof_cbfunc_t;
use crate::ffi::guard::lock;
use crate::ffi::types::iof_info_t;
use crate::ffi::{make, memory};
use crate::infos::format::Format;
use crate::infos::is_set;
use crate::session::call;
use crate::session::command::{Command, Done, Payload, Sink, gone};
use crate::session::events::HandlerEvent;
use crate::session::print::{Content, Held, Printers};
use crate::session::pushes::PendingPushes;
use crate::session::shared::SessionShared;

mod spawned;
mod waiting;

use waiting::WaitingOutput;

/// The maximum number of deliveries between two checks for commands.
const DELIVERIES_PER_TURN: usize = 64;

/// A request whose answer is pending.
enum UnansweredRequest {
    Pull(Registration, Sink, Done<usize>),
    Push(Payload, bool, Done<()>),
    Query(Done<Answer>),
    Log(Done<()>),
    Spawn(Format, Done<Nspace>),
    /// A query for a tag or a file of output that waits.
    Processes,
}

/// A registration.
struct Registration {
    /// `None` if output is printed.
    callback: iof_iof_cbfunc_t,
    /// Set if it continues after the end of its jobs.
    persistent: bool,
    /// Divides what it receives into lines, if it wants lines.
    lines: Option<LineDivider>,
    /// The names of its jobs, each with the last run whose end was reported to it; 0 for none.
    jobs: BTreeMap<Nspace, u64>,
}

/// The connection of a session with its requests and registrations, see the module.
pub(crate) struct SessionCore {
    tool: Tool,
    shared: Arc<SessionShared>,
    pending: BTreeMap<u32, UnansweredRequest>,
    handlers: BTreeMap<u32, Registration>,
    /// Registrations that are being ended.
    ending: BTreeMap<u32, Done<()>>,
    /// Ends of jobs, by name and run, that were not reported to all registrations yet.
    ends: BTreeMap<Nspace, BTreeMap<u64, Option<i32>>>,
    /// The number of bytes that are missing before the next ones of a stream.
    lost: BTreeMap<Stream, u64>,
    pushes: PendingPushes,
    printers: Printers,
    waiting: WaitingOutput,
    /// The jobs whose formats the program has given when it started them.
    formatted: BTreeSet<Nspace>,
    /// The time at which a push or an unfinished line needs the next turn.
    due: Option<Instant>,
    stopped: bool,
    gone: bool,
}

impl SessionCore {
    pub(crate) fn new(tool: Tool, shared: Arc<SessionShared>) -> SessionCore {
        let printers = Printers::new(Arc::clone(&shared.formats));
        SessionCore {
            tool,
            shared,
            pending: BTreeMap::new(),
            handlers: BTreeMap::new(),
            ending: BTreeMap::new(),
            ends: BTreeMap::new(),
            lost: BTreeMap::new(),
            pushes: PendingPushes::default(),
            printers,
            waiting: WaitingOutput::default(),
            formatted: BTreeSet::new(),
            due: None,
            stopped: false,
            gone: false,
        }
    }

    pub(crate) fn shared(&self) -> &SessionShared {
        &self.shared
    }

    /// Returns whether the program has ended the session.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Processes what is pending, without waiting. From `deadline` on, delivers nothing more. Returns
    /// the longest time for which the caller may wait before the next turn.
    pub(crate) fn turn(&mut self, deadline: Option<Instant>) -> Option<Duration> {
        let (commands, stopped) = self.shared.take();
        self.stopped = stopped;
        for command in commands {
            self.run_command(command);
        }
        let mut quiet = false;
        for _ in 0..DELIVERIES_PER_TURN {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            quiet = !self.deliver_next();
            if quiet {
                break;
            }
        }
        self.settle();
        let due = self.pushes.advance(&mut self.tool);
        self.due = self.printers.flush().into_iter().chain(due).chain(self.waiting.deadline()).min();
        if quiet && self.tool.is_gone() && !self.gone {
            self.lose();
        }
        if quiet { self.timeout() } else { Some(Duration::ZERO) }
    }

    /// Returns the longest time for which the caller may wait before the next turn.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let due = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        self.tool.timeout().into_iter().chain(due).min()
    }

    /// Runs the last turn, and ends the session.
    pub(crate) fn last_turn(&mut self) {
        self.turn(None);
        if self.shared.drains() {
            while self.deliver_next() {}
        }
        self.end();
    }

    /// Fails all pending requests.
    fn end(&mut self) {
        self.stop_waiting();
        let ended = || gone("the library was finalized");
        for pending in std::mem::take(&mut self.pending).into_values() {
            pending.fail(ended());
        }
        for done in std::mem::take(&mut self.ending).into_values() {
            done(Err(ended()));
        }
        self.pushes.fail(&ended());
        for command in self.shared.take().0 {
            command.fail(ended());
        }
        self.printers.end_all();
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Pull(pull, sink, done) => {
                let (callback, divides) = match sink {
                    Sink::Callback { callback, lines } => (callback, lines),
                    Sink::Print(_) => (None, false),
                };
                let lines = divides.then(LineDivider::default);
                let jobs = pull.procs.iter().map(|proc| (proc.nspace.clone(), 0)).collect();
                let registration = Registration { callback, persistent: pull.persistent, lines, jobs };
                self.ask(Tool::submit_pull, &pull, UnansweredRequest::Pull(registration, sink, done));
            }
            Command::Push(push, payload, done) => {
                let size = payload.len() as u64;
                let drop = is_set(&push.directives, PMIX_IOF_DROP_NEWEST);
                let begin = |tool: &mut Tool, push: &Push| tool.submit_push(push, Some(size));
                self.ask(begin, &push, UnansweredRequest::Push(payload, drop, done));
            }
            Command::Query(queries, done) => {
                self.ask(
                    |tool, queries| tool.submit_query(queries.clone()),
                    &queries,
                    UnansweredRequest::Query(done),
                );
            }
            Command::Log(log, done) => self.ask(Tool::submit_log, &log, UnansweredRequest::Log(done)),
            Command::Spawn(spawn, format, done) => self.spawn(&spawn, format, done),
            Command::Deregister(handler, done) => self.deregister(handler, done),
            Command::Call(done) => self.in_order(move |_| done(Ok(()))),
        }
    }

    fn ask<T>(
        &mut self,
        send: impl FnOnce(&mut Tool, &T) -> Result<u32, RequestError>,
        what: &T,
        pending: UnansweredRequest,
    ) {
        match send(&mut self.tool, what) {
            Ok(request) => drop(self.pending.insert(request, pending)),
            Err(error) => pending.fail(failure(error)),
        }
    }

    fn deregister(&mut self, handler: usize, done: Done<()>) {
        let handler = u32::try_from(handler).unwrap_or(0);
        match self.tool.deregister(handler) {
            Ok(()) => drop(self.ending.insert(handler, done)),
            Err(error) => {
                let Failure { status, reason } = failure(error);
                // As in PMIx's library.
                let is_unknown = status == Status::ERR_NOT_FOUND;
                done(Err(Failure::new(if is_unknown { Status::ERR_BAD_PARAM } else { status }, reason)));
            }
        }
    }

    /// Delivers what the engine has sent next. Returns `false` if there is nothing.
    fn deliver_next(&mut self) -> bool {
        let SessionCore { tool, handlers, lost, printers, waiting, .. } = self;
        let delivery = tool.try_recv();
        let found = delivery.as_ref().ok().and_then(Option::as_ref);
        if found.is_some_and(|found| deliver_lines(handlers, found, lost)) {
            self.settle();
            return true;
        }
        let mut deliver = |origin: &Origin<'_>, bytes: &[u8], infos| {
            // A registration that has ended receives nothing more.
            if let Some(Registration { callback, .. }) = handlers.get(&origin.handler) {
                call_with(*callback, origin, bytes, infos, lost);
            }
        };
        let end = |produced, key, value| {
            vec![make::info(IOF_OFFSET, make::uint64(produced)), make::info(key, value)]
        };
        match delivery {
            Ok(None) => return false,
            // The engine violated the protocol. This is returned once, and the engine counts as
            // gone.
            Err(_) => {}
            Ok(Some(Delivery::Bytes(bytes))) if printers.has(bytes.origin().handler) => {
                if printers.lacks_process() {
                    waiting.print(printers, Held::bytes(&bytes));
                } else {
                    printers.print(&bytes);
                }
            }
            Ok(Some(Delivery::Bytes(bytes))) => {
                deliver(&bytes.origin(), bytes.as_slice(), describe(bytes.offset(), bytes.time()))
            }
            Ok(Some(Delivery::Gap { origin, gap })) if printers.has(origin.handler) => {
                waiting.print(printers, Held::new(&origin, Content::Gap(gap)));
            }
            Ok(Some(Delivery::Gap { origin, gap })) => {
                let so_far = lost.entry(stream(&origin)).or_default();
                *so_far = so_far.saturating_add(gap.lost);
            }
            Ok(Some(Delivery::Complete { origin, .. } | Delivery::Gone { origin, .. }))
                if printers.has(origin.handler) =>
            {
                waiting.print(printers, Held::new(&origin, Content::End));
            }
            Ok(Some(Delivery::Broken { origin, counts, missing })) if printers.has(origin.handler) => {
                let content = Content::Broken { produced: counts.produced, missing };
                waiting.print(printers, Held::new(&origin, content));
            }
            Ok(Some(Delivery::Complete { origin, counts })) => {
                deliver(&origin, &[], end(counts.produced, PMIX_IOF_COMPLETE, make::boolean(true)));
            }
            Ok(Some(Delivery::Broken { origin, counts, missing })) => {
                deliver(&origin, &[], end(counts.produced, IOF_BROKEN, make::uint64(missing)));
            }
            Ok(Some(Delivery::Gone { origin, counts })) => {
                deliver(&origin, &[], end(counts.produced, IOF_GONE, make::boolean(true)));
            }
            Ok(Some(Delivery::JobEnded { handler, nspace, run, exit_code, .. })) => {
                self.after_output(handler, move |core| core.job_ended(handler, nspace, run, exit_code));
            }
            Ok(Some(Delivery::Missed { handler, missed })) => {
                let source = Proc::all(missed.nspace);
                let origin = Origin { handler, source: &source, channel: missed.channel, logged: false };
                if printers.has(handler) {
                    let gap = Gap { offset: missed.offset.unwrap_or_default(), lost: missed.bytes };
                    waiting.print(printers, Held::new(&origin, Content::Gap(gap)));
                } else {
                    deliver(&origin, &[], vec![make::info(IOF_LOST, make::uint64(missed.bytes))]);
                }
            }
            Ok(Some(Delivery::Reply { request, reply })) => self.answered(request, reply),
            Ok(Some(Delivery::Deregistered { handler })) => {
                self.after_output(handler, move |core| core.deregistered(handler));
            }
            // A kind of delivery that this version does not know.
            Ok(Some(_)) => {}
        }
        self.settle();
        true
    }

    /// Calls `then` when all output of a registration was delivered or printed.
    fn after_output(&mut self, handler: u32, then: impl FnOnce(&mut SessionCore) + Send + 'static) {
        if self.printers.has(handler) { self.in_order(then) } else { then(self) }
    }

    fn deregistered(&mut self, handler: u32) {
        self.printers.deregister(handler);
        let jobs = self.handlers.remove(&handler).map_or_else(BTreeMap::new, |ended| ended.jobs);
        for nspace in jobs.keys() {
            self.report_ends(nspace);
            self.forget_unnamed(nspace);
        }
        if let Some(done) = self.ending.remove(&handler) {
            done(Ok(()));
        }
    }

    fn answered(&mut self, request: u32, reply: Reply) {
        let Some(pending) = self.pending.remove(&request) else { return };
        match (pending, reply) {
            (UnansweredRequest::Pull(registration, sink, done), Reply::Pulled(result)) => {
                if let Ok(granted) = &result {
                    self.handlers.insert(granted.handler, registration);
                    if let Sink::Print(print) = sink {
                        self.printers.register(granted.handler, *print);
                    }
                }
                done(result.map(|granted| granted.handler as usize));
            }
            (UnansweredRequest::Push(payload, drop, done), Reply::PushBegun(Ok(granted))) => {
                self.pushes.begin(granted.push, payload, drop, done);
            }
            (UnansweredRequest::Query(done), Reply::Answered(result)) => done(result),
            (UnansweredRequest::Processes, Reply::Answered(result)) => {
                self.learn(request, result.map(|answer| answer.found).unwrap_or_default());
            }
            (UnansweredRequest::Log(done), Reply::Logged(result)) => {
                done(result.and_then(|report| logged(&report)))
            }
            (UnansweredRequest::Spawn(format, done), Reply::Spawned(Ok(nspace))) => {
                self.spawned(nspace, format, done);
            }
            (UnansweredRequest::Spawn(_, done), Reply::Spawned(result)) => done(result),
            (pending, Reply::PushBegun(Err(failure))) => pending.fail(failure),
            (pending, _) => pending.fail(gone("the engine's answer does not match the request")),
        }
    }

    /// Notes that the end of run `run` of `nspace` was reported to a registration.
    fn job_ended(&mut self, handler: u32, nspace: Nspace, run: u64, exit_code: Option<i32>) {
        self.printers.end_job(handler, &nspace);
        match self.handlers.get_mut(&handler) {
            Some(Registration { persistent: false, .. }) => {
                self.printers.deregister(handler);
                self.handlers.remove(&handler);
            }
            Some(Registration { jobs, .. }) => {
                jobs.entry(nspace.clone()).and_modify(|reported| *reported = run);
            }
            None => {}
        }
        self.ends.entry(nspace.clone()).or_default().insert(run, exit_code);
        self.report_ends(&nspace);
    }

    /// Reports to event handlers the ends of those jobs called `nspace` that were reported to all
    /// registrations that name it.
    fn report_ends(&mut self, nspace: &Nspace) {
        let runs = self.handlers.values().filter_map(|registration| registration.jobs.get(nspace));
        let reported = runs.min().copied().unwrap_or(u64::MAX);
        while let Some(ends) = self.ends.get_mut(nspace) {
            let Some(end) = ends.first_entry().filter(|end| *end.key() <= reported) else { break };
            let exit_code = end.remove();
            if ends.is_empty() {
                self.ends.remove(nspace);
            }
            self.forget_format(nspace);
            self.notify(&HandlerEvent::JobEnded { nspace: nspace.clone(), exit_code });
        }
    }

    /// Reports that the engine has gone. Everything in memory must have been delivered.
    fn lose(&mut self) {
        self.gone = true;
        self.stop_waiting();
        self.shared.unregister(&self.tool);
        for done in std::mem::take(&mut self.ending).into_values() {
            done(Err(gone("the engine has ended")));
        }
        self.notify(&HandlerEvent::Lost);
    }

    fn notify(&self, event: &HandlerEvent) {
        let handlers = lock(&self.shared.events).handlers_for(event);
        for (id, callback) in handlers {
            event.notify(id, callback);
        }
    }
}

impl UnansweredRequest {
    fn fail(self, failure: Failure) {
        match self {
            UnansweredRequest::Pull(_, _, done) => done(Err(failure)),
            UnansweredRequest::Push(payload, _, done) => {
                drop(payload);
                done(Err(failure));
            }
            UnansweredRequest::Query(done) => done(Err(failure)),
            UnansweredRequest::Log(done) => done(Err(failure)),
            UnansweredRequest::Spawn(_, done) => done(Err(failure)),
            UnansweredRequest::Processes => {}
        }
    }
}

/// A stream of a registration.
type Stream = (u32, Proc, Channel, bool);

fn stream(origin: &Origin<'_>) -> Stream {
    (origin.handler, origin.source.clone(), origin.channel, origin.logged)
}

fn describe(offset: u64, time: Option<u64>) -> Vec<iof_info_t> {
    let mut infos = vec![make::info(IOF_OFFSET, make::uint64(offset))];
    infos.extend(time.map(|time| make::info(IOF_READ_TIME, make::uint64(time))));
    infos
}

/// Calls the callback of a registration that wants lines for those that a delivery completes. Returns
/// whether that is all that is to be delivered.
fn deliver_lines(
    handlers: &mut BTreeMap<u32, Registration>,
    found: &Delivery<'_>,
    lost: &mut BTreeMap<Stream, u64>,
) -> bool {
    let registration = handlers.get_mut(&found.handler());
    let (Some(Registration { callback, lines: Some(lines), .. }), Some(origin)) =
        (registration, found.origin())
    else {
        return false;
    };
    lines.divide(found, usize::MAX, |line| {
        let bytes = [line.bytes, if line.ends { b"\n" } else { b"" }].concat();
        let mut infos = describe(line.offset, line.time);
        infos.extend((line.lost > 0).then(|| make::info(IOF_LOST, make::uint64(line.lost))));
        call_with(*callback, &origin, &bytes, infos, lost);
    });
    matches!(found, Delivery::Bytes(_) | Delivery::Gap { .. })
}

/// Calls the callback of a registration, with the infos that apply to its stream.
fn call_with(
    callback: iof_iof_cbfunc_t,
    origin: &Origin<'_>,
    bytes: &[u8],
    mut infos: Vec<iof_info_t>,
    lost: &mut BTreeMap<Stream, u64>,
) {
    if origin.logged {
        infos.push(make::info(IOF_LOGGED, make::boolean(true)));
    }
    // Most streams lose nothing.
    if !lost.is_empty() {
        infos.extend(lost.remove(&stream(origin)).map(|lost| make::info(IOF_LOST, make::uint64(lost))));
    }
    let source = memory::proc(origin.source);
    call::deliver(callback, origin.handler, make::channel(origin.channel), source, bytes, &mut infos);
}

/// Returns the result of a log request.
fn logged(report: &LogReport) -> Result<(), Failure> {
    if report.status == Status::SUCCESS {
        return Ok(());
    }
    let reason = |outcome: &iof_proto::LogOutcome| {
        Some(format!("{}: {}", outcome.channel, outcome.result.as_ref().err()?.reason))
    };
    let reasons: Vec<String> = report.outcomes.iter().filter_map(reason).collect();
    Err(Failure::new(report.status, reasons.join("; ")))
}

/// Converts the error of a request, so that it has a status.
pub(crate) fn failure(error: RequestError) -> Failure {
    match error {
        RequestError::Denied(failure) => failure,
        RequestError::Unsendable(error) => Failure::new(Status::ERR_BAD_PARAM, error.to_string()),
        lost => gone(lost),
    }
}
