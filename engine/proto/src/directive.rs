//! Directives: the attributes that control forwarding (RFC0025).
//!
//! A list of [`Info`] (PMIx's `pmix_info_t`) is given at one of three [`DirectiveLevel`]s: server,
//! spawn, registration. A later level overrides an earlier one. [`Directives::read`] turns a list
//! into one typed value.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::limits::{Excess, MAX_DIRECTIVES, MAX_TEXT, check_limit};
use crate::names::{Channels, Proc};
use crate::status::Status;

/// The keys. Each description ends with the type of the value in brackets.
pub mod key {
    /// The size of the cache of each stream, or of the inlet of a push, in bytes (number).
    pub const PMIX_IOF_CACHE_SIZE: &str = "pmix.iof.csize";
    /// Drops the oldest bytes when the cache is full (bool).
    pub const PMIX_IOF_DROP_OLDEST: &str = "pmix.iof.old";
    /// Drops new bytes when the cache is full. In a push: closes the stdin of processes that do not
    /// read, instead of waiting for them (bool).
    pub const PMIX_IOF_DROP_NEWEST: &str = "pmix.iof.new";
    /// The number of bytes to collect before they are delivered together (number).
    pub const PMIX_IOF_BUFFERING_SIZE: &str = "pmix.iof.bsize";
    /// The longest time for which bytes are collected, in seconds (number).
    pub const PMIX_IOF_BUFFERING_TIME: &str = "pmix.iof.btime";
    /// The longest time for which bytes are collected, in microseconds (number). Takes precedence
    /// over the time in seconds.
    pub const IOF_BUFFERING_TIME_US: &str = "iof.btime.us";
    /// Ends the stream after the delivered bytes. In a push: closes the stdin of the processes
    /// after the last byte (bool).
    pub const PMIX_IOF_COMPLETE: &str = "pmix.iof.cmp";
    /// Makes the tool's C library read the tool's own stdin and push it (bool).
    pub const PMIX_IOF_PUSH_STDIN: &str = "pmix.iof.stdin";
    /// The channels to forward, as a bit mask (number). This older form, from the RFC's draft,
    /// sets all `PMIX_FWD_` keys together.
    pub const PMIX_IOF_SRV_REQ: &str = "pmix.iof.req";
    /// Makes the engine the site's gateway, which serves requests that other engines cannot (bool,
    /// RFC0032).
    pub const PMIX_SERVER_GATEWAY: &str = "pmix.srv.gway";
    /// Whether rank 0 has a stdin to which tools can push (bool).
    pub const PMIX_FWD_STDIN: &str = "pmix.fwd.stdin";
    /// Whether the launcher's own readers receive stdout; other tools can pull it anyway (bool).
    pub const PMIX_FWD_STDOUT: &str = "pmix.fwd.stdout";
    /// Whether the launcher's own readers receive stderr; other tools can pull it anyway (bool).
    pub const PMIX_FWD_STDERR: &str = "pmix.fwd.stderr";
    /// Whether the launcher's own readers receive stddiag; other tools can pull it anyway (bool).
    pub const PMIX_FWD_STDDIAG: &str = "pmix.fwd.stddiag";
    /// Leaves processes whose stdin is not open out of a push, instead of failing the push (bool).
    pub const IOF_PARTIAL: &str = "iof.push.partial";
    /// The time at which delivered bytes were read from their source, in nanoseconds since 1970
    /// (number).
    pub const IOF_TIME: &str = "iof.time";
}

/// A key with a value (`pmix_info_t`): a directive of a request, a qualifier of a query, a field of
/// an email, or an attribute of delivered bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The key: one of [`key`], or one that the host defines.
    pub key: String,
    /// The value.
    pub value: InfoValue,
    /// Whether the request fails if the directive cannot be honoured (`PMIX_INFO_REQD`). An
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

/// The level at which directives are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectiveLevel {
    /// At the engine's start: the defaults for all jobs and registrations.
    Server,
    /// At a spawn: the options of the streams of that job.
    Spawn,
    /// At a registration: the options of that registration.
    Registration,
}

/// The bytes that are dropped when a cache is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DropPolicy {
    /// The oldest ones in the cache (`PMIX_IOF_DROP_OLDEST`).
    Oldest,
    /// New ones (`PMIX_IOF_DROP_NEWEST`), the RFC's default.
    Newest,
}

