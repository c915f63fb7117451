//! Answers from the engine's own tables.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use iof_capture::{Counted, SourceId, StreamAnswer, StreamStep};
use iof_proto::attribute::{self, AttributeError, Given, Place};
use iof_proto::query::key;
use iof_proto::{
    Attributes, Channel, Failure, Info, JobInfo, NodeStream, Nspace, Proc, ProcInfo, ProcState, Rank,
    ReaderStats, Status, StreamStats, Value,
};
use iof_shm_ring::ReaderId;

use crate::Core;
use crate::ids::{PageId, PeerId, StreamName};
use crate::jobs::exit::{Exit, proc_state};
use crate::jobs::job::{JobState, Launching, RankState};
use crate::queries::query::CountedStream;
use crate::streams::reading::Reading;
use crate::streams::state::StreamState;

/// The functions of a tool, with the place of their attributes.
const FUNCTIONS: [(&str, Place); 4] = [
    ("PMIx_IOF_pull", Place::Pull),
    ("PMIx_IOF_push", Place::Push),
    ("PMIx_Query_info", Place::Qualifier),
    ("PMIx_Log", Place::LogDirective),
];

/// The processes and jobs that a query is about, as its qualifiers specify.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    nspaces: BTreeSet<Nspace>,
    ranks: BTreeSet<Rank>,
    procs: BTreeSet<Proc>,
    hosts: BTreeSet<String>,
    /// The numbers of named nodes.
    nodes: BTreeSet<u32>,
}

impl Scope {
    /// Parses qualifiers. Returns `None` if the engine does not know a required one.
    pub(crate) fn read(qualifiers: &[Info]) -> Result<Option<Scope>, Failure> {
        let bad = |reason: String| Failure { status: Status::ERR_BAD_PARAM, reason };
        let mut scope = Scope::default();
        for info in qualifiers {
            let given = match Given::new(info, Place::Qualifier) {
                Ok(given) => given,
                // A wrong value must not extend the answer, even if the qualifier is optional.
                Err(error @ AttributeError::Value { .. }) => return Err(error.into()),
                Err(_) if info.required => return Ok(None),
                Err(_) => continue,
            };
            match given.key() {
                key::PMIX_NSPACE => {
                    scope.nspaces.insert(Nspace::new(given.text()?).map_err(|error| bad(error.to_string()))?);
                }
                key::PMIX_RANK => {
                    scope.ranks.insert(Rank(given.number()?));
                }
                key::PMIX_PROCID => {
                    scope.procs.insert(given.proc()?.clone());
                }
                key::PMIX_HOSTNAME => {
                    scope.hosts.insert(given.text()?.to_owned());
                }
                key::PMIX_NODEID => {
                    scope.nodes.insert(given.number()?);
                }
                _ => return Err(given.unread().into()),
            }
        }
        let has_parts = !scope.nspaces.is_empty() || !scope.ranks.is_empty();
        if has_parts && !scope.procs.is_empty() {
            let reason = format!(
                "{} cannot be combined with {} or {}",
                key::PMIX_PROCID,
                key::PMIX_NSPACE,
                key::PMIX_RANK
            );
            return Err(bad(reason));
        }
        Ok(Some(scope))
    }

    fn is_all(&self) -> bool {
        self.nspaces.is_empty() && self.ranks.is_empty() && self.procs.is_empty() && self.hosts.is_empty()
    }

    /// Returns whether only the host knows a named node: the engine knows the number of its own, if
    /// all processes are there.
    fn has_unknown_node(&self, state: &Core) -> bool {
        let is_elsewhere = |job: &JobState| {
            job.delivered_ranks().into_iter().next().is_some()
                || job.ranks().any(|(_, rank)| rank.node().is_some())
        };
        self.nodes.iter().any(|number| *number > 0)
            || !self.nodes.is_empty() && state.jobs.iter().any(|(_, job)| is_elsewhere(job))
    }

    fn has_host(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.contains(host)
    }

