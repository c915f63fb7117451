//! Dispatch of the requests of tools and ranks.

use std::collections::BTreeSet;
use std::time::Instant;

use iof_proto::directive::DirectiveLevel;
use iof_proto::{
    Answer, Channels, Directives, Exchange, Failure, FromTool, Info, Position, Proc, Quota, Rank, Status,
    ToTool,
};
use iof_shm_ring::{ReaderId, Start};

use crate::Core;
use crate::clients::client::{ClientProcess, Payer, Requester};
use crate::disconnect::DisconnectReason;
use crate::ids::{JobId, PeerId};
use crate::jobs::job::RankState;
use crate::pushes::push::PushRequest;
use crate::streams::options::{limit_buffering_size, limit_cache_size};
use crate::tools::pull::Pull;
use crate::tools::registration::Registration;
use crate::upcall::ReplyCallback;

fn failure(status: Status, reason: impl Into<String>) -> Failure {
    Failure::new(status, reason)
}

/// Serves the request `message` of the tool `peer_id`.
pub(crate) fn serve(
    core: &mut Core,
    peer_id: PeerId,
    message: FromTool,
    now: Instant,
) -> Result<(), DisconnectReason> {
    let Some(peer) = core.tools.get_mut(&peer_id) else { absent!("tool", return Ok(())) };
    match message {
        FromTool::Hello { .. } => return Err(DisconnectReason::Unexpected("a second hello")),
        FromTool::Follow { slot } => {
            // The request itself shows that the tool is done with its slot. If the reader was moved
            // already, the new ring is on its way to the tool.
            core.follow(peer_id, slot.into());
        }
        FromTool::Drained { slots } => core.drained(peer_id, slots.into_iter().map(ReaderId::from)),
        FromTool::Pull { request, procs, channels, from, persistent, reports_ranks, directives } => {
            let payer = (!peer.is_own()).then(|| peer.payer());
            match registration(core, payer, procs, channels, from, &directives) {
                Ok((registration, ignored)) => {
                    let registration = registration.persistent(persistent).reporting_ranks(reports_ranks);
                    core.pull(peer_id, Pull { request, registration, directives, ignored });
                }
                Err(failure) => core.refuse_pull(peer_id, request, failure),
            }
        }
        FromTool::Deregister { request, handler } => {
            let known = core.tools.remove_registration(peer_id, handler);
            core.detach(peer_id, Some(handler));
            let unknown = || format!("this tool has no registration {handler}");
            let result = known
                .map(|registration| core.end_registration(registration))
                .ok_or_else(|| failure(Status::ERR_NOT_FOUND, unknown()));
            let Some(peer) = core.tools.get_mut(&peer_id) else { absent!("tool", return Ok(())) };
            peer.answer(&ToTool::Deregistered { request, result });
        }
        FromTool::Barrier { request } => {
            peer.answer(&ToTool::Answer {
                request,
                result: Ok(Answer { status: Status::SUCCESS, found: Vec::new() }),
            });
        }
        FromTool::Query { request, queries } => {
            let requester = peer.requester(peer_id, request);
            core.query(requester, queries, now);
        }
        FromTool::Log { request, log } => {
            let requester = peer.requester(peer_id, request);
            core.log(requester, &log);
        }
        FromTool::Push { request, targets, size, directives } => {
            core.push(peer_id, PushRequest { request, targets, size, infos: directives });
        }
        FromTool::Signal { request, procs, signal } => core.signal(peer_id, request, &procs, signal, now),
        FromTool::Spawn { request, spawn } => {
            let requester = peer.requester(peer_id, request);
            core.spawn(requester, *spawn);
        }
        FromTool::Fill { push, bytes, last } => core.fill(peer_id, push, bytes, last)?,
        FromTool::SlowTargets { request, push, cut_off } => {
            core.report_slow_targets(peer_id, request, push, cut_off);
        }
        FromTool::Exchange(_) => debug_assert!(false, "only ranks send {message:?}"),
    }
    Ok(())
}

/// Serves the request `message` of a rank of this node, by the code that serves those of tools.
pub(crate) fn serve_rank(
    core: &mut Core,
    rank: Option<(JobId, Rank)>,
    reply: ReplyCallback,
    message: FromTool,
    now: Instant,
) {
    let pid = rank.as_ref().map_or(Some(core.settings.pid), |(job, rank)| {
        let job = core.job(job)?;
        // It may ask before all ranks are started.
        let launching = || job.launching().find_map(|(other, state)| (other == *rank).then_some(state.pid));
        job.rank(*rank).map(RankState::pid).or_else(launching)
    });
    let Some(pid) = pid else { return };
    let requester = Requester::rank(rank, ClientProcess { pid, uid: core.settings.uid }, reply);
    match message {
        FromTool::Log { log, .. } => core.log(requester, &log),
        FromTool::Query { queries, .. } => core.query(requester, queries, now),
        FromTool::Spawn { spawn, .. } | FromTool::Exchange(Exchange::Spawn(spawn)) => {
            core.spawn(requester, *spawn);
        }
        FromTool::Signal { procs, signal, .. } => core.signal_own(requester, &procs, signal, now),
        FromTool::Exchange(exchange) => core.exchange(requester, exchange, now),
        _ => debug_assert!(false, "a rank does not send {message:?}"),
    }
}

/// Parses the directives of a registration. Returns them with the keys of those that are ignored.
fn directives(
    infos: &[Info],
    host_keys: &BTreeSet<String>,
    max_cache_size: u32,
) -> Result<(Directives, Vec<String>), Failure> {
    let ours: Vec<Info> = infos.iter().filter(|info| !host_keys.contains(&info.key)).cloned().collect();
    let (mut directives, mut ignored) = Directives::read(&ours, DirectiveLevel::Registration)?;
    limit_cache_size(&mut directives.cache_size, max_cache_size, infos, &mut ignored)?;
    limit_buffering_size(&mut directives.buffering_size, max_cache_size, infos, &mut ignored)?;
    Ok((directives, ignored))
}

/// Builds the registration that a pull asks for. Returns it with the keys of ignored directives.
///
/// # Errors
/// Fails if a directive or the choice of processes and channels is invalid, if a named rank does
/// not exist, or if the tool may not have another registration.
fn registration(
    core: &mut Core,
    payer: Option<Payer>,
    procs: Vec<Proc>,
    channels: Channels,
    from: Position,
    infos: &[Info],
) -> Result<(Registration, Vec<String>), Failure> {
    let (directives, ignored) = directives(infos, &core.settings.host_keys, core.settings.max_cache_size)?;
    if channels.contains(Channels::STDIN) && channels != Channels::ALL {
        return Err(failure(Status::ERR_NOT_SUPPORTED, "stdin cannot be pulled, only pushed"));
    }
    if procs.is_empty() || channels.outputs().next().is_none() {
        return Err(failure(Status::ERR_BAD_PARAM, "a pull must name at least one process and one channel"));
    }
    if let Some(unknown) = procs.iter().find(|proc| !core.jobs.may_exist(proc)) {
        return Err(core.jobs.unknown_rank(unknown));
    }
    let start = if from.is_newest() { Start::Now } else { Start::Oldest };
    let mut registration = Registration::new(procs, channels, start, directives, infos);
    let amounts = [(Quota::Registrations, 1), (Quota::Procs, registration.weight() as u64)];
    registration.charge = payer.map(|payer| core.quotas.charge(payer, amounts)).transpose()?;
    Ok((registration, ignored))
}
