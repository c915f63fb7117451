//! The structures of libpmix as C declares them, and the constants of this crate's use. Their
//! layouts have been those of `pmix_common.h` since version 4; a test compares both.

use std::ffi::{c_char, c_int, c_void};

/// `pmix_status_t`: 0 or more on success, below zero an error.
pub(crate) type Status = c_int;

pub(crate) const SUCCESS: Status = 0;
/// The request was carried out before the function returned, and no callback follows.
pub(crate) const OPERATION_SUCCEEDED: Status = -157;
pub(crate) const NOT_SUPPORTED: Status = -47;

/// The size of a name of a job, with its final zero.
pub(crate) const NAME_BYTES: usize = 256;
/// The size of a key, with its final zero.
pub(crate) const KEY_BYTES: usize = 512;

/// `pmix_proc_t`: a rank of a job.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Proc {
    pub nspace: [c_char; NAME_BYTES],
    pub rank: u32,
}

/// The type of a value (`pmix_data_type_t`).
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool = 1,
    String = 3,
    Uint16 = 13,
    Uint32 = 14,
    Info = 24,
    DataArray = 39,
    ProcRank = 40,
    Regex = 49,
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

/// The data of a value. Its kind specifies which field is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Data {
    pub flag: bool,
    pub uint16: u16,
    pub uint32: u32,
    pub string: *mut c_char,
    pub bytes: ByteObject,
    pub array: *mut DataArray,
    /// The size of the largest field, `pmix_envar_t`.
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

/// `pmix_op_cbfunc_t`: the callback with which a host ends an upcall later.
pub(crate) type OpCallback = Option<unsafe extern "C" fn(Status, *mut c_void)>;

/// `pmix_server_client_connected2_fn_t`.
pub(crate) type ClientConnected2 =
    unsafe extern "C" fn(*const Proc, *mut c_void, *mut Info, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_server_client_finalized_fn_t`.
pub(crate) type ClientFinalized =
    unsafe extern "C" fn(*const Proc, *mut c_void, OpCallback, *mut c_void) -> Status;
/// `pmix_server_abort_fn_t`.
pub(crate) type Abort = unsafe extern "C" fn(
    *const Proc,
    *mut c_void,
    c_int,
    *const c_char,
    *mut Proc,
    usize,
    OpCallback,
    *mut c_void,
) -> Status;

/// `pmix_server_job_control_fn_t`.
pub(crate) type JobControl = unsafe extern "C" fn(
    *const Proc,
    *const Proc,
    usize,
    *const Info,
    usize,
    InfoCallback,
    *mut c_void,
) -> Status;
/// `pmix_info_cbfunc_t`.
pub(crate) type InfoCallback = Option<
    unsafe extern "C" fn(
        Status,
        *mut Info,
        usize,
        *mut c_void,
        Option<unsafe extern "C" fn(*mut c_void)>,
        *mut c_void,
    ),
>;

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
    /// `fence_nb` to `allocate`.
    pub up_to_allocate: [usize; 16],
    pub job_control: Option<JobControl>,
    /// `monitor` to `fabric`.
    pub up_to_fabric: [usize; 7],
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
            ("sizeof(pmix_proc_t)", size_of::<Proc>()),
            ("offsetof(pmix_proc_t, rank)", offset_of!(Proc, rank)),
            ("sizeof(pmix_value_t)", size_of::<Value>()),
            ("offsetof(pmix_value_t, data)", offset_of!(Value, data)),
            ("sizeof(pmix_info_t)", size_of::<Info>()),
            ("offsetof(pmix_info_t, flags)", offset_of!(Info, flags)),
            ("offsetof(pmix_info_t, value)", offset_of!(Info, value)),
            ("sizeof(pmix_byte_object_t)", size_of::<ByteObject>()),
            ("sizeof(pmix_data_array_t)", size_of::<DataArray>()),
            ("offsetof(pmix_data_array_t, array)", offset_of!(DataArray, array)),
            ("offsetof(pmix_server_module_t, client_finalized)", offset_of!(Module, client_finalized)),
            ("offsetof(pmix_server_module_t, abort)", offset_of!(Module, abort)),
            ("offsetof(pmix_server_module_t, job_control)", offset_of!(Module, job_control)),
            ("offsetof(pmix_server_module_t, client_connected2)", offset_of!(Module, client_connected2)),
            ("PMIX_BOOL", Kind::Bool as usize),
            ("PMIX_STRING", Kind::String as usize),
            ("PMIX_UINT16", Kind::Uint16 as usize),
            ("PMIX_UINT32", Kind::Uint32 as usize),
            ("PMIX_INFO", Kind::Info as usize),
            ("PMIX_DATA_ARRAY", Kind::DataArray as usize),
            ("PMIX_PROC_RANK", Kind::ProcRank as usize),
            ("PMIX_REGEX", Kind::Regex as usize),
            ("-PMIX_OPERATION_SUCCEEDED", OPERATION_SUCCEEDED.unsigned_abs() as usize),
            ("-PMIX_ERR_NOT_SUPPORTED", NOT_SUPPORTED.unsigned_abs() as usize),
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
