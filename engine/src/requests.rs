//! What a tool may ask for, and what it gets.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::Capture;
use iof_proto::directive::Level;
use iof_proto::limits::MAX_REGISTRATIONS_PER_TOOL;
use iof_proto::{
    Channels, Directives, Failure, FromTool, Info, PROTOCOL_VERSION, Proc, Rank, Status, ToTool,
};
use iof_shm_ring::Start;

use crate::log::Asker;
use crate::peer::{Dismissed, Peer, Registration};
use crate::pulls::Pull;
use crate::state::{PeerId, State};
use crate::terms::cache_within;

fn failure(status: Status, reason: impl Into<String>) -> Failure {
    Failure { status, reason: reason.into() }
}

/// Does what `message` asks for.
pub(crate) fn serve(
    state: &mut State,
    capture: &Capture,
    host: &str,
    peer_id: PeerId,
    message: FromTool,
) -> Result<(), Dismissed> {
    let Some(peer) = state.peers.get_mut(&peer_id) else { return Ok(()) };
    if !peer.greeted {
        return greet(peer, capture, message);
    }
    match message {
        FromTool::Hello { .. } => return Err(Dismissed::Unexpected("a second hello")),
        FromTool::Taken { rings } => peer.taken(rings),
        FromTool::Follow { slot } => {
            // It is done with its slot, and says so by asking. If it was moved already, that is on its way to it.
            state.follow(capture, peer_id, slot);
        }
        FromTool::Drained { slots } => state.drained(capture, peer_id, &slots),
        FromTool::Pull { request, procs, channels, backlog, persistent, directives } => {
            let Some(peer) = state.peers.get(&peer_id) else { return Ok(()) };
            match registration(state, peer, procs, channels, backlog, &directives) {
                Ok((registration, ignored)) => {
                    let registration = Registration { persistent, ..registration };
                    state.pull(capture, peer_id, Pull { request, registration, directives, ignored });
                }
                Err(failure) => state.refuse_pull(peer_id, request, failure),
            }
        }
        FromTool::Deregister { request, handler } => {
            let known = peer.registrations.remove(&handler);
            state.detach(capture, peer_id, Some(handler));
            known.as_ref().and_then(|registration| registration.ticket).inspect(|of| state.release(*of));
            let unknown = || format!("this tool has no registration {handler}");
            let result = known.map(drop).ok_or_else(|| failure(Status::ERR_NOT_FOUND, unknown()));
            if let Some(peer) = state.peers.get_mut(&peer_id) {
                peer.answer(&ToTool::Deregistered { request, result });
            }
        }
        FromTool::Query { request, queries } => state.query(capture, host, peer_id, request, &queries),
        FromTool::Log { request, log } => {
            let asker = Asker::tool(peer_id, peer, request);
            state.log(capture, asker, log);
        }
        FromTool::Push { request, targets, size, directives } => {
            state.push(capture, peer_id, request, &targets, size, directives);
        }
        FromTool::Fill { push, bytes, over } => state.fill(capture, peer_id, push, bytes, over)?,
        FromTool::Lagging { request, push, cut_off } => {
            state.lagging(capture, peer_id, request, push, cut_off);
        }
    }
    Ok(())
}

fn greet(peer: &mut Peer, capture: &Capture, message: FromTool) -> Result<(), Dismissed> {
    let FromTool::Hello { version, name, .. } = message else {
        return Err(Dismissed::Unexpected("a request before its hello"));
    };
    if version != PROTOCOL_VERSION {
        let reason =
            format!("the tool speaks version {version} of the protocol and the engine {PROTOCOL_VERSION}");
        peer.answer(&ToTool::Refused { status: Status::ERR_NOT_SUPPORTED, reason });
        return Ok(());
    }
    peer.name = name;
    peer.greeted = true;
    let room = if peer.may_block { Some(capture.room_bell()?) } else { None };
    let may_block = peer.may_block;
    let welcome = ToTool::Welcome { version: PROTOCOL_VERSION, engine_pid: std::process::id(), may_block };
    peer.welcome(&welcome, room);
    Ok(())
}

/// What a registration's directives come to, and the keys of those that are ignored.
fn directives(
    infos: &[Info],
    host_keys: &BTreeSet<String>,
    max_cache_size: u32,
) -> Result<(Directives, Vec<String>), Failure> {
    let ours: Vec<Info> = infos.iter().filter(|info| !host_keys.contains(&info.key)).cloned().collect();
    let (mut directives, mut ignored) = Directives::read(&ours, Level::Registration)?;
    cache_within(&mut directives.cache_size, max_cache_size, infos, &mut ignored)?;
    Ok((directives, ignored))
}

/// A registration that was asked for, if it makes sense.
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
        return Err(failure(Status::ERR_NOT_SUPPORTED, "stdin can't be pulled, only pushed"));
    }
    if procs.is_empty() || channels.outputs().next().is_none() {
        return Err(failure(Status::ERR_BAD_PARAM, "a pull names one process and one channel at least"));
    }
    if let Some(unknown) = procs.iter().find(|proc| !state.may_exist(proc)) {
        let last = state.jobs.get(&unknown.nspace).and_then(|job| job.ranks.keys().next_back());
        let last = last.copied().unwrap_or(Rank::UNDEF);
        let reason = format!("there is no rank {}: the last of {} is {last}", unknown.rank, unknown.nspace);
        return Err(failure(Status::ERR_NOT_FOUND, reason));
    }
    if peer.registrations.len().saturating_add(peer.waiting.len()) >= MAX_REGISTRATIONS_PER_TOOL {
        let reason = format!("a tool may have {MAX_REGISTRATIONS_PER_TOOL} registrations: end one first");
        return Err(failure(Status::ERR_OUT_OF_RESOURCE, reason));
    }
    let start = if backlog { Start::Oldest } else { Start::Now };
    let registration = Registration {
        procs,
        channels,
        start,
        directives,
        ticket: None,
        persistent: false,
        announced: false,
        ends_told: BTreeMap::new(),
    };
    Ok((registration, ignored))
}
