//! The infos of the functions that begin a job, and of its programs.

use std::path::PathBuf;
use std::process;
use std::time::Duration;

use iof_engine::{App, JobSpec, KillOnBadExit, MAX_RANKS, Mpi, Pty, Stdin};
use iof_proto::attribute::Place;
use iof_proto::attribute::key::*;
use iof_proto::directive::DirectiveLevel;
use iof_proto::{Directives, Info, Rank, Spawn, Status};
use iof_tool::own_proc;

use crate::ffi::guard::{Outcome, or_failure};
use crate::ffi::read;
use crate::infos::Infos;
use crate::infos::format::Format;

/// The pty of a rank. Nothing is echoed, because programs type rather than users.
const PTY: Pty = Pty { size: iof_engine::WindowSize { rows: 24, columns: 80 }, echo: false, data: false };

/// A program of a job with its infos. Ranks are counted within the program.
pub(crate) struct ProgramSpec {
    pub app: App,
    stdin: Vec<(Rank, Stdin)>,
    ptys: Vec<Rank>,
}

impl ProgramSpec {
    /// Reads the infos of a program.
    pub(crate) fn new(mut app: App, infos: Vec<Info>) -> Outcome<ProgramSpec> {
        let mut infos = Infos(infos);
        let stdin = stdin(&mut infos)?;
        let forwarded = (infos.flag(PMIX_FWD_STDIN)? == Some(true)).then_some((Rank(0), Stdin::Pipe));
        let file = infos.path(IOF_STDIN_FILE)?.map(|path: PathBuf| (Rank::WILDCARD, Stdin::File(path)));
        let ptys = infos.ranks(IOF_PTY)?;
        app.merge_stderr = infos.flag(PMIX_IOF_MERGE_STDERR_STDOUT)? == Some(true);
        infos.done()?;
        let stdin = file.into_iter().chain(forwarded).chain(stdin).collect();
        Ok(ProgramSpec { app, stdin, ptys })
    }
}

/// Takes the ranks whose stdin is a pipe, or that of the launcher.
fn stdin(infos: &mut Infos) -> Outcome<Vec<(Rank, Stdin)>> {
    let pipes = infos.ranks(PMIX_STDIN_TGT)?.into_iter().map(|rank| (rank, Stdin::Pipe));
    let inherits = infos.ranks(IOF_STDIN_INHERIT)?.into_iter().map(|rank| (rank, Stdin::Inherit));
    Ok(pipes.chain(inherits).collect())
}

/// Returns the ranks of the job that `rank` of a program with these ranks means.
///
/// # Errors
/// The program does not have the rank.
fn in_job(rank: Rank, first: u32, count: u32) -> Outcome<std::ops::Range<u32>> {
    let (from, to) = match rank {
        Rank::WILDCARD => (0, count),
        Rank(rank) => (rank, rank.saturating_add(1)),
    };
    // The engine refuses a job with more ranks.
    let end = first.saturating_add(to).min(MAX_RANKS);
    if to > count { Err(Status::ERR_BAD_PARAM) } else { Ok(first.saturating_add(from).min(end)..end) }
}

/// Reads the infos of `iof_server_spawn`, for a job of `programs`: the job, and the attributes of
/// its output. `default_name` names the job if they do not.
pub(crate) fn job_spec(
    infos: Vec<Info>,
    programs: Vec<ProgramSpec>,
    default_name: impl FnOnce() -> String,
) -> Outcome<(JobSpec, Format)> {
    let mut infos = Infos(infos);
    let name = infos.text(PMIX_NSPACE)?.unwrap_or_else(default_name);
    let mut spec = of_programs(&name, programs)?;
    spec.stdin.extend(stdin(&mut infos)?);
    spec.ptys.extend(infos.ranks(IOF_PTY)?.into_iter().map(|rank| (rank, PTY)));
    ends_and_mpi(&mut infos, &mut spec)?;
    spec.pmix_tools = infos.path(IOF_PMIX_TOOLS)?;
    // Accepted without effect: the job continues when a tool ends.
    infos.flag(PMIX_NOHUP)?;
    let Adoption { elsewhere, directives, format } = adoption(infos.0)?;
    (spec.elsewhere, spec.directives) = (elsewhere, directives);
    Ok((spec, format))
}

