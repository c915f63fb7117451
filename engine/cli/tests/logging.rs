//! `iof log`: in a rank and outside of ranks, to all channels, and its failures.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use iof_engine::{Config, Engine, LogConfig, Rendezvous, Syslog};

use iof_testing::TIMEOUT;
use iof_testing::bytes::pieces;
use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use iof_testing::servers::{SyslogSocket, mail_server, unused_address};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

const IOF: &str = env!("CARGO_BIN_EXE_iof");
const ORDER: &str = "PMIX_MCA_plog_base_order";
const ONCE: &str = "PMIX_MCA_plog_base_log_once";

/// Runs `iof log ARGS` outside of a rank.
fn log(site: &Site, args: &[&str]) -> Done {
    Process::start(site.iof("log").args(args)).finish()
}

/// Runs a job of one rank, `sh -c SCRIPT`, in which `$IOF` is the path of the command.
fn run_with(site: &Site, env: &[(&str, &str)], script: &str) -> Done {
    let no_syslog = [("IOF", IOF), ("IOF_SYSLOG", "/no/such/socket")];
    let mut run = site.iof("run");
    run.envs(no_syslog).envs(env.iter().copied());
    // The line about the failed rank is not the subject here.
    Process::start(run.args(["--quiet", "--nspace", "job", "--", "sh", "-c", script])).finish()
}

#[test]
fn a_message_logged_to_the_output_of_a_rank_reaches_the_run_and_a_pull() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!(
        "$IOF log --channel stdout,stderr --tag hello; $IOF log --channel stdout --xml '<x>'; : < {}",
        gate.path()
    );
    let mut run = site.iof("run");
    run.env("IOF", IOF).args(["--nspace", "job", "--", "sh", "-c", &script]);
    let run = Process::start(&mut run);
    let pull = site.pull_when_ready();
    site.wait_for_logged(0, "stdout", 42);
    site.wait_for_logged(0, "stderr", 1);
    gate.open();
    let stdout = "[job,0]<stdout>: hello\n<stdout rank=\"0\">&lt;x&gt;</stdout>\n";
    for done in [run.finish(), pull.finish()] {
        assert_eq!((done.code, done.text()), (0, stdout), "{done:?}");
        assert_eq!(done.stderr, "[job,0]<stderr>: hello\n");
    }
}

#[test]
fn ranks_of_a_starting_job_log_to_their_own_output() {
    let site = Site::new();
    let script = "$IOF log --channel stdout hi; $IOF log --tag \"from $IOF_RANK\"";
    let mut run = site.iof("run");
    run.envs([("IOF", IOF), ("IOF_SYSLOG", "/no/such/socket")]);
    let done = Process::start(run.args(["-n", "40", "--nspace", "job", "--", "sh", "-c", script])).finish();
    assert_eq!((done.code, done.text()), (0, "hi\n".repeat(40).as_str()), "{}", done.stderr);
    let mut lines: Vec<&str> = done.stderr.lines().collect();
    lines.sort_unstable();
    let mut wanted: Vec<String> = (0..40).map(|rank| format!("[job,{rank}]<stderr>: from {rank}")).collect();
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
}

#[test]
fn json_distinguishes_logged_messages_from_written_output() {
    let site = Site::new();
    let mut run = site.iof("run");
    let script = "echo own; $IOF log --channel stdout said";
    run.env("IOF", IOF).args(["--nspace", "job", "--output", "json", "--", "sh", "-c", script]);
    let done = Process::start(&mut run).finish();
    let mut outputs: Vec<_> = pieces(&done.stdout)
        .into_iter()
        .map(|line| (line["data"].clone(), line["offset"].clone(), line.get("logged").cloned()))
        .collect();
    outputs.sort_by_key(|(data, ..)| data.to_string());
    assert_eq!(
        outputs,
        [("own\n".into(), 0.into(), None), ("said\n".into(), 0.into(), Some(true.into()))],
        "{done:?}"
    );
}

