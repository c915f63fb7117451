//! The most common names of launchers and tools: `use iof::prelude::*`.

#[cfg(feature = "engine")]
pub use iof_engine::{
    App, Config, Engine, Exit, Grant, Job, JobSpec, JobStatus, KillOnBadExit, Policy, Signal, Stdin,
};
#[cfg(feature = "output")]
pub use iof_output::{Options, Output, Printer};
pub use iof_proto::rendezvous::{Search, Target};
pub use iof_proto::{Channel, Channels, Failure, Nspace, Proc, Rank, Status};
#[cfg(feature = "tool")]
pub use iof_tool::{Delivery, LineItem, Lines, Pull, Push, Tool};

#[cfg(all(feature = "engine", feature = "output"))]
pub use crate::{Launcher, RunError};
