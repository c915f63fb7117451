//! Attributes as they are sent: keys with values.

use serde::{Deserialize, Serialize};

use crate::limits::{Excess, MAX_DIRECTIVES, MAX_TEXT, check_limit};
use crate::names::Proc;

/// A key with a value (`pmix_info_t`): a directive of a request, a qualifier of a query, a field of
/// an email, or an attribute of delivered bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The key: one of one of the [table](crate::attribute), or one that the host defines.
    pub key: String,
    /// The value.
    pub value: InfoValue,
    /// Set if a directive that cannot be honoured makes the request fail (`PMIX_INFO_REQD`). An
    /// optional directive is ignored instead.
    pub required: bool,
}

/// The value of an [`Info`] (`pmix_value_t`), restricted to the types that forwarding uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InfoValue {
    /// A boolean.
    Bool(bool),
    /// A number of any unsigned type.
    Number(u64),
    /// A text.
    Text(String),
    /// A process.
    Proc(Proc),
}

impl From<bool> for InfoValue {
    fn from(value: bool) -> InfoValue {
        InfoValue::Bool(value)
    }
}

impl From<u32> for InfoValue {
    fn from(value: u32) -> InfoValue {
        InfoValue::Number(value.into())
    }
}

impl From<u64> for InfoValue {
    fn from(value: u64) -> InfoValue {
        InfoValue::Number(value)
    }
}

impl From<&str> for InfoValue {
    fn from(value: &str) -> InfoValue {
        InfoValue::Text(value.to_owned())
    }
}

impl Info {
    /// Returns an optional directive.
    pub fn new(key: impl Into<String>, value: impl Into<InfoValue>) -> Info {
        Info { key: key.into(), value: value.into(), required: false }
    }

    /// Returns a required directive.
    pub fn required(key: impl Into<String>, value: impl Into<InfoValue>) -> Info {
        Info { required: true, ..Info::new(key, value) }
    }

    /// Returns the size of the key and of a text or process value, in bytes.
    pub(crate) fn size(&self) -> usize {
        let value = match &self.value {
            InfoValue::Text(text) => text.len(),
            InfoValue::Proc(proc) => proc.nspace.as_str().len(),
            InfoValue::Bool(_) | InfoValue::Number(_) => 0,
        };
        self.key.len().saturating_add(value)
    }

    /// Checks that a list of directives is within the limits.
    pub(crate) fn check(infos: &[Info]) -> Result<(), Excess> {
        check_limit("directives", infos.len(), MAX_DIRECTIVES)?;
        infos.iter().try_for_each(|info| {
            check_limit("bytes of a directive's key", info.key.len(), MAX_TEXT)?;
            let InfoValue::Text(text) = &info.value else { return Ok(()) };
            check_limit("bytes of a directive's text", text.len(), MAX_TEXT)
        })
    }
}
