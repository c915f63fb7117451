//! The channels that need no engine, connected to real peers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use iof_log::{JobRecord, LogOptions, LogOrigin, MAX_RECORD, Mail, MailServer, Stalls, Syslog, syslog_line};
use iof_proto::log::key;
use iof_proto::{Failure, Info, Nspace, Proc, Rank, Status};
use iof_testing::TIMEOUT;
use iof_testing::servers::{
    SyslogSocket, dripping_server, flooding_server, greeting_server, mail_server, stalling_server,
    unused_address,
};
use serde_json::Value;

fn options(directives: &[Info]) -> LogOptions {
    LogOptions::parse(directives, &BTreeSet::new()).unwrap().0
}

fn origin() -> LogOrigin {
    let source = Proc::new(Nspace::new("job").unwrap(), Rank(3));
    LogOrigin { source: Some(source), requester: "tool (pid 7)".into() }
}

fn server(address: SocketAddr, timeout: Duration) -> MailServer {
    MailServer { host: address.ip().to_string(), port: address.port(), timeout }
}

fn mail(fields: &[(&str, &str)], server: &MailServer) -> Mail {
    let fields: Vec<Info> = fields.iter().map(|(key, text)| Info::required(*key, *text)).collect();
    Mail::new(&fields, &LogOptions::default(), server, "node.example").unwrap()
}

#[test]
fn a_syslog_message_has_priority_time_tag_pid_and_the_form_that_pmix_uses() {
    let daemon = SyslogSocket::bind();
    let syslog = Syslog::at(daemon.path());
    assert!(syslog.exists());
    for (priority, code, word) in [(None, 14, "INFO"), (Some(3u32), 11, "ERROR"), (Some(7), 15, "DEBUG")] {
        let info = priority.map(|priority| Info::required(key::PMIX_LOG_SYSLOG_PRI, priority));
        let options = options(info.as_slice());
        syslog
            .send(options.priority, &syslog_line("hello", &origin(), "n1", &options), &Stalls::default())
            .unwrap();
        let message = daemon.next();
        let (head, text) = message.split_once(" PMIx Log Report:").unwrap();
        let time = head.strip_prefix(&format!("<{code}>")).unwrap();
        assert_syslog_time(time);
        let expected =
            format!("[{}]: N/A iof@n1:{word} PROC job.3 by tool (pid 7) REPORTS: hello", std::process::id());
        assert_eq!(text, expected);
    }
}

/// Asserts the form `Nov  7 12:00:00`.
fn assert_syslog_time(time: &str) {
    let parts: Vec<&str> = time.split_whitespace().collect();
    assert_eq!((time.len(), parts.len(), parts[2].split(':').count()), (15, 3, 3), "{time:?}");
}

#[test]
fn a_syslog_that_is_missing_or_not_read_is_an_error_within_the_timeout() {
    let daemon = SyslogSocket::bind();
    let syslog = Syslog::at(daemon.path());
    // Sends until the socket's queue is full.
    let full = (0..100_000)
        .find_map(|_| syslog.send(6, &"x".repeat(1024), &Stalls::default()).err())
        .expect("a limit");
    assert_eq!(full.status, Status::ERR_RESOURCE_BUSY, "{full}");
    daemon.next();
    syslog.send(6, "room again", &Stalls::default()).unwrap();
    drop(daemon);
    let gone = syslog.send(6, "no reader", &Stalls::default()).unwrap_err();
    assert!(gone.reason.contains("no syslog daemon listens on"), "{gone}");
    assert!(!syslog.exists());
}

#[test]
fn a_daemon_on_a_stream_socket_receives_nul_terminated_messages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let daemon = UnixListener::bind(&path).unwrap();
    let syslog = Syslog::at(&path);
    assert!(syslog.exists());
    syslog.send(6, "hello", &Stalls::default()).unwrap();
    let (mut stream, _) = daemon.accept().unwrap();
    let mut message = String::new();
    stream.read_to_string(&mut message).unwrap();
    assert!(message.starts_with("<14>") && message.ends_with("]: hello\0"), "{message:?}");
    // No thread accepts these connections.
    let full = (0..100_000).find_map(|_| syslog.send(6, "x", &Stalls::default()).err()).expect("a limit");
    assert_eq!(full.status, Status::ERR_RESOURCE_BUSY, "{full}");
}