#[test]
fn a_message_from_outside_of_a_rank_is_output_of_the_job() {
    let site = Site::new();
    let run = site.run(&["--nspace", "job"], ["cat"]);
    site.wait_for_ranks(1);
    let done = log(&site, &["--channel", "stderr", "--tag", "from outside"]);
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""));
    let done = log(&site, &["--channel", "stderr", "--nspace", "job", "--timestamp", "named"]);
    assert_eq!(done.code, 0, "{done:?}");
    let stats = site.query(&["stats"]);
    assert!(
        stats.text().lines().any(|line| line.starts_with("job     -     stderr (log)  ")),
        "{}",
        stats.text()
    );
    let stderr = run.finish().stderr;
    let (tagged, timed) = stderr.split_once('\n').unwrap();
    assert_eq!(tagged, "[job,-]<stderr>: from outside");
    assert!(timed.starts_with('[') && timed.ends_with("]<stderr>: named\n"), "{timed}");
}

#[test]
fn the_environment_sets_the_order_of_log_channels() {
    let site = Site::new();
    let syslog = SyslogSocket::bind();
    let path = syslog.path().to_str().unwrap();
    let env = [("IOF_SYSLOG", path), (ORDER, "LOCAL_SYSLOG:required,job_record")];
    let done = run_with(&site, &env, "$IOF log --priority ERROR 'half done'; $IOF log --once again");
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""));
    let message = syslog.next();
    assert!(
        message.starts_with("<11>") && message.contains(":ERROR PROC job.0 by iof log (pid "),
        "{message}"
    );
    assert!(message.ends_with(") REPORTS: half done"), "{message}");
    let again = syslog.next();
    assert!(again.contains(":INFO PROC job.0 by ") && again.ends_with(" REPORTS: again"), "{again}");
    // The job record remains when the engine has ended.
    let files = fs::read_dir(site.path()).unwrap().map(|entry| entry.unwrap().path());
    let record = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "record"))
        .collect::<Vec<_>>();
    assert_eq!(record.len(), 1);
    assert_eq!(fs::metadata(&record[0]).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&record[0]).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1);
    assert_eq!((&lines[0]["message"], &lines[0]["rank"]), (&"half done".into(), &0.into()));
}

#[test]
fn the_environment_limits_messages_to_the_first_channel_that_accepts_them() {
    let site = Site::new();
    let syslog = SyslogSocket::bind();
    let path = syslog.path().to_str().unwrap();
    let env = [("IOF_SYSLOG", path), (ORDER, "local_syslog,job_record"), (ONCE, "true")];
    let done = run_with(&site, &env, "$IOF log 'half done'");
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", ""));
    assert!(syslog.next().ends_with(" REPORTS: half done"));
    let mut files = fs::read_dir(site.path()).unwrap().map(|entry| entry.unwrap().path());
    assert!(files.all(|path| path.extension().is_none_or(|extension| extension != "record")));
}

#[test]
fn empty_variables_are_ignored_and_those_that_are_not_utf8_are_an_error() {
    let site = Site::new();
    let empty = [ORDER, ONCE, "IOF_MAIL_SERVER", "IOF_GATEWAY"].map(|variable| (variable, ""));
    let done = run_with(&site, &empty, "$IOF log m");
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "", "m\n"));
    for variable in [ORDER, ONCE] {
        let not_utf8 = OsStr::from_bytes(b"email\xff");
        let done = Process::start(site.iof("run").env(variable, not_utf8).args(["--", "true"])).finish();
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.stderr.starts_with(&format!("iof: {variable}: ")), "{done:?}");
        assert!(done.stderr.contains("'email\u{fffd}'"), "{done:?}");
    }
}

#[test]
fn email_is_sent_through_the_given_mail_server() {
    let site = Site::new();
    let (server, inbox) = mail_server();
    let script = format!(
        "$IOF log --channel email --mail-to a@example.org --subject Checkpoint --mail-server {server} 'half done'"
    );
    let done = run_with(&site, &[], &script);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let mail = inbox.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((mail.to, mail.text.contains("half done")), (vec!["a@example.org".to_owned()], true));
    let script =
        format!("$IOF log --channel email --mail-to a@example.org --mail-server {} x", unused_address());
    let done = run_with(&site, &[], &script);
    assert_eq!(done.code, 1);
    assert!(done.stderr.starts_with("iof: email: the mail server 127.0.0.1 at port "), "{done:?}");
}

