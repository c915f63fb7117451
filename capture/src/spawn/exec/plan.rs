//! The program that a child executes, and its descriptors.

use std::os::fd::{OwnedFd, RawFd};

use iof_proto::App;
use libc::rlim_t;

use crate::process::guardian::Guardian;
use crate::spawn::environment::Environment;
use crate::spawn::seats::SEATS;

/// The program to execute, its environment and its descriptors.
#[derive(Debug)]
pub(crate) struct ExecPlan<'a> {
    pub app: &'a App,
    /// The whole environment.
    pub env: Environment<'a>,
    /// The files of the child, and the numbers that they get in it. This process has none of them at
    /// one of the numbers 0 to 2, and the child inherits no other descriptor above these that has one
    /// of the numbers.
    pub ends: [Option<(OwnedFd, RawFd)>; SEATS],
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
