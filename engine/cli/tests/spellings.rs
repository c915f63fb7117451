//! Spellings of other launchers: each has the effect of what the book says, or is refused in one
//! line before anything starts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process};

/// Shows what options can change: the rank, the job, the directory, a variable, the streams.
const SHOW: &str =
    r#"echo "out $IOF_RANK of $IOF_NPROCS in $(pwd) [$SPELLED] $([ -t 2 ] && echo tty)"; echo err >&2; cat"#;

/// Spellings with values, and the same in the options of `iof run`.
const SAME: &[(&[&str], &[&str])] = &[
    (&["-np", "2"], &["-n", "2"]),
    (&["-O"], &["--oversubscribe"]),
    (&["--bind-to-core"], &["--bind-to", "core"]),
    (&["--bind-to-none"], &["--bind-to", "none"]),
    (&["--np", "2"], &["-n", "2"]),
    (&["--np=2"], &["-n", "2"]),
    (&["--ntasks=2"], &["-n", "2"]),
    (&["--n", "2"], &["-n", "2"]),
    (&["-n2", "-N", "1"], &["-n", "2"]),
    (&["-N1"], &[]),
    (&["--nodes=1"], &[]),
    (&["-J", "ocean", "--tag-output"], &["--nspace", "ocean", "--output", "tag"]),
    (&["--job-name=ocean", "--tag-output"], &["--nspace", "ocean", "--output", "tag"]),
    (&["--namespace", "ocean", "--tag-output"], &["--nspace", "ocean", "--output", "tag"]),
    (&["-l"], &["--output", "rank"]),
    (&["-ln2"], &["--output", "rank", "-n", "2"]),
    (&["-lQn", "2"], &["--output", "rank", "-q", "-n", "2"]),
    (&["-lu"], &["--output", "rank", "--output", ":raw"]),
    (&["-I5", "-k", "--propagate=STACK"], &[]),
    (&["-prepend-rank"], &["--output", "rank"]),
    (&["--prepend-rank"], &["--output", "rank"]),
    (&["--timestamp-output"], &["--output", "timestamp"]),
    (&["--timestamps"], &["--output", "timestamp"]),
    (&["-merge-stderr-to-stdout", "-l"], &["--output", "merge-stderr-to-stdout,rank"]),
    (&["--merge-stderr-to-stdout"], &["--output", "merge-stderr-to-stdout"]),
    (&["--xml"], &["--output", "xml"]),
    (&["--grep", "out"], &["--match", "out"]),
    (&["-u"], &["--output", ":raw"]),
    (&["--unbuffered"], &["--output", ":raw"]),
    (&["--output-filename", "files"], &["--output", "dir=files:copy"]),
    (&["--output-filename", "files:nocopy"], &["--output", "dir=files"]),
    (&["--output-directory", "files"], &["--output", "dir=files:copy"]),
    (&["--error=errors"], &["-e", "errors"]),
    (&["--print-all-exitcodes"], &["--summary"]),
    (&["-K0"], &["--kill-on-bad-exit=0"]),
    (&["-K1"], &["--kill-on-bad-exit=1"]),
    (&["-s"], &[]),
    (&["-n2", "-s", "all"], &["-n2", "--stdin", "all"]),
    (&["-n2", "-s", "1"], &["-n2", "--stdin", "1"]),
    (&["-W", "0"], &[]),
    (&["-W0"], &[]),
    (&["--wait=0"], &[]),
    (&["-t", "1:00"], &["--timeout", "60"]),
    (&["--time=1:00:00"], &["--timeout", "1h"]),
    (&["--silent-abort"], &["--quiet"]),
    (&["-disable-auto-cleanup"], &["--kill-on-bad-exit=0"]),
    (&["--disable-auto-cleanup"], &["--kill-on-bad-exit=0"]),
    (&["-Q"], &["--quiet"]),
    (&["-i", "input"], &["--stdin-file", "input"]),
    (&["-i", "-"], &["--stdin", "0"]),
    (&["-iinput"], &["--stdin-file", "input"]),
    (&["--input=none"], &["--stdin", "none"]),
    (&["--input", "all"], &["--stdin", "all"]),
    (&["--pty"], &["--pty", "0"]),
    (&["--pty", "0"], &["--pty=0"]),
    (&["-wdir", "/"], &["--wdir", "/"]),
    (&["--wd", "/"], &["--wdir", "/"]),
    (&["--cwd", "/"], &["--wdir", "/"]),
    (&["--chdir=/"], &["--wdir", "/"]),
    (&["-D", "/"], &["--wdir", "/"]),
    (&["-D/"], &["--wdir", "/"]),
    (&["-genv", "SPELLED", "a b"], &["-x", "SPELLED=a b"]),
    (&["--genv", "SPELLED", "a=b"], &["-x", "SPELLED=a=b"]),
    (&["--env", "SPELLED", "1"], &["-x", "SPELLED=1"]),
    (&["--export=ALL,SPELLED=1"], &["-x", "SPELLED=1"]),
    (&["--export", "ALL"], &[]),
    (&["--bind-to", "none"], &[]),
    (&["--host", "localhost:2", "-n2"], &["-n", "2"]),
    (&["--gwdir", "/"], &["--wdir", "/"]),
    (&["--maxtime", "60"], &["--timeout", "60"]),
    (&["--map-by", ":OVERSUBSCRIBE"], &["--oversubscribe"]),
    (&["--machinefile", "../hosts", "-n2"], &["-n", "2"]),
    (&["--default-hostfile=../hosts", "-n2"], &["-n", "2"]),
    (&["--launcher-hostfile", "../hosts"], &[]),
    (&["-f", "../hosts"], &["--hostfile", "../hosts"]),
    (&["--bynode"], &["--map-by", "node"]),
    (&["--byslot"], &["--map-by", "slot"]),
    (&["--distribution", "block"], &["--map-by", "slot"]),
    (&["-map-by", "SLOT"], &["--map-by", "slot"]),
    (&["-m", "cyclic"], &["--map-by", "node"]),
];

