//! The infos of a call, which are taken by key.

use std::path::PathBuf;

use iof_proto::attribute::Place;
use iof_proto::attribute::key::*;
use iof_proto::rendezvous::{Search, Target};
use iof_proto::{Info, InfoValue, Proc, Rank, Status, attribute};

use crate::ffi::guard::{OrStatus, Outcome, or_failure};
use crate::ffi::read;

pub(crate) mod format;
pub(crate) mod init;
pub(crate) mod spec;

/// Infos. The methods remove those that they read.
pub(crate) struct Infos(pub Vec<Info>);

impl Infos {
    /// Removes the infos with this key, and returns the value of the last one.
    fn take(&mut self, key: &str) -> Option<InfoValue> {
        let index = self.0.iter().rposition(|info| info.key == key)?;
        let value = self.0.remove(index).value;
        self.0.retain(|info| info.key != key);
        Some(value)
    }

    pub(crate) fn flag(&mut self, key: &str) -> Outcome<Option<bool>> {
        self.take(key)
            .map(|value| if let InfoValue::Bool(flag) = value { Ok(flag) } else { mismatch(key, "a bool") })
            .transpose()
    }

    pub(crate) fn text(&mut self, key: &str) -> Outcome<Option<String>> {
        self.take(key)
            .map(|value| if let InfoValue::Text(text) = value { Ok(text) } else { mismatch(key, "a string") })
            .transpose()
    }

    pub(crate) fn number(&mut self, key: &str) -> Outcome<Option<u32>> {
        let small = |number| u32::try_from(number).or_else(|_| too_large(key, number));
        self.long_number(key)?.map(small).transpose()
    }

    pub(crate) fn long_number(&mut self, key: &str) -> Outcome<Option<u64>> {
        let number = |value| match value {
            InfoValue::Number(number) => Ok(number),
            _ => mismatch(key, "an integer"),
        };
        self.take(key).map(number).transpose()
    }

    /// Takes all ranks with this key, each given as a number or as a process.
    pub(crate) fn ranks(&mut self, key: &str) -> Outcome<Vec<Rank>> {
        let rank = |info: Info| match info.value {
            InfoValue::Number(number) => u32::try_from(number).map(Rank).or_else(|_| too_large(key, number)),
            InfoValue::Proc(proc) => Ok(proc.rank),
            _ => mismatch(key, "a rank or a process"),
        };
        self.0.extract_if(.., |info| info.key == key).map(rank).collect()
    }

    pub(crate) fn rank(&mut self, key: &str) -> Outcome<Option<Rank>> {
        Ok(self.ranks(key)?.pop())
    }

    /// Takes IOF_IOF_PUSH_STDIN. Its value may be the process that receives the bytes (RFC0025),
    /// which counts as true.
    pub(crate) fn push_stdin(&mut self) -> Outcome<Option<(bool, Option<Proc>)>> {
        match self.take(PMIX_IOF_PUSH_STDIN) {
            None => Ok(None),
            Some(InfoValue::Bool(flag)) => Ok(Some((flag, None))),
            Some(InfoValue::Proc(target)) => Ok(Some((true, Some(target)))),
            Some(_) => mismatch(PMIX_IOF_PUSH_STDIN, "a bool or a process"),
        }
    }

    /// Fails if one of the infos that remain, which no method has read, is required.
    pub(crate) fn done(self) -> Outcome<()> {
        let Some(info) = self.0.iter().find(|info| info.required) else { return Ok(()) };
        let reason = format!("{} is required, but not supported here", name(&info.key));
        Err(reason).or_status(Status::ERR_NOT_SUPPORTED)
    }

    /// Takes the way in which a tool finds its engine. If several are given, the first of these
    /// applies: path, pid, name of a job, system-level engine only, system-level engine first.
    pub(crate) fn search(&mut self) -> Outcome<Search> {
        let (uri, pid) = (self.text(PMIX_SERVER_URI)?, self.number(PMIX_SERVER_PIDINFO)?);
        let nspace = self.text(PMIX_SERVER_NSPACE)?;
        let (only_system, system_first) =
            (self.flag(PMIX_CONNECT_TO_SYSTEM)?, self.flag(PMIX_CONNECT_SYSTEM_FIRST)?);
        let target = if let Some(path) = uri {
            Target::Server(PathBuf::from(path))
        } else if let Some(pid) = pid {
            Target::Pid(pid)
        } else if let Some(name) = nspace {
            Target::Nspace(read::nspace(&name)?)
        } else if only_system == Some(true) {
            Target::System
        } else if system_first == Some(true) {
            Target::SystemFirst
        } else {
            Target::Any
        };
        let (session_directory, system_directory) =
            (self.path(PMIX_SERVER_TMPDIR)?, self.path(PMIX_SYSTEM_TMPDIR)?);
        Ok(Search { target, session_directory, system_directory })
    }

    pub(crate) fn proc(&mut self, key: &str) -> Outcome<Option<Proc>> {
        self.take(key)
            .map(
                |value| if let InfoValue::Proc(proc) = value { Ok(proc) } else { mismatch(key, "a process") },
            )
            .transpose()
    }

    /// Fails if one of the infos, also of those that are not required, has no effect at `places`.
    pub(crate) fn only(&self, places: &[Place]) -> Outcome<()> {
        attribute::unknown(&self.0, places).map_or(Ok(()), |failure| or_failure(Err(failure)))
    }

    pub(crate) fn path(&mut self, key: &str) -> Outcome<Option<PathBuf>> {
        Ok(self.text(key)?.map(PathBuf::from))
    }

    /// Takes a list of keys, separated by commas.
    pub(crate) fn keys(&mut self, key: &str) -> Outcome<Vec<String>> {
        let text = self.text(key)?.unwrap_or_default();
        Ok(text.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect())
    }
}

/// Returns whether a flag is among `infos`, and is true.
pub(crate) fn is_set(infos: &[Info], key: &str) -> bool {
    infos.iter().any(|info| info.key == key && info.value == InfoValue::Bool(true))
}

/// Fails, because the value of an info has another type than `expected`.
fn mismatch<T>(key: &str, expected: &str) -> Outcome<T> {
    Err(format!("{} has a value of another type: give {expected}", name(key)))
        .or_status(Status::ERR_TYPE_MISMATCH)
}

/// Fails, because a number is too large.
fn too_large<T>(key: &str, number: u64) -> Outcome<T> {
    Err(format!("{} is {number}: give at most {}", name(key), u32::MAX)).or_status(Status::ERR_BAD_PARAM)
}

/// Returns the name of the attribute with this key.
fn name(key: &str) -> &str {
    attribute::find(key).map_or(key, |attribute| attribute.name)
}

#[cfg(test)]
pub(crate) fn infos(entries: &[(&str, InfoValue)]) -> Vec<Info> {
    let info = |(key, value): &(&str, InfoValue)| Info { value: value.clone(), ..Info::required(*key, true) };
    entries.iter().map(info).collect()
}
