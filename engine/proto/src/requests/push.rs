//! Pushes of stdin (`PMIx_IOF_push`, RFC0025): their directives, progress and reports.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::attribute::{self, Place};
use crate::directive::key;
use crate::failure::Failure;
use crate::info::Info;
use crate::names::{Proc, Rank};

/// The typed directives of a push.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PushDirectives {
    /// `PMIX_IOF_CACHE_SIZE`: the largest number of bytes between tool and targets, at least 1.
    /// With `None`, the engine's cache size applies.
    pub cache_size: Option<u32>,
    /// `PMIX_IOF_COMPLETE`: whether the targets' stdin ends after the last byte. Otherwise it stays
    /// open for the next push.
    pub complete: bool,
    /// `PMIX_IOF_DROP_NEWEST`: whether a target that does not read is cut off: its stdin is closed,
    /// and it receives no more of this push. Otherwise the push waits for it.
    pub drop: bool,
    /// [`IOF_PARTIAL`](key::IOF_PARTIAL): whether targets whose stdin is not open are left out.
    /// Otherwise such a target makes the push fail.
    pub partial: bool,
}

impl PushDirectives {
    /// Reads `infos`. Also returns the keys of optional directives that cannot be honoured and are
    /// ignored. `PMIX_IOF_PUSH_STDIN` is accepted without effect: it concerns only the tool that
    /// collects the bytes.
    ///
    /// # Errors
    /// A required directive cannot be honoured.
    ///
    /// ```
    /// use iof_proto::directive::key;
    /// use iof_proto::{Info, PushDirectives};
    /// let infos = [Info::required(key::PMIX_IOF_COMPLETE, true), Info::new(key::PMIX_IOF_DROP_OLDEST, true)];
    /// let (directives, ignored) = PushDirectives::read(&infos)?;
    /// assert!(directives.complete && !directives.drop);
    /// assert_eq!(ignored, [key::PMIX_IOF_DROP_OLDEST]);
    /// # Ok::<(), iof_proto::Failure>(())
    /// ```
    pub fn read(infos: &[Info]) -> Result<(PushDirectives, Vec<String>), Failure> {
        let mut all = PushDirectives::default();
        let ignored = attribute::read(infos, Place::Push, &BTreeSet::new(), |given| {
            match given.key() {
                key::PMIX_IOF_CACHE_SIZE => all.cache_size = Some(given.number()?),
                key::PMIX_IOF_COMPLETE => all.complete = given.bool()?,
                key::PMIX_IOF_DROP_NEWEST => all.drop = given.bool()?,
                key::IOF_PARTIAL => all.partial = given.bool()?,
                key::PMIX_IOF_PUSH_STDIN => {}
                // PMIX_IOF_DROP_OLDEST is not an attribute of pushes: a process must not get later
                // bytes in place of earlier ones.
                _ => return Err(given.unread()),
            }
            Ok(())
        })?;
        Ok((all, ignored))
    }
}

/// A push that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushGranted {
    /// The number of the push, 1 or more.
    pub push: u32,
    /// The targets that are left out (at most
    /// [`MAX_PROCS_PER_PULL`](crate::limits::MAX_PROCS_PER_PULL) are listed). Empty without
    /// [`IOF_PARTIAL`](crate::directive::key::IOF_PARTIAL).
    pub skipped: Vec<Skipped>,
    /// The keys of optional directives that could not be honoured.
    pub ignored: Vec<String>,
}

/// A target that is left out of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The process.
    pub target: Proc,
    /// The reason why it is left out.
    pub reason: StdinUnavailable,
}

/// The reason why bytes cannot be pushed into a process's stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StdinUnavailable {
    /// The launcher gave it a stdin that takes no pushes: `/dev/null`, a file or a terminal.
    NotOpen,
    /// It inherits the stdin of its launcher.
    Inherited,
    /// It has closed its stdin or exited, or an earlier push has ended its stdin.
    Closed,
    /// It runs on another node, and the host does not forward stdin.
    Elsewhere,
}

impl fmt::Display for StdinUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StdinUnavailable::NotOpen => "stdin was not left open",
            StdinUnavailable::Inherited => "reads the stdin of the command that started it",
            StdinUnavailable::Closed => "stdin is closed",
            StdinUnavailable::Elsewhere => "runs on another node, to which no stdin is forwarded",
        })
    }
}

/// The targets that delay a push.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowTargets {
    /// The number of bytes that all targets have received, which is the position of the slowest.
    pub position: u64,
    /// The targets that have received only these bytes although more are available. Empty if the
    /// push has ended, or if the list is too long for a message.
    pub targets: Vec<SlowTarget>,
}

/// A target that delays a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowTarget {
    /// The process.
    pub target: Proc,
    /// Set if the target does not read its stdin. Otherwise an earlier push to it is still in
    /// progress.
    pub stalled: bool,
}

