//! The core of a session: whoever has it asks the engine what the program wants, and calls the
//! program back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_proto::directive::key::PMIX_IOF_DROP_NEWEST;
use iof_proto::{Answer, Channel, Failure, InfoValue, LogReport, Nspace, Proc};
use iof_tool::{Bytes, Delivery, Gap, Origin, Pull, Push, Reply, RequestError, Tool};

use crate::callbacks::iof_iof_cbfunc_t;
use crate::events::Event;
use crate::keys::*;
use crate::print::Prints;
use crate::pushes::{Payload, Pushes, gone};
use crate::session::{Command, Done, Shared, lock};
use crate::types::iof_info_t;
use crate::{call, make, memory};

/// Callbacks between two looks at what the program wants.
const TURN: usize = 64;

/// Whose answer is still to come.
enum Asked {
    Pull(iof_iof_cbfunc_t, BTreeMap<Nspace, u64>, Done<usize>),
    Push(Payload, bool, Done<()>),
    Query(Done<Answer>),
    Log(Done<()>),
}

/// One registration.
struct Handler {
    /// None: what comes is printed.
    callback: iof_iof_cbfunc_t,
    /// The names of its jobs, each with the last run of whose end it was told; 0 for none.
    jobs: BTreeMap<Nspace, u64>,
}

/// See the module.
pub(crate) struct Core {
    tool: Tool,
    shared: Arc<Shared>,
    asked: BTreeMap<u32, Asked>,
    handlers: BTreeMap<u32, Handler>,
    /// Registrations that end.
    ending: BTreeMap<u32, Done<()>>,
    /// Ends of jobs, by name and run, of which some registrations were not told yet.
    ends: BTreeMap<Nspace, BTreeMap<u64, Option<i32>>>,
    /// Bytes that are missing before the next ones of a stream.
    lost: BTreeMap<Stream, u64>,
    pushes: Pushes,
    prints: Prints,
    /// When something of our own is due.
    due: Option<Instant>,
    stopped: bool,
    gone: bool,
}

impl Core {
    pub(crate) fn new(tool: Tool, shared: Arc<Shared>) -> Core {
        Core {
            tool,
            shared,
            asked: BTreeMap::new(),
            handlers: BTreeMap::new(),
            ending: BTreeMap::new(),
            ends: BTreeMap::new(),
            lost: BTreeMap::new(),
            pushes: Pushes::default(),
            prints: Prints::default(),
            due: None,
            stopped: false,
            gone: false,
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Whether the program wants no more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Does what there is to do without a wait; gives for how long the next wait may last.
    pub(crate) fn turn(&mut self) -> Option<Duration> {
        let (commands, stopped) = self.shared.take();
        self.stopped = stopped;
        for command in commands {
            self.obey(command);
        }
        let mut quiet = false;
        for _ in 0..TURN {
            quiet = !self.hand_out();
            if quiet {
                break;
            }
        }
        let due = self.pushes.advance(&mut self.tool);
        self.due = self.prints.flush().into_iter().chain(due).min();
        if quiet && self.tool.is_gone() && !self.gone {
            self.lose();
        }
        if quiet { self.timeout() } else { Some(Duration::ZERO) }
    }

    /// For how long a wait may last.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let due = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        self.tool.timeout().into_iter().chain(due).min()
    }

    /// Ends it.
    pub(crate) fn last_turn(&mut self) {
        self.turn();
        if self.shared.is_after_all() {
            while self.hand_out() {}
        }
        self.end();
    }

    /// Tells all that wait that nothing will come.
    fn end(&mut self) {
        let why = || gone("the library was finalized");
        for asked in std::mem::take(&mut self.asked).into_values() {
            asked.fail(why());
        }
        for done in std::mem::take(&mut self.ending).into_values() {
            done(Err(why()));
        }
        self.pushes.fail(&why());
        for command in self.shared.take().0 {
            command.fail(why());
        }
        self.prints.end();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Pull(pull, callback, done) => {
                let jobs = pull.procs.iter().map(|proc| (proc.nspace.clone(), 0)).collect();
                self.ask(Tool::submit_pull, &pull, Asked::Pull(callback, jobs, done));
            }
            Command::Push(push, payload, done) => {
                let size = payload.len() as u64;
                let drop = push
                    .directives
                    .iter()
                    .any(|info| info.key == PMIX_IOF_DROP_NEWEST && info.value == InfoValue::Bool(true));
                let begin = |tool: &mut Tool, push: &Push| tool.submit_push(push, Some(size));
                self.ask(begin, &push, Asked::Push(payload, drop, done));
            }
            Command::Query(queries, done) => {
                self.ask(|tool, queries| tool.submit_query(queries.clone()), &queries, Asked::Query(done));
            }
            Command::Log(log, done) => self.ask(Tool::submit_log, &log, Asked::Log(done)),
            Command::Deregister(handler, done) => self.deregister(handler, done),
            Command::Call(done) => done(Ok(())),
        }
    }

