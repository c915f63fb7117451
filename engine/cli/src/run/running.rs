//! A running job: the events of its ranks, its outputs and the signals, and the reactions to them.

mod passing;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use std::{iter, mem};

use iof_engine::{Ending, Exit, JobStatus, RankExit, Signal as RankSignal, UsedResources};
use iof_output::PrintReport;
use iof_proto::Rank;
use iof_remote::RemoteJob;
use nix::sys::signal::Signal;

use super::children::{Children, Own};
use super::keep::keep_ended;
use super::launched_job::LaunchedJob;
use super::plan::Plan;
use super::prepared::Prepared;
use crate::error::Failure;
use crate::events::job_event::{FLUSH_LIMIT, GRACE, JobEvent};
use crate::events::stdin::StdinEvent;
use crate::outputs::printers::add_report;
use crate::processes::signals::{self, ReceivedSignal};
use crate::processes::suspects::Suspects;
use crate::processes::threads::recv_until;
use crate::reports::failures::Failures;
use crate::reports::last_lines::print_last_lines;
use crate::reports::objects::{print_exit, print_job_end};
use crate::reports::stalls::report_stalled;
use crate::run::account::{Forwarded, JobAccount, mpi_protocol, report_agents, report_given_up};
use crate::terminal::give_up::{Blocked, WriteWait};
use crate::terminal::keyboard::Keyboard;
use crate::terminal::message::{self, print_message};

/// The action at the end of the grace period.
#[derive(Clone, Copy)]
enum AfterGrace {
    /// Kills the ranks.
    Kill,
    /// Ends the command by this signal, without waiting for more output.
    Leave(Signal),
}

/// A running job. Dropping it kills the ranks that still run.
pub struct RunningJob<'a> {
    pub(super) job: LaunchedJob,
    /// The jobs that tools have started.
    pub(super) children: Children<'a>,
    pub(super) failures: Failures,
    /// The keyboard, while a rank has it.
    pub(super) keyboard: Option<Keyboard>,
    /// Number of outputs that are still written.
    pub(super) outputs: usize,
    /// The time for which these may accept nothing.
    pub(super) write_wait: WriteWait,
    pub(super) course: Course,
    pub(super) base: Prepared<'a>,
}

/// The events of a job so far.
#[derive(Default)]
pub(super) struct Course {
    status: Option<JobStatus>,
    over: bool,
    /// The number of ends of ranks and nodes that were reported.
    endings: usize,
    /// The ranks were told to end: by a signal that this command passed on, or by the engine.
    is_ending: bool,
    /// The outputs that were given up.
    given_up: Option<Blocked>,
    /// Files on another node were given up.
    is_cut_short: bool,
    failure: Option<Failure>,
    /// The time in which the other outputs may accept nothing has begun, after a failure.
    finishes: bool,
    /// The line that tells that ranks are alone.
    alone: Option<String>,
    /// The ranks have not received all of the command's stdin.
    stdin_failed: bool,
    /// Sum of the reports of all outputs that ended without an error.
    forwarded: PrintReport,
    grace: Option<(Instant, AfterGrace)>,
    /// The last SIGINT, SIGTERM, SIGHUP or SIGQUIT, if any.
    asked_to_end: Option<ReceivedSignal>,
    /// The signal that asked to end when only jobs of tools were left.
    ended_by: Option<Signal>,
    /// Some ranks may be stopped, so that only SIGKILL and SIGCONT take effect.
    stopped: bool,
    /// Ranks that were reported to wait for the terminal.
    reported: BTreeSet<Rank>,
    /// Ranks that the next signal to this command may explain.
    suspects: Suspects,
    /// Lines about failed ranks that wait until no rank fills the screen.
    held: Vec<String>,
}

