//! The names and descriptions of numbers. The library owns the texts, which are valid for ever.

use std::ffi::{CStr, CString, c_char};
use std::sync::LazyLock;

use iof_proto::Channels;
use iof_proto::numbers::{terminated, text};
use iof_proto::status::STATUSES;

use crate::ffi::constants::{DATA_RANGES, DATA_TYPES, PERSISTENCES, PROC_STATES, SCOPES};
use crate::ffi::guard::guard_or;
use crate::ffi::types::{
    iof_data_range_t, iof_data_type_t, iof_iof_channel_t, iof_persistence_t, iof_proc_state_t, iof_scope_t,
    iof_status_t,
};

/// Returns the name and version of the library. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Get_version() -> *const c_char {
    const VERSION: &CStr = terminated(concat!("iof ", env!("CARGO_PKG_VERSION"), "\0"));
    VERSION.as_ptr()
}

pub(crate) fn status(status: iof_status_t) -> &'static CStr {
    text(STATUSES, status, c"PMIX_ERR_UNKNOWN")
}

/// Returns the name of a status, with the prefix PMIX_. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Error_string(status: iof_status_t) -> *const c_char {
    self::status(status).as_ptr()
}

/// Returns the names of a set of channels, such as "STDOUT STDERR", or "NONE". The text is valid
/// for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_IOF_channel_string(channel: iof_iof_channel_t) -> *const c_char {
    static SETS: LazyLock<Vec<CString>> = LazyLock::new(|| {
        let text = |set| {
            let set = Channels::from_bits_truncate(set);
            let names: Vec<&str> = set.iter_names().map(|(name, _)| name).collect();
            CString::new(if names.is_empty() { "NONE".into() } else { names.join(" ") }).unwrap_or_default()
        };
        (0..=Channels::KNOWN.bits()).map(text).collect()
    });
    let known = usize::from(channel & Channels::KNOWN.bits());
    guard_or(c"NONE".as_ptr(), || SETS.get(known).map_or(c"NONE", |set| set).as_ptr())
}

/// Returns the name of a state, without the prefix PMIX_.
pub(crate) fn proc_state(state: iof_proc_state_t) -> &'static CStr {
    let name = text(PROC_STATES, state, c"PMIX_PROC_STATE_UNKNOWN").to_bytes_with_nul();
    name.strip_prefix(b"PMIX_").and_then(|name| CStr::from_bytes_with_nul(name).ok()).unwrap_or_default()
}

/// Returns the name of the state of a process. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Proc_state_string(state: iof_proc_state_t) -> *const c_char {
    proc_state(state).as_ptr()
}

pub(crate) fn data_type(kind: iof_data_type_t) -> &'static CStr {
    text(DATA_TYPES, kind, c"PMIX_UNKNOWN")
}

/// Returns the name of a type, with the prefix PMIX_. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Data_type_string(r#type: iof_data_type_t) -> *const c_char {
    data_type(r#type).as_ptr()
}

/// Returns a description of a scope, in PMIx's words. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Scope_string(scope: iof_scope_t) -> *const c_char {
    text(SCOPES, scope, c"UNKNOWN SCOPE").as_ptr()
}

/// Returns a description of a persistence, in PMIx's words. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Persistence_string(persist: iof_persistence_t) -> *const c_char {
    text(PERSISTENCES, persist, c"UNKNOWN PERSISTENCE").as_ptr()
}

/// Returns a description of a data range, in PMIx's words. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Data_range_string(range: iof_data_range_t) -> *const c_char {
    text(DATA_RANGES, range, c"UNKNOWN").as_ptr()
}
