//! The formats of output that the C library writes itself, at each level at which a C program can
//! request them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use iof_testing::compiler::{Compiler, compiler, environment, source};

const OUT_AND_ERR: &str = "echo out; sleep 0.2; echo err >&2";
const OUT: &str = "echo out";

/// The compiled program, with a directory for sockets and files.
struct Program {
    path: PathBuf,
    directory: tempfile::TempDir,
    _compiler: Compiler,
}

/// The output that the program has written.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    out: String,
    err: String,
}

impl Program {
    fn new() -> Option<Program> {
        let compiler = compiler()?;
        let path = compiler.program(&source("formats.c"), &[]);
        Some(Program { path, directory: tempfile::tempdir().unwrap(), _compiler: compiler })
    }

    /// Runs a job of `nprocs` ranks with attributes, each a key and a value, at a level.
    fn run(&self, level: &str, nprocs: u32, script: &str, attributes: &[&str]) -> Written {
        self.run_with("</dev/null", level, nprocs, script, attributes)
    }

    /// Like [`Program::run`], with a shell's redirections.
    fn run_with(
        &self,
        redirections: &str,
        level: &str,
        nprocs: u32,
        script: &str,
        attributes: &[&str],
    ) -> Written {
        let mut command = Command::new("timeout");
        environment(&mut command, &self.path, self.directory.path());
        command.args(["--signal=KILL", "60", "sh", "-c", &format!("exec \"$@\" {redirections}"), "sh"]);
        command.arg(&self.path).args(level.split(' '));
        command.arg(nprocs.to_string()).arg(script).args(attributes);
        command.current_dir(self.directory.path());
        let output = iof_testing::compiler::output(&mut command);
        assert!(output.status.success(), "{level} {attributes:?}: {output:?}");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Written { out: text(output.stdout), err: text(output.stderr) }
    }

    /// Returns the files below the directory, with their contents.
    fn files(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        let mut directories = vec![self.directory.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => directories.push(entry.path()),
                    kind if kind.is_file() => {
                        let path = entry.path();
                        let name = path.strip_prefix(self.directory.path()).unwrap();
                        let text = fs::read_to_string(&path).unwrap();
                        files.push((name.to_str().unwrap().to_owned(), text));
                        fs::remove_file(&path).unwrap();
                    }
                    _ => {}
                }
            }
        }
        files.sort_unstable();
        files
    }
}

fn written(out: &str, err: &str) -> Written {
    Written { out: out.to_owned(), err: err.to_owned() }
}

/// The levels for output that a registration without a callback receives.
const LEVELS: [&str; 6] = ["init", "job", "pull", "tool", "tool-pull", "tool-spawn"];

#[test]
fn each_tag_and_markup_applies_at_each_level() {
    let Some(program) = Program::new() else { return };
    let cases = [
        (&[][..], "out\n"),
        (&["pmix.iof.tag=true"], "[7,0]<stdout>: out\n"),
        (&["pmix.tagout=true"], "[7,0]<stdout>: out\n"),
        (&["pmix.iof.tagfull=true"], "[run@7,0]<stdout>: out\n"),
        (&["pmix.iof.rank=true"], "[0]<stdout>: out\n"),
        (&["pmix.iof.rank=false"], "out\n"),
        (&["pmix.iof.xml=true"], "<stdout rank=\"0\">out&#010;</stdout>\n"),
        (&["pmix.iof.xml=true", "pmix.iof.tag=true"], "<stdout jobid=\"7\" rank=\"0\">out&#010;</stdout>\n"),
    ];
    for level in LEVELS {
        for (attributes, out) in cases {
            assert_eq!(program.run(level, 1, OUT, attributes), written(out, ""), "{level} {attributes:?}");
        }
    }
}

#[test]
fn output_for_a_closed_stdout_or_stderr_goes_nowhere() {
    let Some(program) = Program::new() else { return };
    for level in ["job", "pull", "tool", "tool-pull"] {
        let closed = |redirections: &str| {
            let Written { out, err } = program.run_with(redirections, level, 1, OUT_AND_ERR, &[]);
            [out, err]
        };
        assert_eq!(closed("<&- >&-"), ["", "err\n"], "{level}");
        assert_eq!(closed(">&-"), ["", "err\n"], "{level}");
        assert_eq!(closed("<&- 2>&-"), ["out\n", ""], "{level}");
        assert_eq!(closed("<&- >&- 2>&-"), ["", ""], "{level}");
    }
}

