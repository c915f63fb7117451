//! What C hands over, made into values of Rust: pointers are looked at here, and texts and arrays
//! have their limits.
//!
//! The promise behind every `unsafe` here is the caller's, which the head of the header asks of C:
//! a pointer that is not NULL points to what its type says, as many of them as the number beside it
//! says, readable until the call returns.

use std::ffi::c_char;
use std::slice;

use iof_proto::limits::{
    MAX_DIRECTIVES, MAX_LOG_ENTRIES, MAX_LOG_TEXT, MAX_PROCS_PER_PULL, MAX_QUERY_KEYS, MAX_TEXT,
};
use iof_proto::log::key::PMIX_LOG_EMAIL;
use iof_proto::{Channels, Info, InfoValue, LogEntry, LogValue, Nspace, Proc, Query, Rank};

use crate::constants::*;
use crate::guard::Outcome;
use crate::types::{
    iof_byte_object_t, iof_data_array_t, iof_info_t, iof_iof_channel_t, iof_proc_t, iof_query_t, iof_value_t,
};

/// `count` values at `at`, at most `limit`.
///
/// # Safety
/// The module's promise.
pub(crate) unsafe fn slice<'a, T>(at: *const T, count: usize, limit: usize) -> Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() || !at.is_aligned() || count > limit {
        return Err(IOF_ERR_BAD_PARAM);
    }
    // SAFETY: not NULL and aligned; the rest is promised. Our types have no values that are not
    // allowed, but for the union's bool, which is never read as one.
    Ok(unsafe { slice::from_raw_parts(at, count) })
}

/// What is at `at`.
///
/// # Safety
/// The module's promise.
pub(crate) unsafe fn one<'a, T>(at: *const T) -> Outcome<&'a T> {
    // SAFETY: as promised to us.
    unsafe { slice(at, 1, 1) }?.first().ok_or(IOF_ERR_BAD_PARAM)
}

/// The bytes that `at` describes, at most `limit`; none if it is NULL.
///
/// # Safety
/// The module's promise.
pub(crate) unsafe fn payload<'a>(at: *const iof_byte_object_t, limit: usize) -> Outcome<&'a [u8]> {
    if at.is_null() {
        return Ok(&[]);
    }
    // SAFETY: as promised to us.
    unsafe {
        let object = one(at)?;
        slice(object.bytes.cast(), object.size, limit)
    }
}

/// A place to put something.
///
/// # Safety
/// The module's promise, for writing, and nobody else uses it meanwhile.
pub(crate) unsafe fn place<'a, T>(at: *mut T) -> Outcome<&'a mut T> {
    if at.is_null() || !at.is_aligned() {
        return Err(IOF_ERR_BAD_PARAM);
    }
    // SAFETY: not NULL and aligned; the rest is promised.
    Ok(unsafe { &mut *at })
}

/// The bytes of a terminated text of at most `limit` bytes.
///
/// # Safety
/// The module's promise, up to the terminator or the limit.
pub(crate) unsafe fn bytes<'a>(at: *const c_char, limit: usize) -> Outcome<&'a [u8]> {
    if at.is_null() {
        return Err(IOF_ERR_BAD_PARAM);
    }
    // SAFETY: looks at no byte behind the terminator or the limit.
    let length = unsafe { libc::strnlen(at, limit.saturating_add(1)) };
    if length > limit {
        return Err(IOF_ERR_BAD_PARAM);
    }
    // SAFETY: so many were just looked at.
    Ok(unsafe { slice::from_raw_parts(at.cast(), length) })
}

/// A terminated text.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn text<'a>(at: *const c_char, limit: usize) -> Outcome<&'a str> {
    // SAFETY: as promised to us.
    str::from_utf8(unsafe { bytes(at, limit) }?).map_err(|_| IOF_ERR_BAD_PARAM)
}

/// A text that stands in an array, where its terminator must be, too.
fn text_within(array: &[c_char]) -> Outcome<&str> {
    // SAFETY: char and u8 are laid out alike.
    let bytes: &[u8] = unsafe { slice::from_raw_parts(array.as_ptr().cast(), array.len()) };
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(IOF_ERR_BAD_PARAM)?;
    str::from_utf8(bytes.get(..end).unwrap_or_default()).map_err(|_| IOF_ERR_BAD_PARAM)
}