#[test]
fn the_answer_of_a_mail_server_is_printed_without_control_characters() {
    let site = Site::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let answering = thread::spawn(move || {
        let (mut client, _) = server.accept().unwrap();
        client.write_all(b"554-go \x1b]0;x\x07 away\r\n554 \xc2\x9b2J\r\n").unwrap();
    });
    let script = format!("$IOF log --channel email --mail-to a@example.org --mail-server {address} x");
    let done = run_with(&site, &[], &script);
    answering.join().unwrap();
    assert_eq!((done.code, done.stderr.lines().count()), (1, 2), "{done:?}");
    assert!(done.stderr.contains("away"), "{done:?}");
    assert!(!done.stderr.contains(|letter: char| letter.is_control() && letter != '\n'), "{done:?}");
}

#[test]
fn a_message_is_read_from_stdin() {
    let site = Site::new();
    let script = "printf 'a\\nb\\n' | $IOF log --channel stdout --tag; echo c | $IOF log --channel stdout -; \
                  printf 'a\\0b' | $IOF log --channel stdout";
    let done = run_with(&site, &[], script);
    assert_eq!((done.code, done.text()), (2, "[job,0]<stdout>: a\n[job,0]<stdout>: b\nc\n"), "{done:?}");
    assert!(done.stderr.contains("NUL byte at offset 1"), "{done:?}");
}

#[test]
fn the_environment_sets_the_gateway_and_the_mail_server_of_a_job() {
    let site = Site::new();
    let syslog = SyslogSocket::bind();
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::new(Rendezvous::Session(Some(directory.path().to_owned())));
    config.log = LogConfig { gateway: true, syslog: Syslog::at(syslog.path()), ..LogConfig::default() };
    let gateway = Engine::start(config).unwrap();
    let (server, inbox) = mail_server();
    let env = [
        ("IOF_GATEWAY", gateway.socket().unwrap().to_str().unwrap()),
        ("IOF_MAIL_SERVER", &server.to_string()),
    ];
    let script =
        "$IOF log --channel global_syslog far && $IOF log --channel email --mail-to a@example.org near";
    let done = run_with(&site, &env, script);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let message = syslog.next();
    assert!(
        message.contains(" PROC job.0 by iof log (pid ") && message.ends_with(" REPORTS: far"),
        "{message}"
    );
    assert!(inbox.recv_timeout(TIMEOUT).unwrap().body().starts_with("near"));
    let done = run_with(&site, &[("IOF_MAIL_SERVER", "mail:x")], "echo started");
    assert_eq!((done.code, done.text()), (2, ""));
    assert!(
        done.stderr.starts_with("iof: IOF_MAIL_SERVER: invalid mail server 'mail:x': expected a port"),
        "{done:?}"
    );
}

#[test]
fn iof_gateway_logs_for_the_engines_of_two_users_until_a_signal_ends_it() {
    let site = Site::new();
    let users = if geteuid().is_root() { [0, 65534] } else { [geteuid().as_raw(); 2] };
    if users[0] == users[1] {
        eprintln!("skipped: only root can test with two users; both engines have the same one");
    }
    // The other user needs access to the gateway, to the program and to a directory of its own.
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = site.install(Path::new(IOF), "iof");
    let directory = site.path().join("gateway");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let syslog = SyslogSocket::bind();
    let mut command = Command::new(&program);
    let mut gateway = Process::start(command.arg("gateway").arg(&directory).env("IOF_SYSLOG", syslog.path()));
    let mut socket = String::new();
    BufReader::new(gateway.stdout()).read_line(&mut socket).unwrap();
    assert_eq!(Path::new(socket.trim_end()).parent(), Some(&*directory), "{socket}");
    for user in users {
        let own = site.path().join(user.to_string());
        fs::create_dir(&own).unwrap();
        std::os::unix::fs::chown(&own, Some(user), None).unwrap();
        let mut run = Command::new(&program);
        run.uid(user).current_dir("/").env("IOF", &program).env("IOF_GATEWAY", socket.trim_end());
        run.arg("run").arg("--rendezvous-dir").arg(&own).args(["--nspace", "job", "--quiet", "sh", "-c"]);
        let done = Process::start(run.arg("$IOF log --channel global_syslog \"of $(id -u)\"")).finish();
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{user}");
        let message = syslog.next();
        assert!(message.ends_with(&format!(" REPORTS: of {user}")), "{message}");
    }
    gateway.signal(Signal::SIGTERM);
    assert_eq!(gateway.wait(), 128 + Signal::SIGTERM as i32);
    assert!(!Path::new(socket.trim_end()).exists(), "the socket was left");
    let done = Process::start(iof().args(["gateway", "/no/where"])).finish();
    assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{done:?}");
}

