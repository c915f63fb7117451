//! Checks of all tables, for the simulator: what counts other things counts them right, and nothing
//! that has ended keeps anything. `limit_checks` checks the limits.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::SourceId;
use iof_core::{ClientId, Core, PageId, Peer, PeerId, Push, Registration, SharedMemory};

use iof_proto::Quota;

use super::peer_checks;

/// Panics if the tables contradict each other. The host has not sent the
/// signals that the tools `signalling` have asked for.
pub(super) fn check(core: &Core, signalling: &[PeerId]) {
    check_connections(core);
    core.tools.iter().for_each(|(id, peer)| check_tool(core, id, peer));
    check_streams(core);
    check_jobs(core);
    check_pushes(core);
    check_requests(core, signalling);
    let tickets: BTreeSet<_> = core.tools.values().flat_map(Peer::tickets).collect();
    core.demand.check(&tickets);
}

/// Panics unless the driver keeps exactly the memory that the core names.
pub(super) fn check_memory(core: &Core, memory: &SharedMemory) {
    let kept = memory.kept();
    let pages = core.tools.iter().map(|(tool, _)| PageId::Tool(tool)).chain([PageId::BacklogHolder]);
    assert_eq!(kept.pages, pages.collect(), "pages");
    assert_eq!(kept.inlets, core.pushes.iter().map(|(id, _)| id).collect(), "inlets");
    let unsent = core.tools.iter().flat_map(|(tool, peer)| {
        peer_checks::attachments(peer).into_iter().map(move |unsent| (tool, unsent))
    });
    assert_eq!(kept.unsent, unsent.collect(), "unsent");
    assert_eq!(kept.streams, 0, "a stream was not handed over");
}

fn check_connections(core: &Core) {
    let tools = core.tools.values().filter(|peer| !peer.is_own()).count();
    let pending = core.pending.values().filter(|pending| !pending.is_own()).count();
    assert!(tools + pending + core.departed.len() <= core.settings.places, "too many connections");
    let names = |registration: &Registration| registration.jobs().count();
    let registrations = core.tools.values().flat_map(|peer| peer.registrations().map(|(_, found)| found));
    assert_eq!(registrations.map(names).sum::<usize>(), core.tools.indexed(), "the index of registrations");
}

fn check_tool(core: &Core, id: PeerId, peer: &Peer) {
    peer_checks::check(peer);
    let is_granted = |ticket| core.demand.is_granted(ticket);
    let are_granted = peer.registrations().all(|(_, found)| found.ticket().is_some_and(is_granted));
    assert!(peer.is_own() || are_granted, "tool {id} has a registration that the host has not granted");
    for (_, reading) in peer.readings() {
        let stream = core.streams.get(&reading.source);
        let reads = stream.is_some_and(|stream| stream.readers().any(|key| key == (id, reading.handler)));
        assert_eq!(reads, reading.forgotten().is_none(), "a reader of tool {id} at its stream");
    }
}

fn check_streams(core: &Core) {
    for (source, stream) in core.streams.iter() {
        for (peer_id, handler) in stream.readers() {
            let peer = core.tools.get(&peer_id);
            let reads = peer.is_some_and(|peer| peer.reader_of(*source, handler).is_some());
            assert!(reads, "a reader of {source:?} has ended");
        }
        for (peer_id, handler) in stream.missing() {
            let registration = core.tools.get(&peer_id).and_then(|peer| peer.registration(handler));
            assert!(registration.is_some(), "a registration that misses {source:?} has ended");
        }
        let job = core.jobs.get(&stream.name().source.nspace);
        let has = job.is_some_and(|job| job.run() == stream.name().run);
        assert!(has || stream.is_withdrawn(), "{source:?} is a stream of a removed job");
    }
    let stranded: BTreeSet<SourceId> = core.stranded().map(|(_, _, reading)| reading.source).collect();
    let is_awaited = |source: &SourceId| stranded.contains(source);
    assert!(core.kept_streams.iter().all(is_awaited), "a stream is kept for no reader");
    for source in core.graces.streams() {
        let stream = core.streams.get(&source);
        let is_kept = stream.is_some_and(|stream| !stream.is_withdrawn());
        assert!(is_kept, "{source:?} was removed and has a grace period");
    }
}

