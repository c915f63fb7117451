//! Infos: keys with values, and their form in C.

use std::ffi::{CString, c_char};
use std::ptr;

use crate::types::{self, ByteObject, DataArray, KEY_BYTES, Kind};

/// A key with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub key: &'static str,
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Flag(bool),
    Uint16(u16),
    Uint32(u32),
    Rank(u32),
    Text(CString),
    /// A list of nodes, or of the ranks on each.
    Regex(CString),
    Infos(Vec<Info>),
}

impl Info {
    pub(crate) fn new(key: &'static str, value: Value) -> Info {
        Info { key, value }
    }

    pub(crate) fn text(key: &'static str, text: &str) -> Info {
        // No zero byte can be in the arguments and paths of a process that runs.
        Info::new(key, Value::Text(CString::new(text).unwrap_or_default()))
    }

    /// Returns a list, not compressed, which all versions of libpmix read.
    pub(crate) fn list(key: &'static str, list: &str) -> Info {
        Info::new(key, Value::Regex(CString::new(format!("raw:{list}")).unwrap_or_default()))
    }

    pub(crate) fn number(key: &'static str, number: u32) -> Info {
        Info::new(key, Value::Uint32(number))
    }
}

/// Infos in the form of C, which refer to the infos that they were made from.
pub(crate) struct CInfos<'a> {
    infos: Vec<types::Info>,
    /// The arrays that values point to.
    arrays: Vec<(Box<DataArray>, CInfos<'a>)>,
    from: std::marker::PhantomData<&'a Info>,
}

impl<'a> CInfos<'a> {
    pub(crate) fn new(infos: &'a [Info]) -> CInfos<'a> {
        let mut made = CInfos {
            infos: Vec::with_capacity(infos.len()),
            arrays: Vec::new(),
            from: std::marker::PhantomData,
        };
        for Info { key, value } in infos {
            let value = made.value(value);
            made.infos.push(types::Info { key: characters::<KEY_BYTES>(key), flags: 0, value });
        }
        made
    }

    fn value(&mut self, value: &'a Value) -> types::Value {
        let mut data = types::Data { all: [0; 3] };
        let kind = match value {
            Value::Flag(flag) => {
                data.flag = *flag;
                Kind::Bool
            }
            Value::Uint16(number) => {
                data.uint16 = *number;
                Kind::Uint16
            }
            Value::Uint32(number) => {
                data.uint32 = *number;
                Kind::Uint32
            }
            Value::Rank(rank) => {
                data.uint32 = *rank;
                Kind::ProcRank
            }
            Value::Text(text) => {
                data.string = text.as_ptr().cast_mut();
                Kind::String
            }
            Value::Regex(text) => {
                let size = text.as_bytes_with_nul().len();
                data.bytes = ByteObject { bytes: text.as_ptr().cast_mut(), size };
                Kind::Regex
            }
            Value::Infos(infos) => {
                let mut inner = CInfos::new(infos);
                let array = inner.infos.as_mut_ptr().cast();
                let mut array =
                    Box::new(DataArray { kind: Kind::Info as u16, size: inner.infos.len(), array });
                data.array = ptr::from_mut(&mut *array);
                self.arrays.push((array, inner));
                Kind::DataArray
            }
        };
        types::Value { kind: kind as u16, data }
    }

    /// Returns the array and its length. Both are valid as long as these infos.
    pub(crate) fn as_parts(&mut self) -> (*mut types::Info, usize) {
        (self.infos.as_mut_ptr(), self.infos.len())
    }
}

/// Returns a text as an array with a final zero. A longer text is cut off.
pub(crate) fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    let room = array.iter_mut().take(N.saturating_sub(1));
    room.zip(text.bytes()).for_each(|(to, from)| *to = c_char::from_ne_bytes(from.to_ne_bytes()));
    array
}