/// Reads the infos of `iof_Spawn`, for a job of `programs`: the job, and the attributes of its output.
/// An info that has no effect is refused, also if it is not required.
pub(crate) fn tool_spawn(infos: Vec<Info>, programs: Vec<ProgramSpec>) -> Outcome<(Spawn, Format)> {
    let mut infos = Infos(infos);
    infos.only(&[Place::ToolSpawn, Place::Spawn])?;
    let name = infos.text(PMIX_NSPACE)?;
    let rename = name.is_none();
    let mut spec = of_programs(&name.unwrap_or_else(|| format!("iof-{}", process::id())), programs)?;
    spec.stdin.extend(infos.ranks(PMIX_STDIN_TGT)?.into_iter().map(|rank| (rank, Stdin::Pipe)));
    ends_and_mpi(&mut infos, &mut spec)?;
    let cwd = infos.path(PMIX_WDIR)?;
    spec.apps.iter_mut().for_each(|app| app.cwd = app.cwd.take().or_else(|| cwd.clone()));
    let detached = infos.flag(PMIX_NOHUP)? == Some(true);
    let format = Format::take(&mut infos)?;
    spec.parent = infos.proc(PMIX_PARENT_ID)?.or_else(own_proc);
    // Only values of a wrong type or out of range are left.
    infos.0.iter_mut().for_each(|info| info.required = true);
    (spec.directives, _) = or_failure(Directives::read(&infos.0, DirectiveLevel::Spawn))?;
    let mut spawn = Spawn::new(spec);
    (spawn.rename, spawn.detached) = (rename, detached);
    Ok((spawn, format))
}

/// Returns the job `name` of `programs`.
fn of_programs(name: &str, programs: Vec<ProgramSpec>) -> Outcome<JobSpec> {
    let mut spec = JobSpec::new(read::nspace(name)?, Vec::with_capacity(programs.len()));
    let mut first: u32 = 0;
    for ProgramSpec { app, stdin, ptys } in programs {
        let ranks = |rank| Ok::<_, Status>(in_job(rank, first, app.nprocs)?.map(Rank));
        for (rank, source) in stdin {
            spec.stdin.extend(ranks(rank)?.map(|rank| (rank, source.clone())));
        }
        for rank in ptys {
            spec.ptys.extend(ranks(rank)?.map(|rank| (rank, PTY)));
        }
        first = first.saturating_add(app.nprocs);
        spec.apps.push(app);
    }
    Ok(spec)
}

fn ends_and_mpi(infos: &mut Infos, spec: &mut JobSpec) -> Outcome<()> {
    let grace = infos.number(IOF_GRACE)?;
    spec.grace = grace.map(|milliseconds| Duration::from_millis(milliseconds.into()));
    spec.mpi = match infos.text(IOF_MPI)?.as_deref() {
        None | Some("none") => Mpi::None,
        Some("auto") => Mpi::Auto,
        Some("pmi1") => Mpi::Pmi1,
        Some("pmix") => Mpi::Pmix,
        Some(_) => return Err(Status::ERR_BAD_PARAM),
    };
    spec.timeout = match infos.number(PMIX_JOB_TIMEOUT)? {
        None | Some(0) => None,
        Some(seconds) if i32::try_from(seconds).is_ok() => Some(Duration::from_secs(seconds.into())),
        Some(_) => return Err(Status::ERR_BAD_PARAM),
    };
    if spec.mpi != Mpi::None {
        spec.kill_on_bad_exit = KillOnBadExit::Signal;
    }
    if infos.flag(PMIX_ABORT_NON_ZERO_TERM)? == Some(true) {
        spec.kill_on_bad_exit = KillOnBadExit::Always;
    }
    Ok(())
}

/// The infos of `iof_server_adopt`, which a job that is started has, too.
pub(crate) struct Adoption {
    /// Set if the job has ranks on other nodes.
    pub elsewhere: bool,
    pub directives: Directives,
    /// The attributes of the job's output.
    pub format: Format,
}

