//! The functions of PMIx's clients, for a process that no PMIx server has started: a job of its own
//! with one rank, as with PMIx's library.
//!
//! A rank that a PMIx server has started needs PMIx's library, which speaks the server's protocol.
//! The functions refuse it, and `iof_last_error` states why.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use iof_c::*;
use iof_proto::Status;

/// The variable that PMIx's servers set for their ranks.
const SERVED: &str = "PMIX_NAMESPACE";

/// The client of this process.
struct Client {
    /// The number of calls of `PMIx_Init` that are not yet matched by `PMIx_Finalize`.
    count: usize,
    name: Option<iof_proc_t>,
    /// The values that the process has put.
    values: BTreeMap<CString, Stored>,
}

/// A value with all that it points to.
struct Stored(iof_value_t);

// SAFETY: the value owns the memory that it points to, and is used behind a lock.
unsafe impl Send for Stored {}

impl Drop for Stored {
    fn drop(&mut self) {
        // SAFETY: `iof_Value_xfer` has made the value, and this is its only owner.
        unsafe { iof_Value_destruct(&raw mut self.0) };
    }
}

static CLIENT: Mutex<Client> = Mutex::new(Client { count: 0, name: None, values: BTreeMap::new() });

fn client() -> MutexGuard<'static, Client> {
    CLIENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the client if the process is one, and otherwise the status of its calls.
fn initialized() -> Result<MutexGuard<'static, Client>, Status> {
    let client = client();
    if client.count > 0 {
        return Ok(client);
    }
    drop(client);
    Err(match iof_Initialized() {
        0 => Status::ERR_INIT,
        _ if iof_tool_is_connected() => fail(
            Status::ERR_NOT_SUPPORTED,
            "ranks use it by PMIx's own library, which speaks the protocol of values and groups",
        ),
        _ => fail(Status::ERR_UNREACH, "the process is a tool, and no rank of a PMIx server"),
    })
}

/// The same for a call whose arguments are valid or not, which PMIx's library checks in between.
fn initialized_with(valid: bool) -> Result<MutexGuard<'static, Client>, Status> {
    match initialized() {
        Err(Status::ERR_INIT) => Err(Status::ERR_INIT),
        _ if !valid => Err(Status::ERR_BAD_PARAM),
        result => result,
    }
}

/// Returns the status of a call.
fn status_of(result: Result<(), Status>) -> iof_status_t {
    result.err().unwrap_or(Status::SUCCESS).0
}

/// Makes the process a job of its own with one rank. As with PMIx's library, the status is then
/// `PMIX_ERR_UNREACH`, because the process has no server, and the other functions can be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Init(
    proc: *mut iof_proc_t,
    _info: *mut iof_info_t,
    _ninfo: usize,
) -> iof_status_t {
    // SAFETY: the caller's promise.
    unsafe { init(proc) }.0
}

/// # Safety
/// A pointer that is not NULL points to a process.
unsafe fn init(proc: *mut iof_proc_t) -> Status {
    if env::var_os(SERVED).is_some() {
        let reason = "a PMIx server has started this process: link it with PMIx's library, which speaks the \
                      server's protocol, and do not preload libiof-pmix";
        return fail(Status::ERR_NOT_SUPPORTED, reason);
    }
    let mut client = client();
    if client.count == 0 && iof_Initialized() != 0 {
        return fail(Status::ERR_INIT, "the process is a tool already");
    }
    let mut own = iof_proc_t { nspace: [0; 256], rank: 0 };
    let status = begin(&mut own);
    if status != Status::SUCCESS {
        return status;
    }
    client.count = client.count.saturating_add(1);
    client.name = Some(own);
    if !proc.is_null() {
        // SAFETY: the caller's promise: a pointer that is not NULL points to a process.
        unsafe { proc.write(own) };
    }
    fail(Status::ERR_UNREACH, "no PMIx server has started this process: it is a job of its own with one rank")
}

/// Makes the process a tool without a connection, whose name `own` receives.
fn begin(own: &mut iof_proc_t) -> Status {
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok()).unwrap_or_default();
    let name = CString::new(format!("singleton.{host}.{}", process::id())).unwrap_or_default();
    let mut infos = [const { MaybeUninit::<iof_info_t>::zeroed() }; 2];
    let [not_connected, nspace] = &mut infos;
    // SAFETY: the infos are of C, for which zeros are a valid value. The texts are terminated, and
    // NULL stands for true.
    unsafe {
        let key = c"pmix.tool.nocon".as_ptr();
        iof_Info_load(not_connected.as_mut_ptr(), key, std::ptr::null(), PMIX_BOOL);
        iof_Info_load(nspace.as_mut_ptr(), c"pmix.tool.nspace".as_ptr(), name.as_ptr().cast(), PMIX_STRING);
        let status = iof_tool_init(own, infos.as_mut_ptr().cast(), infos.len());
        let [_, nspace] = &mut infos;
        iof_Value_destruct(&raw mut (*nspace.as_mut_ptr()).value);
        Status(status)
    }
}

/// Reverts one call of `PMIx_Init`. As with PMIx's library, a call too many succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Finalize(_info: *const iof_info_t, _ninfo: usize) -> iof_status_t {
    let mut client = client();
    if client.count == 0 {
        return Status::SUCCESS.0;
    }
    client.count = client.count.saturating_sub(1);
    if client.count == 0 {
        client.values.clear();
    }
    drop(client);
    iof_tool_finalize()
}

