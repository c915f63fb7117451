//! The subjects of the comparison: launchers and minimal baselines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

mod iof;
mod limits;
mod mpich;
mod open_mpi;
mod parallel;
mod pmix;

pub use limits::BARE;

/// A subject of the comparison, which runs ranks and forwards their output.
pub trait Subject {
    /// Returns the name for the tables.
    fn name(&self) -> &'static str;

    /// Returns the installed version.
    ///
    /// # Errors
    /// The subject is not available.
    fn version(&self) -> Result<String, Unavailable>;

    /// Returns the command that runs the job and forwards its output to the command's stdout.
    /// Returns `None` if the subject does not support the job.
    fn launch(&self, job: &Launch) -> Option<Command>;

    /// Returns the command of a tool that attaches to a job of this subject and writes all its
    /// output to stdout. Returns `None` if the subject has no tools.
    fn tool(&self, _: &ToolLaunch) -> Option<Command> {
        None
    }

    /// Returns the environment variable with a rank's number.
    fn rank_variable(&self) -> &'static str;

    /// Returns the tag before the lines of a rank in tagged output.
    fn tag(&self, _: u32) -> String {
        String::new()
    }
}

/// The reason why a subject is not available.
#[derive(Clone, Debug)]
pub enum Unavailable {
    /// The comparison runs without the subject.
    Optional(String),
    /// The comparison needs the subject.
    Required(String),
}

impl Unavailable {
    /// Returns the reason for a subject that the command `install` would install.
    fn not_installed(install: &str) -> Unavailable {
        Unavailable::Optional(format!("not installed: {install}"))
    }
}

/// The description of a job for a subject.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// A directory for the files of the job.
    pub directory: &'a Path,
    /// The number of ranks.
    pub ranks: u32,
    /// The command of each rank.
    pub command: &'a [String],
    /// Tag each line with its rank.
    pub tagged: bool,
    /// The ranks that get the launcher's stdin.
    pub stdin: StdinTarget,
    /// The treatment of bytes for which the launcher's stdout has no room.
    pub full: FullPolicy,
    /// The tools that attach to the job.
    pub tools: ToolTiming,
}

impl<'a> Launch<'a> {
    /// Describes a job without stdin and tools, in which nothing is tagged or dropped.
    pub fn new(directory: &'a Path, ranks: u32, command: &'a [String]) -> Launch<'a> {
        Launch {
            directory,
            ranks,
            command,
            tagged: false,
            stdin: StdinTarget::None,
            full: FullPolicy::Wait,
            tools: ToolTiming::None,
        }
    }
}

/// The ranks that get the launcher's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdinTarget {
    None,
    Rank0,
    All,
}

/// The treatment of bytes for which the launcher's stdout has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullPolicy {
    /// The bytes or their ranks wait.
    Wait,
    /// The new bytes are dropped.
    DropNewest,
    /// The oldest bytes are dropped.
    DropOldest,
}

/// The number of tools that attach to a job, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolTiming {
    None,
    /// This many, before the ranks start to write.
    Early(u32),
    /// One, after the ranks have written.
    Late,
}

/// The job to which a tool attaches.
pub struct ToolLaunch<'a> {
    /// The directory for the files of the job.
    pub directory: &'a Path,
    /// The pid of the launcher.
    pub launcher: u32,
    /// The number of the tool, from 0 on. `None` for a late tool.
    pub number: Option<u32>,
}

/// Returns the file with the launcher's output, which late tools read that do not ask the launcher.
pub fn cache(directory: &Path) -> PathBuf {
    directory.join("cache")
}

/// Returns all subjects, in the order of the tables.
pub fn all() -> Vec<Box<dyn Subject>> {
    vec![
        Box::new(limits::Bare),
        Box::new(limits::Cat),
        Box::new(limits::Tee),
        Box::new(iof::Iof),
        Box::new(open_mpi::OpenMpi),
        Box::new(mpich::Mpich),
        Box::new(pmix::Pmix::tuned()),
        Box::new(pmix::Pmix::untuned()),
        Box::new(parallel::Parallel),
    ]
}

/// Returns the path of a program in this program's directory.
fn sibling_program(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

/// Returns the first of `programs` whose version output contains `expected`, with that output.
fn find_program(programs: &[&'static str], expected: &str) -> Option<(&'static str, String)> {
    let mut outputs = programs.iter().filter_map(|program| Some((*program, version_output(program)?)));
    outputs.find(|(_, text)| text.contains(expected))
}

/// Returns the output of `program --version`, which runs once only. Returns `None` if the program
/// can't be started.
fn version_output(program: &'static str) -> Option<String> {
    static SAID: Mutex<BTreeMap<&str, Option<String>>> = Mutex::new(BTreeMap::new());
    let ask = || {
        let Output { stdout, .. } = Command::new(program).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&stdout).into_owned())
    };
    SAID.lock().unwrap().entry(program).or_insert_with(ask).clone()
}

/// Returns the word that follows `before` in a text.
fn word_after(text: &str, before: &str) -> String {
    let rest = text.split_once(before).map_or("", |(_, rest)| rest);
    rest.split_whitespace().next().unwrap_or("of unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_launchers_print() {
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
        assert_eq!(word_after(hydra, "Version:"), "4.0.2");
        assert_eq!(word_after("mpirun (Open MPI) 4.1.4\n\nReport", "(Open MPI)"), "4.1.4");
        assert_eq!(word_after("something else", "Version:"), "of unknown version");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = all().iter().map(|subject| subject.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
