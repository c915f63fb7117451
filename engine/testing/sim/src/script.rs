//! Scripts: the decisions of a run, made in advance from its seed.
//!
//! A decision does not depend on the state of the run. Its operands are reduced to what exists when
//! it is carried out. So any part of a script is a script, which makes shrinking possible.

use iof_proto::{Quota, QuotaScope};

use crate::driver::Limits;
use crate::rng::Rng;

/// The subject of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A rank starts.
    Start,
    /// A rank writes to one of its channels, a little or much.
    Write,
    /// A rank is stopped, or continues.
    Stop,
    /// A rank closes one of its channels.
    CloseChannel,
    /// A rank exits.
    Exit,
    /// The capture thread runs a turn, on a kernel that answers some requests.
    Turn,
    /// A tool attaches to the engine.
    NewTool,
    /// A tool registers for a stream.
    Attach,
    /// A tool ends a registration.
    Deregister,
    /// A tool reads, or does whatever it does.
    Tool,
    /// The engine handles messages of a tool.
    Serve,
    /// A tool is stopped, or continues.
    Pause,
    /// A tool is killed, or shuts its receiving side.
    Kill,
    /// The engine notices that a tool was killed.
    Reap,
    /// A stream's capacity or policy is changed.
    Reconfigure,
    /// The tools that may hold a stream back stop, and its rank writes until the stream has grown,
    /// if it is small.
    Starve,
    /// The backlog of a stream is released.
    ReleaseBacklog,
    /// The kernel's memory runs out, or there is some again.
    Memory,
    /// The launcher closes a source.
    Close,
    /// The launcher finishes a source.
    Finish,
    /// The launcher removes a source.
    Remove,
    /// A pushing tool, a target or the launcher does something about stdin.
    Stdin,
    /// A job begins, or all of its ranks are registered.
    Job,
    /// The host delivers output of a remote rank, or ends the remote part of a job.
    Deliver,
    /// The host answers a call.
    Host,
    /// A tool queries, logs or signals.
    Request,
    /// The engine serves a tool's connection.
    Connection,
    /// Time passes.
    Clock,
    /// The capture thread ends, because the kernel fails.
    EndCapture,
    /// A rank begins, ends or aborts MPI.
    Mpi,
    /// The host takes no stdin for now, or again.
    Flow,
    /// The embedder signals a job, logs, or reports an exit.
    Embedder,
    /// A tool queries the engine and its host.
    Query,
    /// A tool or the embedder logs a message for a process.
    Log,
    /// A rank publishes, looks up or removes values, or is the first of a group.
    Exchange,
    /// A tool or a rank spawns a job, or a start comes to its end.
    Spawn,
}

/// The part of the engine that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Streams, capture and the reading side of tools, with a stand-in for the engine.
    Streams,
    /// The core of the engine, with all of these.
    Engine,
    /// The same, with ranks of MPI, an embedder that signals, logs and reports exits, and a host that
    /// pauses stdin, signals late, and delivers output with gaps and broken ends.
    Embedder,
    /// The same, with ranks whose exit statuses are unknown, a host that answers queries with rows and
    /// values, and messages that are logged for remote ranks.
    Host,
    /// The engine with all of [`Subject::Embedder`], ranks that exchange values, and jobs that tools and
    /// ranks spawn.
    Clients,
}

impl Subject {
    /// Returns whether there is an embedder that does more than start jobs.
    pub fn has_embedder(self) -> bool {
        matches!(self, Subject::Embedder | Subject::Host | Subject::Clients)
    }
}

/// Each kind with its weight in runs of streams. The first [`ALWAYS`] are in every script.
const STREAMS: &[(Kind, u64)] = &[
    (Kind::Start, 24),
    (Kind::Write, 240),
    (Kind::Turn, 320),
    (Kind::Tool, 200),
    (Kind::Serve, 120),
    (Kind::NewTool, 12),
    (Kind::Attach, 80),
    (Kind::Stop, 8),
    (Kind::CloseChannel, 4),
    (Kind::Exit, 4),
    (Kind::Deregister, 8),
    (Kind::Pause, 16),
    (Kind::Kill, 3),
    (Kind::Reap, 8),
    (Kind::Reconfigure, 24),
    (Kind::Starve, 8),
    (Kind::ReleaseBacklog, 4),
    (Kind::Memory, 6),
    (Kind::Close, 2),
    (Kind::Finish, 2),
    (Kind::Remove, 8),
    (Kind::Stdin, 80),
];

