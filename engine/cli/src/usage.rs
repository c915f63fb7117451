//! Reading the command line: the spellings of other launchers, then clap, whose errors become one
//! line.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};

use crate::args::Iof;
use crate::args::defaults::with_defaults;
use crate::args::spellings::translate::{Refusal, translate};
use crate::commands::kill::rewritten;
use crate::error::{Failure, shown};
use crate::options::similar::mistyped;
use crate::pages::sections::header;
use crate::terminal::message::finish;
use crate::terminal::print;

/// The number of words of a command line that a message repeats.
const MAX_REPEATED: usize = 16;

/// The names of other launchers.
const LAUNCHERS: [&str; 9] = [
    "mpirun",
    "mpirun.openmpi",
    "mpirun.mpich",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "prun",
    "srun",
];

/// The commands that users type, as help groups them.
const COMMANDS: [(&str, &[&str]); 4] = [
    ("Run and watch:", &["run", "pull", "top", "ps", "serve"]),
    ("Talk to a job:", &["push", "kill", "log"]),
    ("Look inside:", &["query", "inspect"]),
    ("Set up:", &["gateway", "completions", "man"]),
];

/// Words that users type for commands of iof, with what to write.
const OTHER_COMMANDS: [(&str, &str); 17] = [
    ("attach", "iof pull JOB"),
    ("jobs", "iof ps"),
    ("list", "iof ps"),
    ("logs", "iof pull JOB"),
    ("ompi-ps", "iof ps"),
    ("orte-ps", "iof ps"),
    ("sattach", "iof pull JOB"),
    ("scancel", "iof kill JOB [SIGNAL]"),
    ("signal", "iof kill JOB [SIGNAL]"),
    ("squeue", "iof ps"),
    ("sstat", "iof query stats"),
    ("stats", "iof query stats"),
    ("status", "iof ps"),
    ("stop", "iof kill JOB"),
    ("tail", "iof pull --tail 10 JOB"),
    ("version", "iof --version"),
    ("watch", "iof top JOB for its streams, or iof pull JOB for its output"),
];

/// Long options of iof itself that users of other launchers write with one dash.
const WITH_ONE_DASH: [&str; 2] = ["-help", "-version"];

/// Parses the command line. Returns the exit code if there is nothing to do: after an error, help
/// or the version, which this prints.
pub fn parse() -> Result<Iof, ExitCode> {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    match try_parse(words.clone()) {
        Ok(iof) => Ok(iof),
        Err(Error::Spelling(Refusal::Unknown(reason) | Refusal::Refused(reason))) => {
            Err(refuse(&reason, words.first().and_then(|word| word.to_str()).unwrap_or_default()))
        }
        Err(Error::Spelling(Refusal::Invalid(error)) | Error::Clap(error)) => Err(explain(&error, &words)),
    }
}

/// The reason why a command line is not valid.
enum Error {
    /// An option of `iof run` or `iof pull`, in a spelling of its own or of another launcher.
    Spelling(Refusal),
    Clap(clap::Error),
}

fn try_parse(mut words: Vec<OsString>) -> Result<Iof, Error> {
    if let Some(first) = words.first_mut().filter(|first| WITH_ONE_DASH.iter().any(|known| first == known)) {
        *first = OsString::from(format!("-{}", first.display()));
    }
    let is_run = words.first().is_some_and(|word| word == "run");
    let defaults = if is_run { with_defaults(Iof::command(), in_one_line) } else { Ok(Iof::command()) };
    let mut iof = defaults.map_err(|reason| Error::Spelling(Refusal::Refused(reason)))?;
    iof.build();
    iof = help_by_group(iof);
    let name = words.first().and_then(|word| word.to_str()).filter(|name| ["run", "pull"].contains(name));
    if let Some(command) = name.and_then(|name| iof.find_subcommand(name)) {
        let rest = words.split_off(1);
        words.extend(translate(rest, command).map_err(Error::Spelling)?);
    }
    let words = [OsString::from("iof")].into_iter().chain(words);
    let mut matches = iof.try_get_matches_from_mut(words).map_err(Error::Clap)?;
    Iof::from_arg_matches_mut(&mut matches).map_err(|error| Error::Clap(error.format(&mut iof)))
}

