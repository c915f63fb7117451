//! Help, manual pages and completions, as users and packagers see them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use iof_testing::command::site::{Site, iof};
use iof_testing::command::terminal::Terminal;
use iof_testing::process::Process;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const COMMANDS: [&str; 13] = [
    "run",
    "pull",
    "push",
    "top",
    "serve",
    "query",
    "ps",
    "kill",
    "log",
    "gateway",
    "inspect",
    "completions",
    "man",
];

/// Commands that `iof run` uses itself, which are documented but not listed.
const INTERNAL: [&str; 2] = ["agent", "link"];

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

/// Removes bold type as printers show it: each letter, a backspace and the letter again.
fn without_overstrikes(text: &str) -> String {
    text.chars().fold(String::new(), |mut shown, letter| {
        if letter == '\u{8}' {
            shown.pop();
        } else {
            shown.push(letter);
        }
        shown
    })
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
    for command in INTERNAL {
        assert!(!help.iter().any(|line| line.starts_with(&format!("  {command} "))), "{command}: {help:#?}");
    }
    let groups = ["Run and watch:", "Talk to a job:", "Look inside:", "Set up:"];
    let shown = help.iter().filter(|line| groups.contains(&line.as_str()));
    assert!(shown.eq(&groups), "{help:#?}");
    assert!(help.iter().any(|line| line.contains("iof COMMAND --help")), "{help:#?}");
}

#[test]
fn long_help_begins_with_examples_and_that_of_run_names_the_words_of_output() {
    for command in COMMANDS {
        assert_eq!(at_terminal(&[command, "--help"])[0], "Examples:", "{command}");
    }
    let help = at_terminal(&["run", "-h"]).join(" ");
    let (_, end) = help.split_once("Words of --output:").unwrap();
    for word in ["tag", "rank", "timestamp", "json", "xml", "dir=", "file=", "merge", "raw", "Examples:"] {
        assert!(end.contains(word), "{word}: {help}");
    }
    assert_eq!(end.matches("iof run ").count(), 3, "{help}");
}

#[test]
fn no_line_of_any_help_is_wider_than_the_terminal() {
    for command in COMMANDS.into_iter().chain(INTERNAL) {
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
        // A process that another test starts holds the reader for a moment.
        let mut polled = [PollFd::new(writer.as_fd(), PollFlags::empty())];
        assert_eq!(poll(&mut polled, PollTimeout::from(60_000u16)), Ok(1));
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
    let commands = COMMANDS.iter().chain(&INTERNAL);
    let mut wanted: Vec<String> = commands.map(|command| format!("iof-{command}.1")).collect();
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
        let shown = without_overstrikes(done.text());
        assert!(!shown.contains("EXTRA"), "{page}");
        // A heading begins its line, and the text of its section does not.
        let is_heading = |line: &&str| line.starts_with(|letter: char| letter.is_ascii_uppercase());
        let titles = ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"];
        let sections: Vec<&str> =
            shown.lines().filter(is_heading).filter(|title| titles.contains(title)).collect();
        assert_eq!(sections, titles, "{page}");
        let text_of = |title: &str| -> String {
            let lines = shown.lines().skip_while(|line| *line != title).skip(1);
            lines.take_while(|line| !is_heading(line)).map(str::trim).collect::<Vec<_>>().join(" ")
        };
        for title in titles {
            assert!(!text_of(title).trim().is_empty(), "{page}: {title}");
        }
        let has = |title: &str, texts: &[&str]| texts.iter().all(|text| text_of(title).contains(text));
        let (environment, files): (&[&str], &[&str]) = match page.as_str() {
            "iof-run.1" => (
                &["TMPDIR", "NO_COLOR", "IOF_RANK", "IOF_LIBPMIX"],
                &["/tmp/iof-UID/iof.HOST.tool.PID", "iof-pmix"],
            ),
            "iof-agent.1" => (&["IOF_SERVER", "TMPDIR"], &["iof.HOST.agent.PID", "iof.HOST.nspace.PID.NAME"]),
            "iof-link.1" => (&["None."], &["/tmp/iof-UID/iof.HOST.link.PID"]),
            "iof-inspect.1" => (&["None."], &["/proc/PID/fd/N"]),
            "iof-man.1" => (&["None."], &["DIR/iof.1"]),
            "iof-serve.1" => (&["TMPDIR"], &["iof.HOST.serve", "iof.HOST.tool.PID"]),
            "iof-gateway.1" => (&["IOF_SYSLOG"], &["DIR/iof.sys.HOST"]),
            _ => (&["IOF_SERVER", "TMPDIR"], &["iof.HOST.tool.PID", "iof.HOST.nspace.PID.NAME"]),
        };
        assert!(has("ENVIRONMENT", environment) && has("FILES", files), "{page}: {shown}");
    }
}