    fn ask<T>(
        &mut self,
        send: impl FnOnce(&mut Tool, &T) -> Result<u32, RequestError>,
        what: &T,
        asked: Asked,
    ) {
        match send(&mut self.tool, what) {
            Ok(request) => drop(self.asked.insert(request, asked)),
            Err(error) => asked.fail(failure(error)),
        }
    }

    fn deregister(&mut self, handler: usize, done: Done<()>) {
        let handler = u32::try_from(handler).unwrap_or(0);
        match self.tool.deregister(handler) {
            Ok(()) => drop(self.ending.insert(handler, done)),
            Err(error) => done(Err(failure(error))),
        }
    }

    /// Hands out what comes next, if something does.
    fn hand_out(&mut self) -> bool {
        let Core { tool, handlers, lost, prints, .. } = self;
        let mut deliver = |origin: &Origin<'_>, bytes: &[u8], infos| {
            // None for a registration that has ended: its last is what was due to it.
            let handler = handlers.get(&origin.handler);
            match handler.map(|handler| handler.callback) {
                Some(None) => prints.print(origin, bytes),
                Some(callback) => call_with(callback, origin, bytes, infos, lost),
                None => {}
            }
        };
        let end = |produced, how| {
            vec![make::info(IOF_OFFSET, make::uint64(produced)), make::info(how, make::boolean(true))]
        };
        match tool.try_recv() {
            Ok(None) => return false,
            // What the engine spoke is nonsense: it is told once, and counts as gone from then on.
            Err(_) => {}
            Ok(Some(Delivery::Bytes(bytes))) => deliver(&bytes.origin(), bytes.as_slice(), describe(&bytes)),
            Ok(Some(Delivery::Gap { origin, gap }))
                if handlers.get(&origin.handler).is_some_and(|handler| handler.callback.is_none()) =>
            {
                prints.missing(&origin, &gap);
            }
            Ok(Some(Delivery::Gap { origin, gap })) => {
                let so_far = lost.entry(stream(&origin)).or_default();
                *so_far = so_far.saturating_add(gap.lost);
            }
            Ok(Some(Delivery::Complete { origin, counts })) => {
                deliver(&origin, &[], end(counts.produced, IOF_IOF_COMPLETE));
            }
            Ok(Some(Delivery::Gone { origin, counts })) => {
                deliver(&origin, &[], end(counts.produced, IOF_GONE));
            }
            Ok(Some(Delivery::JobEnded { handler, nspace, run, exit_code, .. })) => {
                self.job_ended(handler, nspace, run, exit_code);
            }
            Ok(Some(Delivery::Missed { handler, missed })) => {
                let source = Proc::all(missed.nspace);
                let origin = Origin { handler, source: &source, channel: missed.channel, logged: false };
                if handlers.get(&handler).is_some_and(|handler| handler.callback.is_none()) {
                    prints.missing(&origin, &Gap { offset: 0, lost: missed.bytes });
                } else {
                    deliver(&origin, &[], vec![make::info(IOF_LOST, make::uint64(missed.bytes))]);
                }
            }
            Ok(Some(Delivery::Reply { request, reply })) => self.answered(request, reply),
            Ok(Some(Delivery::Deregistered { handler })) => {
                let jobs = self.handlers.remove(&handler).map_or_else(BTreeMap::new, |of| of.jobs);
                jobs.keys().for_each(|nspace| self.tell_ends(nspace));
                if let Some(done) = self.ending.remove(&handler) {
                    done(Ok(()));
                }
            }
            // A kind of news that did not exist when this was written.
            Ok(Some(_)) => {}
        }
        true
    }

    fn answered(&mut self, request: u32, reply: Reply) {
        let Some(asked) = self.asked.remove(&request) else { return };
        match (asked, reply) {
            (Asked::Pull(callback, jobs, done), Reply::Pulled(result)) => {
                if let Ok(granted) = &result {
                    self.handlers.insert(granted.handler, Handler { callback, jobs });
                }
                done(result.map(|granted| granted.handler as usize));
            }
            (Asked::Push(payload, drop, done), Reply::PushBegun(Ok(granted))) => {
                self.pushes.begin(granted.push, payload, drop, done);
            }
            (Asked::Query(done), Reply::Answered(result)) => done(result),
            (Asked::Log(done), Reply::Logged(result)) => done(result.and_then(|report| logged(&report))),
            (asked, Reply::PushBegun(Err(failure))) => asked.fail(failure),
            (asked, _) => asked.fail(gone("the engine answers something else")),
        }
    }

    /// Notes that a registration was told of the end of run `run` of `nspace`.
    fn job_ended(&mut self, handler: u32, nspace: Nspace, run: u64, exit_code: Option<i32>) {
        if let Some(told) = self.handlers.get_mut(&handler).and_then(|of| of.jobs.get_mut(&nspace)) {
            *told = run;
        }
        self.ends.entry(nspace.clone()).or_default().insert(run, exit_code);
        self.tell_ends(&nspace);
    }

    /// Tells of the ends of those jobs called `nspace` of which all registrations that name it were
    /// told.
    fn tell_ends(&mut self, nspace: &Nspace) {
        let told = self.handlers.values().filter_map(|of| of.jobs.get(nspace)).min().copied();
        let told = told.unwrap_or(u64::MAX);
        while let Some(ends) = self.ends.get_mut(nspace) {
            let Some(end) = ends.first_entry().filter(|end| *end.key() <= told) else { break };
            let exit_code = end.remove();
            if ends.is_empty() {
                self.ends.remove(nspace);
            }
            self.tell(&Event::JobEnded { nspace: nspace.clone(), exit_code });
        }
    }

    /// The engine has gone, and all that was in memory was handed out.
    fn lose(&mut self) {
        self.gone = true;
        self.shared.leave(&self.tool);
        for done in std::mem::take(&mut self.ending).into_values() {
            done(Err(gone("the engine has ended")));
        }
        self.tell(&Event::Lost);
    }

    fn tell(&self, event: &Event) {
        let handlers = lock(&self.shared.events).of(event);
        for (id, callback) in handlers {
            event.tell(id, callback);
        }
    }
}

