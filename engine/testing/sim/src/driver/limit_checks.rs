//! Checks of the limits, for the simulator: none is exceeded, and those that are reached are noted.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::SourceId;
use iof_core::{Client, Core, Elsewhere, Peer, PeerId, Push, ReplyTo};
use iof_proto::limits::UPCALL_COST;
use iof_proto::{FromTool, Proc};

use super::peer_checks;
use super::reached::ReachedLimits;

/// The size of the inlets of simulated tools.
const INLET: u64 = 4096;

/// Adds up `used` for each key, and checks the largest sum.
fn check_sums<K: Ord>(
    reached: &mut ReachedLimits,
    (name, unit, limit): (&'static str, u64, u64),
    used: impl Iterator<Item = (K, u64)>,
) {
    let mut sums: BTreeMap<K, u64> = BTreeMap::new();
    used.for_each(|(key, used)| *sums.entry(key).or_default() += used);
    let largest = sums.into_values().max().unwrap_or_default();
    reached.check(name, largest, unit, limit);
}

/// Panics if a limit is exceeded. Returns those that are reached.
pub(super) fn check_limits(core: &Core) -> ReachedLimits {
    let mut reached = ReachedLimits::default();
    core.tools.values().for_each(|peer| peer_checks::check_limits(peer, &core.settings.limits, &mut reached));
    check_registration_limits(core, &mut reached);
    check_push_limits(core, &mut reached);
    check_request_limits(core, &mut reached);
    let unsent: usize = losing_tools(core).map(|peer| peer.unread().unsent()).sum();
    reached.note("forgotten", unsent >= core.settings.limits.forgotten);
    reached
}

fn check_registration_limits(core: &Core, reached: &mut ReachedLimits) {
    let limits = &core.settings.limits;
    let counted = || core.tools.values().filter_map(|peer| Some((peer.counted()?, peer.weight() as u64)));
    let of_processes = counted().filter(|(client, _)| client.is_process(*client));
    // A pull of a simulated tool names two processes at most.
    let limit = |name, limit: usize| (name, 2, limit as u64);
    check_sums(reached, limit("procs_per_process", limits.procs_per_process), of_processes);
    let of_users = counted().map(|(client, weight)| (client.uid, weight));
    check_sums(reached, limit("procs_per_user", limits.procs_per_user), of_users);
    let is_counted = |peer: &PeerId| core.tools.get(peer).is_some_and(|peer| !peer.is_own());
    let readers = core.streams.iter().flat_map(|(source, stream)| {
        stream.readers().map(move |(peer, _)| ((*source, peer), 1)).filter(|((_, peer), _)| is_counted(peer))
    });
    check_sums(reached, ("readers_per_tool", 1, limits.readers_per_tool as u64), readers);
}

fn check_push_limits(core: &Core, reached: &mut ReachedLimits) {
    let limits = &core.settings.limits;
    let pushes = || core.pushes.values();
    // Deferred requests count like pushes.
    let begun = pushes().map(|push| (push.client(), push.capacity()));
    let deferred = core.pushes.deferred().map(|deferred| (deferred.client, deferred.capacity));
    let inlets: Vec<(Option<Client>, u64)> = begun.chain(deferred).collect();
    reached.check("pushes", inlets.len() as u64, 1, limits.pushes as u64);
    let bytes = inlets.iter().map(|(_, size)| size).sum();
    reached.check("push_bytes", bytes, INLET, limits.push_bytes);
    let of_processes = || inlets.iter().filter_map(|(client, size)| Some(((*client)?, *size)));
    let limit = ("pushes_per_process", 1, limits.pushes_per_process as u64);
    check_sums(reached, limit, of_processes().map(|(client, _)| (client, 1)));
    let limit = ("push_bytes_per_process", INLET, limits.push_bytes_per_process);
    check_sums(reached, limit, of_processes());
    let of_tools = core.tools.iter().flat_map(|(id, peer)| peer.pushes().map(move |_| (id, 1)));
    let of_tools = of_tools.chain(core.pushes.deferred().map(|deferred| (deferred.peer_id, 1)));
    check_sums(reached, ("pushes_per_tool", 1, limits.pushes_per_tool as u64), of_tools);
    let local = pushes().flat_map(|push| push.local_targets().map(|target| (target, 1)));
    let limit = ("pushes_per_target", 1, limits.pushes_per_target as u64);
    check_sums(reached, limit, local);
    // A push to all ranks of a job counts at each of them.
    let elsewhere: Vec<&[Proc]> = pushes().filter_map(Push::elsewhere).map(Elsewhere::targets).collect();
    let targets: BTreeSet<&Proc> = elsewhere.iter().copied().flatten().collect();
    let names = |target: &Proc| {
        let whole = Proc::all(target.nspace.clone());
        let is_named = |named: &&&[Proc]| named.iter().any(|proc| proc == target || *proc == whole);
        elsewhere.iter().filter(is_named).count() as u64
    };
    check_sums(reached, limit, targets.into_iter().map(|target| (target, names(target))));
}

fn check_request_limits(core: &Core, reached: &mut ReachedLimits) {
    let limits = &core.settings.limits;
    let per_tool = limits.waiting_per_tool as u64;
    let (_, for_host) = core.queries.waiting_tools();
    let queries = for_host.into_iter().map(|peer| (peer, 1));
    check_sums(reached, ("waiting_per_tool (queries)", 1, per_tool), queries);
    let logs = || core.logs.requesters();
    reached.check("logs", logs().count() as u64, 1, limits.logs as u64);
    let bytes = logs().map(|(_, bytes)| bytes as u64).sum();
    reached.check("log_bytes", bytes, 1, limits.log_bytes as u64);
    let of_tools = logs().filter_map(|(requester, _)| match requester {
        ReplyTo::Tool { peer, client, .. } => Some((*peer, *client)),
        ReplyTo::Embedder(_) => None,
    });
    let of_tools: Vec<(PeerId, Option<Client>)> = of_tools.collect();
    let by_tool = of_tools.iter().map(|(peer, _)| (*peer, 1));
    check_sums(reached, ("waiting_per_tool (logs)", 1, per_tool), by_tool);
    let by_process = of_tools.iter().filter_map(|(_, client)| Some(((*client)?, 1)));
    check_sums(reached, ("logs_per_process", 1, limits.logs_per_process as u64), by_process);
    let (owed, limit) = (core.owed.largest() as u64, limits.owed_bytes_per_user as u64);
    reached.check("owed_bytes_per_user", owed, UPCALL_COST as u64, limit);
}

/// Panics if `message` of a tool must not be served yet.
pub(super) fn check_serves(core: &Core, peer_id: PeerId, message: &FromTool) {
    core.tools
        .get(&peer_id)
        .into_iter()
        .for_each(|peer| peer_checks::check_serves(peer, &core.settings.limits, message));
}

/// Returns the tools that must not be attached to new streams.
pub(super) fn tools_behind(core: &Core) -> BTreeSet<PeerId> {
    let limit = core.settings.limits.forgotten_per_tool;
    let is_behind = |peer: &Peer| peer.may_lose() && peer.unread().forgotten() >= limit;
    core.tools.iter().filter(|(_, peer)| is_behind(peer)).map(|(id, _)| id).collect()
}

/// Panics if a tool of `behind` reads a stream of `sources`.
pub(super) fn check_not_attached(core: &Core, behind: &BTreeSet<PeerId>, sources: &[SourceId]) {
    for stream in sources.iter().filter_map(|source| core.streams.get(source)) {
        let attached = stream.readers().find(|(peer_id, _)| behind.contains(peer_id));
        assert_eq!(attached, None, "a tool that is behind was attached to {:?}", stream.name());
    }
}

/// Returns the number of all readers.
pub(super) fn readers(core: &Core) -> usize {
    core.tools.values().map(|peer| peer.readings().count()).sum()
}

/// Returns the tools that lose what they do not read in time.
fn losing_tools(core: &Core) -> impl Iterator<Item = &Peer> {
    core.tools.values().filter(|peer| peer.may_lose())
}

/// Panics if unread data of forgotten jobs is kept beyond the limits, after a job was removed.
pub(super) fn check_shed(core: &Core) {
    losing_tools(core).for_each(|peer| peer_checks::check_shed(peer, &core.settings.limits));
    let unsent: usize = losing_tools(core).map(|peer| peer.unread().unsent()).sum();
    let droppable: usize = losing_tools(core).map(peer_checks::unsent_streams).sum();
    let limit = core.settings.limits.forgotten;
    assert!(unsent <= limit || droppable == 0, "{unsent} rings wait to be sent, beyond {limit}");
}
