//! Texts for values that programs print.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Write as _;
use std::sync::OnceLock;

use iof_proto::attribute;

use crate::constants::*;
use crate::guard::{Outcome, guard_or};
use crate::strings::{iof_Data_type_string, iof_Error_string, iof_Proc_state_string};
use crate::types::{
    iof_data_array_t, iof_data_range_t, iof_info_directives_t, iof_info_t, iof_persistence_t, iof_rank_t,
    iof_scope_t, iof_value_t,
};
use crate::{memory, read};

/// Returns a description of a scope, in PMIx's words. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Scope_string(scope: iof_scope_t) -> *const c_char {
    let text = match scope {
        0 => c"UNDEFINED",
        1 => c"SHARE ON LOCAL NODE ONLY",
        2 => c"SHARE ON REMOTE NODES ONLY",
        3 => c"SHARE ACROSS ALL NODES",
        4 => c"STORE INTERNALLY",
        _ => c"UNKNOWN SCOPE",
    };
    text.as_ptr()
}

/// Returns a description of a persistence, in PMIx's words. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Persistence_string(persist: iof_persistence_t) -> *const c_char {
    let text = match persist {
        0 => c"INDEFINITE",
        1 => c"DELETE ON FIRST ACCESS",
        2 => c"RETAIN UNTIL PUBLISHING PROCESS TERMINATES",
        3 => c"RETAIN UNTIL APPLICATION OF PUBLISHING PROCESS TERMINATES",
        4 => c"RETAIN UNTIL ALLOCATION OF PUBLISHING PROCESS TERMINATES",
        255 => c"INVALID",
        _ => c"UNKNOWN PERSISTENCE",
    };
    text.as_ptr()
}

/// Returns a description of a data range, in PMIx's words. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Data_range_string(range: iof_data_range_t) -> *const c_char {
    let text = match range {
        0 => c"UNDEFINED",
        1 => c"INTENDED FOR HOST RESOURCE MANAGER ONLY",
        2 => c"AVAIL ON LOCAL NODE ONLY",
        3 => c"AVAIL TO PROCESSES IN SAME JOB ONLY",
        4 => c"AVAIL TO PROCESSES IN SAME ALLOCATION ONLY",
        5 => c"AVAIL TO ANYONE WITH AUTHORIZATION",
        6 => c"AVAIL AS SPECIFIED IN DIRECTIVES",
        7 => c"AVAIL ON LOCAL PROC ONLY",
        255 => c"INVALID",
        _ => c"UNKNOWN",
    };
    text.as_ptr()
}

/// Returns a description of the flags of an info, in PMIx's words. The program frees it with
/// free(3).
#[unsafe(no_mangle)]
pub extern "C" fn iof_Info_directives_string(directives: iof_info_directives_t) -> *mut c_char {
    guard_or(std::ptr::null_mut(), || memory::text(directives_text(directives).as_bytes()))
}

fn directives_text(directives: iof_info_directives_t) -> String {
    const PROCESSED: iof_info_directives_t = 4;
    const QUALIFIER: iof_info_directives_t = 8;
    let mut words = vec![match directives {
        flags if flags & IOF_INFO_REQD != 0 => "REQUIRED",
        flags if flags & QUALIFIER != 0 => "QUALIFIER",
        _ => "OPTIONAL",
    }];
    words.extend((directives & IOF_INFO_ARRAY_END != 0).then_some("END"));
    words.extend((directives & PROCESSED != 0).then_some("PROCESSED"));
    words.join(":")
}

/// Returns a rank as text: its number, or the name of a special rank. The program frees it with
/// free(3).
#[unsafe(no_mangle)]
pub extern "C" fn iof_Proc_rank_string(rank: iof_rank_t) -> *mut c_char {
    guard_or(std::ptr::null_mut(), || memory::text(rank_text(rank).as_bytes()))
}

fn rank_text(rank: iof_rank_t) -> String {
    match rank {
        IOF_RANK_UNDEF => "PMIX_RANK_UNDEF".into(),
        IOF_RANK_WILDCARD => "PMIX_RANK_WILDCARD".into(),
        rank => rank.to_string(),
    }
}

/// Returns a value as text, with its type, in the form of PMIx. Of an array, the text contains the
/// type and the number of elements. The program frees it with free(3). Returns NULL if val is NULL
/// or invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_string(val: *const iof_value_t) -> *mut c_char {
    guard_or(std::ptr::null_mut(), || {
        // SAFETY: the contract in the header.
        let text = unsafe { read::one(val).and_then(|val| value_text(val)) };
        text.map_or(std::ptr::null_mut(), |text| memory::text(text.as_bytes()))
    })
}