pub(crate) fn nspace(name: &str) -> Outcome<Nspace> {
    Nspace::new(name).map_err(|_| IOF_ERR_BAD_PARAM)
}

pub(crate) fn proc(from: &iof_proc_t) -> Outcome<Proc> {
    Ok(Proc::new(nspace(text_within(&from.nspace)?)?, Rank(from.rank)))
}

/// Processes, one at least.
///
/// # Safety
/// The module's promise.
pub(crate) unsafe fn procs(at: *const iof_proc_t, count: usize) -> Outcome<Vec<Proc>> {
    // SAFETY: as promised to us.
    let all = unsafe { slice(at, count, MAX_PROCS_PER_PULL) }?;
    if all.is_empty() {
        return Err(IOF_ERR_BAD_PARAM);
    }
    all.iter().map(proc).collect()
}

pub(crate) fn channels(channels: iof_iof_channel_t) -> Outcome<Channels> {
    Channels::try_from(channels).ok().filter(|channels| !channels.is_empty()).ok_or(IOF_ERR_BAD_PARAM)
}

/// Directives. One whose value has a type that none of ours has is refused if it is required, and
/// else left out.
///
/// # Safety
/// The module's promise, for all that values point to as well.
pub(crate) unsafe fn infos(at: *const iof_info_t, count: usize) -> Outcome<Vec<Info>> {
    // SAFETY: as promised to us.
    let all = unsafe { slice(at, count, MAX_DIRECTIVES) }?;
    let mut infos = Vec::with_capacity(all.len());
    for from in all {
        let key = key(from)?;
        let required = from.flags & IOF_INFO_REQD != 0;
        // SAFETY: as promised to us.
        match unsafe { value(&from.value, MAX_TEXT) } {
            Ok(value) => infos.push(Info { key: key.to_owned(), value, required }),
            Err(IOF_ERR_NOT_SUPPORTED) if !required => {}
            Err(status) => return Err(status),
        }
    }
    Ok(infos)
}

/// The key of an info.
pub(crate) fn key(info: &iof_info_t) -> Outcome<&str> {
    text_within(&info.key)
}

/// A value, whose text may have `limit` bytes.
///
/// # Safety
/// The module's promise, for what the value points to.
pub(crate) unsafe fn value(from: &iof_value_t, limit: usize) -> Outcome<InfoValue> {
    if let Some(number) = number(from) {
        // What is below zero is nothing that we have a directive for.
        return u64::try_from(number).map(InfoValue::Number).map_err(|_| IOF_ERR_BAD_PARAM);
    }
    let iof_value_t { r#type, data } = from;
    // SAFETY: the type says which one is there, and C promises that it does; a bool is looked at as the
    // byte that it is.
    unsafe {
        Ok(match *r#type {
            // PMIx's macros make a bool without a value of a flag that is just there.
            IOF_UNDEF => InfoValue::Bool(true),
            IOF_BOOL => InfoValue::Bool(data.byte != 0),
            IOF_STRING => InfoValue::Text(text(data.string, limit)?.to_owned()),
            IOF_BYTE_OBJECT => InfoValue::Text(text_of(&data.bo, limit)?),
            IOF_PROC => InfoValue::Proc(proc(one(data.proc)?)?),
            IOF_PROC_NSPACE => InfoValue::Text(text_within(one(data.nspace)?)?.to_owned()),
            _ => return Err(IOF_ERR_NOT_SUPPORTED),
        })
    }
}

/// A text in a byte object, with or without a terminator.
unsafe fn text_of(bo: &iof_byte_object_t, limit: usize) -> Outcome<String> {
    // SAFETY: as promised to us.
    let bytes: &[u8] = unsafe { slice(bo.bytes.cast(), bo.size, limit.saturating_add(1)) }?;
    let text = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    String::from_utf8(text.to_vec()).map_err(|_| IOF_ERR_BAD_PARAM)
}

/// The number that a value is, if it is one.
pub(crate) fn number(from: &iof_value_t) -> Option<i128> {
    let iof_value_t { r#type, data } = from;
    // SAFETY: all of these are numbers, for which any bits will do.
    unsafe {
        Some(match *r#type {
            IOF_BYTE | IOF_UINT8 | IOF_PROC_STATE => data.uint8.into(),
            IOF_SIZE | IOF_UINT64 => data.uint64.into(),
            IOF_PID => data.pid.into(),
            IOF_INT | IOF_INT32 | IOF_STATUS => data.int32.into(),
            IOF_INT8 => data.int8.into(),
            IOF_INT16 => data.int16.into(),
            IOF_INT64 | IOF_TIME => data.int64.into(),
            IOF_UINT | IOF_UINT32 | IOF_PROC_RANK => data.uint32.into(),
            IOF_UINT16 | IOF_IOF_CHANNEL => data.uint16.into(),
            _ => return None,
        })
    }
}