/// Reads the infos of `iof_server_adopt`.
pub(crate) fn adoption(infos: Vec<Info>) -> Outcome<Adoption> {
    let mut infos = Infos(infos);
    let elsewhere = infos.flag(IOF_ELSEWHERE)? == Some(true);
    // Accepted without effect: the job of a launcher has no parent.
    infos.flag(PMIX_IOF_INHERIT)?;
    let format = Format::take(&mut infos)?;
    let (directives, _) = or_failure(Directives::read(&infos.0, DirectiveLevel::Spawn))?;
    Ok(Adoption { elsewhere, directives, format })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::collections::BTreeMap;

    use iof_proto::{InfoValue, Proc};

    use super::*;
    use crate::infos::infos;
    use crate::infos::init::wrong;

    #[test]
    fn each_function_for_jobs_honours_exactly_its_attributes_of_the_table() {
        let spawn = |infos| job_spec(infos, Vec::new(), || "job".into()).is_ok();
        let spawn = wrong(&[Place::ServerSpawn, Place::Spawn], spawn);
        assert_eq!(spawn, [IOF_MPI], "only four texts are names of protocols");
        assert_eq!(wrong(&[Place::ServerAdopt, Place::Spawn], |infos| adoption(infos).is_ok()), [""; 0]);
        let tool = |infos| tool_spawn(infos, Vec::new()).is_ok();
        assert_eq!(wrong(&[Place::ToolSpawn, Place::Spawn], tool), [IOF_MPI]);
        let program = |infos| ProgramSpec::new(App::new("sh", [""; 0]), infos).is_ok();
        assert_eq!(wrong(&[Place::Program], program), [""; 0]);
    }

    fn spec(job: &[(&str, InfoValue)], programs: &[(u32, &[(&str, InfoValue)])]) -> Outcome<JobSpec> {
        let program = |(ranks, entries): &(u32, &[(&str, InfoValue)])| {
            ProgramSpec::new(App::new("sh", [""; 0]).ranks(*ranks), infos(entries))
        };
        let programs = programs.iter().map(program).collect::<Outcome<_>>()?;
        job_spec(infos(job), programs, || "job".into()).map(|(spec, _)| spec)
    }

    #[test]
    fn a_job_may_leave_the_stdin_of_one_rank_open_or_let_it_inherit() {
        let rank = Proc::new(read::nspace("job").unwrap(), Rank(2));
        assert_eq!(spec(&[], &[]).unwrap().stdin.len(), 0);
        for (key, wanted) in [(PMIX_STDIN_TGT, Stdin::Pipe), (IOF_STDIN_INHERIT, Stdin::Inherit)] {
            for value in [InfoValue::Number(2), InfoValue::Proc(rank.clone())] {
                let stdin: Vec<_> = spec(&[(key, value)], &[]).unwrap().stdin.into_iter().collect();
                assert_eq!(stdin, [(Rank(2), wanted.clone())]);
            }
        }
    }

    #[test]
    fn each_program_has_its_own_stdin_and_ptys_with_ranks_counted_within_it() {
        let (all, one) = (InfoValue::Number(Rank::WILDCARD.0.into()), InfoValue::Number(1));
        let first = [(IOF_STDIN_FILE, "/input".into())];
        let second = [(PMIX_FWD_STDIN, true.into()), (IOF_PTY, one.clone())];
        let third = [(PMIX_STDIN_TGT, all), (PMIX_IOF_MERGE_STDERR_STDOUT, true.into())];
        let job = spec(&[], &[(2, &first), (2, &second), (1, &third)]).unwrap();
        let file = || Stdin::File("/input".into());
        let stdin = [(0, file()), (1, file()), (2, Stdin::Pipe), (4, Stdin::Pipe)];
        assert_eq!(job.stdin, stdin.map(|(rank, stdin)| (Rank(rank), stdin)).into());
        assert_eq!(job.ptys, BTreeMap::from([(Rank(3), PTY)]));
        assert_eq!(job.apps.iter().map(|app| app.merge_stderr).collect::<Vec<_>>(), [false, false, true]);
        let beyond = spec(&[], &[(1, &[(PMIX_STDIN_TGT, one)]), (2, &[])]);
        assert_eq!(beyond.unwrap_err(), Status::ERR_BAD_PARAM);
    }
}
