//! Starting a job: what is checked beforehand, the ranks' processes, then their rings.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use iof_capture::{
    AddError, ProcessGroup, ProcessId, ProcessSpec, SourceId, SpawnError, Spawned, Stdin, check, check_files,
    spawn,
};
use iof_proto::{Channel, Nspace, Proc, Rank};
use iof_shm_ring::{Stream, StreamConfig};
use nix::sys::signal::Signal;
use nix::unistd::tcgetpgrp;

use crate::config::{App, JobSpec};
use crate::engine::Engine;
use crate::error::{LaunchError, MAX_RANKS};
use crate::job::{CHANNELS, Job, JobState, RankState};
use crate::state::StreamName;

/// Files that a rank needs in the engine: three pipes, three rings, its pidfd. A pty is one more.
pub(crate) const FILES_PER_RANK: u64 = 7;
/// Files that a job needs for a moment: the last rank's ends of its pipes and what std starts it with, rings on their
/// way to readers in this process.
pub(crate) const FILES_IN_PASSING: u64 = 16;
/// Ranks of a job that failed to start have no entry in the tables.
const UNNAMED: ProcessId = ProcessId(u64::MAX);

/// A rank to be started.
struct Place<'a> {
    rank: Rank,
    appnum: usize,
    app: &'a App,
}

impl Place<'_> {
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
    /// [`LaunchError`]. Names, numbers, directories and programs are checked before the first rank is started; of what
    /// fails later, the ranks that were started already are killed.
    pub fn spawn(&self, spec: &JobSpec) -> Result<Job, LaunchError> {
        check_spec(spec)?;
        let job = Job { tables: Arc::clone(&self.tables), nspace: spec.nspace.clone() };
        {
            let mut state = self.tables.lock();
            if state.jobs.contains_key(&spec.nspace) {
                return Err(LaunchError::NameTaken(spec.nspace.clone()));
            }
            let new = JobState { grace: spec.grace, ..JobState::default() };
            state.jobs.insert(spec.nspace.clone(), new);
        }
        let started = self.spawn_ranks(spec);
        let mut state = self.tables.lock();
        if let Some(job) = state.jobs.get_mut(&spec.nspace) {
            job.started = true;
            if job.ranks.is_empty() {
                state.jobs.remove(&spec.nspace);
            }
        }
        state.announce_complete_registrations();
        drop(state);
        self.tables.notify();
        self.wake_control();
        started.map(|()| job)
    }

    fn spawn_ranks(&self, spec: &JobSpec) -> Result<(), LaunchError> {
        // All processes before all rings: fork(2) takes longer with every map that the process has.
        let mut spawned = Vec::new();
        let mut signallers = Vec::new();
        let mut started = Ok(());
        for place in places(spec) {
            match spawn(process_spec(spec, &place)) {
                Ok(process) => {
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
            spawned.try_for_each(|(place, process)| self.enter(&spec.nspace, &place, process))
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

    /// Makes the rings of a rank that runs, attaches who waits for it, and has it drained from now on.
    fn enter(&self, nspace: &Nspace, place: &Place<'_>, process: Spawned) -> Result<(), LaunchError> {
        let Spawned { child, stdout, stderr, stddiag, pty } = process;
        let rank = place.rank;
        let config = StreamConfig { capacity: u64::from(self.config.cache_size), policy: self.config.policy };
        let source = Proc { nspace: nspace.clone(), rank };
        let stream = |channel: Channel| {
            Stream::create(config, &format!("{source} {channel}"))
                .map_err(|error| LaunchError::Rings { rank, source: error })
        };
        let mut streams = [stream(CHANNELS[0])?, stream(CHANNELS[1])?, stream(CHANNELS[2])?];

        let mut state = self.tables.lock();
        let mut ids = [SourceId(0); 3];
        for ((id, stream), channel) in ids.iter_mut().zip(&mut streams).zip(CHANNELS) {
            *id = state.add_stream(StreamName { source: source.clone(), channel }, stream);
        }
        // A rank has three streams, so the first one's number names no other process.
        let process = ProcessId(ids[0].0);
        state.processes.insert(process, source);
        if let Some(job) = state.jobs.get_mut(nspace) {
            job.open_streams = job.open_streams.saturating_add(ids.len());
            job.ranks.push(RankState {
                streams: ids,
                executable: place.app.program.to_string_lossy().into_owned(),
                pid: child.pid(),
                signaller: child.signaller(),
                pty,
                exit: None,
            });
        }
        for ((id, pipe), stream) in ids.into_iter().zip([stdout, stderr, stddiag]).zip(streams) {
            self.capture.add(id, pipe, stream)?;
        }
        self.capture.watch(process, child).map_err(AddError::from)?;
        Ok(())
    }
}

/// Looks for all that is known to be wrong before anything runs.
fn check_spec(spec: &JobSpec) -> Result<(), LaunchError> {
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
    let ptys = if spec.ptys.contains_key(&Rank::WILDCARD) { ranks } else { spec.ptys.len() as u64 };
    let needed = ranks.saturating_mul(FILES_PER_RANK).saturating_add(ptys).saturating_add(FILES_IN_PASSING);
    check_files(needed).map_err(|files| LaunchError::Files { ranks, files })?;
    let mut first = 0u32;
    for (appnum, app) in spec.apps.iter().enumerate() {
        // What an app's first rank can run, all its ranks can.
        let place = Place { rank: Rank(first), appnum, app };
        check(&process_spec(spec, &place)).map_err(|source| place.failed(source))?;
        first = first.saturating_add(app.nprocs);
    }
    Ok(())
}

/// The process group that a rank gets which has the embedder's stdin.
fn group_with_stdin(asked: ProcessGroup) -> ProcessGroup {
    // Answers for the caller's controlling terminal only: no other does job control.
    if tcgetpgrp(io::stdin()).is_ok() { ProcessGroup::Inherit } else { asked }
}

fn process_spec(spec: &JobSpec, place: &Place<'_>) -> ProcessSpec {
    let var = |name: &str, value: String| (OsString::from(name), OsString::from(value));
    let Place { rank, appnum, app } = place;
    let mut env = app.env.clone();
    // Ours come last, so that they count.
    env.extend([
        var("IOF_RANK", rank.to_string()),
        var("IOF_NSPACE", spec.nspace.to_string()),
        var("IOF_NPROCS", spec.nprocs().to_string()),
        var("IOF_APPNUM", appnum.to_string()),
    ]);
    let (stdin, group) = if spec.stdin == Some(*rank) {
        (Stdin::Inherit, group_with_stdin(spec.process_group))
    } else {
        (Stdin::Null, spec.process_group)
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
