//! What is compared: launchers, and the least that does the same.

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

/// A way to run ranks and have what they write.
pub trait System {
    /// What the tables call it.
    fn name(&self) -> &'static str;

    /// What is installed.
    fn version(&self) -> Result<String, Missing>;

    /// How it runs the job, whose output then comes to the launcher's stdout; none if it can't.
    fn launch(&self, job: &Launch) -> Option<Command>;

    /// How a tool attaches to a job that it launched, and gets all its output; none if it can't.
    fn tool(&self, _: &Attach) -> Option<Command> {
        None
    }

    /// The environment variable that has a rank's number.
    fn rank_variable(&self) -> &'static str;

    /// What it writes before a line of a rank when that is asked for.
    fn tag(&self, _: u32) -> String {
        String::new()
    }
}

/// Why a system can't be compared.
#[derive(Clone, Debug)]
pub enum Missing {
    /// The others can without it.
    LeftOut(String),
    /// Without it there is nothing to compare.
    Needed(String),
}

impl Missing {
    /// It is left out until this command is run.
    fn until(install: &str) -> Missing {
        Missing::LeftOut(format!("not installed: {install}"))
    }
}

/// A job to be run.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// A directory for what belongs to the job.
    pub site: &'a Path,
    /// Ranks.
    pub ranks: u32,
    /// What each runs.
    pub command: &'a [String],
    /// Whether lines say of which rank they are.
    pub tagged: bool,
    /// Who gets the launcher's stdin.
    pub stdin: Stdin,
    /// What becomes of bytes for which the launcher's stdout has no room.
    pub full: Full,
    /// Tools that attach besides.
    pub tools: Tools,
}

impl<'a> Launch<'a> {
    /// A job that has no stdin and no tools, in which nothing is tagged or dropped.
    pub fn new(site: &'a Path, ranks: u32, command: &'a [String]) -> Launch<'a> {
        Launch {
            site,
            ranks,
            command,
            tagged: false,
            stdin: Stdin::None,
            full: Full::Wait,
            tools: Tools::None,
        }
    }
}

/// Who gets the launcher's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    None,
    Rank0,
    All,
}

/// What becomes of bytes for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// They wait, or their ranks do.
    Wait,
    /// They are dropped.
    DropNewest,
    /// The oldest are dropped for them.
    DropOldest,
}

/// Tools that attach to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    None,
    /// So many before the ranks begin.
    Early(u32),
    /// One when the ranks have written.
    Late,
}

/// How a tool finds its job.
pub struct Attach<'a> {
    /// The directory for what belongs to the job.
    pub site: &'a Path,
    /// The launcher.
    pub launcher: u32,
    /// Which of the job's tools it is, from 0 on; none if it comes when the ranks have written.
    pub number: Option<u32>,
}

/// The file to which launchers write what tools that come late then read, if they do not ask the launcher.
pub fn cache(site: &Path) -> PathBuf {
    site.join("cache")
}

/// All that there are.
pub fn all() -> Vec<Box<dyn System>> {
    vec![
        Box::new(limits::Bare),
        Box::new(limits::Cat),
        Box::new(limits::Tee),
        Box::new(iof::Iof),
        Box::new(open_mpi::OpenMpi),
        Box::new(mpich::Mpich),
        Box::new(pmix::Pmix::at_its_best()),
        Box::new(pmix::Pmix::by_itself()),
        Box::new(parallel::Parallel),
    ]
}

/// A program that was built beside this one.
fn beside_us(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

/// What the first of `programs` says of its version in which `wanted` occurs, with that program.
fn find(programs: &[&'static str], wanted: &str) -> Option<(&'static str, String)> {
    let mut said = programs.iter().filter_map(|program| Some((*program, says(program)?)));
    said.find(|(_, text)| text.contains(wanted))
}

/// What a program says of its version, for which it is run once only.
fn says(program: &'static str) -> Option<String> {
    static SAID: Mutex<BTreeMap<&str, Option<String>>> = Mutex::new(BTreeMap::new());
    let ask = || {
        let Output { stdout, .. } = Command::new(program).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&stdout).into_owned())
    };
    SAID.lock().unwrap().entry(program).or_insert_with(ask).clone()
}

/// The word that follows `before` in a text.
fn word_behind(text: &str, before: &str) -> String {
    let behind = text.split_once(before).map_or("", |(_, behind)| behind);
    behind.split_whitespace().next().unwrap_or("of unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_launchers_print() {
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
        assert_eq!(word_behind(hydra, "Version:"), "4.0.2");
        assert_eq!(word_behind("mpirun (Open MPI) 4.1.4\n\nReport", "(Open MPI)"), "4.1.4");
        assert_eq!(word_behind("something else", "Version:"), "of unknown version");
    }

    #[test]
    fn names_are_different() {
        let mut names: Vec<_> = all().iter().map(|system| system.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
