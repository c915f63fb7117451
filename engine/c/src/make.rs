//! Makes values of C from values of Rust. If memory is exhausted, a text is NULL and an array
//! empty.

use std::ffi::c_void;

use iof_proto::attribute::{self, Attribute, ValueType};
use iof_proto::{Answer, Attributes, Found, Info, InfoValue, JobInfo, ProcInfo, Status, StreamStats, Value};

use crate::constants::*;
use crate::keys::*;
use crate::memory;
use crate::types::{
    iof_data_array_t, iof_data_type_t, iof_info_t, iof_proc_info_t, iof_regattr_t, iof_value_data_t,
    iof_value_t,
};
use crate::value::NOTHING;

/// Returns an optional info.
pub(crate) fn info(key: &str, value: iof_value_t) -> iof_info_t {
    iof_info_t { key: memory::key(key), flags: 0, value }
}

pub(crate) fn boolean(flag: bool) -> iof_value_t {
    iof_value_t { r#type: IOF_BOOL, data: iof_value_data_t { flag } }
}

pub(crate) fn uint32(uint32: u32) -> iof_value_t {
    with(IOF_UINT32, |data| data.uint32 = uint32)
}

pub(crate) fn uint64(uint64: u64) -> iof_value_t {
    with(IOF_UINT64, |data| data.uint64 = uint64)
}

pub(crate) fn integer(integer: i32) -> iof_value_t {
    with(IOF_INT, |data| data.integer = integer)
}

pub(crate) fn pid(pid: u32) -> iof_value_t {
    with(IOF_PID, |data| data.pid = pid.cast_signed())
}

pub(crate) fn status(status: Status) -> iof_value_t {
    with(IOF_STATUS, |data| data.status = status.0)
}

pub(crate) fn text(text: &str) -> iof_value_t {
    with(IOF_STRING, |data| data.string = memory::text(text.as_bytes()))
}

pub(crate) fn proc(proc: &iof_proto::Proc) -> iof_value_t {
    with(IOF_PROC, |data| data.proc = boxed(memory::proc(proc)))
}

/// Returns a value with all bits of the union initialized, so that it can be copied as it is.
fn with(r#type: iof_data_type_t, fill: impl FnOnce(&mut iof_value_data_t)) -> iof_value_t {
    let mut value = iof_value_t { r#type, ..NOTHING };
    fill(&mut value.data);
    value
}

fn boxed<T>(value: T) -> *mut T {
    let place: *mut T = memory::zeroed(1);
    if !place.is_null() {
        // SAFETY: there is room for one value, and nothing else refers to it.
        unsafe { place.write(value) };
    }
    place
}

fn array<T: Copy>(r#type: iof_data_type_t, elements: &[T]) -> iof_value_t {
    let place: *mut T = memory::zeroed(elements.len());
    let size = if place.is_null() { 0 } else { elements.len() };
    if size > 0 {
        // SAFETY: there is room for all elements.
        unsafe { std::ptr::copy_nonoverlapping(elements.as_ptr(), place, size) };
    }
    let array = iof_data_array_t { r#type, size, array: place.cast::<c_void>() };
    with(IOF_DATA_ARRAY, |data| data.darray = boxed(array))
}

pub(crate) fn infos(infos: &[iof_info_t]) -> iof_value_t {
    array(IOF_INFO, infos)
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
        iof_info_t { flags: if *required { IOF_INFO_REQD } else { 0 }, ..info(key, value) }
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
        Value::Procs(procs) if key == IOF_LOCAL_PROCS => {
            array(IOF_PROC, &procs.iter().map(|info| memory::proc(&info.proc)).collect::<Vec<_>>())
        }
        Value::Jobs(jobs) if key == IOF_QUERY_JOB_STATUS => {
            let status = |job: &JobInfo| info(job.nspace.as_str(), status(job.status));
            infos(&jobs.iter().map(status).collect::<Vec<_>>())
        }
        Value::Procs(procs) => array(IOF_PROC_INFO, &procs.iter().map(proc_info).collect::<Vec<_>>()),
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
        info(IOF_NSPACE, text(from.nspace.as_str())),
        info(IOF_JOB_SIZE, uint32(from.procs)),
        info(IOF_QUERY_JOB_STATUS, status(from.status)),
        info(IOF_CMD_LINE, text(&from.command)),
    ];
    fields.extend(from.exit_code.map(|code| info(IOF_EXIT_CODE, integer(code))));
    info(IOF_QUERY_NAMESPACE_INFO, infos(&fields))
}

fn stream(from: &StreamStats) -> iof_info_t {
    let mut fields = vec![
        info(IOF_PROCID, proc(&from.source)),
        info(IOF_CHANNEL, with(IOF_IOF_CHANNEL, |data| data.uint16 = channel(from.channel))),
        info(IOF_LOGGED, boolean(from.logged)),
        info(IOF_PRODUCED, uint64(from.produced)),
        info(IOF_CACHED, uint64(from.cached)),
        info(IOF_DROPPED, uint64(from.dropped)),
        info(IOF_GENERATION, uint64(from.generation)),
        info(IOF_READERS, uint32(from.readers.len().try_into().unwrap_or(u32::MAX))),
        info(IOF_IOF_COMPLETE, boolean(from.complete)),
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
    info(&from.function, array(IOF_REGATTR, &attributes))
}

fn attribute(key: &str) -> iof_regattr_t {
    // The host may have attributes that the table lacks.
    let row = attribute::find(key);
    iof_regattr_t {
        name: memory::text(row.map_or(key, |row| row.name).as_bytes()),
        string: memory::key(key),
        r#type: row.map_or(IOF_UNDEF, data_type),
        description: row.map_or(std::ptr::null_mut(), |row| memory::texts(&[row.text])),
    }
}

/// Returns the first type of an attribute's values.
fn data_type(row: &Attribute) -> iof_data_type_t {
    match row.types.first() {
        Some(ValueType::Bool) => IOF_BOOL,
        Some(ValueType::Number) if *row.range.end() <= u32::MAX.into() => IOF_UINT32,
        Some(ValueType::Number) => IOF_UINT64,
        Some(ValueType::Text) => IOF_STRING,
        Some(ValueType::Process) => IOF_PROC,
        Some(ValueType::Status) => IOF_STATUS,
        Some(ValueType::Channel) => IOF_IOF_CHANNEL,
        Some(
            ValueType::Email
            | ValueType::Processes
            | ValueType::Jobs
            | ValueType::Streams
            | ValueType::Attributes,
        ) => IOF_DATA_ARRAY,
        Some(ValueType::Any) | None => IOF_UNDEF,
    }
}
