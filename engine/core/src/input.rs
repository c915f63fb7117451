//! The inputs of the core: what happens to the engine.

use std::time::Instant;

use iof_capture::{Event, RequestId, Signal, StreamAnswer};
use iof_proto::{Failure, Found, FromTool, JobSpec, MpiEvent, Proc, Rank};

use crate::Core;
use crate::clients::client::MessageOrigin;
use crate::disconnect::DisconnectReason;
use crate::effects::{Command, HandleOp};
use crate::ids::{Call, JobId, QueryId, SignalRequest, SpawnId};
use crate::jobs::early_end::OPEN_AFTER_KILL;
use crate::jobs::job::{EndSteps, Receivers};
use crate::jobs::nodes::{NodeId, NodeReport};
use crate::streams::completion::Completion;
use crate::tools::requests::{serve, serve_rank};
use crate::upcall::{TakenCallback, Upcall};

/// One thing that happens to the engine.
#[allow(missing_docs, reason = "the variants describe their fields")]
pub enum Input {
    /// The capture thread reports an event other than the following.
    Captured(Event),
    /// The capture thread has performed a request. The driver keeps the rings of the answers, see
    /// [`RingId`](crate::ids::RingId).
    StreamAnswered { request: RequestId, answers: Vec<StreamAnswer<()>> },
    /// The capture thread has ended. The driver keeps its streams, and performs later requests on
    /// them.
    CaptureEnded,
    /// The host, or a thread that logs, has answered an upcall.
    Answered { call: Call, answer: Result<(), Failure> },
    /// The host takes stdin of `source`, or of all tools, no more (`paused`) or again. `done` is
    /// called then.
    StdinFlow { source: Option<Proc>, paused: bool, done: TakenCallback },
    /// The host has answered a query.
    QueryAnswered { id: QueryId, answer: Result<Vec<Found>, Failure> },
    /// The host has granted a job as it is to be started, or has refused it.
    SpawnAnswered { id: SpawnId, answer: Result<Box<JobSpec>, Failure> },
    /// The host has started a job itself, such as on other nodes.
    SpawnStarted { id: SpawnId, job: JobId },
    /// The signal that a tool has requested was sent to `count` ranks.
    Signalled { request: SignalRequest, count: usize },
    /// The host has signalled the remote ranks of a request. Those that the engine knows follow.
    SignalledElsewhere { request: SignalRequest, signal: Signal, receivers: Receivers },
    /// The edge to another node of a job reports something.
    Node { job: JobId, node: NodeId, report: NodeReport },
    /// A client requests something. [`Peer::next_message`](crate::Peer::next_message) has not
    /// deferred the message of a tool.
    Message { from: MessageOrigin, message: FromTool },
    /// A rank has begun, ended or aborted MPI.
    Mpi { job: JobId, rank: Rank, event: MpiEvent },
    /// Time has passed. [`Core::next_deadline`] may have been reached.
    Time,
}

impl Input {
    /// Returns whether threads that wait for a change of the tables need not look at them. Progress
    /// of bytes is reported too often for that.
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            Input::Captured(
                Event::Freed { .. } | Event::Fed { .. } | Event::Delivered { .. } | Event::Moved { .. }
            ) | Input::StreamAnswered { .. }
                | Input::Signalled { .. }
                | Input::SignalledElsewhere { .. }
                | Input::Message { .. }
                | Input::Time
        )
    }
}

