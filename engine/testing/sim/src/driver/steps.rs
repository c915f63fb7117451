//! The facts that a simulator must know of the commands to the capture: which streams there are,
//! their configurations, their readers and their ends.

use std::sync::Arc;

use iof_capture::{Gating, SourceId, StreamRequest, StreamStep};
use iof_core::{Command, Grant, PageId, StreamName};
use iof_proto::Directives;
use iof_shm_ring::{ReaderId, Start, StreamConfig};

use super::{ConnectionId, SentCommand, SimulatedEngine, inspection};

/// The owner of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderOwner {
    /// The engine, which holds a stream that no registration reads.
    BacklogHolder,
    /// The tool of a connection.
    Tool(ConnectionId),
}

/// A step that changes a stream.
#[derive(Clone, Debug)]
pub enum SentStep {
    /// A reader is attached.
    Attach {
        /// The stream.
        source: SourceId,
        /// The owner of the reader.
        owner: ReaderOwner,
        /// The reader.
        reader: ReaderId,
        /// The position of its first byte.
        start: Start,
        /// The degree to which it holds the stream back.
        gating: Gating,
        /// The number of bytes that it reads at a time.
        group: u64,
        /// Set if it is in another process.
        remote: bool,
        /// The registration of the tool, with its options.
        registration: Option<(u32, PullOptions)>,
    },
    /// A reader is detached.
    Detach {
        /// The stream.
        source: SourceId,
        /// The owner of the reader.
        owner: ReaderOwner,
        /// The reader.
        reader: ReaderId,
    },
    /// The configuration is changed.
    Reconfigure {
        /// The stream.
        source: SourceId,
        /// The new configuration.
        config: StreamConfig,
    },
}

/// The options of a registration.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Its directives.
    pub directives: Directives,
    /// The point at which its readers start.
    pub start: Start,
}

impl SimulatedEngine {
    /// Returns the streams in the tables, each with the registrations that read it.
    pub fn streams(&self) -> impl Iterator<Item = (SourceId, impl Iterator<Item = (ConnectionId, u32)>)> {
        inspection::streams(&self.core)
    }

    /// Returns the options of a registration of a tool.
    pub fn pull_options(&self, tool: ConnectionId, handler: u32) -> Option<PullOptions> {
        let (directives, start) = inspection::registered(&self.core, tool, handler)?;
        Some(PullOptions { directives: directives.clone(), start })
    }

    /// Returns the grant of a tool by the host, or by the embedder of an own connection.
    pub fn grant(&self, tool: ConnectionId) -> Grant {
        self.grants.get(&tool).copied().unwrap_or(Grant::Never)
    }

    /// Returns whether a connection is, or was, the embedder's own.
    pub fn is_own(&self, tool: ConnectionId) -> bool {
        self.own.contains(&tool)
    }

    /// Takes and notes the commands that an input has queued, while the tables have what they name.
    pub(super) fn note_commands(&mut self) {
        let commands = self.core.take_commands();
        let noted: Vec<SentCommand> = commands.iter().flat_map(|command| self.describe(command)).collect();
        self.noted.extend(noted);
        self.commands.extend(commands);
        self.pushes.look(&self.core);
    }

    /// Notes the steps of the request with which a stream is added to the capture.
    pub(super) fn note_first(&mut self, first: &StreamRequest<PageId>) {
        let steps = self.describe_steps(first);
        self.noted.extend(steps);
    }

    fn describe(&self, command: &Command) -> Vec<SentCommand> {
        let described = match command {
            Command::Open { source, first, .. } => return self.describe_open(*source, first.as_ref()),
            Command::Request(request) => self.describe_steps(request),
            Command::Deliver { source, delivery } => {
                let (lost, bytes) = (delivery.lost, delivery.bytes.clone());
                Some(SentCommand::Delivered { source: *source, lost, bytes })
            }
            Command::Finish(source) => Some(SentCommand::Finished(*source)),
            Command::Close(source) => Some(SentCommand::Closed(*source)),
            Command::BeginPush { push, targets, closes, .. } => {
                Some(SentCommand::PushBegun { push: *push, targets: targets.clone(), closes: *closes })
            }
            Command::CutOff { push, position } => {
                Some(SentCommand::CutOff { push: *push, position: *position })
            }
            Command::Shut(target) => Some(SentCommand::Shut(*target)),
            _ => None,
        };
        described.into_iter().collect()
    }

    fn describe_open(&self, source: SourceId, first: Option<&StreamRequest<PageId>>) -> Vec<SentCommand> {
        let name = self
            .core
            .streams
            .get(&source)
            .map(|stream| Arc::clone(stream.name()))
            .zip(self.shortages.created().pop_front());
        let opened = name.map(|(name, config)| {
            let StreamName { source: proc, channel, logged, run } = &*name;
            let (proc, channel, logged, run) = (proc.clone(), *channel, *logged, *run);
            SentCommand::Opened { source, proc, channel, logged, run, config }
        });
        opened.into_iter().chain(first.and_then(|first| self.describe_steps(first))).collect()
    }

    fn describe_steps(&self, request: &StreamRequest<PageId>) -> Option<SentCommand> {
        let owner = |page| match page {
            PageId::BacklogHolder => ReaderOwner::BacklogHolder,
            PageId::Tool(tool) => ReaderOwner::Tool(tool),
        };
        let registration = |page, reader| match page {
            PageId::BacklogHolder => None,
            PageId::Tool(tool) => {
                let handler = inspection::handler_of(&self.core, tool, reader)?;
                Some((handler, self.pull_options(tool, handler)?))
            }
        };
        let describe = |step: &StreamStep<PageId>| match *step {
            StreamStep::Attach { source, page, reader, start, gating, group, remote } => {
                let (owner, registration) = (owner(page), registration(page, reader));
                Some(SentStep::Attach { source, owner, reader, start, gating, group, remote, registration })
            }
            StreamStep::Detach { source, page, reader } => {
                Some(SentStep::Detach { source, owner: owner(page), reader })
            }
            StreamStep::Reconfigure { source, config } => Some(SentStep::Reconfigure { source, config }),
            _ => None,
        };
        let steps: Vec<SentStep> = request.steps.iter().filter_map(describe).collect();
        (!steps.is_empty()).then_some(SentCommand::Steps(steps))
    }
}
