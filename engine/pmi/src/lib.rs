//! The server side of PMI-1, the protocol by which the processes of an MPI job learn their ranks
//! from a launcher and exchange their addresses.
//!
//! Each rank has a stream socket to the launcher, whose number is in the variable `PMI_FD`. On it
//! the rank sends one request at a time, as a line of `cmd=NAME` and further `KEY=VALUE` words, and
//! waits for the reply, a line of the same form. The protocol is described in Flux's [RFC
//! 13](https://flux-framework.readthedocs.io/projects/flux-rfc/en/latest/spec_13.html).//!
//! This crate does no I/O. A [`Server`] serves all ranks of one job: the launcher passes it what it
//! has read from a rank's socket, writes the replies, and acts on the [`Event`]s. A rank that
//! breaks the protocol gets a [`ProtocolError`], and other ranks are not affected.
//!
//! | module | concept |
//! |---|---|
//! | `lines` | the lines in the bytes that a rank sends |
//! | `request` | the requests, and their parser |
//! | `space` | the key-value space of a job |
//! | `spawn` | requests to spawn jobs |
//! | `server` | the ranks of a job, and the replies to their requests |
//!
//! ```
//! use iof_pmi::{Event, Server};
//! let mut server = Server::new("job1", &[2]);
//! let mut events = Vec::new();
//! server.receive(1, b"cmd=init pmi_version=1 pmi_subversion=1\n", &mut events)?;
//! assert_eq!(events, [Event::Initialized { rank: 1 }]);
//! assert_eq!(server.unsent(1), b"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
//! # Ok::<(), iof_pmi::ProtocolError>(())
//! ```

mod error;
mod lines;
mod request;
mod server;
mod space;
mod spawn;

pub use error::{MAX_LINE, MAX_SPAWN_BYTES, ProtocolError};
pub use request::ServiceAction;
pub use server::{Event, Server, variables};
pub use space::{MAX_KEY, MAX_NEWS, MAX_SPACE_OF_RANK, MAX_VALUE};
pub use spawn::{SpawnApp, SpawnCommand};
