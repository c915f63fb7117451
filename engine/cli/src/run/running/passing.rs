//! The signals that `iof run` passes on to its ranks.

use std::time::Instant;

use iof_engine::{SAME_REQUEST, Signal as RankSignal};
use nix::sys::signal::Signal;

use super::{AfterGrace, RunningJob};
use crate::events::job_event::GRACE;
use crate::processes::signals::{self, ReceivedSignal};
use crate::terminal::keyboard::{Keyboard, window_size};
use crate::terminal::message::print_message;

impl RunningJob<'_> {
    pub(super) fn signal(&mut self, received: ReceivedSignal) {
        match received.signal {
            Signal::SIGCHLD => self.report_stopped(),
            Signal::SIGTSTP => self.suspend(received),
            Signal::SIGCONT => self.resume(),
            Signal::SIGWINCH => drop(self.job.resize_ptys(window_size())),
            _ => self.pass_on(received),
        }
    }

    fn pass_on(&mut self, received: ReceivedSignal) {
        let signal = received.signal;
        let asks_to_end = signals::asks_to_end(signal);
        if asks_to_end {
            let requested = self.course.suspects.take_requested(signal, Instant::now());
            self.report_exits(requested);
        }
        if asks_to_end && self.course.asked_to_end.is_some_and(|last| received.repeats(last, SAME_REQUEST)) {
            return;
        }
        // The status is read before the signal is sent: a rank that ends because of the signal has
        // received it. (The event of the exit may still be under way.)
        if self.course.status.is_none() {
            self.course.status = self.job.try_wait_exit();
        }
        if self.course.status.is_some() && !self.has_ended_ranks(received) {
            // No rank of this job is left to receive the signal, so it ends the command, which waits for a
            // grandchild, for the reader of its output, or for jobs of tools. It ends ranks of these first.
            match self.children.have_ranks() {
                false => self.leave(signal),
                true => self.course.ended_by = self.course.ended_by.or(Some(signal).filter(|_| asks_to_end)),
            }
        }
        self.course.is_ending |= asks_to_end || self.course.status.is_some();
        if asks_to_end && self.course.asked_to_end.replace(received).is_some() {
            self.signal_all(RankSignal::KILL);
            self.course.grace = Some((Instant::now() + GRACE, AfterGrace::Leave(signal)));
        } else {
            self.send(received);
            // Nodes do not tell which of their ranks are stopped.
            if self.course.stopped || asks_to_end && self.job.remote.is_some() {
                self.signal_all(RankSignal::CONT);
            }
        }
    }

    /// Returns whether the ranks have ended by this signal before it was read here: a signal to the
    /// process group of this command also goes to the rank in that group. After a failure this command has sent one.
    fn has_ended_ranks(&self, ReceivedSignal { signal, .. }: ReceivedSignal) -> bool {
        let code = (signal as i32).saturating_add(128);
        self.course.asked_to_end.is_none()
            && !self.has_failed()
            && self.course.status.as_ref().is_some_and(|status| status.code() == code)
    }

    /// Sends a received signal to the ranks. Ranks in the command's own process group have already
    /// received a signal that came from the terminal.
    fn send(&mut self, ReceivedSignal { signal, from_terminal, .. }: ReceivedSignal) {
        let Ok(signal) = RankSignal::try_from(signal as i32) else { return };
        if from_terminal {
            self.job.signal_groups(signal)
        } else {
            self.job.signal(signal)
        };
        // These are in groups of their own.
        self.children.signal(signal);
    }

    /// Stops the ranks and this process until it is continued. The ranks receive SIGSTOP instead of
    /// SIGTSTP: a rank that ignored SIGTSTP would run on and sooner or later block on a full pipe.
    fn suspend(&mut self, received: ReceivedSignal) {
        self.send(ReceivedSignal { signal: Signal::SIGSTOP, ..received });
        self.keyboard.iter().for_each(Keyboard::restore_settings);
        signals::stop_by(received.signal);
        self.resume();
        self.signal_all(RankSignal::CONT);
    }

    /// Takes the keyboard again after this process was stopped, also by SIGSTOP: meanwhile, the shell
    /// may have changed the settings of the terminal.
    fn resume(&self) {
        self.keyboard.iter().for_each(Keyboard::set_raw);
        self.job.resize_ptys(window_size());
    }

    /// Reports ranks that were stopped because they used the terminal.
    fn report_stopped(&mut self) {
        while let Some((pid, signal)) = signals::next_stopped_child() {
            self.course.stopped = true;
            if matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU)
                && let Some(rank) = self.job.rank_of_group(pid)
                && self.course.reported.insert(rank)
            {
                print_message(format_args!(
                    "rank {rank} is stopped: it needs the terminal ({signal}), which only the rank with the stdin of \
                     iof has; give rank {rank} a terminal with --pty {rank}"
                ));
            }
        }
    }

    /// Sends a signal to all ranks, also to those of the jobs that tools have started.
    pub(super) fn signal_all(&mut self, signal: RankSignal) {
        self.job.signal(signal);
        self.children.signal(signal);
    }
}
