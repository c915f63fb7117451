//! The infos of `iof_tool_init` and `iof_server_init`. A key has the same meaning in both.

use std::path::PathBuf;

use iof_proto::rendezvous::{Search, Target};
use iof_proto::{Info, InfoValue, Rank};

use crate::constants::*;
use crate::guard::Outcome;
use crate::keys::*;
use crate::read;

/// Infos. The methods remove those that they read.
pub(crate) struct Infos(pub Vec<Info>);

impl Infos {
    fn take(&mut self, key: &str) -> Option<InfoValue> {
        let index = self.0.iter().rposition(|info| info.key == key)?;
        let value = self.0.remove(index).value;
        self.0.retain(|info| info.key != key);
        Some(value)
    }

    pub(crate) fn flag(&mut self, key: &str) -> Outcome<Option<bool>> {
        self.take(key)
            .map(|value| if let InfoValue::Bool(flag) = value { Ok(flag) } else { mismatch() })
            .transpose()
    }

    pub(crate) fn text(&mut self, key: &str) -> Outcome<Option<String>> {
        self.take(key)
            .map(|value| if let InfoValue::Text(text) = value { Ok(text) } else { mismatch() })
            .transpose()
    }

    pub(crate) fn number(&mut self, key: &str) -> Outcome<Option<u32>> {
        let number = |value| match value {
            InfoValue::Number(number) => u32::try_from(number).map_err(|_| IOF_ERR_BAD_PARAM),
            _ => mismatch(),
        };
        self.take(key).map(number).transpose()
    }

    /// Takes a rank, given as a number or as a process.
    pub(crate) fn rank(&mut self, key: &str) -> Outcome<Option<Rank>> {
        let rank = |value| match value {
            InfoValue::Number(number) => u32::try_from(number).map(Rank).map_err(|_| IOF_ERR_BAD_PARAM),
            InfoValue::Proc(proc) => Ok(proc.rank),
            _ => mismatch(),
        };
        self.take(key).map(rank).transpose()
    }

    /// Fails if one of the infos that remain, which no method has read, is required.
    pub(crate) fn done(self) -> Outcome<()> {
        if self.0.iter().any(|info| info.required) { Err(IOF_ERR_NOT_SUPPORTED) } else { Ok(()) }
    }

    /// Takes the way in which a tool finds its engine. If several are given, the first of these
    /// applies: path, pid, name of a job, system-level engine only, system-level engine first.
    pub(crate) fn search(&mut self) -> Outcome<Search> {
        let (uri, pid) = (self.text(IOF_SERVER_URI)?, self.number(IOF_SERVER_PIDINFO)?);
        let nspace = self.text(IOF_SERVER_NSPACE)?;
        let (only_system, system_first) =
            (self.flag(IOF_CONNECT_TO_SYSTEM)?, self.flag(IOF_CONNECT_SYSTEM_FIRST)?);
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
        Ok(Search { target, directory: self.directory()? })
    }

    /// Takes the directory of the sockets.
    pub(crate) fn directory(&mut self) -> Outcome<Option<PathBuf>> {
        let (session, system) = (self.text(IOF_SERVER_TMPDIR)?, self.text(IOF_SYSTEM_TMPDIR)?);
        Ok(session.or(system).map(PathBuf::from))
    }
}

fn mismatch<T>() -> Outcome<T> {
    Err(IOF_ERR_TYPE_MISMATCH)
}
