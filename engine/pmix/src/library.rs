//! libpmix as opened by dlopen(3), and all calls of it. The unsafe code about libpmix is in this
//! module, and in those with the functions that libpmix calls.

use std::error::Error;
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use nix::sys::signal::SigSet;

use self::info::{CInfos, Info, characters};
use self::types::{ByteObject, CpuSet, ModexResponse, Module, OPERATION_SUCCEEDED, RawProc, SUCCESS, Status};
use crate::error::StartError;
use crate::limits::MAX_CALL_WAIT;

pub(crate) mod caller;
pub(crate) mod info;
pub(crate) mod read;
pub(crate) mod types;

/// The versions of libpmix whose structures are those of `types`: at least the first, and less than
/// the second.
const VERSIONS: [u32; 2] = [4, 7];

/// `PMIX_RANGE_LOCAL`: events for processes of this node.
const RANGE_LOCAL: u8 = 2;

type Callback = types::OpCallback;

/// The functions of libpmix. It stays open until the process exits, because its threads and
/// handlers may run until then.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    initialized: unsafe extern "C" fn() -> c_int,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    get_version: unsafe extern "C" fn() -> *const c_char,
    server_init: unsafe extern "C" fn(*mut Module, *mut types::Info, usize) -> Status,
    server_finalize: unsafe extern "C" fn() -> Status,
    register_nspace:
        unsafe extern "C" fn(*const c_char, c_int, *mut types::Info, usize, Callback, *mut c_void) -> Status,
    deregister_nspace: unsafe extern "C" fn(*const c_char, Callback, *mut c_void),
    register_client: unsafe extern "C" fn(
        *const RawProc,
        libc::uid_t,
        libc::gid_t,
        *mut c_void,
        Callback,
        *mut c_void,
    ) -> Status,
    setup_fork: unsafe extern "C" fn(*const RawProc, *mut *mut *mut c_char) -> Status,
    iof_deliver: unsafe extern "C" fn(
        *const RawProc,
        u16,
        *const ByteObject,
        *const types::Info,
        usize,
        Callback,
        *mut c_void,
    ) -> Status,
    notify_event: unsafe extern "C" fn(
        Status,
        *const RawProc,
        u8,
        *const types::Info,
        usize,
        Callback,
        *mut c_void,
    ) -> Status,
    dmodex_request: unsafe extern "C" fn(*const RawProc, ModexResponse, *mut c_void) -> Status,
    parse_cpuset: unsafe extern "C" fn(*const c_char, *mut CpuSet) -> Status,
    generate_locality: unsafe extern "C" fn(*const CpuSet, *mut *mut c_char) -> Status,
    /// `None` before version 4.2.
    cpuset_destruct: Option<unsafe extern "C" fn(*mut CpuSet)>,
}

/// Looks up a function of the library.
macro_rules! function {
    ($handle:expr, $failed:expr, $name:literal) => {
        // SAFETY: `Library` declares the function as pmix_server.h and pmix.h do, from version 4
        // on.
        *unsafe { $handle.get($name) }.map_err(&$failed)?
    };
}

impl Library {
    /// Opens libpmix: a path, or a name to look up as the dynamic linker does.
    pub(crate) fn open(path: &Path) -> Result<Library, StartError> {
        let failed = |error: libloading::Error| {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let reason = match reason.strip_prefix(&format!("{}: ", path.display())) {
                _ if cfg!(target_feature = "crt-static") => "a static executable cannot open libraries",
                Some(rest) => rest,
                None => &reason,
            };
            StartError::Open { path: path.into(), reason: reason.into() }
        };
        // SAFETY: the constructors of libpmix and of the libraries that it needs only set up their
        // own data. The user chooses the library, as with those of the programs that run.
        let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(&failed)?;
        let library = Library {
            initialized: function!(handle, failed, b"PMIx_Initialized"),
            error_string: function!(handle, failed, b"PMIx_Error_string"),
            get_version: function!(handle, failed, b"PMIx_Get_version"),
            server_init: function!(handle, failed, b"PMIx_server_init"),
            server_finalize: function!(handle, failed, b"PMIx_server_finalize"),
            register_nspace: function!(handle, failed, b"PMIx_server_register_nspace"),
            deregister_nspace: function!(handle, failed, b"PMIx_server_deregister_nspace"),
            register_client: function!(handle, failed, b"PMIx_server_register_client"),
            setup_fork: function!(handle, failed, b"PMIx_server_setup_fork"),
            iof_deliver: function!(handle, failed, b"PMIx_server_IOF_deliver"),
            notify_event: function!(handle, failed, b"PMIx_Notify_event"),
            dmodex_request: function!(handle, failed, b"PMIx_server_dmodex_request"),
            parse_cpuset: function!(handle, failed, b"PMIx_Parse_cpuset_string"),
            generate_locality: function!(handle, failed, b"PMIx_server_generate_locality_string"),
            // SAFETY: as above.
            cpuset_destruct: unsafe { handle.get(b"PMIx_Cpuset_destruct") }.ok().map(|found| *found),
        };
        if library.is_mixed_with_another() {
            return Err(StartError::OtherLibrary { path: path.into() });
        }
        let version = library.version();
        let [first, end] = VERSIONS;
        if !major(&version).is_some_and(|major| (first..end).contains(&major)) {
            return Err(StartError::Version { path: path.into(), version });
        }
        std::mem::forget(handle);
        Ok(library)
    }

