//! A case: a promise, the job that shows whether it holds, and its smallest job that fails.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::job::{Ended, Input, Job, LIMIT, Reader, Running, Target};
use crate::launcher::{Capability, Launcher};
use crate::tool::Tool;

/// A test of one promise.
#[derive(Debug)]
pub struct Case {
    pub name: &'static str,
    /// One sentence that is true of a launcher that passes.
    pub promise: &'static str,
    pub needs: &'static [Capability],
    /// The size at which the case runs first.
    pub size: Size,
    pub run: fn(&Trial<'_>) -> Result<(), String>,
}

/// The size of a case's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub ranks: u32,
    /// Lines of each rank, or what the case counts.
    pub count: u64,
}

/// The result of a case with a launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "result")]
pub enum Verdict {
    Pass,
    /// The promise is broken: how, and the smallest job that was found to break it.
    Fail {
        why: String,
        ranks: u32,
        count: u64,
        command: String,
    },
    /// The launcher has not what the case needs.
    Cannot {
        needs: String,
    },
}

/// One try of a case.
#[derive(Debug)]
pub struct Trial<'launcher> {
    launcher: &'launcher Launcher,
    pub size: Size,
    folder: tempfile::TempDir,
    /// The command line of the last job.
    command: RefCell<String>,
}

impl Case {
    /// Runs the case, and where it fails tries smaller jobs until one passes.
    pub fn judge(&self, launcher: &Launcher, size: Option<Size>) -> Verdict {
        if let Some(needs) = self.needs.iter().find(|need| !launcher.has(**need)) {
            return Verdict::Cannot { needs: needs.name().to_owned() };
        }
        let mut verdict = Verdict::Pass;
        let mut size = size.unwrap_or(self.size);
        // A job that hangs takes its whole time at each size.
        let end = Instant::now() + LIMIT;
        loop {
            match self.try_once(launcher, size) {
                Ok(()) => return verdict,
                Err((why, command)) => {
                    verdict = Verdict::Fail { why, ranks: size.ranks, count: size.count, command }
                }
            }
            let smaller = Size {
                ranks: if size.ranks > 2 { size.ranks / 2 } else { size.ranks },
                count: (size.count / 4).max(1),
            };
            if smaller == size || Instant::now() > end {
                return verdict;
            }
            size = smaller;
        }
    }

    fn try_once(&self, launcher: &Launcher, size: Size) -> Result<(), (String, String)> {
        let folder = tempfile::Builder::new().prefix("iof-conformance.").tempdir();
        let folder = folder.map_err(|error| (format!("no folder for files: {error}"), String::new()))?;
        let trial = Trial { launcher, size, folder, command: RefCell::default() };
        (self.run)(&trial).map_err(|why| (why, trial.command.take()))
    }
}

impl Trial<'_> {
    /// Returns the job of the trial's ranks with a program.
    pub fn job(&self, actions: &[&str]) -> Job<'_> {
        Job {
            launcher: self.launcher,
            ranks: self.size.ranks,
            actions: actions.iter().map(|action| self.fill(action)).collect(),
            options: Vec::new(),
            input: Input::Null,
            target: Target::Pipe,
            reader: Reader::Fast,
            program: None,
        }
    }

    /// Replaces `COUNT` by the size, and `FOLDER` by the folder of the trial.
    fn fill(&self, action: &str) -> String {
        action
            .replace("COUNT", &self.size.count.to_string())
            .replace("FOLDER", &self.folder().display().to_string())
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the tool of the launcher for a request.
    pub fn tool(&self, request: &str) -> Result<Tool, String> {
        let file = self.folder().join("continued");
        let command = self.launcher.tool(request, &self.name(), &file.display().to_string());
        Tool::start(command.ok_or("the launcher has no tool")?, request)
    }

    /// Returns the file of a rank.
    pub fn file(&self, name: &str, rank: u32) -> PathBuf {
        self.folder().join(format!("{name}.{rank}"))
    }

    /// Waits for a file of each rank.
    pub fn wait_for_files(&self, name: &str) -> Result<(), String> {
        let all = || (0..self.size.ranks).all(|rank| self.file(name, rank).exists());
        wait_until(&format!("all ranks wrote {name}"), all)
    }

    /// Returns a name that no other job has.
    fn name(&self) -> String {
        format!("conformance-{}", self.folder().extension().unwrap_or_default().display())
    }

    pub fn start(&self, job: Job<'_>) -> Result<Running, String> {
        let words = job.words(&self.name()).map_err(|error| error.to_string())?;
        *self.command.borrow_mut() = format!("{} # stdin: {}", quote(&words), describe(&job));
        job.start(&self.name())
            .map_err(|error| format!("{}: {error}", words.first().map_or("", String::as_str)))
    }

    pub fn run(&self, job: Job<'_>) -> Result<Ended, String> {
        self.start(job)?.end()
    }

    /// Runs a job that must end with exit code 0.
    pub fn pass(&self, job: Job<'_>) -> Result<Ended, String> {
        self.run(job)?.with_code(0)
    }
}