/// Sets the help of `iof` itself, which fits a screen.
fn help_by_group(iof: Command) -> Command {
    let mut help = "{about}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in COMMANDS {
        help += &format!("{}\n", header(title));
        for command in names.iter().filter_map(|name| iof.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            help += &format!("  {:<11}  {about}\n", command.get_name());
        }
    }
    iof.help_template(format!(
        "{help}\n{}  -h, --help; -V, --version\n\
         {}  iof run -n 4 -- sh -c 'echo rank $IOF_RANK of $IOF_NPROCS'\n\
         'iof COMMAND -h' lists its options, 'iof COMMAND --help' explains them.",
        header("Options:"),
        header("Example:")
    ))
}

/// Prints clap's help or version text as it is, and an error in one line.
fn explain(error: &clap::Error, words: &[OsString]) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let printed = print::check(io::stdout()).and_then(|()| match error.kind() {
            ErrorKind::DisplayVersion => {
                print::write(io::stdout(), concat!("iof ", env!("CARGO_PKG_VERSION"), "\n").as_bytes())
            }
            _ => error.print().and_then(|()| io::stdout().flush()).map_err(print::failed),
        });
        return finish(printed.map(|()| ExitCode::SUCCESS));
    }
    let iof = Iof::command();
    let command =
        words.first().and_then(|word| word.to_str()).filter(|word| iof.find_subcommand(word).is_some());
    match (error.kind(), command) {
        (ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            refuse(&format!("missing command: expected one of {}", names_of_commands(&iof)), "")
        }
        (_, None) if words.first().is_some_and(|word| word == "help") => {
            let topic = words.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
            refuse(&format!("no help for '{topic}': expected one of {}", names_of_commands(&iof)), "")
        }
        (_, None) if other_command(words).is_some() => {
            let written = other_command(words).unwrap_or_default();
            let start = format!("to start a program of this name, iof run {}", repeat(words));
            refuse(&format!("no such command: write {written}; {start}"), "")
        }
        (_, None) if launcher(words).is_some() => {
            let name = launcher(words).unwrap_or_default();
            let rest = words.get(1..).filter(|rest| !rest.is_empty()).map_or("PROG".into(), repeat);
            let message = format!("iof run takes the options of {name}: write iof run {rest}");
            finish(Err(Failure::Usage(message)))
        }
        (ErrorKind::MissingRequiredArgument, Some("run"))
            if words.iter().any(|word| word.as_encoded_bytes().starts_with(b"--keep")) =>
        {
            let message = "--keep without PROG takes no options of a job, such as -n, --timings and --output: \
                           add PROG, or drop them";
            refuse(message, "run")
        }
        (ErrorKind::UnknownArgument, Some("kill")) => {
            let words: Vec<String> = words.iter().skip(1).map(|word| quote(word)).collect();
            let message = match rewritten(&words) {
                Some(command) => format!("the signal is not an option: write {command}"),
                None => in_one_line(error),
            };
            refuse(&message, "kill")
        }
        (_, None) if is_job(words) => {
            let mut message = match words.first().filter(|word| is_option(word)) {
                Some(option) => format!("unexpected option '{}'", option.display()),
                None => in_one_line(error),
            };
            let name = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            if let Some(command) = mistyped(&name, shown_commands(&iof))
                && !message.ends_with('?')
            {
                message = format!("{message}: did you mean '{command}'?");
            }
            let to_start = if message.ends_with('?') { " To start" } else { "; to start" };
            let hint = format!("{to_start} a job, write: iof run {}", repeat(words));
            finish(Err(Failure::Usage(message + &hint)))
        }
        _ => refuse(&in_one_line(error), command.unwrap_or_default()),
    }
}

