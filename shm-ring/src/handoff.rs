//! The hand-off of a reader to another process, over a connected Unix stream socket.
//!
//! The owner of a stream calls [`send`], and the other process calls [`receive`]. The first adds a
//! reader to the stream and sends everything that the second needs: the ring, a reader page, the
//! doorbell, the bell by which the reader reports room, and the reader's position. The connection
//! remains in use: the reader [requests](ReceivedReader::follow) the next generation over it, the
//! owner [answers](SentReader::serve), and each side learns from it that the other one has ended.
//!
//! The message is checked as input from outside: its length is fixed, its version and the number of
//! its descriptors must match, and the files must be sealed. On an error, all received descriptors
//! are closed.
//!
//! `examples/two_processes.rs` contains both sides.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};

use crate::attach::Start;
use crate::doorbell::{Bell, Ringer, doorbell};
use crate::error::{ReceiveError, SendError, ServeError};
use crate::notify;
use crate::reader::Reader;
use crate::reader_id::ReaderId;
use crate::reader_page::ReaderPage;
use crate::stream::Stream;

mod message;

use message::{Incoming, Kind, Message, READER_FDS};

/// The request for the next generation: the only message from a reader to the owner.
const FOLLOW: u8 = 1;

/// The interval at which [`SentReader::push_all`] tries again without a report of this reader:
/// another reader may have made room, or the kernel may have memory again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The effect of a handed-off reader on the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// The reader may hold the source back while the policy is
    /// [`Policy::Block`](crate::Policy::Block). Grant this only to a reader that must never lose a
    /// byte.
    Block,
    /// The writer overwrites nothing that the reader has not consumed, unless the policy is
    /// [`Policy::DropOldest`](crate::Policy::DropOldest). When the reader is in the way, the stream
    /// continues in a new generation.
    Gate,
    /// The reader pins only what it borrows, whatever the policy, see
    /// [`Stream::attach_non_gating`].
    None,
}

/// Adds a reader to `stream` and sends it over `socket` to the process that calls [`receive`].
///
/// Blocks while the socket's buffer is full, unless the socket is in non-blocking mode.
///
/// # Errors
/// [`SendError`] if the kernel has no memory or descriptor for the reader, or if the message cannot
/// be sent. The stream then has no new reader.
pub fn send(
    socket: &UnixStream,
    stream: &mut Stream,
    start: Start,
    gating: Gating,
) -> Result<SentReader, SendError> {
    let failed = |step| move |source| SendError::Descriptor { step, source };
    let (ringer, bell) = doorbell().map_err(failed("creating the doorbell"))?;
    let (room_ringer, room) = doorbell().map_err(failed("creating the room bell"))?;
    let connection = socket.try_clone().map_err(failed("duplicating the socket"))?;
    let page = Arc::new(ReaderPage::create(ringer)?);
    let id = page.take_slot()?;
    if gating != Gating::Block {
        stream.grow();
    }
    stream.allocate()?;
    let given = match gating {
        Gating::Block => stream.attach(&page, id, start, true),
        Gating::Gate => stream.attach(&page, id, start, false),
        Gating::None => stream.attach_non_gating(&page, id, start),
    }?;
    let sent = match (given.ring.as_fd(), page.as_fd()) {
        (Some(ring), Some(page)) => {
            let fds: [_; READER_FDS] = [ring, page, bell.as_fd(), room_ringer.as_fd()];
            let message = Message::new(&given, start);
            message
                .send(Kind::Reader, socket, &fds, MsgFlags::empty())
                .map_err(|source| SendError::Socket { source })
        }
        _ => Err(SendError::OnHeap),
    };
    sent.inspect_err(|_| {
        stream.detach(&page, id);
    })?;
    Ok(SentReader { page, id, room: Some(room), socket: connection })
}

/// The owner's side of a reader in another process. Dropping it does not detach the reader:
/// [`SentReader::serve`] does when the reader has closed the connection.
#[derive(Debug)]
pub struct SentReader {
    page: Arc<ReaderPage>,
    id: ReaderId,
    /// Rings when the reader has made room for which the writer waits. `None` after the reader has
    /// closed it.
    room: Option<Bell>,
    socket: UnixStream,
}

impl SentReader {
    /// Returns the reader's page, which identifies the reader together with
    /// [`id`](SentReader::id), for example for [`Stream::lag`].
    pub fn page(&self) -> &Arc<ReaderPage> {
        &self.page
    }

    /// Returns the reader's id. It does not change.
    pub fn id(&self) -> ReaderId {
        self.id
    }

