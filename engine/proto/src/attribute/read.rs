//! Reading lists of infos by the table.

use std::collections::BTreeSet;

use super::{Attribute, Place, ValueType, find};
use crate::failure::Failure;
use crate::info::{Info, InfoValue};
use crate::names::Proc;
use crate::status::Status;

/// The reason why an info cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// The key is unknown.
    #[error("unknown attribute {key:?} is marked as required: correct it, drop it or make it optional")]
    Unknown {
        /// The key.
        key: String,
    },
    /// The attribute is not honoured here.
    #[error(
        "attribute {:?} is marked as required but does not apply here, only to: {}; drop it or make it optional",
        .attribute.key,
        places(.attribute)
    )]
    Elsewhere {
        /// The attribute.
        attribute: &'static Attribute,
    },
    /// The value is valid, but cannot be honoured.
    #[error(
        "attribute {:?} is marked as required but {} is not supported: drop it or make it optional",
        .attribute.key,
        found(.value)
    )]
    Unsupported {
        /// The attribute.
        attribute: &'static Attribute,
        /// The value.
        value: InfoValue,
    },
    /// The value is of the wrong type or out of range.
    #[error("invalid value for attribute {:?}: expected a {}, found {}", .attribute.key, .attribute.values(), found(.value))]
    Value {
        /// The attribute.
        attribute: &'static Attribute,
        /// The value.
        value: InfoValue,
    },
}

impl AttributeError {
    /// Returns the PMIx status of the error: [`Status::ERR_BAD_PARAM`] for a value, otherwise
    /// [`Status::ERR_NOT_SUPPORTED`].
    pub fn status(&self) -> Status {
        match self {
            AttributeError::Unknown { .. }
            | AttributeError::Elsewhere { .. }
            | AttributeError::Unsupported { .. } => Status::ERR_NOT_SUPPORTED,
            AttributeError::Value { .. } => Status::ERR_BAD_PARAM,
        }
    }
}

impl From<AttributeError> for Failure {
    fn from(error: AttributeError) -> Failure {
        Failure::new(error.status(), error.to_string())
    }
}

/// Returns the refusal of the first info that none of `places` honours, also if it is not required.
pub fn unknown(infos: &[Info], places: &[Place]) -> Option<Failure> {
    let is_honoured = |attribute: &Attribute| attribute.places.iter().any(|place| places.contains(place));
    let info = infos.iter().find(|info| !find(&info.key).is_some_and(is_honoured))?;
    let name = find(&info.key).map_or(info.key.as_str(), |attribute| attribute.name);
    Some(Failure::new(Status::ERR_NOT_SUPPORTED, format!("{name} is not supported here: leave it out")))
}

/// An info whose key is honoured at a place, and whose value the table accepts.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    attribute: &'static Attribute,
    info: &'a Info,
}

impl<'a> Given<'a> {
    /// Checks `info` against the table.
    ///
    /// # Errors
    /// The key is not honoured at `place`, or the value is not one that its row accepts.
    pub fn new(info: &'a Info, place: Place) -> Result<Given<'a>, AttributeError> {
        let unknown = || AttributeError::Unknown { key: info.key.clone() };
        let attribute = find(&info.key).ok_or_else(unknown)?;
        if !attribute.places.contains(&place) {
            return Err(AttributeError::Elsewhere { attribute });
        }
        let given = Given { attribute, info };
        if attribute.accepts(&info.value) { Ok(given) } else { Err(given.invalid()) }
    }

    /// Returns the key.
    pub fn key(&self) -> &'static str {
        self.attribute.key
    }

    /// Returns whether the request fails if the info cannot be honoured.
    pub fn is_required(&self) -> bool {
        self.info.required
    }