impl Core {
    /// Changes the state as `input` requires. What leaves the core is queued as commands, upcalls
    /// and messages to tools.
    ///
    /// # Errors
    /// The input is a message by which its tool has broken the protocol. The caller
    /// disconnects it.
    pub fn handle(&mut self, input: Input, now: Instant) -> Result<(), DisconnectReason> {
        match input {
            Input::Captured(event) => self.captured(event, now),
            Input::StreamAnswered { request, answers } => self.stream_answered(request, answers, now),
            Input::CaptureEnded => self.capture_ended(now),
            Input::Answered { call: Call::Stdin(push), answer } => {
                self.stdin_answered(push, None, answer.map(|()| Vec::new()));
            }
            Input::Answered { call, answer } => {
                self.owes_no_more(call);
                match call {
                    Call::Pull(call) => self.answered(call, answer),
                    Call::Log(step) => self.log_answered(step, answer),
                    // These have answers of other types, or the input above.
                    Call::Approve(_) | Call::Query(_) | Call::Spawn(_) | Call::Stdin(_) => {}
                }
            }
            Input::Node { job, report: NodeReport::Mpi { rank, event }, .. } => {
                self.mpi_event(&job, rank, event, now);
            }
            Input::StdinFlow { source, paused, done } => {
                self.set_stdin_flow(source, paused);
                self.effects.upcalls.push(Upcall::Taken(done));
            }
            Input::QueryAnswered { id, answer } => {
                self.owes_no_more(Call::Query(id));
                self.query_answered(id, answer);
            }
            Input::Signalled { request, count } => self.signalled(request, count),
            Input::SignalledElsewhere { request, signal, receivers } => {
                self.effects.handles.push(HandleOp::Signal { receivers, signal, requested: Some(request) });
            }
            Input::Node { job, node, report } => self.node_reported(&job, node, report, now),
            Input::Message { from: MessageOrigin::Tool(peer), message } => serve(self, peer, message, now)?,
            Input::Message { from: MessageOrigin::Rank { rank, reply }, message } => {
                serve_rank(self, rank, reply, message, now);
            }
            Input::Mpi { job, rank, event } => self.mpi_event(&job, rank, event, now),
            Input::SpawnAnswered { id, answer } => self.spawn_answered(id, answer),
            Input::SpawnStarted { id, job } => self.started_by_host(id, job),
            Input::Time => self.time_passed(now),
        }
        self.registrations_changed();
        Ok(())
    }

    fn captured(&mut self, event: Event, now: Instant) {
        match event {
            Event::Complete { source, produced, generation, end, .. } => {
                self.stream_completed(source, Completion { produced, generation });
                self.send_last_generation(source);
                self.completed(source, &end);
            }
            Event::Moved { source, generation } => self.stream_moved(source, generation),
            Event::Delivered { source, deliveries, .. } => self.deliveries_taken(source, deliveries),
            Event::Freed { push, position } => self.freed(push, position),
            Event::Fed { push, target, delivered, end } => self.fed(push, target, delivered, end),
            // `Fed` has reported the end of a push for each of its targets. The watchdog's thread
            // handles stalls, see `stalls`. Answers and the end are other inputs.
            Event::PushOver { .. } | Event::Stalled { .. } | Event::Answered { .. } | Event::Ended { .. } => {
            }
            Event::Shut { target } => self.shut(target),
            Event::Exited { process, status, used } => self.exited(process, (status, used), now),
        }
    }

    /// Ends jobs early and completes streams for which it is time. Completes logged streams to
    /// which nothing can be logged any more.
    pub(crate) fn time_passed(&mut self, now: Instant) {
        self.settle_spawned(now);
        if self.published.next_limit().is_some_and(|limit| limit <= now) {
            self.end_lookups(now);
        }
        if let Some(EndSteps { signals, finish, nodes, late }) = self.jobs.end_early(now) {
            late.into_iter().for_each(|run| self.note_awaited(run));
            let send = |(signal, receivers)| HandleOp::Signal { receivers, signal, requested: None };
            self.effects.handles.extend(signals.into_iter().map(send));
            self.effects
                .handles
                .extend(nodes.into_iter().map(|(node, step)| HandleOp::EndNode { node, step }));
            self.graces.begin(now, OPEN_AFTER_KILL, finish);
            self.effects.ended_early = true;
        }
        // A stream that is already complete is left as it is.
        let expired = self.graces.take_expired(now);
        self.effects.commands.extend(expired.into_iter().map(Command::Finish));
        self.close_logs();
    }

    /// Returns when [`Input::Time`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_jobs = self.jobs.next_early_end().into_iter().chain(self.graces.next_end());
        of_jobs.chain(self.next_overdue()).chain(self.published.next_limit()).min()
    }
}
