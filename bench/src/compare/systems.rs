//! What is compared: launchers, and the least that does the same.

use std::path::PathBuf;
use std::process::{Command, Output};

mod iof;
mod limits;
mod mpich;
mod open_mpi;
mod parallel;

pub use limits::BARE;

/// A way to run ranks and have what they write.
pub trait System {
    /// What the tables call it.
    fn name(&self) -> &'static str;

    /// What is installed; or the command that installs it.
    fn version(&self) -> Result<String, &'static str>;

    /// How it runs the job, whose output then comes to the launcher's stdout; none if it can't.
    fn launch(&self, job: &Launch) -> Option<Command>;

    /// The environment variable that has a rank's number.
    fn rank_variable(&self) -> &'static str;

    /// What it writes before a line of a rank when that is asked for.
    fn tag(&self, rank: u32) -> String;
}

/// A job to be run.
pub struct Launch<'a> {
    /// Ranks.
    pub ranks: u32,
    /// Whether lines say of which rank they are.
    pub tagged: bool,
    /// What each rank runs.
    pub command: &'a [String],
}

/// All that there are.
pub fn all() -> Vec<Box<dyn System>> {
    vec![
        Box::new(limits::Bare),
        Box::new(limits::Cat),
        Box::new(iof::Iof),
        Box::new(open_mpi::OpenMpi),
        Box::new(mpich::Mpich),
        Box::new(parallel::Parallel),
    ]
}

/// A program that was built beside this one.
fn beside_us(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

/// What the first of `programs` says of its version in which `wanted` occurs, with that program.
fn find(programs: &[&'static str], wanted: &str) -> Option<(&'static str, String)> {
    programs.iter().find_map(|program| {
        let Output { stdout, .. } = Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&stdout).into_owned();
        text.contains(wanted).then_some((*program, text))
    })
}

/// The number that follows `before` in a text.
fn number_behind(text: &str, before: &str) -> String {
    let behind = text.split_once(before).map_or("", |(_, behind)| behind);
    behind.split_whitespace().next().unwrap_or("of unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_launchers_print() {
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
        assert_eq!(number_behind(hydra, "Version:"), "4.0.2");
        assert_eq!(number_behind("mpirun (Open MPI) 4.1.4\n\nReport", "(Open MPI)"), "4.1.4");
        assert_eq!(number_behind("something else", "Version:"), "of unknown version");
    }

    #[test]
    fn names_are_different() {
        let mut names: Vec<_> = all().iter().map(|system| system.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }
}
