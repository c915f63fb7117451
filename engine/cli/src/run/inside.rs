//! `iof run --in JOB`: starts a job in a running engine, and writes its output as `iof pull` does.

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};
use iof_engine::SAME_REQUEST;
use iof_output::PrintReport;
use iof_proto::query::key;
use iof_proto::{Channels, Found, Info, Nspace, Proc, Query, Spawn, Value};
use iof_tool::{Delivery, Pull, Reply, RequestError, Tool};
use nix::sys::signal::Signal;

use super::plan::spec;
use crate::args::RunArgs;
use crate::commands::attach::{attach_several, pull_for};
use crate::error::{Failure, no_directory};
use crate::events::job_event::{GRACE, InsideEnd, JobEvent};
use crate::events::signal_watch::SignalWatch;
use crate::outputs::output::WrittenOutputs;
use crate::outputs::printers::{OutputWriter, add_report};
use crate::processes::signals::{ReceivedSignal, Signals, asks_again, asks_to_end, stop_by};
use crate::processes::threads::{recv_until, start_thread};
use crate::reports::objects::print_job_end;
use crate::run::app::apps;
use crate::run::host::{ALONE, FAILURES};
use crate::terminal::give_up::WriteWait;
use crate::terminal::message::{has_objects, print_message};

/// The time between two looks for the answer to a signal, which a stopped engine does not send.
const ANSWER_LOOK: Duration = Duration::from_millis(10);

/// Starts a job in the engine that has the job `engine`. Returns the exit code of the new job. It ends
/// with this command, which is its spawner.
///
/// # Errors
/// The job is not started, or its output is incomplete.
pub fn run_inside(args: &RunArgs, engine: &Nspace) -> Result<ExitCode, Failure> {
    let mut spawn = request(args)?;
    let outputs = args.output.prepare(Some(spawn.spec.nprocs()), WrittenOutputs::All)?;
    let (events, queue) = unbounded();
    let signals = SignalWatch::start(Signals::take().map_err(Failure::running)?, events.clone())?;
    let mut own_tools = None;
    let attached = outputs.attach(|parts| {
        let tools = attach_several(&args.engine_of(engine), "iof run", parts.len().saturating_add(2), None)?;
        let mut tools = tools.into_iter();
        let (Some(mut first), Some(signaller)) = (tools.next(), tools.next()) else { return Ok(Vec::new()) };
        let nspace = first.spawn_with(&spawn).map_err(not_started)?;
        spawn.spec.nspace = nspace.clone();
        let pulled = parts.iter().zip(tools).map(|(part, mut tool)| {
            pull_for(&mut tool, &nspace, part, has_objects())?;
            Ok(Some(tool))
        });
        let pulled = pulled.collect::<Result<_, Failure>>()?;
        // One channel is enough for the end of the job, and for the job to end with this command. The
        // engine may forget a job that has ended from this pull on.
        first.pull(&Pull::new(vec![Proc::all(nspace)], Channels::STDDIAG)).map_err(Failure::running)?;
        own_tools = Some((first, signaller));
        Ok(pulled)
    })?;
    let (spawner, signaller) = own_tools.ok_or_else(|| Failure::running("the engine accepts no tools"))?;
    let nspace = spawn.spec.nspace;
    let writers = attached.write()?;
    let outputs = writers.len();
    let write_wait = WriteWait::new(writers.iter().map(OutputWriter::watched), None);
    for writer in writers {
        let events = events.clone();
        writer.watch(move |report| drop(events.send(JobEvent::Output(report))))?;
    }
    watch_end(spawner, nspace.clone(), args.ending.quiet, events)?;
    signals.job_is_started();
    let job = InsideJob {
        ranks: [Proc::all(nspace)],
        signaller,
        queue,
        outputs,
        write_wait,
        end: None,
        asked_to_end: None,
        unanswered: None,
        leave: None,
    };
    job.wait_for_end()
}

/// Returns the request for the job.
fn request(args: &RunArgs) -> Result<Spawn, Failure> {
    let mut apps = apps(&args.app)?;
    let here = env::current_dir().map_err(no_directory)?;
    for app in &mut apps {
        app.cwd = Some(here.join(app.cwd.take().unwrap_or_default()));
    }
    let mut spawn = Spawn::new(spec(args, apps, &[])?);
    (spawn.rename, spawn.is_bound) = (args.nspace.is_none(), true);
    spawn.spec.pmix_tools = None;
    // The ranks wait until their output is pulled, if those of the engine wait at all.
    spawn.spec.directives.forward = Some(Channels::OUTPUTS);
    Ok(spawn)
}

fn not_started(error: RequestError) -> Failure {
    match error {
        RequestError::Denied(failure) => Failure::Usage(failure.reason),
        RequestError::Lost(lost) => Failure::running(lost),
        error => Failure::usage(error),
    }
}

/// The started job, and what is known about it.
struct InsideJob {
    ranks: [Proc; 1],
    /// Sends signals to the ranks.
    signaller: Tool,
    queue: Receiver<JobEvent>,
    /// The number of outputs that are still written.
    outputs: usize,
    write_wait: WriteWait,
    end: Option<Result<InsideEnd, Failure>>,
    /// The last signal that asked to end, if any.
    asked_to_end: Option<ReceivedSignal>,
    /// The request to send the first of these signals, while the engine has not answered it.
    unanswered: Option<u32>,
    /// When the command leaves, whatever is left, and by which signal.
    leave: Option<(Instant, Signal)>,
}

