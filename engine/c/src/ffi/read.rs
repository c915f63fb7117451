//! Converts what C passes into values of Rust. This module checks pointers, and limits the lengths
//! of texts and arrays.
//!
//! The contract behind every `unsafe` block of this module is the caller's, as the head of the
//! header states it: a pointer that is not NULL points to values of its type, as many as the number
//! beside it specifies, which are readable until the call returns.

use std::ffi::c_char;
use std::slice;

use iof_proto::attribute::key::*;
use iof_proto::limits::{
    MAX_DIRECTIVES, MAX_LOG_ENTRIES, MAX_LOG_TEXT, MAX_PROCS_PER_PULL, MAX_QUERY_KEYS, MAX_TEXT,
};
use iof_proto::log::key::PMIX_LOG_EMAIL;
use iof_proto::{Channels, Info, InfoValue, LogEntry, LogValue, Nspace, Proc, Query, Rank, Status};

use crate::ffi::constants::*;
use crate::ffi::guard::{OrStatus, Outcome};
use crate::ffi::types::{
    IOF_MAX_NSLEN, iof_byte_object_t, iof_data_array_t, iof_info_t, iof_iof_channel_t, iof_proc_t,
    iof_query_t, iof_value_t,
};

/// Returns `count` values, at most `limit`, that begin at `start`.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn slice<'a, T>(start: *const T, count: usize, limit: usize) -> Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() {
        return Err(Status::ERR_BAD_PARAM);
    }
    if count > limit {
        return too_long(&format!("a list of {count} elements"), limit);
    }
    // SAFETY: the pointer is aligned and not NULL; the rest is the module's contract. All bit
    // patterns are valid for the types of the header, except for the union's bool, which is never
    // read as a bool.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

/// Returns the same values, at least one.
///
/// # Safety
/// The module's contract.
unsafe fn some<'a, T>(start: *const T, count: usize, limit: usize) -> Outcome<&'a [T]> {
    // SAFETY: the module's contract.
    let all = unsafe { slice(start, count, limit) }?;
    if all.is_empty() { Err(Status::ERR_BAD_PARAM) } else { Ok(all) }
}

/// Returns the value at `place`.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn one<'a, T>(place: *const T) -> Outcome<&'a T> {
    // SAFETY: the module's contract.
    unsafe { slice(place, 1, 1) }?.first().ok_or(Status::ERR_BAD_PARAM)
}

/// Returns the bytes of an object, at most `limit`; none if `object` is NULL.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn payload<'a>(object: *const iof_byte_object_t, limit: usize) -> Outcome<&'a [u8]> {
    if object.is_null() {
        return Ok(&[]);
    }
    // SAFETY: the module's contract.
    unsafe {
        let object = one(object)?;
        slice(object.bytes.cast(), object.size, limit)
    }
}

/// Returns a place for a result.
///
/// # Safety
/// The module's contract, for writing; nothing else uses the place until the call returns.
pub(crate) unsafe fn place<'a, T>(place: *mut T) -> Outcome<&'a mut T> {
    if place.is_null() || !place.is_aligned() {
        return Err(Status::ERR_BAD_PARAM);
    }
    // SAFETY: the pointer is aligned and not NULL; the rest is the caller's promise.
    Ok(unsafe { &mut *place })
}

/// Stores a result, unless `place` is NULL, because the program does not want it.
///
/// # Safety
/// As [`place`].
pub(crate) unsafe fn store<T>(place: *mut T, value: T) -> Outcome<()> {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        *unsafe { self::place(place) }? = value;
    }
    Ok(())
}

fn too_long<T>(what: &str, limit: usize) -> Outcome<T> {
    Err(format!("{what} exceeds the limit of {limit}")).or_status(Status::ERR_BAD_PARAM)
}

/// Returns the bytes of a terminated text of at most `limit` bytes.
///
/// # Safety
/// The module's contract, up to the terminator or the limit.
pub(crate) unsafe fn bytes<'a>(start: *const c_char, limit: usize) -> Outcome<&'a [u8]> {
    if start.is_null() {
        return Err(Status::ERR_BAD_PARAM);
    }
    // SAFETY: strnlen reads no byte after the terminator or the limit.
    let length = unsafe { libc::strnlen(start, limit.saturating_add(1)) };
    if length > limit {
        return too_long("the number of bytes of a text", limit);
    }
    // SAFETY: strnlen has just read `length` bytes.
    Ok(unsafe { slice::from_raw_parts(start.cast(), length) })
}

