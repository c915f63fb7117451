//! Starts ranks, drains their pipes into rings, fills their stdin from inlets and reports their
//! exits.
//!
//! [`spawn`] starts a process with a pipe on each output channel. A [`Capture`] owns one thread,
//! which reads any number of pipes, each directly into its [`Stream`](iof_shm_ring::Stream), and
//! watches any number of processes.
//!
//! For every source that is added:
//! * The kernel copies the bytes into the stream, once and in order. Bytes that the stream does not
//!   store are counted as dropped, according to the stream's policy.
//! * One [`Event::Complete`] is reported, after the last byte.
//! * End of file and exit are separate events, because a grandchild may keep a pipe open long after
//!   the exit.
//!
//! This crate installs no signal handlers, prints nothing and never exits the process.
//!
//! | module | concept |
//! |---|---|
//! | `spawn`, `child`, `spawn_error` | processes with output pipes; their pidfds; the reasons why one does not start |
//! | `guardian` | the process that ends the others when this process is killed (unsafe) |
//! | `descendants` | the processes that a process has started in the same process group |
//! | `exec` | the start of a program in a child that borrows this process's memory (unsafe) |
//! | `seats`, `environment` | descriptor numbers that are lent to a child (unsafe); its environment |
//! | `first_writes` | the order in which pipes of a process that is being started get their first bytes |
//! | `pty` | pseudo-terminals for processes |
//! | `limit` | the limits on open files and memory maps |
//! | `ioctl` | calls of ioctl(2) that have no safe wrapper (unsafe) |
//! | `source` | the state machine of one pipe and its stream, without any I/O |
//! | `queue` | the deliveries to a source without a pipe, without any I/O |
//! | `ended_streams` | the streams that a capture thread leaves when it ends |
//! | `fills` | the fills of pushes that the capture thread has not handled yet |
//! | `push`, `target`, `targets` | one push; one process's stdin; all of both, without any I/O |
//! | `room_bells` | bells of readers in other processes |
//! | `isolated`, `watchdog` | threads for pipes that block; the search for such pipes |
//! | `sources`, `streams` | all sources, notifications and events; access to the streams |
//! | `command`, `request` | commands to the capture thread, and requests about streams and targets, as data |
//! | `driver` | the capture thread: performs the commands, and the requests of sources and targets (unsafe) |
//! | `inbox`, `wake` | the queue of the capture thread; wake-ups, one for many items |
//! | `coalescing`, `mass_start` | the coalescing delay of each turn; delays while many processes are started |
//! | `backend` | the interface to the kernel; `backend::uring`, `backend::epoll`: its implementations (unsafe) |
//! | `start` | the reasons why a capture does not start |
//! | `capture`, `error`, `remote_call` | the handle; the errors of its methods; closures that it runs on the capture thread (unsafe) |
//! | `capture_thread` | the capture thread's signals and the choice of its backend |
//! | `test_utils` | the capture thread's state machines on a simulated kernel (feature `test-utils`) |
//!
//! # Example
//! ```
//! use iof_capture::{Capture, Command, Event, NewProcess, NewSource};
//! use iof_capture::{ProcessId, ProcessSpec, SourceId, Stdin, spawn};
//! use iof_shm_ring::{Policy, Stream, StreamConfig};
//!
//! let (sender, events) = std::sync::mpsc::channel();
//! let capture = Capture::start(move |event| drop(sender.send(event)))?;
//! let rank = spawn(ProcessSpec { stdin: Stdin::Null, ..ProcessSpec::new("/bin/echo", ["hello"]) })?;
//! let stream = Stream::create(StreamConfig { capacity: 65536, policy: Policy::DropNewest }, "test")?;
//! let source = NewSource { id: SourceId(1), pipe: rank.stdout, stream, first: None };
//! let process = Some((ProcessId(1), rank.child));
//! capture.send([Command::Add(NewProcess { process, sources: vec![source], first_writes: None })])?;
//! for event in events.iter().take(2) {
//!     match event {
//!         Event::Complete { produced, .. } => assert_eq!(produced, 6),
//!         Event::Exited { status, .. } => assert!(status?.success()),
//!         other => unreachable!("unexpected event: {other:?}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backend;
mod capture;
mod capture_thread;
mod child;
mod clock;
mod coalescing;
mod command;
mod descendants;
mod driver;
mod environment;
mod error;
mod event;
mod exec;
mod fills;
mod first_writes;
mod guardian;
mod ids;
mod inbox;
mod ioctl;
mod isolated;
mod limit;
mod mass_start;
mod pidfd;
mod process_spec;
mod processors;
mod program;
mod pty;
mod push;
mod queue;
mod remote_call;
mod request;
mod room_bells;
mod seats;
mod signal;
mod slots;
mod source;
mod source_table;
mod sources;
mod spawn;
mod spawn_error;
mod start;
mod streams;
mod target;
mod targets;
#[cfg(feature = "test-utils")]
pub mod test_utils;
mod wait;
mod wake;
mod watchdog;

pub use backend::{BackendKind, READ_MAX};
pub use capture::Capture;
pub use child::{Child, Signaller};
pub use command::{Command, CommandMemory, NewProcess, NewSource};
pub use descendants::MAX_SIGNALLED_DESCENDANTS;
pub use driver::is_hung_up;
pub use error::{IdInUse, Refused, SendError, Stopped};
pub use event::{End, Event, PipeId, ProcessId, PushEnd, PushId, RequestId, SourceId, TargetId};
pub use first_writes::FirstWrites;
pub use guardian::{Guardian, guard};
pub use iof_proto::{ProcessGroup, Pty, Stdin, WindowSize};
pub use limit::{TooFewFiles, TooFewMaps, check_files, check_maps, raise_file_limit};
pub use mass_start::MassStart;
pub use process_spec::ProcessSpec;
pub use processors::Processors;
pub use program::{check, find_program, interpreter_words};
pub use pty::{InputKeys, PtyMaster};
pub use queue::SourceBytes;
pub use request::{
    Counted, Gating, Joined, SlowTarget, SlowTargets, StreamAnswer, StreamRequest, StreamStep,
};
pub use room_bells::RoomBell;
pub use signal::{Signal, SignalError};
pub use source_table::EndedStreams;
pub use spawn::{PassedFile, STDDIAG_FD, Spawned, Spawner, reserve_stddiag_fd, spawn, spawn_helper};
pub use spawn_error::SpawnError;
pub use start::{Cause, StartError};
pub use streams::Streams;
pub use wait::{reap, wait_for_child};
pub use wake::PendingWake;
pub use watchdog::MAX_STUCK_PROBES;