/// Returns the files of the repository below `directory`, without builds.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let is_ours = |entry: &DirEntry| ![".git", "target"].map(OsStr::new).contains(&&*entry.file_name());
    let files = entries.filter(is_ours).map(|entry| match entry.file_type().unwrap().is_dir() {
        true => files_below(&entry.path()),
        false => vec![entry.path()],
    });
    files.flatten().collect()
}

#[test]
fn no_file_names_the_host_of_a_registry_where_others_own_our_names() {
    let files = files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    assert!(files.iter().any(|file| file.ends_with("engine/iof/README.md")));
    let host = ["crates", "io"].join(".");
    let names_host = |file: &&PathBuf| {
        let text = fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&text).contains(&host) && !file.ends_with("Cargo.lock")
    };
    assert_eq!(files.iter().filter(names_host).collect::<Vec<_>>(), Vec::<&PathBuf>::new());
}

#[test]
fn manual_pages_for_a_missing_directory_fail_in_one_line() {
    let done = Process::start(iof().args(["man", "/no/where"])).finish();
    assert_eq!((done.code, done.stderr.as_str()), (2, "iof: no directory /no/where: create it first\n"));
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

/// Returns what bash completes for the last of `words`, as its completion function returns it.
fn complete(words: &[&str]) -> Vec<String> {
    let script = "source <(\"$0\" completions bash) || exit; COMP_WORDS=(\"$0\" \"$@\"); COMP_CWORD=$#
                  function=$(complete -p iof); function=${function#*-F }; function=${function%% *}
                  $function \"$0\" \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).arg(iof().get_program()).args(words);
    let done = Process::start(&mut bash).finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{words:?}");
    done.text().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_jobs_pids_and_the_words_of_output() {
    if !is_installed("bash") {
        return;
    }
    let site = Site::new();
    let directory = ["--rendezvous-dir", site.path().to_str().unwrap()];
    let runs = ["ocean model", "air"].map(|name| site.run(&["--nspace", name], ["cat"]));
    for name in ["ocean model", "air"] {
        iof_testing::wait_for(name, || {
            (site.query(&["namespaces", "--nspace", name]).code == 0).then_some(())
        });
    }
    let in_site = |command: &str, words: &[&str]| complete(&[&[command], &directory[..], words].concat());
    assert_eq!(in_site("pull", &["--nspace", ""]), ["air", "ocean\\ model"]);
    assert_eq!(in_site("query", &["--nspace", "oc"]), ["ocean\\ model"]);
    assert_eq!(in_site("top", &["--nspace", "=", "ai"]), ["air"]);
    for command in ["pull", "kill", "top"] {
        assert_eq!(in_site(command, &["oc"]), ["ocean\\ model"], "{command}");
    }
    assert_eq!(in_site("pull", &["--time"]), complete(&["pull", "--time"]), "an option");
    let mut pids = runs.each_ref().map(|run| run.pid());
    pids.sort_unstable();
    assert_eq!(in_site("pull", &["--pid", ""]), pids.map(|pid| pid.to_string()));
    assert_eq!(in_site("run", &["--nspace", "ai"]), [""], "the name of a new job");
    assert_eq!(complete(&["run", "--output", "tag-"]), ["tag-detailed", "tag-fullname"]);
    assert_eq!(complete(&["pull", "--output", "tag,js"]), ["tag,json", "tag,json=batch"]);
    assert_eq!(complete(&["run", "--output", "dir=x:copy,f"]), ["dir=x:copy,file="]);
    for split in [&["--output", "timestamp", "="][..], &["--output", "=", "tag,timestamp", "="]] {
        assert_eq!(
            complete(&[&["run"], split].concat()),
            ["ns", "us", "ms", "rfc3339", "local"],
            "{split:?}"
        );
        assert_eq!(complete(&[&["run"], split, &["rf"]].concat()), ["rfc3339"], "{split:?}");
    }
    assert_eq!(complete(&["run", "--output", "dir", "=", "x", ":", "copy,f"]), ["copy,file="]);
    assert_eq!(complete(&["run", "--output", "tag", ":", ""]), ["raw"]);
    assert_eq!(complete(&["run", "--output", "tag", ":"]), ["raw"]);
    assert_eq!(complete(&["run", "--output", "=", "file", "=", "x", ":", "copy", ":", "p"]), ["pattern"]);
    fs::create_dir(site.path().join("new logs")).unwrap();
    fs::write(site.path().join("new.txt"), "").unwrap();
    let path = |name: &str| site.path().join(name).into_os_string().into_string().unwrap();
    let quoted = path("new logs/").replace(' ', "\\ ");
    assert_eq!(complete(&["run", "--output", "tag,dir", "=", &path("n")]), [quoted.as_str()]);
    assert_eq!(complete(&["run", "--output", "file", "=", &path("new")]), [quoted, path("new.txt")]);
    assert_eq!(complete(&["run", "--drop", "old"]), ["oldest"]);
    assert_eq!(complete(&["comp"]), ["completions"]);
}

#[test]
fn bash_completes_the_signals_of_kill_behind_the_job() {
    if !is_installed("bash") {
        return;
    }
    assert_eq!(complete(&["kill", "job", "US"]), ["USR1", "USR2"]);
    assert_eq!(complete(&["kill", "job", "SIGU"]), ["SIGUSR1", "SIGUSR2", "SIGURG"]);
    assert_eq!(complete(&["kill", "--rank", "0", "job", "KI"]), ["KILL"]);
    assert_eq!(complete(&["kill", "--rank", "=", "0", "job", "KI"]), ["KILL"]);
    assert_eq!(complete(&["kill", "job", "TERM", "US"]), [""], "no third argument");
    assert_eq!(complete(&["top", "job", "US"]), [""], "only kill sends signals");
}

#[test]
fn bash_completes_commands_and_files_as_the_program_of_a_job() {
    if !is_installed("bash") {
        return;
    }
    assert!(complete(&["run", "-n", "2", "slee"]).contains(&"sleep".to_owned()));
    assert!(complete(&["run", "-n", "2", "true", ":", "slee"]).contains(&"sleep".to_owned()));
    let site = Site::new();
    let file = site.path().join("solver").to_str().unwrap().to_owned();
    fs::write(&file, "").unwrap();
    assert_eq!(complete(&["run", &file[..file.len() - 1]]), [file]);
    assert_eq!(complete(&["run", "true", "slee"]), [""], "an argument of the program");
    for option in ["--wdir", "--chdir", "-chdir", "-np"] {
        assert_eq!(complete(&["run", option, "slee"]), [""], "the value of {option}");
    }
    assert!(complete(&["run", "-np", "2", "slee"]).contains(&"sleep".to_owned()));
}

/// A job in a directory that shells use without an option, so that their scripts find it.
fn job_for_shells(name: &str) -> (Site, Process, Vec<(&'static str, String)>) {
    let site = Site::new();
    let uid = nix::unistd::geteuid();
    let directory = site.path().join(format!("iof-{uid}"));
    fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    let mut command = iof();
    command.arg("run").arg("--rendezvous-dir").arg(&directory).args(["--nspace", name, "cat"]);
    let run = Process::start(&mut command);
    let mut query = iof();
    query.arg("query").arg("--rendezvous-dir").arg(&directory).arg("namespaces");
    iof_testing::wait_for("the job", || (Process::start(&mut query).finish().code == 0).then_some(()));
    let program = Path::new(iof().get_program()).parent().unwrap().to_owned();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let home = site.path().to_str().unwrap().to_owned();
    let environment =
        vec![("TMPDIR", home.clone()), ("HOME", home), ("PATH", path), ("TERM", "xterm".into())];
    (site, run, environment)
}

#[test]
fn fish_completes_jobs_signals_and_programs() {
    if !is_installed("fish") {
        return;
    }
    let (_site, run, environment) = job_for_shells("ocean");
    let pid = run.pid().to_string();
    for (typed, completed) in [
        ("iof pull oc", "ocean"),
        ("iof top ", "ocean"),
        ("iof kill oc", "ocean"),
        ("iof kill ocean US", "USR1 USR2"),
        ("iof kill --rank 0 ocean KI", "KILL"),
        ("iof kill ocean TERM US", ""),
        ("iof pull ocean oc", ""),
        ("iof query --nspace oc", "ocean"),
        ("iof pull --pid ", pid.as_str()),
        ("iof run --output tag-d", "tag-detailed"),
        ("iof run --output=tag,xm", "--output=tag,xml"),
        ("iof run --output tag,x", "tag,xml"),
        ("iof run --output tag,xml:", "tag,xml:raw"),
        ("iof run --output=dir=logs:c", "--output=dir=logs:copy"),
        ("iof run --output dir=/pro", "dir=/proc/"),
        ("iof pm", ""),
        ("iof kill --nspace oc", "ocean"),
        ("iof age", ""),
        ("iof run -n 2 sha256s", "sha256sum"),
        ("iof run true sha256s", ""),
        ("iof comp", "completions"),
    ] {
        let script = format!("iof completions fish | source; complete -C '{typed}'");
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "-c", &script]).envs(environment.iter().map(|(name, value)| (name, value)));
        let done = Process::start(&mut fish).finish();
        let found: Vec<&str> = done.text().lines().map(|line| line.split('\t').next().unwrap()).collect();
        assert_eq!(
            (done.code, found.join(" "), done.stderr.as_str()),
            (0, completed.to_owned(), ""),
            "{typed}"
        );
    }
}

#[test]
fn zsh_completes_jobs_signals_and_programs() {
    if !is_installed("zsh") {
        return;
    }
    let (_site, _run, environment) = job_for_shells("ocean");
    let mut zsh = Command::new("zsh");
    zsh.args(["-f", "-i"]).envs(environment.iter().map(|(name, value)| (name, value)));
    let (terminal, _zsh) = Terminal::start(&mut zsh, 24, 80);
    terminal.type_keys(
        "PS1='> '; autoload -Uz compinit; compinit -D -u; source <(iof completions zsh); echo read''y\n",
    );
    terminal.wait_for("ready\r\n", 1);
    for (typed, completed) in [
        ("iof pull oc\t", "iof pull ocean"),
        ("iof top o\t", "iof top ocean"),
        ("iof kill oc\t", "iof kill ocean"),
        ("iof kill ocean KI\t", "iof kill ocean KILL"),
        ("iof kill --rank 0 ocean STO\t", "iof kill --rank 0 ocean STOP"),
        ("iof query --nspace oc\t", "iof query --nspace ocean"),
        ("iof run --output tag-d\t", "iof run --output tag-detailed"),
        ("iof run --output tag,xm\t", "iof run --output tag,xml"),
        ("iof run --output tag:r\t", "iof run --output tag:raw"),
        ("iof run --output dir=/pro\t", "iof run --output dir=/proc/"),
        ("iof run -n 2 sha256s\t", "iof run -n 2 sha256sum"),
    ] {
        terminal.type_keys(typed);
        terminal.wait_to_see(completed, |picture| {
            picture.iter().any(|line| line.trim_start_matches("> ").trim_end() == completed).then_some(())
        });
        // Ctrl-U clears the line.
        terminal.type_keys("\x15clear\n");
        terminal.wait_to_see("an empty screen", |picture| {
            (picture[0].trim_end() == ">" && picture[1..].iter().all(String::is_empty)).then_some(())
        });
    }
}

#[test]
fn a_shell_that_is_installed_accepts_its_completion_script() {
    for (shell, check) in [("zsh", "-n"), ("fish", "--no-execute"), ("bash", "-n")] {
        if !is_installed(shell) {
            continue;
        }
        let script = Process::start(iof().args(["completions", shell])).finish().stdout;
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, script).unwrap();
        let done = Process::start(Command::new(shell).arg(check).arg(file.path())).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{shell}");
    }
}

#[test]
fn scripts_of_zsh_and_fish_list_jobs_pids_signals_and_words_of_output() {
    let script = |shell: &str| Process::start(iof().args(["completions", shell])).finish().text().to_owned();
    for (shell, before) in [("zsh", "{_iof_list "), ("fish", "iof completions --list ")] {
        let text = script(shell);
        for list in ["jobs", "pids", "output", "signals"] {
            assert!(text.contains(&format!("{before}{list}")), "{shell} {list}: {text}");
        }
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