/// Spellings that are refused for some values, and a part of the line.
const REFUSED: &[(&[&str], &str)] = &[
    (&["-N", "4"], "write -n"),
    (&["-N4"], "write -n"),
    (&["--output-filename", "files:nojobid"], "-o DIR/rank.%r/stdout"),
    (&["--output-filename", "files:loud"], "DIR:nocopy"),
    (&["--output-filename", "a,b"], "-o PATTERN"),
    (&["--input=in.%t"], "in.$IOF_RANK"),
    (&["--export=NONE"], "--export=ALL,NAME=VALUE"),
    (&["--mpi=pmi2"], "pmi1"),
    (&["--bind-to", "socket"], "core"),
    (&["-m", "plane=2"], "write --map-by slot"),
    (&["-map-by", "ppr:2:node"], "write --map-by slot"),
    (&["--output", "out.%t"], "-o PATTERN"),
    (&["-o", "3"], "--ranks 3"),
    (&["-o", "out.%q"], "%q"),
    (&["-o", "out", "--output", "dir=files"], "-o cannot be combined with --output dir=DIR"),
    (&["-e", "err", "--output", "merge"], "-e cannot be combined with --output merge-stderr-to-stdout"),
    (&["-o", "out", "--ranks", "0"], "--ranks"),
    (&["--tag-output=yes"], "takes no value"),
    (&["--outptu", "tag"], "there is no option '--outptu': did you mean '--output'?"),
    (&["-tag-outptu"], "there is no option '-tag-outptu': did you mean '--tag-output'?"),
    (&["-output-proxy"], "there is no option '-output-proxy': for a file, write -o FILE with a space"),
    (&["-other-nodes", "UP"], "no option '-other-nodes'"),
    (&["-other-nodes=/a.b"], "no option '-other-nodes=/a.b'"),
    (&["-enable-magic"], "write -e FILE with a space"),
    (&["-exitinfo"], "no option '-exitinfo'"),
    (&["-oout"], "write -o FILE with a space"),
    (&["-qordered"], "there is no option '-qordered': for a file, write -o FILE with a space"),
    (&["-qelse"], "write -e FILE with a space"),
    (&["-lz"], "there is no option '-lz'"),
    (&["-numa"], "there is no option '-numa'"),
    (&["-pdebug"], "unsupported option '-p debug': iof does not allocate resources"),
    (&["-vvv"], "write --summary"),
    (&["-K", "1"], "the value of '-K' must follow '=': write -K=1"),
    (&["--kill-on-bad-exit", "0"], "write --kill-on-bad-exit=0"),
    (&["-W", "10"], "write --timeout"),
    (&["-t", "10"], "such as --timeout 10m"),
    (&["--time=1:60"], "write --timeout"),
    (&["-n", "-1"], "'-1' for '--nprocs <N>'"),
    (&["-np", "0"], "'0' for '--nprocs <N>': expected a number of ranks from 1 to"),
    (&["-n", "x"], "'x' for '--nprocs <N>'"),
    (&["-np", "touch", "-c", "proof"], "'touch' for '--nprocs <N>': expected a number of ranks from 1 to"),
    (&["--timeout", "sh", "-c"], "invalid time 'sh' for '--timeout <DURATION>'"),
    (&["-pmi_port"], "unsupported option '--pmi_port': iof serves MPI programs"),
    (&["--mem_bind=local"], "taskset"),
    (&["true", ":", "-ln", "2", "true"], "option '-l' is for the whole job"),
    (&["-genv", "SPELLED=1"], "invalid variable 'SPELLED=1': write -genv NAME VALUE"),
    (&["--genv=SPELLED=1"], "write -genv NAME VALUE"),
    (&["-env", "SPELLED=1"], "write -env NAME VALUE"),
    (&["--dorp", "none"], "did you mean '--drop'?"),
    (&["--drop", "oldst"], "did you mean 'oldest'?"),
];

