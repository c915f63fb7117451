//! Arrays of C's structures that Rust lends to C, and frees itself.

use std::ffi::{CString, c_char};

use iof_proto::{Info, Query};

use crate::ffi::types::{iof_info_t, iof_query_t};
use crate::ffi::{make, value};

/// Infos that own all that their values point to.
#[derive(Default)]
pub(crate) struct OwnedInfos(pub Vec<iof_info_t>);

impl OwnedInfos {
    pub(crate) fn new(infos: &[Info]) -> OwnedInfos {
        OwnedInfos(make::from_infos(infos))
    }

    pub(crate) fn as_slice(&self) -> &[iof_info_t] {
        &self.0
    }
}

impl Drop for OwnedInfos {
    fn drop(&mut self) {
        for info in &mut self.0 {
            // SAFETY: the values were created by `make`, and are no longer lent to C.
            unsafe { value::destroy(&mut info.value, 0) };
        }
    }
}

/// Queries that own their keys and qualifiers.
#[derive(Default)]
pub(crate) struct OwnedQueries {
    queries: Vec<iof_query_t>,
    /// The memory that `queries` points to.
    _parts: Vec<Parts>,
}

/// The memory of one query.
struct Parts {
    _keys: Vec<CString>,
    key_pointers: Vec<*mut c_char>,
    qualifiers: OwnedInfos,
}

impl OwnedQueries {
    pub(crate) fn new(queries: &[Query]) -> OwnedQueries {
        let mut parts: Vec<Parts> = queries.iter().map(Parts::new).collect();
        let query = |parts: &mut Parts| iof_query_t {
            keys: parts.key_pointers.as_mut_ptr(),
            qualifiers: parts.qualifiers.0.as_mut_ptr(),
            nqual: parts.qualifiers.0.len(),
        };
        OwnedQueries { queries: parts.iter_mut().map(query).collect(), _parts: parts }
    }

    pub(crate) fn as_slice(&self) -> &[iof_query_t] {
        &self.queries
    }
}

impl Parts {
    fn new(query: &Query) -> Parts {
        // C cannot express a key that contains a NUL. It becomes the empty key, which is unknown.
        let keys = query.keys.iter().map(|key| CString::new(key.as_str()).unwrap_or_default());
        let keys: Vec<CString> = keys.collect();
        let mut key_pointers: Vec<*mut c_char> = keys.iter().map(|key| key.as_ptr().cast_mut()).collect();
        key_pointers.push(std::ptr::null_mut());
        Parts { _keys: keys, key_pointers, qualifiers: OwnedInfos::new(&query.qualifiers) }
    }
}