/// An array of terminated texts that ends with NULL.
///
/// # Safety
/// The module's promise, up to the end or to `limit` of them.
pub(crate) unsafe fn texts(at: *const *mut c_char, limit: usize, bytes_each: usize) -> Outcome<Vec<Vec<u8>>> {
    let mut texts = Vec::new();
    if at.is_null() {
        return Ok(texts);
    }
    if !at.is_aligned() {
        return Err(IOF_ERR_BAD_PARAM);
    }
    loop {
        // SAFETY: all before were not NULL, so this one is there as well.
        let next = unsafe { *at.wrapping_add(texts.len()) };
        if next.is_null() {
            return Ok(texts);
        }
        if texts.len() >= limit {
            return Err(IOF_ERR_BAD_PARAM);
        }
        // SAFETY: as promised to us.
        texts.push(unsafe { bytes(next, bytes_each) }?.to_vec());
    }
}

/// Queries, one at least.
///
/// # Safety
/// The module's promise, for all that they point to as well.
pub(crate) unsafe fn queries(at: *const iof_query_t, count: usize) -> Outcome<Vec<Query>> {
    // SAFETY: as promised to us.
    let all = unsafe { slice(at, count, MAX_QUERY_KEYS) }?;
    if all.is_empty() {
        return Err(IOF_ERR_BAD_PARAM);
    }
    let query = |from: &iof_query_t| {
        // SAFETY: as promised to us.
        let (keys, qualifiers) =
            unsafe { (texts(from.keys, MAX_QUERY_KEYS, MAX_TEXT)?, infos(from.qualifiers, from.nqual)?) };
        let keys = keys.into_iter().map(|key| String::from_utf8(key).map_err(|_| IOF_ERR_BAD_PARAM));
        let keys = keys.collect::<Outcome<Vec<String>>>()?;
        if keys.is_empty() { Err(IOF_ERR_BAD_PARAM) } else { Ok(Query { keys, qualifiers }) }
    };
    all.iter().map(query).collect()
}

/// The data of a log request, one entry at least.
///
/// # Safety
/// The module's promise, for all that values point to as well.
pub(crate) unsafe fn log_entries(at: *const iof_info_t, count: usize) -> Outcome<Vec<LogEntry>> {
    // SAFETY: as promised to us.
    let all = unsafe { slice(at, count, MAX_LOG_ENTRIES) }?;
    if all.is_empty() {
        return Err(IOF_ERR_BAD_PARAM);
    }
    let entry = |from: &iof_info_t| {
        let (channel, required) = (key(from)?.to_owned(), from.flags & IOF_INFO_REQD != 0);
        // SAFETY: the type says what is there; all else as promised to us.
        let value = unsafe {
            if channel == PMIX_LOG_EMAIL && from.value.r#type == IOF_DATA_ARRAY {
                LogValue::Email(email(one(from.value.data.darray)?)?)
            } else {
                match value(&from.value, MAX_LOG_TEXT)? {
                    InfoValue::Text(text) => LogValue::Text(text),
                    _ => return Err(IOF_ERR_BAD_PARAM),
                }
            }
        };
        Ok(LogEntry { channel, value, required })
    };
    all.iter().map(entry).collect()
}

/// What an email has.
unsafe fn email(array: &iof_data_array_t) -> Outcome<Vec<Info>> {
    if array.r#type != IOF_INFO {
        return Err(IOF_ERR_BAD_PARAM);
    }
    // SAFETY: the type says what the array is of.
    let fields: &[iof_info_t] = unsafe { slice(array.array.cast(), array.size, MAX_DIRECTIVES) }?;
    let field = |from: &iof_info_t| {
        let required = from.flags & IOF_INFO_REQD != 0;
        // SAFETY: as promised to us.
        Ok(Info { key: key(from)?.to_owned(), value: unsafe { value(&from.value, MAX_LOG_TEXT) }?, required })
    };
    fields.iter().map(field).collect()
}
