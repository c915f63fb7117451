//! libpmix itself: a host and a tool in C (bench/c), built when they are needed.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::{Attach, Full, Launch, Missing, Stdin, System, Tools};
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
        }
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        built().as_ref().ok().map(|directory| directory.join(name))
    }

    /// The host, whose own tool is in this mode.
    fn host(&self, job: &Launch, mode: &str) -> Option<Command> {
        let mut command = Command::new(self.program("pmix_host")?);
        command.arg(job.site).args([job.ranks.to_string(), self.read.to_string()]);
        command.arg(self.program("pmix_tool")?).arg(mode).args(job.command);
        Some(command)
    }
}

/// The directory with the programs, which are built once; or why there are none.
fn built() -> &'static Result<PathBuf, Missing> {
    static BUILT: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> Result<PathBuf, Missing> {
    // It goes with all temporary files of the comparison.
    let directory = tempfile::tempdir().unwrap().keep();
    let flags = pkg_config(&["--cflags", "--libs"])?;
    for (name, source) in SOURCES {
        let file = directory.join(name).with_extension("c");
        fs::write(&file, source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).arg(directory.join(name)).arg(file);
        cc.args(flags.split_whitespace()).arg("-lpthread");
        let Output { status, stderr, .. } = cc.output().map_err(|_| Missing::until(INSTALL))?;
        if !status.success() {
            let why = format!("{name}.c does not compile here: {}", complaint(&stderr));
            return Err(Missing::LeftOut(why));
        }
    }
    Ok(directory)
}

/// What pkg-config says of libpmix.
fn pkg_config(args: &[&str]) -> Result<String, Missing> {
    let output =
        Command::new("pkg-config").args(args).arg("pmix").output().map_err(|_| Missing::until(INSTALL))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(Missing::until(INSTALL)),
    }
}

/// The line of what a compiler says that tells most: its first error, or its last words.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let error = text.lines().find(|line| line.contains("error:")).or(text.lines().last());
    error.unwrap_or_default().trim().to_owned()
}

impl System for Pmix {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> Result<String, Missing> {
        let version = pkg_config(&["--modversion"])?;
        built().as_ref().map_err(Missing::clone)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_quoted_with_its_first_error_or_else_its_last_words() {
        let gcc = b"x.c: In function 'main':\nx.c:3:5: error: 'a' undeclared\n    3 | a;\n      | ^\n";
        assert_eq!(complaint(gcc), "x.c:3:5: error: 'a' undeclared");
        assert_eq!(complaint(b"some words\nnot enough memory\n"), "not enough memory");
        assert_eq!(complaint(b""), "");
    }
}