#[test]
fn style_options_apply_to_stdout_and_stderr_only() {
    let site = Site::new();
    let done = run_with(&site, &[], "$IOF log --tag --channel stdout,job_record m");
    assert_eq!((done.code, done.text(), done.stderr.as_str()), (0, "[job,0]<stdout>: m\n", ""));
    let done = run_with(&site, &[], "$IOF log --tag --channel job_record m");
    assert_eq!((done.code, done.stderr.as_str()), (0, "iof: pmix.log.tag is ignored\n"));
}

#[test]
fn queries_name_the_channels_as_the_command_that_logs_does() {
    let done = run_with(&Site::new(), &[], "$IOF query LOG_CHANNELS; $IOF query LOG_CHANNELS --json");
    assert!(done.text().contains("\njob_record\n") && done.text().contains("\"job_record\""), "{done:?}");
    assert!(!done.text().contains("pmix.log."), "{done:?}");
}

#[test]
fn channels_that_do_not_take_a_message_are_reported_with_exit_code_1() {
    let site = Site::new();
    let none = "unknown log channel 'site.x'";
    let cases = [
        (
            "--channel job_record,site.x",
            none,
            "some channels did not take the message (PMIX_ERR_PARTIAL_SUCCESS (-52))",
            1,
        ),
        (
            "--channel site.x",
            none,
            "the message was not logged as requested (PMIX_ERR_OPERATION_FAILED (-3331))",
            1,
        ),
        (
            "--channel job_record --required site.x",
            none,
            "the message was not logged as requested (PMIX_ERR_OPERATION_FAILED (-3331))",
            1,
        ),
        ("--once --channel site.x,job_record", none, "", 0),
    ];
    for (options, first, second, code) in cases {
        let done = run_with(&site, &[], &format!("$IOF log {options} m"));
        let second = if second.is_empty() { String::new() } else { format!("iof: {second}\n") };
        assert_eq!((done.code, done.stderr), (code, format!("iof: site.x: {first}\n{second}")), "{options}");
    }
}

#[test]
fn bad_input_is_rejected_in_one_line_with_exit_code_2() {
    let site = Site::new();
    let run = site.run(&["--nspace", "job"], ["cat"]);
    site.wait_for_ranks(1);
    let long = "x".repeat(100_000);
    let cases: [(&[&str], &str); 8] = [
        (&[], "the message on stdin is empty: give a MESSAGE"),
        (
            &["--channel", "mail", "m"],
            "unknown log channel 'mail' for '--channel <LIST>': expected stdout, stderr, syslog, ",
        ),
        (&["--channel", "email:no", "m"], "invalid flag ':no' of a log channel"),
        (&["--channel", "", "m"], "missing channel: expected a list"),
        (
            &["--channel", "stderr", "--required", "email", "m"],
            "the channel email needs an address: add --mail-to",
        ),
        (&["--priority", "urgent", "m"], "invalid priority 'urgent' for '--priority "),
        (
            &["--channel", "email", "--mail-to", "a@x", "--mail-server", "x:0", "m"],
            "invalid mail server 'x:0' for '--",
        ),
        (
            &["--channel", "job_record", &long],
            "100000 bytes to be logged in one message exceed the limit of 32768",
        ),
    ];
    for (args, message) in cases {
        let done = log(&site, args);
        assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{done:?}");
        assert!(done.stderr.contains(message), "{}", done.stderr);
    }
    assert_eq!(run.finish().code, 0);
    assert_eq!(log(&site, &["m"]).code, 2, "there is no engine");
    let done = run_with(&site, &[(ORDER, "stderr,nonsense")], "echo started");
    assert_eq!((done.code, done.text()), (2, ""));
    assert!(
        done.stderr.starts_with("iof: PMIX_MCA_plog_base_order: unknown log channel 'nonsense'"),
        "{done:?}"
    );
}
