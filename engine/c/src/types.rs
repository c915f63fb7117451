//! The structures as C declares them. Their layouts are those of pmix_common.h; a test compares
//! both.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;

use libc::{pid_t, time_t, timeval};

/// The result of a function: 0 or more on success, below zero an error.
pub type iof_status_t = c_int;

/// The number of a process in its job.
pub type iof_rank_t = u32;

/// A set of channels: the sum of constants such as IOF_FWD_STDOUT_CHANNEL.
pub type iof_iof_channel_t = u16;

/// The type of a value: IOF_BOOL and the like.
pub type iof_data_type_t = u16;

/// The flags of an iof_info_t.
pub type iof_info_directives_t = u32;

/// The state of a process: IOF_PROC_STATE_RUNNING and the like.
pub type iof_proc_state_t = u8;

/// The name of a job, with its terminator.
pub type iof_nspace_t = [c_char; 256];

/// A key, with its terminator.
pub type iof_key_t = [c_char; 512];

/// A process, or with IOF_RANK_WILDCARD all processes of a job.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_proc_t {
    /// The name of the job.
    pub nspace: iof_nspace_t,
    /// Its number in the job.
    pub rank: iof_rank_t,
}

/// A sequence of bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iof_byte_object_t {
    /// The first byte.
    pub bytes: *mut c_char,
    /// The number of bytes.
    pub size: usize,
}

/// A change of an environment variable.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iof_envar_t {
    /// The name of the variable.
    pub envar: *mut c_char,
    /// The value.
    pub value: *mut c_char,
    /// The character that separates parts of the value.
    pub separator: c_char,
}

/// An array of values of one type.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iof_data_array_t {
    /// The type of the elements.
    pub r#type: iof_data_type_t,
    /// The number of elements.
    pub size: usize,
    /// The elements.
    pub array: *mut c_void,
}

/// An entry of a process table.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iof_proc_info_t {
    /// The process.
    pub proc: iof_proc_t,
    /// The name of its node; NULL if unknown.
    pub hostname: *mut c_char,
    /// The program that it runs; NULL if unknown.
    pub executable_name: *mut c_char,
    /// Its pid on that node; 0 if unknown.
    pub pid: pid_t,
    /// The exit code of a process that has ended: 128 + n if signal n ended it.
    pub exit_code: c_int,
    /// Its state.
    pub state: iof_proc_state_t,
}

/// The data of a value. iof_value_t specifies which field is valid.
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
    /// The type: IOF_BOOL and the like.
    pub r#type: iof_data_type_t,
    /// The field of that type.
    pub data: iof_value_data_t,
}

/// A key with a value: a directive, or a piece of information.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_info_t {
    /// The key.
    pub key: iof_key_t,
    /// The flags. IOF_INFO_REQD: the receiver must honour the info, or refuse the request.
    pub flags: iof_info_directives_t,
    /// The value.
    pub value: iof_value_t,
}

/// A query: keys, and the qualifiers that select what they are about.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iof_query_t {
    /// The keys, an array that ends with NULL.
    pub keys: *mut *mut c_char,
    /// The qualifiers.
    pub qualifiers: *mut iof_info_t,
    /// The number of qualifiers.
    pub nqual: usize,
}

/// A program of a job, run by some of its ranks.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iof_app_t {
    /// The program: a path, or a name that is looked up in PATH.
    pub cmd: *mut c_char,
    /// Its arguments, beginning with its own name, an array that ends with NULL. NULL: no
    /// arguments.
    pub argv: *mut *mut c_char,
    /// Variables NAME=VALUE that are added to the launcher's environment, an array that ends with
    /// NULL. NULL: none.
    pub env: *mut *mut c_char,
    /// The working directory. NULL: the launcher's.
    pub cwd: *mut c_char,
    /// The number of ranks that run it, at least 1.
    pub maxprocs: c_int,
    /// Directives. None are supported: required ones are refused, others are ignored.
    pub info: *mut iof_info_t,
    /// The number of directives.
    pub ninfo: usize,
}

/// An attribute that a function supports. Arrays of IOF_REGATTR have such elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_regattr_t {
    /// The name of the attribute.
    pub name: *mut c_char,
    /// Its key.
    pub string: iof_key_t,
    /// The type of its values; IOF_UNDEF if unspecified.
    pub r#type: iof_data_type_t,
    /// NULL, or an array of texts that ends with NULL.
    pub description: *mut *mut c_char,
}

/// A process that the launcher started itself, for iof_server_adopt. A descriptor is -1 if the
/// process has none. The library owns the other descriptors from that call on, and closes them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct iof_adopted_t {
    /// Its number in the job.
    pub rank: iof_rank_t,
    /// The program that the process table shows. May be NULL.
    pub executable: *const c_char,
    /// The write end of a pipe that is the stdin of the process. No other process writes to it.
    pub stdin_fd: c_int,
    /// The descriptor from which its stdout is read: the read end of a pipe, a connected stream
    /// socket, or the master of a pty.
    pub stdout_fd: c_int,
    /// The descriptor from which its stderr is read.
    pub stderr_fd: c_int,
    /// The descriptor from which its diagnostics are read.
    pub stddiag_fd: c_int,
    /// Its pidfd (pidfd_open(2)), or -1.
    pub pidfd: c_int,
    /// Its pid, if there is no pidfd. The library then waits for the process, and the launcher must
    /// not. 0: the launcher waits for it and reports its exit (iof_server_report_exit).
    pub pid: pid_t,
}

/// The text of an array of characters up to its terminator.
struct Text<'a>(&'a [c_char]);

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.iter().map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()));
        let text: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        fmt::Debug::fmt(&String::from_utf8_lossy(&text), f)
    }
}

impl fmt::Debug for iof_proc_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("iof_proc_t").field("nspace", &Text(&self.nspace)).field("rank", &self.rank).finish()
    }
}

impl fmt::Debug for iof_value_data_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The field that is valid is known to the value alone.
        f.debug_struct("iof_value_data_t").finish_non_exhaustive()
    }
}

impl fmt::Debug for iof_value_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("iof_value_t").field("type", &self.r#type).finish_non_exhaustive()
    }
}

impl fmt::Debug for iof_info_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("iof_info_t")
            .field("key", &Text(&self.key))
            .field("flags", &self.flags)
            .field("value", &self.value)
            .finish()
    }
}

impl fmt::Debug for iof_regattr_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("iof_regattr_t")
            .field("string", &Text(&self.string))
            .field("type", &self.r#type)
            .finish_non_exhaustive()
    }
}
