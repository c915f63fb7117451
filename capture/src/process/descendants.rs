//! The descendants of a process that are in the process group of this process, see
//! proc_tid_children(5).

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::kill;
use nix::unistd::{Pid, getpgrp};

use crate::process::pidfd;
use crate::process::signal::Signal;

/// Most descendants of a process that a signal reaches.
pub const MAX_SIGNALLED_DESCENDANTS: usize = 4096;

/// The descendants that were found so far. They are remembered, because the kernel gives a process
/// another parent when its own has ended.
#[derive(Debug, Default)]
pub(crate) struct Descendants(Mutex<Vec<Descendant>>);

/// A process in a process group. A later process with the same pid has another start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descendant {
    pid: u32,
    group: i32,
    /// In clock ticks since the start of the system.
    started: u64,
}

impl Descendants {
    /// Returns the descendants of the process `root` that are in the process group of this process,
    /// each after its parent: those that live now, and those that were found before and still live.
    /// Children of a descendant in another group are not found. `root_exists` is called after the
    /// children of `root` are read, and returns `false` if `root` may be another process by then.
    pub(crate) fn find(&self, root: u32, root_exists: impl FnOnce() -> bool) -> Vec<Descendant> {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.retain(|process| process.is_left());
        let children = children_of(root);
        if root_exists() {
            add(&mut found, children);
        }
        let mut parents = 0;
        while let Some(parent) = found.get(parents) {
            let children = children_of(parent.pid);
            add(&mut found, children);
            parents += 1;
        }
        found.clone()
    }
}

/// Adds those processes that are in the process group of this process.
fn add(found: &mut Vec<Descendant>, pids: Vec<u32>) {
    let group = getpgrp().as_raw();
    for pid in pids {
        let is_new =
            found.len() < MAX_SIGNALLED_DESCENDANTS && found.iter().all(|process| process.pid != pid);
        let process = is_new.then(|| Descendant::of(pid)).flatten();
        found.extend(process.filter(|process| process.group == group));
    }
}

/// Returns the children of all threads of a process; none if the process has ended, or the kernel
/// does not list them.
fn children_of(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<u32>>()).collect()
}

impl Descendant {
    /// Returns the process that has this pid now, see proc_pid_stat(5).
    fn of(pid: u32) -> Option<Descendant> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program comes first, in parentheses, and can contain anything.
        let stat = String::from_utf8_lossy(&stat);
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let group = fields.nth(2)?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        Some(Descendant { pid, group, started })
    }

    /// Returns whether the process exists and is in the same group.
    fn is_left(self) -> bool {
        Descendant::of(self.pid) == Some(self)
    }

    /// Sends `signal` to the process. Returns whether the process received it.
    pub(crate) fn send(self, signal: Signal) -> bool {
        // A signal through this directory reaches the process that had the pid when it was opened,
        // or none, see pidfd_send_signal(2).
        let Ok(directory) = File::open(format!("/proc/{}", self.pid)) else { return false };
        if !self.is_left() {
            return false;
        }
        match pidfd::send_signal(directory.as_fd(), Some(signal), 0) {
            Err(error) if pidfd::is_refused(&error) => {
                i32::try_from(self.pid).is_ok_and(|pid| kill(Pid::from_raw(pid), signal.to_nix()).is_ok())
            }
            sent => sent.is_ok(),
        }
    }
}
