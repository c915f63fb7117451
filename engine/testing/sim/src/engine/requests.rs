//! The requests of honest tools.

use iof_core::Grant;
use iof_proto::directive::key;
use iof_proto::log::key as log_key;
use iof_proto::query::key as query_key;
use iof_proto::{Channels, Directives, Info, InfoValue, Log, Nspace, Position, Proc, Query, Rank};
use iof_shm_ring::{Policy, Start};

use super::EngineWorld;
use super::jobs::{MAX_RANKS, NAMES, name};
use super::pusher::PushPlan;
use super::registration::Pull;
use super::stdins::PushRequest;
use super::tool::{Manner, Request, Tool};
use crate::driver::{OWN_USER, PeerCredentials};
use crate::rng::Rng;

/// Most registrations of an honest tool.
const MAX_REGISTRATIONS: usize = 6;
/// Most pushes of an honest tool.
pub const MAX_PUSHES: usize = 3;

/// A key that only the host knows.
const THEIR_KEY: &str = "their.key";

fn proc(rng: &mut Rng) -> Proc {
    let rank = rng.pick(&[Rank(0), Rank(1), Rank(3), Rank::WILDCARD, Rank::WILDCARD]);
    Proc::new(name(rng.index(3)), rank)
}

impl EngineWorld {
    /// Returns the index of a tool.
    pub(super) fn tool(&self, actor: usize) -> Option<usize> {
        actor.checked_rem(self.tools.len())
    }

    /// Returns the index of an honest tool that is attached.
    pub(super) fn honest_tool(&self, actor: usize) -> Option<usize> {
        self.tool(actor).filter(|index| {
            let tool = &self.tools[*index];
            tool.runs() && tool.page.is_some() && !tool.lost
        })
    }

    /// A tool connects.
    pub(super) fn new_tool(&mut self, rng: &mut Rng) {
        if self.tools.len() >= self.setting.most_connections() {
            return;
        }
        let manners =
            [Manner::Prompt, Manner::Slow, Manner::Slow, Manner::Slow, Manner::Silent, Manner::Hostile];
        let (manner, own) = if rng.chance(64) {
            (
                rng.pick(&[Manner::Prompt, Manner::Slow]),
                Some(rng.pick(&[Grant::Block, Grant::Spawned, Grant::Never])),
            )
        } else {
            (rng.pick(&manners), None)
        };
        let uid = rng.pick(&[OWN_USER, OWN_USER, 7]);
        let credentials = PeerCredentials { pid: rng.below(self.setting.processes()) as u32, uid, gid: 0 };
        let room = rng.pick(&[64, 4096, 1 << 16]);
        if let Ok(id) = self.engine.connect(credentials, own, room) {
            self.tools.push(Tool::new(manner, own, (id, credentials), &mut self.engine));
        }
    }

    /// A tool pulls.
    pub(super) fn pull(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.honest_tool(actor) else { return };
        let procs = (0..=rng.below(2)).map(|_| proc(rng)).collect();
        self.pull_procs(index, procs, rng);
    }

    /// A tool pulls processes.
    pub(super) fn pull_procs(&mut self, index: usize, procs: Vec<Proc>, rng: &mut Rng) {
        let (engine, tool) = (&mut self.engine, &mut self.tools[index]);
        if tool.registrations.len() + tool.requests.len() >= MAX_REGISTRATIONS {
            return;
        }
        let past =
            procs.iter().map(|proc| (proc.nspace.clone(), self.truth.past_runs(&proc.nspace))).collect();
        let channels = rng.pick(&[Channels::ALL, Channels::STDOUT, Channels::STDOUT | Channels::STDERR]);
        let start = rng.pick(&[Start::Oldest, Start::Oldest, Start::Now]);
        let persistent = rng.chance(128);
        let drop = rng.pick(&[None, None, None, Some(Policy::DropOldest), Some(Policy::DropNewest)]);
        let (mut directives, mut options) = (Vec::new(), Directives { drop, ..Directives::default() });
        directives.extend(drop.map(|drop| {
            let oldest = drop == Policy::DropOldest;
            Info::new(if oldest { key::PMIX_IOF_DROP_OLDEST } else { key::PMIX_IOF_DROP_NEWEST }, true)
        }));
        if rng.chance(48) {
            let size = rng.pick(&[1u32, 60_000]);
            options.cache_size = Some(size);
            directives.push(Info::new(key::PMIX_IOF_CACHE_SIZE, size));
        }
        if rng.chance(48) {
            let size = rng.size(8192) as u32;
            options.buffering_size = Some(size);
            directives.push(Info::new(key::PMIX_IOF_BUFFERING_SIZE, size));
        }
        let reports_ranks = tool.registrations.len().is_multiple_of(2);
        let pull = Pull {
            procs: procs.clone(),
            channels,
            start,
            persistent,
            reports_ranks,
            own: tool.own,
            directives: options,
            past,
        };
        let from = if start == Start::Oldest { Position::Oldest } else { Position::Newest };
        let asked = iof_tool::Pull::new(procs, channels).from(from);
        let asked = iof_tool::Pull { persistent, reports_ranks, directives, ..asked };
        tool.request(engine, Request::Pull(pull), |side| side.pull(&asked));
    }

