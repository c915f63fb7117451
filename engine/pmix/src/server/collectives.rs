//! The functions that libpmix calls when ranks of this node wait for others: fences, groups, connections, and
//! requests for what ranks of other nodes have put.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::PoisonError;

use iof_proto::{Exchange, FencePurpose, FromTool, Mpi, Rank};

use crate::library::read;
use crate::library::types::{
    CONSTRUCT, Connect, DirectModex, FenceFunction, Info, InfoCallback, ModexCallback, Module,
    OPERATION_SUCCEEDED, OpCallback, RawProc, SUCCESS, Status,
};
use crate::requests::request::{AnswerReply, RankCallback, StatusReply, ValuesReply};
use crate::server::upcalls::{self, JOBS, request};

/// Returns the upcalls of this host, also those about ranks of other nodes if jobs `have_nodes`.
pub(super) fn module(have_nodes: bool) -> Module {
    Module {
        fence: have_nodes.then_some(fence as FenceFunction),
        direct_modex: have_nodes.then_some(direct_modex as DirectModex),
        connect: have_nodes.then_some(join::<true> as Connect),
        disconnect: have_nodes.then_some(join::<false> as Connect),
        group: Some(group),
        ..upcalls::module()
    }
}

/// Returns a rank of this node among processes of one job that it has a part of, with the ranks of all; none if they
/// are all of the job.
fn participants(procs: &[RawProc]) -> Option<(RawProc, Vec<Rank>)> {
    let nspace = procs.first()?.nspace;
    let name = read::text_within(&nspace).ok().filter(|_| procs.iter().all(|proc| proc.nspace == nspace))?;
    let mut ranks: Vec<Rank> = procs.iter().map(|proc| Rank(proc.rank)).collect();
    ranks.sort_unstable();
    if ranks.contains(&Rank::WILDCARD) {
        ranks.clear();
    }
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let takes_part = |rank: &&u32| ranks.is_empty() || ranks.binary_search(&Rank(**rank)).is_ok();
    let rank = *jobs.get(&name)?.ranks.iter().find(takes_part)?;
    Some((RawProc { nspace, rank }, ranks))
}

/// Lets this node enter a fence, as all of its ranks that take part have.
unsafe extern "C" fn fence(
    procs: *const RawProc,
    count: usize,
    _infos: *const Info,
    _info_count: usize,
    values: *mut c_char,
    size: usize,
    done: ModexCallback,
    data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes these numbers of processes and bytes. The bytes are memory of malloc(3), and ours.
    unsafe {
        let Some((from, ranks)) = participants(read::slice(procs, count, usize::MAX).unwrap_or_default())
        else {
            // Processes of several jobs.
            return iof_proto::Status::ERR_NOT_SUPPORTED.0;
        };
        let bytes =
            read::slice(values.cast_const().cast::<u8>(), size, usize::MAX).unwrap_or_default().to_vec();
        libc::free(values.cast());
        let reply = RankCallback::Values(ValuesReply::new(done, data));
        enter(&from, (FencePurpose::Values, ranks, bytes), reply)
    }
}

/// Requests to enter a fence.
fn enter(
    from: &RawProc,
    (purpose, ranks, data): (FencePurpose, Vec<Rank>, Vec<u8>),
    reply: RankCallback,
) -> Status {
    let message = FromTool::Exchange(Exchange::Fence { mpi: Mpi::Pmix, purpose, ranks, data });
    // SAFETY: the pointer is a reference.
    unsafe { request(from, Ok(message), reply) }
}

/// Connects or disconnects processes. Those of this node have all called, and wait for those of other nodes.
unsafe extern "C" fn join<const CONNECTS: bool>(
    procs: *const RawProc,
    count: usize,
    _infos: *const Info,
    _info_count: usize,
    done: OpCallback,
    data: *mut c_void,
) -> Status {
    let purpose = if CONNECTS { FencePurpose::Connect } else { FencePurpose::Disconnect };
    // SAFETY: libpmix passes this number of processes.
    let procs = unsafe { read::slice(procs, count, usize::MAX) }.unwrap_or_default();
    let reply = StatusReply::new(done, data);
    match participants(procs) {
        Some((from, ranks)) => enter(&from, (purpose, ranks, Vec::new()), RankCallback::Status(reply)),
        // Processes of several jobs.
        None => {
            reply.send(iof_proto::Status::ERR_NOT_SUPPORTED);
            SUCCESS
        }
    }
}

/// Requests what a rank of another node has put.
unsafe extern "C" fn direct_modex(
    proc: *const RawProc,
    _infos: *const Info,
    _count: usize,
    done: ModexCallback,
    data: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes a rank.
    unsafe {
        let Ok([proc]) = read::slice(proc, 1, 1) else { return iof_proto::Status::ERR_BAD_PARAM.0 };
        let all = RawProc { rank: Rank::WILDCARD.0, ..*proc };
        let Some((from, _)) = participants(&[all]) else { return iof_proto::Status::ERR_NOT_FOUND.0 };
        let message = FromTool::Exchange(Exchange::Modex(Rank(proc.rank)));
        request(&raw const from, Ok(message), RankCallback::Values(ValuesReply::new(done, data)))
    }
}

/// Constructs or destructs a group, whose members have all called. The first one stands for all.
/// libpmix 5 would end a destruction twice if this function did so later.
unsafe extern "C" fn group(
    operation: c_int,
    group: *mut c_char,
    members: *const RawProc,
    member_count: usize,
    directives: *const Info,
    count: usize,
    done: InfoCallback,
    data: *mut c_void,
) -> Status {
    let constructs = operation == CONSTRUCT;
    // SAFETY: libpmix passes a name, and these numbers of members and infos.
    unsafe {
        let members = read::slice(members, member_count, usize::MAX).unwrap_or_default().to_vec();
        // One of this node, if the members are of one job.
        let (mut first, ranks) = participants(&members).unzip();
        first = first.or(members.first().copied());
        let message = read::group(constructs, (group, ranks.unwrap_or_default()), directives, count);
        // It may be all ranks of a job, which has number 0.
        first.iter_mut().filter(|first| first.rank == Rank::WILDCARD.0).for_each(|first| first.rank = 0);
        let first = first.as_ref().map_or(ptr::null(), ptr::from_ref);
        let message = message.map(FromTool::Exchange);
        if constructs {
            return request(first, message, RankCallback::Group(AnswerReply::new(done, data), members));
        }
        // libpmix knows whether there is such a group. The engine lacks those that libpmix has completed
        // without it, and has no other reason to refuse.
        match request(first, message, RankCallback::Status(StatusReply::new(None, data))) {
            SUCCESS => OPERATION_SUCCEEDED,
            refused => refused,
        }
    }
}
