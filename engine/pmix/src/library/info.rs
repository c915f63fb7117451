//! Infos: keys with values, and their form in C.

use std::borrow::Cow;
use std::ffi::{CString, c_char};
use std::ptr;

use crate::library::types::{self, ByteObject, DataArray, KEY_BYTES, RawProcInfo, RegAttr, kind};

/// A key with a value.
#[derive(Clone)]
pub(crate) struct Info {
    pub key: Cow<'static, str>,
    pub value: Value,
}

/// A value.
#[derive(Clone)]
pub(crate) enum Value {
    Flag(bool),
    Uint16(u16),
    Uint32(u32),
    Uint64(u64),
    Int(i32),
    Pid(libc::pid_t),
    Status(types::Status),
    Rank(u32),
    Channel(u16),
    Text(CString),
    Texts(Vec<CString>),
    Size(usize),
    /// A list of nodes, or of the ranks on each.
    Regex(CString),
    Proc(Box<types::RawProc>),
    Procs(Vec<types::RawProc>),
    Infos(Vec<Info>),
    Processes(Vec<ProcTableLine>),
    Attributes(Vec<SupportedAttribute>),
}

/// A line of a process table.
#[derive(Clone)]
pub(crate) struct ProcTableLine {
    pub proc: types::RawProc,
    pub host: Option<CString>,
    pub executable: Option<CString>,
    pub pid: libc::pid_t,
    pub exit_code: i32,
    pub state: u8,
}

/// An attribute that a function supports.
#[derive(Clone)]
pub(crate) struct SupportedAttribute {
    pub name: CString,
    pub key: String,
    pub kind: u16,
    pub description: CString,
}

impl Info {
    pub(crate) fn new(key: impl Into<Cow<'static, str>>, value: Value) -> Info {
        Info { key: key.into(), value }
    }

    pub(crate) fn text(key: impl Into<Cow<'static, str>>, text: &str) -> Info {
        Info::new(key, Value::Text(c_string(text)))
    }

    /// Returns a list, not compressed, which all versions of libpmix read.
    pub(crate) fn list(key: &'static str, list: &str) -> Info {
        Info::new(key, Value::Regex(c_string(&format!("raw:{list}"))))
    }

    pub(crate) fn number(key: &'static str, number: u32) -> Info {
        Info::new(key, Value::Uint32(number))
    }
}

/// Returns a text up to its first zero byte. The arguments and paths of a process that runs have
/// none.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

/// Infos in the form of C, which points to parts of the infos that it was made from.
pub(crate) struct CInfos {
    form: Form,
    /// Not moved: the form points to what it has on the heap.
    _from: Vec<Info>,
}

impl CInfos {
    pub(crate) fn new(infos: Vec<Info>) -> CInfos {
        CInfos { form: Form::new(&infos), _from: infos }
    }

    /// Returns the array and its length. Both are valid as long as these infos.
    pub(crate) fn as_parts(&mut self) -> (*mut types::Info, usize) {
        (self.form.infos.as_mut_ptr(), self.form.infos.len())
    }
}

#[derive(Default)]
struct Form {
    infos: Vec<types::Info>,
    /// The arrays that values point to.
    arrays: Vec<(Box<DataArray>, Elements)>,
}

/// The elements of an array.
enum Elements {
    Infos(Form),
    Texts(Vec<*mut c_char>),
    Procs(Vec<types::RawProc>),
    Processes(Vec<RawProcInfo>),
    Attributes(Vec<RegAttr>, #[allow(dead_code, reason = "the attributes point to it")] Vec<Lines>),
}

/// A list with one text.
type Lines = Box<[*mut c_char; 2]>;

impl Form {
    fn new(infos: &[Info]) -> Form {
        let mut form = Form { infos: Vec::with_capacity(infos.len()), arrays: Vec::new() };
        for Info { key, value } in infos {
            let value = form.value(value);
            form.infos.push(types::Info { key: characters::<KEY_BYTES>(key), flags: 0, value });
        }
        form
    }