/// The typed value of a list of directives. An optional field is `None` if the list does not set
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directives {
    /// `PMIX_IOF_CACHE_SIZE`: bytes of cache for each stream, at least 1. The engine rounds smaller
    /// values up to 16 KiB.
    pub cache_size: Option<u32>,
    /// `PMIX_IOF_DROP_OLDEST`, `PMIX_IOF_DROP_NEWEST`: the drop policy.
    pub drop: Option<DropPolicy>,
    /// `PMIX_IOF_BUFFERING_SIZE`: bytes to collect before delivery; 0 delivers them as they arrive.
    pub buffering_size: Option<u32>,
    /// `PMIX_IOF_BUFFERING_TIME`, `IOF_BUFFERING_TIME_US`: the longest time for which bytes are
    /// collected; 0 delivers them as they arrive.
    pub buffering_time: Option<Duration>,
    /// `PMIX_FWD_STDOUT`, `PMIX_FWD_STDERR`, `PMIX_FWD_STDDIAG`, `PMIX_IOF_SRV_REQ`: the channels
    /// that the launcher's own readers receive. With `None` they receive all. If one of these keys
    /// is set, they do not receive the channels of the others. Other tools can pull all channels.
    pub forward: Option<Channels>,
    /// `PMIX_FWD_STDIN`, `PMIX_IOF_SRV_REQ`: whether rank 0 has a stdin to which tools can push;
    /// `false` if neither is set. Does not affect the output channels.
    pub stdin: bool,
}

