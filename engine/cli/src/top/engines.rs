//! The engines that the screen shows, and the threads that ask them.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded};
use iof_proto::Value;
use iof_proto::query::key;
use iof_proto::rendezvous::{Level, Listed, Search, Target};
use iof_tool::{AttachError, LostError, RequestError, Tool};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::gethostname;

use super::board::Board;
use super::engine::{EngineBoard, Sample};
use super::rank::RankInfo;
use super::row::EngineId;
use crate::commands::attach::{engine_directories, list_engines};
use crate::error::Failure;
use crate::processes::threads::start_thread;

/// The capacity of the queue of answers. Threads block when it is full, so that a slow terminal costs no
/// memory.
const MAX_EVENTS: usize = 16;

/// The largest number of engines that are shown. Each is asked by a thread.
const MAX_ENGINES: usize = 64;

/// The news of a thread about its engine.
pub struct EngineEvent(EngineId, Learned);

enum Learned {
    /// An error ends its thread.
    Answer(Result<Sample, RequestError>),
    NotAttached(AttachError),
}

/// The engines that are asked. Each has a thread, which ends with its engine, with this, or if it cannot
/// attach.
pub struct Engines {
    /// The directories in which engines are looked for, `None` for the default one. Empty if one engine
    /// is selected.
    directories: Vec<Option<PathBuf>>,
    pub events: Receiver<EngineEvent>,
    sender: Sender<EngineEvent>,
}

impl Engines {
    fn new(directories: Vec<Option<PathBuf>>) -> Engines {
        let (sender, events) = bounded(MAX_EVENTS);
        Engines { directories, events, sender }
    }

    /// Asks one engine, to which `tool` is attached.
    pub fn one(tool: Tool, search: Search, board: &mut Board) -> Result<Engines, Failure> {
        let engines = Engines::new(Vec::new());
        let (id, interval, sender) = (EngineId(0), board.interval, engines.sender.clone());
        let mut engine = EngineBoard::new(search, Some(tool.engine_pid()), Vec::new());
        engine.is_asked = true;
        board.engines.insert(id, engine);
        start_thread("iof-engine", move || watch_engine(tool, id, interval, &sender))?;
        Ok(engines)
    }

    /// Looks for all engines of this user.
    pub fn all(directory: Option<&Path>, board: &mut Board) -> Result<Engines, Failure> {
        let engines = Engines::new(engine_directories(directory)?);
        engines.find(board)?;
        Ok(engines)
    }

    /// Adds engines that were not known before to `board`, and asks all that are not being asked.
    pub fn find(&self, board: &mut Board) -> Result<(), Failure> {
        let mut listed = list_engines(&self.directories)?;
        listed.retain(|engine| engine.is_live && engine.level != Level::Link);
        // An agent has some ranks of a job. A front end on the same node has all of them.
        if listed.iter().any(|engine| engine.level == Level::Session) {
            listed.retain(|engine| engine.level != Level::Agent);
        }
        board.not_shown = 0;
        for Listed { path, pid, jobs, .. } in listed {
            let search = Search { target: Target::Server(path), ..Search::default() };
            let next = board.engines.last_key_value().map_or(0, |(last, _)| last.0.saturating_add(1));
            if let Some(known) = board.engines.values_mut().find(|engine| engine.search == search) {
                known.jobs = jobs;
            } else if board.engines.len() < MAX_ENGINES {
                board.engines.insert(EngineId(next), EngineBoard::new(search, pid, jobs));
            } else {
                board.not_shown = board.not_shown.saturating_add(1);
            }
        }
        for (id, engine) in &mut board.engines {
            if !mem::replace(&mut engine.is_asked, true) {
                let (id, interval, sender) = (*id, board.interval, self.sender.clone());
                let search = engine.search.clone();
                start_thread("iof-engine", move || attach_and_watch(&search, id, interval, &sender))?;
            }
        }
        Ok(())
    }

    /// Applies an event to `board`. Returns `true` if the only engine has ended.
    pub fn handle(&self, board: &mut Board, EngineEvent(id, learned): EngineEvent) -> Result<bool, Failure> {
        let Some(engine) = board.engines.get_mut(&id) else { return Ok(false) };
        match learned {
            Learned::Answer(Ok(sample)) => engine.update(id, sample),
            Learned::NotAttached(AttachError::Find(_) | AttachError::Connect(_) | AttachError::Lost(_)) => {
                board.remove(id);
            }
            // Another thread asks it after the next look.
            Learned::NotAttached(error) => {
                (engine.failure, engine.is_asked) = (Some(error.to_string()), false);
            }
            Learned::Answer(Err(_)) if !self.directories.is_empty() => board.remove(id),
            Learned::Answer(Err(RequestError::Lost(LostError::Closed))) => return Ok(true),
            Learned::Answer(Err(error)) => return Err(Failure::running(error)),
        }
        Ok(false)
    }
}

/// Attaches to an engine, and queries it.
fn attach_and_watch(search: &Search, id: EngineId, interval: Duration, events: &Sender<EngineEvent>) {
    match Tool::find(search, "iof top") {
        Ok(tool) => watch_engine(tool, id, interval, events),
        Err(error) => drop(events.send(EngineEvent(id, Learned::NotAttached(error)))),
    }
}

/// Queries the engine. The interval starts at an answer, not at the query before it, so that a slow
/// engine is queried less often.
fn watch_engine(mut tool: Tool, id: EngineId, interval: Duration, events: &Sender<EngineEvent>) {
    let wait = PollTimeout::try_from(interval).unwrap_or(PollTimeout::MAX);
    let here = gethostname().ok().and_then(|host| host.into_string().ok()).unwrap_or_default();
    loop {
        let answer = sample(&mut tool, &here);
        let is_over = answer.is_err();
        if events.send(EngineEvent(id, Learned::Answer(answer))).is_err() || is_over {
            return;
        }
        // A tool without a registration becomes readable only when its engine is gone, which ends
        // the wait at once.
        let _ = poll(&mut [PollFd::new(tool.as_fd(), PollFlags::POLLIN)], wait);
    }
}

fn sample(tool: &mut Tool, here: &str) -> Result<Sample, RequestError> {
    let (mut streams, mut ranks) = (Vec::new(), BTreeMap::new());
    for found in tool.query(&[key::IOF_QUERY_STATS, key::PMIX_QUERY_PROC_TABLE])? {
        match found.value {
            Value::Streams(found) => streams.extend(found),
            Value::Procs(procs) => {
                ranks.extend(procs.into_iter().map(|info| (info.proc.clone(), RankInfo::new(info, here))));
            }
            _ => {}
        }
    }
    Ok(Sample { time: Instant::now(), pid: tool.engine_pid(), streams, ranks })
}