    /// Returns the info as it was given.
    pub fn info(&self) -> &'a Info {
        self.info
    }

    /// Returns the value of an attribute of type [`ValueType::Bool`].
    ///
    /// # Errors
    /// The value is not a bool.
    pub fn bool(&self) -> Result<bool, AttributeError> {
        if let InfoValue::Bool(value) = self.info.value { Ok(value) } else { Err(self.invalid()) }
    }

    /// Returns the value of an attribute of type [`ValueType::Number`].
    ///
    /// # Errors
    /// The value is not a number that `N` can represent.
    pub fn number<N: TryFrom<u64>>(&self) -> Result<N, AttributeError> {
        let InfoValue::Number(value) = self.info.value else { return Err(self.invalid()) };
        N::try_from(value).map_err(|_| self.invalid())
    }

    /// Returns the value of an attribute of type [`ValueType::Text`].
    ///
    /// # Errors
    /// The value is not a text.
    pub fn text(&self) -> Result<&'a str, AttributeError> {
        if let InfoValue::Text(value) = &self.info.value { Ok(value) } else { Err(self.invalid()) }
    }

    /// Returns the value of an attribute of type [`ValueType::Process`].
    ///
    /// # Errors
    /// The value is not a process.
    pub fn proc(&self) -> Result<&'a Proc, AttributeError> {
        if let InfoValue::Proc(value) = &self.info.value { Ok(value) } else { Err(self.invalid()) }
    }

    /// Returns the error for a value that the reader cannot use.
    pub fn invalid(&self) -> AttributeError {
        AttributeError::Value { attribute: self.attribute, value: self.info.value.clone() }
    }

    /// Returns the error for a valid value that the reader cannot honour.
    pub fn unsupported(&self) -> AttributeError {
        AttributeError::Unsupported { attribute: self.attribute, value: self.info.value.clone() }
    }

    /// Returns the error for a key that the reader does not read.
    pub fn unread(&self) -> AttributeError {
        AttributeError::Unknown { key: self.info.key.clone() }
    }
}

/// Passes each of `infos` that is honoured at `place` to `apply`, in order. Returns the keys of the
/// optional infos that are ignored: the table or `apply` does not accept them. Such infos with
/// `host_keys` are left to the host, required or not.
///
/// # Errors
/// A required info is not accepted.
pub fn read<'a>(
    infos: &'a [Info],
    place: Place,
    host_keys: &BTreeSet<String>,
    mut apply: impl FnMut(Given<'a>) -> Result<(), AttributeError>,
) -> Result<Vec<String>, Failure> {
    let mut ignored = Vec::new();
    for info in infos {
        match Given::new(info, place).and_then(&mut apply) {
            Ok(()) => {}
            Err(_) if host_keys.contains(&info.key) => {}
            Err(error) if info.required => return Err(error.into()),
            Err(_) => ignored.push(info.key.clone()),
        }
    }
    Ok(ignored)
}

/// Returns the places where an attribute is honoured, for a message.
fn places(attribute: &Attribute) -> String {
    attribute.places.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns a value for a message, without a text of any length.
fn found(value: &InfoValue) -> String {
    match value {
        InfoValue::Bool(flag) => flag.to_string(),
        InfoValue::Number(number) => number.to_string(),
        InfoValue::Text(_) | InfoValue::Proc(_) => format!("a {}", ValueType::of(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directive::key;

    #[test]
    fn an_error_names_the_key_what_is_expected_and_what_was_found() {
        let error = |info: Info| Given::new(&info, Place::Pull).unwrap_err().to_string();
        for (info, text) in [
            (
                Info::required(key::PMIX_IOF_CACHE_SIZE, 0u32),
                "invalid value for attribute \"pmix.iof.csize\": expected a number from 1 to 4294967295, found 0",
            ),
            (
                Info::required(key::PMIX_IOF_DROP_OLDEST, "yes"),
                "invalid value for attribute \"pmix.iof.old\": expected a bool, found a text",
            ),
            (
                Info::required(key::PMIX_FWD_STDOUT, true),
                "attribute \"pmix.fwd.stdout\" is marked as required but does not apply here, only to: spawn; \
                 drop it or make it optional",
            ),
            (
                Info::required("site.colour", true),
                "unknown attribute \"site.colour\" is marked as required: correct it, drop it or make it optional",
            ),
        ] {
            assert_eq!(error(info), text);
        }
    }
}
