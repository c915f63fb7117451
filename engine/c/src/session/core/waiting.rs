//! The wait for the engine's answer about a process, which printers need for its tag or its file.
//! Output and steps for printers wait in order. Callbacks go on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use iof_proto::query::key::PMIX_QUERY_PROC_TABLE;
use iof_proto::{Found, Query};

use crate::session::print::{Held, Printers};

use super::{SessionCore, UnansweredRequest};

/// The longest time for which output waits for an answer. Then it is written without the host and
/// the pid of its process.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(5);

/// The largest number of bytes that wait for an answer.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// The step after the output that waits.
type Then = Box<dyn FnOnce(&mut SessionCore) + Send>;

enum Next {
    Print(Held),
    Then(Then),
}

/// The output that waits after the bytes that the printers hold, and the query for which it waits.
#[derive(Default)]
pub(super) struct WaitingOutput {
    queue: VecDeque<Next>,
    bytes: usize,
    query: Option<PendingQuery>,
    /// The number of queries that are not awaited any more. While there is one, the engine or its
    /// launcher does not answer, so output does not wait.
    late: usize,
}

struct PendingQuery {
    request: u32,
    deadline: Instant,
}

impl WaitingOutput {
    /// Prints a delivery, now or in its turn.
    pub(super) fn print(&mut self, printers: &mut Printers, held: Held) {
        if printers.lacks_process() {
            self.bytes = self.bytes.saturating_add(held.len());
            self.queue.push_back(Next::Print(held));
        } else {
            printers.perform(held);
        }
    }

    /// Returns the time at which output stops waiting.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.query.as_ref().map(|query| query.deadline)
    }

    fn pop(&mut self) -> Option<Next> {
        let next = self.queue.pop_front()?;
        if let Next::Print(held) = &next {
            self.bytes = self.bytes.saturating_sub(held.len());
        }
        Some(next)
    }
}

impl SessionCore {
    /// Calls `then` after the output that waits.
    pub(super) fn in_order(&mut self, then: impl FnOnce(&mut SessionCore) + Send + 'static) {
        if self.printers.lacks_process() {
            self.waiting.queue.push_back(Next::Then(Box::new(then)));
        } else {
            then(self);
        }
    }

    /// Queries the engine if the printers hold bytes, and goes on without an answer after
    /// [`MAX_ANSWER_TIME`].
    pub(super) fn settle(&mut self) {
        while self.printers.lacks_process() {
            let Some(query) = &self.waiting.query else {
                // An engine that has gone knows nothing.
                if self.waiting.late > 0 || !self.ask_for_processes() {
                    self.go_on(Vec::new());
                }
                continue;
            };
            if Instant::now() < query.deadline && self.waiting.bytes <= MAX_WAITING_BYTES {
                break;
            }
            self.waiting.late = self.waiting.late.saturating_add(1);
            self.go_on(Vec::new());
        }
        self.shared.set_waiting(self.waiting.query.is_some());
    }

    /// Prints all output that waits, without the answer.
    pub(super) fn stop_waiting(&mut self) {
        while self.printers.lacks_process() {
            self.go_on(Vec::new());
        }
        self.shared.set_waiting(false);
    }

    fn ask_for_processes(&mut self) -> bool {
        let Ok(request) = self.tool.submit_query(vec![Query::new([PMIX_QUERY_PROC_TABLE])]) else {
            return false;
        };
        self.pending.insert(request, UnansweredRequest::Processes);
        let deadline = Instant::now().checked_add(MAX_ANSWER_TIME);
        self.waiting.query = deadline.map(|deadline| PendingQuery { request, deadline });
        self.waiting.query.is_some()
    }

    /// Takes the answer to a query of [`SessionCore::settle`].
    pub(super) fn learn(&mut self, request: u32, answer: Vec<Found>) {
        if self.waiting.query.as_ref().is_some_and(|query| query.request == request) {
            self.go_on(answer);
        } else {
            self.waiting.late = self.waiting.late.saturating_sub(1);
            self.printers.learn_late(answer);
        }
    }

    /// Prints what the printers hold, with what the answer tells, and what waits after it.
    fn go_on(&mut self, answer: Vec<Found>) {
        self.waiting.query = None;
        self.printers.learn(answer);
        while !self.printers.lacks_process()
            && let Some(next) = self.waiting.pop()
        {
            match next {
                Next::Print(held) => self.printers.perform(held),
                Next::Then(then) => then(self),
            }
        }
    }
}
