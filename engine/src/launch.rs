//! Starting a job: what is checked beforehand, and the ranks' processes.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use iof_capture::{
    ProcessGroup, ProcessId, ProcessSpec, SpawnError, Spawned, Stdin, check, check_files, check_maps, spawn,
};
use iof_proto::rendezvous::SERVER_VARIABLE;
use iof_proto::{Nspace, Rank, StdinUnavailable};
use nix::sys::signal::Signal;
use nix::unistd::tcgetpgrp;

use crate::config::{App, JobSpec};
use crate::engine::Engine;
use crate::error::{LaunchError, MAX_RANKS};
use crate::job::{Job, Launching};
use crate::register::{FILES_PER_RANK, MAPS_PER_RANK, RankStdin, RunningRank, TRANSIENT_FDS};

/// Ranks of a job that failed to start have no entry in the tables.
const UNNAMED: ProcessId = ProcessId(u64::MAX);

/// A rank to be started.
struct Place<'a> {
    rank: Rank,
    appnum: usize,
    app: &'a App,
}

impl Place<'_> {
    fn launching(&self) -> Launching {
        Launching { executable: self.app.program.to_string_lossy().into_owned(), pid: 0 }
    }

    fn failed(&self, source: SpawnError) -> LaunchError {
        LaunchError::Spawn { rank: self.rank, app: self.appnum, source }
    }
}

/// The ranks of a job: those of the first app, then those of the next.
fn places(spec: &JobSpec) -> impl Iterator<Item = Place<'_>> {
    let apps = spec.apps.iter().enumerate();
    let of_apps = apps.flat_map(|(appnum, app)| (0..app.nprocs).map(move |_| (appnum, app)));
    (0..).map(Rank).zip(of_apps).map(|(rank, (appnum, app))| Place { rank, appnum, app })
}

impl Engine {
    /// Starts the ranks of a job. Whoever registered for it before has its first byte.
    ///
    /// # Errors
    /// [`LaunchError`]. Names, numbers, directories and programs are checked before the first rank
    /// is started; of what fails later, the ranks that were started already are killed.
    pub fn spawn(&self, spec: &JobSpec) -> Result<Job, LaunchError> {
        check_spec(spec, self.server())?;
        let launching = places(spec).map(|place| (place.rank, place.launching())).collect();
        let job = self
            .begin(&spec.nspace, spec.grace, &spec.directives, spec.elsewhere, launching)
            .ok_or(LaunchError::NameTaken(spec.nspace.clone()))?;
        let started = self.spawn_ranks(spec);
        self.all_registered(&job);
        started.map(|()| job)
    }

    fn spawn_ranks(&self, spec: &JobSpec) -> Result<(), LaunchError> {
        // All processes before all rings: each child starts with a copy of the table of descriptors, which
        // is short then.
        let mut spawned = Vec::new();
        let mut signallers = Vec::new();
        let mut started = Ok(());
        for place in places(spec) {
            match spawn(process_spec(spec, &place, self.server())) {
                Ok(process) => {
                    self.note_pid(&spec.nspace, place.rank, process.child.pid());
                    signallers.push(process.child.signaller());
                    spawned.push((place, process));
                }
                Err(source) => {
                    started = Err(place.failed(source));
                    break;
                }
            }
        }
        let mut spawned = spawned.into_iter();
        let started = started.and_then(|()| {
            spawned.try_for_each(|(place, process)| self.enter_spawned(spec, &place, process))
        });
        if started.is_err() {
            signallers.iter().for_each(|process| drop(process.send(Signal::SIGKILL)));
            for (_, process) in spawned {
                // To be reaped; nobody asks how it ended.
                let _ = self.capture.watch(UNNAMED, process.child);
            }
        }
        started
    }

    /// What ranks are told of where we listen. Said even if it is nothing: otherwise, if we are a
    /// rank ourselves, they would inherit where our own engine does.
    fn server(&self) -> &OsStr {
        self.socket().map(Path::as_os_str).unwrap_or_default()
    }

    /// A rank that is being started is a process now.
    fn note_pid(&self, nspace: &Nspace, rank: Rank, pid: u32) {
        let mut state = self.tables.lock();
        if let Some(job) = state.jobs.get_mut(nspace)
            && let Some(launching) = job.launching.get_mut(&rank)
        {
            launching.pid = pid;
        }
    }

