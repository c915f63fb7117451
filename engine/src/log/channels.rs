//! The channels of an engine: which there are, and who serves each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use iof_log::{ChannelKind, JobRecord, LogOptions, LogOrigin, Mail, Stalls, Worker, syslog_line};
use iof_proto::log::key;
use iof_proto::{Failure, Info, LogEntry, LogValue, Status};

use super::{LogConfig, LogStep, gateway};
use crate::control::Reports;
use crate::host::{Call, Host, Reply};

/// Where this engine logs to.
pub(super) struct LogChannels {
    pub config: LogConfig,
    node: String,
    record: Option<JobRecord>,
    /// A gateway has none, so that what was relayed once is not relayed again.
    gateway: Option<PathBuf>,
    host: BTreeSet<String>,
    reports: Arc<Reports>,
    stalls: Stalls,
    to_syslog: Worker,
    to_record: Worker,
    to_mail: Worker,
    to_gateway: Worker,
}

/// One entry of a request on its way to a channel.
pub(super) struct Entry {
    pub step: LogStep,
    pub entry: LogEntry,
    pub how: Arc<LogOptions>,
    pub origin: LogOrigin,
    /// The request's directives, as they came.
    pub directives: Vec<Info>,
    /// The tool that asked, until it goes; the embedder stays.
    pub asker: Option<Weak<()>>,
}

/// What became of an entry.
pub(super) enum Begun {
    /// It is known already.
    Done(Result<(), Failure>),
    /// It comes as a report.
    Later,
    /// It is for the host.
    Host(Entry),
}

impl LogChannels {
    pub(super) fn new(
        config: &LogConfig,
        host: &dyn Host,
        node: &str,
        socket: Option<&Path>,
        reports: Arc<Reports>,
    ) -> LogChannels {
        let beside = || {
            let mut name = socket?.as_os_str().to_owned();
            name.push(".record");
            let record = JobRecord::at(PathBuf::from(name));
            // Another engine had our pid, or our place.
            if let Err(error) = record.rotate() {
                tracing::warn!(path = %record.path().display(), %error, "an earlier job record stays in the way");
            }
            Some(record)
        };
        LogChannels {
            config: config.clone(),
            node: node.to_owned(),
            record: config.job_record.clone().map(JobRecord::at).or_else(beside),
            gateway: if config.gateway { None } else { host.gateway() },
            host: host.log_channels().into_iter().collect(),
            reports,
            stalls: Stalls::default(),
            to_syslog: Worker::new("iof-syslog"),
            to_record: Worker::new("iof-record"),
            to_mail: Worker::new("iof-mail"),
            to_gateway: Worker::new("iof-gateway"),
        }
    }

    /// The keys of those that there are.
    pub(super) fn keys(&self) -> Vec<String> {
        let has = |(kind, key): &(ChannelKind, &str)| match kind {
            ChannelKind::Stdout | ChannelKind::Stderr | ChannelKind::Email => true,
            ChannelKind::Syslog => {
                self.has(key::PMIX_LOG_LOCAL_SYSLOG) || self.has(key::PMIX_LOG_GLOBAL_SYSLOG)
            }
            _ => self.has(key),
        };
        let own = ChannelKind::builtin().filter(has).map(|(_, key)| key.to_owned());
        let theirs =
            self.host.iter().filter(|channel| ChannelKind::from_key(channel) == ChannelKind::Host).cloned();
        own.chain(theirs).collect()
    }

    /// Whether there is a channel whose being there does not depend on the request. Which channels
    /// a gateway has it says when it is asked for them.
    pub(super) fn has(&self, channel: &str) -> bool {
        match ChannelKind::from_key(channel) {
            ChannelKind::LocalSyslog => self.config.syslog.exists(),
            ChannelKind::GlobalSyslog => {
                self.config.gateway || self.gateway.is_some() || self.host.contains(channel)
            }
            ChannelKind::JobRecord => self.record.is_some(),
            ChannelKind::Host => self.gateway.is_some() || self.host.contains(channel),
            ChannelKind::Stdout
            | ChannelKind::Stderr
            | ChannelKind::Syslog
            | ChannelKind::Email
            | ChannelKind::Any => false,
        }
    }