/// Prints an error of `iof COMMAND`.
fn refuse(message: &str, command: &str) -> ExitCode {
    let command = if command.is_empty() { String::new() } else { format!("{command} ") };
    finish(Err(Failure::Usage(format!("{message} (try 'iof {command}--help')"))))
}

/// Returns the names of the commands that users type.
fn shown_commands(iof: &Command) -> impl Iterator<Item = &str> {
    iof.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name)
}

fn names_of_commands(iof: &Command) -> String {
    shown_commands(iof).collect::<Vec<_>>().join(", ")
}

/// Returns the name of the launcher that `words` begin with.
fn launcher(words: &[OsString]) -> Option<&'static str> {
    let first = words.first()?;
    LAUNCHERS.into_iter().find(|name| first == name)
}

/// Returns what to write for the word that `words` begin with, if users type it for a command.
fn other_command(words: &[OsString]) -> Option<&'static str> {
    let first = words.first()?;
    OTHER_COMMANDS.into_iter().find_map(|(word, written)| (first == word).then_some(written))
}

/// Returns `true` if `words` are a program or options of `iof run`.
fn is_job(words: &[OsString]) -> bool {
    if words.iter().all(|word| is_option(word)) {
        return false;
    }
    let run = std::iter::once(OsString::from("run")).chain(words.iter().cloned()).collect();
    match try_parse(run) {
        Ok(_) | Err(Error::Spelling(Refusal::Refused(_))) => true,
        Err(Error::Spelling(Refusal::Unknown(_))) => false,
        Err(Error::Spelling(Refusal::Invalid(error)) | Error::Clap(error)) => {
            !words.first().is_some_and(|word| is_option(word)) || error.kind() != ErrorKind::UnknownArgument
        }
    }
}

fn is_option(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

/// Returns the words as a shell takes them.
fn repeat(words: &[OsString]) -> String {
    let quoted = words.iter().take(MAX_REPEATED).map(|word| quote(word));
    let more = (words.len() > MAX_REPEATED).then(|| "...".to_owned());
    quoted.chain(more).collect::<Vec<_>>().join(" ")
}

fn quote(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_@%+=:,./-".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns clap's error message in one line, without usage and with the name that may be meant.
pub fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("tip:"))
        .collect();
    let message = lines.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let message = name_value_once(error, message).unwrap_or_else(|| message.to_owned());
    let message = shorten_value(error, message);
    match similar(error) {
        Some(names) => format!("{message}: did you mean {names}?"),
        None => message,
    }
}

/// Returns clap's message about a value without the value's repetition in the parser's own message.
fn name_value_once(error: &clap::Error, message: &str) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    let rest = message.strip_prefix(&format!("invalid value '{value}' for '"))?;
    let (name, reason) = rest.split_once("': ")?;
    let (problem, expected) = reason.split_once(&format!(" '{value}': "))?;
    let option = if name.starts_with('-') { format!(" for '{name}'") } else { String::new() };
    Some(format!("{problem} '{value}'{option}: {expected}"))
}

/// Returns clap's message with the beginning of a long value in place of the value.
fn shorten_value(error: &clap::Error, message: String) -> String {
    match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) if shown(value) != *value => message.replace(value, &shown(value)),
        _ => message,
    }
}

/// Returns the names that are similar to what was typed.
fn similar(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let names: Vec<String> = match kinds.into_iter().find_map(|kind| error.get(kind))? {
        ContextValue::String(name) => vec![format!("'{name}'")],
        ContextValue::Strings(names) => names.iter().map(|name| format!("'{name}'")).collect(),
        _ => return None,
    };
    (!names.is_empty()).then(|| names.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_command_line_is_quoted_for_a_shell_and_limited() {
        let words = ["-n", "2", "sh", "-c", "echo 'a b'", ""].map(OsString::from);
        assert_eq!(repeat(&words), r"-n 2 sh -c 'echo '\''a b'\''' ''");
        assert_eq!(repeat(&vec![OsString::from("a"); 17]).split(' ').count(), 17);
        assert!(repeat(&vec![OsString::from("a"); 17]).ends_with("a ..."));
    }
}
