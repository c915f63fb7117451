//! The names of what engines leave in a directory. None begins with `pmix.`, see the module above.

use std::ffi::OsStr;
use std::io;

use nix::unistd::gethostname;

use crate::names::Nspace;

/// The names on one host: a directory may be shared by several.
#[derive(Debug, Clone)]
pub(super) struct Names {
    host: String,
}

impl Names {
    pub(super) fn of_this_host() -> io::Result<Names> {
        Ok(Names { host: gethostname()?.to_string_lossy().into_owned() })
    }

    /// The socket of the session-level engine with this pid.
    pub(super) fn session(&self, pid: u32) -> String {
        format!("iof.{}.tool.{pid}", self.host)
    }

    /// The socket of the system-level engine.
    pub(super) fn system(&self) -> String {
        format!("iof.sys.{}", self.host)
    }

    /// The link to the socket of the session-level engine that has this job. Two engines may each
    /// have a job of that name.
    pub(super) fn entry(&self, pid: u32, nspace: &Nspace) -> String {
        format!("iof.{}.nspace.{pid}.{nspace}", self.host)
    }

    /// A socket that is not ready yet. Only who holds the directory's lock makes one.
    pub(super) fn unready(&self) -> String {
        format!(".iof.{}.new", self.host)
    }

    /// The pid in `name`, if this is exactly one that [`Names::session`] makes.
    pub(super) fn session_pid(&self, name: &OsStr) -> Option<u32> {
        let name = name.to_str()?;
        let (_, digits) = name.rsplit_once('.')?;
        let pid = digits.parse().ok()?;
        (self.session(pid) == name).then_some(pid)
    }

    /// The pid and the job in `name`, if this is exactly one that [`Names::entry`] makes.
    pub(super) fn entry_parts(&self, name: &OsStr) -> Option<(u32, Nspace)> {
        let name = name.to_str()?;
        let (digits, nspace) = name.strip_prefix(&format!("iof.{}.nspace.", self.host))?.split_once('.')?;
        let (pid, nspace) = (digits.parse().ok()?, Nspace::new(nspace).ok()?);
        (self.entry(pid, &nspace) == name).then_some((pid, nspace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names { host: "node.1".into() }
    }

    #[test]
    fn only_names_that_an_engine_makes_are_read() {
        let names = names();
        assert_eq!(names.session_pid(names.session(17).as_ref()), Some(17));
        for other in ["iof.node.1.tool.+1", "iof.node.1.tool.01", "iof.node.1.tool.", "iof.node.2.tool.1"] {
            assert_eq!(names.session_pid(other.as_ref()), None, "{other}");
        }
        let nspace = Nspace::new("a.b.1").unwrap();
        assert_eq!(names.entry_parts(names.entry(17, &nspace).as_ref()), Some((17, nspace)));
        for other in ["iof.node.1.nspace.17", "iof.node.1.nspace.17.", "iof.node.1.nspace.017.a"] {
            assert_eq!(names.entry_parts(other.as_ref()), None, "{other}");
        }
    }

    #[test]
    fn no_name_is_one_that_a_pmix_library_looks_for() {
        let names = names();
        let nspace = Nspace::new("pmix.sys.node.1").unwrap();
        for ours in [names.session(1), names.system(), names.entry(1, &nspace), names.unready()] {
            assert!(!ours.starts_with("pmix."), "{ours}");
        }
    }
}