    /// Returns the descriptors to wait on. When one of them is readable, call
    /// [`serve`](SentReader::serve), which may remove one of them, and then continue a write that
    /// found no room.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.room.iter().map(Bell::as_fd).chain([self.socket.as_fd()])
    }

    /// Blocks until one of [`fds`](SentReader::fds) is readable.
    ///
    /// # Errors
    /// The errors of poll(2).
    pub fn wait(&self) -> io::Result<()> {
        self.wait_until(None)
    }

    fn wait_until(&self, deadline: Option<Instant>) -> io::Result<()> {
        let mut polled: Vec<_> = self.fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        wait(&mut polled, deadline)
    }

    /// Answers the reader's next request, if there is one, without blocking. `stream` is the stream
    /// for which [`send`] was called. Returns `false` if the reader has closed the connection and
    /// is therefore detached.
    ///
    /// Each call takes at most one request, so that a faulty reader that sends requests without end
    /// does not keep the owner here. The connection remains readable while there are more, so wait
    /// for it with [`wait`](SentReader::wait) or another level-triggered poll.
    ///
    /// An owner that has completed the stream continues to call it until it returns `false`.
    /// Otherwise a reader in an older generation misses the bytes of the newest one.
    ///
    /// # Errors
    /// [`ServeError`] if the reader breaks the protocol, or if the next generation cannot be sent.
    /// Drop this value then, which lets the reader end, and detach the reader from the stream when
    /// its process has ended.
    pub fn serve(&mut self, stream: &mut Stream) -> Result<bool, ServeError> {
        // A bell that the reader has closed would stay readable.
        self.room.take_if(|room| !room.silence());
        let mut request = [0];
        match recv(self.socket.as_raw_fd(), &mut request, MsgFlags::MSG_DONTWAIT) {
            Ok(0) | Err(Errno::ECONNRESET) => {
                stream.detach(&self.page, self.id);
                Ok(false)
            }
            Ok(_) if request == [FOLLOW] => self.send_next(stream).map(|()| true),
            Ok(_) => Err(ServeError::Request { found: request[0] }),
            // An interrupted call leaves the connection readable.
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(true),
            Err(errno) => Err(ServeError::Socket { source: errno.into() }),
        }
    }

    /// Writes all `bytes`, which were read at `time`, to `stream`, and notifies its readers. While
    /// the stream has no room, blocks and [serves](SentReader::serve) this reader.
    ///
    /// # Errors
    /// [`ServeError`]; some of the bytes may be written then. [`ServeError::Closed`] if the reader
    /// has closed the connection and is therefore detached, which is noticed only while the stream
    /// has no room.
    pub fn push_all(&mut self, stream: &mut Stream, bytes: &[u8], time: u64) -> Result<(), ServeError> {
        let mut rest = bytes;
        loop {
            rest = rest.get(stream.push(rest, time)..).unwrap_or_default();
            notify([&*stream]);
            if rest.is_empty() {
                return Ok(());
            }
            self.wait_until(Instant::now().checked_add(RETRY_INTERVAL))
                .map_err(|source| ServeError::Socket { source })?;
            if !self.serve(stream)? {
                return Err(ServeError::Closed);
            }
        }
    }

    /// Completes `stream`, and [serves](SentReader::serve) the reader until it has read everything
    /// and closed the connection.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn finish(mut self, stream: &mut Stream) -> Result<(), ServeError> {
        stream.complete();
        notify([&*stream]);
        while self.serve(stream)? {
            self.wait().map_err(|source| ServeError::Socket { source })?;
        }
        Ok(())
    }

    /// Moves the reader to the newest generation and sends it. Ignores the request of a reader that
    /// is there already, which a correct reader does not make.
    fn send_next(&self, stream: &mut Stream) -> Result<(), ServeError> {
        let Some(given) = stream.follow(&self.page, self.id, self.id) else { return Ok(()) };
        let Some(ring) = given.ring.as_fd() else { return Ok(()) };
        Message::new(&given, Start::Oldest)
            .send(Kind::Generation, &self.socket, &[ring], MsgFlags::MSG_DONTWAIT)
            .map_err(|source| ServeError::Socket { source })
    }
}

/// Receives the reader that the process at the other end of `socket` has [sent](send).
///
/// Blocks until it arrives, or for the read timeout of the socket.
///
/// # Errors
/// [`ReceiveError`]; all received descriptors are closed then.
///
/// # Safety
/// The memory that the reader lends is written by the owner, which must be trusted to keep to the
/// protocol ([`Reader::new`]):
/// * The other process sent the message with [`send`], and answers with [`SentReader::serve`] for
///   the same stream. Until this process has closed the connection, it neither detaches the reader
///   nor moves it by other means.
/// * In this process, nothing else reads, writes or shuts down the connection as long as the
///   returned value exists, and the [`Reader`] is not moved out of it.
pub unsafe fn receive(socket: &UnixStream) -> Result<ReceivedReader, ReceiveError> {
    let (message, fds) = Incoming::new().receive(socket, Kind::Reader)?;
    let found = fds.len();
    let [ring, page, bell, room]: [OwnedFd; READER_FDS] =
        fds.try_into().map_err(|_| ReceiveError::Descriptors { found, expected: READER_FDS })?;
    let socket = socket.try_clone().map_err(|source| ReceiveError::Socket { source })?;
    let page = Arc::new(ReaderPage::open(page)?);
    let given = message.attached(ring)?;
    // SAFETY: the other process sent what `Stream::attach` returned there, for this reader alone,
    // and keeps to the protocol, as the caller guarantees.
    let mut reader = unsafe { Reader::new(given, Arc::clone(&page), message.start()) }?;
    reader.set_room_bell(Ringer::of_socket(room));
    Ok(ReceivedReader { reader, page, bell: Bell::from(bell), socket, request: Request::None })
}

