//! Texts for values that programs print.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use iof_proto::attribute;

use crate::ffi::constants::*;
use crate::ffi::guard::{Outcome, guard_or, guard_pointer};
use crate::ffi::types::{
    IOF_MAX_KEYLEN, iof_data_array_t, iof_info_directives_t, iof_info_t, iof_rank_t, iof_value_t,
};
use crate::ffi::{memory, read, strings};

/// Returns a text that the program frees, or NULL if there is none.
fn given(text: impl FnOnce() -> Outcome<String>) -> *mut c_char {
    guard_pointer(|| Ok(memory::text(text()?.as_bytes())))
}

/// Returns a description of the flags of an info, in PMIx's words. The program frees it with
/// free(3).
#[unsafe(no_mangle)]
pub extern "C" fn iof_Info_directives_string(directives: iof_info_directives_t) -> *mut c_char {
    given(|| Ok(directives_text(directives)))
}

fn directives_text(directives: iof_info_directives_t) -> String {
    let mut words = vec![match directives {
        flags if flags & PMIX_INFO_REQD != 0 => "REQUIRED",
        flags if flags & PMIX_INFO_QUALIFIER != 0 => "QUALIFIER",
        _ => "OPTIONAL",
    }];
    words.extend((directives & PMIX_INFO_ARRAY_END != 0).then_some("END"));
    words.extend((directives & PMIX_INFO_REQD_PROCESSED != 0).then_some("PROCESSED"));
    words.join(":")
}

/// Returns a rank as text: its number, or the name of a special rank. The program frees it with
/// free(3).
#[unsafe(no_mangle)]
pub extern "C" fn iof_Proc_rank_string(rank: iof_rank_t) -> *mut c_char {
    given(|| Ok(rank_text(rank)))
}

fn rank_text(rank: iof_rank_t) -> String {
    match rank {
        PMIX_RANK_UNDEF => "PMIX_RANK_UNDEF".into(),
        PMIX_RANK_WILDCARD => "PMIX_RANK_WILDCARD".into(),
        rank => rank.to_string(),
    }
}

/// Returns a value as text, with its type, in the form of PMIx. Of an array, the text contains the
/// type and the number of elements. The program frees it with free(3). Returns NULL if val is NULL
/// or invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_string(val: *const iof_value_t) -> *mut c_char {
    // SAFETY: the contract in the header.
    given(|| unsafe { value_text(read::one(val)?) })
}

/// Returns an info as text: its key, its flags and its value, in the form of PMIx. The program
/// frees it with free(3). Returns NULL if info is NULL or invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_string(info: *const iof_info_t) -> *mut c_char {
    // SAFETY: the contract in the header.
    given(|| unsafe { info_text(read::one(info)?) })
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
    let of_type = |text: &str| format!(" Data type: {}\tValue: {text}", shown(strings::data_type(*r#type)));
    // SAFETY: the type specifies the field, by the caller's promise; a bool is read as a byte.
    let text = unsafe {
        match *r#type {
            PMIX_PROC => {
                let proc = read::one(data.proc)?;
                format!(" PROC: {}:{}", read::proc(proc)?.nspace, rank_text(proc.rank))
            }
            PMIX_BOOL => of_type(if data.byte != 0 { "TRUE" } else { "FALSE" }),
            PMIX_STRING if data.string.is_null() => of_type("NULL"),
            PMIX_STRING => of_type(&String::from_utf8_lossy(read::bytes(data.string, SHOWN_BYTES)?)),
            PMIX_STATUS => of_type(shown(strings::status(data.status))),
            PMIX_PROC_RANK => of_type(&rank_text(data.uint32)),
            PMIX_PROC_STATE => of_type(shown(strings::proc_state(data.uint8))),
            PMIX_FLOAT => of_type(&format!("{:.6}", data.fval)),
            PMIX_DOUBLE => of_type(&format!("{:.6}", data.dval)),
            PMIX_BYTE_OBJECT => of_type(&format!("{} bytes", data.bo.size)),
            PMIX_DATA_ARRAY => {
                let array: &iof_data_array_t = read::one(data.darray)?;
                let elements = shown(strings::data_type(array.r#type));
                of_type(&format!("{} of {elements}", array.size))
            }
            _ => match read::number(value) {
                Some(number) => of_type(&number.to_string()),
                None => of_type("UNPRINTABLE"),
            },
        }
    };
    Ok(format!(" PMIX_VALUE: {text}"))
}

fn shown(text: &CStr) -> &str {
    text.to_str().unwrap_or_default()
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