#[test]
fn a_detailed_tag_has_the_host_and_the_pid_of_the_rank() {
    let Some(program) = Program::new() else { return };
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    for level in LEVELS {
        let Written { out, err } = program.run(level, 1, "echo $$", &["pmix.iof.tagdet=true"]);
        let (tag, pid) = out.trim_end().split_once("<stdout>: ").unwrap();
        assert_eq!((tag, &*err), (&*format!("[7,0][{host}:{pid}]"), ""), "{level}");
    }
}

#[test]
fn a_time_stamp_is_the_time_at_which_the_line_was_read() {
    let Some(program) = Program::new() else { return };
    for (level, key) in [("init", "pmix.iof.ts"), ("job", "pmix.tsout"), ("tool", "pmix.iof.ts")] {
        let Written { out, .. } = program.run(level, 1, "date; sleep 1.1; echo", &[&format!("{key}=true")]);
        let (stamp, _) = out.split_once("]<stdout>: ").unwrap();
        let stamp = stamp.strip_prefix('[').unwrap();
        // The first line was read in the second in which date(1) wrote it, or in the next one.
        assert_eq!(stamp.len(), "Mon Nov 23 11:26:37 2026".len(), "{level} {out}");
        let stamps: Vec<&str> = out.lines().filter_map(|line| line.get(1..25)).collect();
        assert!(stamps.len() == 2 && stamps[0] != stamps[1], "{level} {out}");
    }
}

#[test]
fn stderr_goes_to_stdout_if_they_are_merged() {
    let Some(program) = Program::new() else { return };
    for level in LEVELS {
        let separate = program.run(level, 1, OUT_AND_ERR, &["pmix.iof.rank=true"]);
        assert_eq!(separate, written("[0]<stdout>: out\n", "[0]<stderr>: err\n"), "{level}");
        for key in ["pmix.iof.mrg=true", "pmix.mergeerrout=true"] {
            let merged = program.run(level, 1, OUT_AND_ERR, &["pmix.iof.rank=true", key]);
            assert_eq!(merged.err, "", "{level}");
            let mut lines: Vec<&str> = merged.out.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines, ["[0]<stderr>: err", "[0]<stdout>: out"], "{level}");
        }
    }
}

#[test]
fn raw_output_passes_parts_of_lines_on_at_once() {
    let Some(program) = Program::new() else { return };
    // Without the attribute, a part as long as this waits for a second. In XML each part is an
    // element.
    let script = "head -c 5000 /dev/zero | tr '\\0' x; sleep 0.5; echo";
    let Written { out, .. } = program.run("job", 1, script, &["pmix.iof.xml=true", "pmix.iof.raw=true"]);
    assert!(out.matches("</stdout>").count() > 1, "{out}");
}

#[test]
fn output_goes_to_files_with_the_names_of_prterun() {
    let Some(program) = Program::new() else { return };
    let script = "echo $IOF_RANK; [ $IOF_RANK = 0 ] || echo err >&2";
    let expected = |names: [&str; 4]| -> Vec<(String, String)> {
        let texts = ["", "0\n", "err\n", "1\n"];
        let mut files: Vec<_> = names.into_iter().map(str::to_owned).zip(texts.map(str::to_owned)).collect();
        files.sort_unstable();
        files
    };
    let names = ["f.run@7.0.err", "f.run@7.0.out", "f.run@7.1.err", "f.run@7.1.out"];
    let tree =
        ["d/run@7/rank.0/stderr", "d/run@7/rank.0/stdout", "d/run@7/rank.1/stderr", "d/run@7/rank.1/stdout"];
    for level in
        ["own init", "own job", "own tool-spawn", "init", "job", "pull", "tool", "tool-pull", "tool-spawn"]
    {
        let shown = program.run(level, 2, script, &["pmix.iof.file=f"]);
        // A registration of the program itself shows the output of a job that goes to files, too.
        let shows = ["init", "job", "tool-spawn"].contains(&level);
        assert_eq!((shown.out.len(), shown.err.len()), if shows { (4, 4) } else { (0, 0) }, "{level}");
        assert_eq!(program.files(), expected(names), "{level}");
        program.run(level, 2, script, &["pmix.outdir=d"]);
        assert_eq!(program.files(), expected(tree), "{level}");
    }
    program.run("own job", 2, script, &["pmix.outfile=%n.%R.x", "pmix.iof.fpt=true"]);
    let files = program.files();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["run@7.0.x", "run@7.1.x"]);
}

