//! The end of the capture thread: on request, after a failure of the kernel facility, or after a
//! panic. In all cases, each buffer is kept until the kernel has answered its request.

use std::io;
use std::mem;
use std::time::Duration;

use crossbeam::channel::never;

use super::Driver;
use crate::backend::{Answer, Backend, Token};
use crate::ids::{End, PushEnd};
use crate::messages::command::Command;
use crate::source::source_table::EndedStreams;
use crate::thread::inbox::InboxItem;

impl<B: Backend> Driver<B> {
    /// Starts to end all sources, targets and processes.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        if self.room_bells.is_some() {
            self.backend.cancel(Token::RoomBells);
        }
        if self.checks_growth {
            self.backend.cancel(Token::Growth);
        }
        for index in self.sources.table.indices() {
            self.close(index);
        }
        for index in self.targets.indices() {
            self.close_target(index, PushEnd::Stopped);
        }
        for index in self.processes.indices() {
            self.backend.cancel(Token::Process(index));
        }
    }

    /// Ends everything after the kernel facility has failed, or after a panic.
    pub(super) fn fail(&mut self, error: &io::Error) {
        // Before the queue is closed: a fill that adds to an earlier one sends no command, which
        // could be refused.
        self.inbox.fills().close();
        tracing::error!(%error, backend = %B::KIND, "capture ends after a failure");
        let is_quiet = self.quiesce();
        for index in self.sources.table.indices() {
            let Some(source) = self.sources.table.source_mut(index).filter(|source| !source.has_ended())
            else {
                continue;
            };
            let end = End::Error(clone_error(error));
            if source.in_flight() && !is_quiet {
                // The kernel may still use its memory, which `Drop` keeps. No reader waits for
                // more.
                self.sources.abandon(index, end);
            } else {
                self.end(index, end);
            }
        }
        if !is_quiet {
            return self.sources.flush_notifications();
        }
        self.take_remaining();
        for index in self.targets.indices() {
            self.end_target(index, PushEnd::Error(clone_error(error)));
        }
        self.sources.flush_notifications();
    }

    /// Closes the inbox. Takes the targets, pushes and requests that it still has, so that they are
    /// ended and reported with the others. Sources are not added any more. The requests find all
    /// streams complete, because the deliveries that precede them are discarded.
    fn take_remaining(&mut self) {
        let items = mem::replace(&mut self.inbox_items, never());
        let remaining: Vec<InboxItem> = items.try_iter().collect();
        // Closed before an item is discarded: a thread that waits for its call learns then that the
        // capture has ended, and its next command must be refused.
        drop(items);
        let mut batch = mem::take(&mut self.batch);
        for item in remaining {
            if let InboxItem::Batch(commands) = item {
                batch.extend(commands);
            }
        }
        for command in batch {
            match command {
                Command::AddTarget { target, pipe } => self.add_target(target, pipe),
                Command::BeginPush { push, inlet, targets, closes } => {
                    self.begin_push(push, inlet, closes, &targets);
                }
                command => command.requests().into_iter().for_each(|request| self.perform(request)),
            }
        }
    }

    /// Cancels all requests and collects their answers, so that the bytes that were read and
    /// written are counted. Returns `false` if the kernel does not answer them.
    fn quiesce(&mut self) -> bool {
        for index in self.sources.table.indices() {
            if self.sources.table.source_mut(index).is_some_and(|source| source.in_flight()) {
                self.backend.cancel(Token::Source(index));
            }
        }
        for index in self.targets.indices() {
            if self.targets.get_mut(index).is_some_and(|target| target.in_flight()) {
                self.backend.cancel(Token::Target(index));
            }
        }
        for index in self.processes.indices() {
            self.backend.cancel(Token::Process(index));
        }
        self.backend.cancel(Token::Bell);
        if self.room_bells.is_some() {
            self.backend.cancel(Token::RoomBells);
        }
        if self.checks_growth {
            self.backend.cancel(Token::Growth);
        }
        let mut answers = Vec::new();
        while !self.backend.is_quiet() {
            if self.backend.turn(Duration::ZERO).is_err() {
                return false;
            }
            self.backend.take(&mut answers);
            for answer in answers.drain(..) {
                self.tick();
                self.count(answer);
            }
        }
        true
    }

    /// Counts the bytes of an answer, without a further step, because everything ends.
    fn count(&mut self, (token, result): Answer) {
        match token {
            Token::Source(index) => {
                if let Some(source) = self.sources.mark_ready(index) {
                    source.done(result, self.time);
                }
            }
            Token::Target(index) => self.count_written(index, result),
            Token::Bell | Token::RoomBells | Token::Growth | Token::Process(_) | Token::Cancel => {}
        }
    }
}

impl<B: Backend> Driver<B> {
    /// Drops everything but the streams. The queue is closed then.
    pub(crate) fn into_streams(mut self) -> EndedStreams {
        let in_flight = !self.backend.is_quiet() && !self.quiesce();
        // The backend is dropped before the streams.
        EndedStreams { sources: mem::take(&mut self.sources.table), in_flight }
    }
}

impl<B: Backend> Drop for Driver<B> {
    /// Keeps every buffer until its request is answered. Requests are in flight here only if
    /// `on_event` panicked twice or the kernel failed.
    fn drop(&mut self) {
        if !self.backend.is_quiet() && !self.quiesce() {
            // A leak is better than unmapping memory that the kernel may still write to or read
            // from.
            self.sources.table.leak();
            self.targets.leak();
        }
    }
}

/// Returns an error with the same error number or kind.
fn clone_error(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error)
}
