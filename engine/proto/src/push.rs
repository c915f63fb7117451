//! Pushes of stdin (`PMIx_IOF_push`, RFC0025): their directives, progress and reports.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::directive::{Info, Unfit, key, number_within, truth};
use crate::message::Failure;
use crate::names::Proc;

/// The typed directives of a push.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PushDirectives {
    /// `PMIX_IOF_CACHE_SIZE`: the bytes that may be in flight, at least 1.
    pub cache_size: Option<u32>,
    /// `PMIX_IOF_COMPLETE`: the targets' stdin ends after the last byte. Otherwise it stays open
    /// for the next push.
    pub complete: bool,
    /// `PMIX_IOF_DROP_NEWEST`: a target that does not read is cut off. Otherwise the push waits for
    /// it.
    pub drop: bool,
    /// [`IOF_PARTIAL`](key::IOF_PARTIAL): targets whose stdin is not open are left out. Otherwise
    /// they are an error.
    pub partial: bool,
}

impl PushDirectives {
    /// Reads `infos`. Also returns the keys of the optional ones that can't be honoured, which are
    /// ignored. `PMIX_IOF_PUSH_STDIN` concerns only the tool that collects the bytes, and has
    /// no meaning here.
    ///
    /// # Errors
    /// A required directive can't be honoured.
    ///
    /// ```
    /// use iof_proto::PushDirectives;
    /// use iof_proto::directive::{Info, key};
    /// let infos = [Info::required(key::PMIX_IOF_COMPLETE, true), Info::new(key::PMIX_IOF_DROP_OLDEST, true)];
    /// let (directives, ignored) = PushDirectives::read(&infos)?;
    /// assert!(directives.complete && !directives.drop);
    /// assert_eq!(ignored, [key::PMIX_IOF_DROP_OLDEST]);
    /// # Ok::<(), iof_proto::Failure>(())
    /// ```
    pub fn read(infos: &[Info]) -> Result<(PushDirectives, Vec<String>), Failure> {
        let mut read = PushDirectives::default();
        let mut ignored = Vec::new();
        for info in infos {
            match read.take(info) {
                Ok(()) => {}
                Err(unfit) if info.required => return Err(unfit.refusal(&info.key)),
                Err(_) => ignored.push(info.key.clone()),
            }
        }
        Ok((read, ignored))
    }

    fn take(&mut self, Info { key, value, .. }: &Info) -> Result<(), Unfit> {
        match key.as_str() {
            key::PMIX_IOF_CACHE_SIZE => self.cache_size = Some(number_within(value, 1)?),
            key::PMIX_IOF_COMPLETE => self.complete = truth(value)?,
            key::PMIX_IOF_DROP_NEWEST => self.drop = truth(value)?,
            key::IOF_PARTIAL => self.partial = truth(value)?,
            key::PMIX_IOF_PUSH_STDIN => {}
            // A process can't be given later bytes in place of earlier ones.
            _ if key.starts_with("pmix.") => return Err(Unfit::WrongLevel),
            _ => return Err(Unfit::Unknown),
        }
        Ok(())
    }
}

/// A push that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushGranted {
    /// The number of the push, 1 or more.
    pub push: u32,
    /// The targets that are left out, with the reason (at most 4,096): only with
    /// [`IOF_PARTIAL`](crate::directive::key::IOF_PARTIAL).
    pub skipped: Vec<Skipped>,
    /// The keys of optional directives that could not be honoured.
    pub ignored: Vec<String>,
}

/// A process whose stdin can't be pushed into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The process.
    pub target: Proc,
    /// The reason.
    pub reason: StdinUnavailable,
}

/// The reason why a process's stdin can't be pushed into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StdinUnavailable {
    /// Its stdin was not left open: it is /dev/null, a file, or a terminal.
    NotOpen,
    /// It inherits the stdin of its launcher.
    Inherited,
    /// It has closed its stdin or exited, or the end was pushed already.
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
            StdinUnavailable::Elsewhere => "runs elsewhere, where no stdin is forwarded",
        })
    }
}

/// The targets that hold a push back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowTargets {
    /// The number of bytes that all targets have taken.
    pub position: u64,
    /// The targets that have taken no more than that, though more bytes are available.
    pub targets: Vec<SlowTarget>,
}

/// A target that holds a push back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowTarget {
    /// The process.
    pub target: Proc,
    /// Whether it does not read. Otherwise an earlier push to it is not over.
    pub stalled: bool,
}

/// The outcome of a push.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushReport {
    /// The number of bytes that were pushed.
    pub bytes: u64,
    /// The number of targets that got all bytes.
    pub complete: u64,
    /// The other targets, as many as one message holds.
    pub partial: Vec<PartialDelivery>,
}

/// A target that did not get all of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialDelivery {
    /// The process.
    pub target: Proc,
    /// The number of bytes that were written to its pipe. It may not have read all of them.
    pub delivered: u64,
    /// The reason why it got no more.
    pub cause: PartialCause,
}

/// The reason why a target did not get all of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartialCause {
    /// It closed its stdin or exited.
    Closed,
    /// It did not read, and the push was not to wait for it. Its stdin is closed now.
    CutOff,
    /// The launcher or the engine ended first.
    Stopped,
    /// The engine could not write to it, or the host that forwards its stdin refused.
    Failed(String),
}

impl fmt::Display for PartialCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartialCause::Closed => f.pad("has closed its stdin or ended"),
            PartialCause::CutOff => f.pad("did not read and was cut off"),
            PartialCause::Stopped => f.pad("was closed by its launcher"),
            PartialCause::Failed(why) => write!(f, "could not be written: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directive::InfoValue;
    use crate::status::Status;

    #[test]
    fn nothing_said_is_a_push_that_waits_leaves_open_and_is_whole() {
        assert_eq!(PushDirectives::read(&[]).unwrap(), (PushDirectives::default(), vec![]));
        let PushDirectives { cache_size, complete, drop, partial } = PushDirectives::default();
        assert_eq!((cache_size, complete, drop, partial), (None, false, false, false));
    }

    #[test]
    fn the_last_of_several_counts_and_no_takes_yes_back() {
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
    fn what_cannot_be_honoured_is_ignored_or_an_error_that_names_it() {
        let cases: [(&str, InfoValue, Status); 8] = [
            (key::PMIX_IOF_DROP_OLDEST, true.into(), Status::ERR_NOT_SUPPORTED),
            (key::PMIX_IOF_BUFFERING_TIME, 1u32.into(), Status::ERR_NOT_SUPPORTED),
            (key::PMIX_FWD_STDIN, true.into(), Status::ERR_NOT_SUPPORTED),
            ("pmix.nobody.knows", true.into(), Status::ERR_NOT_SUPPORTED),
            ("nobody.knows", true.into(), Status::ERR_NOT_SUPPORTED),
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
    fn who_collects_the_bytes_is_taken_in_any_form() {
        let nspace = crate::names::Nspace::new("job").unwrap();
        let proc = InfoValue::Proc(Proc { nspace, rank: crate::names::Rank(0) });
        for value in [true.into(), false.into(), proc] {
            let infos = [Info::required(key::PMIX_IOF_PUSH_STDIN, value)];
            assert_eq!(PushDirectives::read(&infos).unwrap(), (PushDirectives::default(), vec![]));
        }
    }
}
