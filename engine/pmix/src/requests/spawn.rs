//! Requests of ranks and tools to spawn jobs (`PMIx_Spawn`).
//!
//! The contract behind every `unsafe` block of this module is that of [`crate::library::read`].

use std::env;
use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use iof_proto::attribute::key::{
    PMIX_ABORT_NON_ZERO_TERM, PMIX_DEBUG_DAEMONS_PER_NODE, PMIX_DEBUG_DAEMONS_PER_PROC, PMIX_DEBUG_JOB,
    PMIX_DEBUG_TARGET, PMIX_DEBUGGER_DAEMONS, PMIX_HOST, PMIX_IOF_CACHE_SIZE, PMIX_IOF_DROP_NEWEST,
    PMIX_IOF_DROP_OLDEST, PMIX_IOF_SRV_REQ, PMIX_JOB_TIMEOUT, PMIX_NOHUP, PMIX_NOTIFY_COMPLETION,
    PMIX_NSPACE, PMIX_PARENT_ID, PMIX_SPAWN_TOOL, PMIX_WDIR,
};
use iof_proto::attribute::{self, AttributeError, Given, Place};
use iof_proto::directive::{DirectiveLevel, Directives};
use iof_proto::limits::{MAX_DIRECTIVES, MAX_TEXT};
use iof_proto::{
    App, Channel, Channels, Failure, Info, InfoValue, JobSpec, KillOnBadExit, Mpi, Nspace, Proc, Spawn,
    Status,
};
use nix::unistd::gethostname;

use crate::library::read::{self, Read};
use crate::library::types::{self, RawApp, kind};
use crate::limits::MAX_PMIX_SPAWN_BYTES;

/// Those that change nothing: the programming model, and what libpmix adds.
const WITHOUT_EFFECT: [&str; 3] = ["pmix.pers", "pmix.req.client", "pmix.spawned"];

/// Reads a job that a rank wants to have started on its node, which is called `name` if the infos name
/// none. An info that has no effect is refused.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn spawn(
    name: Nspace,
    infos: (*const types::Info, usize),
    apps: (*const RawApp, usize),
) -> Read<Spawn> {
    // SAFETY: the module's contract.
    let job = unsafe { job(name, infos, apps) };
    job.and_then(|(spawn, rest)| with_directives(spawn, &rest)).map_err(refused)
}

/// Returns the refusal of a list that cannot be read.
fn unreadable(status: Status) -> Failure {
    Failure::new(status, format!("invalid list of programs or infos: give 1 to {MAX_DIRECTIVES} of each"))
}

/// Reads a job as [`spawn`] does. Returns also the infos that are left.
unsafe fn job(
    name: Nspace,
    infos: (*const types::Info, usize),
    apps: (*const RawApp, usize),
) -> Result<(Spawn, Vec<Info>), Failure> {
    // SAFETY: the module's contract.
    let (apps, (mut infos, changes)) =
        unsafe { (read::slice(apps.0, apps.1, MAX_DIRECTIVES).map_err(unreadable)?, required(infos)?) };
    let mut spec = JobSpec::new(name, Vec::with_capacity(apps.len()));
    (spec.mpi, spec.kill_on_bad_exit) = (Mpi::Pmix, KillOnBadExit::Signal);
    let mut spawn = Spawn::new(spec);
    spawn.rename = true;
    let mut directory = None;
    infos.retain(|info| match &info.value {
        InfoValue::Text(path) if info.key == PMIX_WDIR => {
            directory = Some(PathBuf::from(path));
            false
        }
        _ => true,
    });
    let mut rest = Vec::new();
    for from in apps {
        // SAFETY: the module's contract.
        let (mut app, infos) = unsafe { app(from, &changes) }?;
        // libpmix fills in a directory for programs without one.
        app.cwd = directory.clone().or(app.cwd);
        for info in infos {
            match (info.key.as_str(), info.value) {
                (PMIX_WDIR, InfoValue::Text(directory)) => app.cwd = Some(directory.into()),
                (_, value) => rest.push(Info { value, ..info }),
            }
        }
        spawn.spec.apps.push(app);
    }
    rest.extend(infos);
    let mut unread = Vec::new();
    for info in rest {
        match (info.key.as_str(), info.value) {
            // The engine refuses jobs with ranks elsewhere.
            (PMIX_HOST, InfoValue::Text(hosts)) => {
                let own = gethostname().unwrap_or_default();
                spawn.spec.elsewhere |= hosts.split(',').any(|host| host != "localhost" && *host != *own);
            }
            (PMIX_NSPACE, InfoValue::Text(name)) => {
                (spawn.spec.nspace, spawn.rename) = (nspace(&name)?, false);
            }
            (PMIX_NOHUP, InfoValue::Bool(detached)) => spawn.detached = detached,
            (PMIX_JOB_TIMEOUT, InfoValue::Number(seconds)) if i32::try_from(seconds).is_ok() => {
                spawn.spec.timeout = (seconds > 0).then_some(Duration::from_secs(seconds));
            }
            (PMIX_ABORT_NON_ZERO_TERM, InfoValue::Bool(true)) => {
                spawn.spec.kill_on_bad_exit = KillOnBadExit::Always;
            }
            (PMIX_ABORT_NON_ZERO_TERM, InfoValue::Bool(false)) => {}
            (PMIX_PARENT_ID, InfoValue::Proc(parent)) => spawn.spec.parent = Some(parent),
            (key, _) if WITHOUT_EFFECT.contains(&key) => {}
            (_, value) => unread.push(Info { value, ..info }),
        }
    }
    Ok((spawn, unread))
}

