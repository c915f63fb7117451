//! What a front end asks an agent to start: the engine, the job, and the readers of its output.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use iof_engine::{
    App, BackendKind, Engine, Interaction, JobSpec, Policy, Pty, Rendezvous, StartError, Stdin, WindowSize,
};
use iof_nodes::{AgentSocket, DropPolicy, Program, RankStdin, Start, Terminal};
use iof_proto::Rank;
use nix::unistd::gethostname;

use super::bundles::Bundles;
use super::hooks::{AgentHooks, FileWriter, StartRefusal};
use super::host::AgentHost;

/// The readers of the ranks' output.
pub(super) struct OutputReaders {
    pub(super) bundles: Bundles,
    pub(super) files: Option<Box<dyn FileWriter>>,
}

/// Starts the engine and attaches the readers of the ranks' output. No rank runs yet.
pub(super) fn prepare(
    start: &Start,
    host: &Arc<AgentHost>,
    hooks: &dyn AgentHooks,
) -> Result<(Engine, JobSpec, OutputReaders), StartRefusal> {
    let backend = start.backend.as_deref().map(backend_named).transpose()?;
    let mut config = hooks.config()?;
    config.cache_size = start.cache_size;
    config.cache_total = start.cache_total;
    config.policy = match start.drop {
        DropPolicy::None => Policy::Block,
        DropPolicy::Newest => Policy::DropNewest,
        DropPolicy::Oldest => Policy::DropOldest,
    };
    config.backend = backend;
    config.rendezvous = match &start.socket {
        AgentSocket::None => Rendezvous::None,
        AgentSocket::Default => Rendezvous::Agent(None),
        AgentSocket::In(directory) => Rendezvous::Agent(Some(PathBuf::from(directory))),
    };
    let engine = match Engine::start_with(config.clone(), Arc::<AgentHost>::clone(host)) {
        // The environment of another node may name a directory that this node does not have.
        Err(StartError::Rendezvous(error)) if start.socket == AgentSocket::Default => {
            let node = gethostname().unwrap_or_default();
            hooks.warn(&format!("tools cannot attach on {}: {error}", node.display()));
            config.rendezvous = Rendezvous::None;
            Engine::start_with(config, Arc::<AgentHost>::clone(host))
        }
        started => started,
    };
    let engine = engine.map_err(|error| hooks.start_failed(error))?;
    let spec = spec(start);
    // The readers register before the job exists, so that they receive its first byte.
    let bundles = Bundles::attach(&engine, &spec.nspace, start)?;
    let spare_files = engine.check(&spec).map_err(StartRefusal::usage)?;
    let files = start.files.as_ref().map(|_| hooks.open_files(&engine, &spec, start, spare_files));
    let files = files.transpose()?;
    Ok((engine, spec, OutputReaders { bundles, files }))
}

/// Returns the backend with this name.
fn backend_named(name: &str) -> Result<BackendKind, StartRefusal> {
    let found = [BackendKind::IoUring, BackendKind::Epoll].into_iter().find(|kind| kind.to_string() == name);
    found.ok_or_else(|| StartRefusal::usage("unknown backend"))
}

fn spec(start: &Start) -> JobSpec {
    let app = |program: &Program| {
        let mut app = App::new(&program.program, &program.args).ranks(program.nprocs);
        app.env = start.env.iter().chain(&program.env).cloned().collect();
        app.cwd = Some(PathBuf::from(&program.cwd));
        app.merge_stderr = program.merge_stderr;
        app
    };
    let mut spec = JobSpec::new(start.nspace.clone(), start.programs.iter().map(app).collect());
    spec.stdin = start
        .stdin
        .iter()
        .map(|(rank, stdin)| match stdin {
            RankStdin::Forwarded | RankStdin::Answered | RankStdin::Keyed => (*rank, Stdin::Pipe),
            RankStdin::Typed => (*rank, Stdin::Inherit),
            RankStdin::File(path) => (*rank, Stdin::File(PathBuf::from(path))),
        })
        .collect();
    let pty = |terminal: &Terminal| Pty {
        size: WindowSize { rows: terminal.rows, columns: terminal.columns },
        echo: terminal.echo,
        data: !terminal.echo,
    };
    let interaction = |(rank, stdin): (&Rank, &RankStdin)| {
        let interaction = match stdin {
            RankStdin::Forwarded | RankStdin::File(_) => Interaction::None,
            RankStdin::Answered => Interaction::Piped,
            RankStdin::Keyed => Interaction::Typed,
            RankStdin::Typed => Interaction::Unbuffered,
        };
        (*rank, interaction)
    };
    spec.interactions = start.stdin.iter().map(interaction).collect();
    spec.ptys = start.ptys.iter().map(|(rank, terminal)| (*rank, pty(terminal))).collect();
    spec.grace = start.grace.map(Duration::from_millis);
    spec.hide_launcher = start.hide_launcher;
    spec.local = Some(start.ranks.clone());
    spec
}

/// Returns the rank to whose terminal stdin is typed, if any.
pub(super) fn typed(start: &Start) -> Option<Rank> {
    let typed = start.stdin.iter().find(|(_, stdin)| **stdin == RankStdin::Typed);
    typed.map(|(rank, _)| *rank)
}
