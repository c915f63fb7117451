//! Makes values of C from values of Rust. If memory is exhausted, a text is NULL and an array
//! empty.

use iof_proto::attribute::key::*;
use iof_proto::attribute::{self, Attribute};
use iof_proto::{Answer, Attributes, Found, Info, InfoValue, JobInfo, ProcInfo, Status, StreamStats, Value};

use crate::ffi::constants::*;
use crate::ffi::memory;
use crate::ffi::types::{
    iof_data_array_t, iof_data_type_t, iof_info_t, iof_proc_info_t, iof_regattr_t, iof_value_data_t,
    iof_value_t,
};
use crate::ffi::value::NOTHING;

/// Returns an optional info.
pub(crate) fn info(key: &str, value: iof_value_t) -> iof_info_t {
    iof_info_t { key: memory::characters(key), flags: 0, value }
}

pub(crate) fn boolean(flag: bool) -> iof_value_t {
    iof_value_t { r#type: PMIX_BOOL, data: iof_value_data_t { flag } }
}

pub(crate) fn uint32(uint32: u32) -> iof_value_t {
    with(PMIX_UINT32, |data| data.uint32 = uint32)
}

pub(crate) fn uint64(uint64: u64) -> iof_value_t {
    with(PMIX_UINT64, |data| data.uint64 = uint64)
}

pub(crate) fn integer(integer: i32) -> iof_value_t {
    with(PMIX_INT, |data| data.integer = integer)
}

pub(crate) fn pid(pid: u32) -> iof_value_t {
    with(PMIX_PID, |data| data.pid = pid.cast_signed())
}

pub(crate) fn status(status: Status) -> iof_value_t {
    with(PMIX_STATUS, |data| data.status = status.0)
}

pub(crate) fn text(text: &str) -> iof_value_t {
    with(PMIX_STRING, |data| data.string = memory::text(text.as_bytes()))
}

pub(crate) fn proc(proc: &iof_proto::Proc) -> iof_value_t {
    with(PMIX_PROC, |data| data.proc = memory::give(&[memory::proc(proc)]))
}

/// Returns a value with all bits of the union initialized, so that it can be copied as it is.
fn with(r#type: iof_data_type_t, fill: impl FnOnce(&mut iof_value_data_t)) -> iof_value_t {
    let mut value = iof_value_t { r#type, ..NOTHING };
    fill(&mut value.data);
    value
}

fn array<T: Copy>(r#type: iof_data_type_t, elements: &[T]) -> iof_value_t {
    let place = memory::give(elements);
    let size = if place.is_null() { 0 } else { elements.len() };
    let array = iof_data_array_t { r#type, size, array: place.cast() };
    with(PMIX_DATA_ARRAY, |data| data.darray = memory::give(&[array]))
}

pub(crate) fn infos(infos: &[iof_info_t]) -> iof_value_t {
    array(PMIX_INFO, infos)
}

/// Converts infos: directives, or the answer of a host.
pub(crate) fn from_infos(from: &[Info]) -> Vec<iof_info_t> {
    let convert = |Info { key, value, required }: &Info| {
        let value = match value {
            InfoValue::Bool(flag) => boolean(*flag),
            InfoValue::Number(number) => match u32::try_from(*number) {
                Ok(number) => uint32(number),
                Err(_) => uint64(*number),
            },
            InfoValue::Text(string) => text(string),
            InfoValue::Proc(process) => proc(process),
        };
        iof_info_t { flags: if *required { PMIX_INFO_REQD } else { 0 }, ..info(key, value) }
    };
    from.iter().map(convert).collect()
}

/// Converts the answer to a query: one info for each key that is known.
pub(crate) fn answer(answer: &Answer) -> Vec<iof_info_t> {
    answer.found.iter().map(|Found { key, value, .. }| info(key, found(key, value))).collect()
}

fn found(key: &str, value: &Value) -> iof_value_t {
    match value {
        Value::Text(string) => text(string),
        Value::Status(code) => status(*code),
        Value::Procs(procs) if key == PMIX_LOCAL_PROCS => {
            array(PMIX_PROC, &procs.iter().map(|info| memory::proc(&info.proc)).collect::<Vec<_>>())
        }
        Value::Jobs(jobs) if key == PMIX_QUERY_JOB_STATUS => {
            let status = |job: &JobInfo| info(job.nspace.as_str(), status(job.status));
            infos(&jobs.iter().map(status).collect::<Vec<_>>())
        }
        Value::Procs(procs) => array(PMIX_PROC_INFO, &procs.iter().map(proc_info).collect::<Vec<_>>()),
        Value::Streams(streams) => infos(&streams.iter().map(stream).collect::<Vec<_>>()),
        Value::Jobs(jobs) => infos(&jobs.iter().map(job).collect::<Vec<_>>()),
        Value::Attributes(all) => infos(&all.iter().map(attributes).collect::<Vec<_>>()),
        // A value of another type.
        Value::Infos(all) => match from_infos(all)[..] {
            [only] if all.iter().all(|info| info.key == key) => only.value,
            ref all => infos(all),
        },
    }
}

fn proc_info(from: &ProcInfo) -> iof_proc_info_t {
    let known = |name: &str| {
        if name.is_empty() { std::ptr::null_mut() } else { memory::text(name.as_bytes()) }
    };
    iof_proc_info_t {
        proc: memory::proc(&from.proc),
        hostname: known(&from.host),
        executable_name: known(&from.executable),
        pid: from.pid.cast_signed(),
        exit_code: from.exit_code.unwrap_or(0),
        state: from.state.code(),
    }
}

fn job(from: &JobInfo) -> iof_info_t {
    let mut fields = vec![
        info(PMIX_NSPACE, text(from.nspace.as_str())),
        info(PMIX_JOB_SIZE, uint32(from.procs)),
        info(PMIX_QUERY_JOB_STATUS, status(from.status)),
        info(PMIX_CMD_LINE, text(&from.command)),
    ];
    fields.extend(from.exit_code.map(|code| info(PMIX_EXIT_CODE, integer(code))));
    info(PMIX_QUERY_NAMESPACE_INFO, infos(&fields))
}

fn stream(from: &StreamStats) -> iof_info_t {
    let mut fields = vec![
        info(PMIX_PROCID, proc(&from.source)),
        info(IOF_CHANNEL, with(PMIX_IOF_CHANNEL, |data| data.uint16 = channel(from.channel))),
        info(IOF_LOGGED, boolean(from.logged)),
        info(IOF_PRODUCED, uint64(from.produced)),
        info(IOF_CACHED, uint64(from.cached)),
        info(IOF_DROPPED, uint64(from.dropped)),
        info(IOF_GENERATION, uint64(from.generation)),
        info(IOF_READERS, uint32(from.readers.len().try_into().unwrap_or(u32::MAX))),
        info(PMIX_IOF_COMPLETE, boolean(from.complete)),
    ];
    fields.extend(from.missing.map(|missing| info(IOF_BROKEN, uint64(missing))));
    info(IOF_QUERY_STATS, infos(&fields))
}

/// Returns the bit of a channel.
pub(crate) fn channel(channel: iof_proto::Channel) -> u16 {
    iof_proto::Channels::from(channel).bits()
}

fn attributes(from: &Attributes) -> iof_info_t {
    let attributes: Vec<iof_regattr_t> = from.keys.iter().map(|key| attribute(key)).collect();
    info(&from.function, array(PMIX_REGATTR, &attributes))
}

fn attribute(key: &str) -> iof_regattr_t {
    // The host may have attributes that the table lacks.
    let row = attribute::find(key);
    iof_regattr_t {
        name: memory::text(row.map_or(key, |row| row.name).as_bytes()),
        string: memory::characters(key),
        r#type: row.map_or(PMIX_UNDEF, Attribute::data_type),
        description: row.map_or(std::ptr::null_mut(), |row| memory::texts(&[row.text()])),
    }
}
