//! Help, manual pages and completions, as a user at a terminal and a packager have them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::process::Process;
use common::site::{Site, iof};
use common::terminal::Terminal;

const COMMANDS: [&str; 9] = ["run", "pull", "push", "top", "query", "log", "inspect", "completions", "man"];

/// What a terminal of 24 lines and 80 columns shows of a command that has ended.
fn at_terminal(args: &[&str]) -> Vec<String> {
    let (terminal, process) = Terminal::start(iof().args(args).env("TERM", "xterm"), 24, 80);
    assert_eq!(process.wait(), 0);
    terminal.all_shown().lines().map(|line| without_style(line.trim_end())).collect()
}

/// Without the commands for bold and underlined.
fn without_style(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

/// Whether a program that only some machines have is here.
fn is_installed(program: &str) -> bool {
    let is =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    if !is {
        eprintln!("skipped: no {program} on this machine");
    }
    is
}

#[test]
fn the_help_fits_a_screen_and_points_to_every_command_and_to_more_help() {
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
fn no_line_of_any_help_is_longer_than_a_terminal_is_wide() {
    for command in COMMANDS {
        for option in ["-h", "--help"] {
            let help = at_terminal(&[command, option]);
            assert!(help.len() > 5 && help.iter().all(|line| line.chars().count() <= 80), "{help:#?}");
        }
    }
}

#[test]
fn help_that_cannot_be_written_is_an_error_and_one_without_a_reader_ends_as_by_sigpipe() {
    for args in ["--help", "--version", "run --help", "completions bash"] {
        let by_shell = |to: &str| {
            let script = format!("exec {} {args} {to}", iof().get_program().to_str().unwrap());
            Process::start(Command::new("sh").args(["-c", &script])).finish()
        };
        let full = by_shell(">/dev/full");
        assert_eq!((full.code, full.stderr.lines().count()), (1, 1), "{args}: {full:?}");
        assert!(full.stderr.contains("No space left on device"), "{args}: {full:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut iof = iof();
        iof.args(args.split(' ')).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        assert_eq!(Process::start_as_it_is(&mut iof).wait(), 128 + 13, "{args}");
    }
}

#[test]
fn manual_pages_are_written_for_every_command_and_groff_has_nothing_to_say_of_them() {
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
fn a_directory_that_is_not_there_gets_no_pages_and_one_line() {
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
fn every_shell_gets_completions_and_no_other() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = Process::start(iof().args(["completions", shell])).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{shell}");
        assert!(done.text().contains("rendezvous-dir"), "{shell}");
    }
    let done = Process::start(iof().args(["completions", "tcsh"])).finish();
    assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{done:?}");
    assert!(done.stderr.contains("bash"), "{done:?}");
}