fn check_jobs(core: &Core) {
    for (nspace, job) in core.jobs.iter() {
        job.check();
        let streams = job.streams();
        assert!(streams.iter().all(|stream| core.streams.get(stream).is_some()), "{nspace} lacks a stream");
    }
}

fn check_pushes(core: &Core) {
    for (id, push) in core.pushes.iter() {
        push.check();
        if let Some((peer_id, number)) = push.tool() {
            let peer = core.tools.get(&peer_id);
            let known = peer.and_then(|peer| peer.push(number));
            assert_eq!(known, Some(id), "the tool of {id:?}");
        }
    }
    let named = core.tools.values().flat_map(Peer::pushes);
    assert!(named.into_iter().all(|id| core.pushes.get(&id).is_some()), "a tool has a push that is over");
    let alive = core.pushes.deferred().all(|deferred| core.tools.get(&deferred.peer_id).is_some());
    assert!(alive, "a push of a tool that has disconnected is deferred");
}

fn check_requests(core: &Core, signalling: &[PeerId]) {
    let (for_counters, _) = core.queries.waiting_tools();
    let mut begun: BTreeMap<PeerId, usize> = BTreeMap::new();
    core.awaited
        .tools()
        .chain(for_counters)
        .chain(signalling.iter().copied())
        .for_each(|peer| *begun.entry(peer).or_default() += 1);
    for (id, peer) in core.tools.iter() {
        assert_eq!(peer.awaited(), begun.remove(&id).unwrap_or(0), "requests of tool {id}");
    }
    for client in core.logs.clients() {
        let is_gone = matches!(client, ClientId::Tool(peer) if core.tools.get(&peer).is_none());
        assert!(!is_gone, "a log of a tool that has disconnected");
    }
}

/// Returns the names of the tables that are not empty, without what waits for the host alone:
/// the upcalls that it has not answered, with the sources that it was asked for, and the pushes
/// that it takes.
pub(super) fn remains_without_owed(core: &Core) -> Vec<String> {
    let is_owed = |push: &Push| push.tool().is_none() && !push.has_local() && push.elsewhere().is_some();
    let mut remains = remains(core);
    remains.retain(|table| match table.as_str() {
        "owed answers" | "pulls by call" | "demand" => core.owed.is_empty(),
        // The checks of each step compare it with the tables.
        "quotas" => false,
        "stdin calls" => false,
        "pushes" => !core.pushes.iter().all(|(_, push)| is_owed(push)),
        _ => true,
    });
    remains
}

/// Returns whether ranks may hold some of it after their end.
fn may_last(quota: Quota) -> bool {
    matches!(quota, Quota::Published | Quota::PublishedBytes)
}

/// Returns the names of the tables that are not empty.
pub(super) fn remains(core: &Core) -> Vec<String> {
    let (for_counters, for_host) = core.queries.waiting_tools();
    let is_empty = [
        ("jobs", core.jobs.is_empty()),
        ("streams", core.streams.is_empty()),
        ("kept streams", core.kept_streams.is_empty()),
        ("tools", core.tools.values().next().is_none() && core.tools.indexed() == 0),
        ("pushes", core.pushes.values().next().is_none()),
        ("deferred pushes", core.pushes.deferred().next().is_none()),
        ("queries", for_counters.is_empty() && for_host.is_empty()),
        ("logs", core.logs.clients().next().is_none()),
        ("demand", core.demand.is_empty()),
        ("pulls by call", core.pulls_by_call.is_empty()),
        ("owed answers", core.owed.is_empty()),
        // Some values last as long as the engine.
        ("quotas", Quota::ALL.iter().all(|quota| may_last(*quota) || core.quotas.total(*quota) == 0)),
        ("stdin calls", core.stdin_calls.is_empty()),
        ("awaited answers", core.awaited.is_empty()),
        ("grace periods", core.graces.next_end().is_none()),
        ("pending connections", core.pending.is_empty()),
        ("departed connections", core.departed.is_empty()),
    ];
    is_empty.iter().filter(|(_, empty)| !empty).map(|(name, _)| (*name).to_owned()).collect()
}