/// The request of a received reader for the next generation.
#[derive(Debug)]
enum Request {
    /// No answer is outstanding.
    None,
    /// The request was sent, and this much of the answer has arrived. A second request would move
    /// the reader, as the owner sees it, out of the generation that the answer contains.
    Sent(Incoming),
    /// The answer cannot be used, so the reader cannot continue.
    Failed,
}

/// A reader that another process has sent. Dropping it detaches the reader from its stream once the
/// connection is closed.
#[derive(Debug)]
pub struct ReceivedReader {
    // Dropped before the connection closes: after that, the owner may reuse what the reader pins.
    reader: Reader,
    page: Arc<ReaderPage>,
    bell: Bell,
    socket: UnixStream,
    request: Request,
}

impl ReceivedReader {
    /// Returns the reader.
    pub fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// Blocks until there may be something to read. Call it when [`Reader::peek`] has returned
    /// [`Peek::Empty`](crate::Peek::Empty), and peek again afterwards.
    ///
    /// If the owner has closed the connection, the reader knows it from then on: after the last
    /// byte it returns [`Peek::Gone`](crate::Peek::Gone).
    ///
    /// # Errors
    /// The errors of poll(2).
    pub fn wait(&mut self) -> io::Result<()> {
        let slots = self.reader.id().slots();
        let mut ready = false;
        self.page.take_ready(slots, |_| ready = true);
        if ready || !self.page.arm(slots) {
            return Ok(());
        }
        let mut polled = [
            PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
            // A closed connection is reported without being asked for.
            PollFd::new(self.socket.as_fd(), PollFlags::empty()),
        ];
        let waited = wait(&mut polled, self.reader.deadline());
        let [_, connection] = polled;
        let gone = connection.revents().is_some_and(|events| !events.is_empty());
        self.page.disarm();
        self.bell.silence();
        if gone {
            self.reader.set_writer_gone();
        }
        waited
    }

    /// Requests the next generation and continues in it. Call it when [`Reader::peek`] has returned
    /// [`Peek::Sealed`](crate::Peek::Sealed). Blocks until the owner [serves](SentReader::serve)
    /// the request, or for the read timeout of the socket. Does nothing if the reader has not
    /// reached the end of its generation.
    ///
    /// # Errors
    /// [`ReceiveError`]; the reader stays at the end of its generation.
    /// * [`ReceiveError::Socket`]: the caller may call this again, best when the socket is
    ///   readable. This is the error when the read timeout has passed, or when the answer has not
    ///   arrived and the socket is in non-blocking mode. The next call waits for the same answer
    ///   and does not send a second request.
    /// * [`ReceiveError::Closed`]: from then on, the reader returns
    ///   [`Peek::Gone`](crate::Peek::Gone).
    /// * All other errors are final, and each later call returns [`ReceiveError::Failed`]. Drop
    ///   this value then.
    pub fn follow(&mut self) -> Result<(), ReceiveError> {
        // Once it has the request, the owner may reuse the ring and the slot. Only a reader that
        // has seen the seal borrows nothing and accesses neither. An owner also does not answer the
        // request of a reader in the newest generation.
        if !self.reader.has_seen_seal() {
            return Ok(());
        }
        self.request_next().inspect_err(|error| match error {
            ReceiveError::Socket { .. } => {}
            ReceiveError::Closed => self.reader.set_writer_gone(),
            _ => self.request = Request::Failed,
        })
    }

    fn request_next(&mut self) -> Result<(), ReceiveError> {
        if let Request::None = self.request {
            // A message of one byte is sent or not, but never in part.
            message::send(&self.socket, &[FOLLOW], &[], MsgFlags::empty()).map_err(|source| {
                let closed =
                    matches!(source.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
                if closed { ReceiveError::Closed } else { ReceiveError::Socket { source } }
            })?;
            self.request = Request::Sent(Incoming::new());
        }
        let Request::Sent(answer) = &mut self.request else { return Err(ReceiveError::Failed) };
        let (message, mut fds) = answer.receive(&self.socket, Kind::Generation)?;
        let ring = fds.pop().ok_or(ReceiveError::Descriptors { found: 0, expected: 1 })?;
        let given = message.attached(ring)?;
        // SAFETY: the owner returned this generation for this reader, as the caller of `receive`
        // guarantees. This is the answer to the only request since the reader last moved, so the
        // owner has not moved the reader any further.
        unsafe { self.reader.follow(given) }?;
        self.request = Request::None;
        Ok(())
    }
}

/// Blocks until one of `fds` has an event, or until `deadline`.
fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<()> {
    loop {
        let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis().saturating_add(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        match poll(fds, timeout) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
