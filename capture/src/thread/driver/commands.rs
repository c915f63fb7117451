//! The execution of the commands to the capture thread, and of what else arrives in its inbox.

use std::collections::HashMap;

use nix::unistd::isatty;

use super::*;
use crate::messages::command::NewProcess;
use crate::messages::request::StreamRequest;
use crate::thread::inbox::InboxItem;

impl<B: Backend> Driver<B> {
    /// Handles what has arrived in the inbox.
    pub(super) fn take_inbox(&mut self) {
        while let Ok(item) = self.inbox_items.try_recv() {
            match item {
                InboxItem::Batch(batch) => self.batch.extend(batch),
                InboxItem::ReadOutcome { index, thread, outcome } => {
                    self.take_outcome(index, &thread, outcome);
                }
                InboxItem::Listen(room_bells) => self.listen(room_bells),
                InboxItem::Call(call) => call.run(&mut self.streams()),
                InboxItem::Stop => return self.stop(),
            }
            while let Some(command) = self.batch.pop_front() {
                self.run_command(command);
            }
        }
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Add(process) => self.add_process(process),
            Command::Open { source, mut stream, first } => {
                prepare(&mut stream, first.as_ref());
                self.sources.table.add(Source::open(source, *stream));
                first.into_iter().for_each(|request| self.perform(request));
            }
            Command::Deliver { source, delivery } => self.deliver(source, delivery),
            Command::Close(source) => self.with_source(source, Driver::close),
            Command::Finish(source) => self.with_source(source, |driver, index| driver.finish(index, None)),
            Command::BreakOff { source, missing } => {
                self.with_source(source, |driver, index| driver.finish(index, Some(missing)));
            }
            Command::Remove(source) => {
                if let Some(index) = self.sources.remove(source) {
                    self.close(index);
                }
            }
            Command::Isolate(source) => self.with_source(source, Driver::isolate),
            Command::AddTarget { target, pipe } => self.add_target(target, pipe),
            Command::BeginPush { push, inlet, targets, closes } => {
                self.begin_push(push, inlet, closes, &targets);
            }
            Command::Fill { push, .. } => self.fill(push, self.inbox.fills().take(push)),
            Command::CutOff { push, position } => self.cut_off(push, position),
            Command::Shut(target) => self.shut(target),
            Command::ShutUnread(target) if self.targets.takes(target) => {}
            Command::ShutUnread(target) => self.shut(target),
            Command::Request(request) => self.perform(request),
        }
    }

    fn with_source(&mut self, source: SourceId, f: impl FnOnce(&mut Self, usize)) {
        if let Some(index) = self.sources.table.find(source) {
            f(self, index);
        }
    }

    fn shut(&mut self, target: TargetId) {
        if let Some(index) = self.targets.find(target) {
            self.close_target(index, PushEnd::Stopped);
        }
    }

    /// Adds a process and its sources. Sources whose pipes have bytes already are added, and so
    /// read, in the order of their first writes.
    fn add_process(&mut self, NewProcess { process, mut sources, first_writes }: NewProcess) {
        let terminal =
            sources.first().filter(|source| process.is_some() && isatty(&source.pipe).unwrap_or(false));
        let terminal = terminal.map(|source| source.id);
        if let Some((id, child)) = process {
            self.watch(WatchedProcess { id, child, terminal });
        }
        if let Some(first_writes) = &first_writes {
            let order = first_writes.order();
            sources.sort_by_key(|source| order.position(source.pipe.as_raw_fd()));
        }
        let mut pipes = HashMap::with_capacity(sources.len());
        for source in sources {
            let (fd, reopenable) = (source.pipe.as_raw_fd(), terminal == Some(source.id));
            pipes.insert(self.add(source, reopenable), fd);
        }
        self.added.extend(first_writes.map(|first_writes| WatchedPipes { pipes, first_writes }));
    }

    /// Performs a request, and reports its answers with the events of this turn.
    pub(super) fn perform(&mut self, StreamRequest { id, steps }: StreamRequest) {
        let answers = self.streams().perform(steps);
        if let Some(request) = id {
            self.sources.report(Event::Answered { request, answers });
        }
    }
}

/// Lets a new stream grow if a step of its first request attaches a reader that needs a ring of the
/// configured size: before any reader is attached, so that none has to follow it to another
/// generation.
pub(super) fn prepare(stream: &mut Stream, first: Option<&StreamRequest>) {
    if first.is_some_and(|first| first.steps.iter().any(|step| step.needs_full_size(stream))) {
        stream.grow();
    }
}