/// Runs `iof run OPTIONS PROGRAM` in a directory of its own with a file `input`, beside a file
/// `hosts`.
fn run(options: &[&str], program: &[&str]) -> (Done, BTreeMap<String, String>) {
    let site = Site::new();
    let directory = site.path().join("work");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("input"), "from the file\n").unwrap();
    fs::write(site.path().join("hosts"), "localhost slots=4\n").unwrap();
    let mut command = site.iof("run");
    command.current_dir(&directory).env_remove("SPELLED").args(["--nspace", "job"]);
    if options.iter().any(|option| {
        option.contains("nspace")
            || option.contains("namespace")
            || option.contains("-J")
            || option.contains("job-name")
    }) {
        command = site.iof("run");
        command.current_dir(&directory);
    }
    let done = Process::start(command.args(options).args(program)).finish();
    let name = directory.to_str().unwrap();
    let shown = |text: &str| text.replace(name, "WORK");
    let done = Done { stdout: shown(done.text()).into_bytes(), stderr: shown(&done.stderr), ..done };
    let mut files = BTreeMap::new();
    collect(&directory, "", &mut files);
    files.values_mut().for_each(|text| *text = lines(&shown(text), false).join("\n"));
    (done, files)
}

/// Collects the files below `directory`.
fn collect(directory: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            collect(&path, &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns the lines in a defined order; without their numbers if these are times.
fn lines(text: &str, has_times: bool) -> Vec<String> {
    let without_numbers = |line: &str| {
        let mut line: String = line.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        while line.contains("00") {
            line = line.replace("00", "0");
        }
        line
    };
    let shown = |line: &str| if has_times { without_numbers(line) } else { line.to_owned() };
    let mut lines: Vec<String> = text.lines().map(shown).collect();
    lines.sort_unstable();
    lines
}

fn assert_refused(options: &[&str], message: &str) {
    let (done, files) = run(options, &["touch", "proof"]);
    assert_eq!((done.code, done.text()), (2, ""), "{options:?}: {done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{options:?}: {done:?}");
    assert!(done.stderr.contains(message), "{options:?}: no '{message}' in {done:?}");
    assert_eq!(files.keys().collect::<Vec<_>>(), ["input"], "{options:?}: something was started");
}

/// Returns the spellings in the book, each with its meaning.
fn page() -> Vec<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/coming-from.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, tables) = text.split_once("## All spellings").unwrap();
    let mut rows = Vec::new();
    for line in tables.lines().filter(|line| line.starts_with("| `")) {
        let (names, meaning) = line.trim_matches('|').split_once('|').unwrap();
        let names = names.split(',').map(|name| name.trim().trim_matches('`').to_owned());
        rows.extend(names.map(|name| (name, meaning.trim().to_owned())));
    }
    assert!(rows.len() > 300, "{rows:?}");
    rows
}

#[test]
fn each_spelling_has_the_effect_of_the_options_it_stands_for() {
    for (typed, canonical) in SAME {
        let has_times = typed.iter().any(|word| word.contains("timestamp") || word.contains("exitcodes"));
        let [typed_run, canonical_run] = [typed, canonical].map(|options| {
            let (done, files) = run(options, &["sh", "-c", SHOW]);
            assert_eq!(done.code, 0, "{options:?}: {done:?}");
            (lines(done.text(), has_times), lines(&done.stderr, has_times), files)
        });
        assert_eq!(typed_run, canonical_run, "{typed:?}");
    }
}