    fn has_job(&self, nspace: &Nspace) -> bool {
        let named = self.nspaces.is_empty() || self.nspaces.contains(nspace);
        named && (self.procs.is_empty() || self.procs.iter().any(|proc| proc.nspace == *nspace))
    }

    fn has(&self, nspace: &Nspace, rank: Rank) -> bool {
        let matches = |named: Rank| named == rank || named == Rank::WILDCARD;
        let is_named = |proc: &Proc| proc.nspace == *nspace && matches(proc.rank);
        self.has_job(nspace)
            && (self.ranks.is_empty() || self.ranks.iter().any(|named| matches(*named)))
            && (self.procs.is_empty() || self.procs.iter().any(is_named))
    }

    /// Returns whether the scope includes a known rank of this job.
    fn has_some(&self, nspace: &Nspace, job: &JobState) -> bool {
        self.has(nspace, Rank::WILDCARD) || job.known_ranks().any(|rank| self.has(nspace, rank))
    }

    /// Returns the jobs of which the scope includes a part.
    fn jobs<'a>(&self, state: &'a Core) -> impl Iterator<Item = (&'a Nspace, &'a JobState)> {
        state.jobs.iter().filter(|(nspace, job)| self.has_some(nspace, job))
    }

    /// Returns the number of named jobs.
    fn named_jobs(&self) -> usize {
        let names = self.nspaces.iter().chain(self.procs.iter().map(|proc| &proc.nspace));
        names.collect::<BTreeSet<_>>().len()
    }

    /// Returns the rows, or `None` if processes were named and there are no rows.
    fn unless_none<T>(&self, rows: Vec<T>, value: fn(Vec<T>) -> Value) -> Option<Value> {
        (self.is_all() || !rows.is_empty()).then(|| value(rows))
    }
}

/// Returns the engine's value of `key`, or `None` if it has none. The engine knows nothing of
/// unknown jobs and ranks, whatever the key is.
///
/// # Errors
/// Fails if the key can be answered only for one job and the scope names several.
pub(crate) fn find(state: &Core, key: &str, scope: &Scope) -> Result<Option<Value>, Failure> {
    if scope.has_unknown_node(state) || !scope.is_all() && scope.jobs(state).next().is_none() {
        return Ok(None);
    }
    Ok(match key {
        key::PMIX_QUERY_NAMESPACES => Some(Value::Text(namespaces(state, scope))),
        key::PMIX_QUERY_JOB_STATUS if scope.named_jobs() > 1 => Some(Value::Jobs(jobs(state, scope))),
        key::PMIX_QUERY_JOB_STATUS => one_job(state, key, scope)?.map(|job| Value::Status(status(job))),
        key::PMIX_JOB_SIZE => {
            let size = one_job(state, key, scope)?.map(JobState::size);
            size.map(|size| Value::Infos(vec![Info::new(key, size)]))
        }
        // Numbers of the host replace those of the engine.
        key::PMIX_UNIV_SIZE | key::PMIX_QUERY_NUM_PSETS if state.settings.host_queries.contains(key) => None,
        key::PMIX_UNIV_SIZE => {
            let size = scope.jobs(state).fold(0u32, |sum, (_, job)| sum.saturating_add(job.size()));
            Some(Value::Infos(vec![Info::new(key, size)]))
        }
        // The engine has no sets of processes.
        key::PMIX_QUERY_NUM_PSETS => Some(Value::Infos(vec![Info::new(key, 0u32)])),
        key::PMIX_QUERY_PSET_NAMES => Some(Value::Text(String::new())),
        key::PMIX_QUERY_GROUP_NAMES => {
            let runs: BTreeSet<u64> = scope.jobs(state).map(|(_, job)| job.run()).collect();
            let groups = state.published.groups.keys().filter(|(run, _)| runs.contains(run));
            Some(Value::Text(groups.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(",")))
        }
        key::PMIX_QUERY_NAMESPACE_INFO => scope.unless_none(jobs(state, scope), Value::Jobs),
        key::PMIX_QUERY_PROC_TABLE => scope.unless_none(procs(state, scope, true), Value::Procs),
        key::PMIX_QUERY_LOCAL_PROC_TABLE | key::PMIX_LOCAL_PROCS => {
            scope.unless_none(procs(state, scope, false), Value::Procs)
        }
        key::PMIX_LOCAL_PEERS => {
            let ranks = procs(state, scope, false).into_iter().map(|info| info.proc.rank.to_string());
            let ranks: Vec<String> = ranks.collect();
            one_job(state, key, scope)?.filter(|_| !ranks.is_empty()).map(|_| Value::Text(ranks.join(",")))
        }
        key::PMIX_QUERY_SPAWN_SUPPORT => {
            let tools = attribute::at(Place::ToolSpawn).filter(|row| row.places.contains(&Place::PmixSpawn));
            let all = attribute::at(Place::Spawn).chain(tools).map(|row| row.key);
            Some(Value::Text(all.collect::<Vec<_>>().join(",")))
        }
        // Only tools of PMIx have some, which their server adds. The host may add others.
        key::PMIX_QUERY_DEBUG_SUPPORT => Some(Value::Text(String::new())),
        key::PMIX_QUERY_LOG_CHANNELS => {
            Some(Value::Text(state.logs.routes().keys(state.resources.has_syslog()).join(",")))
        }
        key::PMIX_QUERY_ATTRIBUTE_SUPPORT => Some(Value::Attributes(attributes(state))),
        key::IOF_QUERY_STATS => scope.unless_none(streams(state, scope), Value::Streams),
        _ => None,
    })
}