/// Returns a terminated text, which must be UTF-8.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn text<'a>(start: *const c_char, limit: usize) -> Outcome<&'a str> {
    // SAFETY: the module's contract.
    str::from_utf8(unsafe { bytes(start, limit) }?).map_err(|_| Status::ERR_BAD_PARAM)
}

/// Returns a text that is empty if `start` is NULL.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn optional_text(start: *const c_char, limit: usize) -> Outcome<String> {
    if start.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the module's contract.
    Ok(unsafe { text(start, limit) }?.to_owned())
}

/// Returns the text in an array, which must contain its terminator.
fn text_within(array: &[c_char]) -> Outcome<&str> {
    // SAFETY: `c_char` and `u8` have the same layout.
    let bytes: &[u8] = unsafe { slice::from_raw_parts(array.as_ptr().cast(), array.len()) };
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(Status::ERR_BAD_PARAM)?;
    str::from_utf8(bytes.get(..end).unwrap_or_default()).map_err(|_| Status::ERR_BAD_PARAM)
}

pub(crate) fn nspace(name: &str) -> Outcome<Nspace> {
    Nspace::new(name).or_status(Status::ERR_BAD_PARAM)
}

/// Reads the name of a job.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn job_name(start: *const c_char) -> Outcome<Nspace> {
    // SAFETY: the module's contract.
    nspace(unsafe { text(start, IOF_MAX_NSLEN) }?)
}

pub(crate) fn proc(from: &iof_proc_t) -> Outcome<Proc> {
    Ok(Proc::new(nspace(text_within(&from.nspace)?)?, Rank(from.rank)))
}

/// Reads processes, at least one.
///
/// # Safety
/// The module's contract.
pub(crate) unsafe fn procs(start: *const iof_proc_t, count: usize) -> Outcome<Vec<Proc>> {
    // SAFETY: the module's contract.
    unsafe { some(start, count, MAX_PROCS_PER_PULL) }?.iter().map(proc).collect()
}

pub(crate) fn channels(channels: iof_iof_channel_t) -> Outcome<Channels> {
    Channels::try_from(channels).ok().filter(|channels| !channels.is_empty()).ok_or(Status::ERR_BAD_PARAM)
}

/// Reads directives. If the type of a value is not supported, a required directive is refused, and
/// an optional one is left out.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn infos(start: *const iof_info_t, count: usize) -> Outcome<Vec<Info>> {
    // SAFETY: the module's contract.
    let all = unsafe { slice(start, count, MAX_DIRECTIVES) }?;
    let mut infos = Vec::with_capacity(all.len());
    for from in all {
        let key = key(from)?;
        let required = from.flags & PMIX_INFO_REQD != 0;
        // SAFETY: the module's contract.
        match unsafe { directive(key, &from.value) } {
            Ok(value) => infos.push(Info { key: key.to_owned(), value, required }),
            Err(Status::ERR_NOT_SUPPORTED) if !required => {}
            Err(status) => {
                let valid = format!("give another type, no negative number, at most {MAX_TEXT} bytes");
                return Err(format!("{key} has an unsupported value: {valid}")).or_status(status);
            }
        }
    }
    Ok(infos)
}

/// Returns the key of an info.
pub(crate) fn key(info: &iof_info_t) -> Outcome<&str> {
    text_within(&info.key)
}

/// Reads the value of a directive. A rank may be a signed number, as in programs that pass a rank
/// of PMIx's as an int.
///
/// # Safety
/// The module's contract, for what the value points to.
unsafe fn directive(key: &str, from: &iof_value_t) -> Outcome<InfoValue> {
    let is_rank = matches!(key, PMIX_RANK | PMIX_TOOL_RANK | PMIX_STDIN_TGT | IOF_STDIN_INHERIT | IOF_PTY);
    match number(from).and_then(|number| i32::try_from(number).ok()) {
        Some(negative @ ..0) if is_rank => Ok(InfoValue::Number(negative.cast_unsigned().into())),
        // SAFETY: the caller's promise.
        _ => unsafe { value(from, MAX_TEXT) },
    }
}

