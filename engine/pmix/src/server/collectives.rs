//! The functions that libpmix calls when ranks of this node wait for others: fences, groups, connections, and
//! requests for what ranks of other nodes have put.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::PoisonError;

use iof_proto::{Exchange, FencePurpose, FromTool, JobRanks, Mpi, Nspace, Rank};

use crate::library::info::characters;
use crate::library::read;
use crate::library::types::{
    CONSTRUCT, DirectModex, FenceFunction, Info, InfoCallback, ModexCallback, Module, OPERATION_SUCCEEDED,
    OpCallback, RawProc, SUCCESS, Status,
};
use crate::requests::request::{AnswerReply, RankCallback, StatusReply, ValuesReply};
use crate::server::upcalls::{self, JOBS, request};

/// Returns the upcalls of this host, also those about ranks of other nodes if jobs `have_nodes`.
pub(super) fn module(have_nodes: bool) -> Module {
    Module {
        fence: have_nodes.then_some(fence as FenceFunction),
        direct_modex: have_nodes.then_some(direct_modex as DirectModex),
        connect: Some(join::<true>),
        disconnect: Some(join::<false>),
        group: Some(group),
        ..upcalls::module()
    }
}

/// Returns a rank of this node among processes, with the ranks of all.
fn participants(procs: &[RawProc]) -> Option<(RawProc, Vec<JobRanks>)> {
    let mut members: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    for proc in procs {
        members.entry(read::text_within(&proc.nspace).ok()?).or_default().push(Rank(proc.rank));
    }
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut from, mut all) = (None, Vec::with_capacity(members.len()));
    for (name, mut ranks) in members {
        ranks.sort_unstable();
        if ranks.contains(&Rank::WILDCARD) {
            ranks.clear();
        }
        let takes_part = |rank: &&u32| ranks.is_empty() || ranks.binary_search(&Rank(**rank)).is_ok();
        let rank = jobs.get(&name).and_then(|job| job.ranks.iter().find(takes_part));
        from = from.or_else(|| rank.map(|rank| RawProc { nspace: characters(&name), rank: *rank }));
        all.push(JobRanks { nspace: Nspace::new(name).ok()?, ranks });
    }
    Some((from?, all))
}

/// Returns whether the job of a process is known and has its rank. libpmix waits for no others.
fn is_served(proc: &RawProc) -> bool {
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let job = read::text_within(&proc.nspace).ok().and_then(|name| jobs.get(&name));
    job.is_some_and(|job| proc.rank < job.size || Rank(proc.rank) == Rank::WILDCARD)
}

/// Returns a rank of this node, which stands for the one that requests something: libpmix does not name it.
fn any_rank() -> Option<RawProc> {
    let jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let first = jobs.iter().find_map(|(name, job)| Some((name, *job.ranks.first()?)));
    first.map(|(name, rank)| RawProc { nspace: characters(name), rank })
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
        let bytes =
            read::slice(values.cast_const().cast::<u8>(), size, usize::MAX).unwrap_or_default().to_vec();
        libc::free(values.cast());
        let members = read::slice(procs, count, usize::MAX).unwrap_or_default();
        let Some((from, members)) = participants(members) else {
            return iof_proto::Status::ERR_NOT_SUPPORTED.0;
        };
        let reply = RankCallback::Values(ValuesReply::new(done, data));
        enter(&from, (FencePurpose::Values, members, bytes), reply)
    }
}

/// Requests to enter a fence.
fn enter(
    from: &RawProc,
    (purpose, members, data): (FencePurpose, Vec<JobRanks>, Vec<u8>),
    reply: RankCallback,
) -> Status {
    let message = FromTool::Exchange(Exchange::Fence { mpi: Mpi::Pmix, purpose, members, data });
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
    match participants(procs).filter(|_| procs.iter().all(is_served)) {
        Some((from, members)) => enter(&from, (purpose, members, Vec::new()), RankCallback::Status(reply)),
        None => {
            reply.send(iof_proto::Status::ERR_NOT_FOUND);
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
        let Some(from) = any_rank() else { return iof_proto::Status::ERR_NOT_FOUND.0 };
        let message = read::procs(proc, 1).and_then(|owner| {
            let owner = owner.into_iter().next().ok_or(iof_proto::Status::ERR_BAD_PARAM)?;
            Ok(FromTool::Exchange(Exchange::Modex(owner)))
        });
        request(&raw const from, message, RankCallback::Values(ValuesReply::new(done, data)))
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
        let (mut first, all) = participants(&members).unzip();
        first = first.or(members.first().copied());
        let message = if constructs && !members.iter().all(is_served) {
            Err(iof_proto::Status::ERR_NOT_FOUND)
        } else {
            read::group(constructs, (group, all.unwrap_or_default()), directives, count)
        };
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