/// Reads the directives about the output of a job.
fn with_directives(mut spawn: Spawn, infos: &[Info]) -> Result<Spawn, Failure> {
    for info in infos {
        if let Err(error @ AttributeError::Value { .. }) = Given::new(info, Place::PmixSpawn) {
            return Err(error.into());
        }
    }
    attribute::unknown(infos, &[Place::Spawn]).map_or(Ok(()), Err)?;
    (spawn.spec.directives, _) = Directives::read(infos, DirectiveLevel::Spawn)?;
    Ok(spawn)
}

/// The largest number of warnings about refused requests: a rank may go on.
const WARNINGS: u64 = 10;
/// The number of requests whose refusal has, or could have, a line.
static REFUSALS: AtomicU64 = AtomicU64::new(0);

/// Returns whether a further refusal has a line.
pub(crate) fn warns() -> bool {
    // Relaxed: only the number itself counts.
    REFUSALS.fetch_add(1, Ordering::Relaxed) < WARNINGS
}

/// Logs the reason for which a job is not started.
fn refused(failure: Failure) -> Status {
    if warns() {
        tracing::warn!(reason = %failure.reason, "cannot start the job that a rank or a tool spawns");
    }
    failure.status
}

/// The keys by which a tool wants its job's output to be kept until it pulls it.
const CACHED: [&str; 4] = [PMIX_IOF_CACHE_SIZE, PMIX_IOF_DROP_OLDEST, PMIX_IOF_DROP_NEWEST, PMIX_IOF_SRV_REQ];

/// A job that a tool wants to have started.
#[derive(Debug)]
pub struct ToolSpawn {
    /// The job.
    pub spawn: Spawn,
    /// The output that the tool wants to have at once: libpmix registers the tool for it.
    pub forwarded: Channels,
    /// Libpmix gives a number to a registration of its own.
    pub(crate) is_numbered: bool,
    /// Set if the ranks of the job are tools themselves.
    pub tools: Option<SpawnedTools>,
}

/// A job whose ranks are tools, such as the daemons of a debugger.
#[derive(Clone, Debug, Default)]
pub struct SpawnedTools {
    /// The processes that they are to debug.
    pub target: Option<Proc>,
    /// Their number on each node of these processes, if it is given.
    pub per_node: Option<u16>,
    /// Their number for each of these processes, if it is given.
    pub per_process: Option<u16>,
}

impl SpawnedTools {
    /// Takes what the infos of a job specify, and returns whether its ranks are tools.
    fn take(&mut self, infos: &mut Vec<Info>) -> bool {
        let mut are_tools = false;
        infos.retain(|info| {
            let number =
                if let InfoValue::Number(number) = info.value { number.try_into().ok() } else { None };
            match (info.key.as_str(), &info.value) {
                (PMIX_SPAWN_TOOL | PMIX_DEBUGGER_DAEMONS, InfoValue::Bool(flag)) => are_tools |= flag,
                (PMIX_DEBUG_TARGET, InfoValue::Proc(target)) => self.target = Some(target.clone()),
                (PMIX_DEBUG_JOB, InfoValue::Text(job)) if nspace(job).is_ok() => {
                    self.target = self.target.take().or_else(|| nspace(job).ok().map(Proc::all));
                }
                (PMIX_DEBUG_DAEMONS_PER_NODE, _) if number.is_some() => self.per_node = number,
                (PMIX_DEBUG_DAEMONS_PER_PROC, _) if number.is_some() => self.per_process = number,
                _ => return true,
            }
            false
        });
        are_tools || self.target.is_some() || self.per_node.is_some() || self.per_process.is_some()
    }
}