/// The outcome of a push.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushReport {
    /// The number of bytes in the push.
    pub bytes: u64,
    /// The number of targets that received all bytes.
    pub complete: u64,
    /// The other targets. The list is truncated if it does not fit into one message.
    pub partial: Vec<PartialDelivery>,
}

/// A target that did not receive all bytes of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialDelivery {
    /// The process.
    pub target: Proc,
    /// The number of bytes that were written to its pipe. It may not have read all of them.
    pub delivered: u64,
    /// The reason why it received no more.
    pub cause: PartialCause,
}

/// The reason why a target did not receive all bytes of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartialCause {
    /// The target closed its stdin or exited.
    Closed,
    /// The target did not read, and the push was not to wait for it ([`PushDirectives::drop`]). Its
    /// stdin is closed now.
    CutOff,
    /// The engine ended first, or its launcher removed the job.
    Stopped,
    /// The engine could not write to the target. The text is the reason.
    Failed(String),
    /// The host that forwards its stdin has refused the bytes.
    Refused(Failure),
}

/// A rank of a node that did not take all bytes of a piece of stdin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UntakenStdin {
    /// The rank.
    pub rank: Rank,
    /// The number of bytes of the piece that it has.
    pub delivered: u64,
    /// The reason why it has no more.
    pub cause: PartialCause,
}

impl fmt::Display for PartialCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartialCause::Closed => f.pad("has closed its stdin or ended"),
            PartialCause::CutOff => f.pad("did not read and was cut off"),
            PartialCause::Stopped => f.pad("was closed by its launcher"),
            PartialCause::Failed(reason) => write!(f, "could not be written: {reason}"),
            PartialCause::Refused(failure) => write!(f, "could not be written: {failure}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::InfoValue;
    use crate::status::Status;

    #[test]
    fn by_default_a_push_waits_leaves_stdin_open_and_reaches_all_targets() {
        assert_eq!(PushDirectives::read(&[]).unwrap(), (PushDirectives::default(), vec![]));
        let PushDirectives { cache_size, complete, drop, partial } = PushDirectives::default();
        assert_eq!((cache_size, complete, drop, partial), (None, false, false, false));
    }

    #[test]
    fn the_last_value_of_a_repeated_key_counts() {
        let infos = [
            Info::new(key::PMIX_IOF_COMPLETE, true),
            Info::new(key::PMIX_IOF_DROP_NEWEST, false),
            Info::required(key::PMIX_IOF_CACHE_SIZE, 1u32),
            Info::new(key::IOF_PARTIAL, true),
            Info::required(key::PMIX_IOF_CACHE_SIZE, u64::from(u32::MAX)),
            Info::new(key::PMIX_IOF_COMPLETE, false),
            Info::new(key::PMIX_IOF_DROP_NEWEST, true),
        ];
        let (read, ignored) = PushDirectives::read(&infos).unwrap();
        let expected =
            PushDirectives { cache_size: Some(u32::MAX), complete: false, drop: true, partial: true };
        assert_eq!((read, ignored), (expected, vec![]));
    }

    #[test]
    fn unusable_directives_are_ignored_if_optional_and_refused_by_name_if_required() {
        let cases: [(&str, InfoValue, Status); 8] = [
            (key::PMIX_IOF_DROP_OLDEST, true.into(), Status::ERR_NOT_SUPPORTED),
            (key::PMIX_IOF_BUFFERING_TIME, 1u32.into(), Status::ERR_NOT_SUPPORTED),
            (key::PMIX_FWD_STDIN, true.into(), Status::ERR_NOT_SUPPORTED),
            ("pmix.unknown", true.into(), Status::ERR_NOT_SUPPORTED),
            ("unknown", true.into(), Status::ERR_NOT_SUPPORTED),
            (key::PMIX_IOF_CACHE_SIZE, 0u32.into(), Status::ERR_BAD_PARAM),
            (key::PMIX_IOF_CACHE_SIZE, (1u64 << 32).into(), Status::ERR_BAD_PARAM),
            (key::IOF_PARTIAL, InfoValue::Text("yes".into()), Status::ERR_BAD_PARAM),
        ];
        for (key, value, status) in cases {
            let (read, ignored) = PushDirectives::read(&[Info::new(key, value.clone())]).unwrap();
            assert_eq!((read, ignored), (PushDirectives::default(), vec![key.to_owned()]));
            let refused = PushDirectives::read(&[Info::required(key, value)]).unwrap_err();
            assert_eq!(refused.status, status, "{refused}");
            assert!(refused.reason.contains(key), "{refused}");
        }
    }

    #[test]
    fn push_stdin_is_accepted_as_a_bool_or_a_process() {
        let nspace = crate::names::Nspace::new("job").unwrap();
        let proc = InfoValue::Proc(Proc::new(nspace, crate::names::Rank(0)));
        for value in [true.into(), false.into(), proc] {
            let infos = [Info::required(key::PMIX_IOF_PUSH_STDIN, value)];
            assert_eq!(PushDirectives::read(&infos).unwrap(), (PushDirectives::default(), vec![]));
        }
    }
}