    fn enter_spawned(&self, spec: &JobSpec, place: &Place<'_>, process: Spawned) -> Result<(), LaunchError> {
        let rank = place.rank;
        let streams = self
            .streams(&spec.nspace, rank, &spec.directives)
            .map_err(|source| LaunchError::Rings { rank, source })?;
        let Spawned { child, stdin, stdout, stderr, stddiag, pty } = process;
        let stdin = match (stdin, spec.stdin_of(rank)) {
            (Some(pipe), _) => RankStdin::Open(pipe),
            (None, Stdin::Inherit) => RankStdin::Not(StdinUnavailable::Inherited),
            (None, _) => RankStdin::Not(StdinUnavailable::NotOpen),
        };
        let entry = RunningRank {
            rank,
            child: Some(child),
            stdin,
            own_stdin: spec.own_stdin.contains(&rank),
            pipes: [stdout, stderr, stddiag],
            pty,
        };
        Ok(self.register_rank(&spec.nspace, entry, streams)?)
    }
}

/// Looks for all that is known to be wrong before anything runs.
fn check_spec(spec: &JobSpec, server: &OsStr) -> Result<(), LaunchError> {
    let ranks = spec.nprocs();
    if ranks == 0 || ranks > u64::from(MAX_RANKS) {
        return Err(LaunchError::Ranks { asked: ranks });
    }
    if let Some(app) = spec.apps.iter().position(|app| app.nprocs == 0) {
        return Err(LaunchError::EmptyApp { app });
    }
    let named = spec.ptys.keys().filter(|rank| **rank != Rank::WILDCARD);
    if let Some(&rank) = named.max()
        && u64::from(rank.0) >= ranks
    {
        return Err(LaunchError::NoSuchRank { rank, ranks });
    }
    check_stdin(spec, ranks)?;
    let ptys = if spec.ptys.contains_key(&Rank::WILDCARD) { ranks } else { spec.ptys.len() as u64 };
    let open = places(spec).filter(|place| spec.stdin_of(place.rank) == Stdin::Pipe).count() as u64;
    let needed = ranks.saturating_mul(FILES_PER_RANK).saturating_add(ptys).saturating_add(open);
    let needed = needed.saturating_add(TRANSIENT_FDS);
    check_files(needed).map_err(|files| LaunchError::Files { ranks, files })?;
    check_maps(ranks.saturating_mul(MAPS_PER_RANK)).map_err(|maps| LaunchError::Maps { ranks, maps })?;
    let mut first = 0u32;
    for (appnum, app) in spec.apps.iter().enumerate() {
        // What an app's first rank can run, all its ranks can.
        let place = Place { rank: Rank(first), appnum, app };
        check(&process_spec(spec, &place, server)).map_err(|source| place.failed(source))?;
        first = first.saturating_add(app.nprocs);
    }
    let mut files = BTreeSet::new();
    for place in places(spec) {
        // But for the file that is its stdin.
        if let Stdin::File(path) = spec.stdin_of(place.rank)
            && files.insert(path)
        {
            check(&process_spec(spec, &place, server)).map_err(|source| place.failed(source))?;
        }
    }
    Ok(())
}

/// Looks for ranks that can't have the stdin that they are to have.
fn check_stdin(spec: &JobSpec, ranks: u64) -> Result<(), LaunchError> {
    let named = spec.stdin.keys().filter(|rank| **rank != Rank::WILDCARD);
    if let Some(&rank) = named.max()
        && u64::from(rank.0) >= ranks
    {
        return Err(LaunchError::NoStdin { rank, ranks });
    }
    let mut sharers = 0usize;
    for Place { rank, .. } in places(spec) {
        match spec.stdin_of(rank) {
            Stdin::Inherit => sharers = sharers.saturating_add(1),
            Stdin::Pipe | Stdin::File(_) if spec.pty(rank).is_some() => {
                return Err(LaunchError::StdinOfPty { rank });
            }
            // One that can't be looked at is refused when it is opened.
            Stdin::File(path) if path.metadata().is_ok_and(|about| about.file_type().is_fifo()) => {
                return Err(LaunchError::StdinFifo { rank, path });
            }
            Stdin::Null | Stdin::Pipe | Stdin::File(_) => {}
        }
    }
    if sharers > 1 { Err(LaunchError::SharedStdin { sharers }) } else { Ok(()) }
}

/// The process group that a rank gets which has the embedder's stdin.
fn group_with_stdin(asked: ProcessGroup) -> ProcessGroup {
    // Answers for the caller's controlling terminal only: no other does job control.
    if tcgetpgrp(io::stdin()).is_ok() { ProcessGroup::Inherit } else { asked }
}

fn process_spec(spec: &JobSpec, place: &Place<'_>, server: &OsStr) -> ProcessSpec {
    let var = |name: &str, value: String| (OsString::from(name), OsString::from(value));
    let Place { rank, appnum, app } = place;
    let mut env = app.env.clone();
    // Ours come last, so that they count.
    env.extend([
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
    ProcessSpec {
        program: app.program.clone(),
        args: app.args.clone(),
        env,
        cwd: app.cwd.clone(),
        stdin,
        group,
        pty: spec.pty(*rank),
    }
}
