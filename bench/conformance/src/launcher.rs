//! Launchers, as templates of their command lines.

use std::collections::BTreeMap;
use std::process::Command;

use serde::Deserialize;

/// The launchers that are known without a file.
const KNOWN: &str = include_str!("launchers.toml");

/// A launcher: its command line, and an option for each capability that it has.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Launcher {
    /// The command line, word by word. `{ranks}`, `{list}` (the ranks from 0, a word each), `{options}` and `{program}`
    /// are replaced.
    command: Vec<String>,
    /// The environment variable that has the rank, with `-1` behind it if it counts from 1.
    pub rank: String,
    /// The command whose first line is the launcher's version.
    version: String,
    /// The words that `{options}` becomes for a capability. The launcher has no other capability.
    #[serde(default)]
    options: BTreeMap<Capability, String>,
    /// A shell script that reads the output of a running job as a tool does: see [`crate::cases`]' tools.
    tool: Option<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

/// A part of forwarding that not every launcher has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    /// Several ranks.
    Ranks,
    /// Rank 0 reads the launcher's stdin.
    StdinFirst,
    /// All ranks read all of the launcher's stdin.
    StdinAll,
    /// Rank 1 alone reads the launcher's stdin.
    StdinOne,
    /// Ranks 0 and 2 read the launcher's stdin.
    StdinSome,
    /// Stdout and stderr of ranks are the launcher's.
    Channels,
    /// The exit code is that of a rank that failed.
    ExitCode,
    /// SIGTERM, SIGINT and SIGUSR1 are passed on to the ranks.
    Signals,
    /// Ranks have a terminal of their own.
    Terminal,
    /// A running job has a name, `{job}`, by which the tool finds it.
    Job,
    /// Lines of up to 2 MiB are whole.
    LongLines,
    /// A stream keeps 64 KiB for tools, and drops what is older.
    SmallCache,
    /// A tool sees where what was there before ends.
    Cached,
    /// A tool sees the offsets of what it gets and of what is missing.
    Offsets,
}

impl Capability {
    /// Returns the name in a launcher's table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::StdinFirst => "stdin-first",
            Self::StdinAll => "stdin-all",
            Self::StdinOne => "stdin-one",
            Self::StdinSome => "stdin-some",
            Self::Channels => "channels",
            Self::ExitCode => "exit-code",
            Self::Signals => "signals",
            Self::Terminal => "terminal",
            Self::Job => "job",
            Self::LongLines => "long-lines",
            Self::SmallCache => "small-cache",
            Self::Cached => "cached",
            Self::Offsets => "offsets",
        }
    }
}

/// Returns the launchers of a table, with those that are known.
pub fn launchers(table: Option<&str>) -> Result<BTreeMap<String, Launcher>, String> {
    let parse =
        |text: &str| toml::from_str::<BTreeMap<String, Launcher>>(text).map_err(|error| error.to_string());
    let mut all = parse(KNOWN)?;
    if let Some(table) = table {
        all.extend(parse(table)?);
    }
    Ok(all)
}

impl Launcher {
    pub fn has(&self, capability: Capability) -> bool {
        self.options.contains_key(&capability)
    }

    /// Returns the first line of the launcher's version, or `None` if it can't be started.
    pub fn version(&self) -> Option<String> {
        let mut words = self.version.split_whitespace();
        let output = Command::new(words.next()?).args(words).envs(&self.environment).output().ok()?;
        let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        let text = String::from_utf8_lossy(&text);
        output.status.success().then(|| text.lines().next().unwrap_or_default().to_owned())
    }

    /// Returns the words of the command line for a program.
    pub fn words(&self, ranks: u32, job: &str, options: &[Capability], program: &[String]) -> Vec<String> {
        let mut words = Vec::new();
        for word in &self.command {
            match word.as_str() {
                "{program}" => words.extend_from_slice(program),
                "{list}" => words.extend((0..ranks).map(|rank| rank.to_string())),
                "{options}" => {
                    let options = options.iter().filter_map(|option| self.options.get(option));
                    words.extend(
                        options
                            .flat_map(|option| option.split_whitespace())
                            .map(|word| word.replace("{job}", job)),
                    );
                }
                word => words.push(word.replace("{ranks}", &ranks.to_string())),
            }
        }
        words
    }

    /// Returns the command of the tool for a request.
    pub fn tool(&self, request: &str, job: &str, file: &str) -> Option<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", self.tool.as_ref()?, "tool", request, job, file]).envs(&self.environment);
        Some(command)
    }

    /// Returns the environment in which the launcher starts.
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }
}
