//! Shell completions. The scripts are those of clap, to which bash, zsh and fish add the values
//! that only the command knows: jobs, pids and the words of `--output`.

use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use iof_engine::Signal;
use iof_proto::names::sanitize;
use iof_proto::rendezvous::{Candidate, Search};

use super::output_words;
use crate::args::spellings::{GROUPS, Values};
use crate::args::{Iof, List};
use crate::options::engine::own_directory;

/// Returns the candidates of a list that begin with `typed`, one in each line; empty if the engines
/// cannot be found.
pub fn candidates(list: List, typed: &str, directory: Option<&Path>) -> String {
    let engines = || {
        let directory = directory.map(Path::to_owned).or_else(own_directory);
        let search = Search::default().within(directory);
        search.engines().unwrap_or_default()
    };
    let lines: Vec<String> = match list {
        List::Jobs => {
            let jobs = engines().into_iter().flat_map(|Candidate { jobs, .. }| jobs);
            let mut names: Vec<String> = jobs.map(|job| sanitize(job.as_str())).collect();
            names.sort_unstable();
            names.dedup();
            names
        }
        List::Pids => engines().iter().map(|Candidate { pid, .. }| pid.to_string()).collect(),
        List::Output => output_words::complete(typed),
        List::Signals => signals(),
    };
    lines.iter().filter(|line| line.starts_with(typed)).map(|line| format!("{line}\n")).collect()
}

/// Returns the names of the signals without `SIG`. Real-time signals have none.
fn signals() -> Vec<String> {
    let signals = (1..=i32::from(u8::MAX)).filter_map(|number| Signal::try_from(number).ok());
    signals.filter_map(|signal| signal.to_string().strip_prefix("SIG").map(str::to_owned)).collect()
}

/// Returns the completion script of a shell.
pub fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown(), "iof", &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    match shell {
        Shell::Bash => text + &bash(),
        Shell::Fish => text + &fish(),
        Shell::Zsh => zsh(&text),
        _ => text,
    }
}

/// Returns the description of the command line without hidden commands.
fn shown() -> Command {
    let iof = Iof::command();
    let commands = iof.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("iof").version(env!("CARGO_PKG_VERSION")).propagate_version(true).subcommands(commands)
}

/// Completes the values that the command lists, and leaves all others to clap's function.
const BASH: &str = r#"
_iof_with_lists() {
    local IFS=$'\n' word="${COMP_WORDS[COMP_CWORD]}" start=$COMP_CWORD
    local list="" option="" value="" index position=0 options=()
    # Bash splits --option=word=value:qualifier at each "=" and ":".
    while ((start > 1)); do
        value="${COMP_WORDS[start]}$value"
        [[ ${COMP_WORDS[start]} == [=:] || ${COMP_WORDS[start - 1]} == [=:] ]] || break
        ((start--))
    done
    [[ $word == [=:] ]] && word=""
    if [[ $value == --*=* ]]; then
        option="${value%%=*}"
        value="${value#*=}"
    else
        option="${COMP_WORDS[start - 1]}"
    fi
    case "${COMP_WORDS[1]} $option" in
        "run --nspace") ;;
        *" --nspace") list=jobs ;;
        *" --pid") list=pids ;;
        *" --output") list=output ;;
    esac
    # The arguments that are neither options nor their values.
    for ((index = 2; index < COMP_CWORD; index++)); do
        case "${COMP_WORDS[1]} ${COMP_WORDS[index]}" in
            @OPTIONS@)
                ((index++))
                [[ ${COMP_WORDS[index]} == "=" ]] && ((index++))
                ;;
            # The next program of a job.
            "run :") position=0 ;;
            *" -"*) ;;
            *) ((position++)) ;;
        esac
    done
    if [[ -z $list && $index == "$COMP_CWORD" && $word != -* ]]; then
        case "${COMP_WORDS[1]} $position" in
            "pull 0" | "top 0" | "kill 0") list=jobs ;;
            "kill 1") list=signals ;;
            "run 0")
                COMPREPLY=($(compgen -A command -A file -- "$word" | sort -u))
                compopt -o filenames 2>/dev/null
                return
                ;;
        esac
    fi
    if [[ -z $list ]]; then
        IFS=$' \t\n'
        _iof "$@"
        return
    fi
    for ((index = 1; index < COMP_CWORD; index++)); do
        if [[ ${COMP_WORDS[index]} == --rendezvous-dir ]]; then
            options+=(--rendezvous-dir "${COMP_WORDS[index + 1]}")
        fi
    done
    [[ $list == output ]] && options+=(--typed "$value")
    # Bash replaces only the last of these words.
    local kept="${value%"$word"}"
    COMPREPLY=()
    local line
    while read -r line; do
        [[ $list == signals && $value == SIG* ]] && line="SIG$line"
        if [[ $line == "$value"* ]]; then
            line="${line#"$kept"}"
            # A name may contain blanks.
            [[ $list == jobs ]] && printf -v line %q "$line"
            [[ $list == output ]] && line="${line// /\\ }"
            COMPREPLY+=("$line")
        fi
    done < <("${COMP_WORDS[0]}" completions --list "$list" "${options[@]}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && $list == output ]]; then
        compopt -o nospace 2>/dev/null
    fi
}

