//! The processes that the capture thread watches, and their exits.

use std::os::fd::AsFd;

use super::Driver;
use crate::backend::{Backend, Pause, Token};
use crate::messages::event::{Event, ProcessId, SourceId};
use crate::process::child::Child;

/// A process whose exit is to be reported.
pub(super) struct WatchedProcess {
    pub id: ProcessId,
    pub child: Child,
    /// The terminal of the session that the process leads.
    pub terminal: Option<SourceId>,
}

impl<B: Backend> Driver<B> {
    /// Watches a process for its exit.
    pub(super) fn watch(&mut self, process: WatchedProcess) {
        let index = self.processes.insert(process);
        let Some(process) = self.processes.get(index) else { absent!("process", return) };
        // SAFETY: a child's pidfd is closed when the child is dropped. Only `remove_process` drops a
        // child, after it has deregistered it. All other children are dropped after the backend.
        unsafe { self.backend.register(Token::Process(index), process.child.as_fd()) };
        self.backend.poll(Token::Process(index), process.child.as_fd());
    }

    /// Reports the exit of a process whose pidfd was answered.
    pub(super) fn check_exit(&mut self, index: usize) {
        let Some(process) = self.processes.get(index) else { absent!("process", return) };
        match process.child.try_wait().transpose() {
            Some(ended) => {
                // The session of an ended leader loses its terminal, see exit(3p).
                let terminal = process.terminal.and_then(|id| self.sources.table.find(id));
                if let Some(source) = terminal.and_then(|index| self.sources.table.source_mut(index)) {
                    source.set_reopenable(false);
                }
                let (status, used) = match ended {
                    Ok((status, used)) => (Ok(status), Some(used)),
                    Err(error) => (Err(error), None),
                };
                self.sources.report(Event::Exited { process: process.id, status, used });
                self.remove_process(index);
            }
            None if self.stopping => self.remove_process(index),
            // The process has ended, but a debugger that traces it must release it first, see
            // ptrace(2). The kernel does not report when it does.
            None => self.backend.pause(Token::Process(index), Pause::Long),
        }
    }

    /// Drops a process that has no request in flight.
    fn remove_process(&mut self, index: usize) {
        self.backend.deregister(Token::Process(index));
        self.processes.remove(index);
    }
}