    fn value(&mut self, value: &Value) -> types::Value {
        let mut data = types::Data { all: [0; 3] };
        let kind = match value {
            Value::Flag(flag) => {
                data.byte = (*flag).into();
                kind::PMIX_BOOL
            }
            Value::Uint16(number) => {
                data.uint16 = *number;
                kind::PMIX_UINT16
            }
            Value::Channel(channel) => {
                data.uint16 = *channel;
                kind::PMIX_IOF_CHANNEL
            }
            Value::Uint32(number) => {
                data.uint32 = *number;
                kind::PMIX_UINT32
            }
            Value::Uint64(number) => {
                data.uint64 = *number;
                kind::PMIX_UINT64
            }
            Value::Size(number) => {
                data.uint64 = *number as u64;
                kind::PMIX_SIZE
            }
            Value::Int(number) => {
                data.int32 = *number;
                kind::PMIX_INT
            }
            Value::Pid(pid) => {
                data.int32 = *pid;
                kind::PMIX_PID
            }
            Value::Status(status) => {
                data.int32 = *status;
                kind::PMIX_STATUS
            }
            Value::Rank(rank) => {
                data.uint32 = *rank;
                kind::PMIX_PROC_RANK
            }
            Value::Text(text) => {
                data.string = text.as_ptr().cast_mut();
                kind::PMIX_STRING
            }
            Value::Regex(text) => {
                let size = text.as_bytes_with_nul().len();
                data.bytes = ByteObject { bytes: text.as_ptr().cast_mut(), size };
                kind::PMIX_REGEX
            }
            Value::Proc(proc) => {
                data.proc = ptr::from_ref(&**proc).cast_mut();
                kind::PMIX_PROC
            }
            Value::Infos(infos) => self.array(&mut data, Elements::Infos(Form::new(infos))),
            Value::Texts(texts) => {
                let texts = texts.iter().map(|text| text.as_ptr().cast_mut()).collect();
                self.array(&mut data, Elements::Texts(texts))
            }
            Value::Procs(procs) => self.array(&mut data, Elements::Procs(procs.clone())),
            Value::Processes(processes) => {
                let processes = processes.iter().map(process).collect();
                self.array(&mut data, Elements::Processes(processes))
            }
            Value::Attributes(attributes) => {
                let (attributes, lines) = attributes.iter().map(attribute).unzip();
                self.array(&mut data, Elements::Attributes(attributes, lines))
            }
        };
        types::Value { kind, data }
    }

    /// Makes an array the value.
    fn array(&mut self, data: &mut types::Data, mut elements: Elements) -> u16 {
        let (kind, array, size) = match &mut elements {
            Elements::Infos(form) => (kind::PMIX_INFO, form.infos.as_mut_ptr().cast(), form.infos.len()),
            Elements::Texts(all) => (kind::PMIX_STRING, all.as_mut_ptr().cast(), all.len()),
            Elements::Procs(all) => (kind::PMIX_PROC, all.as_mut_ptr().cast(), all.len()),
            Elements::Processes(all) => (kind::PMIX_PROC_INFO, all.as_mut_ptr().cast(), all.len()),
            Elements::Attributes(all, _) => (kind::PMIX_REGATTR, all.as_mut_ptr().cast(), all.len()),
        };
        let mut array = Box::new(DataArray { kind, size, array });
        data.array = ptr::from_mut(&mut *array);
        self.arrays.push((array, elements));
        kind::PMIX_DATA_ARRAY
    }
}

fn process(process: &ProcTableLine) -> RawProcInfo {
    let text =
        |text: &Option<CString>| text.as_ref().map_or(ptr::null_mut(), |text| text.as_ptr().cast_mut());
    RawProcInfo {
        proc: process.proc,
        hostname: text(&process.host),
        executable: text(&process.executable),
        pid: process.pid,
        exit_code: process.exit_code,
        state: process.state,
    }
}

fn attribute(attribute: &SupportedAttribute) -> (RegAttr, Lines) {
    let mut lines = Box::new([attribute.description.as_ptr().cast_mut(), ptr::null_mut()]);
    let attribute = RegAttr {
        name: attribute.name.as_ptr().cast_mut(),
        key: characters(&attribute.key),
        kind: attribute.kind,
        description: lines.as_mut_ptr(),
    };
    (attribute, lines)
}

/// Returns a text as an array with a final zero. A longer text is cut off.
pub(crate) fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    let room = array.iter_mut().take(N.saturating_sub(1));
    room.zip(text.bytes()).for_each(|(to, from)| *to = c_char::from_ne_bytes(from.to_ne_bytes()));
    array
}
