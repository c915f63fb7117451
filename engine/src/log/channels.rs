//! The log channels of an engine and the threads that serve them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

#[cfg(feature = "mail")]
use iof_log::Mail;
use iof_log::{ChannelKind, JobRecord, LogOptions, LogOrigin, Stalls, Worker, syslog_line};
use iof_proto::log::key;
use iof_proto::{Failure, Info, LogEntry, LogValue, Status};

use super::{LogConfig, LogStep, gateway};
use crate::control::Reports;
use crate::host::{Call, Host, HostReply};

/// The configured channels and their threads.
pub(super) struct LogChannels {
    pub config: LogConfig,
    node: String,
    record: Option<JobRecord>,
    /// The socket of the gateway engine. A gateway has none, so that a relayed message is not
    /// relayed again.
    gateway: Option<PathBuf>,
    host: BTreeSet<String>,
    reports: Arc<Reports>,
    stalls: Stalls,
    to_syslog: Worker,
    to_record: Worker,
    #[cfg(feature = "mail")]
    to_mail: Worker,
    to_gateway: Worker,
}

/// One entry of a request on its way to a channel.
pub(super) struct ChannelEntry {
    pub step: LogStep,
    pub entry: LogEntry,
    pub options: Arc<LogOptions>,
    pub origin: LogOrigin,
    /// The request's directives, unchanged.
    pub directives: Vec<Info>,
    /// Expires when the tool that sent the request disconnects; `None` for the embedder.
    #[cfg_attr(not(feature = "mail"), expect(dead_code, reason = "only mail depends on it"))]
    pub requester: Option<Weak<()>>,
}

/// The state of an entry after [`LogChannels::begin`].
pub(super) enum Submission {
    /// The result is known already.
    Done(Result<(), Failure>),
    /// The result follows as a report.
    Pending,
    /// The host must log the entry.
    Host(ChannelEntry),
}

impl LogChannels {
    pub(super) fn new(
        config: &LogConfig,
        host: &dyn Host,
        node: &str,
        socket: Option<&Path>,
        reports: Arc<Reports>,
    ) -> LogChannels {
        let default_record = || {
            let mut name = socket?.as_os_str().to_owned();
            name.push(".record");
            let record = JobRecord::at(PathBuf::from(name));
            // An earlier engine had the same pid or the same socket path.
            if let Err(error) = record.rotate() {
                tracing::warn!(path = %record.path().display(), %error, "cannot rename an earlier job record");
            }
            Some(record)
        };
        LogChannels {
            config: config.clone(),
            node: node.to_owned(),
            record: config.job_record.clone().map(JobRecord::at).or_else(default_record),
            gateway: if config.gateway { None } else { host.gateway() },
            host: host.log_channels().into_iter().collect(),
            reports,
            stalls: Stalls::default(),
            to_syslog: Worker::new("iof-syslog"),
            to_record: Worker::new("iof-record"),
            #[cfg(feature = "mail")]
            to_mail: Worker::new("iof-mail"),
            to_gateway: Worker::new("iof-gateway"),
        }
    }

    /// Returns the keys of the available channels.
    pub(super) fn keys(&self) -> Vec<String> {
        let has = |(kind, key): &(ChannelKind, &str)| match kind {
            ChannelKind::Stdout | ChannelKind::Stderr => true,
            ChannelKind::Email => self.sends_mail(),
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

    /// Returns whether a channel is available to every request. A gateway reports only per request
    /// which channels it has.
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

    /// Returns whether email can be sent, by this engine or its gateway.
    pub(super) fn sends_mail(&self) -> bool {
        cfg!(feature = "mail") || self.gateway.is_some()
    }

    /// Begins to log an entry on any channel but stdout and stderr.
    pub(super) fn begin(&mut self, entry: ChannelEntry) -> Submission {
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
            _ => Submission::Host(entry),
        }
    }

    fn syslog(&mut self, entry: &ChannelEntry) -> Submission {
        let line = syslog_line(text(entry), &entry.origin, &self.node, &entry.options);
        let (syslog, priority, stalls) =
            (self.config.syslog.clone(), entry.options.priority, self.stalls.clone());
        let job = job(&self.reports, entry.step, move || syslog.send(priority, &line, &stalls));
        submission(self.to_syslog.submit(job))
    }

    fn job_record(&mut self, entry: &ChannelEntry) -> Submission {
        let Some(record) = self.record.clone() else {
            return failed(Status::ERR_NOT_AVAILABLE, "this engine keeps no job record");
        };
        let (text, origin, options) =
            (text(entry).to_owned(), entry.origin.clone(), Arc::clone(&entry.options));
        let job = job(&self.reports, entry.step, move || record.append(&text, &origin, &options));
        submission(self.to_record.submit(job))
    }

    /// Mail is not begun after its requester has disconnected: behind a slow server it would only
    /// delay other mail. The mail is composed on the thread that sends it, because finding the
    /// sender may query a directory service.
    #[cfg(feature = "mail")]
    fn mail(&mut self, entry: ChannelEntry) -> Submission {
        let server = self.config.mail.clone().unwrap_or_default();
        let (node, stalls) = (self.node.clone(), self.stalls.clone());
        let job = job(&self.reports, entry.step, move || {
            if entry.requester.as_ref().is_some_and(|requester| requester.strong_count() == 0) {
                let reason = "the requester has disconnected";
                return Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason));
            }
            Mail::new(fields(&entry), &entry.options, &server, &node)?.send(&stalls)
        });
        submission(self.to_mail.submit(job))
    }

    #[cfg(not(feature = "mail"))]
    fn mail(&mut self, _entry: ChannelEntry) -> Submission {
        failed(Status::ERR_NOT_SUPPORTED, "this engine was built without the feature `mail`: use the syslog")
    }

    fn relay(&mut self, socket: PathBuf, entry: &ChannelEntry) -> Submission {
        let log = gateway::relayed(entry);
        let stalls = self.stalls.clone();
        let job = job(&self.reports, entry.step, move || gateway::relay(&socket, &log, &stalls));
        submission(self.to_gateway.submit(job))
    }
}

/// Returns the job of a worker: it does `work` and reports the outcome as the result of `step`.
fn job(
    reports: &Arc<Reports>,
    step: LogStep,
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    let reply = HostReply::new(Call::Log(step), Arc::clone(reports));
    move || match work() {
        Ok(()) => reply.grant(),
        Err(Failure { status, reason }) => reply.deny(status, reason),
    }
}

/// Returns the state of a submitted job. A rejected job has reported a result when it was dropped,
/// but that report arrives after this one and is ignored.
fn submission(submitted: Result<(), Failure>) -> Submission {
    submitted.map_or_else(|failure| Submission::Done(Err(failure)), |()| Submission::Pending)
}

fn failed(status: Status, reason: &str) -> Submission {
    Submission::Done(Err(Failure::new(status, reason.to_owned())))
}

fn text(entry: &ChannelEntry) -> &str {
    entry.entry.text().unwrap_or_default()
}

/// Returns the fields of an email.
fn fields(entry: &ChannelEntry) -> &[Info] {
    if let LogValue::Email(fields) = &entry.entry.value { fields } else { &[] }
}

fn names_server(entry: &ChannelEntry) -> bool {
    fields(entry).iter().chain(&entry.options.email).any(|info| info.key == key::PMIX_LOG_EMAIL_SERVER)
}