/// Keeps a value, which [`PMIx_Get`] returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Put(_scope: u8, key: *const c_char, val: *const iof_value_t) -> iof_status_t {
    status_of(initialized_with(!key.is_null() && !val.is_null()).and_then(|mut client| {
        // SAFETY: the caller's promise: the key is terminated, and the value is one of C, for which
        // zeros are valid. The copy has no other owner.
        unsafe {
            let mut copy = MaybeUninit::<iof_value_t>::zeroed().assume_init();
            succeeded(iof_Value_xfer(&raw mut copy, val))?;
            client.values.insert(CStr::from_ptr(key).to_owned(), Stored(copy));
        }
        Ok(())
    }))
}

/// Returns success: the process is alone.
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Commit() -> iof_status_t {
    status_of(initialized().map(drop))
}

/// Returns success: the process is alone.
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Fence(
    _procs: *const iof_proc_t,
    _nprocs: usize,
    _info: *const iof_info_t,
    _ninfo: usize,
) -> iof_status_t {
    status_of(initialized().map(drop))
}

/// Returns an error, as with PMIx's library: without a server, only the blocking form succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn PMIx_Fence_nb() -> iof_status_t {
    let reason = "the process has no server: call PMIx_Fence, which returns at once";
    status_of(initialized().and_then(|_| Err(fail(Status::ERR_UNREACH, reason))))
}

/// Returns a value that the process has put, or one of its job. The caller frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Get(
    proc: *const iof_proc_t,
    key: *const c_char,
    _info: *const iof_info_t,
    _ninfo: usize,
    val: *mut *mut iof_value_t,
) -> iof_status_t {
    // SAFETY: the caller's promise: the key is terminated, a process that is not NULL is one, and
    // `val` points to a pointer.
    unsafe {
        let client = initialized_with(!key.is_null() && !val.is_null());
        let found = client.and_then(|client| find(&client, proc, CStr::from_ptr(key)));
        status_of(found.map(|found| val.write(found)))
    }
}

/// The callback of [`PMIx_Get_nb`].
type ValueCallback = Option<unsafe extern "C" fn(iof_status_t, *mut iof_value_t, *mut c_void)>;

/// Passes the value of [`PMIx_Get`] to a callback, which is called before the function returns. The
/// value is valid until the callback returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_Get_nb(
    proc: *const iof_proc_t,
    key: *const c_char,
    _info: *const iof_info_t,
    _ninfo: usize,
    cbfunc: ValueCallback,
    cbdata: *mut c_void,
) -> iof_status_t {
    let client = initialized_with(!key.is_null() && cbfunc.is_some());
    // SAFETY: as in `PMIx_Get`. The value belongs to this function.
    status_of(client.and_then(|client| unsafe {
        let cbfunc = cbfunc.ok_or(Status::ERR_BAD_PARAM)?;
        let found = find(&client, proc, CStr::from_ptr(key));
        // The callback may use the library.
        drop(client);
        match found {
            Ok(value) => {
                cbfunc(Status::SUCCESS.0, value, cbdata);
                iof_Value_destruct(value);
                libc::free(value.cast());
            }
            Err(status) => cbfunc(status.0, std::ptr::null_mut(), cbdata),
        }
        Ok(())
    }))
}

/// Returns an allocated copy of a value.
///
/// # Safety
/// A process that is not NULL is one.
unsafe fn find(client: &Client, proc: *const iof_proc_t, key: &CStr) -> Result<*mut iof_value_t, Status> {
    let own = client.name.ok_or(Status::ERR_INIT)?;
    // SAFETY: the caller's promise.
    let of = if proc.is_null() { own } else { unsafe { *proc } };
    let is_own_job =
        of.nspace.iter().take_while(|byte| **byte != 0).eq(own.nspace.iter().take_while(|byte| **byte != 0));
    if !is_own_job {
        return Err(Status::ERR_NOT_FOUND);
    }
    let known = known(key, &of, &own);
    let value = match client.values.get(key) {
        Some(Stored(value)) if of.rank == own.rank => value,
        _ => known.as_ref().ok_or(Status::ERR_NOT_FOUND)?,
    };
    // SAFETY: a value of C, for which zeros are valid, or NULL.
    let place: *mut iof_value_t = unsafe { libc::calloc(1, size_of::<iof_value_t>()) }.cast();
    if place.is_null() {
        return Err(Status::ERR_NOMEM);
    }
    // SAFETY: both are values, and the second one is written. After an error nothing uses the first.
    unsafe { succeeded(iof_Value_xfer(place, value)).inspect_err(|_| libc::free(place.cast())) }?;
    Ok(place)
}

/// Fails if a function of the C library has failed.
fn succeeded(status: iof_status_t) -> Result<(), Status> {
    if status == Status::SUCCESS.0 { Ok(()) } else { Err(Status(status)) }
}

/// Returns what is known of the job (the wildcard rank) or of its rank. The value owns nothing.
fn known(key: &CStr, of: &iof_proc_t, own: &iof_proc_t) -> Option<iof_value_t> {
    let is_job = of.rank == PMIX_RANK_WILDCARD;
    let (r#type, data) = match key.to_bytes() {
        b"pmix.job.size" | b"pmix.local.size" | b"pmix.node.size" | b"pmix.max.size" if is_job => {
            (PMIX_UINT32, iof_value_data_t { uint32: 1 })
        }
        b"pmix.lpeers" if is_job => (PMIX_STRING, iof_value_data_t { string: c"0".as_ptr().cast_mut() }),
        _ if of.rank != own.rank => return None,
        b"pmix.rank" => (PMIX_PROC_RANK, iof_value_data_t { rank: own.rank }),
        b"pmix.lrank" => (PMIX_UINT16, iof_value_data_t { uint16: 0 }),
        b"pmix.grank" | b"pmix.apprank" | b"pmix.appnum" => (PMIX_UINT32, iof_value_data_t { uint32: 0 }),
        _ => return None,
    };
    Some(iof_value_t { r#type, data })
}