    /// A tool spawns a job, or pulls one that it has spawned.
    pub(super) fn spawn_of_tool(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.honest_tool(actor) else { return };
        let tool = &mut self.tools[index];
        if let Some(nspace) = self.truth.spawns.last_of(tool.id)
            && rng.chance(160)
        {
            return self.pull_procs(index, vec![Proc::all(nspace)], rng);
        }
        let (number, spawn) = self.truth.spawns.of_tool(tool.id, rng);
        tool.request(&mut self.engine, Request::Spawn(number), |side| side.spawn(&spawn));
    }

    /// A tool ends a registration.
    pub(super) fn deregister(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.honest_tool(actor) else { return };
        let (engine, tool) = (&mut self.engine, &mut self.tools[index]);
        let handlers: Vec<u32> = tool.registrations.keys().copied().collect();
        if let Some(handler) = handlers.get(rng.index(handlers.len())) {
            tool.deregister(engine, *handler);
        }
    }

    /// A tool begins a push, or asks for the slow targets of one; or a rank reads its stdin.
    pub(super) fn stdin(&mut self, actor: usize, rng: &mut Rng) {
        if rng.chance(160) {
            return self.read_stdin(actor, rng.size(8192) as usize);
        }
        let Some(index) = self.honest_tool(actor) else { return };
        let (engine, tool) = (&mut self.engine, &mut self.tools[index]);
        if let Some(push) = tool.pushes.keys().next().copied()
            && rng.chance(64)
        {
            let cut_off = rng.chance(128).then(|| rng.below(4096));
            let id = (tool.id, push);
            cut_off.into_iter().for_each(|position| self.truth.stdins.note_cut_off(id, position));
            return tool.request(engine, Request::SlowTargets(push), |side| side.slow_targets(push, cut_off));
        }
        self.push(actor, rng);
    }

    /// A tool begins a push, unless it has several.
    pub(super) fn push(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.honest_tool(actor) else { return };
        let (engine, tool) = (&mut self.engine, &mut self.tools[index]);
        let begun = tool.requests.values().filter(|request| matches!(request, Request::Push(_))).count();
        if tool.pushes.len() + begun >= MAX_PUSHES {
            return;
        }
        let targets: Vec<Proc> = (0..=rng.below(2)).map(|_| proc(rng)).collect();
        let mut directives = vec![Info::new(key::PMIX_IOF_CACHE_SIZE, 4096u32)];
        let completes = rng.chance(32);
        if completes {
            directives.push(Info::new(key::PMIX_IOF_COMPLETE, true));
        }
        let partial = rng.chance(160);
        if partial {
            directives.push(Info::new(key::IOF_PARTIAL, true));
        }
        let (stdins, own) = (&mut self.truth.stdins, tool.own);
        let plan = PushPlan { size: rng.size(40_000), content: stdins.next_content() };
        let asked = PushRequest { content: plan.content, targets: targets.clone(), own, partial, completes };
        let push = iof_tool::Push { targets, directives };
        let id = tool.id;
        tool.request(engine, Request::Push(plan), |side| {
            let (number, message) = side.push(&push, None);
            stdins.note_request((id, number), asked);
            (number, message)
        });
    }

    /// A tool queries, logs or signals.
    pub(super) fn small_request(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.honest_tool(actor) else { return };
        let (engine, tool) = (&mut self.engine, &mut self.tools[index]);
        match rng.below(4) {
            0 => {
                let keys: Vec<&str> =
                    rng.pick(&[&["iof.qry.stats"][..], &["pmix.qry.ns"], &["their.key"]]).to_vec();
                let queries = vec![Query::new(keys)];
                tool.request(engine, Request::Query(None), |side| side.query(queries));
            }
            1 => {
                let (named, signal) = (proc(rng), rng.below(70) as i32);
                // Some name a rank twice.
                let procs = vec![named; if signal % 2 == 0 { 1 } else { 2 }];
                let request = Request::Signal(procs.clone(), signal);
                tool.request(engine, request, |side| side.signal(procs, signal));
            }
            _ => {
                let channels = [
                    &[log_key::PMIX_LOG_STDOUT][..],
                    &[log_key::PMIX_LOG_STDOUT, log_key::PMIX_LOG_STDERR],
                    &[log_key::PMIX_LOG_JOB_RECORD, log_key::PMIX_LOG_STDERR],
                    &["their.channel"],
                ];
                let mut log = Log::to(rng.pick(&channels).to_vec(), "a message\n");
                let once = Info::new(log_key::PMIX_LOG_ONCE, true);
                log.directives.extend(rng.chance(64).then_some(once));
                let source = proc(rng);
                log.directives.push(Info {
                    key: log_key::PMIX_LOG_SOURCE.into(),
                    value: InfoValue::Proc(source),
                    required: false,
                });
                tool.request(engine, Request::Log(None), |side| side.log(log));
            }
        }
    }