fn namespaces(state: &Core, scope: &Scope) -> String {
    let running = scope.jobs(state).filter(|(_, job)| status(job) == Status::EVENT_JOB_START);
    running.map(|(nspace, _)| nspace.as_str()).collect::<Vec<_>>().join(",")
}

fn one_job<'a>(state: &'a Core, key: &str, scope: &Scope) -> Result<Option<&'a JobState>, Failure> {
    let mut jobs = scope.jobs(state).map(|(_, job)| job);
    let (first, second) = (jobs.next(), jobs.next());
    if scope.named_jobs() <= 1 && second.is_none() {
        return Ok(first);
    }
    let reason = format!("{key} requires one job: name it with the qualifier {}", key::PMIX_NSPACE);
    Err(Failure::new(Status::ERR_BAD_PARAM, reason))
}

fn status(job: &JobState) -> Status {
    let has_ended = job.all_ranks_known() && job.has_exited();
    if !has_ended {
        return Status::EVENT_JOB_START;
    }
    match job.first_failure() {
        Some((_, Exit::Status(status))) if status.signal().is_some() => Status::ERR_JOB_ABORTED_BY_SIG,
        Some(_) => Status::ERR_JOB_NON_ZERO_TERM,
        None if job.exit_code().is_some_and(|code| code != 0) => Status::ERR_JOB_NON_ZERO_TERM,
        None => Status::EVENT_JOB_END,
    }
}

fn jobs(state: &Core, scope: &Scope) -> Vec<JobInfo> {
    let row = |(nspace, job): (&Nspace, &JobState)| {
        let status = status(job);
        let running = job.ranks().map(|(_, rank)| rank.executable());
        let launching = job.launching().map(|(_, rank)| rank.executable.as_str());
        let mut programs: Vec<&str> = running.chain(launching).collect();
        programs.dedup();
        JobInfo {
            nspace: nspace.clone(),
            procs: job.size(),
            status,
            exit_code: if status == Status::EVENT_JOB_START { None } else { job.exit_code() },
            command: programs.join(" : "),
            run: state.settings.run.wrapping_add(job.run().into()),
        }
    };
    scope.jobs(state).map(row).collect()
}