#[test]
fn a_spelling_without_effect_changes_nothing() {
    let (plain, _) = run(&["-n", "2"], &["sh", "-c", SHOW]);
    for (name, _) in page().iter().filter(|(_, meaning)| meaning.starts_with("no effect: ")) {
        let (done, _) = run(&["-n", "2", name], &["sh", "-c", SHOW]);
        assert_eq!(lines(done.text(), false), lines(plain.text(), false), "{name}: {done:?}");
        assert_eq!((done.code, &done.stderr), (0, &plain.stderr), "{name}");
    }
}

#[test]
fn each_refused_spelling_ends_with_the_line_of_the_book_and_starts_nothing() {
    for (name, meaning) in page() {
        if let Some(reason) = meaning.strip_prefix("refused: ") {
            assert_refused(&[&name, "1"], &format!("unsupported option '{name}': {reason}"));
        }
    }
    for (options, message) in REFUSED {
        assert_refused(options, message);
    }
}

#[test]
fn every_spelling_of_the_book_is_tested() {
    let typed: BTreeSet<&str> =
        SAME.iter().flat_map(|(typed, _)| typed.iter()).map(|word| word.split('=').next().unwrap()).collect();
    for (name, meaning) in page() {
        let is_tested_by_page = meaning.starts_with("no effect: ") || meaning.starts_with("refused: ");
        assert!(is_tested_by_page || typed.contains(name.as_str()), "{name}");
    }
}

/// Returns the options that `text`, the help of a launcher, begins lines with, such as
/// `-mca|--mca <arg0>`, `-n/-np {value}` or `-A, --account=name`.
fn options_in(text: &str) -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    for line in text.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
        let words = line.split_whitespace().take_while(|word| word.starts_with('-'));
        let names = words.flat_map(|word| word.trim_end_matches(',').split(['|', '/']));
        let names = names.map(|name| name.split(['=', '[']).next().unwrap());
        options.extend(names.filter(|name| name.len() > 1 && name.starts_with('-')).map(str::to_owned));
    }
    options
}

#[test]
fn each_option_in_the_help_of_an_installed_launcher_works_or_is_explained() {
    for (launcher, args) in [
        ("mpirun", &["--allow-run-as-root", "--help", "all"][..]),
        ("mpiexec.hydra", &["-help"]),
        ("prterun", &["--help"]),
        ("srun", &["--help"]),
    ] {
        let help = Command::new(launcher).args(args).output();
        let help =
            help.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let options = options_in(&help);
        if options.is_empty() {
            eprintln!("skipped: no help of {launcher} on this machine");
            continue;
        }
        assert!(options.len() > 20, "{launcher}: {options:?}");
        // Open MPI's help underlines a heading with hyphens, which are not an option.
        // The hosts of an option would be started by ssh.
        let is_tried = |option: &&String| {
            !option.trim_matches('-').is_empty()
                && !["-H", "-host", "--host", "-hosts", "--hosts"].contains(&option.as_str())
        };
        for option in options.iter().filter(is_tried) {
            let (done, _) = run(&[option, "1", "1"], &["true"]);
            for unexplained in ["unexpected argument", "there is no option", "did you mean"] {
                assert!(!done.stderr.contains(unexplained), "{launcher} {option}: {done:?}");
            }
        }
    }
}

#[test]
fn pull_takes_the_spellings_for_output_and_no_others() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let run = site.run_sh(&["--nspace", "job"], &format!(": < {}; echo text", gate.path()));
    site.wait_for_ranks(1);
    let spelled = [&["-l", "job"][..], &["--follow", "job", "--tag-output"], &["-xml"], &["-l", "-o", "all"]];
    let pulls: Vec<Process> = spelled.iter().map(|options| site.pull(options)).collect();
    site.wait_for_pulls(0, "stdout", pulls.len());
    for (options, message) in [
        (&["-np", "2"][..], "there is no option '-np'"),
        (&["--mca", "a", "b"], "there is no option '--mca'"),
        (&["-outfile-pattern", "x"], "write -o PATTERN -e all"),
        (&["-oout"], "write -o FILE with a space"),
        (&["--labe"], "did you mean '--label'? (try 'iof pull --help')"),
    ] {
        let done = site.pull(options).finish();
        assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{done:?}");
        assert!(done.stderr.contains(message), "{done:?}");
    }
    gate.open();
    let shown: Vec<String> = pulls.into_iter().map(|pull| pull.finish().text().to_owned()).collect();
    let xml = "<stdout rank=\"0\">text&#010;</stdout>\n";
    assert_eq!(shown[..2], ["[0]<stdout>: text\n", "[job,0]<stdout>: text\n"]);
    assert!(shown[2].contains(xml) && shown[3] == shown[0], "{shown:?}");
    assert_eq!(run.finish().code, 0);
}

