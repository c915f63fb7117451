//! The names of the files that engines create in a directory. None begins with `pmix.` (see the
//! parent module).

use std::ffi::OsStr;
use std::io;

use nix::unistd::gethostname;

use super::Level;
use crate::names::Nspace;

/// The file names of the engines on one host. They contain the host's name because hosts may share
/// a directory.
#[derive(Debug, Clone)]
pub(super) struct FileNames {
    host: String,
}

impl FileNames {
    pub(super) fn of_this_host() -> io::Result<FileNames> {
        Ok(FileNames { host: gethostname()?.to_string_lossy().into_owned() })
    }

    /// Returns the name of the socket of the session-level engine with this pid.
    pub(super) fn session(&self, pid: u32) -> String {
        format!("iof.{}.tool.{pid}", self.host)
    }

    /// Returns the name of the socket of the agent with this pid.
    pub(super) fn agent(&self, pid: u32) -> String {
        format!("iof.{}.agent.{pid}", self.host)
    }

    /// Returns the name of the socket at which carriers reach the agent with this pid.
    pub(super) fn link(&self, pid: u32) -> String {
        format!("iof.{}.link.{pid}", self.host)
    }

    /// Returns the name of the socket of this level with this pid.
    pub(super) fn socket(&self, level: Level, pid: u32) -> String {
        match level {
            Level::Session => self.session(pid),
            Level::Agent => self.agent(pid),
            Level::Link => self.link(pid),
            Level::System => self.system(),
        }
    }

    /// Returns the name of the socket of the system-level engine.
    pub(super) fn system(&self) -> String {
        format!("iof.sys.{}", self.host)
    }

    /// Returns the name of the link from a job to the socket of its engine. The name contains the
    /// pid because two engines may each have a job of the same name.
    pub(super) fn job_link(&self, pid: u32, nspace: &Nspace) -> String {
        format!("iof.{}.nspace.{pid}.{nspace}", self.host)
    }

    /// Returns the name of a socket before it listens. Only the holder of the directory's lock
    /// creates such a socket.
    pub(super) fn temporary(&self) -> String {
        format!(".iof.{}.new", self.host)
    }

    /// Returns the pid in `name` and its level, if [`FileNames::socket`] returns exactly this name
    /// for them, and `None` for the system level, whose name has no pid.
    pub(super) fn socket_parts(&self, name: &OsStr) -> Option<(u32, Level)> {
        let name = name.to_str()?;
        let (_, digits) = name.rsplit_once('.')?;
        let pid = digits.parse().ok()?;
        let level = Level::WITH_PID.into_iter().find(|level| self.socket(*level, pid) == name);
        Some((pid, level?))
    }

    /// Returns the pid and the job in `name` if [`FileNames::job_link`] returns exactly this name
    /// for them.
    pub(super) fn job_link_parts(&self, name: &OsStr) -> Option<(u32, Nspace)> {
        let name = name.to_str()?;
        let (digits, nspace) = name.strip_prefix(&format!("iof.{}.nspace.", self.host))?.split_once('.')?;
        let (pid, nspace) = (digits.parse().ok()?, Nspace::new(nspace).ok()?);
        (self.job_link(pid, &nspace) == name).then_some((pid, nspace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> FileNames {
        FileNames { host: "node.1".into() }
    }

    #[test]
    fn only_exact_names_of_engine_files_are_parsed() {
        let names = names();
        for level in Level::WITH_PID {
            assert_eq!(names.socket_parts(names.socket(level, 17).as_ref()), Some((17, level)));
        }
        for other in ["iof.node.1.tool.+1", "iof.node.1.tool.01", "iof.node.1.agent.", "iof.node.2.agent.1"] {
            assert_eq!(names.socket_parts(other.as_ref()), None, "{other}");
        }
        let nspace = Nspace::new("a.b.1").unwrap();
        assert_eq!(names.job_link_parts(names.job_link(17, &nspace).as_ref()), Some((17, nspace)));
        for other in ["iof.node.1.nspace.17", "iof.node.1.nspace.17.", "iof.node.1.nspace.017.a"] {
            assert_eq!(names.job_link_parts(other.as_ref()), None, "{other}");
        }
    }

    #[test]
    fn no_name_matches_the_search_patterns_of_pmix_libraries() {
        let names = names();
        let nspace = Nspace::new("pmix.sys.node.1").unwrap();
        let sockets = Level::WITH_PID.map(|level| names.socket(level, 1));
        let others = [names.system(), names.job_link(1, &nspace), names.temporary()];
        for name in sockets.into_iter().chain(others) {
            assert!(!name.starts_with("pmix."), "{name}");
        }
    }
}
