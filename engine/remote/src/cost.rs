//! The cost of forwarding for the agents of a job.

use std::collections::BTreeMap;
use std::time::Duration;

use iof_engine::Engine;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// The cost of forwarding for the agents of a job that are over.
#[derive(Clone, Debug, Default)]
pub struct AgentCosts {
    /// The number of agents.
    pub agents: usize,
    /// The sum of the user CPU times of their processes, without the ranks.
    pub user: Duration,
    /// The sum of their system CPU times.
    pub system: Duration,
    /// The number of agents with each backend, and the reason why it was chosen if that was not
    /// requested.
    pub backends: BTreeMap<String, usize>,
}

impl AgentCosts {
    /// Adds the cost of an agent, in microseconds, and its backend.
    pub(crate) fn add(&mut self, user: u64, system: u64, backend: String) {
        self.agents = self.agents.saturating_add(1);
        self.user = self.user.saturating_add(Duration::from_micros(user));
        self.system = self.system.saturating_add(Duration::from_micros(system));
        let count = self.backends.entry(backend).or_default();
        *count = count.saturating_add(1);
    }
}

/// Returns the user and the system CPU time of this process, without its children.
pub fn cpu_time() -> nix::Result<(Duration, Duration)> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((duration(usage.user_time()), duration(usage.system_time())))
}

/// Returns the backend of an engine, with the reason why it is not io_uring although no backend was
/// requested.
pub fn backend_text(engine: &Engine) -> String {
    let reason = engine.fallback_reason().map(|reason| format!("; {reason}")).unwrap_or_default();
    format!("{}{reason}", engine.backend())
}

fn duration(time: TimeVal) -> Duration {
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec())).saturating_add(Duration::from_micros(part(time.tv_usec())))
}
