//! Checks of the limits, for the simulator: none is exceeded, and those that are reached are noted.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::SourceId;
use iof_core::{Core, Peer, PeerId, Push};
use iof_proto::limits::UPCALL_COST;
use iof_proto::{FromTool, Proc, Quota};

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
    check_quotas(core, &mut reached);
    check_stream_limits(core, &mut reached);
    let unsent: usize = losing_tools(core).map(|peer| peer.unread().unsent()).sum();
    reached.note("forgotten", unsent >= core.settings.limits.forgotten);
    reached
}

/// Panics unless the charges are what the clients hold, within the quotas.
fn check_quotas(core: &Core, reached: &mut ReachedLimits) {
    let unit = |quota| match quota {
        // A pull of a simulated tool names two processes at most.
        Quota::Procs => 2,
        Quota::PushBytes => INLET,
        // A simulated client spawns so many ranks at most.
        Quota::SpawnedRanks => 3,
        Quota::OwedBytes => UPCALL_COST as u64,
        _ => 1,
    };
    core.quotas.check(core.charges(), unit, |name| reached.note(name, true));
    let counted = || core.tools.values().filter(|peer| !peer.is_own());
    let pending = core.pending.values().filter(|pending| !pending.is_own()).count();
    let waiting = counted().flat_map(Peer::waiting).map(|pull| &pull.registration);
    let registrations = counted().flat_map(Peer::registrations).map(|(_, registration)| registration);
    let weights: Vec<u64> = registrations.chain(waiting).map(|held| held.weight() as u64).collect();
    let pushes = core.pushes.values().count() + core.pushes.deferred().count();
    let (for_counters, for_host) = core.queries.waiting_tools();
    let expected = [
        (Quota::Connections, (counted().count() + pending + core.departed.len()) as u64),
        (Quota::Registrations, weights.len() as u64),
        (Quota::Procs, weights.iter().sum()),
        (Quota::Pushes, pushes as u64),
        (Quota::Logs, core.logs.clients().count() as u64),
        (Quota::Queries, (for_counters.len() + for_host.len()) as u64),
    ];
    for (quota, count) in expected {
        assert_eq!(core.quotas.total(quota), count, "{quota:?}");
    }
}

/// Checks the limits of streams and of their ranks, which count what no client holds alone.
fn check_stream_limits(core: &Core, reached: &mut ReachedLimits) {
    let limits = &core.settings.limits;
    let is_counted = |peer: &PeerId| core.tools.get(peer).is_some_and(|peer| !peer.is_own());
    let readers = core.streams.iter().flat_map(|(source, stream)| {
        stream.readers().map(move |(peer, _)| ((*source, peer), 1)).filter(|((_, peer), _)| is_counted(peer))
    });
    check_sums(reached, ("readers_per_tool", 1, limits.readers_per_tool as u64), readers);
    let pushes = || core.pushes.values();
    let local = pushes().flat_map(|push| push.local_targets().map(|target| (target, 1)));
    let limit = ("pushes_per_target", 1, limits.pushes_per_target as u64);
    check_sums(reached, limit, local);
    // A push to all ranks of a job counts at each of them.
    let elsewhere = pushes().filter_map(Push::elsewhere);
    let elsewhere: Vec<BTreeSet<&Proc>> = elsewhere.map(|push| push.targets().collect()).collect();
    let targets: BTreeSet<&Proc> = elsewhere.iter().flatten().copied().collect();
    let names = |target: &Proc| {
        let whole = Proc::all(target.nspace.clone());
        let is_named = |named: &&BTreeSet<&Proc>| named.contains(target) || named.contains(&whole);
        elsewhere.iter().filter(is_named).count() as u64
    };
    check_sums(reached, limit, targets.into_iter().map(|target| (target, names(target))));
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
