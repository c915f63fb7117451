//! The plan of a job: the options of `iof run`, checked. Nothing is started or created for it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Instant;

use iof_engine::{App, Config, JobSpec, LaunchError, Mpi, Policy, Pty, Rendezvous, TorchMaster};
use iof_proto::{Nspace, Rank};
use iof_remote::hosts::host_of;
use iof_remote::{Node, Relatives, Template};

use crate::args::RunArgs;
use crate::commands::log;
use crate::error::Failure;
use crate::events::stdin::StdinPlan;
use crate::nodes::launch;
use crate::outputs::output::{Outputs, WrittenOutputs};
use crate::processes::guardian::{self, SELF};
use crate::run::app::apps;
use crate::run::name;
use crate::terminal::keyboard::window_size;

/// All that the options determine about a job.
pub struct Plan<'a> {
    pub args: &'a RunArgs,
    /// The time when the command began.
    pub began: Instant,
    /// The name of the job, unless the user has not chosen it and a running job has it.
    pub name: Nspace,
    pub spec: JobSpec,
    pub config: Config,
    pub outputs: Outputs<'a>,
    pub stdin: StdinPlan,
    /// The rank at whose terminal the command's stdin is typed.
    pub typed: Option<Rank>,
    /// The nodes of the ranks, if these are others, and the command that reaches them.
    pub nodes: Option<(Vec<Node>, Template)>,
    /// The jobs on nodes whose ranks may connect to each other.
    pub relatives: Relatives,
    /// The number of ranks that may run on this node, if it is limited.
    pub slots: Option<u64>,
}

impl<'a> Plan<'a> {
    /// Checks the options.
    pub fn new(args: &'a RunArgs) -> Result<Plan<'a>, Failure> {
        let began = Instant::now();
        let apps = apps(&args.app)?;
        let nprocs: u64 = apps.iter().map(|app| u64::from(app.nprocs)).sum();
        let nodes = args.nodes.choose(nprocs)?;
        if args.keep.is_some() && nodes.is_some() {
            return Err(Failure::usage("--keep keeps the output of ranks on this node only: leave it out"));
        }
        if args.ending.error_lines.is_some_and(|count| count > 0) && nodes.is_some() {
            return Err(Failure::usage("--error-lines is for ranks on this node only: leave it out"));
        }
        let slots = args.nodes.slots()?;
        let writes = if nodes.is_some() { WrittenOutputs::FrontEnd } else { WrittenOutputs::All };
        let outputs = args.output.prepare(Some(nprocs), writes)?;
        if let Some(option) = args.output.redirect.error_option().filter(|_| args.merge_at_source) {
            return Err(Failure::Usage(format!(
                "{option} cannot be combined with --merge-at-source, which leaves nothing on stderr: leave one out"
            )));
        }
        if let Some((_, template)) = &nodes {
            launch::check(args, &outputs, template)?;
        }
        let stdin = args.stdin.plan(nprocs)?;
        let ptys = ptys(args);
        let has_pty = |rank: &Rank| ptys.contains_key(rank) || ptys.contains_key(&Rank::WILDCARD);
        let typed = stdin.inherits().filter(has_pty);
        let stdin = if nodes.is_some() { stdin.over_nodes(typed) } else { stdin };
        let config = config(args, nodes.is_some())?;
        let mut spec = spec(args, apps, nodes.as_ref().map_or(&[], |(nodes, _)| nodes))?;
        // Tools of PMIx attach on one node only.
        spec.pmix_tools.take_if(|_| nodes.is_some());
        (spec.stdin, spec.own_stdin, spec.ptys) = (stdin.ranks.clone(), stdin.own(), ptys);
        let last_pty = spec.ptys.keys().copied().filter(|rank| *rank != Rank::WILDCARD).max();
        if let Some(rank) = last_pty.filter(|rank| u64::from(rank.0) >= nprocs) {
            return Err(Failure::usage(LaunchError::UnknownPtyRank { rank, ranks: nprocs }));
        }
        let relatives = Relatives::default();
        Ok(Plan {
            args,
            began,
            name: spec.nspace.clone(),
            spec,
            config,
            outputs,
            stdin,
            typed,
            nodes,
            relatives,
            slots,
        })
    }
}

/// Returns the job, without its stdin and ptys. If the user has not named it, it has the same name in
/// each run of a program, so that files have the same names.
pub(super) fn spec(args: &RunArgs, mut apps: Vec<App>, nodes: &[Node]) -> Result<JobSpec, Failure> {
    apps.iter_mut().for_each(|app| app.merge_stderr = args.merge_at_source);
    let of_program = || apps.first().and_then(|app| name::of_program(Path::new(&app.program)));
    let nspace = match args.nspace.clone().or_else(of_program) {
        Some(nspace) => nspace,
        None => Nspace::new("job").map_err(Failure::running)?,
    };
    let mut spec = JobSpec::new(nspace, apps);
    spec.grace = args.grace;
    spec.kill_on_bad_exit = args.ending.kill_on_bad_exit();
    spec.kill_wait = args.ending.kill_wait;
    spec.timeout = args.ending.timeout;
    spec.mpi = args.mpi;
    // libpmix listens for tools on a port that other users can reach, so they must be asked for.
    spec.pmix_tools = (args.mpi == Mpi::Pmix).then(|| SELF.into());
    spec.binding = args.bind_to;
    spec.torch_master = args.ranks_env.then(|| torch_master(nodes)).transpose()?;
    Ok(spec)
}

/// Returns the place where ranks on these nodes, or without any on this node, meet by PyTorch.
fn torch_master(nodes: &[Node]) -> Result<TorchMaster, Failure> {
    let first = nodes.iter().find(|node| node.ranks.contains(&Rank(0)));
    let host = first.map_or("127.0.0.1", |node| host_of(&node.host)).to_owned();
    // It is free, and rank 0 listens on it soon.
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|listener| listener.local_addr());
    let port = listener.map_err(|error| Failure::running(format!("no port is free for torch: {error}")))?;
    Ok(TorchMaster { host, port: port.port() })
}

/// Returns the settings of the pseudo-terminals, by rank.
fn ptys(args: &RunArgs) -> BTreeMap<Rank, Pty> {
    // The echo of a file or a pipe would be output that no rank has written.
    let echo = io::stdin().is_terminal();
    let pty = Pty { size: window_size(), echo, data: !echo };
    args.pty.iter().flat_map(|ranks| &ranks.0).map(|rank| (*rank, pty)).collect()
}

pub(super) fn config(args: &RunArgs, has_nodes: bool) -> Result<Config, Failure> {
    let mut config = Config::new(args.rendezvous());
    if let Rendezvous::Session(Some(directory)) = &config.rendezvous
        && fs::metadata(directory).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    {
        let missing = format!("--rendezvous-dir {}: no such directory", directory.display());
        return Err(Failure::Usage(format!("{missing}: create it with mode 0700")));
    }
    config.backend = args.backend;
    config.cache_size = args.cache_size;
    config.cache_total = args.cache_total().map_err(Failure::Usage)?;
    // What the ranks of other nodes write is dropped there, if at all.
    config.policy = if has_nodes { Policy::Block } else { args.drop };
    config.log = log::config()?;
    config.guardian = guardian::program();
    Ok(config)
}
