//! Jobs of several apps: the ranks of each app, and what is refused before anything runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use iof_capture::SpawnError;
use iof_engine::{App, Engine, Grant, JobSpec, LaunchError, MAX_RANKS};
use iof_proto::{Channel, Channels, Proc, Rank};
use iof_testing::engine::{changed, engine, run, shell, spec};
use iof_tool::{Lines, Pull};

fn refused(engine: &Engine, spec: &JobSpec) -> LaunchError {
    engine.spawn(spec).expect_err("the job must not start")
}

fn in_directory(cwd: &str, app: App) -> App {
    changed(app, |app| app.cwd = Some(cwd.into()))
}

#[test]
fn each_app_runs_with_its_ranks_arguments_environment_and_directory() {
    let show = "echo $IOF_RANK/$IOF_NPROCS $IOF_APPNUM $(pwd) $X";
    let env = vec![("X".into(), "first".into()), ("X".into(), "last".into())];
    let first = changed(in_directory("/", shell(show)).ranks(2), |app| app.env = env);
    let second = in_directory("/usr", shell(show));
    let (status, lines) = run(&engine(), &spec([first, second]));
    assert_eq!(status.code(), 0);
    assert_eq!(lines, ["0/3 0 / last", "1/3 0 / last", "2/3 1 /usr"]);
}

#[test]
fn the_first_failed_rank_is_named_by_its_number_in_the_whole_job() {
    let ok = shell("exit 0").ranks(3);
    let (status, _) = run(&engine(), &spec([ok, shell("exit 4")]));
    assert_eq!((status.first_failure.unwrap().0, status.code()), (Rank(3), 4));
}

#[test]
fn jobs_and_apps_without_ranks_and_jobs_with_too_many_are_refused() {
    let engine = engine();
    let none = shell("").ranks(0);
    let many = shell("").ranks(MAX_RANKS);
    assert!(matches!(refused(&engine, &spec([])), LaunchError::Ranks { asked: 0 }));
    assert!(matches!(refused(&engine, &spec([shell(""), none])), LaunchError::EmptyApp { app: 1 }));
    let asked = u64::from(MAX_RANKS) + 1;
    assert!(
        matches!(refused(&engine, &spec([many, shell("")])), LaunchError::Ranks { asked: n } if n == asked)
    );
}

/// Creates an executable file with this line and returns an app that runs it.
fn executable(path: &Path, line: &str) -> App {
    // Another process writes the file. A rank that another test starts holds the files that this
    // process writes for a moment, and a file that is open for writing cannot be executed.
    let write = r#"echo "$1" > "$0"; chmod +x "$0""#;
    assert!(Command::new("sh").args(["-c", write]).arg(path).arg(line).status().unwrap().success());
    App::new(path, [""; 0])
}

#[test]
fn an_invalid_app_is_found_before_another_runs_and_is_named_with_its_rank() {
    let engine = engine();
    let directory = tempfile::tempdir().unwrap();
    let proof = directory.path().join("proof");
    let touch = App::new("touch", [&proof]).ranks(2);
    let missing = App::new("no-such-program", [""; 0]);
    let plain = App::new("/etc/passwd", [""; 0]);
    let nowhere = in_directory("/no/where", shell(""));
    // A relative path starts at the app's own directory.
    let elsewhere = in_directory("/", App::new("./no-such-program", [""; 0]));
    let script = executable(&directory.path().join("script"), "#!/no/such/interpreter");
    for (wrong, is) in [
        (missing, (|e| matches!(e, SpawnError::NotFound { .. })) as fn(&SpawnError) -> bool),
        (plain, |e| matches!(e, SpawnError::NotExecutable { .. })),
        (nowhere, |e| matches!(e, SpawnError::Directory { cwd, .. } if cwd == Path::new("/no/where"))),
        (elsewhere, |e| matches!(e, SpawnError::NotFound { .. })),
        (script, |e| matches!(e, SpawnError::Interpreter { .. })),
        (App::new("/dev", [""; 0]), |e| matches!(e, SpawnError::IsDirectory { .. })),
    ] {
        let error = refused(&engine, &spec([touch.clone(), wrong]));
        let LaunchError::Spawn { rank: Rank(2), app: 1, source } = &error else { panic!("{error}") };
        assert!(is(source), "{error}");
        assert!(!proof.exists(), "{error}");
    }
    // The name is free again.
    assert_eq!(run(&engine, &spec([touch])).0.code(), 0);
}