complete -F _iof_with_lists -o bashdefault -o default iof
"#;

/// The commands whose engine options select a job or a pid.
fn tools() -> Vec<String> {
    let iof = Iof::command();
    let has_pid = |command: &&Command| command.get_arguments().any(|arg| arg.get_long() == Some("pid"));
    iof.get_subcommands().filter(has_pid).map(|command| command.get_name().to_owned()).collect()
}

/// The commands with a positional JOB.
const WITH_JOB: [&str; 3] = ["pull", "top", "kill"];

/// The options of a command whose value is the next word.
fn options_with_values(command: &str) -> Vec<String> {
    let iof = Iof::command();
    let args = iof.find_subcommand(command).into_iter().flat_map(Command::get_arguments);
    args.filter(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set())
        .flat_map(|arg| {
            let long = arg.get_long().map(|long| format!("--{long}"));
            long.into_iter().chain(arg.get_short().map(|short| format!("-{short}")))
        })
        .collect()
}

fn bash() -> String {
    let options = |command: &str| {
        let quoted = move |option| format!("\"{command} {option}\"");
        options_with_values(command).into_iter().map(quoted).collect::<Vec<String>>()
    };
    let mut all: Vec<String> = WITH_JOB.into_iter().chain(["run"]).flat_map(options).collect();
    // The spellings of other launchers, which take one dash as well.
    let spellings = GROUPS.iter().flat_map(|group| group.spellings);
    for name in spellings.filter(|spelling| spelling.values == Values::One).flat_map(|row| row.names) {
        all.push(format!("\"run {name}\""));
        all.extend(name.strip_prefix("--").map(|name| format!("\"run -{name}\"")));
    }
    BASH.replace("@OPTIONS@", &all.join("|"))
}

fn fish() -> String {
    let option = |commands: &str, long: &str, list: &str| {
        let found = format!("iof completions --list {list} 2>/dev/null");
        format!(
            "complete -c iof -n \"__fish_seen_subcommand_from {commands}\" -l {long} -x -a \"({found})\"\n"
        )
    };
    let argument = |commands: &str, position: u32, list: &str| {
        let condition = format!("__fish_seen_subcommand_from {commands}; and __fish_iof_position {position}");
        format!("complete -c iof -n \"{condition}\" -x -a \"(iof completions --list {list} 2>/dev/null)\"\n")
    };
    let tools = tools().join(" ");
    let commands = WITH_JOB.into_iter().chain(["run"]);
    let mut options: Vec<String> = commands.flat_map(options_with_values).collect();
    options.sort_unstable();
    options.dedup();
    let lines = [
        FISH.replace("@OPTIONS@", &options.join(" ")),
        option(&tools, "nspace", "jobs"),
        option(&tools, "pid", "pids"),
        FISH_OUTPUT.to_owned(),
        argument(&WITH_JOB.join(" "), 0, "jobs"),
        argument("kill", 1, "signals"),
        FISH_PROGRAM.to_owned(),
    ];
    lines.concat()
}

const FISH: &str = r"
# Succeeds if this many words after the command are neither options nor their values.
function __fish_iof_position
    set -l count 0
    set -l is_value no
    for word in (commandline -opc)[3..-1]
        if test $is_value = yes
            set is_value no
            continue
        end
        switch $word
            case @OPTIONS@
                set is_value yes
            case '-*'
            case '*'
                set count (math $count + 1)
        end
    end
    test $count = $argv[1]
end
";

/// Completes the last word of a list, with its qualifiers and paths.
const FISH_OUTPUT: &str = r#"
function __fish_iof_output
    set -l value (string replace -r -- '^--output=' '' (commandline -ct))
    iof completions --list output --typed "$value" 2>/dev/null
end
complete -c iof -n "__fish_seen_subcommand_from run pull" -l output -x -a "(__fish_iof_output)"
"#;

const FISH_PROGRAM: &str = r#"complete -c iof -n "__fish_seen_subcommand_from run; and __fish_iof_position 0" -a "(__fish_complete_command)"
"#;

/// Replaces the action of the options and arguments whose values the command lists.
fn zsh(text: &str) -> String {
    let list = |line: &str| {
        let starts = [
            ("--nspace=[Attach", "jobs"),
            ("--nspace=[Job", "jobs"),
            ("--pid=[Attach", "pids"),
            ("--output=[", "output"),
            (":job -- Job", "jobs"),
            (":signal -- Signal", "signals"),
        ];
        starts.into_iter().find(|(start, _)| line.contains(start)).map(|(_, list)| list)
    };
    let line = |line: &str| match list(line) {
        Some(list) => line.replace(":_default'", &format!(":{{_iof_list {list}}}'")) + "\n",
        None => format!("{line}\n"),
    };
    let (head, rest) = text.split_once('\n').unwrap_or((text, ""));
    format!("{head}\n{ZSH}{}", rest.lines().map(line).collect::<String>())
}

const ZSH: &str = r#"
_iof_list() {
    local -a found
    if [[ $1 == output ]]; then
        found=(${(f)"$(iof completions --list output --typed "$PREFIX" 2>/dev/null)"})
        compadd -S '' -a found
    else
        found=(${(f)"$(iof completions --list $1 2>/dev/null)"})
        compadd -a found
    fi
}
"#;
