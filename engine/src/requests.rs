//! Dispatch of a tool's requests.

use std::collections::BTreeSet;

use iof_capture::Capture;
use iof_proto::directive::DirectiveLevel;
use iof_proto::{Channels, Directives, Failure, FromTool, Info, Proc, Rank, Status, ToTool};
use iof_shm_ring::{ReaderId, Start};

use crate::log::Requester;
use crate::peer::{DisconnectReason, Peer};
use crate::pulls::Pull;
use crate::registrations::Registration;
use crate::state::{PeerId, State};
use crate::stream_options::limit_cache_size;

fn failure(status: Status, reason: impl Into<String>) -> Failure {
    Failure::new(status, reason)
}

/// Serves the request `message` of the tool `peer_id`.
pub(crate) fn serve(
    state: &mut State,
    capture: &Capture,
    host: &str,
    peer_id: PeerId,
    message: FromTool,
) -> Result<(), DisconnectReason> {
    let Some(peer) = state.peers.get_mut(&peer_id) else { return Ok(()) };
    match message {
        FromTool::Hello { .. } => return Err(DisconnectReason::Unexpected("a second hello")),
        FromTool::Follow { slot } => {
            // The request itself shows that the tool is done with its slot. If the reader was moved
            // already, the new ring is on its way to the tool.
            state.follow(capture, peer_id, slot.into());
        }
        FromTool::Drained { slots } => state.drained(capture, peer_id, slots.into_iter().map(ReaderId::from)),
        FromTool::Pull { request, procs, channels, backlog, persistent, directives } => {
            let Some(peer) = state.peers.get(&peer_id) else { return Ok(()) };
            match registration(state, peer, procs, channels, backlog, &directives) {
                Ok((registration, ignored)) => {
                    let registration = registration.persistent(persistent);
                    state.pull(capture, peer_id, Pull { request, registration, directives, ignored });
                }
                Err(failure) => state.refuse_pull(peer_id, request, failure),
            }
        }
        FromTool::Deregister { request, handler } => {
            let known = state.remove_registration(peer_id, handler);
            state.detach(capture, peer_id, Some(handler));
            known
                .as_ref()
                .and_then(|registration| registration.ticket)
                .inspect(|ticket| state.release(*ticket));
            let unknown = || format!("this tool has no registration {handler}");
            let result = known.map(drop).ok_or_else(|| failure(Status::ERR_NOT_FOUND, unknown()));
            if let Some(peer) = state.peers.get_mut(&peer_id) {
                peer.answer(&ToTool::Deregistered { request, result });
            }
        }
        FromTool::Query { request, queries } => state.query(capture, host, peer_id, request, &queries),
        FromTool::Log { request, log } => {
            let requester = Requester::tool(peer_id, peer, request);
            state.log(capture, requester, log);
        }
        FromTool::Push { request, targets, size, directives } => {
            state.push(capture, peer_id, request, &targets, size, directives);
        }
        FromTool::Signal { request, procs, signal } => state.signal(peer_id, request, &procs, signal),
        FromTool::Fill { push, bytes, last } => state.fill(capture, peer_id, push, bytes, last)?,
        FromTool::SlowTargets { request, push, cut_off } => {
            state.report_slow_targets(capture, peer_id, request, push, cut_off);
        }
    }
    Ok(())
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
    Ok((directives, ignored))
}

/// Builds the registration that a pull asks for. Returns it with the keys of ignored directives.
///
/// # Errors
/// Fails if a directive or the choice of processes and channels is invalid, if a named rank does
/// not exist, or if the tool may not have another registration.
fn registration(
    state: &State,
    peer: &Peer,
    procs: Vec<Proc>,
    channels: Channels,
    backlog: bool,
    infos: &[Info],
) -> Result<(Registration, Vec<String>), Failure> {
    let (directives, ignored) = directives(infos, &state.host_keys, state.max_cache_size)?;
    if channels.contains(Channels::STDIN) && channels != Channels::ALL {
        return Err(failure(Status::ERR_NOT_SUPPORTED, "stdin cannot be pulled, only pushed"));
    }
    if procs.is_empty() || channels.outputs().next().is_none() {
        return Err(failure(Status::ERR_BAD_PARAM, "a pull must name at least one process and one channel"));
    }
    if let Some(unknown) = procs.iter().find(|proc| !state.may_exist(proc)) {
        let last = state.jobs.get(&unknown.nspace).and_then(|job| job.ranks.keys().next_back());
        let last = last.copied().unwrap_or(Rank::UNDEF);
        let reason =
            format!("rank {} does not exist: the last rank of {} is {last}", unknown.rank, unknown.nspace);
        return Err(failure(Status::ERR_NOT_FOUND, reason));
    }
    let start = if backlog { Start::Oldest } else { Start::Now };
    let registration = Registration::new(procs, channels, start, directives, infos);
    state.check_registrations(peer, registration.weight())?;
    Ok((registration, ignored))
}
