//! libpmix itself: a host and a tool in C (bench/c), built when they are needed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::{Attach, Full, Launch, Stdin, System, Tools};
use crate::bare;

const SOURCES: [(&str, &str); 2] = [
    ("pmix_host", include_str!("../../../c/pmix_host.c")),
    ("pmix_tool", include_str!("../../../c/pmix_tool.c")),
];
const INSTALL: &str = "apt install libpmix-dev pkg-config gcc";

/// The Debian package, used in one of two ways.
pub struct Pmix {
    name: &'static str,
    way: &'static str,
    /// Bytes that the host reads at once.
    read: usize,
    /// Ranks for which it is tried.
    most: u32,
    /// Modes of the host's own tool.
    pull: &'static str,
    push: &'static str,
    push_all: Option<&'static str>,
    built: OnceLock<Option<TempDir>>,
}

impl Pmix {
    /// As it does best.
    pub fn at_its_best() -> Pmix {
        Pmix {
            name: "libpmix",
            way: "a host that reads 64 KiB, a tool that writes in its callback and pushes without waiting",
            read: 64 * 1024,
            most: u32::MAX,
            pull: "pull",
            push: "push-one",
            push_all: Some("push-all"),
            built: OnceLock::new(),
        }
    }

    /// As PRRTE reads, and with all that the library offers to do itself.
    pub fn by_itself() -> Pmix {
        Pmix {
            name: "libpmix, by itself",
            way: "a host that reads 4 KiB, a tool that leaves writing and waiting to the library",
            read: 4 * 1024,
            // What it costs grows with the ranks: 14 s/GB for 8, 87 for 64, 211 for 256.
            most: 8,
            pull: "pull-local",
            push: "push-blocking",
            push_all: None,
            built: OnceLock::new(),
        }
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        self.built.get_or_init(build).as_ref().map(|directory| directory.path().join(name))
    }

    /// The host, whose own tool is in this mode.
    fn host(&self, job: &Launch, mode: &str) -> Option<Command> {
        let mut command = Command::new(self.program("pmix_host")?);
        command.arg(job.site).args([job.ranks.to_string(), self.read.to_string()]);
        command.arg(self.program("pmix_tool")?).arg(mode).args(job.command);
        Some(command)
    }
}

/// The programs in a directory of theirs.
fn build() -> Option<TempDir> {
    let directory = tempfile::tempdir().ok()?;
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "pmix"]).output().ok()?;
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    for (name, source) in SOURCES {
        let file = directory.path().join(name).with_extension("c");
        fs::write(&file, source).ok()?;
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).arg(directory.path().join(name)).arg(file);
        let built = cc.args(flags.split_whitespace()).arg("-lpthread").status().ok()?;
        built.success().then_some(())?;
    }
    Some(directory)
}

impl System for Pmix {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> Result<String, &'static str> {
        let output =
            Command::new("pkg-config").args(["--modversion", "pmix"]).output().map_err(|_| INSTALL)?;
        if !output.status.success() || self.program("pmix_host").is_none() {
            return Err(INSTALL);
        }
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(format!("OpenPMIx {version}: {}", self.way))
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.full != Full::Wait || job.tagged || job.ranks > self.most {
            return None;
        }
        let mode = match job.stdin {
            // The first tool that pulls takes all that was kept.
            Stdin::None if job.tools == Tools::Late => "-",
            Stdin::None => self.pull,
            Stdin::Rank0 => self.push,
            Stdin::All => self.push_all?,
        };
        self.host(job, mode)
    }

    fn tool(&self, attach: &Attach) -> Option<Command> {
        let mut command = Command::new(self.program("pmix_tool")?);
        command.arg(attach.site).arg(attach.launcher.to_string()).arg(self.pull);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare::RANK
    }
}
