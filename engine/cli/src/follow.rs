//! Following a job to its end: what signals, ranks and outputs say, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;
use iof_engine::{Job, JobStatus, Remedy};
use iof_output::PrintReport;
use iof_proto::{Channel, Rank};
use nix::sys::signal::Signal;

use crate::keyboard::{Keyboard, window_size};
use crate::signals::{self, Received};
use crate::{Failure, print_message};

/// How long ranks get to end by themselves once their output has no reader, and the output to end
/// once they were killed.
const GRACE: Duration = Duration::from_secs(2);

/// What happens when the grace is over.
#[derive(Clone, Copy)]
enum Then {
    /// The ranks are killed.
    Kill,
    /// The output is not waited for any longer: the signal is for us.
    Leave(Signal),
}

/// What `iof run` waits for.
pub enum Event {
    Signal(Received),
    /// Every rank has exited.
    Exited(JobStatus),
    /// Every stream is complete, too.
    Over(JobStatus),
    /// A rank keeps us from forwarding the output of all others.
    Stalled {
        rank: Rank,
        channel: Channel,
        remedy: Remedy,
    },
    /// One of our outputs has ended.
    Output(Result<PrintReport, Failure>),
}

/// A job that runs, and what is known of its end.
pub struct Follow {
    job: Job,
    events: Receiver<Event>,
    /// If a rank has it.
    keyboard: Option<Keyboard>,
    status: Option<JobStatus>,
    over: bool,
    /// Outputs that are still written.
    outputs: usize,
    failure: Option<Failure>,
    /// Of the sinks that have ended well.
    forwarded: PrintReport,
    grace: Option<(Instant, Then)>,
    /// The ranks were asked to end, by SIGINT or SIGTERM.
    asked: bool,
    /// Ranks may stand still, where only SIGKILL and SIGCONT reach them.
    stopped: bool,
    /// Ranks of which the user knows that they wait for the terminal.
    told: BTreeSet<Rank>,
}

impl Follow {
    pub fn new(job: Job, events: Receiver<Event>, outputs: usize, keyboard: Option<Keyboard>) -> Follow {
        Follow {
            job,
            events,
            keyboard,
            status: None,
            over: false,
            outputs,
            failure: None,
            forwarded: PrintReport::default(),
            grace: None,
            asked: false,
            stopped: false,
            told: BTreeSet::new(),
        }
    }

    /// Waits for the end of the job and of its output; says how the job ended and what was
    /// forwarded of it. Of an output that could not be written to the end, nothing is known.
    pub fn until_over(mut self) -> (Result<ExitCode, Failure>, PrintReport) {
        while !self.is_over() {
            match self.next() {
                Some(Event::Signal(received)) => self.signal(received),
                Some(Event::Exited(status)) => self.status = Some(status),
                Some(Event::Over(status)) => {
                    self.over = true;
                    report_cut_off(&status);
                }
                Some(Event::Stalled { rank, channel, remedy }) => say_stalled(rank, channel, remedy),
                Some(Event::Output(Ok(report))) => self.written(report),
                Some(Event::Output(Err(failure))) => self.output_failed(failure),
                None => self.grace_is_over(),
            }
        }
        let ended = match (self.failure, self.status) {
            (Some(failure), _) => Err(failure),
            (None, Some(status)) => Ok(ExitCode::from(u8::try_from(status.code()).unwrap_or(u8::MAX))),
            (None, None) => Err(Failure::running("the job's end went unnoticed")),
        };
        (ended, self.forwarded)
    }

    /// Without a reader for the output there is no point in waiting for more of it.
    fn is_over(&self) -> bool {
        let written = self.over && self.outputs == 0;
        self.status.is_some() && (written || self.failure.is_some())
    }

    /// The next event, `None` when the grace is over.
    fn next(&self) -> Option<Event> {
        match self.grace {
            Some((at, _)) => self.events.recv_deadline(at).ok(),
            None => self.events.recv().ok(),
        }
    }

    fn grace_is_over(&mut self) {
        match self.grace.take() {
            Some((_, Then::Kill)) => drop(self.job.signal(Signal::SIGKILL)),
            Some((_, Then::Leave(signal))) => self.failure = Some(Failure::Signal(signal)),
            None => {}
        }
    }

