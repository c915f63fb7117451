//! The command-line reference of the book, rendered from clap's description of the command line.

use std::fmt::Write;
use std::{env, fs};

use clap::{Arg, Command, CommandFactory};

use super::with_pages;
use crate::args::Iof;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/command-line.md");

const HEAD: &str = "\
# Command line

<!-- Generated: IOF_BLESS=1 cargo test -p iof-cli reference -->

Invalid input is reported in one line, with exit code 2, before anything starts. A failure at run time
is reported in one line, with exit code 1. Otherwise `iof run` ends with the exit code of the rank that
failed first, or 0.

An *engine* is the part of a launcher that forwards output. Each `iof run` has one, to which the other
commands attach ([Rendezvous](rendezvous.md)).
";

/// Renders the page.
fn reference() -> String {
    let mut iof = Iof::command().disable_help_subcommand(true).disable_help_flag(true);
    iof.build();
    let mut page = HEAD.to_owned();
    for command in with_pages(&iof) {
        section(&mut page, command).expect("a String takes everything");
    }
    page
}

fn section(page: &mut String, command: &Command) -> std::fmt::Result {
    let name = command.get_name();
    writeln!(page, "\n## iof {name}\n")?;
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string);
    for paragraph in about.unwrap_or_default().split("\n\n") {
        writeln!(page, "{}.\n", paragraph.trim_end_matches('.'))?;
    }
    let usage = command.clone().render_usage().to_string();
    for line in usage.trim_start_matches("Usage:").lines() {
        writeln!(page, "    {}", line.trim())?;
    }
    for heading in headings(command) {
        writeln!(page, "\n{}:\n", heading.unwrap_or("Options"))?;
        for arg in shown(command).filter(|arg| arg.get_help_heading() == heading) {
            writeln!(page, "* {}", entry(arg))?;
        }
    }
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        writeln!(page, "\n{after}")?;
    }
    Ok(())
}

/// Returns the arguments that help shows, except `--help` and `--version`.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
}

/// Returns the headings of a command's arguments in the order in which they occur.
fn headings(command: &Command) -> Vec<Option<&str>> {
    let mut headings = Vec::new();
    for arg in shown(command) {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    headings
}

/// Renders one argument: its syntax, its help and its default.
fn entry(arg: &Arg) -> String {
    let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
    let value = value.map(|names| names.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" "));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let value = match value {
        Some(value) if arg.is_require_equals_set() => format!("[={value}]"),
        Some(value) => format!(" {value}"),
        None => String::new(),
    };
    let syntax = names.join(", ") + &value;
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    // The summary has no full stop in clap's description.
    let sentences = |paragraph: &str| {
        let text = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.ends_with('.') { text } else { format!("{text}.") }
    };
    let help = help.split("\n\n").map(sentences).collect::<Vec<_>>().join(" ");
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let is_shown = arg.get_action().takes_values() && defaults.iter().any(|value| !value.is_empty());
    let default = if !is_shown { String::new() } else { format!(" Default: `{}`.", defaults.join(",")) };
    format!("`{}`: {help}{default}", syntax.trim())
}

#[test]
fn the_command_line_reference_of_the_book_is_up_to_date() {
    let rendered = reference();
    if env::var_os("IOF_BLESS").is_some() {
        fs::write(PAGE, &rendered).unwrap();
    }
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        page == rendered,
        "docs/src/command-line.md is stale: run IOF_BLESS=1 cargo test -p iof-cli reference"
    );
}