/// Reads a job that a tool wants to have started, see [`spawn`].
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn tool_spawn(
    name: &str,
    infos: (*const types::Info, usize),
    apps: (*const RawApp, usize),
) -> Read<Box<ToolSpawn>> {
    // SAFETY: the module's contract.
    let read = unsafe { nspace(name).and_then(|name| job(name, infos, apps)) };
    let (spawn, mut rest) = read.map_err(refused)?;
    // SAFETY: the module's contract.
    let infos = unsafe { read::infos(infos.0, infos.1) }?;
    rest.retain(|info| info.key != PMIX_NOTIFY_COMPLETION || !matches!(info.value, InfoValue::Bool(_)));
    let mut tools = SpawnedTools::default();
    let tools = tools.take(&mut rest).then_some(tools);
    let spawn = with_directives(spawn, &rest).map_err(refused)?;
    // Libpmix registers a tool itself for a channel unless its key is false.
    let is_given = |channel: Channel, value: bool| {
        let key = channel.forwarding_key();
        infos.iter().any(|info| info.key == key && info.value == InfoValue::Bool(value))
    };
    let is_cached = infos.iter().any(|info| CACHED.contains(&&*info.key));
    let forwarded = Channel::OUTPUTS.into_iter().filter(|channel| !is_cached && is_given(*channel, true));
    let is_numbered = !infos.is_empty() && !Channel::OUTPUTS.iter().all(|channel| is_given(*channel, false));
    let forwarded = forwarded.fold(Channels::empty(), |all, channel| all | channel.into());
    Ok(Box::new(ToolSpawn { spawn, forwarded, is_numbered, tools }))
}

fn nspace(name: &str) -> Result<Nspace, Failure> {
    Nspace::new(name).map_err(|error| Failure::new(Status::ERR_BAD_PARAM, format!("PMIX_NSPACE: {error}")))
}

/// Reads a program with its infos. Its variables are also those that `changes` of the job make.
unsafe fn app(from: &RawApp, changes: &[Change]) -> Result<(App, Vec<Info>), Failure> {
    let invalid = |reason| Failure::new(Status::ERR_BAD_PARAM, reason);
    // SAFETY: the module's contract.
    unsafe {
        let program = word(from.cmd).ok_or_else(|| invalid("a program has no cmd: give one".into()))?;
        let args: Vec<OsString> = words(from.argv).skip(1).collect();
        let count = || invalid(format!("maxprocs of {program:?} is {}: give at least 1", from.ranks));
        let ranks = u32::try_from(from.ranks).map_err(|_| count())?;
        let mut app = App::new(program, args).ranks(ranks);
        app.env.extend(words(from.env).filter_map(variable));
        app.cwd = word(from.cwd).map(Into::into);
        let (infos, own) = required((from.infos, from.info_count))?;
        changes.iter().chain(&own).for_each(|change| change.apply(&mut app));
        let variables = app.env.iter().flat_map(|(name, value)| [name, value]);
        let bytes = app.args.iter().chain(variables).fold(0usize, |sum, word| sum.saturating_add(word.len()));
        if bytes > MAX_PMIX_SPAWN_BYTES {
            let reason = format!(
                "arguments and variables have {bytes} bytes: give at most {MAX_PMIX_SPAWN_BYTES} \
                                  (MAX_PMIX_SPAWN_BYTES)"
            );
            return Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason));
        }
        Ok((app, infos))
    }
}

/// Divides `NAME=VALUE`.
fn variable(word: OsString) -> Option<(OsString, OsString)> {
    let mut name = word.into_vec();
    let mut value = name.split_off(name.iter().position(|byte| *byte == b'=')?);
    value.remove(0);
    Some((OsString::from_vec(name), OsString::from_vec(value)))
}

/// A change of a variable of programs, by the key of its info.
struct Change {
    key: String,
    variable: (OsString, OsString),
    separator: OsString,
}

/// The keys of changes.
const CHANGES: [&str; 4] = ["pmix.envar.set", "pmix.envar.add", "pmix.envar.prepnd", "pmix.envar.appnd"];