/// Each kind with its weight in runs of the engine.
const ENGINE: &[(Kind, u64)] = &[
    (Kind::Job, 24),
    (Kind::Start, 40),
    (Kind::Write, 160),
    (Kind::Turn, 240),
    (Kind::Tool, 200),
    (Kind::Connection, 240),
    (Kind::NewTool, 16),
    (Kind::Attach, 60),
    (Kind::Host, 80),
    (Kind::Stop, 8),
    (Kind::CloseChannel, 6),
    (Kind::Exit, 16),
    (Kind::Deregister, 8),
    (Kind::Pause, 16),
    (Kind::Kill, 4),
    (Kind::Deliver, 40),
    (Kind::ReleaseBacklog, 4),
    (Kind::Memory, 6),
    (Kind::Remove, 16),
    (Kind::Stdin, 60),
    (Kind::Request, 30),
    (Kind::Clock, 30),
];
const ALWAYS: usize = 7;

/// The kinds that only runs with an embedder have besides, with their weights.
const EMBEDDER: &[(Kind, u64)] = &[(Kind::Mpi, 40), (Kind::Flow, 16), (Kind::Embedder, 24)];

/// The kinds that only runs of [`Subject::Host`] have besides, with their weights.
const HOST: &[(Kind, u64)] = &[(Kind::Query, 40), (Kind::Log, 40)];

/// The kinds that only runs of [`Subject::Clients`] have besides, with their weights.
const CLIENTS: &[(Kind, u64)] = &[(Kind::Exchange, 60), (Kind::Spawn, 60), (Kind::Kill, 4)];

/// One decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// The subject of the decision.
    pub kind: Kind,
    /// Which actor it is about.
    pub actor: u32,
    /// The seed of all that is random about it.
    pub seed: u32,
}

/// The properties of a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The part of the engine that runs.
    pub subject: Subject,
    /// Set if memory never runs out, so that a reader which keeps up must not lose a byte.
    pub calm: bool,
    /// The number of requests that fail, of 256.
    pub faults: u64,
    /// The largest cache in bytes.
    pub capacity: u64,
    /// The sum of all caches up to which streams grow, in bytes.
    pub cache_total: u32,
    /// Most sources whose streams exist at a time.
    pub sources: usize,
    /// Most tools at a time.
    pub tools: usize,
    /// Set if the engine ends after the script, with nothing completed, or the capture of an engine
    /// within it.
    pub ends_early: bool,
    /// Set if the tools of an engine may have few readers.
    pub few_slots: bool,
    /// Set if at the end the tools of an engine read everything before jobs are removed.
    pub drains_first: bool,
    /// Set if the host of an engine leaves some calls without an answer until all tools have left.
    pub silent_host: bool,
    /// The limits of an engine.
    pub limits: Limits,
    /// Set if at the end everything that does not depend on paused tools of an engine must end
    /// before they continue.
    pub leaves_paused: bool,
}

impl Setting {
    /// Returns whether more processes want to connect to the engine than it has places for.
    fn is_crowded(&self) -> bool {
        self.sources == 9 && self.tools == 6
    }

    /// Returns how many connections are made to the engine at a time, at most.
    pub fn most_connections(&self) -> usize {
        self.tools + if self.is_crowded() { 10 } else { 2 }
    }

    /// Returns how many processes connect to the engine.
    pub fn processes(&self) -> u64 {
        if self.is_crowded() { 12 } else { 3 }
    }
}

/// Makes the setting and the script of a run from its seed.
pub fn of_seed(subject: Subject, seed: u64, steps: usize) -> (Setting, Vec<Action>) {
    let mut rng = Rng::new(seed);
    let mut setting = Setting {
        subject,
        calm: rng.chance(128),
        faults: rng.pick(&[0, 8, 40]),
        capacity: rng.pick(&[16 << 10, 16 << 10, 24 << 10, 64 << 10]),
        cache_total: rng.pick(&[u32::MAX, u32::MAX, 64 << 10]),
        sources: rng.pick(&[3, 4, 6, 9]),
        tools: rng.pick(&[2, 4, 6]),
        ends_early: rng.chance(if subject == Subject::Streams { 32 } else { 64 }),
        few_slots: false,
        drains_first: false,
        silent_host: false,
        limits: Limits::default(),
        leaves_paused: false,
    };
    // Each run has weights of its own, so that rare combinations of kinds become common in some.
    let mut weights = Vec::new();
    let mut sum = 0;
    let kinds = match subject {
        Subject::Streams => STREAMS.to_vec(),
        Subject::Engine => ENGINE.to_vec(),
        Subject::Embedder => [ENGINE, EMBEDDER].concat(),
        Subject::Host => [ENGINE, EMBEDDER, HOST].concat(),
        Subject::Clients => [ENGINE, EMBEDDER, CLIENTS].concat(),
    };
    for (index, (kind, weight)) in kinds.iter().enumerate() {
        let factor = rng.pick(if index < ALWAYS { &[1, 4, 4, 16] } else { &[0, 1, 4, 16] });
        sum += weight * factor;
        weights.push((sum, *kind));
    }
    let action = |_| {
        let point = rng.below(sum);
        let index = weights.partition_point(|(end, _)| *end <= point);
        Action { kind: weights[index].1, actor: rng.word() as u32, seed: rng.word() as u32 }
    };
    let mut script: Vec<Action> = (0..steps).map(action).collect();
    // Chosen last, so that the other decisions do not depend on it.
    let end = rng.index(steps);
    if let Some(action) = script.get_mut(end)
        && subject != Subject::Streams
        && setting.ends_early
    {
        action.kind = Kind::EndCapture;
    }
    setting.few_slots = rng.chance(48);
    setting.drains_first = rng.chance(128);
    setting.silent_host = rng.chance(48);
    if rng.chance(128) {
        setting.limits = small_limits(&mut rng);
    }
    setting.leaves_paused = rng.chance(128);
    if subject == Subject::Clients && rng.chance(128) {
        limit_clients(&mut setting.limits, &mut rng);
    }
    (setting, script)
}

