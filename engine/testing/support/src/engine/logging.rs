//! Engines that log, and helpers that read what was logged.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iof_engine::{Config, Engine, Host, HostReply, Job, LogConfig, MailServer, Syslog};
use iof_proto::log::key;
use iof_proto::{Info, InfoValue, Log, LogReport, Proc, Rank};
use iof_tool::Tool;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::{changed, nspace, session_with, shell, spec};

/// An engine with its own directory.
pub struct Fixture {
    pub engine: Engine,
    pub directory: TempDir,
}

pub fn fixture(log: LogConfig, host: impl Host + 'static) -> Fixture {
    let config = changed(Config::default(), |config| config.log = log);
    let (engine, directory) = session_with(config, Arc::new(host));
    Fixture { engine, directory }
}

/// Returns a configuration without a syslog, so that the machine's own syslog does not matter.
pub fn config() -> LogConfig {
    LogConfig { syslog: Syslog::at("/no/such/socket"), ..LogConfig::default() }
}

impl Fixture {
    pub fn tool(&self) -> Tool {
        Tool::connect(self.engine.socket().unwrap(), "test").unwrap()
    }

    pub fn log(&self, log: &Log) -> LogReport {
        self.tool().log(log).unwrap()
    }

    pub fn record(&self) -> Vec<String> {
        let mut files = fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let record = files.find(|path| path.extension().is_some_and(|extension| extension == "record"));
        let text = record.map(|path| fs::read_to_string(path).unwrap()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// A job of one rank that writes a line and then waits for its end.
pub struct WaitingJob {
    job: Job,
    fifo: PathBuf,
}

impl WaitingJob {
    pub fn start(fixture: &Fixture) -> WaitingJob {
        let fifo = fixture.directory.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let script = format!("echo own; : < {}", fifo.display());
        WaitingJob { job: fixture.engine.spawn(&spec([shell(&script)])).unwrap(), fifo }
    }

    pub fn end(self) {
        // Opened for reading, too, so that the call does not block until the rank opens it.
        let _open = fs::File::options().read(true).write(true).open(self.fifo).unwrap();
        super::wait(&self.job);
    }
}

pub fn source(rank: Rank) -> Info {
    let value = InfoValue::Proc(Proc::new(nspace(), rank));
    Info { key: key::PMIX_LOG_SOURCE.into(), value, required: true }
}

pub fn with(directives: Vec<Info>, log: Log) -> Log {
    Log { directives, ..log }
}

pub fn flag(key: &str) -> Info {
    Info::required(key, true)
}

/// Returns the channels that were tried, and whether each accepted the message.
pub fn tried(report: &LogReport) -> Vec<(&str, bool)> {
    report.outcomes.iter().map(|outcome| (outcome.channel.as_str(), outcome.result.is_ok())).collect()
}

pub fn mail_to(server: SocketAddr, timeout: Duration) -> MailServer {
    MailServer { host: server.ip().to_string(), port: server.port(), timeout }
}

/// Returns an email as a tool requests it.
pub fn email(text: &str) -> Log {
    let to = Info::required(key::PMIX_LOG_EMAIL_ADDR, "a@example.org");
    with(vec![to], Log::to([key::PMIX_LOG_EMAIL], text))
}

/// Returns an email for another mail server than the engine's.
pub fn email_by(server: SocketAddr, text: &str) -> Log {
    let mut log = email(text);
    log.directives.extend([
        Info::required(key::PMIX_LOG_EMAIL_SERVER, server.ip().to_string().as_str()),
        Info::required(key::PMIX_LOG_EMAIL_SRVR_PORT, u32::from(server.port())),
    ]);
    log
}

/// A host that passes each log request to the test, which answers it.
pub struct Scripted {
    pub requests: Mutex<Sender<(Log, HostReply)>>,
}

impl Host for Scripted {
    fn log_channels(&self) -> Vec<String> {
        vec![key::PMIX_LOG_GLOBAL_DATASTORE.into(), "site.pager".into()]
    }

    fn directives(&self) -> Vec<String> {
        vec!["site.credential".into()]
    }

    fn log(&self, log: &Log, reply: HostReply) {
        // The test may have ended already.
        let _ = self.requests.lock().unwrap().send((log.clone(), reply));
    }
}

pub fn scripted(log: LogConfig) -> (Fixture, Receiver<(Log, HostReply)>) {
    let (sender, requests) = channel();
    (fixture(log, Scripted { requests: Mutex::new(sender) }), requests)
}
