//! Starts ranks, drains their pipes into rings, fills their stdin from inlets, reports their ends.
//!
//! [`spawn`] starts a process with a pipe on each output channel. A [`Capture`] owns one thread,
//! which reads any number of pipes, each straight into its [`Stream`](iof_shm_ring::Stream), and
//! watches any number of processes.
//!
//! What holds for every source that was added:
//! * its bytes reach the stream in order, with one copy, by the kernel; or the stream counts them
//!   as dropped, as its policy says;
//! * one [`Event::Complete`] comes, after the last byte;
//! * end of file and exit are separate events: a grandchild may keep a pipe open long after the
//!   exit.
//!
//! Nothing here installs signal handlers, prints or exits.
//!
//! | module | concept |
//! |---|---|
//! | `spawn`, `child`, `spawn_error` | processes with output pipes; their pidfds; why one does not start |
//! | `pty` | pseudo-terminals for processes |
//! | `limit` | the limits on open files and memory maps |
//! | `ioctl` | what is asked of descriptors that has no safe wrapper (unsafe) |
//! | `source` | what one pipe needs next, without any I/O |
//! | `queue` | what is delivered to a source without a pipe, without any I/O |
//! | `fills` | what pushes were filled with since the capture thread looked |
//! | `push`, `target`, `targets` | bytes that are pushed; one process's stdin; all of both, without any I/O |
//! | `room_bells` | bells of readers in other processes |
//! | `isolated`, `watchdog` | pipes that block: threads of their own for them; which they are |
//! | `sources` | all sources, what they have to tell, and to whom |
//! | `driver` | the capture thread: does what the sources and targets need (unsafe) |
//! | `backend` | what it asks of the kernel; `backend::uring`, `backend::epoll`: two ways to do it (unsafe) |
//! | `capture`, `remote_call` | the handle; work that it sends to the capture thread (unsafe) |
//!
//! # Example
//! ```
//! use iof_capture::{Capture, Event, ProcessId, ProcessSpec, SourceId, Stdin, spawn};
//! use iof_shm_ring::{Policy, Stream, StreamConfig};
//!
//! let (tell, events) = std::sync::mpsc::channel();
//! let capture = Capture::start(move |event| drop(tell.send(event)))?;
//! let rank = spawn(ProcessSpec { stdin: Stdin::Null, ..ProcessSpec::new("/bin/echo", ["hello"]) })?;
//! let stream = Stream::create(StreamConfig { capacity: 65536, policy: Policy::DropNewest }, "test")?;
//! capture.add(SourceId(1), rank.stdout, stream)?;
//! capture.watch(ProcessId(1), rank.child)?;
//! for event in events.iter().take(2) {
//!     match event {
//!         Event::Complete { produced, .. } => assert_eq!(produced, 6),
//!         Event::Exited { status, .. } => assert!(status?.success()),
//!         other => unreachable!("nothing is fed: {other:?}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backend;
mod capture;
mod child;
mod coalescing;
mod driver;
mod event;
mod exec;
mod fills;
mod ioctl;
mod isolated;
mod limit;
mod pty;
mod push;
mod queue;
mod remote_call;
mod room_bells;
mod slots;
mod source;
mod sources;
mod spawn;
mod spawn_error;
mod start;
mod streams;
mod target;
mod targets;
mod watchdog;

pub use backend::BackendKind;
pub use capture::{AddError, Capture, PushError, Stopped};
pub use child::{Child, Signaller};
pub use event::{End, Event, PipeId, ProcessId, PushEnd, PushId, SourceId, TargetId};
pub use limit::{TooFewFiles, TooFewMaps, check_files, check_maps, raise_file_limit};
pub use pty::{Pty, PtyMaster, WindowSize};
pub use room_bells::RoomBell;
pub use source::READ_MAX;
pub use spawn::{ProcessGroup, ProcessSpec, STDDIAG_FD, Spawned, Stdin, spawn};
pub use spawn_error::{SpawnError, check};
pub use start::{Cause, StartError};
pub use streams::{Streams, Tap};
pub use targets::{SlowTarget, SlowTargets};
pub use watchdog::MAX_STUCK_PROBES;