    /// Has an entry logged, on any channel but stdout and stderr.
    pub(super) fn begin(&mut self, entry: Entry) -> Begun {
        match (ChannelKind::from_key(&entry.entry.channel), self.gateway.clone()) {
            (ChannelKind::LocalSyslog, _) => self.syslog(&entry),
            (ChannelKind::GlobalSyslog, _) if self.config.gateway => self.syslog(&entry),
            (ChannelKind::GlobalSyslog, Some(gateway)) => self.relay(gateway, &entry),
            (ChannelKind::Email, Some(gateway)) if self.config.mail.is_none() && !names_server(&entry) => {
                self.relay(gateway, &entry)
            }
            (ChannelKind::Email, _) => self.mail(entry),
            (ChannelKind::JobRecord, _) => self.job_record(&entry),
            (ChannelKind::Host, Some(gateway)) if !self.host.contains(&entry.entry.channel) => {
                self.relay(gateway, &entry)
            }
            _ => Begun::Host(entry),
        }
    }

    fn syslog(&mut self, entry: &Entry) -> Begun {
        let line = syslog_line(text(entry), &entry.origin, &self.node, &entry.how);
        let (syslog, priority, stalls) =
            (self.config.syslog.clone(), entry.how.priority, self.stalls.clone());
        let job = job(&self.reports, entry.step, move || syslog.send(priority, &line, &stalls));
        begun(self.to_syslog.submit(job))
    }

    fn job_record(&mut self, entry: &Entry) -> Begun {
        let Some(record) = self.record.clone() else {
            return failed(Status::ERR_NOT_AVAILABLE, "this engine keeps no job record");
        };
        let (text, origin, how) = (text(entry).to_owned(), entry.origin.clone(), Arc::clone(&entry.how));
        let job = job(&self.reports, entry.step, move || record.append(&text, &origin, &how));
        begun(self.to_record.submit(job))
    }

    /// Mail is not begun once its asker has gone: behind a slow server it would only keep others
    /// waiting. It is made where it is sent: to know who sends it, a directory service may have
    /// to be asked.
    fn mail(&mut self, entry: Entry) -> Begun {
        let server = self.config.mail.clone().unwrap_or_default();
        let (node, stalls) = (self.node.clone(), self.stalls.clone());
        let job = job(&self.reports, entry.step, move || {
            if entry.asker.as_ref().is_some_and(|asker| asker.strong_count() == 0) {
                let reason = "whoever asked for it has gone".into();
                return Err(Failure { status: Status::ERR_NOT_AVAILABLE, reason });
            }
            Mail::new(fields(&entry), &entry.how, &server, &node)?.send(&stalls)
        });
        begun(self.to_mail.submit(job))
    }

    fn relay(&mut self, socket: PathBuf, entry: &Entry) -> Begun {
        let log = gateway::relayed(entry);
        let stalls = self.stalls.clone();
        let job = job(&self.reports, entry.step, move || gateway::relay(&socket, &log, &stalls));
        begun(self.to_gateway.submit(job))
    }
}

/// What a worker does: `work`, and the result of `step` is what that came to.
fn job(
    reports: &Arc<Reports>,
    step: LogStep,
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    let reply = Reply::new(Call::Log(step), Arc::clone(reports));
    move || match work() {
        Ok(()) => reply.grant(),
        Err(Failure { status, reason }) => reply.deny(status, reason),
    }
}

/// A job that was refused has answered by being dropped, which comes too late.
fn begun(submitted: Result<(), Failure>) -> Begun {
    submitted.map_or_else(|failure| Begun::Done(Err(failure)), |()| Begun::Later)
}

fn failed(status: Status, reason: &str) -> Begun {
    Begun::Done(Err(Failure { status, reason: reason.to_owned() }))
}

fn text(entry: &Entry) -> &str {
    entry.entry.text().unwrap_or_default()
}

/// Those of an email.
fn fields(entry: &Entry) -> &[Info] {
    if let LogValue::Email(fields) = &entry.entry.value { fields } else { &[] }
}

fn names_server(entry: &Entry) -> bool {
    fields(entry).iter().chain(&entry.how.email).any(|info| info.key == key::PMIX_LOG_EMAIL_SERVER)
}
