//! The parts that a front end asks an agent to start: the engine, the job, and the readers of its
//! output.

use std::collections::BTreeSet;
use std::sync::Arc;

use iof_engine::{BackendKind, Engine, JobSpec, Rendezvous, StartError, Stdin};
use iof_nodes::NodeStart;
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
    start: &mut NodeStart,
    host: &Arc<AgentHost>,
    hooks: &dyn AgentHooks,
) -> Result<(Engine, OutputReaders), StartRefusal> {
    let node = &start.config;
    let mut config = hooks.config()?;
    config.backend = node.backend.as_deref().map(backend_named).transpose()?;
    config.cache_size = node.cache_size;
    config.cache_total = node.cache_total;
    config.policy = node.policy;
    config.rendezvous = match &node.rendezvous {
        Rendezvous::Session(directory) => Rendezvous::Agent(directory.clone()),
        other => other.clone(),
    };
    let engine = match Engine::start_with(config.clone(), Arc::<AgentHost>::clone(host)) {
        // The environment of another node may name a directory that this node does not have.
        Err(StartError::Rendezvous(error)) if config.rendezvous == Rendezvous::Agent(None) => {
            let name = gethostname().unwrap_or_default();
            tracing::warn!("tools cannot attach on {}: {error}", name.display());
            config.rendezvous = Rendezvous::None;
            Engine::start_with(config, Arc::<AgentHost>::clone(host))
        }
        started => started,
    };
    let engine = engine.map_err(|error| hooks.start_failed(error))?;
    for app in &mut start.spec.apps {
        app.env.splice(..0, start.config.env.iter().cloned());
    }
    // The readers register before the job exists, so that they receive its first byte.
    let bundles = Bundles::attach(&engine, start)?;
    let spare_files = engine.check(&start.spec).map_err(StartRefusal::usage)?;
    let files = start.config.files.as_ref().map(|_| hooks.open_files(&engine, start, spare_files));
    let files = files.transpose()?;
    Ok((engine, OutputReaders { bundles, files }))
}

/// Returns the backend with this name.
fn backend_named(name: &str) -> Result<BackendKind, StartRefusal> {
    let found = [BackendKind::IoUring, BackendKind::Epoll].into_iter().find(|kind| kind.to_string() == name);
    found.ok_or_else(|| StartRefusal::usage("unknown backend"))
}

/// Returns the rank to whose terminal stdin is typed, if any.
pub(super) fn typed(spec: &JobSpec, ranks: &BTreeSet<Rank>) -> Option<Rank> {
    ranks.iter().copied().find(|rank| spec.stdin_of(*rank) == Stdin::Inherit)
}
