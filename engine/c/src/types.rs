//! The structures, as C sees them: laid out as those of pmix_common.h, which a test holds them
//! against.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pid_t, time_t, timeval};

/// How something went: 0, or below zero an error.
pub type iof_status_t = c_int;

/// The number of a process in its job.
pub type iof_rank_t = u32;

/// A set of channels, the sum of IOF_FWD_STDOUT_CHANNEL and the like.
pub type iof_iof_channel_t = u16;

/// What a value is of.
pub type iof_data_type_t = u16;

/// Flags of an iof_info_t.
pub type iof_info_directives_t = u32;

/// Where a process is in its life.
pub type iof_proc_state_t = u8;

/// The name of a job, terminated.
pub type iof_nspace_t = [c_char; 256];

/// A key, terminated.
pub type iof_key_t = [c_char; 512];

/// A process, or with IOF_RANK_WILDCARD all processes of a job.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_proc_t {
    /// Its job.
    pub nspace: iof_nspace_t,
    /// Its number in the job.
    pub rank: iof_rank_t,
}

/// Bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_byte_object_t {
    /// Where they are.
    pub bytes: *mut c_char,
    /// How many.
    pub size: usize,
}

/// What an environment variable is to become.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_envar_t {
    /// Its name.
    pub envar: *mut c_char,
    /// The value.
    pub value: *mut c_char,
    /// What stands between parts of it.
    pub separator: c_char,
}

/// An array of values of one type.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_data_array_t {
    /// Of which type its elements are.
    pub r#type: iof_data_type_t,
    /// How many elements.
    pub size: usize,
    /// The elements.
    pub array: *mut c_void,
}

/// One line of a process table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_proc_info_t {
    /// Which process.
    pub proc: iof_proc_t,
    /// Where it runs; NULL if nobody knows.
    pub hostname: *mut c_char,
    /// What it runs; likewise.
    pub executable_name: *mut c_char,
    /// Its pid there; 0 if nobody knows.
    pub pid: pid_t,
    /// Its exit code once it has ended, 128 + n if signal n ended it.
    pub exit_code: c_int,
    /// Where it is in its life.
    pub state: iof_proc_state_t,
}

/// What a value holds, see iof_value_t.
#[repr(C)]
#[derive(Clone, Copy)]
pub union iof_value_data_t {
    /// IOF_BOOL
    pub flag: bool,
    /// IOF_BYTE
    pub byte: u8,
    /// IOF_STRING
    pub string: *mut c_char,
    /// IOF_SIZE
    pub size: usize,
    /// IOF_PID
    pub pid: pid_t,
    /// IOF_INT
    pub integer: c_int,
    /// IOF_INT8
    pub int8: i8,
    /// IOF_INT16
    pub int16: i16,
    /// IOF_INT32
    pub int32: i32,
    /// IOF_INT64
    pub int64: i64,
    /// IOF_UINT
    pub uint: c_uint,
    /// IOF_UINT8
    pub uint8: u8,
    /// IOF_UINT16
    pub uint16: u16,
    /// IOF_UINT32
    pub uint32: u32,
    /// IOF_UINT64
    pub uint64: u64,
    /// IOF_FLOAT
    pub fval: f32,
    /// IOF_DOUBLE
    pub dval: f64,
    /// IOF_TIMEVAL
    pub tv: timeval,
    /// IOF_TIME
    pub time: time_t,
    /// IOF_STATUS
    pub status: iof_status_t,
    /// IOF_PROC_RANK
    pub rank: iof_rank_t,
    /// IOF_PROC_NSPACE
    pub nspace: *mut iof_nspace_t,
    /// IOF_PROC
    pub proc: *mut iof_proc_t,
    /// IOF_BYTE_OBJECT
    pub bo: iof_byte_object_t,
    /// IOF_PROC_STATE
    pub state: iof_proc_state_t,
    /// IOF_PROC_INFO
    pub pinfo: *mut iof_proc_info_t,
    /// IOF_DATA_ARRAY
    pub darray: *mut iof_data_array_t,
    /// IOF_POINTER
    pub ptr: *mut c_void,
    /// IOF_ENVAR
    pub envar: iof_envar_t,
}

/// A value of one of many types.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_value_t {
    /// Which: IOF_BOOL and the like.
    pub r#type: iof_data_type_t,
    /// It.
    pub data: iof_value_data_t,
}

/// One piece of information, or one directive.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_info_t {
    /// What it is about.
    pub key: iof_key_t,
    /// IOF_INFO_REQD: who can't honour it is to refuse what it comes with.
    pub flags: iof_info_directives_t,
    /// What it says.
    pub value: iof_value_t,
}

/// One query: keys, and what they are to be answered of.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_query_t {
    /// What is asked, an array that ends with NULL.
    pub keys: *mut *mut c_char,
    /// Of what.
    pub qualifiers: *mut iof_info_t,
    /// How many qualifiers.
    pub nqual: usize,
}

/// One program of a job, run by some of its ranks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_app_t {
    /// What they run: a path, or a name to be looked up in PATH.
    pub cmd: *mut c_char,
    /// Its arguments with its own name before them, an array that ends with NULL; NULL for none.
    pub argv: *mut *mut c_char,
    /// NAME=VALUE, added to the launcher's environment, an array that ends with NULL; NULL for
    /// none.
    pub env: *mut *mut c_char,
    /// Where they start; NULL for where the launcher is.
    pub cwd: *mut c_char,
    /// How many ranks run it, 1 at least.
    pub maxprocs: c_int,
    /// Nothing is understood here; what is required is refused.
    pub info: *mut iof_info_t,
    /// How many.
    pub ninfo: usize,
}

/// What an operation understands, as an element of IOF_REGATTR arrays.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_regattr_t {
    /// The attribute.
    pub name: *mut c_char,
    /// Its key.
    pub string: iof_key_t,
    /// The type of its values; IOF_UNDEF if that is not told.
    pub r#type: iof_data_type_t,
    /// NULL, or texts that end with NULL.
    pub description: *mut *mut c_char,
}

/// A process that the launcher has started itself, see iof_server_adopt. A descriptor is -1 where
/// there is none; the others are the library's from then on, which closes them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_adopted_t {
    /// Its number in the job.
    pub rank: iof_rank_t,
    /// What the process table says that it runs; may be NULL.
    pub executable: *const c_char,
    /// Where its stdin is written: the write end of a pipe that nobody else writes.
    pub stdin_fd: c_int,
    /// Where its stdout is read: the read end of a pipe, a connected stream socket, or a pty's
    /// master.
    pub stdout_fd: c_int,
    /// Likewise.
    pub stderr_fd: c_int,
    /// Likewise.
    pub stddiag_fd: c_int,
    /// Its pidfd, see pidfd_open(2), or -1.
    pub pidfd: c_int,
    /// If there is no pidfd: its pid, which the library waits for; nobody else may then. 0: the
    /// launcher waits for it, and says so by iof_server_report_exit.
    pub pid: pid_t,
}