impl RunningJob<'_> {
    /// Blocks until the job and its output have ended. Reports what is known only then, and returns
    /// the exit code.
    pub fn wait_for_end(mut self) -> Result<ExitCode, Failure> {
        while !self.is_over() {
            match self.next() {
                Some(event) => self.handle(event),
                None => self.time_passed(),
            }
            self.check_outputs();
        }
        if self.outputs > 0 && self.course.given_up.is_none() {
            let (queue, before) = (&self.base.event_queue, self.course.asked_to_end);
            self.write_wait.finish_lines(GRACE, |until| {
                let event = recv_until(queue, Some(until));
                matches!(event, Ok(JobEvent::Signal(signal)) if signals::asks_again(signal, before.as_slice()))
            });
        }
        // Of several nodes that are lost at the end, each is told, also if its event is under way.
        let mut endings = self.job.endings();
        let rest = iter::from_fn(|| endings.try_next()).skip(self.course.endings);
        rest.filter(|ending| matches!(ending, Ending::NodeLost(_)))
            .for_each(|ending| self.report_ending(ending));
        let failed = self.course.suspects.take_all();
        self.report_exits(failed);
        self.print_held();
        if let Some(blocked) = &self.course.given_up {
            let unwritten = self.job.remote.as_ref().map_or(0, RemoteJob::unwritten);
            report_given_up(blocked, &self.base.engine, unwritten);
        }
        self.report_failures();
        self.keyboard = None;
        let Prepared { job_log, engine, .. } = &self.base;
        let is_logged = job_log.as_ref().is_none_or(|log| log.write(engine, &self.job));
        let is_cut_short =
            self.course.is_cut_short || self.course.forwarded.broken > 0 || self.course.given_up.is_some();
        let is_whole = is_logged && !self.course.stdin_failed && !is_cut_short;
        let code = self.course.status.as_ref().map(JobStatus::code);
        let result = match (self.course.failure.take(), &self.course.status) {
            (Some(failure), _) => Err(failure),
            (None, Some(status)) => match (status.code(), self.course.ended_by) {
                (0, Some(signal)) => Err(Failure::Signal(signal)),
                (0, None) if !is_whole => Ok(ExitCode::FAILURE),
                (code, _) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))),
            },
            (None, None) => Err(Failure::running("the end of the job was not reported")),
        };
        self.report_account(result.is_ok());
        // The first one may be far above.
        if let Some(line) = self.course.alone.take().filter(|_| result.is_ok()) {
            print_message(format_args!("{line}"));
        }
        let is_whole = result.is_ok() && !is_cut_short;
        print_job_end(self.job.nspace(), code, is_whole);
        if let (Some(time), Some(status), None) =
            (self.base.plan.args.keep, &self.course.status, self.course.asked_to_end)
            && result.is_ok()
        {
            keep_ended(&self.base, status.code(), time)?;
        }
        drop(self.job);
        let Prepared { reserved, engine, .. } = self.base;
        drop(reserved);
        // Threads of nodes only have weak references, or short-lived ones after a failure.
        if let Some(engine) = Arc::into_inner(engine) {
            engine.end_with_process();
        }
        result
    }

    fn handle(&mut self, event: JobEvent) {
        match event {
            JobEvent::Signal(received) => self.signal(received),
            JobEvent::Ending(ending) => self.report_ending(ending),
            JobEvent::Exited(status) => {
                self.children.parent_ended(self.job.nspace());
                self.course.status = Some(status);
            }
            JobEvent::Over(status) => {
                self.course.over = true;
                self.report_cut_off(&status);
                self.course.status = Some(status);
            }
            JobEvent::Alone { nspace, line, ends_job } if nspace != *self.job.nspace() => {
                let shown = self.children.alone(&nspace, line, ends_job);
                shown.into_iter().for_each(|line| print_message(format_args!("{line}")));
            }
            JobEvent::Alone { line, ends_job: true, .. } => self.fail(Failure::Running(line)),
            JobEvent::Alone { line, ends_job: false, .. } => {
                print_message(format_args!("{line}"));
                self.course.alone = Some(line);
            }
            JobEvent::Stalled { rank, channel, remedy } => report_stalled(rank, channel, remedy),
            JobEvent::Stdin(StdinEvent::Failed) => self.course.stdin_failed = true,
            // A key that no rank takes is lost, also Ctrl-C.
            JobEvent::Stdin(StdinEvent::Over) => {
                self.keyboard.take_if(|keyboard| keyboard.elsewhere().is_some());
            }
            JobEvent::ScreenClosed(rank) => self.screen_closed(rank),
            JobEvent::Output(report) => {
                self.outputs = self.outputs.saturating_sub(1);
                self.written(report);
            }
            JobEvent::NodeFiles(Err(Failure::Running(reason))) if self.course.is_ending => {
                self.course.is_cut_short = true;
                print_message(format_args!("{reason} after the end of its ranks"));
            }
            JobEvent::NodeFiles(report) => self.written(report),
            JobEvent::Spawn { request, reply } => {
                let Prepared { plan, engine, events, .. } = &self.base;
                let own = Own { engine, events, plan: Some(plan), slots: plan.slots };
                self.children.request(&own, *request, reply);
            }
            JobEvent::Spawned { nspace, job } => {
                match self.children.started(&self.base.engine, &nspace, job, &self.base.events) {
                    Ok(outputs) => self.outputs = self.outputs.saturating_add(outputs),
                    Err(failure) => self.fail(failure),
                }
            }
            JobEvent::ChildOver { nspace, lines } => {
                self.children.over(nspace, lines).into_iter().for_each(|line| self.report_line(Some(line)));
            }
            JobEvent::Query { nspace, reply } => self.children.query(&nspace, reply),
            // Nothing is kept yet, and this job is not inside of another.
            JobEvent::Killed | JobEvent::InsideOver(_) => {}
        }
    }

    /// Prints the cost and the result of forwarding, if the options ask for it.
    fn report_account(&mut self, is_success: bool) {
        let Prepared { plan: Plan { args, began, spec, .. }, engine, .. } = &self.base;
        if !args.timings && !args.summary {
            return;
        }
        let is_whole = is_success && self.course.given_up.is_none() && !self.course.is_cut_short;
        let (report, drops_cache) = (mem::take(&mut self.course.forwarded), args.output.files.drops_cache());
        let forwarded = Forwarded { report, is_whole, drops_cache };
        match JobAccount::query(engine, began.elapsed(), forwarded, &self.failures) {
            Ok(account) => {
                account.report(args.timings, args.summary);
                match &self.job.remote {
                    Some(remote) if args.timings => report_agents(&remote.costs()),
                    None if args.timings => {
                        print_message(format_args!("timings: {}", mpi_protocol(spec.mpi, engine, &self.job)));
                    }
                    _ => {}
                }
            }
            // The result of the job does not depend on its account.
            Err(error) => print_message(format_args!("cannot report timings and summary: {error}")),
        }
    }

    /// Returns `true` if there is nothing left to wait for. When an output has failed, the others are waited for while
    /// they are written.
    fn is_over(&self) -> bool {
        let written = self.course.over
            && self.outputs == 0
            && self.children.is_empty()
            && self.course.suspects.next_time().is_none();
        let is_left = self.course.failure.is_some() && (!self.has_failed() || self.write_wait.is_quiet);
        self.course.status.is_some() && (written || is_left || self.course.given_up.is_some())
    }

    /// Returns whether the ranks were ended because of an error, such as an output that can't be written.
    fn has_failed(&self) -> bool {
        matches!(self.course.failure, Some(Failure::Running(_) | Failure::Signal(Signal::SIGPIPE)))
    }

    /// Blocks until the next event. Returns `None` when a check of the outputs, the end of the
    /// grace period or the report of a failed rank is due.
    fn next(&self) -> Option<JobEvent> {
        let times = [
            self.course.grace.map(|(deadline, _)| deadline),
            self.write_wait.next_check(),
            self.course.suspects.next_time(),
        ];
        recv_until(&self.base.event_queue, times.into_iter().flatten().min()).ok()
    }

    /// Stops waiting for outputs that accept nothing: at once after the ranks were ended, otherwise
    /// by ending the job.
    fn check_outputs(&mut self) {
        let has_failed = self.has_failed();
        let is_ending = self.course.is_ending || has_failed;
        if is_ending && self.course.status.is_some() {
            let limit = self.base.plan.spec.kill_wait.max(GRACE);
            self.write_wait.limit(limit);
            message::give_up_after(limit);
            if has_failed && !mem::replace(&mut self.course.finishes, true) {
                self.write_wait.restart();
            }
        }
        let Some(blocked) = self.write_wait.check(Instant::now()) else { return };
        if !is_ending {
            // The limit has passed already.
            self.course.finishes = true;
            self.fail(Failure::Running(blocked.to_string()));
        } else if self.course.status.is_some() && !has_failed && self.write_wait.is_quiet {
            self.course.given_up = Some(blocked);
        }
    }

    /// Notes that a rank has ended, and ends its use of the keyboard if it was on another node.
    fn rank_ended(&mut self, rank: Rank, exit: Exit, used: Option<UsedResources>) {
        print_exit(self.job.nspace(), rank, exit, used);
        self.keyboard.take_if(|keyboard| keyboard.elsewhere() == Some(rank));
    }

    fn report_ending(&mut self, ending: Ending) {
        self.course.endings = self.course.endings.saturating_add(1);
        match ending {
            Ending::Rank(exit) => {
                self.rank_ended(exit.rank, exit.exit, exit.used);
                let decided = self.course.suspects.keep(exit, Instant::now());
                self.report_exits(decided);
            }
            Ending::NodeLost(lost) => {
                lost.ranks.iter().for_each(|rank| self.rank_ended(*rank, Exit::Unknown, None));
                let line = self.failures.node_lost(lost);
                self.report_lost(line);
            }
            Ending::Early(end) => {
                self.course.is_ending = true;
                // One of them may be the cause.
                let failed = self.course.suspects.take_all();
                self.report_exits(failed);
                let line = self.failures.ends_early(&end);
                self.report_line(line);
            }
            // Those of a part of a job are for the engine that has the whole.
            Ending::Mpi { .. } => {}
        }
    }

    fn report_exits(&mut self, exits: impl IntoIterator<Item = RankExit>) {
        for exit in exits {
            self.course.is_ending |= exit.requested;
            let line = self.failures.exited(&exit);
            self.report_line(line);
        }
    }

    /// Prints a line about a failed rank. The number of these lines is limited, see
    /// `MAX_FAILURE_LINES`.
    fn report_line(&mut self, line: Option<String>) {
        self.course.held.extend(line.filter(|_| !self.base.plan.args.ending.quiet));
        if !self.base.screen.is_on() {
            self.print_held();
        }
    }

    fn report_cut_off(&self, status: &JobStatus) {
        if !self.base.plan.args.ending.quiet {
            for line in self.failures.cut_off_lines(status) {
                print_message(format_args!("{line}"));
            }
        }
    }

    fn report_lost(&mut self, line: String) {
        self.course.held.extend((!self.base.plan.args.ending.quiet).then_some(line));
        self.print_held();
    }

    /// Prints the lines that waited, below what the rank has left on the terminal.
    fn screen_closed(&mut self, rank: Rank) {
        if !self.course.held.is_empty() && !self.base.screen.is_on() {
            self.job.flush_rank(rank, Some(FLUSH_LIMIT));
            self.print_held();
        }
    }

    fn print_held(&mut self) {
        for line in self.course.held.drain(..) {
            print_message(format_args!("{line}"));
        }
    }

    /// Reports what is known about failed ranks only at the end, unless an output failed: then the
    /// ranks were ended because of that.
    fn report_failures(&self) {
        if self.has_failed() || self.base.plan.args.ending.quiet {
            return;
        }
        for line in self.failures.closing_lines() {
            print_message(format_args!("{line}"));
        }
        let Prepared { plan, engine, .. } = &self.base;
        let first = self.failures.first.filter(|rank| !plan.outputs.shows_errors_plainly(*rank));
        if let Some(rank) = first.filter(|_| plan.nodes.is_none()) {
            print_last_lines(engine, self.job.nspace(), rank, plan.args.ending.error_lines());
        }
    }

    fn time_passed(&mut self) {
        let failed = self.course.suspects.take_failed(Instant::now());
        self.report_exits(failed);
        match self.course.grace.take_if(|(deadline, _)| *deadline <= Instant::now()) {
            Some((_, AfterGrace::Kill)) => self.signal_all(RankSignal::KILL),
            Some((_, AfterGrace::Leave(signal))) => self.leave(signal),
            None => {}
        }
    }

    /// Ends the command by this signal, without waiting for more output. An error from before is told.
    fn leave(&mut self, signal: Signal) {
        if let Some(Failure::Running(line)) = self.course.failure.replace(Failure::Signal(signal)) {
            print_message(format_args!("{line}"));
        }
    }

    fn written(&mut self, report: Result<PrintReport, Failure>) {
        if let Err(failure) = report.and_then(|report| add_report(&mut self.course.forwarded, report)) {
            self.fail(failure);
        }
    }

    fn fail(&mut self, mut failure: Failure) {
        if self.course.failure.is_none() {
            if let Failure::Running(message) = &mut failure {
                message.push_str("; the job was ended because of this error");
            }
            self.course.failure = Some(failure);
            self.signal_all(RankSignal::TERM);
            self.course.grace = Some((Instant::now() + GRACE, AfterGrace::Kill));
        }
    }
}