#[test]
fn a_path_that_is_not_a_socket_is_not_a_syslog() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    for path in [directory.path().join("file"), "/dev/null".into(), directory.path().to_owned()] {
        let syslog = Syslog::at(&path);
        assert!(!syslog.exists(), "{}", path.display());
        assert_eq!(syslog.send(6, "x", &Stalls::default()).unwrap_err().status, Status::ERR_NOT_AVAILABLE);
    }
    // With systemd /dev/log is a symbolic link.
    let daemon = SyslogSocket::bind();
    symlink(daemon.path(), directory.path().join("link")).unwrap();
    assert!(Syslog::at(directory.path().join("link")).exists());
}

/// A running rsyslogd. The test is skipped if it is not installed, unless `IOF_TEST_RSYSLOGD` names
/// the program.
struct Rsyslog(Child);

impl Drop for Rsyslog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_real_daemon_files_the_message_under_its_priority() {
    let named = std::env::var("IOF_TEST_RSYSLOGD").ok();
    let program = named.clone().unwrap_or_else(|| "/usr/sbin/rsyslogd".into());
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let modules = std::env::var("IOF_TEST_RSYSLOG_MODULES").ok();
    let configuration = format!(
        "module(load=\"imuxsock\" SysSock.Use=\"off\")\ninput(type=\"imuxsock\" Socket=\"{}\")\n\
         template(name=\"t\" type=\"string\" string=\"%syslogfacility-text%.%syslogseverity-text% %msg%\\n\")\n\
         *.* action(type=\"omfile\" file=\"{}\" template=\"t\")\n",
        file("log").display(),
        file("messages").display()
    );
    fs::write(file("conf"), configuration).unwrap();
    let mut daemon = Command::new(&program);
    daemon.arg("-n").arg("-f").arg(file("conf")).arg("-i").arg(file("pid")).stderr(Stdio::null());
    if let Some(modules) = modules {
        daemon.arg("-M").arg(modules);
    }
    let Ok(daemon) = daemon.spawn() else {
        assert_eq!(named, None, "it can't be started");
        eprintln!("{program} is not installed: test skipped");
        return;
    };
    let _daemon = Rsyslog(daemon);
    let syslog = Syslog::at(file("log"));
    let deadline = Instant::now() + TIMEOUT;
    let wait = || {
        assert!(Instant::now() < deadline, "the daemon does nothing");
        thread::sleep(Duration::from_millis(5));
    };
    while syslog
        .send(4, &syslog_line("to a daemon", &origin(), "n1", &options(&[])), &Stalls::default())
        .is_err()
    {
        wait();
    }
    let filed = loop {
        let filed = fs::read_to_string(file("messages")).unwrap_or_default();
        if filed.contains('\n') {
            break filed;
        }
        wait();
    };
    assert!(
        filed.starts_with("user.warning ")
            && filed.contains("PROC job.3 by tool (pid 7) REPORTS: to a daemon"),
        "{filed}"
    );
}

#[test]
fn an_email_arrives_with_all_that_was_said_of_it() {
    let (address, inbox) = mail_server();
    let text = "half done\n.\nsecond: ü and a line of its own dot";
    let fields = [
        (key::PMIX_LOG_EMAIL_ADDR, "a@example.org, B <b@example.org>"),
        (key::PMIX_LOG_EMAIL_SENDER_ADDR, "job@example.org"),
        (key::PMIX_LOG_EMAIL_SUBJECT, "Checkpoint"),
        (key::PMIX_LOG_EMAIL_MSG, text),
    ];
    mail(&fields, &server(address, TIMEOUT)).send(&Stalls::default()).unwrap();
    let mail = inbox.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(mail.from, "job@example.org");
    assert_eq!(mail.to, ["a@example.org", "b@example.org"]);
    assert_eq!(mail.header("Subject"), "Checkpoint");
    assert!(mail.header("Date").contains(':'));
    assert_eq!(mail.header("MIME-Version"), "1.0");
    assert!(mail.header("Message-ID").ends_with("@node.example>"), "{}", mail.text);
    assert!(mail.body().contains("half done") && mail.body().contains("dot"), "{}", mail.text);
}