#[test]
fn ten_ranks_have_file_names_with_two_digits() {
    let Some(program) = Program::new() else { return };
    for level in ["own job", "own tool-spawn", "tool"] {
        program.run(level, 10, OUT, &["pmix.iof.file=f"]);
        let files = program.files();
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        let expected: Vec<String> = (0..10)
            .flat_map(|rank| ["err", "out"].map(|suffix| format!("f.run@7.{rank:02}.{suffix}")))
            .collect();
        assert_eq!(names, expected, "{level}");
    }
}

#[test]
fn files_are_copies_only_if_that_is_requested() {
    let Some(program) = Program::new() else { return };
    for level in ["own init", "own job", "own tool-spawn", "pull", "tool", "tool-pull"] {
        for (attributes, out) in [
            (&["pmix.iof.file=f", "pmix.iof.fonly=false"][..], "out\n"),
            (&["pmix.iof.file=f", "pmix.iof.fonly=true"], ""),
            (&["pmix.iof.file=f", "pmix.nocopy=true"], ""),
            (&["pmix.iof.file=f", "pmix.iof.fonly=false", "pmix.iof.local=false"], ""),
        ] {
            assert_eq!(program.run(level, 1, OUT, attributes), written(out, ""), "{level} {attributes:?}");
            assert_eq!(program.files()[1], ("f.run@7.0.out".to_owned(), "out\n".to_owned()), "{level}");
        }
    }
}

#[test]
fn local_output_is_written_without_a_registration_and_not_written_if_it_is_false() {
    let Some(program) = Program::new() else { return };
    for level in ["own init", "own job"] {
        assert_eq!(program.run(level, 1, OUT, &[]), written("", ""), "{level}");
        assert_eq!(program.run(level, 1, OUT, &["pmix.iof.tag=true"]), written("", ""), "{level}");
    }
    for level in ["own init", "own job", "own tool-spawn"] {
        let shown = program.run(level, 1, OUT_AND_ERR, &["pmix.iof.local=true", "pmix.iof.rank=true"]);
        assert_eq!(shown, written("[0]<stdout>: out\n", "[0]<stderr>: err\n"), "{level}");
    }
    for level in ["pull", "tool", "tool-pull"] {
        assert_eq!(program.run(level, 1, OUT, &["pmix.iof.local=false"]), written("", ""), "{level}");
    }
}

#[test]
fn attributes_that_cannot_be_honoured_are_refused_with_a_reason() {
    let Some(program) = Program::new() else { return };
    let refused = |level: &str, attributes: &[&str]| program.run(level, 1, OUT, attributes).out;
    for (level, function) in
        [("own init", "init"), ("own job", "spawn"), ("own tool-spawn", "spawn"), ("pull", "pull")]
    {
        let both = refused(level, &["pmix.iof.file=f", "pmix.iof.dir=d"]);
        assert!(
            both.starts_with(&format!("{function} -27 output goes to a file or to a directory")),
            "{both}"
        );
        let pattern = refused(level, &["pmix.iof.file=%y", "pmix.iof.fpt=true"]);
        assert!(pattern.starts_with(&format!("{function} -27 ")) && pattern.contains("%y"), "{pattern}");
    }
    let unwritable = refused("own job", &["pmix.iof.dir=/dev/null/x"]);
    assert!(unwritable.starts_with("spawn -172 /dev/null/x"), "{unwritable}");
    let redirect = refused("pull", &["pmix.iof.redir=true"]);
    assert!(redirect.starts_with("pull -47 ") && redirect.contains("pmix.iof.redir"), "{redirect}");
    for accepted in ["pmix.iof.redir=false", "pmix.iof.cpy=true"] {
        assert_eq!(refused("pull", &[accepted]), "out\n");
    }
    for (level, accepted) in
        [("job", "pmix.iof.inhrt=true"), ("job", "pmix.nohup=true"), ("tool", "pmix.nohup=true")]
    {
        assert_eq!(refused(level, &[accepted]), "out\n", "{accepted}");
    }
    assert_eq!(program.files(), []);
}

#[test]
fn a_file_that_becomes_unwritable_is_reported_and_the_rest_is_written() {
    let Some(program) = Program::new() else { return };
    let full = Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    std::os::unix::fs::symlink(full, program.directory.path().join("full.out")).unwrap();
    let Written { out, err } =
        program.run("own job", 1, OUT, &["pmix.iof.file=full", "pmix.iof.fpt=true", "pmix.iof.fonly=false"]);
    assert_eq!(out, "out\n");
    let full = program.directory.path().canonicalize().unwrap().join("full.out");
    let expected = format!("iof: cannot write the stdout of rank 0: {}: ", full.display());
    assert!(err.starts_with(&expected), "{err}");
}