impl Change {
    /// Reads an info. Returns `None` if its value is invalid.
    unsafe fn read(key: String, from: &types::Info) -> Option<Change> {
        // SAFETY: the kind specifies the field; the rest is the module's contract.
        unsafe {
            let from = (from.value.kind == kind::PMIX_ENVAR).then_some(from.value.data.variable)?;
            let name = word(from.name).filter(|name| !name.is_empty() && !name.as_bytes().contains(&b'='))?;
            let separator = OsString::from_vec(vec![u8::from_ne_bytes(from.separator.to_ne_bytes())]);
            Some(Change { key, variable: (name, word(from.value)?), separator })
        }
    }

    /// Changes the variable of a program, whose environment is that of this process and what it adds.
    fn apply(&self, app: &mut App) {
        let Change { key, variable: (name, value), separator } = self;
        let own = app.env.iter().rfind(|(other, _)| other == name).map(|(_, value)| value.clone());
        let value = match (key.as_str(), own.or_else(|| env::var_os(name))) {
            ("pmix.envar.add", Some(old)) => old,
            ("pmix.envar.prepnd", Some(old)) => [&**value, separator, &old].into_iter().collect(),
            ("pmix.envar.appnd", Some(old)) => [&*old, separator, value].into_iter().collect(),
            _ => value.clone(),
        };
        app.env.retain(|(other, _)| other != name);
        app.env.push((name.clone(), value));
    }
}

/// Reads infos, each as a required one, and those that change variables.
unsafe fn required((start, count): (*const types::Info, usize)) -> Result<(Vec<Info>, Vec<Change>), Failure> {
    let (mut infos, mut changes) = (Vec::new(), Vec::new());
    // SAFETY: the module's contract.
    for from in unsafe { read::slice(start, count, MAX_DIRECTIVES) }.map_err(unreadable)? {
        let from = types::Info { flags: types::REQUIRED, ..*from };
        let key = read::text_within(&from.key).unwrap_or_default();
        // SAFETY: the module's contract.
        unsafe {
            if CHANGES.contains(&&*key) {
                let needed = format!("{key} needs a PMIX_ENVAR with the name of a variable and a value");
                let change = Change::read(key, &from);
                changes.push(change.ok_or_else(|| Failure::new(Status::ERR_BAD_PARAM, needed))?);
            } else {
                let read = read::infos(&raw const from, 1);
                infos.extend(read.map_err(|status| unread(&key, status))?);
            }
        }
    }
    Ok((infos, changes))
}

/// Returns the refusal of an info that cannot be read.
fn unread(key: &str, status: Status) -> Failure {
    let reason = match attribute::find(key) {
        _ if status == Status::ERR_OUT_OF_RESOURCE => {
            format!("{key} has more than {MAX_TEXT} bytes: give less (MAX_TEXT)")
        }
        Some(row) if row.places.iter().any(|place| [Place::Spawn, Place::PmixSpawn].contains(place)) => {
            format!("{} needs a {}", row.name, row.values())
        }
        row => format!("{} is not supported here: leave it out", row.map_or(key, |row| row.name)),
    };
    Failure::new(status, reason)
}

/// Returns a text, unless it is null.
unsafe fn word(start: *const c_char) -> Option<OsString> {
    // SAFETY: the module's contract.
    (!start.is_null()).then(|| OsString::from_vec(unsafe { CStr::from_ptr(start) }.to_bytes().to_vec()))
}

/// Returns the texts of a list that ends with null, or is null.
unsafe fn words(list: *const *const c_char) -> impl Iterator<Item = OsString> {
    (0usize..).map_while(move |index| {
        // SAFETY: no earlier element is null, so the list has this one as well; the rest is the
        // module's contract.
        unsafe { if list.is_null() { None } else { word(*list.wrapping_add(index)) } }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::ptr;

    use iof_proto::attribute::mismatches;

    use super::*;
    use crate::library::info::CInfos;
    use crate::requests::answer::from_infos;

    #[test]
    fn a_spawn_honours_exactly_its_attributes_of_the_table() {
        let app = RawApp {
            cmd: c"true".as_ptr(),
            argv: ptr::null(),
            env: ptr::null(),
            cwd: ptr::null(),
            ranks: 1,
            infos: ptr::null(),
            info_count: 0,
        };
        let accepts = |info: &Info| {
            let mut infos = CInfos::new(from_infos(std::slice::from_ref(info)));
            let (array, length) = infos.as_parts();
            // SAFETY: the infos and the program are valid.
            unsafe { tool_spawn("job", (array, length), (&raw const app, 1)) }.is_ok()
        };
        assert_eq!(mismatches(&[Place::Spawn, Place::PmixSpawn], accepts), []);
    }
}
