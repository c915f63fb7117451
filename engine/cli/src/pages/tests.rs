//! The pages contain all commands and options.

use clap::{Arg, Parser};
use clap_complete::Shell;

use super::*;

/// Returns `iof` itself, then all of its commands except `help`.
fn tree() -> Vec<Command> {
    let mut iof = Iof::command();
    iof.build();
    let commands: Vec<Command> =
        iof.get_subcommands().filter(|command| command.get_name() != "help").cloned().collect();
    assert!(commands.len() >= 7);
    std::iter::once(iof).chain(commands).collect()
}

/// Returns the options of a command as a user types them.
fn options(command: &Command) -> Vec<String> {
    let typed = |arg: &Arg| {
        let long = arg.get_long().map(|long| format!("--{long}"));
        long.into_iter().chain(arg.get_short().map(|short| format!("-{short}"))).collect::<Vec<_>>()
    };
    command.get_arguments().filter(|arg| !arg.is_hide_set()).flat_map(typed).collect()
}

#[test]
fn every_command_has_a_manual_page_with_all_of_its_options() {
    let mut pages: Vec<(String, String)> = Vec::new();
    for page in super::pages() {
        let mut roff = Vec::new();
        page.render(&mut roff).unwrap();
        let (name, roff) = (page.man.get_filename(), String::from_utf8(roff).unwrap());
        assert!(!roff.contains(".SH EXTRA"), "{name}");
        for title in ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"] {
            let heading = format!(".SH {title}\n");
            assert_eq!(roff.replace('"', "").matches(&heading).count(), 1, "{name}: {roff}");
        }
        pages.push((name, roff));
    }
    // `iof pmix` is an internal of the engine.
    for command in tree().into_iter().filter(|command| command.get_name() != "pmix") {
        let name = format!("{}.1", command.get_display_name().unwrap_or(command.get_name()));
        let (_, page) = pages.iter().find(|(file, _)| *file == name).expect(&name);
        for option in options(&command) {
            let printed = format!("\\fB{}\\fR", option.replace('-', "\\-"));
            assert!(page.contains(&printed), "{printed} is not in {name}:\n{page}");
        }
    }
}

#[test]
fn each_option_stands_in_the_group_of_its_subject() {
    let of_run = [
        ("App options", "nprocs wdir env"),
        (
            "Job options",
            "cache_size cache_total drop backend nspace rendezvous_dir mpi bind_to ranks_env pty merge_at_source grace \
             give_up timings summary job_log spawn in keep",
        ),
        ("Stdin options", "stdin stdin_open stdin_file"),
        ("Failure options", "kill_on_bad_exit kill_wait timeout quiet error_lines"),
        (
            "Output options",
            "output output_file error_file label color match exclude fold tag_by tag_suffix max_line max_line_time ranks no_forward \
             open_mode file_size file_count file_cache",
        ),
        (
            "Node options",
            "hosts hostfile map_by oversubscribe host_env rsh carrier carrier_insecure start_timeout starts \
             node_timeout reattach",
        ),
        ("Part of the output", "no_follow tail since from until resume"),
    ];
    for command in tree() {
        let name = command.get_name();
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            let group = of_run.iter().find(|(_, ids)| ids.split(' ').any(|known| known == id));
            let group = group.map(|(group, _)| *group).filter(|group| match name {
                "run" => true,
                "pull" => ["Output options", "Part of the output"].contains(group),
                _ => false,
            });
            assert_eq!(arg.get_help_heading(), group, "iof {name}: {id}");
            let is_general = ["help", "version", "program"].contains(&id);
            assert!(group.is_some() || is_general || name != "run", "{id} is in no group");
        }
    }
}

#[test]
fn completions_contain_every_option_of_every_command() {
    let completions = |shell| {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Iof::command(), "iof", &mut text);
        String::from_utf8(text).unwrap()
    };
    let (bash, zsh, fish) = (completions(Shell::Bash), completions(Shell::Zsh), completions(Shell::Fish));
    for command in tree().split_off(1) {
        let name = command.get_name();
        // Each script has a block for each command, between two known texts.
        let block = |text: &str, start: String, end: &str| {
            let (_, block) = text.split_once(&start).unwrap_or_else(|| panic!("{start} is not in {text}"));
            block.split_once(end).expect("an end").0.to_owned()
        };
        let bash = block(&bash, format!("iof__subcmd__{name})\n            opts=\""), "\"");
        let zsh = block(&zsh, format!("({name})\n_arguments"), "\n;;");
        let condition = format!("__fish_iof_using_subcommand {name}\"");
        let fish: String = fish.lines().filter(|line| line.contains(&condition)).collect();
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
fn completions_contain_the_named_keys_and_the_parser_accepts_others() {
    for (shell, before) in [(Shell::Bash, "--version "), (Shell::Zsh, "Keys to query:(")] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Iof::command(), "iof", &mut text);
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(&format!("{before}namespaces procs stats JOB_STATUS ")), "{shell}: {text}");
    }
    for key in ["stats", "PMIX_QUERY_JOB_STATUS", "job-status", "pmix.qry.jst", "site.own"] {
        assert!(Iof::try_parse_from(["iof", "query", key]).is_ok(), "{key}");
    }
    assert!(Iof::try_parse_from(["iof", "query", "stat"]).is_err());
}

#[test]
fn completions_contain_the_channels() {
    let mut text = Vec::new();
    clap_complete::generate(Shell::Bash, &mut Iof::command(), "iof", &mut text);
    let text = String::from_utf8(text).unwrap();
    for option in ["--no-forward)", "--channel)"] {
        let blocks: Vec<&str> = text.split(option).skip(1).collect();
        let lists_channels = |block: &&str| {
            block.split(";;").next().is_some_and(|words| words.contains("stdout stderr stddiag"))
        };
        assert!(blocks.iter().any(lists_channels), "{option}: {text}");
    }
}

#[test]
fn the_short_help_of_each_option_is_one_line_of_80_columns() {
    for command in tree() {
        let help = command.clone().term_width(80).render_help().to_string();
        let lines: Vec<&str> = help.lines().collect();
        let options: Vec<&&str> = lines.iter().filter(|line| line.trim_start().starts_with('-')).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{help}");
        for arg in command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()) {
            let name = arg
                .get_long()
                .map_or_else(|| format!("-{}", arg.get_short().unwrap()), |long| format!("--{long}"));
            // The summary, behind two spaces, may name another option.
            let names = |line: &str| line.trim_start().split("  ").next().unwrap().to_owned();
            let has_name = |line: &&&&str| names(line).split([' ', ',', '[']).any(|word| word == name);
            let line = options.iter().find(has_name).unwrap_or_else(|| panic!("no line of {name}: {help}"));
            let summary = arg.get_help().unwrap().to_string();
            assert!(line.contains(&summary), "{name} is not explained in its line: {help}");
        }
        // The line below an option is the next option, or the end of the section.
        for (line, next) in lines.iter().zip(lines.iter().skip(1)).filter(|(line, _)| options.contains(line))
        {
            assert!(next.is_empty() || options.contains(&next), "two lines: {line}\n{next}\n{help}");
        }
    }
}
