//! Arrays of C's structures that Rust lends out, and frees itself.

use std::ffi::{CString, c_char};

use iof_proto::{Info, Query};

use crate::types::{iof_info_t, iof_query_t};
use crate::{make, value};

/// Infos with all that their values point to.
#[derive(Default)]
pub(crate) struct OwnedInfos(Vec<iof_info_t>);

impl OwnedInfos {
    pub(crate) fn of(infos: &[Info]) -> OwnedInfos {
        OwnedInfos(make::from_infos(infos))
    }

    pub(crate) fn as_slice(&self) -> &[iof_info_t] {
        &self.0
    }
}

impl Drop for OwnedInfos {
    fn drop(&mut self) {
        for info in &mut self.0 {
            // SAFETY: the values were made here, and whom they were lent to is done with them.
            unsafe { value::destroy(&mut info.value, 0) };
        }
    }
}

/// Queries with their keys and qualifiers.
#[derive(Default)]
pub(crate) struct OwnedQueries {
    queries: Vec<iof_query_t>,
    /// What these point to.
    _parts: Vec<Parts>,
}

struct Parts {
    _keys: Vec<CString>,
    at: Vec<*mut c_char>,
    qualifiers: OwnedInfos,
}

impl OwnedQueries {
    pub(crate) fn of(from: &[Query]) -> OwnedQueries {
        let mut parts: Vec<Parts> = from.iter().map(Parts::of).collect();
        let query = |of: &mut Parts| iof_query_t {
            keys: of.at.as_mut_ptr(),
            qualifiers: of.qualifiers.0.as_mut_ptr(),
            nqual: of.qualifiers.0.len(),
        };
        OwnedQueries { queries: parts.iter_mut().map(query).collect(), _parts: parts }
    }

    pub(crate) fn as_slice(&self) -> &[iof_query_t] {
        &self.queries
    }
}

impl Parts {
    fn of(query: &Query) -> Parts {
        // A key with a NUL came from no tool of C's: nobody knows it.
        let keys = query.keys.iter().map(|key| CString::new(key.as_str()).unwrap_or_default());
        let keys: Vec<CString> = keys.collect();
        let mut at: Vec<*mut c_char> = keys.iter().map(|key| key.as_ptr().cast_mut()).collect();
        at.push(std::ptr::null_mut());
        Parts { _keys: keys, at, qualifiers: OwnedInfos::of(&query.qualifiers) }
    }
}
