//! Directives: the attributes that control forwarding (RFC0025).
//!
//! A list of [`Info`] (PMIx's `pmix_info_t`) is given at one of three [`DirectiveLevel`]s: server,
//! spawn, registration. A later level overrides an earlier one. [`Directives::read`] turns a list
//! into one typed value.

use std::collections::BTreeSet;
use std::time::Duration;

use iof_shm_ring::Policy;
use serde::{Deserialize, Serialize};

use crate::attribute::{self, Place};
use crate::failure::Failure;
use crate::info::Info;
use crate::names::{Channel, Channels};
use crate::status::Status;

/// The keys.
pub mod key {
    pub use crate::attribute::forwarding::*;
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

impl DirectiveLevel {
    pub(crate) fn place(self) -> Place {
        match self {
            DirectiveLevel::Server => Place::Server,
            DirectiveLevel::Spawn => Place::Spawn,
            DirectiveLevel::Registration => Place::Pull,
        }
    }
}

/// The version of [`Directives`], to which each change of them adds 1. It rises with each new channel.
pub const DIRECTIVES_VERSION: u32 = Channel::OUTPUTS.len() as u32 - 2;

/// The typed value of a list of directives. An optional field is `None` if the list does not set
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directives {
    /// `PMIX_IOF_CACHE_SIZE`: bytes of cache for each stream, at least 1. The engine rounds smaller
    /// values up to 16 KiB.
    pub cache_size: Option<u32>,
    /// `PMIX_IOF_DROP_OLDEST`, `PMIX_IOF_DROP_NEWEST`: the drop policy.
    pub drop: Option<Policy>,
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
    /// `PMIX_SERVER_GATEWAY`: whether the engine is the site's gateway.
    pub gateway: Option<bool>,
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
    /// use iof_proto::Info;
    /// use iof_proto::directive::{DirectiveLevel, Directives, key};
    /// let infos = [Info::new(key::PMIX_IOF_CACHE_SIZE, 4096u32), Info::new("vendor.colour", true)];
    /// let (directives, ignored) = Directives::read(&infos, DirectiveLevel::Spawn)?;
    /// assert_eq!(directives.cache_size, Some(4096));
    /// assert_eq!(ignored, ["vendor.colour"]);
    /// # Ok::<(), iof_proto::Failure>(())
    /// ```
    pub fn read(infos: &[Info], level: DirectiveLevel) -> Result<(Directives, Vec<String>), Failure> {
        let mut all = Directives::default();
        let (mut oldest, mut newest, mut seconds) = (false, false, None);
        let ignored = attribute::read(infos, level.place(), &BTreeSet::new(), |given| {
            match given.key() {
                key::PMIX_IOF_CACHE_SIZE => all.cache_size = Some(given.number()?),
                key::PMIX_IOF_DROP_OLDEST => oldest = given.bool()?,
                key::PMIX_IOF_DROP_NEWEST => newest = given.bool()?,
                key::PMIX_IOF_BUFFERING_SIZE => all.buffering_size = Some(given.number()?),
                key::PMIX_IOF_BUFFERING_TIME => seconds = Some(Duration::from_secs(given.number()?)),
                key::IOF_BUFFERING_TIME_US => {
                    all.buffering_time = Some(Duration::from_micros(given.number()?));
                }
                key::PMIX_SERVER_GATEWAY => all.gateway = Some(given.bool()?),
                key::PMIX_IOF_SRV_REQ => {
                    let channels = Channels::from_bits(given.number()?).ok_or_else(|| given.invalid())?;
                    all.forward = Some(channels);
                    all.stdin = channels.contains(Channels::STDIN);
                }
                // Every registration receives a copy.
                key::PMIX_IOF_COPY => {}
                key::PMIX_IOF_REDIRECT if given.bool()? => return Err(given.unsupported()),
                key::PMIX_IOF_REDIRECT => {}
                key => {
                    let channel = Channel::KNOWN.into_iter().find(|channel| channel.forwarding_key() == key);
                    match (channel.ok_or_else(|| given.unread())?, given.bool()?) {
                        (Channel::Stdin, wanted) => all.stdin = wanted,
                        (output, wanted) => all.forward.get_or_insert_default().set(output.into(), wanted),
                    }
                }
            }
            Ok(())
        })?;
        all.drop = drop_policy(oldest, newest)?;
        all.buffering_time = all.buffering_time.or(seconds);
        Ok((all, ignored))
    }
}

/// Returns the drop policy that the two keys set.
fn drop_policy(oldest: bool, newest: bool) -> Result<Option<Policy>, Failure> {
    Ok(match (oldest, newest) {
        (true, true) => {
            let reason = format!(
                "{} and {} are mutually exclusive: set only one of them",
                key::PMIX_IOF_DROP_OLDEST,
                key::PMIX_IOF_DROP_NEWEST
            );
            return Err(Failure::new(Status::ERR_BAD_PARAM, reason));
        }
        (true, false) => Some(Policy::DropOldest),
        (false, true) => Some(Policy::DropNewest),
        (false, false) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::InfoValue;

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
            drop: Some(Policy::DropOldest),
            buffering_size: Some(7),
            buffering_time: Some(Duration::from_secs(2)),
            forward: Some(Channels::STDOUT | Channels::STDDIAG),
            stdin: false,
            gateway: None,
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