    fn signal(&mut self, received: Received) {
        match received.signal {
            Signal::SIGCHLD => self.look_for_stopped(),
            Signal::SIGTSTP => self.suspend(received),
            Signal::SIGWINCH => drop(self.job.resize(window_size())),
            _ => self.pass_on(received),
        }
    }

    fn pass_on(&mut self, received: Received) {
        let signal = received.signal;
        // Before it is sent: who ends because of it has taken it. (The event of the end may not have come
        // yet.)
        if self.status.is_none() {
            self.status = self.job.try_wait_exit();
        }
        if self.status.is_some() {
            // No rank is left to take it. It is for us, who wait for a grandchild or for our reader.
            self.failure = Some(Failure::Signal(signal));
        }
        if matches!(signal, Signal::SIGINT | Signal::SIGTERM) && mem::replace(&mut self.asked, true) {
            self.job.signal(Signal::SIGKILL);
            self.grace = Some((Instant::now() + GRACE, Then::Leave(signal)));
        } else {
            self.send(received);
            if self.stopped {
                self.job.signal(Signal::SIGCONT);
            }
        }
    }

    /// Sends the ranks what came to us. From the terminal, those in our own process group have it
    /// already.
    fn send(&self, Received { signal, from_terminal }: Received) {
        if from_terminal {
            self.job.signal_groups(signal);
        } else {
            self.job.signal(signal);
        }
    }

    /// Stands still, and all ranks with us, until we are continued. Not by SIGTSTP: who is in a
    /// group of its own might not care, and would be stuck in its pipes sooner or later.
    fn suspend(&self, received: Received) {
        self.send(Received { signal: Signal::SIGSTOP, ..received });
        let stop = || signals::stop_by(received.signal);
        match &self.keyboard {
            Some(keyboard) => keyboard.while_taken_back(stop),
            None => stop(),
        }
        self.job.resize(window_size());
        self.job.signal(Signal::SIGCONT);
    }

    /// Tells the user of ranks that were stopped because they want the terminal.
    fn look_for_stopped(&mut self) {
        while let Some((pid, signal)) = signals::next_stopped_child() {
            self.stopped = true;
            if matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU)
                && let Some(rank) = self.job.rank_of_group(pid)
                && self.told.insert(rank)
            {
                print_message(format_args!(
                    "rank {rank} stands still: it wants the terminal ({signal}), which only the rank with our stdin \
                     has; give it one of its own with --pty {rank}"
                ));
            }
        }
    }

    fn written(&mut self, PrintReport { written, lost, .. }: PrintReport) {
        self.outputs = self.outputs.saturating_sub(1);
        let sum = &mut self.forwarded;
        sum.written = sum.written.saturating_add(written);
        for (channel, lost) in lost {
            let of = sum.lost.entry(channel).or_default();
            *of = of.saturating_add(lost);
        }
    }

    fn output_failed(&mut self, mut failure: Failure) {
        self.outputs = self.outputs.saturating_sub(1);
        if self.failure.is_none() {
            if let Failure::Running(message) = &mut failure {
                message.push_str("; the job was ended because of it");
            }
            self.failure = Some(failure);
            self.job.signal(Signal::SIGTERM);
            self.grace = Some((Instant::now() + GRACE, Then::Kill));
        }
    }
}

/// Says which rank holds all others up, why that may be, and what becomes of it.
fn say_stalled(rank: Rank, channel: Channel, remedy: Remedy) {
    let how = match channel {
        Channel::Stdin => "it reads its stdin into memory".to_owned(),
        _ => format!("it writes to {channel} from memory"),
    };
    let then = match remedy {
        Remedy::Isolated => "from now on it delays only its own".to_owned(),
        Remedy::TooMany { limit } => {
            format!("it may happen again, because {limit} streams are isolated already")
        }
        _ => "it may happen again".to_owned(),
    };
    print_message(format_args!(
        "rank {rank} delays the output of all ranks: {how} that is slow to load, such as a mapped file on a hung file \
         system; {then}"
    ));
}

/// Says which ranks' output is not known to be whole, a line for each.
fn report_cut_off(status: &JobStatus) {
    let mut ranks: BTreeMap<Rank, Vec<String>> = BTreeMap::new();
    for (rank, channel) in &status.cut_off {
        ranks.entry(*rank).or_default().push(channel.to_string());
    }
    for (rank, channels) in ranks {
        print_message(format_args!(
            "rank {rank}: {} cut off after the grace period: a process that outlives the rank holds it",
            channels.join(", ")
        ));
    }
}
