//! Arrays of C's structures that Rust lends to C, and frees itself.

use std::ffi::{CString, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use iof_proto::{App, Info, Query};

use crate::ffi::types::{iof_app_t, iof_info_t, iof_query_t};
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
    keys: OwnedTexts,
    qualifiers: OwnedInfos,
}

/// Texts, and a list of them that ends with NULL.
#[derive(Default)]
struct OwnedTexts {
    _texts: Vec<CString>,
    pointers: Vec<*mut c_char>,
}

impl OwnedTexts {
    /// C cannot express a text that contains a NUL. It becomes empty.
    fn new(texts: impl IntoIterator<Item = Vec<u8>>) -> OwnedTexts {
        let texts = texts.into_iter().map(|text| CString::new(text).unwrap_or_default());
        let texts: Vec<CString> = texts.collect();
        let pointers = texts.iter().map(|text| text.as_ptr().cast_mut());
        let pointers = pointers.chain([ptr::null_mut()]).collect();
        OwnedTexts { _texts: texts, pointers }
    }
}

/// Programs that own their texts.
#[derive(Default)]
pub(crate) struct OwnedApps {
    apps: Vec<iof_app_t>,
    /// The memory that `apps` points to.
    _texts: Vec<[OwnedTexts; 3]>,
}

impl OwnedApps {
    pub(crate) fn new(apps: &[App]) -> OwnedApps {
        let texts = |app: &App| {
            let words = [&app.program].into_iter().chain(&app.args).map(|word| word.as_bytes().to_vec());
            let variable =
                |(name, value): &(OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
            let cwd = app.cwd.iter().map(|cwd| cwd.as_os_str().as_bytes().to_vec());
            [OwnedTexts::new(words), OwnedTexts::new(app.env.iter().map(variable)), OwnedTexts::new(cwd)]
        };
        let mut texts: Vec<[OwnedTexts; 3]> = apps.iter().map(texts).collect();
        let app = |(app, [argv, env, cwd]): (&App, &mut [OwnedTexts; 3])| {
            let first = |texts: &OwnedTexts| texts.pointers.first().copied().unwrap_or(ptr::null_mut());
            iof_app_t {
                cmd: first(argv),
                cwd: first(cwd),
                argv: argv.pointers.as_mut_ptr(),
                env: env.pointers.as_mut_ptr(),
                maxprocs: app.nprocs.try_into().unwrap_or(i32::MAX),
                info: ptr::null_mut(),
                ninfo: 0,
            }
        };
        OwnedApps { apps: apps.iter().zip(&mut texts).map(app).collect(), _texts: texts }
    }

    pub(crate) fn as_slice(&self) -> &[iof_app_t] {
        &self.apps
    }
}

impl OwnedQueries {
    pub(crate) fn new(queries: &[Query]) -> OwnedQueries {
        let mut parts: Vec<Parts> = queries.iter().map(Parts::new).collect();
        let query = |parts: &mut Parts| iof_query_t {
            keys: parts.keys.pointers.as_mut_ptr(),
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
        // The empty key is unknown.
        let keys = OwnedTexts::new(query.keys.iter().map(|key| key.clone().into_bytes()));
        Parts { keys, qualifiers: OwnedInfos::new(&query.qualifiers) }
    }
}
