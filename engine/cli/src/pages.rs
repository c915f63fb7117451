//! What is made from the command line's own description: completions for shells, manual pages.

use std::io;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::Failure;
use crate::args::{CompletionsArgs, Iof, ManArgs};
use crate::print::write;

/// Prints what a shell is to read.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Iof::command(), "iof", &mut text);
    write(io::stdout(), &text)
}

/// Writes a page for `iof` and for each of its commands.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let directory = &args.directory;
    let failed = |error| Failure::Running(format!("manual pages in {}: {error}", directory.display()));
    for page in pages() {
        page.generate_to(directory).map_err(failed)?;
    }
    Ok(())
}

fn pages() -> Vec<Man> {
    // `iof help COMMAND` says what `iof COMMAND --help` says; it needs no page.
    let mut iof = Iof::command().disable_help_subcommand(true);
    iof.build();
    let source = concat!("iof ", env!("CARGO_PKG_VERSION"));
    let page = |command: &Command| Man::new(command.clone()).source(source).manual("iof");
    std::iter::once(&iof).chain(iof.get_subcommands()).map(page).collect()
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests {
    use clap::{Arg, Parser};
    use clap_complete::Shell;

    use super::*;

    /// What the command line knows: its commands, the whole first, with all their names.
    fn tree() -> Vec<Command> {
        let mut iof = Iof::command();
        iof.build();
        let further: Vec<Command> =
            iof.get_subcommands().filter(|of| of.get_name() != "help").cloned().collect();
        assert!(further.len() >= 7);
        std::iter::once(iof).chain(further).collect()
    }

    /// The options of a command as they are typed.
    fn options(command: &Command) -> Vec<String> {
        let typed = |arg: &Arg| {
            let long = arg.get_long().map(|long| format!("--{long}"));
            long.into_iter().chain(arg.get_short().map(|short| format!("-{short}"))).collect::<Vec<_>>()
        };
        command.get_arguments().flat_map(typed).collect()
    }

    #[test]
    fn every_command_has_a_page_that_explains_each_of_its_options() {
        let mut pages: Vec<(String, String)> = Vec::new();
        for page in super::pages() {
            let mut roff = Vec::new();
            page.render(&mut roff).unwrap();
            pages.push((page.get_filename(), String::from_utf8(roff).unwrap()));
        }
        for command in tree() {
            let name = format!("{}.1", command.get_display_name().unwrap_or(command.get_name()));
            let (_, page) = pages.iter().find(|(file, _)| *file == name).expect(&name);
            for option in options(&command) {
                let printed = format!("\\fB{}\\fR", option.replace('-', "\\-"));
                assert!(page.contains(&printed), "{printed} is not in {name}:\n{page}");
            }
        }
    }

    #[test]
    fn completions_know_every_option_of_every_command() {
        let completions = |shell| {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Iof::command(), "iof", &mut text);
            String::from_utf8(text).unwrap()
        };
        let (bash, zsh, fish) = (completions(Shell::Bash), completions(Shell::Zsh), completions(Shell::Fish));
        for command in tree().split_off(1) {
            let name = command.get_name();
            // Each shell has a part for each command, from one mark to the next.
            let block = |text: &str, from: String, to: &str| {
                let (_, block) = text.split_once(&from).unwrap_or_else(|| panic!("{from} is not in {text}"));
                block.split_once(to).expect("an end").0.to_owned()
            };
            let bash = block(&bash, format!("iof__subcmd__{name})\n            opts=\""), "\"");
            let zsh = block(&zsh, format!("({name})\n_arguments"), "\n;;");
            let of_fish = format!("__fish_iof_using_subcommand {name}\"");
            let fish: String = fish.lines().filter(|line| line.contains(&of_fish)).collect();
            for option in options(&command) {
                assert!(bash.split(' ').any(|word| word == option), "{name} {option}: {bash}");
                let starts = ["'", "'*", ")"].map(|before| format!("{before}{option}"));
                assert!(starts.iter().any(|start| zsh.contains(start)), "{name} {option}: {zsh}");
                let (flag, word) = match option.strip_prefix("--") {
                    Some(long) => (" -l ", long),
                    None => (" -s ", option.trim_start_matches('-')),
                };
                assert!(fish.contains(&format!("{flag}{word}")), "{name} {option}: {fish}");
            }
        }
    }

    #[test]
    fn completions_know_the_keys_that_have_names_and_other_keys_are_not_refused() {
        for (shell, before) in [(Shell::Bash, "--help "), (Shell::Zsh, "What to ask for:(")] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Iof::command(), "iof", &mut text);
            let text = String::from_utf8(text).unwrap();
            assert!(
                text.contains(&format!("{before}namespaces procs stats LOCAL_PROC_TABLE ")),
                "{shell}: {text}"
            );
        }
        for key in ["stats", "PMIX_QUERY_JOB_STATUS", "job-status", "pmix.qry.jst", "site.own"] {
            assert!(Iof::try_parse_from(["iof", "query", key]).is_ok(), "{key}");
        }
        assert!(Iof::try_parse_from(["iof", "query", "stat"]).is_err());
    }

    #[test]
    fn completions_know_the_channels() {
        let mut text = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Iof::command(), "iof", &mut text);
        let text = String::from_utf8(text).unwrap();
        for option in ["--no-forward)", "--channel)"] {
            let blocks: Vec<&str> = text.split(option).skip(1).collect();
            let knows = |block: &&str| {
                block.split(";;").next().is_some_and(|words| words.contains("stdout stderr stddiag"))
            };
            assert!(blocks.iter().any(knows), "{option}: {text}");
        }
    }

    #[test]
    fn each_option_has_one_line_of_short_help_on_a_terminal_of_80_columns() {
        for command in tree() {
            let help = command.clone().term_width(80).render_help().to_string();
            let all: Vec<&str> = help.lines().collect();
            let own: Vec<&&str> = all.iter().filter(|line| line.trim_start().starts_with('-')).collect();
            assert!(all.iter().all(|line| line.chars().count() <= 80), "{help}");
            for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
                let name = arg
                    .get_long()
                    .map_or_else(|| format!("-{}", arg.get_short().unwrap()), |long| format!("--{long}"));
                let is_its = |line: &&&&str| line.split([' ', ',']).any(|word| word == name);
                let line = own.iter().find(is_its).unwrap_or_else(|| panic!("no line of {name}: {help}"));
                let summary = arg.get_help().unwrap().to_string();
                assert!(line.contains(&summary), "{name} is not explained in its line: {help}");
            }
            // What comes below an option is the next, or the end of its group.
            for (line, next) in all.iter().zip(all.iter().skip(1)).filter(|(line, _)| own.contains(line)) {
                assert!(next.is_empty() || own.contains(&next), "two lines: {line}\n{next}\n{help}");
            }
        }
    }
}