    /// Returns whether the process itself is linked with another libpmix. The calls of this library
    /// of its own functions would then reach that one.
    fn is_mixed_with_another(&self) -> bool {
        let global = Handle::this();
        // SAFETY: only the address is used.
        let linked = unsafe { global.get::<*const c_void>(b"PMIx_server_init") };
        linked.is_ok_and(|linked| linked.into_raw().cast_const() != self.server_init as *const c_void)
    }

    /// Returns the text of the version, such as `OpenPMIx 4.2.2 (PMIx Standard: ...)`.
    pub(crate) fn version(&self) -> String {
        // SAFETY: the function needs no initialization. It returns a constant text.
        unsafe { text((self.get_version)()) }
    }

    /// Returns whether this process is a PMIx client, tool or server already.
    pub(crate) fn is_initialized(&self) -> bool {
        // SAFETY: the function may be called at any time.
        unsafe { (self.initialized)() != 0 }
    }

    /// Starts the server and its thread, which gets no signals.
    pub(crate) fn server_init(&self, mut module: Module, infos: Vec<Info>) -> Result<(), String> {
        let mut infos = CInfos::new(infos);
        let (array, length) = infos.as_parts();
        let previous = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK);
        // SAFETY: libpmix copies the infos and the module, after which zeros follow for members of
        // later versions. The functions of the module are valid as long as the process.
        let status = unsafe { (self.server_init)(&raw mut module, array, length) };
        if let Ok(previous) = previous {
            let _ = previous.thread_set_mask();
        }
        self.check(status)
    }

    /// Ends the server and its thread.
    pub(crate) fn server_finalize(&self) -> Result<(), String> {
        // SAFETY: the only server of this process calls it once, after all its other calls.
        self.check(unsafe { (self.server_finalize)() })
    }

    /// Tells libpmix about a job. Blocks until it is done.
    pub(crate) fn register_nspace(
        &self,
        nspace: &CStr,
        ranks: c_int,
        infos: Vec<Info>,
    ) -> Result<(), String> {
        let mut infos = CInfos::new(infos);
        let (array, length) = infos.as_parts();
        // SAFETY: without a callback the function blocks, so that the infos outlive its work.
        self.check(unsafe {
            (self.register_nspace)(nspace.as_ptr(), ranks, array, length, None, ptr::null_mut())
        })
    }

    /// Adds data of all ranks to those of a job whose ranks are on this node. libpmix does so on its
    /// thread, before the next message of a rank that it reads.
    pub(crate) fn extend_nspace(&self, nspace: &CStr, ranks: Vec<Info>) -> Result<(), String> {
        let mut infos = Box::new(CInfos::new(ranks));
        let (array, length) = infos.as_parts();
        let count = c_int::try_from(length).unwrap_or(c_int::MAX);
        let infos = Box::into_raw(infos);
        // SAFETY: the infos are valid until the callback frees them.
        let status = unsafe {
            (self.register_nspace)(nspace.as_ptr(), count, array, length, Some(extended), infos.cast())
        };
        if status != SUCCESS {
            // SAFETY: the callback is not called.
            drop(unsafe { Box::from_raw(infos) });
        }
        self.check(status)
    }

    /// Makes libpmix forget a job. Blocks until it is done.
    pub(crate) fn deregister_nspace(&self, nspace: &CStr) {
        // SAFETY: without a callback the function blocks.
        unsafe { (self.deregister_nspace)(nspace.as_ptr(), None, ptr::null_mut()) }
    }

    /// Tells libpmix about a job without local ranks, or makes it forget one. Blocks until it is
    /// done, see [`Library::wait`].
    pub(crate) fn set_nspace(&self, nspace: &CStr, infos: Option<Vec<Info>>) -> Result<(), String> {
        let mut infos = infos.map(CInfos::new);
        let name = nspace.as_ptr();
        self.wait(|done, data| {
            let Some((array, length)) = infos.as_mut().map(CInfos::as_parts) else {
                // SAFETY: the name outlives the work, whose end is awaited.
                unsafe { (self.deregister_nspace)(name, done, data) }
                return SUCCESS;
            };
            // SAFETY: the arguments outlive the work, whose end is awaited.
            unsafe { (self.register_nspace)(name, 0, array, length, done, data) }
        })
    }

    /// Tells libpmix that a rank of this user will connect. Blocks until it is done.
    pub(crate) fn register_client(&self, nspace: &str, rank: u32) -> Result<(), String> {
        let proc = RawProc { nspace: characters(nspace), rank };
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        // SAFETY: without a callback the function blocks; it copies the name of the rank.
        self.check(unsafe {
            (self.register_client)(&raw const proc, uid, gid, ptr::null_mut(), None, ptr::null_mut())
        })
    }

    /// Passes `done` what a rank of this node has put for ranks of other nodes, once it has. `done` is called on
    /// libpmix's thread.
    pub(crate) fn modex(&self, nspace: &str, rank: u32, done: ModexDone) {
        let proc = RawProc { nspace: characters(nspace), rank };
        let done = Box::into_raw(Box::new(done));
        // SAFETY: libpmix copies the name. It calls back once if it returns SUCCESS.
        let status = unsafe { (self.dmodex_request)(&raw const proc, Some(modex_taken), done.cast()) };
        if status != SUCCESS {
            // SAFETY: the pointer is that of the box above, which nothing else uses.
            let done = unsafe { Box::from_raw(done) };
            done(Err(iof_proto::Status(status)));
        }
    }

    /// Returns where a set of processors is in the topology of this node (`PMIX_LOCALITY_STRING`).
    ///
    /// # Errors
    /// libpmix's reason.
    pub(crate) fn locality(&self, cpuset: &CStr) -> Result<CString, String> {
        let mut set = CpuSet { source: ptr::null_mut(), bitmap: ptr::null_mut() };
        // SAFETY: libpmix fills the set.
        self.check(unsafe { (self.parse_cpuset)(cpuset.as_ptr(), &raw mut set) })?;
        let mut text: *mut c_char = ptr::null_mut();
        // SAFETY: the set is libpmix's own. It stores a text of malloc(3) on success.
        let status = unsafe { (self.generate_locality)(&raw const set, &raw mut text) };
        if let Some(destruct) = self.cpuset_destruct {
            // SAFETY: the set is not used any more.
            unsafe { destruct(&raw mut set) }
        }
        self.check(status)?;
        if text.is_null() {
            return Err("no locality".into());
        }
        // SAFETY: the text is libpmix's, and nothing else refers to it.
        unsafe {
            let locality = CStr::from_ptr(text).to_owned();
            libc::free(text.cast());
            Ok(locality)
        }
    }

    /// Returns the variables with which a rank finds the server.
    pub(crate) fn setup_fork(&self, nspace: &str, rank: u32) -> Result<Vec<(OsString, OsString)>, String> {
        let proc = RawProc { nspace: characters(nspace), rank };
        let mut list: *mut *mut c_char = ptr::null_mut();
        // SAFETY: libpmix makes a list in the place of none.
        let status = unsafe { (self.setup_fork)(&raw const proc, &raw mut list) };
        // SAFETY: the list is libpmix's, or there is none.
        let variables = unsafe { take_list(list) };
        self.check(status)?;
        Ok(variables.into_iter().filter_map(split).collect())
    }

    /// Passes output to the tools that have pulled it. Blocks until libpmix has queued it, see
    /// [`Library::wait`].
    pub(crate) fn iof_deliver(
        &self,
        source: &RawProc,
        channel: u16,
        bytes: &[u8],
        infos: Vec<Info>,
    ) -> Result<(), String> {
        let mut infos = CInfos::new(infos);
        let (array, length) = infos.as_parts();
        let object = ByteObject { bytes: bytes.as_ptr().cast_mut().cast(), size: bytes.len() };
        self.wait(|done, data| {
            // SAFETY: the arguments outlive the work, whose end is awaited. libpmix only reads the
            // bytes.
            unsafe { (self.iof_deliver)(source, channel, &raw const object, array, length, done, data) }
        })
    }

    /// Reports an event to the tools that have a handler for it. Blocks until libpmix has queued
    /// it, see [`Library::wait`].
    pub(crate) fn notify_event(
        &self,
        event: Status,
        source: &RawProc,
        infos: Vec<Info>,
    ) -> Result<(), String> {
        let mut infos = CInfos::new(infos);
        let (array, length) = infos.as_parts();
        self.wait(|done, data| {
            // SAFETY: the arguments outlive the work, whose end is awaited.
            unsafe { (self.notify_event)(event, source, RANGE_LOCAL, array, length, done, data) }
        })
    }

    /// Calls a function of libpmix that does its work later, and blocks until the work is done.
    /// Ends the process if that takes longer than [`MAX_CALL_WAIT`]: libpmix may use the arguments
    /// at any later time, and the process serves nothing but this library's tool.
    fn wait(&self, call: impl FnOnce(Callback, *mut c_void) -> Status) -> Result<(), String> {
        let work = Arc::new(Work::default());
        let status = call(Some(done), Arc::into_raw(Arc::clone(&work)).cast_mut().cast());
        if status != SUCCESS {
            // The callback is not called. SAFETY: the pointer is that of the clone above.
            drop(unsafe { Arc::from_raw(Arc::as_ptr(&work)) });
            return self.check(status);
        }
        let ended = work.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let awaited = work.changed.wait_timeout_while(ended, MAX_CALL_WAIT, |ended| ended.is_none());
        match *awaited.unwrap_or_else(PoisonError::into_inner).0 {
            Some(status) => self.check(status),
            None => end_process(1),
        }
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == SUCCESS || status == OPERATION_SUCCEEDED {
            return Ok(());
        }
        // SAFETY: the function returns a text that stays valid.
        Err(unsafe { text((self.error_string)(status)) })
    }
}