/// Returns an info as text: its key, its flags and its value, in the form of PMIx. The program
/// frees it with free(3). Returns NULL if info is NULL or invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_string(info: *const iof_info_t) -> *mut c_char {
    guard_or(std::ptr::null_mut(), || {
        // SAFETY: the contract in the header.
        let text = unsafe { read::one(info).and_then(|info| info_text(info)) };
        text.map_or(std::ptr::null_mut(), |text| memory::text(text.as_bytes()))
    })
}

/// # Safety
/// The contract of [`read`].
unsafe fn info_text(info: &iof_info_t) -> Outcome<String> {
    let key = read::key(info)?;
    let name = attribute::find(key).map_or(key, |row| row.name);
    let flags = directives_text(info.flags);
    // SAFETY: the caller's promise.
    let value = unsafe { value_text(&info.value) }?;
    Ok(format!(" KEY: {name}\n \t Data type: PMIX_INFO_DIRECTIVES\tValue: {flags}\n \t{value}"))
}

/// # Safety
/// The contract of [`read`].
unsafe fn value_text(value: &iof_value_t) -> Outcome<String> {
    /// The longest text of a value that is shown, in bytes.
    const SHOWN_BYTES: usize = 64 << 10;
    let iof_value_t { r#type, data } = value;
    let of_type =
        |text: &str| format!(" Data type: {}\tValue: {text}", static_text(iof_Data_type_string(*r#type)));
    // SAFETY: the type specifies the field, by the caller's promise; a bool is read as a byte.
    let shown = unsafe {
        match *r#type {
            IOF_PROC => {
                let proc = read::one(data.proc)?;
                format!(" PROC: {}:{}", read::proc(proc)?.nspace, rank_text(proc.rank))
            }
            IOF_BOOL => of_type(if data.byte != 0 { "TRUE" } else { "FALSE" }),
            IOF_STRING if data.string.is_null() => of_type("NULL"),
            IOF_STRING => of_type(&String::from_utf8_lossy(read::bytes(data.string, SHOWN_BYTES)?)),
            IOF_STATUS => of_type(static_text(iof_Error_string(data.status))),
            IOF_PROC_RANK => of_type(&rank_text(data.uint32)),
            IOF_PROC_STATE => of_type(static_text(iof_Proc_state_string(data.uint8))),
            IOF_FLOAT => of_type(&format!("{:.6}", data.fval)),
            IOF_DOUBLE => of_type(&format!("{:.6}", data.dval)),
            IOF_BYTE_OBJECT => of_type(&format!("{} bytes", data.bo.size)),
            IOF_DATA_ARRAY => {
                let array: &iof_data_array_t = read::one(data.darray)?;
                let elements = static_text(iof_Data_type_string(array.r#type));
                of_type(&format!("{} of {elements}", array.size))
            }
            _ => match read::number(value) {
                Some(number) => of_type(&number.to_string()),
                None => of_type("UNPRINTABLE"),
            },
        }
    };
    let mut text = String::from(" PMIX_VALUE: ");
    // Writing to a string cannot fail.
    let _ = write!(text, "{shown}");
    Ok(text)
}

/// Returns the text of a static string of this library.
fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: it is a static string of `strings`.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}

/// The names and the keys of all attributes, both ways.
fn attributes() -> &'static BTreeMap<&'static str, CString> {
    static ATTRIBUTES: OnceLock<BTreeMap<&str, CString>> = OnceLock::new();
    let text = |text: &str| CString::new(text).unwrap_or_default();
    ATTRIBUTES.get_or_init(|| {
        attribute::all().flat_map(|row| [(row.name, text(row.key)), (row.key, text(row.name))]).collect()
    })
}

/// # Safety
/// The contract of [`read`].
unsafe fn counterpart(name: *const c_char) -> *const c_char {
    guard_or(name, || {
        // SAFETY: the caller's promise.
        let text = unsafe { read::text(name, IOF_MAX_KEYLEN) };
        let known = text.ok().and_then(|text| attributes().get(text));
        known.map_or(name, |known| known.as_ptr())
    })
}

/// Returns the key of an attribute of this library, such as "pmix.log.stderr" for
/// "PMIX_LOG_STDERR", or the argument if the name is unknown. The text is valid for ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Get_attribute_string(attribute: *const c_char) -> *const c_char {
    // SAFETY: the contract in the header.
    unsafe { counterpart(attribute) }
}

/// Returns the name of an attribute of this library, such as "PMIX_LOG_STDERR" for
/// "pmix.log.stderr", or the argument if the key is unknown. The text is valid for ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Get_attribute_name(attrstring: *const c_char) -> *const c_char {
    // SAFETY: the contract in the header.
    unsafe { counterpart(attrstring) }
}
