//! Jobs that a tool spawns and whose ranks are tools themselves, such as the daemons of a debugger.
//!
//! Their variables lead them to the socket of tools instead of the server of ranks, so that each has
//! a process of its own that serves it, and they can do what their spawner can. This process and
//! those have the same directory, where a file tells the target of a debugger.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs};

use iof_pmix_server::limits::MAX_PMIX_TOOL_RANKS;
use iof_pmix_server::{SpawnedTools, ToolSpawn};
use iof_proto::{App, Mpi, Nspace, Proc, ProcInfo, Rank, Spawn, Status};

/// The variables in which libpmix looks for the address of its server.
const SERVER: [&str; 3] = ["PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3"];

/// The number of jobs that this process has named.
static NAMES: AtomicU64 = AtomicU64::new(0);

/// Prepares a job whose ranks are tools. `uri` is the address of tools' servers, and `table` that of
/// the processes to be debugged.
///
/// # Errors
/// The status with which the tool is refused.
pub fn prepare(
    spawn: &mut ToolSpawn,
    uri: &str,
    table: impl FnOnce(&Nspace) -> Result<Vec<ProcInfo>, Status>,
) -> Result<(), Status> {
    let Some(SpawnedTools { target, per_node, per_process }) = spawn.tools.clone() else { return Ok(()) };
    let table = target.as_ref().map(|target| targets(target, table(&target.nspace)?)).transpose()?;
    let count = match (per_node, per_process, table) {
        (None, None, _) => None,
        (Some(number), None, Some(_)) => Some(number.into()),
        (None, Some(number), Some(table)) => Some(u64::from(number).saturating_mul(table.len() as u64)),
        _ => return Err(Status::ERR_BAD_PARAM),
    };
    let Spawn { spec, rename, .. } = &mut spawn.spawn;
    if *rename {
        // Relaxed: only the number itself counts.
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let name = Nspace::new(format!("{}-{number}", spec.nspace));
        spec.nspace = name.map_err(|_| Status::ERR_BAD_PARAM)?;
        *rename = false;
    }
    match (count, &mut spec.apps[..]) {
        (None, _) => {}
        (Some(count), [app]) => app.nprocs = u32::try_from(count).unwrap_or(u32::MAX),
        _ => return Err(Status::ERR_NOT_SUPPORTED),
    }
    if spec.nprocs() > MAX_PMIX_TOOL_RANKS as u64 {
        return Err(Status::ERR_OUT_OF_RESOURCE);
    }
    // Each rank has a variable of its own, and so is a program.
    let ranks = spec.apps.iter().flat_map(|app| (0..app.nprocs).map(move |_| app.clone().ranks(1)));
    let mut apps: Vec<App> = ranks.collect();
    for (rank, app) in apps.iter_mut().enumerate() {
        app.env.extend(SERVER.map(|name| (name.into(), uri.into())));
        app.env.push(("PMIX_NAMESPACE".into(), spec.nspace.as_str().into()));
        app.env.push(("PMIX_RANK".into(), rank.to_string().into()));
    }
    (spec.apps, spec.mpi) = (apps, Mpi::None);
    if let Some(target) = target {
        let text = format!("{} {}", target.rank.0, target.nspace);
        let written = file(&spec.nspace).map(|path| fs::write(path, text));
        written.and_then(Result::ok).ok_or(Status::ERR_BAD_PARAM)?;
    }
    Ok(())
}

/// Returns the processes of a job that are the target. All are on this node.
fn targets(target: &Proc, table: Vec<ProcInfo>) -> Result<Vec<ProcInfo>, Status> {
    let is_meant = |row: &ProcInfo| [row.proc.rank, Rank::WILDCARD].contains(&target.rank);
    let table: Vec<ProcInfo> = table.into_iter().filter(is_meant).collect();
    let own = nix::unistd::gethostname().unwrap_or_default();
    if table.is_empty() {
        return Err(Status::ERR_NOT_FOUND);
    }
    let is_here = table.iter().all(|row| *row.host == *own.to_string_lossy());
    if is_here { Ok(table) } else { Err(Status::ERR_NOT_SUPPORTED) }
}

/// Returns the processes that a job is to debug.
pub fn target_of(job: &Nspace) -> Option<Proc> {
    let text = fs::read_to_string(file(job)?).ok()?;
    let (rank, nspace) = text.split_once(' ')?;
    Some(Proc::new(Nspace::new(nspace).ok()?, Rank(rank.parse().ok()?)))
}

/// Removes the file of a job that is not started.
pub fn forget(job: &Nspace) {
    file(job).into_iter().for_each(|path| drop(fs::remove_file(path)));
}

/// Returns the file that tells the target of a job; `None` if files cannot have its name.
fn file(job: &Nspace) -> Option<PathBuf> {
    let is_name = !job.as_str().contains('/');
    is_name.then(|| env::temp_dir().join(format!("target.{job}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iof_proto::ProcState;

    use super::*;

    #[test]
    fn a_target_with_a_process_on_another_node_is_refused() {
        let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let job = Nspace::new("demo").unwrap();
        let row = |(rank, host): (u32, &str)| ProcInfo {
            host: host.into(),
            pid: 7,
            ..ProcInfo::new(Proc::new(job.clone(), Rank(rank)), ProcState::Running)
        };
        let table = || [(0, own.as_str()), (1, "elsewhere")].map(row).to_vec();
        let target = |rank| targets(&Proc::new(job.clone(), rank), table()).map(|rows| rows.len());
        assert_eq!(target(Rank(0)), Ok(1));
        assert_eq!(target(Rank(1)), Err(Status::ERR_NOT_SUPPORTED));
        assert_eq!(target(Rank::WILDCARD), Err(Status::ERR_NOT_SUPPORTED));
        assert_eq!(target(Rank(2)), Err(Status::ERR_NOT_FOUND));
    }
}