impl InsideJob {
    /// Blocks until the job and its output have ended. Returns the exit code.
    fn wait_for_end(mut self) -> Result<ExitCode, Failure> {
        let mut sum = PrintReport::default();
        loop {
            if let Some(end) = self.end.take_if(|_| self.outputs == 0) {
                let InsideEnd { code, lines } = end?;
                lines.iter().for_each(|line| print_message(format_args!("{line}")));
                // Lines on the gaps name the bytes.
                let is_whole = sum.lost.is_empty();
                print_job_end(&self.ranks[0].nspace, Some(code.into()), is_whole);
                return is_whole.then(|| code.into()).ok_or(Failure::running("the output is incomplete"));
            }
            let look = self.unanswered.map(|_| Instant::now() + ANSWER_LOOK);
            let leave = self.leave.map(|(time, _)| time);
            match recv_until(&self.queue, leave.into_iter().chain(look).min()) {
                Ok(JobEvent::Output(report)) => {
                    self.outputs = self.outputs.saturating_sub(1);
                    add_report(&mut sum, report?)?;
                }
                Ok(JobEvent::InsideOver(end)) => self.end = Some(end),
                Ok(JobEvent::Signal(received)) => self.signal(received),
                Ok(_) => {}
                Err(_) if leave.is_some_and(|time| time <= Instant::now()) => return Err(self.leave()),
                Err(_) => self.read_answers(),
            }
        }
    }

    /// Passes a signal on to the ranks, which are not in the process group of this command. The second
    /// one that asks to end kills them.
    fn signal(&mut self, received: ReceivedSignal) {
        let signal = received.signal;
        match signal {
            Signal::SIGCHLD | Signal::SIGWINCH | Signal::SIGCONT => {}
            // As `iof run` without `--in`, which does not let ranks ignore it.
            Signal::SIGTSTP => {
                _ = self.send(Signal::SIGSTOP);
                stop_by(signal);
                _ = self.send(Signal::SIGCONT);
            }
            _ if !asks_to_end(signal) => _ = self.send(signal),
            _ if self.asked_to_end.is_some_and(|last| received.repeats(last, SAME_REQUEST)) => {}
            _ if self.end.is_some() => {
                // Only output is left, whose reader may not read.
                self.asked_to_end = Some(received);
                self.leave = Some((Instant::now(), signal));
            }
            _ if self.asked_to_end.replace(received).is_some() => {
                _ = self.send(Signal::SIGKILL);
                self.leave = Some((Instant::now() + GRACE, signal));
            }
            _ => self.unanswered = self.send(signal),
        }
    }

    /// Sends a signal to the ranks. Returns the request, unless the engine is gone: that is reported.
    fn send(&mut self, signal: Signal) -> Option<u32> {
        // The answers to others are not read otherwise.
        self.read_answers();
        self.signaller.submit_signal(&self.ranks, signal as i32).ok()
    }

    /// Reads the answers to signals. If no rank was left to receive the first that asked to end, it ends the
    /// command, which waits for output that other processes hold open, or for its reader.
    fn read_answers(&mut self) {
        while let Ok(Some(delivery)) = self.signaller.try_recv() {
            let Delivery::Reply { request, reply: Reply::Signalled(sent) } = delivery else { continue };
            let is_first = self.unanswered.take_if(|first| *first == request).is_some();
            if let Some(received) =
                self.asked_to_end.filter(|_| is_first && sent.is_ok_and(|count| count == 0))
            {
                self.leave.get_or_insert((Instant::now(), received.signal));
            }
        }
    }

    /// Lets the outputs end their lines. Returns the signal by which this command ends.
    fn leave(&mut self) -> Failure {
        let (queue, before) = (&self.queue, self.asked_to_end);
        self.write_wait.finish_lines(GRACE, |until| {
            let event = recv_until(queue, Some(until));
            matches!(event, Ok(JobEvent::Signal(signal)) if asks_again(signal, before.as_slice()))
        });
        let signal = self.leave.map_or(Signal::SIGTERM, |(_, signal)| signal);
        Failure::Signal(signal)
    }
}

/// Starts a thread that reports the end of the job of `spawner`.
fn watch_end(
    mut spawner: Tool,
    nspace: Nspace,
    is_quiet: bool,
    events: Sender<JobEvent>,
) -> Result<(), Failure> {
    start_thread("iof-job", move || {
        let end = job_end(&mut spawner, &nspace, is_quiet);
        // Fails only if the command has decided to end. It is the spawner until then.
        let _ = events.send(JobEvent::InsideOver(end));
    })
}

/// Blocks until the job of `spawner` has ended.
fn job_end(spawner: &mut Tool, nspace: &Nspace, is_quiet: bool) -> Result<InsideEnd, Failure> {
    while let Some(delivery) = spawner.recv().map_err(Failure::running)? {
        if let Delivery::JobEnded { exit_code, .. } = delivery {
            let code = exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
            return Ok(InsideEnd { code, lines: lines_about(spawner, nspace, code, is_quiet) });
        }
    }
    Err(Failure::running("lost the engine before the end of the job"))
}

/// Returns the lines about a job that has ended, which the command has that runs the engine: those about
/// failed ranks unless `is_quiet`, and the one about ranks that were alone. Other programs have none.
fn lines_about(spawner: &mut Tool, nspace: &Nspace, code: u8, is_quiet: bool) -> Vec<String> {
    let keys = [FAILURES, ALONE].into_iter().skip(usize::from(is_quiet));
    let qualifiers = vec![Info::new(key::PMIX_NSPACE, nspace.as_str())];
    let query = Query { qualifiers, ..Query::new(keys) };
    let found = spawner.queries(vec![query]).map(|answer| answer.found).unwrap_or_default();
    if found.is_empty() && code != 0 && !is_quiet {
        return vec![format!("job {nspace}: ended with exit code {code}")];
    }
    let texts = found.into_iter().filter_map(|Found { value, .. }| match value {
        Value::Text(text) => Some(text),
        _ => None,
    });
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}