/// The reason why a directive cannot be honoured.
pub(crate) enum DirectiveError {
    Unknown,
    /// The value is not of this type.
    WrongType(&'static str),
    /// The value is not in this range.
    OutOfRange(&'static str),
    /// The directive does not apply at this level or to this request.
    WrongLevel,
}

impl Directives {
    /// Reads `infos`, which were given at `level`. Also returns the keys of optional directives
    /// that are ignored because they are unknown, of the wrong type, out of range, or not
    /// applicable at this level. If a key is repeated, its last value counts.
    ///
    /// # Errors
    /// A required directive cannot be honoured, or both drop policies are set.
    ///
    /// ```
    /// use iof_proto::directive::{Directives, Info, DirectiveLevel, key};
    /// let infos = [Info::new(key::PMIX_IOF_CACHE_SIZE, 4096u32), Info::new("vendor.colour", true)];
    /// let (directives, ignored) = Directives::read(&infos, DirectiveLevel::Spawn)?;
    /// assert_eq!(directives.cache_size, Some(4096));
    /// assert_eq!(ignored, ["vendor.colour"]);
    /// # Ok::<(), iof_proto::Failure>(())
    /// ```
    pub fn read(infos: &[Info], level: DirectiveLevel) -> Result<(Directives, Vec<String>), Failure> {
        let mut reader = DirectiveReader::default();
        let mut ignored = Vec::new();
        for info in infos {
            match reader.apply(info, level) {
                Ok(()) => {}
                Err(error) if info.required => return Err(error.into_failure(&info.key)),
                Err(_) => ignored.push(info.key.clone()),
            }
        }
        Ok((reader.finish()?, ignored))
    }
}

/// The directives of a list so far.
#[derive(Default)]
struct DirectiveReader {
    directives: Directives,
    /// The buffering time that was given in seconds.
    seconds: Option<Duration>,
    oldest: bool,
    newest: bool,
}

impl DirectiveReader {
    fn apply(&mut self, info: &Info, level: DirectiveLevel) -> Result<(), DirectiveError> {
        let Info { key, value, .. } = info;
        let all = &mut self.directives;
        match key.as_str() {
            key::PMIX_IOF_CACHE_SIZE => all.cache_size = Some(size_value(value, 1)?),
            key::PMIX_IOF_DROP_OLDEST => self.oldest = bool_value(value)?,
            key::PMIX_IOF_DROP_NEWEST => self.newest = bool_value(value)?,
            key::PMIX_IOF_BUFFERING_SIZE => all.buffering_size = Some(size_value(value, 0)?),
            key::PMIX_IOF_BUFFERING_TIME => self.seconds = Some(Duration::from_secs(number_value(value)?)),
            key::IOF_BUFFERING_TIME_US => {
                all.buffering_time = Some(Duration::from_micros(number_value(value)?))
            }
            key::PMIX_IOF_SRV_REQ => {
                let channels = spawn_channels(value, level)?;
                all.forward = Some(channels);
                all.stdin = channels.contains(Channels::STDIN);
            }
            key::PMIX_FWD_STDIN => all.stdin = spawn_bool(value, level)?,
            key::PMIX_FWD_STDOUT => self.forward(Channels::STDOUT, value, level)?,
            key::PMIX_FWD_STDERR => self.forward(Channels::STDERR, value, level)?,
            key::PMIX_FWD_STDDIAG => self.forward(Channels::STDDIAG, value, level)?,
            key::PMIX_IOF_COMPLETE | key::PMIX_IOF_PUSH_STDIN | key::IOF_TIME | key::IOF_PARTIAL => {
                return Err(DirectiveError::WrongLevel);
            }
            _ => return Err(DirectiveError::Unknown),
        }
        Ok(())
    }

    fn forward(
        &mut self,
        channel: Channels,
        value: &InfoValue,
        level: DirectiveLevel,
    ) -> Result<(), DirectiveError> {
        let wanted = spawn_bool(value, level)?;
        self.directives.forward.get_or_insert(Channels::empty()).set(channel, wanted);
        Ok(())
    }

    fn finish(mut self) -> Result<Directives, Failure> {
        self.directives.drop = match (self.oldest, self.newest) {
            (true, true) => {
                let reason = format!(
                    "{} and {} are mutually exclusive: set only one of them",
                    key::PMIX_IOF_DROP_OLDEST,
                    key::PMIX_IOF_DROP_NEWEST
                );
                return Err(Failure::new(Status::ERR_BAD_PARAM, reason));
            }
            (true, false) => Some(DropPolicy::Oldest),
            (false, true) => Some(DropPolicy::Newest),
            (false, false) => None,
        };
        self.directives.buffering_time = self.directives.buffering_time.or(self.seconds);
        Ok(self.directives)
    }
}

impl DirectiveError {
    /// Returns the failure of a request in which the directive with this key is required.
    pub(crate) fn into_failure(self, key: &str) -> Failure {
        let (status, reason) = match self {
            DirectiveError::Unknown => (
                Status::ERR_NOT_SUPPORTED,
                format!(
                    "unknown attribute {key:?} is marked as required: correct it, drop it or make it optional"
                ),
            ),
            DirectiveError::WrongType(expected) => (
                Status::ERR_BAD_PARAM,
                format!("invalid value for required attribute {key:?}: expected {expected}"),
            ),
            DirectiveError::OutOfRange(range) => (
                Status::ERR_BAD_PARAM,
                format!("invalid value for required attribute {key:?}: expected a number from {range}"),
            ),
            DirectiveError::WrongLevel => (
                Status::ERR_NOT_SUPPORTED,
                format!("required attribute {key:?} does not apply here: drop it or make it optional"),
            ),
        };
        Failure::new(status, reason)
    }
}

pub(crate) fn bool_value(value: &InfoValue) -> Result<bool, DirectiveError> {
    if let InfoValue::Bool(value) = value { Ok(*value) } else { Err(DirectiveError::WrongType("a bool")) }
}

fn number_value(value: &InfoValue) -> Result<u64, DirectiveError> {
    if let InfoValue::Number(value) = value { Ok(*value) } else { Err(DirectiveError::WrongType("a number")) }
}

/// Returns a number of bytes, which is a `uint32_t` in PMIx and must be at least `min`.
pub(crate) fn size_value(value: &InfoValue, min: u32) -> Result<u32, DirectiveError> {
    let range = if min == 0 { "0 to 4294967295" } else { "1 to 4294967295" };
    let number = u32::try_from(number_value(value)?).map_err(|_| DirectiveError::OutOfRange(range))?;
    if number < min { Err(DirectiveError::OutOfRange(range)) } else { Ok(number) }
}

/// Returns the value of a directive that applies to spawns only.
fn spawn_bool(value: &InfoValue, level: DirectiveLevel) -> Result<bool, DirectiveError> {
    if level == DirectiveLevel::Spawn { bool_value(value) } else { Err(DirectiveError::WrongLevel) }
}

/// Returns a channel mask, which applies to spawns only.
fn spawn_channels(value: &InfoValue, level: DirectiveLevel) -> Result<Channels, DirectiveError> {
    if level != DirectiveLevel::Spawn {
        return Err(DirectiveError::WrongLevel);
    }
    let out_of_range = DirectiveError::OutOfRange("0 to 255");
    let bits = u16::try_from(number_value(value)?).ok();
    bits.and_then(Channels::from_bits).ok_or(out_of_range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(infos: &[Info], level: DirectiveLevel) -> (Directives, Vec<String>) {
        Directives::read(infos, level).unwrap()
    }

    fn refused(info: Info, level: DirectiveLevel) -> Failure {
        Directives::read(&[info], level).unwrap_err()
    }

    #[test]
    fn every_key_of_the_rfc_is_read() {
        let infos = [
            Info::new(key::PMIX_IOF_CACHE_SIZE, 1u32),
            Info::new(key::PMIX_IOF_DROP_OLDEST, true),
            Info::new(key::PMIX_IOF_DROP_NEWEST, false),
            Info::new(key::PMIX_IOF_BUFFERING_SIZE, 7u32),
            Info::new(key::PMIX_IOF_BUFFERING_TIME, 2u32),
            Info::new(key::PMIX_FWD_STDOUT, true),
            Info::new(key::PMIX_FWD_STDERR, false),
            Info::new(key::PMIX_FWD_STDDIAG, true),
        ];
        let (all, ignored) = read(&infos, DirectiveLevel::Spawn);
        let expected = Directives {
            cache_size: Some(1),
            drop: Some(DropPolicy::Oldest),
            buffering_size: Some(7),
            buffering_time: Some(Duration::from_secs(2)),
            forward: Some(Channels::STDOUT | Channels::STDDIAG),
            stdin: false,
        };
        assert_eq!((all, ignored), (expected, vec![]));
        let draft = [Info::new(key::PMIX_IOF_SRV_REQ, 6u32)];
        assert_eq!(read(&draft, DirectiveLevel::Spawn).0.forward, Some(Channels::STDOUT | Channels::STDERR));
        let stdin = read(&[Info::new(key::PMIX_FWD_STDIN, true)], DirectiveLevel::Spawn).0;
        assert_eq!((stdin.stdin, stdin.forward), (true, None), "stdin does not affect the output channels");
        let finer =
            [Info::new(key::IOF_BUFFERING_TIME_US, 1500u32), Info::new(key::PMIX_IOF_BUFFERING_TIME, 9u32)];
        assert_eq!(read(&finer, DirectiveLevel::Server).0.buffering_time, Some(Duration::from_micros(1500)));
    }

    #[test]
    fn unusable_directives_are_listed_if_optional_and_refused_if_required() {
        let unusable = [
            (key::PMIX_IOF_CACHE_SIZE, InfoValue::Number(0)),
            (key::PMIX_IOF_CACHE_SIZE, InfoValue::Number(1 << 32)),
            (key::PMIX_IOF_CACHE_SIZE, InfoValue::Bool(true)),
            (key::PMIX_IOF_DROP_OLDEST, InfoValue::Text("yes".into())),
            (key::PMIX_IOF_BUFFERING_SIZE, InfoValue::Number(u64::MAX)),
            (key::PMIX_IOF_SRV_REQ, InfoValue::Number(0x100)),
            (key::PMIX_IOF_PUSH_STDIN, InfoValue::Bool(true)),
            (key::PMIX_IOF_COMPLETE, InfoValue::Bool(true)),
            ("no.such.key", InfoValue::Bool(true)),
        ];
        for (key, value) in unusable {
            let info = Info { key: key.into(), value, required: false };
            assert_eq!(
                read(std::slice::from_ref(&info), DirectiveLevel::Spawn),
                (Directives::default(), vec![key.to_owned()])
            );
            let failure = refused(Info { required: true, ..info }, DirectiveLevel::Spawn);
            assert!(failure.reason.contains(key), "{failure}");
        }
    }

    #[test]
    fn forwarding_keys_apply_at_a_spawn_only() {
        for level in [DirectiveLevel::Server, DirectiveLevel::Registration] {
            for key in [key::PMIX_FWD_STDOUT, key::PMIX_FWD_STDIN] {
                assert_eq!(read(&[Info::new(key, true)], level).1, [key]);
            }
            let required = Info::required(key::PMIX_IOF_SRV_REQ, 2u32);
            assert_eq!(refused(required, level).status, Status::ERR_NOT_SUPPORTED);
        }
    }

    #[test]
    fn two_drop_policies_at_once_are_refused() {
        let both = [key::PMIX_IOF_DROP_OLDEST, key::PMIX_IOF_DROP_NEWEST].map(|key| Info::new(key, true));
        assert_eq!(
            Directives::read(&both, DirectiveLevel::Server).unwrap_err().status,
            Status::ERR_BAD_PARAM
        );
    }
}