#[test]
fn a_program_and_its_arguments_are_never_changed() {
    let (done, _) = run(&[], &["echo", "-np", "2", "--tag-output", "-genv", "A", "B", "--pty"]);
    assert_eq!(done.text(), "-np 2 --tag-output -genv A B --pty\n");
    let (done, _) = run(&["-l", "--"], &["echo", "-l", "--mca"]);
    assert_eq!(done.text(), "[0]<stdout>: -l --mca\n");
    let (done, _) = run(&["--tag-suffix", "=", "--nspace", "np", "--tag-output"], &["echo", "-np"]);
    assert_eq!(done.text(), "[np,0]<stdout>: -np=\n");
}

#[test]
fn further_programs_have_their_own_spellings_and_share_global_variables() {
    let show = r#"echo "$IOF_RANK $(pwd) $SPELLED$OWN""#;
    let program = ["sh", "-c", show, ":", "-np", "2", "-wdir", "/", "-env", "OWN", "2", "sh", "-c", show];
    let (done, _) = run(&["-np", "1", "-genv", "SPELLED", "s"], &program);
    assert_eq!(lines(done.text(), false), ["0 WORK s", "1 / s2", "2 / s2"], "{done:?}");
    let (done, _) = run(&["-n1"], &["echo", "a", ":", "-n2", "--wdir=/", "-xA=b", "-I", "echo", "b"]);
    assert_eq!(lines(done.text(), false), ["a", "b", "b"], "{done:?}");
    for option in ["-l", "-q", "--summary", "--pty"] {
        let (done, _) = run(&[], &["true", ":", option, "true"]);
        let message = format!("option '{option}' is for the whole job: write it before the first program");
        assert!(done.code == 2 && done.stderr.contains(&message), "{done:?}");
    }
}

#[test]
fn patterns_of_srun_name_files_and_stderr_follows_stdout() {
    let script = "echo out $IOF_RANK; echo err $IOF_RANK >&2";
    let written = |options: &[&str]| {
        let (done, mut files) = run(&[&["-n", "2"], options].concat(), &["sh", "-c", script]);
        assert_eq!(done.code, 0, "{options:?}: {done:?}");
        files.remove("input");
        let shown = [lines(done.text(), false).join(" "), lines(&done.stderr, false).join(" ")];
        (
            files
                .into_iter()
                .map(|(name, text)| format!("{name}: {}", text.replace('\n', " ")))
                .collect::<Vec<_>>(),
            shown,
        )
    };
    let nothing = [String::new(), String::new()];
    let (files, shown) = written(&["-o", "o.%t"]);
    assert_eq!((files, &shown), (vec!["o.0: err 0 out 0".into(), "o.1: err 1 out 1".into()], &nothing));
    let (files, shown) = written(&["-o", "%j.%4t", "-e", "e.%2R"]);
    let wanted = ["e.00: err 0", "e.01: err 1", "job.0000: out 0", "job.0001: out 1"].map(String::from);
    assert_eq!((files, &shown), (wanted.into(), &nothing));
    let (files, shown) = written(&["-o", "all", "-e", "errors"]);
    assert_eq!((files, shown), (vec!["errors: err 0 err 1".into()], ["out 0 out 1".into(), String::new()]));
    let (files, shown) = written(&["-o", "made/both"]);
    assert_eq!((files, &shown), (vec!["made/both: err 0 err 1 out 0 out 1".into()], &nothing));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim().split('.').next().unwrap();
    let (files, shown) = written(&["--output-file", "%N.%n.%r"]);
    let wanted = [0, 1].map(|rank| format!("{host}.job.{rank}: err {rank} out {rank}"));
    assert_eq!((files, &shown), (wanted.into(), &nothing));
    for attached in [&["-oo.%t"][..], &["-o=o.%t"]] {
        let (files, shown) = written(attached);
        assert_eq!((files, &shown), (vec!["o.0: err 0 out 0".into(), "o.1: err 1 out 1".into()], &nothing));
    }
    assert_eq!(written(&["-o=both"]).0, ["both: err 0 err 1 out 0 out 1"]);
    assert_eq!(written(&["-oall", "-eerrors.txt"]).0, ["errors.txt: err 0 err 1"]);
    assert_eq!(written(&["-onone"]), (vec![], nothing.clone()));
    assert_eq!(written(&["-o", "none"]), (vec![], nothing));
    assert_eq!(written(&["-o", "none", "-e", "all"]), (vec![], [String::new(), "err 0 err 1".into()]));
}
