//! The commands to the capture thread, as data.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use iof_shm_ring::{Inlet, ReaderPage, Stream};

use crate::messages::event::{Event, ProcessId, PushEnd, PushId, SourceId, TargetId};
use crate::messages::request::StreamRequest;
use crate::process::child::Child;
use crate::source::queue::SourceBytes;
use crate::spawn::first_writes::FirstWrites;

/// A command to the capture thread, see [`Capture::send`](crate::Capture::send). A command about a
/// source, target or push that does not exist has no effect, unless its description says otherwise.
///
/// `P` is a reader page, `S` a stream and `I` an inlet. Code without access to memory can use a
/// number for each page and nothing for the others, see [`Command::with_memory`].
#[derive(Debug)]
pub enum Command<P = Arc<ReaderPage>, S = Box<Stream>, I = Arc<Inlet>> {
    /// Adds sources, and watches the process that writes to them.
    Add(NewProcess),
    /// Adds a source without a pipe: [`Command::Deliver`] adds its bytes, and [`Command::Finish`]
    /// ends it.
    Open {
        /// The source. Its id must be free.
        source: SourceId,
        /// Its stream.
        stream: S,
        /// A request that is performed before the first bytes are delivered.
        first: Option<StreamRequest<P>>,
    },
    /// Delivers bytes to a source that was added with [`Command::Open`]. The stream counts bytes
    /// that were lost before them as dropped.
    ///
    /// Deliveries enter the stream in the order of the commands. While a full stream waits for its
    /// readers, they wait in a queue without a limit. [`Event::Delivered`] reports the deliveries
    /// that have left the queue, so the caller can limit how many bytes wait.
    ///
    /// If the source does not exist, has a pipe or was finished, the bytes are lost and not
    /// counted, and the event follows immediately. Bytes that wait when the source is
    /// [closed](Command::Close) or removed, or when the capture ends, count as dropped. A delivery
    /// that has not reached the capture thread when the capture ends is not reported.
    Deliver {
        /// The source.
        source: SourceId,
        /// The bytes.
        delivery: SourceBytes,
    },
    /// Stops reading a source immediately and ends its stream with the bytes that it has. Meant for
    /// pipes that a grandchild holds open. If the pipe has unread bytes, they are lost with it, and
    /// the stream is broken, as at the end of the capture. A process that writes to the pipe gets
    /// SIGPIPE, see pipe(7). [`Event::Complete`] follows, unless it was reported already or the source
    /// does not exist.
    Close(SourceId),
    /// Reads the bytes that were written to a source up to now, and then closes it. Meant for pipes
    /// that are held open by a process whose further output is not wanted. While a full stream
    /// waits for its readers, the source stays open. For a source without a pipe, this means that
    /// no delivery will follow. [`Event::Complete`] follows, unless it was reported already or the
    /// source does not exist.
    Finish(SourceId),
    /// Ends a source without a pipe as [`Command::Finish`] does, but its stream is broken.
    BreakOff {
        /// The source.
        source: SourceId,
        /// The number of further bytes that the source has produced, at least. They will not
        /// arrive.
        missing: u64,
    },
    /// Drops a source's stream and frees its id. If the source is not complete, closes it first.
    /// Readers keep their mappings.
    Remove(SourceId),
    /// Moves a source's pipe to a separate thread, so that the pipe can no longer block the reading
    /// of other pipes, see [`Event::Stalled`]. The source's bytes are then copied once more. If the
    /// thread is stuck in the kernel when the source is closed or removed, it keeps the pipe open
    /// until the kernel releases it. Nothing waits for that thread. Sources without a pipe and
    /// terminals are not moved.
    Isolate(SourceId),
    /// Adds a target. It stays open, and its reader waits for bytes, until it is
    /// [shut](Command::Shut), a push that closes it is over, or a write finds that it has no
    /// reader. [`Event::Shut`] reports that, and frees the id.
    AddTarget {
        /// The target. Its id must be free.
        target: TargetId,
        /// The write end of a pipe(7) without another writer.
        pipe: OwnedFd,
    },
    /// Begins a push: writes the bytes that are put into the inlet from now on to each target. A
    /// push has its turn at a target after all earlier pushes to that target, so the bytes of
    /// pushes never interleave. The bytes are in memory once, for any number of targets.
    ///
    /// 1. Send this command.
    /// 2. Put bytes into the inlet, never more than there is room, and report their number with
    ///    [`Command::Fill`]. The room is the capacity of the inlet less the bytes filled after the
    ///    position of the last [`Event::Freed`].
    /// 3. Set `last` in the last fill. If all targets of a push have ended, the push is over
    ///    earlier, which [`Event::PushOver`] reports. It also frees the id.
    ///
    /// [`Event::Fed`] follows for each target, with the number of bytes that it took, and
    /// immediately for a target that does not exist, unless the capture ends first, see
    /// [`Event::Ended`].
    BeginPush {
        /// The push. Its id must be free.
        push: PushId,
        /// The memory into which the bytes are put.
        inlet: I,
        /// The targets.
        targets: Vec<TargetId>,
        /// `true` if a target's pipe is closed after the last byte.
        closes: bool,
    },
    /// Reports that more bytes are in a push's inlet. Has no effect on a push that is over.
    Fill {
        /// The push.
        push: PushId,
        /// The number of bytes.
        bytes: u64,
        /// `true` if these were the last.
        last: bool,
    },
    /// Closes the targets of a push that have taken nothing after a position although the push has
    /// its turn there and has more bytes ([`PushEnd::CutOff`]). Targets where the push waits for
    /// another push stay open. [`Streams::lagging`](crate::Streams::lagging) lists the slow
    /// targets.
    CutOff {
        /// The push.
        push: PushId,
        /// The position, in bytes from the beginning of the push.
        position: u64,
    },
    /// Stops writing to a target and closes its pipe. Bytes that are in the pipe can still be read.
    /// [`Event::Shut`] follows, unless it was reported already or the target does not exist.
    Shut(TargetId),
    /// Shuts a target as [`Command::Shut`] does, if no process reads its pipe any more. Otherwise a
    /// target to which nothing is written stays open after its last reader has ended.
    ShutUnread(TargetId),
    /// Performs a request. If it has an id, [`Event::Answered`] follows, unless the capture ends
    /// first, see [`Event::Ended`].
    Request(StreamRequest<P>),
}