/// Returns the known processes of this node, or of all nodes.
fn procs(state: &Core, scope: &Scope, everywhere: bool) -> Vec<ProcInfo> {
    let (own, mut table) = (state.settings.node.as_str(), Vec::new());
    for (nspace, job) in state.jobs.iter() {
        let running = job.ranks().filter(|(_, rank)| everywhere || rank.node().is_none());
        let running = running.map(|(rank, state)| proc_info(own, (nspace, job), (rank, state)));
        let named = |rank, state| ProcInfo::new(Proc::new(nspace.clone(), rank), state);
        let launching = job.launching().map(|(rank, Launching { pid, executable, began, .. })| ProcInfo {
            pid: *pid,
            host: own.to_owned(),
            executable: executable.clone(),
            began: *began,
            ..named(rank, ProcState::Launching)
        });
        // The engine knows nothing else of these.
        let delivered = job.delivered_ranks().into_iter().filter(|_| everywhere);
        let delivered = delivered.map(|rank| named(rank, ProcState::Unknown));
        let is_named = |info: &ProcInfo| scope.has_host(&info.host) && scope.has(nspace, info.proc.rank);
        table.extend(running.chain(launching).chain(delivered).filter(is_named));
    }
    table.sort_by(|one, other| one.proc.cmp(&other.proc));
    table
}

/// Returns the line of a rank that was started, here on the node `own` or on another one.
pub(crate) fn proc_info(
    own: &str,
    (nspace, job): (&Nspace, &JobState),
    (rank, state): (Rank, &RankState),
) -> ProcInfo {
    ProcInfo {
        proc: Proc::new(nspace.clone(), rank),
        pid: state.pid(),
        host: state.node().map_or(own, |node| job.host(node).unwrap_or_default()).to_owned(),
        executable: state.executable().to_owned(),
        state: proc_state(state.exit()),
        exit_code: state.exit().and_then(Exit::known_code),
        began: state.began,
        used: state.used,
    }
}

fn attributes(state: &Core) -> Vec<Attributes> {
    let row = |(function, place)| {
        let mut keys: BTreeSet<String> = attribute::at(place).map(|attribute| attribute.key.into()).collect();
        if place != Place::Qualifier {
            keys.extend(state.settings.host_keys.iter().cloned());
        }
        Attributes { function: String::from(function), keys: keys.into_iter().collect() }
    };
    FUNCTIONS.into_iter().map(row).collect()
}

/// Returns the counters of the streams in `scope`.
fn streams(state: &Core, scope: &Scope) -> Vec<StreamStats> {
    let named = |row: &&StreamStats| scope.has(&row.source.nspace, row.source.rank);
    let known = state.queries.counters().iter().filter(named).cloned();
    let known = known.chain(new_streams(state, scope)).chain(launching_streams(state, scope));
    if !state.jobs.iter().any(|(_, job)| job.is_direct()) {
        return known.collect();
    }
    let mut rows: BTreeMap<_, StreamStats> =
        known.map(|row| ((row.source.clone(), row.channel, row.logged), row)).collect();
    for row in direct_streams(state, scope) {
        match rows.entry((row.source.clone(), row.channel, false)) {
            // Its ring has what tools read of it.
            Entry::Occupied(mut known) => {
                let StreamStats { produced, cached, generation, readers, .. } = known.get_mut();
                let (produced, readers) = (row.produced.max(*produced), std::mem::take(readers));
                let (cached, generation) = (*cached, *generation);
                known.insert(StreamStats { produced, cached, generation, readers, ..row });
            }
            Entry::Vacant(new) => drop(new.insert(row)),
        }
    }
    rows.into_values().collect()
}

/// Returns the streams of other nodes whose output has no rings, as their nodes have reported them.
fn direct_streams(state: &Core, scope: &Scope) -> impl Iterator<Item = StreamStats> {
    let jobs = state.jobs.iter().filter(|(_, job)| job.is_direct());
    let ranks = jobs.flat_map(|(nspace, job)| job.ranks().map(move |(rank, _)| (nspace, job, rank)));
    ranks.filter(|(nspace, _, rank)| scope.has(nspace, *rank)).flat_map(|(nspace, job, rank)| {
        Channel::OUTPUTS.map(|channel| {
            let source = Proc::new(nspace.clone(), rank);
            let NodeStream { produced, lost, ended, missing, .. } = job.node_stream(rank, channel);
            StreamStats {
                produced,
                dropped: lost,
                complete: ended || missing.is_some(),
                missing,
                ..StreamStats::new(source, channel, false)
            }
        })
    })
}

