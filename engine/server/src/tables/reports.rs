//! The queue of reports to the control thread.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use crossbeam::channel::{Receiver, Sender};
use iof_capture::{EndedStreams, Event, PendingWake, RequestId, StreamAnswer};
use iof_core::{Grant, Input, JobId, PeerId};
use iof_pmi::Server;
use iof_proto::{Failure, Rank};
use iof_tool::LocalRings;
use mio::{Registry, Token, Waker};

/// The token of [`Reports`]: another thread of this process has woken the control thread.
pub(crate) const WAKE: Token = Token(0);

/// A message from another thread to the control thread.
pub(crate) enum Report {
    Input(Input),
    /// The capture thread has performed a request.
    StreamAnswered {
        request: RequestId,
        answers: Vec<StreamAnswer>,
    },
    /// The embedder attaches a tool of its own, which receives its rings by `rings`.
    Attached {
        socket: UnixStream,
        rings: LocalRings,
        grant: Grant,
    },
    /// The capture thread has ended and leaves its streams.
    CaptureEnded(EndedStreams),
    /// The engine's end of a rank's PMI socket.
    Pmi {
        job: JobId,
        rank: Rank,
        socket: UnixStream,
        server: Arc<Mutex<Server>>,
    },
    /// All ranks of a job are started.
    PmiStarted(JobId),
    /// The ranks of a job that were started are killed, as others could not be started. Their ends
    /// are not reported.
    PmiEnded(JobId),
    /// The host has approved or refused a tool.
    Approved {
        peer: PeerId,
        answer: Result<Grant, Failure>,
    },
}

impl From<Input> for Report {
    fn from(input: Input) -> Report {
        Report::Input(input)
    }
}

impl From<Event> for Report {
    fn from(event: Event) -> Report {
        match event {
            Event::Ended { streams } => Report::CaptureEnded(streams),
            Event::Answered { request, answers } => Report::StreamAnswered { request, answers },
            event => Report::Input(Input::Captured(event)),
        }
    }
}

/// The sending end of the control thread's queue of reports.
#[derive(Debug)]
pub(crate) struct Reports {
    sender: Sender<Report>,
    waker: Waker,
    wake: PendingWake,
}

impl Reports {
    /// Returns both ends of the queue. Each report wakes the poll of `registry`.
    pub(crate) fn new(registry: &Registry) -> io::Result<(Reports, Receiver<Report>)> {
        let (sender, receiver) = crossbeam::channel::unbounded();
        Ok((Reports { sender, waker: Waker::new(registry, WAKE)?, wake: PendingWake::default() }, receiver))
    }

    /// Queues a report and wakes the control thread.
    pub(crate) fn send(&self, report: impl Into<Report>) {
        if self.queue(report) {
            self.wake();
        }
    }

    /// Queues a report that the control thread need not handle before the next one that is sent.
    /// Returns `false` if the engine is being dropped.
    pub(crate) fn queue(&self, report: impl Into<Report>) -> bool {
        self.sender.send(report.into()).is_ok()
    }

    /// Wakes the control thread, so that it looks at the queue and the tables, unless it was woken
    /// and has not looked since.
    pub(crate) fn wake(&self) {
        if self.wake.mark()
            && let Err(error) = self.waker.wake()
        {
            // The next report tries again.
            self.wake.take();
            tracing::error!(%error, "cannot wake the control thread");
        }
    }

    /// Notes that the control thread is about to look at the queue and the tables.
    pub(crate) fn take_wake(&self) {
        self.wake.take();
    }
}