/// Reads a value whose text has at most `limit` bytes.
///
/// # Safety
/// The module's contract, for what the value points to.
pub(crate) unsafe fn value(from: &iof_value_t, limit: usize) -> Outcome<InfoValue> {
    if let Some(number) = number(from) {
        // No directive has a negative value.
        return u64::try_from(number).map(InfoValue::Number).map_err(|_| Status::ERR_BAD_PARAM);
    }
    let iof_value_t { r#type, data } = from;
    // SAFETY: the type specifies the field, by the module's contract; a bool is read as a byte.
    unsafe {
        Ok(match *r#type {
            // PMIx's macros express a flag without a value in this way.
            PMIX_UNDEF => InfoValue::Bool(true),
            PMIX_BOOL => InfoValue::Bool(data.byte != 0),
            PMIX_STRING => InfoValue::Text(text(data.string, limit)?.to_owned()),
            PMIX_BYTE_OBJECT => InfoValue::Text(byte_object_text(&data.bo, limit)?),
            PMIX_PROC => InfoValue::Proc(proc(one(data.proc)?)?),
            PMIX_PROC_NSPACE => InfoValue::Text(text_within(one(data.nspace)?)?.to_owned()),
            _ => return Err(Status::ERR_NOT_SUPPORTED),
        })
    }
}

/// Reads the text in a byte object, with or without a terminator.
unsafe fn byte_object_text(bo: &iof_byte_object_t, limit: usize) -> Outcome<String> {
    // SAFETY: the module's contract.
    let bytes: &[u8] = unsafe { slice(bo.bytes.cast(), bo.size, limit.saturating_add(1)) }?;
    let text = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    String::from_utf8(text.to_vec()).map_err(|_| Status::ERR_BAD_PARAM)
}

/// Returns the number that a value contains, if its type is a number.
pub(crate) fn number(from: &iof_value_t) -> Option<i128> {
    let iof_value_t { r#type, data } = from;
    // SAFETY: all of these fields are integers, for which all bit patterns are valid.
    unsafe {
        Some(match *r#type {
            PMIX_BYTE | PMIX_UINT8 | PMIX_PROC_STATE => data.uint8.into(),
            PMIX_SIZE | PMIX_UINT64 => data.uint64.into(),
            PMIX_PID => data.pid.into(),
            PMIX_INT | PMIX_INT32 | PMIX_STATUS => data.int32.into(),
            PMIX_INT8 => data.int8.into(),
            PMIX_INT16 => data.int16.into(),
            PMIX_INT64 | PMIX_TIME => data.int64.into(),
            PMIX_UINT | PMIX_UINT32 | PMIX_PROC_RANK => data.uint32.into(),
            PMIX_UINT16 | PMIX_IOF_CHANNEL => data.uint16.into(),
            _ => return None,
        })
    }
}

/// Reads an array of terminated texts that ends with NULL.
///
/// # Safety
/// The module's contract, up to the end of the array or to `limit` texts.
pub(crate) unsafe fn texts(
    start: *const *mut c_char,
    limit: usize,
    bytes_each: usize,
) -> Outcome<Vec<Vec<u8>>> {
    let mut texts = Vec::new();
    if start.is_null() {
        return Ok(texts);
    }
    if !start.is_aligned() {
        return Err(Status::ERR_BAD_PARAM);
    }
    loop {
        // SAFETY: no earlier element is NULL, so the array has this one as well.
        let next = unsafe { *start.wrapping_add(texts.len()) };
        if next.is_null() {
            return Ok(texts);
        }
        if texts.len() >= limit {
            return too_long("the number of texts in a list", limit);
        }
        // SAFETY: the module's contract.
        texts.push(unsafe { bytes(next, bytes_each) }?.to_vec());
    }
}

/// Reads queries, at least one.
///
/// # Safety
/// The module's contract, also for all that they point to.
pub(crate) unsafe fn queries(start: *const iof_query_t, count: usize) -> Outcome<Vec<Query>> {
    let query = |from: &iof_query_t| {
        // SAFETY: the module's contract.
        let (keys, qualifiers) =
            unsafe { (texts(from.keys, MAX_QUERY_KEYS, MAX_TEXT)?, infos(from.qualifiers, from.nqual)?) };
        let keys = keys.into_iter().map(|key| String::from_utf8(key).map_err(|_| Status::ERR_BAD_PARAM));
        let keys = keys.collect::<Outcome<Vec<String>>>()?;
        if keys.is_empty() { Err(Status::ERR_BAD_PARAM) } else { Ok(Query { keys, qualifiers }) }
    };
    // SAFETY: the module's contract.
    unsafe { some(start, count, MAX_QUERY_KEYS) }?.iter().map(query).collect()
}

