//! What a child executes, and with which descriptors.

use std::os::fd::{OwnedFd, RawFd};

use iof_proto::App;
use libc::rlim_t;

use crate::process::guardian::Guardian;
use crate::spawn::environment::Environment;

/// The program to execute, its environment and its descriptors.
#[derive(Debug)]
pub(crate) struct ExecPlan<'a> {
    pub app: &'a App,
    /// The whole environment.
    pub env: Environment<'a>,
    /// Inherited if `None`. Like the other descriptors, it is not one of the numbers 0 to 2.
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// Further files, and the numbers that they get in the child. No other inherited descriptor has
    /// one of these.
    pub passed: [Option<(OwnedFd, RawFd)>; 2],
    pub group: ChildGroup,
    /// The soft and the hard limit on open files; `None` leaves them unchanged.
    pub files: Option<(rlim_t, rlim_t)>,
    /// The guardian to which the child reports itself.
    pub guardian: Option<&'a Guardian>,
    /// The number above all descriptors that the child inherits, if that is known.
    pub above_inheritable: Option<RawFd>,
}

/// The process group and the session of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildGroup {
    /// The group of this process.
    Inherit,
    /// A new group, which the child leads.
    Own,
    /// A new session, which the child leads and whose controlling terminal is the child's stdin.
    Session,
}
