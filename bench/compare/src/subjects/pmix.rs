//! libpmix: a host and a tool in C (bench/c), which are built on first use.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::{FullPolicy, Launch, StdinTarget, Subject, ToolLaunch, ToolTiming, Unavailable};
use crate::bare_launcher;

const SOURCES: [(&str, &str); 2] =
    [("pmix_host", include_str!("../../c/pmix_host.c")), ("pmix_tool", include_str!("../../c/pmix_tool.c"))];
const INSTALL: &str = "apt install libpmix-dev pkg-config gcc";

/// libpmix as Debian packages it, used in one of two ways.
pub struct Pmix {
    name: &'static str,
    description: &'static str,
    /// The size of the host's reads, in bytes.
    read: usize,
    /// The largest number of ranks to run.
    max_ranks: u32,
    /// The modes of the tool.
    pull: &'static str,
    push: &'static str,
    push_all: Option<&'static str>,
}

impl Pmix {
    /// Returns the library at its best: large reads, and a tool that does its own writing and
    /// waiting.
    pub fn tuned() -> Pmix {
        Pmix {
            name: "libpmix",
            description: "a host that reads 64 KiB, a tool that writes in its callback and pushes without waiting",
            read: 64 * 1024,
            max_ranks: u32::MAX,
            pull: "pull",
            push: "push-one",
            push_all: Some("push-all"),
        }
    }

    /// Returns the library with small reads, as in PRRTE, and with a tool that leaves writing and
    /// waiting to the library.
    pub fn untuned() -> Pmix {
        Pmix {
            name: "libpmix, by itself",
            description: "a host that reads 4 KiB, a tool that leaves writing and waiting to the library",
            read: 4 * 1024,
            // The cost grows with the number of ranks: 14 s/GB for 8, 87 for 64, 211 for 256.
            max_ranks: 8,
            pull: "pull-local",
            push: "push-blocking",
            push_all: None,
        }
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        built().as_ref().ok().map(|directory| directory.join(name))
    }

    /// Returns the command of the host, which starts its own tool in `mode`.
    fn host(&self, job: &Launch, mode: &str) -> Option<Command> {
        let mut command = Command::new(self.program("pmix_host")?);
        command.arg(job.directory).args([job.ranks.to_string(), self.read.to_string()]);
        command.arg(self.program("pmix_tool")?).arg(mode).args(job.command);
        Some(command)
    }
}

/// Returns the directory with the programs, which are built once, or the reason why they could not
/// be built.
fn built() -> &'static Result<PathBuf, Unavailable> {
    static BUILT: OnceLock<Result<PathBuf, Unavailable>> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> Result<PathBuf, Unavailable> {
    // The directory is removed with all temporary files of the comparison.
    let directory = tempfile::tempdir().unwrap().keep();
    let flags = pkg_config(&["--cflags", "--libs"])?;
    for (name, source) in SOURCES {
        let file = directory.join(name).with_extension("c");
        fs::write(&file, source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).arg(directory.join(name)).arg(file);
        cc.args(flags.split_whitespace()).arg("-lpthread");
        let Output { status, stderr, .. } = cc.output().map_err(|_| Unavailable::not_installed(INSTALL))?;
        if !status.success() {
            let why = format!("{name}.c does not compile here: {}", first_error(&stderr));
            return Err(Unavailable::Optional(why));
        }
    }
    Ok(directory)
}

/// Returns the output of pkg-config for libpmix.
fn pkg_config(args: &[&str]) -> Result<String, Unavailable> {
    let output = Command::new("pkg-config")
        .args(args)
        .arg("pmix")
        .output()
        .map_err(|_| Unavailable::not_installed(INSTALL))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(Unavailable::not_installed(INSTALL)),
    }
}

/// Returns the most useful line of a compiler's stderr: its first error, or its last line.
fn first_error(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let error = text.lines().find(|line| line.contains("error:")).or(text.lines().last());
    error.unwrap_or_default().trim().to_owned()
}

impl Subject for Pmix {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> Result<String, Unavailable> {
        let version = pkg_config(&["--modversion"])?;
        built().as_ref().map_err(Unavailable::clone)?;
        Ok(format!("OpenPMIx {version}: {}", self.description))
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        if job.full != FullPolicy::Wait || job.tagged || job.ranks > self.max_ranks {
            return None;
        }
        let mode = match job.stdin {
            // The first tool that pulls gets the whole backlog, so the host must not start one.
            StdinTarget::None if job.tools == ToolTiming::Late => "-",
            StdinTarget::None => self.pull,
            StdinTarget::Rank0 => self.push,
            StdinTarget::All => self.push_all?,
        };
        self.host(job, mode)
    }

    fn tool(&self, launch: &ToolLaunch) -> Option<Command> {
        let mut command = Command::new(self.program("pmix_tool")?);
        command.arg(launch.directory).arg(launch.launcher.to_string()).arg(self.pull);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        bare_launcher::RANK_VARIABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_quoted_with_its_first_error_or_else_its_last_line() {
        let gcc = b"x.c: In function 'main':\nx.c:3:5: error: 'a' undeclared\n    3 | a;\n      | ^\n";
        assert_eq!(first_error(gcc), "x.c:3:5: error: 'a' undeclared");
        assert_eq!(first_error(b"some words\nnot enough memory\n"), "not enough memory");
        assert_eq!(first_error(b""), "");
    }
}
