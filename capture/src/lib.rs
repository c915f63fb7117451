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
//! | `spawn`, `process::child`, `spawn::spawn_error` | processes with output pipes; their pidfds; the reasons why one does not start |
//! | `process::guardian` | the process that ends the others when this process is killed (unsafe) |
//! | `process::descendants` | the processes that a process has started in the same process group |
//! | `spawn::exec` | the start of a program in a child that borrows this process's memory (unsafe) |
//! | `spawn::seats`, `spawn::environment` | descriptor numbers that are lent to a child (unsafe); its environment |
//! | `spawn::first_writes` | the order in which pipes of a process that is being started get their first bytes |
//! | `spawn::pty` | pseudo-terminals for processes |
//! | `process::limit` | the limits on open files and memory maps |
//! | `ioctl` | calls of ioctl(2) that have no safe wrapper (unsafe) |
//! | `source` | the state machine of one pipe and its stream, without any I/O |
//! | `source::queue` | the deliveries to a source without a pipe, without any I/O |
//! | `ended_streams` | the streams that a capture thread leaves when it ends |
//! | `thread::fills` | the fills of pushes that the capture thread has not handled yet |
//! | `target::push`, `target`, `thread::targets` | one push; one process's stdin; all of both, without any I/O |
//! | `thread::room_bells` | bells of readers in other processes |
//! | `source::isolated`, `thread::watchdog` | threads for pipes that block; the search for such pipes |
//! | `thread::sources`, `thread::streams` | all sources, notifications and events; access to the streams |
//! | `messages::command`, `messages::request` | commands to the capture thread, and requests about streams and targets, as data |
//! | `thread::driver` | the capture thread: performs the commands, and the requests of sources and targets (unsafe) |
//! | `thread::inbox`, `thread::wake` | the queue of the capture thread; wake-ups, one for many items |
//! | `thread::coalescing`, `thread::mass_start` | the coalescing delay of each turn; delays while many processes are started |
//! | `backend` | the interface to the kernel; `backend::uring`, `backend::epoll`: its implementations (unsafe) |
//! | `start` | the reasons why a capture does not start |
//! | `capture`, `error`, `thread::remote_call` | the handle; the errors of its methods; closures that it runs on the capture thread (unsafe) |
//! | `thread::capture_thread` | the capture thread's signals and the choice of its backend |
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
//! let stdout = rank.outputs.into_iter().next().unwrap();
//! let source = NewSource { id: SourceId(1), pipe: stdout, stream, first: None };
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

/// Reports that the capture thread lacks what its tables promise, which is a defect of this crate. Panics with debug
/// assertions, so that tests and the simulator find it. A release goes on without: it returns or continues.
macro_rules! absent {
    ($what:literal, $leave:expr) => {{
        debug_assert!(false, concat!("the capture thread has lost a ", $what));
        $leave
    }};
}

mod backend;
mod capture;
mod clock;
mod error;
mod ids;
mod ioctl;
mod messages;
mod process;
mod slots;
mod source;
mod spawn;
mod start;
mod target;
#[cfg(feature = "test-utils")]
pub mod test_utils;
mod thread;

pub use backend::{BackendKind, READ_MAX};
pub use capture::Capture;
pub use error::{IdInUse, Refused, SendError, Stopped};
pub use iof_proto::UsedResources;
pub use iof_proto::{ProcessGroup, Pty, Stdin, WindowSize};
pub use messages::command::{Command, CommandMemory, NewProcess, NewSource};
pub use messages::event::{End, Event, PipeId, ProcessId, PushEnd, PushId, RequestId, SourceId, TargetId};
pub use messages::request::{
    Counted, Gating, Joined, SlowTarget, SlowTargets, StreamAnswer, StreamRequest, StreamStep,
};
pub use process::child::{Child, Signaller};
pub use process::descendants::MAX_SIGNALLED_DESCENDANTS;
pub use process::guardian::{Guardian, guard};
pub use process::limit::{TooFewFiles, TooFewMaps, check_files, check_maps, raise_file_limit};
pub use process::signal::{Signal, SignalError};
pub use process::wait::{reap, wait_for_child};
pub use source::queue::SourceBytes;
pub use source::source_table::EndedStreams;
pub use spawn::first_writes::FirstWrites;
pub use spawn::process_spec::ProcessSpec;
pub use spawn::processors::Processors;
pub use spawn::program::{check, find_program, interpreter_words};
pub use spawn::pty::{InputKeys, PtyMaster};
pub use spawn::spawn_error::SpawnError;
pub use spawn::{PassedFile, Spawned, Spawner, reserve_channel_fds, spawn, spawn_helper};
pub use start::{Cause, StartError};
pub use thread::driver::is_hung_up;
pub use thread::mass_start::MassStart;
pub use thread::room_bells::RoomBell;
pub use thread::streams::Streams;
pub use thread::wake::PendingWake;
pub use thread::watchdog::MAX_STUCK_PROBES;