impl Ended {
    pub fn with_code(self, code: i32) -> Result<Ended, String> {
        if self.code == code {
            return Ok(self);
        }
        Err(format!(
            "exit code {} in place of {code}; stderr: {}",
            self.code,
            crate::text::show(&self.stderr)
        ))
    }

    /// The launcher says that something failed.
    pub fn with_failure(self) -> Result<Ended, String> {
        if self.code != 0 {
            Ok(self)
        } else {
            Err(format!("exit code 0; stderr: {}", crate::text::show(&self.stderr)))
        }
    }
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    let end = Instant::now() + LIMIT;
    while !holds() {
        if Instant::now() > end {
            return Err(format!("it did not happen in {} s that {what}", LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns words as a shell takes them.
fn quote(words: &[String]) -> String {
    let is_plain = |word: &str| {
        !word.is_empty() && word.chars().all(|char| char.is_alphanumeric() || "-_./:,={}+@%".contains(char))
    };
    let quoted = words
        .iter()
        .map(|word| if is_plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Returns the descriptors of a job, in words.
fn describe(job: &Job<'_>) -> String {
    let stdin = match &job.input {
        Input::Bytes(bytes) => format!("{} bytes", bytes.len()),
        other => format!("{other:?}").to_lowercase(),
    };
    format!("{stdin}, stdout: {:?}, read {:?}", job.target, job.reader).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::launchers;

    fn case(run: fn(&Trial<'_>) -> Result<(), String>) -> Case {
        let size = Size { ranks: 8, count: 64 };
        Case { name: "name", promise: "A promise.", needs: &[Capability::Ranks], size, run }
    }

    #[test]
    fn a_case_that_fails_is_tried_with_smaller_jobs_down_to_the_smallest_that_fails() {
        let iof = &launchers(None).unwrap()["iof"];
        let fails =
            case(|trial| if trial.size.count >= 10 { Err(trial.size.count.to_string()) } else { Ok(()) });
        let Verdict::Fail { why, ranks, count, .. } = fails.judge(iof, None) else { panic!("not a failure") };
        assert_eq!((why.as_str(), ranks, count), ("16", 4, 16));
        assert_eq!(fails.judge(iof, Some(Size { ranks: 8, count: 9 })), Verdict::Pass);
    }

    #[test]
    fn a_case_that_needs_more_than_a_launcher_has_is_not_run() {
        let table = "[x]\ncommand = [\"x\"]\nrank = \"X\"\nversion = \"x\"\n";
        let fails = case(|_| Err("it ran".to_owned()));
        let verdict = fails.judge(&launchers(Some(table)).unwrap()["x"], None);
        assert_eq!(verdict, Verdict::Cannot { needs: "ranks".to_owned() });
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        assert_eq!(quote(&["a".into(), "it's".into(), String::new(), "b;c".into()]), r"a 'it'\''s' '' 'b;c'");
    }
}