impl Asked {
    fn fail(self, failure: Failure) {
        match self {
            Asked::Pull(_, _, done) => done(Err(failure)),
            Asked::Push(payload, _, done) => {
                drop(payload);
                done(Err(failure));
            }
            Asked::Query(done) => done(Err(failure)),
            Asked::Log(done) => done(Err(failure)),
        }
    }
}

/// One stream of one registration.
type Stream = (u32, Proc, Channel, bool);

fn stream(origin: &Origin<'_>) -> Stream {
    (origin.handler, origin.source.clone(), origin.channel, origin.logged)
}

fn describe(bytes: &Bytes<'_>) -> Vec<iof_info_t> {
    let mut infos = vec![make::info(IOF_OFFSET, make::uint64(bytes.offset()))];
    infos.extend(bytes.time().map(|time| make::info(IOF_READ_TIME, make::uint64(time))));
    infos
}

/// Calls the callback of a registration.
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

/// What C is told of a log request.
fn logged(report: &LogReport) -> Result<(), Failure> {
    if report.status == iof_proto::Status::SUCCESS {
        return Ok(());
    }
    let why = |outcome: &iof_proto::LogOutcome| {
        Some(format!("{}: {}", outcome.channel, outcome.result.as_ref().err()?.reason))
    };
    let reasons: Vec<String> = report.outcomes.iter().filter_map(why).collect();
    Err(Failure::new(report.status, reasons.join("; ")))
}

fn failure(error: RequestError) -> Failure {
    match error {
        RequestError::Denied(failure) => failure,
        RequestError::Unsendable(error) => Failure::new(iof_proto::Status::ERR_BAD_PARAM, error.to_string()),
        lost => gone(lost),
    }
}

/// A pull with the directives of C's, some of which are ours to understand.
pub(crate) fn pull(procs: Vec<Proc>, channels: iof_proto::Channels, infos: Vec<iof_proto::Info>) -> Pull {
    let (now, directives): (Vec<_>, Vec<_>) = infos
        .into_iter()
        .partition(|info| info.key == IOF_NO_BACKLOG && matches!(info.value, InfoValue::Bool(_)));
    let backlog = !now.iter().any(|info| info.value == InfoValue::Bool(true));
    // PMIx's registrations last until they are deregistered.
    Pull { backlog, persistent: true, directives, ..Pull::new(procs, channels) }
}
