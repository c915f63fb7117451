//! The structures as C declares them. Their layouts are those of pmix_common.h; a test compares
//! both.

use std::ffi::{c_char, c_int, c_uint, c_void};

use iof_proto::Channel;
use libc::{pid_t, time_t, timeval};

/// The result of a function: 0 (IOF_SUCCESS) or more on success, below zero an error.
pub type iof_status_t = c_int;

/// The number of a process in its job, from 0.
pub type iof_rank_t = u32;

/// A set of channels: the sum of constants such as IOF_FWD_STDOUT_CHANNEL.
pub type iof_iof_channel_t = u16;

/// The type of a value, such as IOF_BOOL.
pub type iof_data_type_t = u16;

/// The flags of an iof_info_t: the sum of constants such as IOF_INFO_REQD.
pub type iof_info_directives_t = u32;

/// The state of a process, such as IOF_PROC_STATE_RUNNING.
pub type iof_proc_state_t = u8;

/// The processes that know a value which a rank has put, such as IOF_GLOBAL.
pub type iof_scope_t = u8;

/// For how long published data is kept, such as IOF_PERSIST_SESSION.
pub type iof_persistence_t = u8;

/// The processes that receive an event or published data, such as IOF_RANGE_SESSION.
pub type iof_data_range_t = u8;

/// The longest name of a job, in bytes without the terminator.
pub const IOF_MAX_NSLEN: usize = 255;
/// The longest key, in bytes without the terminator.
pub const IOF_MAX_KEYLEN: usize = 511;

/// The name of a job, with its terminating NUL.
pub type iof_nspace_t = [c_char; 256];

/// A key, with its terminating NUL.
pub type iof_key_t = [c_char; 512];

/// A process, or all processes of a job.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_proc_t {
    /// The name of the job.
    pub nspace: iof_nspace_t,
    /// The number of the process in the job, or IOF_RANK_WILDCARD for all processes of the job.
    pub rank: iof_rank_t,
}

/// No process.
impl Default for iof_proc_t {
    fn default() -> iof_proc_t {
        iof_proc_t { nspace: [0; 256], rank: iof_rank_t::MAX }
    }
}

/// A sequence of bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_byte_object_t {
    /// The first byte.
    pub bytes: *mut c_char,
    /// The number of bytes.
    pub size: usize,
}

/// A change of an environment variable.
#[repr(C)]
#[derive(Clone, Copy)]
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
#[derive(Clone, Copy)]
pub struct iof_data_array_t {
    /// The type of the elements.
    pub r#type: iof_data_type_t,
    /// The number of elements.
    pub size: usize,
    /// The elements, such as iof_info_t for IOF_INFO and char * for IOF_STRING.
    pub array: *mut c_void,
}

/// An entry of a process table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_proc_info_t {
    /// The process.
    pub proc: iof_proc_t,
    /// The name of the node on which it runs; NULL if unknown.
    pub hostname: *mut c_char,
    /// The program that it runs; NULL if unknown.
    pub executable_name: *mut c_char,
    /// Its pid on that node; 0 if unknown.
    pub pid: pid_t,
    /// Its exit code if it has ended, 128 + n if signal n ended it; 0 if unknown.
    pub exit_code: c_int,
    /// Its state.
    pub state: iof_proc_state_t,
}

/// The data of a value. The type of the value specifies which field is valid.
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
    /// IOF_UINT16 and IOF_IOF_CHANNEL
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

/// A value of any type.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_value_t {
    /// The type, such as IOF_BOOL.
    pub r#type: iof_data_type_t,
    /// The field of that type.
    pub data: iof_value_data_t,
}

/// A key with a value: a directive of a request, a qualifier of a query, an entry of a log request,
/// or an attribute of output.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_info_t {
    /// The key.
    pub key: iof_key_t,
    /// The flags. With IOF_INFO_REQD the info is required: the request fails if the info is not
    /// supported.
    pub flags: iof_info_directives_t,
    /// The value.
    pub value: iof_value_t,
}

/// A query: keys, and qualifiers that restrict the answer to jobs or processes, such as IOF_NSPACE.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_query_t {
    /// The keys, an array that ends with NULL.
    pub keys: *mut *mut c_char,
    /// The qualifiers.
    pub qualifiers: *mut iof_info_t,
    /// The number of qualifiers.
    pub nqual: usize,
}

/// A program of a job, and the number of ranks that run it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_app_t {
    /// The program: a path, or a name that is looked up in PATH. A path that does not begin with a
    /// slash is relative to cwd.
    pub cmd: *mut c_char,
    /// The arguments, an array that ends with NULL. argv[0] is ignored: the program receives cmd in
    /// its place. NULL: no arguments.
    pub argv: *mut *mut c_char,
    /// Variables NAME=VALUE that are added to the launcher's environment or replace its variables,
    /// an array that ends with NULL. NULL: none.
    pub env: *mut *mut c_char,
    /// The working directory. NULL: the launcher's.
    pub cwd: *mut c_char,
    /// The number of ranks that run it, at least 1.
    pub maxprocs: c_int,
    /// Directives, see iof_server_spawn.
    pub info: *mut iof_info_t,
    /// The number of directives.
    pub ninfo: usize,
}

/// An attribute that a function supports: an element of an array of type IOF_REGATTR.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_regattr_t {
    /// The name of the attribute in PMIx, such as "PMIX_IOF_CACHE_SIZE". If the library does not
    /// know the attribute: its key.
    pub name: *mut c_char,
    /// Its key.
    pub string: iof_key_t,
    /// A type of its values. The library accepts all types of integers in place of IOF_UINT32 and
    /// IOF_UINT64. IOF_UNDEF if the library does not know the attribute.
    pub r#type: iof_data_type_t,
    /// The meaning of the attribute, as an array of texts that ends with NULL. NULL if the library
    /// does not know the attribute.
    pub description: *mut *mut c_char,
}

/// A process that the launcher started itself, for iof_server_adopt. A descriptor that the process
/// does not have must be set to -1, because 0 is a descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct iof_adopted_t {
    /// Its number in the job. The numbers of a job need not begin at 0.
    pub rank: iof_rank_t,
    /// The name of its program for IOF_QUERY_PROC_TABLE, or NULL.
    pub executable: *const c_char,
    /// The write end of a pipe that is the stdin of the process, for iof_IOF_push. No other process
    /// or thread may write to it.
    pub stdin_fd: c_int,
    /// The descriptor from which the stdout of the process is read: the read end of a pipe, a
    /// connected stream socket, or the master of a pty. No other process or thread may read it.
    pub stdout_fd: c_int,
    /// The same for its stderr.
    pub stderr_fd: c_int,
    /// The same for its stddiag.
    pub stddiag_fd: c_int,
    /// Its pidfd (pidfd_open(2)), or -1. The library then waits for the process and sends it
    /// signals (iof_server_signal), and pid is ignored.
    pub pidfd: c_int,
    /// If there is no pidfd: the pid of a process that the library waits for and sends signals to.
    /// 0: the launcher waits for the process, reports its exit (iof_server_report_exit), and sends
    /// it signals.
    pub pid: pid_t,
}

impl iof_adopted_t {
    /// The descriptors of its channels.
    pub(crate) fn files(&self) -> [(Channel, c_int); Channel::KNOWN.len()] {
        [
            (Channel::Stdin, self.stdin_fd),
            (Channel::Stdout, self.stdout_fd),
            (Channel::Stderr, self.stderr_fd),
            (Channel::Stddiag, self.stddiag_fd),
        ]
    }
}