/// Sources to add, and the process that writes to them.
#[derive(Debug, Default)]
pub struct NewProcess {
    /// The process and its id. When it ends, or if it has ended already, the capture reaps it (see
    /// waitpid(2)) and reports [`Event::Exited`] with the id, which is only passed back and need
    /// not be unique. `None` if its exit is not to be reported.
    ///
    /// If the first source is the master of a pty, the process must be the leader of the session
    /// whose terminal it is. As long as the leader runs, that source does not end when no process
    /// has the terminal open, because a process of the session may open it again as /dev/tty. While
    /// no process has it open, the capture checks the terminal every 20 ms.
    pub process: Option<(ProcessId, Child)>,
    /// The sources.
    pub sources: Vec<NewSource>,
    /// If given, those of the pipes that have bytes already are read in the order in which they
    /// became readable.
    pub first_writes: Option<FirstWrites>,
}

/// A source to add: a pipe that is read into a stream from now on.
///
/// A writer can switch a pipe to packet mode (O_DIRECT, see pipe(2)). Such a pipe loses nothing
/// uncounted if the stream has a capacity of at least 16 KiB, because a read takes up to a quarter
/// of it, and a packet has at most 4 KiB.
///
/// [`Event::Complete`] follows, unless the capture ends first, see [`Event::Ended`]. The stream
/// stays until [`Command::Remove`].
#[derive(Debug)]
pub struct NewSource {
    /// The source. Its id must be free.
    pub id: SourceId,
    /// The read end of a pipe(7) without another reader. It may be blocking or not; blocking is
    /// cheaper on kernels before Linux 6.3. It is closed after its last byte.
    pub pipe: OwnedFd,
    /// Its stream.
    pub stream: Stream,
    /// A request that is performed before the first byte is read.
    pub first: Option<StreamRequest>,
}

/// The memory that commands name by ids.
pub trait CommandMemory<P> {
    /// Returns a reader page.
    fn page(&self, page: P) -> Option<Arc<ReaderPage>>;

    /// Returns the stream of a source that is to be opened, and forgets it.
    fn take_stream(&mut self, source: SourceId) -> Option<Box<Stream>>;

    /// Returns the inlet of a push.
    fn inlet(&self, push: PushId) -> Option<Arc<Inlet>>;
}

impl<P, S, I> Command<P, S, I> {
    /// Returns the command with the memory that it names. Returns `None` if `memory` lacks some of
    /// it.
    pub fn with_memory(self, memory: &mut impl CommandMemory<P>) -> Option<Command> {
        Some(match self {
            Command::Add(process) => Command::Add(process),
            Command::Open { source, first, .. } => {
                let stream = memory.take_stream(source)?;
                let first = match first {
                    Some(request) => Some(request.with_pages(|page| memory.page(page))?),
                    None => None,
                };
                Command::Open { source, stream, first }
            }
            Command::Deliver { source, delivery } => Command::Deliver { source, delivery },
            Command::Close(source) => Command::Close(source),
            Command::Finish(source) => Command::Finish(source),
            Command::BreakOff { source, missing } => Command::BreakOff { source, missing },
            Command::Remove(source) => Command::Remove(source),
            Command::Isolate(source) => Command::Isolate(source),
            Command::AddTarget { target, pipe } => Command::AddTarget { target, pipe },
            Command::BeginPush { push, targets, closes, .. } => {
                Command::BeginPush { push, inlet: memory.inlet(push)?, targets, closes }
            }
            Command::Fill { push, bytes, last } => Command::Fill { push, bytes, last },
            Command::CutOff { push, position } => Command::CutOff { push, position },
            Command::Shut(target) => Command::Shut(target),
            Command::ShutUnread(target) => Command::ShutUnread(target),
            Command::Request(request) => Command::Request(request.with_pages(|page| memory.page(page))?),
        })
    }
}

impl Command {
    /// Returns the events that stand for the effect of the command if a capture has refused it
    /// because it has ended. The capture has reported the ends of all sources, targets and pushes.
    pub fn refused(self) -> Vec<Event> {
        if let Command::BeginPush { push, targets, .. } = self {
            let end = |target| Event::Fed { push, target, delivered: 0, end: PushEnd::Stopped };
            return targets.into_iter().map(end).collect();
        }
        let answered =
            |request: StreamRequest| Some(Event::Answered { request: request.id?, answers: Vec::new() });
        self.requests().into_iter().filter_map(answered).collect()
    }

    /// Returns the requests that are to be performed, also by a capture that adds no more sources.
    pub(crate) fn requests(self) -> Vec<StreamRequest> {
        match self {
            Command::Request(request) | Command::Open { first: Some(request), .. } => vec![request],
            Command::Add(process) => process.sources.into_iter().filter_map(|source| source.first).collect(),
            _ => Vec::new(),
        }
    }
}