/// Sets limits on what ranks hold. A run reaches some of them, because they are small.
fn limit_clients(limits: &mut Limits, rng: &mut Rng) {
    use QuotaScope::{Engine, Job, Tool, User};
    let small = [
        (Quota::Published, User, [1, 3, 6]),
        (Quota::PublishedBytes, User, [10, 20, 40]),
        (Quota::AwaitedKeys, Tool, [1, 2, 3]),
        (Quota::AwaitedKeys, User, [1, 2, 3]),
        (Quota::Groups, User, [1, 2, 3]),
        (Quota::SpawnedJobs, Engine, [1, 2, 3]),
        (Quota::SpawnedRanks, Engine, [2, 3, 5]),
        (Quota::EndedSpawnedJobs, Engine, [1, 1, 2]),
        (Quota::Published, Job, [1, 2, 4]),
        (Quota::PublishedBytes, Job, [10, 15, 30]),
        (Quota::AwaitedKeys, Job, [1, 2, 3]),
        (Quota::Groups, Job, [1, 2, 3]),
        (Quota::SpawnedJobs, Job, [1, 2, 3]),
        (Quota::SpawnedRanks, Job, [2, 3, 5]),
    ];
    for (quota, scope, values) in small {
        if rng.chance(128) {
            limits.quotas.set(quota, scope, rng.pick(&values));
        }
    }
}

/// Returns limits. A run reaches some of them, because they are small. The seeds that found defects
/// depend on the order, so further limits are added at the end.
fn small_limits(rng: &mut Rng) -> Limits {
    use QuotaScope::{Engine, Process, Tool, User};
    const BYTES: [u64; 3] = [4 << 10, 8 << 10, 16 << 10];
    type Set = fn(&mut Limits, u64);
    let small: [(Set, [u64; 3]); 21] = [
        (|limits, value| limits.quotas.set(Quota::Registrations, Tool, value), [1, 2, 3]),
        (|limits, value| limits.quotas.set(Quota::Procs, Tool, value), [2, 3, 4]),
        (|limits, value| limits.quotas.set(Quota::Procs, Process, value), [2, 4, 6]),
        (|limits, value| limits.quotas.set(Quota::Procs, User, value), [3, 5, 8]),
        (|limits, value| limits.readers_per_tool = value as usize, [1, 1, 2]),
        (|limits, value| limits.forgotten_per_tool = value as usize, [1, 2, 4]),
        (|limits, value| limits.forgotten = value as usize, [1, 2, 4]),
        (
            |limits, value| {
                limits.quotas.set(Quota::Queries, Tool, value);
                limits.quotas.set(Quota::Logs, Tool, value);
            },
            [1, 1, 2],
        ),
        (|limits, value| limits.quotas.set(Quota::Logs, Engine, value), [1, 2, 3]),
        (|limits, value| limits.quotas.set(Quota::Logs, Process, value), [1, 1, 2]),
        (|limits, value| limits.quotas.set(Quota::LogBytes, Engine, value), [30, 1000, 10_000]),
        (|limits, value| limits.quotas.set(Quota::Pushes, Tool, value), [1, 1, 2]),
        (|limits, value| limits.pushes_per_target = value as usize, [1, 1, 2]),
        (|limits, value| limits.quotas.set(Quota::Pushes, Engine, value), [1, 2, 4]),
        (|limits, value| limits.quotas.set(Quota::Pushes, Process, value), [1, 1, 2]),
        (|limits, value| limits.quotas.set(Quota::OwedBytes, User, value), [4 << 10, 8 << 10, 12 << 10]),
        (|limits, value| limits.answers_waiting = value as usize, [1, 2, 4]),
        (|limits, value| limits.bytes_waiting = value as usize, [1, 100, 1000]),
        (|limits, value| limits.deferred_bytes = value as usize, [1, 50, 200]),
        (|limits, value| limits.quotas.set(Quota::PushBytes, Engine, value), BYTES),
        (|limits, value| limits.quotas.set(Quota::PushBytes, Process, value), BYTES),
    ];
    let mut limits = Limits::default();
    for (set, values) in small {
        if rng.chance(80) {
            set(&mut limits, rng.pick(&values));
        }
    }
    limits
}