#[test]
fn a_mail_has_the_given_time_and_a_unique_message_id() {
    let (address, inbox) = mail_server();
    let fields = [
        Info::required(key::PMIX_LOG_EMAIL_ADDR, "a@example.org"),
        Info::required(key::PMIX_LOG_EMAIL_MSG, "x"),
    ];
    let options = options(&[Info::required(key::PMIX_LOG_TIMESTAMP, 86_400u64)]);
    let ids: BTreeSet<String> = (0..2)
        .map(|_| {
            let mail = Mail::new(&fields, &options, &server(address, TIMEOUT), "node.example").unwrap();
            mail.send(&Stalls::default()).unwrap();
            let mail = inbox.recv_timeout(TIMEOUT).unwrap();
            assert_eq!(mail.header("Date"), "Fri, 02 Jan 1970 00:00:00 +0000");
            mail.header("Message-ID").to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 2);
}

const FIELDS: [(&str, &str); 2] =
    [(key::PMIX_LOG_EMAIL_ADDR, "a@example.org"), (key::PMIX_LOG_EMAIL_MSG, "x")];

/// Returns the error of a server that does not accept a mail within `timeout`.
fn send_failure(address: SocketAddr, timeout: Duration) -> Failure {
    mail(&FIELDS, &server(address, timeout)).send(&Stalls::default()).unwrap_err()
}

#[test]
fn a_mail_server_that_is_down_stalls_or_drips_is_an_error_within_the_timeout() {
    let down = send_failure(unused_address(), TIMEOUT);
    assert_eq!(down.status, Status::ERR_NOT_AVAILABLE);
    assert!(down.reason.contains("refused"), "{down}");
    let (stalls, _listener) = stalling_server();
    for address in [stalls, dripping_server(), greeting_server("220 hello\r\n"), greeting_server("220-a\r\n")]
    {
        let late = send_failure(address, Duration::from_millis(50));
        assert_eq!(late.status, Status::ERR_NOT_AVAILABLE);
        assert!(late.reason.contains("did not accept the mail within 0.05 s"), "{late}");
    }
}

#[test]
fn a_mail_server_that_floods_rejects_or_does_not_speak_smtp_is_a_short_error() {
    let cases = [
        (flooding_server(), "sent a reply of more than 16384 bytes"),
        (greeting_server("554 go\x1b[2J away\r\n"), "rejected the mail: 554 go?[2J away"),
        (greeting_server("SSH-2.0-x\r\n"), "does not speak SMTP"),
        (greeting_server("220-a\r\n999 b\r\n"), "does not speak SMTP"),
    ];
    for (address, words) in cases {
        let failure = send_failure(address, TIMEOUT);
        assert_eq!(failure.status, Status::ERR_NOT_AVAILABLE);
        assert!(failure.reason.contains(words) && failure.reason.len() < 400, "{failure}");
    }
}

#[test]
fn a_mail_server_that_stalled_is_not_tried_again_for_queued_mail() {
    let (address, listener) = stalling_server();
    let stalls = Stalls::default();
    let slow = mail(&FIELDS, &server(address, Duration::from_millis(50)));
    listener.set_nonblocking(true).unwrap();
    let contacts = || listener.incoming().map_while(Result::ok).count();
    assert!(slow.send(&stalls).unwrap_err().reason.contains("did not accept the mail"));
    // None if the machine is so busy that the time has passed before.
    assert!(contacts() <= 1);
    for timeout in [Duration::from_millis(50), Duration::MAX] {
        let again = mail(&FIELDS, &server(address, timeout)).send(&stalls).unwrap_err();
        assert!(again.reason.contains("stalled and is skipped for 60 s"), "{again}");
    }
    let (other, inbox) = mail_server();
    mail(&FIELDS, &server(other, TIMEOUT)).send(&stalls).unwrap();
    assert_eq!(inbox.recv_timeout(TIMEOUT).unwrap().to, ["a@example.org"]);
    assert_eq!(contacts(), 0, "it was contacted again");
}

#[test]
fn a_job_record_grows_line_by_line_and_only_its_owner_can_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let record = JobRecord::at(directory.path().join("record"));
    record.append("first\nline \"x\"", &origin(), &options(&[])).unwrap();
    let timed = options(&[Info::required(key::PMIX_LOG_TIMESTAMP, 86_400u64)]);
    record.append("second", &LogOrigin { source: None, ..origin() }, &timed).unwrap();
    let mode = fs::metadata(record.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(record.path()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["message"], "first\nline \"x\"");
    assert_eq!(
        (&lines[0]["nspace"], &lines[0]["rank"], &lines[0]["priority"]),
        (&"job".into(), &3.into(), &"info".into())
    );
    assert_eq!((&lines[1]["time"], &lines[1]["nspace"]), (&"1970-01-02T00:00:00Z".into(), &Value::Null));
    assert_eq!(lines[1]["by"], "tool (pid 7)");
}

/// Parses the lines of a record.
fn lines(record: &JobRecord) -> Vec<Value> {
    let text = fs::read_to_string(record.path()).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn a_line_that_does_not_fit_on_the_disk_leaves_no_partial_line() {
    const RECORD: &str = "IOF_TEST_RECORD";
    const NAME: &str = "a_line_that_does_not_fit_on_the_disk_leaves_no_partial_line";
    // This part runs in a child process whose files are limited in size.
    if let Some(path) = std::env::var_os(RECORD) {
        let record = JobRecord::at(path);
        let full =
            (0..100).find_map(|_| record.append("x", &origin(), &options(&[])).err()).expect("a limit");
        assert!(full.reason.contains("too large"), "{full}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let record = JobRecord::at(directory.path().join("record"));
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap());
    let done = limited.args(["--exact", NAME, "--nocapture"]).env(RECORD, record.path()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let before = lines(&record).len();
    assert!(before > 0);
    record.append("after", &origin(), &options(&[])).unwrap();
    assert_eq!(lines(&record).len(), before + 1);
}

#[test]
fn a_line_after_a_partial_line_starts_on_a_new_line() {
    let directory = tempfile::tempdir().unwrap();
    let record = JobRecord::at(directory.path().join("record"));
    fs::write(record.path(), "{}\n{\"message\":\"ha").unwrap();
    fs::set_permissions(record.path(), fs::Permissions::from_mode(0o666)).unwrap();
    for text in ["a", "b"] {
        record.append(text, &origin(), &options(&[])).unwrap();
    }
    let text = fs::read_to_string(record.path()).unwrap();
    let texts: Vec<Option<Value>> = text.lines().map(|line| serde_json::from_str(line).ok()).collect();
    let messages: Vec<Value> = texts.iter().flatten().map(|line| line["message"].clone()).collect();
    assert_eq!((texts.len(), messages), (4, vec![Value::Null, "a".into(), "b".into()]), "{text}");
    assert_eq!(fs::metadata(record.path()).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn the_record_of_an_earlier_engine_is_renamed() {
    let directory = tempfile::tempdir().unwrap();
    let record = JobRecord::at(directory.path().join("record"));
    record.rotate().unwrap();
    for text in ["first", "second"] {
        record.append(text, &origin(), &options(&[])).unwrap();
        record.rotate().unwrap();
        assert!(!record.path().exists());
        let old = JobRecord::at(directory.path().join("record.old"));
        assert_eq!(lines(&old).iter().map(|line| &line["message"]).collect::<Vec<_>>(), [text]);
    }
}

#[test]
fn a_job_record_is_never_a_link_or_a_fifo_and_never_exceeds_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("secret"), "").unwrap();
    symlink(path("secret"), path("link")).unwrap();
    fs::hard_link(path("secret"), path("second-name")).unwrap();
    nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for name in ["link", "second-name", "fifo", ".", "no/such/directory"] {
        let failure = JobRecord::at(path(name)).append("x", &origin(), &options(&[])).unwrap_err();
        assert_eq!(failure.status, Status::ERR_NOT_AVAILABLE, "{name}: {failure}");
    }
    assert_eq!(fs::read(path("secret")).unwrap(), b"");
    fs::File::create(path("full")).unwrap().set_len(MAX_RECORD).unwrap();
    let full = JobRecord::at(path("full")).append("x", &origin(), &options(&[])).unwrap_err();
    assert_eq!(full.status, Status::ERR_OUT_OF_RESOURCE);
}