/// Returns the streams that were added after the counters were requested.
fn new_streams(state: &Core, scope: &Scope) -> Vec<StreamStats> {
    let counted = state.queries.counters().iter();
    let counted: BTreeSet<_> = counted.map(|row| (&row.source, row.channel, row.logged)).collect();
    let names = state.streams.iter().map(|(_, stream)| &**stream.name());
    let is_new = |name: &&StreamName| {
        scope.has(&name.source.nspace, name.source.rank)
            && !counted.contains(&(&name.source, name.channel, name.logged))
    };
    names.filter(is_new).map(zero_counters).collect()
}

/// Returns all streams, and the steps that read their counters.
pub(crate) fn count_streams(state: &Core) -> (Vec<CountedStream>, Vec<StreamStep<PageId>>) {
    let mut readers: Vec<(SourceId, ReaderId, PeerId, u32)> = Vec::new();
    for (peer_id, peer) in state.tools.iter() {
        let reader = |(id, reading): (ReaderId, &Reading)| (reading.source, id, peer_id, reading.handler);
        readers.extend(peer.readings().map(reader));
    }
    readers.sort_unstable();
    let count = |(source, stream): (&SourceId, &StreamState)| {
        let from = readers.partition_point(|(other, ..)| other < source);
        let on_stream = readers.iter().skip(from).take_while(|(other, ..)| other == source);
        let (mut pages, mut tools) = (Vec::new(), Vec::new());
        for (_, id, peer_id, handler) in on_stream {
            if let Some(peer) = state.tools.get(peer_id) {
                pages.push((peer.page(), *id));
                tools.push((*peer_id, *handler));
            }
        }
        let step = StreamStep::Count { source: *source, readers: pages };
        (CountedStream::new(Arc::clone(stream.name()), tools), step)
    };
    state.streams.iter().map(count).unzip()
}

/// Returns the counters of `streams` as tools receive them. A stream without an answer is left out.
pub(crate) fn stream_stats(
    state: &Core,
    streams: &[CountedStream],
    answers: Vec<StreamAnswer<()>>,
) -> Vec<StreamStats> {
    let row = |(stream, answer): (&CountedStream, StreamAnswer<()>)| {
        let StreamAnswer::Counted(Some(Counted { stats, lags })) = answer else { return None };
        let reader = |((peer_id, handler), lag): (&(PeerId, u32), Option<u64>)| {
            let peer = state.tools.get(peer_id)?;
            let (tool, pid) = (peer.name().to_owned(), peer.client().process.pid);
            Some(ReaderStats { tool, pid, handler: *handler, lag: lag? })
        };
        Some(StreamStats {
            produced: stats.produced,
            cached: stats.cached,
            dropped: stats.dropped,
            generation: stats.generation,
            complete: stats.complete,
            missing: stats.missing,
            readers: stream.readers().iter().zip(lags).filter_map(reader).collect(),
            ..zero_counters(stream.name())
        })
    };
    streams.iter().zip(answers).filter_map(row).collect()
}

/// Returns the counters of a stream from which nothing was read yet.
fn zero_counters(name: &StreamName) -> StreamStats {
    StreamStats::new(name.source.clone(), name.channel, name.logged)
}

/// Returns the streams of ranks that are being started. Their rings do not exist yet.
fn launching_streams(state: &Core, scope: &Scope) -> impl Iterator<Item = StreamStats> {
    let ranks =
        state.jobs.iter().flat_map(|(nspace, job)| job.launching().map(move |(rank, _)| (nspace, rank)));
    ranks.filter(|(nspace, rank)| scope.has(nspace, *rank)).flat_map(|(nspace, rank)| {
        let source = Proc::new(nspace.clone(), rank);
        Channel::OUTPUTS.map(|channel| StreamStats::new(source.clone(), channel, false))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_honours_exactly_the_qualifiers_of_the_table() {
        let accepts = |info: &Info| matches!(Scope::read(std::slice::from_ref(info)), Ok(Some(_)));
        assert_eq!(attribute::mismatches(&[Place::Qualifier], accepts), []);
    }
}
