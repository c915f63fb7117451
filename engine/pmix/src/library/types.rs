//! The structures of libpmix as C declares them, and the constants of this crate's use. Their
//! layouts have been those of `pmix_common.h` since version 4; a test compares both.

use std::ffi::{c_char, c_int, c_void};

/// `pmix_status_t`: 0 or more on success, below zero an error.
pub(crate) type Status = c_int;

pub(crate) const SUCCESS: Status = 0;
/// The request was carried out before the function returned, and no callback follows.
pub(crate) const OPERATION_SUCCEEDED: Status = -157;

/// The size of a name of a job, with its final zero.
pub(crate) const NAME_BYTES: usize = 256;
/// The size of a key, with its final zero.
pub(crate) const KEY_BYTES: usize = 512;

/// `pmix_proc_t`: a rank of a job.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawProc {
    pub nspace: [c_char; NAME_BYTES],
    pub rank: u32,
}

/// The types of values (`pmix_data_type_t`).
pub(crate) mod kind {
    pub(crate) use iof_proto::attribute::data_type::*;

    pub(crate) const PMIX_PERSIST: u16 = 30;
    pub(crate) const PMIX_DATA_RANGE: u16 = 33;
    pub(crate) const PMIX_REGEX: u16 = 49;
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ByteObject {
    pub bytes: *mut c_char,
    pub size: usize,
}

/// `pmix_data_array_t`.
#[repr(C)]
pub(crate) struct DataArray {
    pub kind: u16,
    pub size: usize,
    pub array: *mut c_void,
}

/// `pmix_envar_t`: a variable, with what separates its parts.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Envar {
    pub name: *mut c_char,
    pub value: *mut c_char,
    pub separator: c_char,
}

/// The data of a value. Its kind specifies which field is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Data {
    /// A `bool`, which is read as a byte: libpmix does not check those that it receives.
    pub byte: u8,
    pub uint16: u16,
    pub uint32: u32,
    pub int32: i32,
    pub uint64: u64,
    pub int64: i64,
    pub string: *mut c_char,
    pub bytes: ByteObject,
    pub proc: *mut RawProc,
    pub nspace: *mut [c_char; NAME_BYTES],
    pub array: *mut DataArray,
    /// The largest field.
    pub variable: Envar,
    pub all: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Value {
    pub kind: u16,
    pub data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    pub key: [c_char; KEY_BYTES],
    pub flags: u32,
    pub value: Value,
}

/// The flag of an info that must be honoured (`PMIX_INFO_REQD`).
pub(crate) const REQUIRED: u32 = 1;

/// `pmix_proc_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawProcInfo {
    pub proc: RawProc,
    pub hostname: *mut c_char,
    pub executable: *mut c_char,
    pub pid: libc::pid_t,
    pub exit_code: c_int,
    pub state: u8,
}

/// `pmix_regattr_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RegAttr {
    pub name: *mut c_char,
    pub key: [c_char; KEY_BYTES],
    pub kind: u16,
    /// A list that ends with null.
    pub description: *mut *mut c_char,
}

/// `pmix_cpuset_t`: a set of processors, in the form of the library that `source` names.
#[repr(C)]
pub(crate) struct CpuSet {
    pub source: *mut c_char,
    pub bitmap: *mut c_void,
}

/// `pmix_query_t`.
#[repr(C)]
pub(crate) struct RawQuery {
    /// A list that ends with null.
    pub keys: *mut *mut c_char,
    pub qualifiers: *mut Info,
    pub qualifier_count: usize,
}

/// `pmix_app_t`: a program of a job.
#[repr(C)]
pub(crate) struct RawApp {
    pub cmd: *const c_char,
    /// Lists that end with null, or null.
    pub argv: *const *const c_char,
    pub env: *const *const c_char,
    pub cwd: *const c_char,
    pub ranks: c_int,
    pub infos: *const Info,
    pub info_count: usize,
}