#[test]
fn an_error_found_only_by_the_kernel_ends_the_ranks_that_run_already() {
    let engine = engine();
    let directory = tempfile::tempdir().unwrap();
    // The interpreter exists, but its own interpreter does not.
    let interpreter = directory.path().join("interpreter");
    executable(&interpreter, "#!/no/such/interpreter");
    let script = executable(&directory.path().join("script"), &format!("#!{}", interpreter.display()));
    let note = directory.path().join("note");
    let sleeper = shell(&format!("echo $$ > {}; exec sleep 1000", note.display()));
    let error = refused(&engine, &spec([sleeper, script]));
    let LaunchError::Spawn { rank: Rank(1), app: 1, source } = &error else { panic!("{error}") };
    assert!(
        matches!(source, SpawnError::NotFound { .. }) && error.to_string().contains("dynamic loader"),
        "{error}"
    );
    // The rank was killed before or after it could write its pid.
    if let Ok(pid) = std::fs::read_to_string(&note)
        && !pid.is_empty()
    {
        let gone = || !Path::new(&format!("/proc/{}", pid.trim())).exists();
        iof_testing::wait_for("the rank to exit", || gone().then_some(()));
    }
}

#[test]
fn the_name_of_a_job_that_failed_to_start_is_free_and_its_registrations_await_the_next() {
    let engine = engine();
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    let grandchild = shell("sleep 1000 & echo first; exit 3");
    let failing = spec([grandchild.ranks(20), App::new(&script, [""; 0])]);
    tool.pull(&Pull::new(vec![Proc::all(failing.nspace.clone())], Channels::ALL)).unwrap();
    for _ in 0..3 {
        assert!(matches!(refused(&engine, &failing), LaunchError::Spawn { rank: Rank(20), .. }));
    }
    let job = engine.spawn(&spec([shell("echo second")])).unwrap();
    let texts: Vec<Vec<u8>> = Lines::new(tool).filter_map(|item| Some(item.unwrap().line()?.bytes)).collect();
    assert_eq!(texts.last().unwrap(), b"second");
    assert_eq!(texts.iter().filter(|text| *text == b"second").count(), 1);
    assert_eq!(job.wait().code(), 0);
}

#[test]
fn the_stderr_of_an_app_that_is_merged_at_its_source_arrives_on_stdout_in_order() {
    let script = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done";
    let engine = engine();
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    let spec = spec([shell(script).merge_stderr(), shell("echo out; echo err >&2")]);
    tool.pull(&Pull::new(vec![Proc::all(spec.nspace.clone())], Channels::ALL)).unwrap();
    let job = engine.spawn(&spec).unwrap();
    let mut texts = BTreeMap::<(Rank, Channel), String>::new();
    for line in Lines::new(tool).filter_map(|item| item.unwrap().line()) {
        let text = texts.entry((line.source.rank, line.channel)).or_default();
        text.push_str(std::str::from_utf8(&line.bytes).unwrap());
        text.push('\n');
    }
    let merged: String = (1..=20).map(|i| format!("out {i}\nerr {i}\n")).collect();
    let expected = [
        ((Rank(0), Channel::Stdout), merged),
        ((Rank(1), Channel::Stdout), "out\n".into()),
        ((Rank(1), Channel::Stderr), "err\n".into()),
    ];
    assert_eq!(texts, BTreeMap::from(expected));
    assert_eq!(job.wait().code(), 0);
}