    /// A tool queries the engine and its host.
    pub(super) fn query(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.honest_tool(actor) else { return };
        let mut queries: Vec<Query> = (0..=rng.below(2)).map(|_| any_query(rng)).collect();
        queries.last_mut().expect("a query").keys.push(THEIR_KEY.to_owned());
        let (number, queries) = self.truth.queries.add(queries);
        self.tools[index].request(&mut self.engine, Request::Query(Some(number)), |side| side.query(queries));
    }

    /// A tool or the embedder logs a message for a process.
    pub(super) fn log(&mut self, actor: usize, rng: &mut Rng) {
        let nspace = match self.job(actor >> 8) {
            Some(index) if rng.chance(224) => self.jobs.list[index].nspace.clone(),
            _ => name(rng.index(4)),
        };
        let remote = Rank(MAX_RANKS);
        let rank = rng.pick(&[remote, remote, Rank(MAX_RANKS + 1), Rank(0), Rank::WILDCARD, Rank::UNDEF]);
        let channels = rng.pick(&[
            &[log_key::PMIX_LOG_STDOUT][..],
            &[log_key::PMIX_LOG_STDERR],
            &[log_key::PMIX_LOG_STDOUT, log_key::PMIX_LOG_STDERR],
            &[log_key::PMIX_LOG_JOB_RECORD, log_key::PMIX_LOG_STDERR, log_key::PMIX_LOG_STDOUT],
        ]);
        let filling = "x\ny".repeat(rng.size(3000) as usize);
        let text = format!("message {}{filling}{}", self.truth.messages.count(), rng.pick(&["", "\n"]));
        let source = Proc::new(nspace, rank);
        let mut log = Log::to(channels.to_vec(), &text);
        log.directives.extend(rng.chance(64).then(|| Info::new(log_key::PMIX_LOG_ONCE, true)));
        let value = InfoValue::Proc(source.clone());
        log.directives.push(Info { value, ..Info::new(log_key::PMIX_LOG_SOURCE, true) });
        // A silent host, and the threads that it stands for, would not answer before the end of the run.
        let is_answered = !(self.setting.silent_host && channels.contains(&log_key::PMIX_LOG_JOB_RECORD));
        if rng.chance(64) && is_answered {
            return self.log_of_embedder(source, &text, &log);
        }
        if let Some(index) = self.honest_tool(actor) {
            let number = self.add_message(source, &text);
            self.tools[index].request(&mut self.engine, Request::Log(Some(number)), |side| side.log(log));
        }
    }
}

/// Returns a query that is limited to a job, to a rank, or not.
fn any_query(rng: &mut Rng) -> Query {
    let mut keys = vec![
        query_key::PMIX_QUERY_PROC_TABLE,
        query_key::PMIX_QUERY_PROC_TABLE,
        query_key::PMIX_QUERY_LOCAL_PROC_TABLE,
        query_key::PMIX_QUERY_NAMESPACES,
        query_key::PMIX_QUERY_NAMESPACE_INFO,
    ];
    let name = rng.pick(&NAMES);
    let rank = rng.pick(&[Rank(0), Rank(1), Rank(MAX_RANKS), Rank::WILDCARD]);
    let proc = Proc::new(Nspace::new(name).expect("a valid name"), rank);
    let limit = match rng.below(4) {
        0 => Some(Info::new(query_key::PMIX_NSPACE, name)),
        1 => Some(Info { value: InfoValue::Proc(proc), ..Info::new(query_key::PMIX_PROCID, true) }),
        _ => None,
    };
    keys.push(if limit.is_some() { query_key::PMIX_QUERY_JOB_STATUS } else { query_key::IOF_QUERY_STATS });
    let keys = (0..=rng.below(3)).map(|_| rng.pick(&keys));
    Query { qualifiers: limit.into_iter().collect(), ..Query::new(keys) }
}
