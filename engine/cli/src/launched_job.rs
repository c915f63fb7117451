//! The ranks of `iof run`: on this node, or on others.

use std::sync::Arc;
use std::time::Duration;

use iof_capture::WindowSize;
use iof_engine::{Job, JobStatus, Signal};
use iof_proto::Rank;
use iof_remote::Remote;

/// A job that was started.
#[derive(Clone)]
pub enum LaunchedJob {
    /// The ranks run on this node.
    Local(Job),
    /// The ranks run on other nodes.
    Remote(Arc<Remote>),
}

impl LaunchedJob {
    /// Sends a signal to all ranks.
    pub fn signal(&self, signal: Signal) {
        match self {
            LaunchedJob::Local(job) => drop(job.signal(signal)),
            LaunchedJob::Remote(remote) => remote.signal(signal),
        }
    }

    /// Sends a signal that the terminal has sent to this process to the ranks that are not in its
    /// process group.
    pub fn signal_groups(&self, signal: Signal) {
        match self {
            LaunchedJob::Local(job) => drop(job.signal_groups(signal)),
            LaunchedJob::Remote(remote) => remote.signal(signal),
        }
    }

    /// Returns the exit status if all ranks have exited.
    pub fn try_wait_exit(&self) -> Option<JobStatus> {
        match self {
            LaunchedJob::Local(job) => job.try_wait_exit(),
            LaunchedJob::Remote(remote) => remote.try_wait_exit(),
        }
    }

    /// Waits until the output of a rank of this node is written.
    pub fn flush_rank(&self, rank: Rank, limit: Duration) {
        if let LaunchedJob::Local(job) = self {
            job.flush_rank(rank, Some(limit));
        }
    }

    /// Changes the size of the ranks' terminals.
    pub fn resize_ptys(&self, size: WindowSize) {
        match self {
            LaunchedJob::Local(job) => drop(job.resize_ptys(size)),
            LaunchedJob::Remote(remote) => remote.resize_ptys(size),
        }
    }

    /// Returns the rank of this node that leads a process group.
    pub fn rank_of_group(&self, group: u32) -> Option<Rank> {
        match self {
            LaunchedJob::Local(job) => job.rank_of_group(group),
            LaunchedJob::Remote(_) => None,
        }
    }
}