/// Reads the data of a log request, at least one entry.
///
/// # Safety
/// The module's contract, also for all that the values point to.
pub(crate) unsafe fn log_entries(start: *const iof_info_t, count: usize) -> Outcome<Vec<LogEntry>> {
    let entry = |from: &iof_info_t| {
        let (channel, required) = (key(from)?.to_owned(), from.flags & PMIX_INFO_REQD != 0);
        // SAFETY: the type specifies the field; the rest is the module's contract.
        let value = unsafe {
            if channel == PMIX_LOG_EMAIL && from.value.r#type == PMIX_DATA_ARRAY {
                LogValue::Email(email(one(from.value.data.darray)?)?)
            } else {
                match value(&from.value, MAX_LOG_TEXT)? {
                    InfoValue::Text(text) => LogValue::Text(text),
                    _ => return Err(Status::ERR_BAD_PARAM),
                }
            }
        };
        Ok(LogEntry { channel, value, required })
    };
    // SAFETY: the module's contract.
    unsafe { some(start, count, MAX_LOG_ENTRIES) }?.iter().map(entry).collect()
}

/// Reads the fields of an email.
unsafe fn email(array: &iof_data_array_t) -> Outcome<Vec<Info>> {
    if array.r#type != PMIX_INFO {
        return Err(Status::ERR_BAD_PARAM);
    }
    // SAFETY: the type specifies the elements.
    let fields: &[iof_info_t] = unsafe { slice(array.array.cast(), array.size, MAX_DIRECTIVES) }?;
    let field = |from: &iof_info_t| {
        let required = from.flags & PMIX_INFO_REQD != 0;
        // SAFETY: the module's contract.
        Ok(Info { key: key(from)?.to_owned(), value: unsafe { value(&from.value, MAX_LOG_TEXT) }?, required })
    };
    fields.iter().map(field).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iof_proto::log::key::{PMIX_LOG_EMAIL_ADDR, PMIX_LOG_EMAIL_MSG, PMIX_LOG_EMAIL_SRVR_PORT};

    use super::*;
    use crate::ffi::make;

    fn email_entry(array: &mut iof_data_array_t) -> iof_info_t {
        let mut entry = make::info(PMIX_LOG_EMAIL, make::boolean(true));
        entry.value.r#type = PMIX_DATA_ARRAY;
        entry.value.data.darray = array;
        entry
    }

    #[test]
    fn an_email_to_be_logged_is_read_from_an_array_of_its_fields() {
        let mut fields = [
            make::info(PMIX_LOG_EMAIL_ADDR, make::text("a@example.org")),
            make::info(PMIX_LOG_EMAIL_MSG, make::text("half done")),
            make::info(PMIX_LOG_EMAIL_SRVR_PORT, make::integer(2525)),
        ];
        let mut array =
            iof_data_array_t { r#type: PMIX_INFO, size: fields.len(), array: fields.as_mut_ptr().cast() };
        let entry = email_entry(&mut array);
        // SAFETY: the entry points to the array, and this to the fields.
        let entries = unsafe { log_entries(&raw const entry, 1) }.unwrap();
        let expected = [
            Info::new(PMIX_LOG_EMAIL_ADDR, "a@example.org"),
            Info::new(PMIX_LOG_EMAIL_MSG, "half done"),
            Info::new(PMIX_LOG_EMAIL_SRVR_PORT, 2525u32),
        ];
        let email = LogEntry {
            channel: PMIX_LOG_EMAIL.into(),
            value: LogValue::Email(expected.into()),
            required: false,
        };
        assert_eq!(entries, [email]);

        array.r#type = PMIX_STRING;
        let entry = email_entry(&mut array);
        // SAFETY: the array is not read, because its type is wrong.
        assert_eq!(unsafe { log_entries(&raw const entry, 1) }, Err(Status::ERR_BAD_PARAM));
        for field in &mut fields[..2] {
            // SAFETY: the texts are of malloc(3), and nothing refers to them any more.
            unsafe { libc::free(field.value.data.string.cast()) };
        }
    }
}