/// Ends the process at once. The handlers of exit(3) are left out, which may wait for locks of
/// libpmix.
pub(crate) fn end_process(exit_code: c_int) -> ! {
    // SAFETY: _exit(2) has no precondition.
    unsafe { libc::_exit(exit_code) }
}

/// Work that libpmix does on its thread.
#[derive(Default)]
struct Work {
    ended: Mutex<Option<Status>>,
    changed: Condvar,
}

/// Notes that work has ended.
unsafe extern "C" fn done(status: Status, work: *mut c_void) {
    // SAFETY: libpmix calls it once, with the pointer of `Library::wait`, which is a reference.
    let work = unsafe { Arc::from_raw(work.cast_const().cast::<Work>()) };
    *work.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    work.changed.notify_one();
}

/// Receives what a rank has put for ranks of other nodes.
pub(crate) type ModexDone = Box<dyn FnOnce(Result<Vec<u8>, iof_proto::Status>) + Send>;

/// Passes on the values of [`Library::modex`].
unsafe extern "C" fn modex_taken(status: Status, data: *mut c_char, size: usize, done: *mut c_void) {
    // SAFETY: libpmix calls it once, with the pointer that it was given, and with this number of bytes.
    let (done, values) = unsafe {
        let values = read::slice(data.cast_const().cast::<u8>(), size, usize::MAX);
        (Box::from_raw(done.cast::<ModexDone>()), values.map(<[u8]>::to_vec))
    };
    done(if status == SUCCESS { values } else { Err(iof_proto::Status(status)) });
}

