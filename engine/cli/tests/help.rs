//! Help, manual pages and completions, as users and packagers see them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::process::Process;
use common::site::{Site, iof};
use common::terminal::Terminal;

const COMMANDS: [&str; 9] = ["run", "pull", "push", "top", "query", "log", "inspect", "completions", "man"];

/// Runs `iof ARGS` at a terminal of 24 lines and 80 columns, and returns the lines shown.
fn at_terminal(args: &[&str]) -> Vec<String> {
    let (terminal, process) = Terminal::start(iof().args(args).env("TERM", "xterm"), 24, 80);
    assert_eq!(process.wait(), 0);
    terminal.all_shown().lines().map(|line| without_style(line.trim_end())).collect()
}

/// Removes the control sequences for bold and underlined.
fn without_style(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

/// Returns `true` if an optional program is installed.
fn is_installed(program: &str) -> bool {
    let is_found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    if !is_found {
        eprintln!("skipped: no {program} on this machine");
    }
    is_found
}

#[test]
fn the_help_fits_a_screen_and_lists_every_command() {
    let help = at_terminal(&["--help"]);
    // One line is for the prompt.
    assert!(help.len() < 24, "{help:#?}");
    assert!(help.iter().all(|line| line.chars().count() <= 80), "{help:#?}");
    for command in COMMANDS {
        assert!(help.iter().any(|line| line.starts_with(&format!("  {command} "))), "{command}: {help:#?}");
    }
    assert!(help.iter().any(|line| line.contains("iof COMMAND --help")), "{help:#?}");
}

#[test]
fn no_line_of_any_help_is_wider_than_the_terminal() {
    for command in COMMANDS {
        for option in ["-h", "--help"] {
            let help = at_terminal(&[command, option]);
            assert!(help.len() > 5 && help.iter().all(|line| line.chars().count() <= 80), "{help:#?}");
        }
    }
}

#[test]
fn help_that_cannot_be_written_is_an_error_or_ends_by_sigpipe() {
    for args in ["--help", "--version", "run --help", "completions bash"] {
        let in_shell = |redirection: &str| {
            let script = format!("exec {} {args} {redirection}", iof().get_program().to_str().unwrap());
            Process::start(Command::new("sh").args(["-c", &script])).finish()
        };
        let full = in_shell(">/dev/full");
        assert_eq!((full.code, full.stderr.lines().count()), (1, 1), "{args}: {full:?}");
        assert!(full.stderr.contains("No space left on device"), "{args}: {full:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut iof = iof();
        iof.args(args.split(' ')).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        assert_eq!(Process::start_with_its_files(&mut iof).wait(), 128 + 13, "{args}");
    }
}

#[test]
fn manual_pages_are_written_for_every_command_without_groff_warnings() {
    let site = Site::new();
    let done = Process::start(iof().arg("man").arg(site.path())).finish();
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""));
    let mut pages: Vec<String> = fs::read_dir(site.path())
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    let mut wanted: Vec<String> = COMMANDS.iter().map(|command| format!("iof-{command}.1")).collect();
    wanted.push("iof.1".into());
    wanted.sort();
    assert_eq!(pages, wanted);
    if !is_installed("groff") {
        return;
    }
    for page in pages {
        let path = site.path().join(&page);
        let done = Process::start(Command::new("groff").args(["-man", "-Tutf8", "-wall"]).arg(path)).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{page}");
        assert!(done.text().contains("iof"), "{page}");
    }
}

#[test]
fn manual_pages_for_a_missing_directory_fail_in_one_line() {
    let done = Process::start(iof().args(["man", "/no/where"])).finish();
    assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{done:?}");
    assert!(done.stderr.contains("/no/where"), "{done:?}");
}

#[test]
fn bash_completes_commands_options_and_values() {
    if !is_installed("bash") {
        return;
    }
    for (words, completed) in [
        ("iof comp", "completions"),
        ("iof run --summ", "--summary"),
        ("iof run --timi", "--timings"),
        ("iof run --drop old", "oldest"),
        ("iof top --inter", "--interval"),
    ] {
        let script = format!(
            "source <(\"$0\" completions bash) || exit; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
             _iof iof \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; echo \"${{COMPREPLY[*]}}\""
        );
        let program = iof().get_program().to_owned();
        let done = Process::start(Command::new("bash").args(["-c", &script]).arg(program)).finish();
        assert_eq!((done.code, done.text().trim_end(), done.stderr.as_str()), (0, completed, ""), "{words}");
    }
}

#[test]
fn completions_exist_for_every_supported_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = Process::start(iof().args(["completions", shell])).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{shell}");
        assert!(done.text().contains("rendezvous-dir"), "{shell}");
    }
    let done = Process::start(iof().args(["completions", "tcsh"])).finish();
    assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{done:?}");
    assert!(done.stderr.contains("bash"), "{done:?}");
}
