//! Which ranks of a job are started, and how the process of each is to be started.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;

use iof_capture::{ProcessGroup, ProcessSpec, SpawnError, Stdin, is_hung_up};
use iof_core::{Launching, StdinAccess};
use iof_proto::rendezvous::SERVER_VARIABLE;
use iof_proto::{App, JobSpec, Rank, StdinUnavailable, TorchMaster};
use iof_shm_ring::Interaction;
use nix::libc;
use nix::sys::stat::fstat;
use nix::unistd::{isatty, tcgetpgrp};

use crate::error::LaunchError;

/// A rank that is to be started.
pub(crate) struct PlannedRank<'a> {
    pub rank: Rank,
    pub appnum: usize,
    app: &'a App,
}

impl PlannedRank<'_> {
    /// Returns what is known of the rank while it is being started.
    pub(crate) fn launching(&self, spec: &JobSpec) -> Launching {
        let executable = self.app.program.to_string_lossy().into_owned();
        Launching { executable, pid: 0, began: None, stdin: self.stdin_access(spec) }
    }

    /// Returns the tools that can push to the stdin of the rank.
    pub(crate) fn stdin_access(&self, spec: &JobSpec) -> StdinAccess {
        match spec.stdin_of(self.rank) {
            Stdin::Pipe if spec.own_stdin.contains(&self.rank) => StdinAccess::Own,
            Stdin::Pipe => StdinAccess::All,
            Stdin::Inherit => StdinAccess::None(StdinUnavailable::Inherited),
            Stdin::Null | Stdin::File(_) => StdinAccess::None(StdinUnavailable::NotOpen),
        }
    }

    /// Returns the error of a job whose rank could not be started.
    pub(crate) fn spawn_failed(&self, source: SpawnError) -> LaunchError {
        LaunchError::Spawn { rank: self.rank, app: self.appnum, source }
    }
}

/// Returns the ranks of a job that this engine starts, in the order of its apps.
pub(crate) fn planned_ranks(spec: &JobSpec) -> impl Iterator<Item = PlannedRank<'_>> {
    let is_local = |rank: &Rank| spec.local.as_ref().is_none_or(|local| local.contains(rank));
    let apps = spec.apps.iter().enumerate();
    let ranked_apps = apps.flat_map(|(appnum, app)| (0..app.nprocs).map(move |_| (appnum, app)));
    let ranks = (0..).map(Rank).zip(ranked_apps).filter(move |(rank, _)| is_local(rank));
    ranks.map(|(rank, (appnum, app))| PlannedRank { rank, appnum, app })
}

/// Returns the process group of the rank that has the embedder's stdin.
fn group_with_stdin(requested: ProcessGroup) -> ProcessGroup {
    // tcgetpgrp(3) succeeds only on the caller's controlling terminal, the only terminal on which
    // job control applies.
    if tcgetpgrp(io::stdin()).is_ok() { ProcessGroup::Inherit } else { requested }
}

/// Returns the first rank of each app.
pub(crate) fn first_ranks(spec: &JobSpec) -> impl Iterator<Item = PlannedRank<'_>> {
    let mut last = None;
    planned_ranks(spec).filter(move |planned| last.replace(planned.appnum) != Some(planned.appnum))
}

/// Returns how the first rank of each app is to be started, without the engine's socket.
pub(crate) fn first_processes(spec: &JobSpec) -> impl Iterator<Item = ProcessSpec> {
    first_ranks(spec).map(|planned| process_spec(spec, &planned, OsStr::new("")))
}

/// Returns how a rank's process is to be started.
pub(crate) fn process_spec(spec: &JobSpec, planned: &PlannedRank<'_>, server: &OsStr) -> ProcessSpec {
    let var = |name: &str, value: String| (OsString::from(name), OsString::from(value));
    let PlannedRank { rank, appnum, app } = planned;
    let mut app = App::clone(app);
    app.env.splice(..0, torch_variables(spec, *rank));
    // The engine's variables come last, so that they override the app's.
    app.env.extend([
        var("IOF_RANK", rank.to_string()),
        var("IOF_NSPACE", spec.nspace.to_string()),
        var("IOF_NPROCS", spec.nprocs().to_string()),
        var("IOF_APPNUM", appnum.to_string()),
        (OsString::from(SERVER_VARIABLE), server.to_owned()),
    ]);
    let stdin = spec.stdin_of(*rank);
    let group = match stdin {
        Stdin::Inherit => group_with_stdin(spec.process_group),
        Stdin::Null | Stdin::Pipe | Stdin::File(_) => spec.process_group,
    };
    ProcessSpec { app, stdin, group, pty: spec.pty(*rank) }
}

/// Returns the variables of a rank with which PyTorch finds the others, if the job has any.
fn torch_variables(spec: &JobSpec, rank: Rank) -> Vec<(OsString, OsString)> {
    let Some(TorchMaster { host, port }) = &spec.torch_master else { return Vec::new() };
    let all = || (u64::from(rank.0), spec.nprocs());
    let on_node = |ranks: &BTreeSet<Rank>| (ranks.range(..rank).count() as u64, ranks.len() as u64);
    let (local, count) = spec.local.as_ref().map_or_else(all, on_node);
    let variables = [
        ("RANK", u64::from(rank.0)),
        ("WORLD_SIZE", spec.nprocs()),
        ("LOCAL_RANK", local),
        ("LOCAL_WORLD_SIZE", count),
        ("MASTER_PORT", u64::from(*port)),
    ];
    let numbers = variables.map(|(name, value)| (name.into(), value.to_string().into()));
    numbers.into_iter().chain([("MASTER_ADDR".into(), host.into())]).collect()
}

/// Returns who writes to the stdin of this process, for [`JobSpec::interaction`].
pub fn own_interaction() -> Interaction {
    let stdin = io::stdin();
    let kind = fstat(&stdin).map_or(0, |found| found.st_mode & libc::S_IFMT);
    match kind {
        _ if isatty(&stdin).unwrap_or(false) => Interaction::Typed,
        libc::S_IFIFO | libc::S_IFSOCK if is_hung_up(stdin.as_fd()) => Interaction::None,
        libc::S_IFIFO | libc::S_IFSOCK => Interaction::Piped,
        _ => Interaction::None,
    }
}
