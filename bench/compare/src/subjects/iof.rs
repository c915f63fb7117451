//! iof: `iof run` and `iof pull`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{FullPolicy, Launch, StdinTarget, Subject, ToolLaunch, Unavailable, sibling_program};
use crate::print_message;

const BUILD: &str = "cargo build --release -p iof-cli";

/// The `iof` program in this program's directory.
pub struct Iof;

impl Subject for Iof {
    fn name(&self) -> &'static str {
        "iof run"
    }

    fn version(&self) -> Result<String, Unavailable> {
        let iof = sibling_program("iof");
        let output = Command::new(&iof).arg("--version").output();
        let missing = |error| Unavailable::Required(format!("{}: {error}: {BUILD}", iof.display()));
        let text = output.map_err(missing)?.stdout;
        let version = String::from_utf8_lossy(&text);
        let version = format!("{}; rank 0 has the launcher's stdin itself", version.trim());
        let Some(age) = older_than_sources(&iof) else { return Ok(version) };
        let age = format!("built {} s before its sources were changed", age.as_secs());
        print_message(format_args!("{} may be stale, {age}: {BUILD}", iof.display()));
        Ok(format!("{version}, {age}"))
    }

    fn launch(&self, job: &Launch) -> Option<Command> {
        let mut command = Command::new(sibling_program("iof"));
        command.args(["run", "--nspace", "bench@1", "-n", &job.ranks.to_string(), "--rendezvous-dir"]);
        command.arg(job.directory);
        if job.tagged {
            command.args(["--output", "tag"]);
        }
        match job.stdin {
            StdinTarget::None | StdinTarget::Rank0 => {}
            StdinTarget::All => drop(command.args(["--stdin", "all"])),
        }
        match job.full {
            FullPolicy::Wait => {}
            FullPolicy::DropNewest => drop(command.args(["--drop", "newest"])),
            FullPolicy::DropOldest => drop(command.args(["--drop", "oldest"])),
        }
        command.arg("--").args(job.command);
        Some(command)
    }

    fn tool(&self, launch: &ToolLaunch) -> Option<Command> {
        let mut command = Command::new(sibling_program("iof"));
        command.args(["pull", "--nspace", "bench@1", "--rendezvous-dir"]).arg(launch.directory);
        Some(command)
    }

    fn rank_variable(&self) -> &'static str {
        "IOF_RANK"
    }

    fn tag(&self, rank: u32) -> String {
        format!("[1,{rank}]<stdout>: ")
    }
}

/// Returns by how much a program is older than the newest of its sources, which cargo lists in a
/// file beside it. Returns `None` if the program is newer than all of them.
fn older_than_sources(program: &Path) -> Option<Duration> {
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let sources = fs::read_to_string(program.with_extension("d")).ok()?;
    let newest = sources.split_whitespace().skip(1).filter_map(|source| changed(source.as_ref())).max()?;
    newest.duration_since(changed(program)?).ok()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_program_is_stale_if_a_source_was_changed_after_its_build() {
        let directory = tempfile::tempdir().unwrap();
        let [program, list, source] = ["iof", "iof.d", "main.rs"].map(|name| directory.path().join(name));
        fs::write(&list, format!("{}: {}\n", program.display(), source.display())).unwrap();
        let built = SystemTime::now();
        for (path, time) in [(&program, built), (&source, built - Duration::from_secs(60))] {
            fs::File::create(path).unwrap().set_modified(time).unwrap();
        }
        assert_eq!(older_than_sources(&program), None);
        let later = Duration::from_secs(60);
        fs::File::create(&source).unwrap().set_modified(built + later).unwrap();
        assert_eq!(older_than_sources(&program), Some(later));
    }
}
