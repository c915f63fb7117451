//! The log channels of an engine and the threads that serve them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use iof_core::{Call, ChannelEntry, Input, LogConfig, LogRoute, LogRoutes, LogStep};
use iof_log::{JobRecord, Stalls, Worker, syslog_line};
use iof_proto::{Failure, Status};

use crate::logs::gateway::{relay, relayed};
use crate::tables::reports::Reports;
#[cfg(feature = "mail")]
use iof_log::Mail;

/// The threads that log messages.
pub(crate) struct LogChannels {
    config: LogConfig,
    node: String,
    record: Option<JobRecord>,
    /// The socket of the gateway engine.
    gateway: Option<PathBuf>,
    reports: Arc<Reports>,
    stalls: Stalls,
    to_syslog: Worker,
    to_record: Worker,
    #[cfg(feature = "mail")]
    to_mail: Worker,
    to_gateway: Worker,
}

impl LogChannels {
    /// Returns the channels, and what the core knows of them. `gateway` is the socket of the
    /// gateway engine, and `host` are the keys of the host's channels.
    pub(crate) fn new(
        config: &LogConfig,
        gateway: Option<PathBuf>,
        host: BTreeSet<String>,
        node: &str,
        socket: Option<&Path>,
        reports: Arc<Reports>,
    ) -> (LogChannels, LogRoutes) {
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
        let channels = LogChannels {
            config: config.clone(),
            node: node.to_owned(),
            record: config.job_record.clone().map(JobRecord::at).or_else(default_record),
            gateway: gateway.filter(|_| !config.gateway),
            reports,
            stalls: Stalls::default(),
            to_syslog: Worker::new("iof-syslog"),
            to_record: Worker::new("iof-record"),
            #[cfg(feature = "mail")]
            to_mail: Worker::new("iof-mail"),
            to_gateway: Worker::new("iof-gateway"),
        };
        let routes = LogRoutes {
            config: config.clone(),
            has_record: channels.record.is_some(),
            has_gateway: channels.gateway.is_some(),
            has_mail: cfg!(feature = "mail"),
            host,
        };
        (channels, routes)
    }

    /// Begins to log an entry. The result follows as a report.
    pub(crate) fn submit(&mut self, route: LogRoute, entry: ChannelEntry) {
        let call = Call::Log(entry.step);
        let submitted = match route {
            LogRoute::Syslog => self.syslog(&entry),
            LogRoute::JobRecord => self.job_record(&entry),
            LogRoute::Mail => self.mail(entry),
            LogRoute::Gateway => self.relay(&entry),
        };
        if let Err(failure) = submitted {
            self.reports.send(Input::Answered { call, answer: Err(failure) });
        }
    }

    fn syslog(&mut self, entry: &ChannelEntry) -> Result<(), Failure> {
        let line = syslog_line(entry.text(), &entry.origin, &self.node, &entry.options);
        let (syslog, priority, stalls) =
            (self.config.syslog.clone(), entry.options.priority, self.stalls.clone());
        let job = job(&self.reports, entry.step, move || syslog.send(priority, &line, &stalls));
        self.to_syslog.submit(job)
    }

    fn job_record(&mut self, entry: &ChannelEntry) -> Result<(), Failure> {
        let Some(record) = self.record.clone() else {
            return failed(Status::ERR_NOT_AVAILABLE, "this engine keeps no job record");
        };
        let (text, origin, options) =
            (entry.text().to_owned(), entry.origin.clone(), Arc::clone(&entry.options));
        let job = job(&self.reports, entry.step, move || record.append(&text, &origin, &options));
        self.to_record.submit(job)
    }

    /// Mail is not begun after its requester has disconnected: behind a slow server it would only
    /// delay other mail. The mail is composed on the thread that sends it, because finding the
    /// sender may query a directory service.
    #[cfg(feature = "mail")]
    fn mail(&mut self, entry: ChannelEntry) -> Result<(), Failure> {
        let server = self.config.mail.clone().unwrap_or_default();
        let (node, stalls) = (self.node.clone(), self.stalls.clone());
        let job = job(&self.reports, entry.step, move || {
            if entry.requester.as_ref().is_some_and(|requester| requester.strong_count() == 0) {
                let reason = "the requester has disconnected";
                return Err(Failure::new(Status::ERR_NOT_AVAILABLE, reason));
            }
            Mail::new(entry.fields(), &entry.options, &server, &node)?.send(&stalls)
        });
        self.to_mail.submit(job)
    }

    #[cfg(not(feature = "mail"))]
    fn mail(&mut self, _entry: ChannelEntry) -> Result<(), Failure> {
        failed(Status::ERR_NOT_SUPPORTED, "this engine was built without the feature `mail`: use the syslog")
    }

    fn relay(&mut self, entry: &ChannelEntry) -> Result<(), Failure> {
        let Some(socket) = self.gateway.clone() else {
            return failed(Status::ERR_NOT_AVAILABLE, "this engine has no gateway");
        };
        let log = relayed(entry);
        let stalls = self.stalls.clone();
        let job = job(&self.reports, entry.step, move || relay(&socket, &log, &stalls));
        self.to_gateway.submit(job)
    }
}

/// Returns the job of a worker: it does `work` and reports the outcome as the result of `step`.
fn job(
    reports: &Arc<Reports>,
    step: LogStep,
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    let reports = Arc::clone(reports);
    move || reports.send(Input::Answered { call: Call::Log(step), answer: work() })
}

fn failed(status: Status, reason: &str) -> Result<(), Failure> {
    Err(Failure::new(status, reason.to_owned()))
}