/// `pmix_spawn_cbfunc_t`: the callback with the name of a job.
pub(crate) type SpawnCallback = Option<unsafe extern "C" fn(Status, *mut c_char, *mut c_void)>;
/// `pmix_server_spawn_fn_t`.
pub(crate) type SpawnFunction = unsafe extern "C" fn(
    *const RawProc,
    *const Info,
    usize,
    *const RawApp,
    usize,
    SpawnCallback,
    *mut c_void,
) -> Status;

/// `pmix_op_cbfunc_t`: the callback with which a host ends an upcall later.
pub(crate) type OpCallback = Option<unsafe extern "C" fn(Status, *mut c_void)>;

/// `pmix_server_client_connected2_fn_t`.
pub(crate) type ClientConnected2 =
    unsafe extern "C" fn(*const RawProc, *mut c_void, *mut Info, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_server_client_finalized_fn_t`.
pub(crate) type ClientFinalized =
    unsafe extern "C" fn(*const RawProc, *mut c_void, OpCallback, *mut c_void) -> Status;
/// `pmix_server_abort_fn_t`.
pub(crate) type Abort = unsafe extern "C" fn(
    *const RawProc,
    *mut c_void,
    c_int,
    *const c_char,
    *mut RawProc,
    usize,
    OpCallback,
    *mut c_void,
) -> Status;

/// `pmix_server_job_control_fn_t`.
pub(crate) type JobControl = unsafe extern "C" fn(
    *const RawProc,
    *const RawProc,
    usize,
    *const Info,
    usize,
    InfoCallback,
    *mut c_void,
) -> Status;
/// `pmix_release_cbfunc_t`: the callback by which libpmix returns infos.
pub(crate) type ReleaseCallback = Option<unsafe extern "C" fn(*mut c_void)>;
/// `pmix_info_cbfunc_t`.
pub(crate) type InfoCallback =
    Option<unsafe extern "C" fn(Status, *mut Info, usize, *mut c_void, ReleaseCallback, *mut c_void)>;
/// `pmix_tool_connection_cbfunc_t`.
pub(crate) type ToolCallback = Option<unsafe extern "C" fn(Status, *mut RawProc, *mut c_void)>;

/// `pmix_server_register_events_fn_t`.
pub(crate) type RegisterEvents =
    unsafe extern "C" fn(*mut Status, usize, *const Info, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_server_deregister_events_fn_t`.
pub(crate) type DeregisterEvents =
    unsafe extern "C" fn(*mut Status, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_server_query_fn_t`.
pub(crate) type QueryFunction =
    unsafe extern "C" fn(*mut RawProc, *mut RawQuery, usize, InfoCallback, *mut c_void) -> Status;
/// `pmix_server_tool_connection_fn_t`.
pub(crate) type ToolConnected = unsafe extern "C" fn(*mut Info, usize, ToolCallback, *mut c_void);
/// `pmix_server_log_fn_t`.
pub(crate) type LogFunction =
    unsafe extern "C" fn(*const RawProc, *const Info, usize, *const Info, usize, OpCallback, *mut c_void);
/// `pmix_server_iof_fn_t`.
pub(crate) type IofPull =
    unsafe extern "C" fn(*const RawProc, usize, *const Info, usize, u16, OpCallback, *mut c_void) -> Status;
/// `pmix_server_stdin_fn_t`.
pub(crate) type PushStdin = unsafe extern "C" fn(
    *const RawProc,
    *const RawProc,
    usize,
    *const Info,
    usize,
    *const ByteObject,
    OpCallback,
    *mut c_void,
) -> Status;

/// `pmix_modex_cbfunc_t`: the callback with the values of ranks.
pub(crate) type ModexCallback =
    Option<unsafe extern "C" fn(Status, *const c_char, usize, *mut c_void, ReleaseCallback, *mut c_void)>;
/// `pmix_server_fencenb_fn_t`.
pub(crate) type FenceFunction = unsafe extern "C" fn(
    *const RawProc,
    usize,
    *const Info,
    usize,
    *mut c_char,
    usize,
    ModexCallback,
    *mut c_void,
) -> Status;
/// `pmix_server_dmodex_req_fn_t`.
pub(crate) type DirectModex =
    unsafe extern "C" fn(*const RawProc, *const Info, usize, ModexCallback, *mut c_void) -> Status;
/// `pmix_server_connect_fn_t` and `pmix_server_disconnect_fn_t`.
pub(crate) type Connect =
    unsafe extern "C" fn(*const RawProc, usize, *const Info, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_dmodex_response_fn_t`.
pub(crate) type ModexResponse = Option<unsafe extern "C" fn(Status, *mut c_char, usize, *mut c_void)>;

/// `pmix_pdata_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawPublished {
    pub proc: RawProc,
    pub key: [c_char; KEY_BYTES],
    pub value: Value,
}

/// `pmix_lookup_cbfunc_t`.
pub(crate) type LookupCallback = Option<unsafe extern "C" fn(Status, *mut RawPublished, usize, *mut c_void)>;
/// `pmix_server_publish_fn_t`.
pub(crate) type Publish =
    unsafe extern "C" fn(*const RawProc, *const Info, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_server_lookup_fn_t` and `pmix_server_unpublish_fn_t`, which differ in their callbacks.
pub(crate) type WithKeys<Callback> = unsafe extern "C" fn(
    *const RawProc,
    *mut *mut c_char,
    *const Info,
    usize,
    Callback,
    *mut c_void,
) -> Status;

/// `PMIX_GROUP_CONSTRUCT` of `pmix_group_operation_t`.
pub(crate) const CONSTRUCT: c_int = 0;

/// `pmix_server_grp_fn_t`.
pub(crate) type Group = unsafe extern "C" fn(
    c_int,
    *mut c_char,
    *const RawProc,
    usize,
    *const Info,
    usize,
    InfoCallback,
    *mut c_void,
) -> Status;

/// The number of functions of later versions for which [`Module`] has room.
const LATER: usize = 64;

/// `pmix_server_module_t`: the upcalls of a host. An upcall of zero is not supported. libpmix
/// copies as many bytes as its own version of the structure has, which may be more than those known
/// here.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Module {
    pub client_connected: usize,
    pub client_finalized: Option<ClientFinalized>,
    pub abort: Option<Abort>,
    pub fence: Option<FenceFunction>,
    pub direct_modex: Option<DirectModex>,
    pub publish: Option<Publish>,
    pub lookup: Option<WithKeys<LookupCallback>>,
    pub unpublish: Option<WithKeys<OpCallback>>,
    pub spawn: Option<SpawnFunction>,
    pub connect: Option<Connect>,
    pub disconnect: Option<Connect>,
    pub register_events: Option<RegisterEvents>,
    pub deregister_events: Option<DeregisterEvents>,
    pub listener: usize,
    pub notify_event: usize,
    pub query: Option<QueryFunction>,
    pub tool_connected: Option<ToolConnected>,
    pub log: Option<LogFunction>,
    pub allocate: usize,
    pub job_control: Option<JobControl>,
    /// `monitor` to `validate_credential`.
    pub up_to_validate: [usize; 3],
    pub iof_pull: Option<IofPull>,
    pub push_stdin: Option<PushStdin>,
    pub group: Option<Group>,
    pub fabric: usize,
    pub client_connected2: Option<ClientConnected2>,
    pub later: Later,
}

/// Zeros for functions of later versions.
#[repr(C)]
pub(crate) struct Later([usize; LATER]);

impl Default for Later {
    fn default() -> Later {
        Later([0; LATER])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;
    use std::mem::offset_of;
    use std::process::Command;

    use super::*;

    /// Directories that may have Debian's header besides those of the compiler.
    const INCLUDE: &str = "-I/usr/lib/x86_64-linux-gnu/pmix2/include";

    #[test]
    fn structures_have_the_layout_of_the_header_of_the_system() {
        let directory = std::env::temp_dir().join(format!("iof-pmix-types-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (source, program) = (directory.join("layout.c"), directory.join("layout"));
        let expected = [
            ("sizeof(pmix_proc_t)", size_of::<RawProc>()),
            ("offsetof(pmix_proc_t, rank)", offset_of!(RawProc, rank)),
            ("sizeof(pmix_value_t)", size_of::<Value>()),
            ("offsetof(pmix_value_t, data)", offset_of!(Value, data)),
            ("sizeof(pmix_info_t)", size_of::<Info>()),
            ("offsetof(pmix_info_t, flags)", offset_of!(Info, flags)),
            ("offsetof(pmix_info_t, value)", offset_of!(Info, value)),
            ("sizeof(pmix_byte_object_t)", size_of::<ByteObject>()),
            ("sizeof(pmix_envar_t)", size_of::<Envar>()),
            ("offsetof(pmix_envar_t, separator)", offset_of!(Envar, separator)),
            ("sizeof(pmix_data_array_t)", size_of::<DataArray>()),
            ("offsetof(pmix_data_array_t, array)", offset_of!(DataArray, array)),
            ("offsetof(pmix_server_module_t, client_finalized)", offset_of!(Module, client_finalized)),
            ("offsetof(pmix_server_module_t, abort)", offset_of!(Module, abort)),
            ("offsetof(pmix_server_module_t, fence_nb)", offset_of!(Module, fence)),
            ("offsetof(pmix_server_module_t, direct_modex)", offset_of!(Module, direct_modex)),
            ("offsetof(pmix_server_module_t, connect)", offset_of!(Module, connect)),
            ("offsetof(pmix_server_module_t, disconnect)", offset_of!(Module, disconnect)),
            ("offsetof(pmix_server_module_t, register_events)", offset_of!(Module, register_events)),
            ("offsetof(pmix_server_module_t, deregister_events)", offset_of!(Module, deregister_events)),
            ("offsetof(pmix_server_module_t, publish)", offset_of!(Module, publish)),
            ("offsetof(pmix_server_module_t, lookup)", offset_of!(Module, lookup)),
            ("offsetof(pmix_server_module_t, unpublish)", offset_of!(Module, unpublish)),
            ("sizeof(pmix_pdata_t)", size_of::<RawPublished>()),
            ("offsetof(pmix_pdata_t, key)", offset_of!(RawPublished, key)),
            ("offsetof(pmix_pdata_t, value)", offset_of!(RawPublished, value)),
            ("offsetof(pmix_server_module_t, query)", offset_of!(Module, query)),
            ("offsetof(pmix_server_module_t, tool_connected)", offset_of!(Module, tool_connected)),
            ("offsetof(pmix_server_module_t, log)", offset_of!(Module, log)),
            ("offsetof(pmix_server_module_t, job_control)", offset_of!(Module, job_control)),
            ("offsetof(pmix_server_module_t, iof_pull)", offset_of!(Module, iof_pull)),
            ("offsetof(pmix_server_module_t, push_stdin)", offset_of!(Module, push_stdin)),
            ("offsetof(pmix_server_module_t, group)", offset_of!(Module, group)),
            ("offsetof(pmix_server_module_t, client_connected2)", offset_of!(Module, client_connected2)),
            ("sizeof(pmix_proc_info_t)", size_of::<RawProcInfo>()),
            ("offsetof(pmix_proc_info_t, hostname)", offset_of!(RawProcInfo, hostname)),
            ("offsetof(pmix_proc_info_t, executable_name)", offset_of!(RawProcInfo, executable)),
            ("offsetof(pmix_proc_info_t, pid)", offset_of!(RawProcInfo, pid)),
            ("offsetof(pmix_proc_info_t, exit_code)", offset_of!(RawProcInfo, exit_code)),
            ("offsetof(pmix_proc_info_t, state)", offset_of!(RawProcInfo, state)),
            ("sizeof(pmix_regattr_t)", size_of::<RegAttr>()),
            ("offsetof(pmix_regattr_t, string)", offset_of!(RegAttr, key)),
            ("offsetof(pmix_regattr_t, type)", offset_of!(RegAttr, kind)),
            ("offsetof(pmix_regattr_t, description)", offset_of!(RegAttr, description)),
            ("sizeof(pmix_cpuset_t)", size_of::<CpuSet>()),
            ("offsetof(pmix_cpuset_t, bitmap)", offset_of!(CpuSet, bitmap)),
            ("sizeof(pmix_query_t)", size_of::<RawQuery>()),
            ("offsetof(pmix_query_t, qualifiers)", offset_of!(RawQuery, qualifiers)),
            ("offsetof(pmix_query_t, nqual)", offset_of!(RawQuery, qualifier_count)),
            ("sizeof(pmix_app_t)", size_of::<RawApp>()),
            ("offsetof(pmix_app_t, maxprocs)", offset_of!(RawApp, ranks)),
            ("offsetof(pmix_app_t, ninfo)", offset_of!(RawApp, info_count)),
            ("PMIX_INFO_REQD", REQUIRED as usize),
            ("PMIX_BOOL", kind::PMIX_BOOL.into()),
            ("PMIX_BYTE", kind::PMIX_BYTE.into()),
            ("PMIX_STRING", kind::PMIX_STRING.into()),
            ("PMIX_SIZE", kind::PMIX_SIZE.into()),
            ("PMIX_PID", kind::PMIX_PID.into()),
            ("PMIX_INT", kind::PMIX_INT.into()),
            ("PMIX_INT32", kind::PMIX_INT32.into()),
            ("PMIX_INT64", kind::PMIX_INT64.into()),
            ("PMIX_UINT", kind::PMIX_UINT.into()),
            ("PMIX_UINT8", kind::PMIX_UINT8.into()),
            ("PMIX_UINT16", kind::PMIX_UINT16.into()),
            ("PMIX_UINT32", kind::PMIX_UINT32.into()),
            ("PMIX_UINT64", kind::PMIX_UINT64.into()),
            ("PMIX_TIME", kind::PMIX_TIME.into()),
            ("PMIX_STATUS", kind::PMIX_STATUS.into()),
            ("PMIX_PROC", kind::PMIX_PROC.into()),
            ("PMIX_INFO", kind::PMIX_INFO.into()),
            ("PMIX_PROC_INFO", kind::PMIX_PROC_INFO.into()),
            ("PMIX_DATA_ARRAY", kind::PMIX_DATA_ARRAY.into()),
            ("PMIX_PROC_RANK", kind::PMIX_PROC_RANK.into()),
            ("PMIX_IOF_CHANNEL", kind::PMIX_IOF_CHANNEL.into()),
            ("PMIX_REGATTR", kind::PMIX_REGATTR.into()),
            ("PMIX_PERSIST", kind::PMIX_PERSIST.into()),
            ("PMIX_DATA_RANGE", kind::PMIX_DATA_RANGE.into()),
            ("PMIX_REGEX", kind::PMIX_REGEX.into()),
            ("PMIX_PROC_NSPACE", kind::PMIX_PROC_NSPACE.into()),
            ("-PMIX_OPERATION_SUCCEEDED", OPERATION_SUCCEEDED.unsigned_abs() as usize),
            ("PMIX_GROUP_CONSTRUCT", CONSTRUCT as usize),
        ];
        let checks: String = expected
            .iter()
            .map(|(text, value)| format!("_Static_assert({text} == {value}, \"{text}\");\n"))
            .collect();
        let size = size_of::<Module>();
        let room = format!("_Static_assert(sizeof(pmix_server_module_t) <= {size}, \"room\");\n");
        let head = "#include <stddef.h>\n#include <pmix_server.h>\n";
        fs::write(&source, format!("{head}int main(void) {{ return 0; }}\n")).unwrap();
        let compile =
            || Command::new("cc").arg(INCLUDE).arg("-c").arg(&source).arg("-o").arg(&program).output();
        if compile().is_ok_and(|output| output.status.success()) {
            fs::write(&source, format!("{head}{checks}{room}")).unwrap();
            let output = compile().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        } else {
            eprintln!("skipped: no C compiler, or pmix_server.h is not installed (libpmix-dev)");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