/// Frees the infos of [`Library::extend_nspace`].
unsafe extern "C" fn extended(_status: Status, infos: *mut c_void) {
    // SAFETY: libpmix calls it once, with the pointer that it was given.
    drop(unsafe { Box::from_raw(infos.cast::<CInfos>()) });
}

/// Returns a copy of a text of libpmix; empty if it is null.
///
/// # Safety
/// The pointer is null or points to a text with a final zero.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the contract.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// Returns the texts of a list that ends with null, and frees it.
///
/// # Safety
/// The list and its texts are memory of malloc(3), to which nothing else refers; or it is null.
unsafe fn take_list(list: *mut *mut c_char) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    if list.is_null() {
        return texts;
    }
    let mut next = list;
    // SAFETY: the contract.
    unsafe {
        while !(*next).is_null() {
            texts.push(CStr::from_ptr(*next).to_bytes().to_vec());
            libc::free((*next).cast());
            next = next.add(1);
        }
        libc::free(list.cast());
    }
    texts
}

/// Splits `NAME=VALUE`.
fn split(variable: Vec<u8>) -> Option<(OsString, OsString)> {
    let equals = variable.iter().position(|byte| *byte == b'=')?;
    let (name, value) = variable.split_at_checked(equals)?;
    let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    Some((owned(name), owned(value.get(1..)?)))
}

/// Returns the first number of the text of a version.
pub(crate) fn major(version: &str) -> Option<u32> {
    let number = version.split(|letter: char| !letter.is_ascii_digit()).find(|digits| !digits.is_empty())?;
    number.parse().ok()
}
