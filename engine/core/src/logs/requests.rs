//! The steps of log requests.

use iof_log::{ChannelKind, LogOptions, resolve_channels};
use iof_proto::log::key;
use iof_proto::{Channel, Failure, Log, LogReport, Proc, Quota, Rank, Status, ToTool};

use crate::Core;
use crate::clients::client::Requester;
use crate::clients::owed::size_of_infos;
use crate::clients::quotas::Charge;
use crate::ids::{Call, LogId, LogStep};
use crate::jobs::job::{JobState, RemoteRanks};
use crate::logs::channel_entry::ChannelEntry;
use crate::logs::table::PreparedLog;
use crate::upcall::Upcall;

impl Core {
    /// Serves a client's log request.
    pub(crate) fn log(&mut self, requester: Requester, log: &Log) {
        match self.prepare_log(&requester, log) {
            Ok(prepared) => self.begin_log(requester, prepared),
            Err(failure) => self.reply_logged(requester, Err(failure)),
        }
    }

    /// Begins a request that was checked and charged.
    pub(crate) fn begin_log(&mut self, requester: Requester, (log, charge): (PreparedLog, Charge)) {
        let id = self.logs.begin(requester, log, charge);
        self.continue_log(id);
    }

    /// Checks a request, and charges its client.
    pub(crate) fn prepare_log(
        &mut self,
        requester: &Requester,
        log: &Log,
    ) -> Result<(PreparedLog, Charge), Failure> {
        let prepared = self.plan_log(requester, log)?;
        let amounts = [(Quota::Logs, 1), (Quota::LogBytes, prepared.bytes as u64)];
        let charge = self.quotas.charge(requester.client.payer(), amounts)?;
        Ok((prepared, charge))
    }

    fn plan_log(&self, requester: &Requester, log: &Log) -> Result<PreparedLog, Failure> {
        let (mut options, mut ignored) = LogOptions::parse(&log.directives, &self.settings.host_keys)?;
        let relayed = options.relayed.is_some();
        if relayed && !self.logs.routes().config.gateway {
            let reason = "this engine is not a gateway: it does not log relayed messages";
            return Err(Failure::new(Status::ERR_NOT_SUPPORTED, reason));
        }
        self.check_source(requester, &options)?;
        if options.source.is_none() && !relayed {
            options.source = requester.client.rank.clone().or_else(|| self.only_job());
        }
        let available = |channel: &str| match ChannelKind::from_key(channel) {
            ChannelKind::Stdout | ChannelKind::Stderr => self.log_target(&options).is_ok(),
            ChannelKind::Email => {
                self.logs.routes().sends_mail()
                    && options.email.iter().any(|info| info.key == key::PMIX_LOG_EMAIL_ADDR)
            }
            _ => self.logs.routes().has(channel, self.resources.has_syslog()),
        };
        let config = &self.logs.routes().config;
        let entries = resolve_channels(log, &config.order, available)?;
        ignored.extend(options.ignored_by(entries.iter().map(|entry| ChannelKind::from_key(&entry.channel))));
        let directives = log.directives.clone();
        Ok(PreparedLog::new(requester, entries, config.once, options, directives, ignored))
    }

    /// Returns the engine's only job as a process without a rank. It is the source of messages that
    /// do not specify one.
    fn only_job(&self) -> Option<Proc> {
        Some(Proc::new(self.jobs.only()?.clone(), Rank::UNDEF))
    }

    /// Checks that the source of a message may be its source. A source that is unknown here may be
    /// known to others: the embedder, an engine that relays messages to this gateway, or a host
    /// that understands the directive.
    fn check_source(&self, requester: &Requester, options: &LogOptions) -> Result<(), Failure> {
        let Some(source) = &options.source else { return Ok(()) };
        let is_known = |job: &JobState| {
            let has_rank = job.has_rank(source.rank) || job.remote() == RemoteRanks::Running;
            [Rank::WILDCARD, Rank::UNDEF].contains(&source.rank) || has_rank
        };
        let is_known_elsewhere = requester.is_embedder()
            || options.relayed.is_some()
            || self.settings.host_keys.contains(key::PMIX_LOG_SOURCE);
        if is_known_elsewhere || self.jobs.get(&source.nspace).is_some_and(is_known) {
            return Ok(());
        }
        let reason = format!("the source {source} does not exist here: name another source or none");
        Err(Failure::new(Status::ERR_NOT_FOUND, reason))
    }

    /// Records the result of a step that another thread or the host has done.
    pub(crate) fn log_answered(&mut self, step: LogStep, answer: Result<(), Failure>) {
        if let Some(ongoing) = self.logs.get_mut(step.log) {
            ongoing.complete(step.step, answer);
        }
        self.continue_log(step.log);
    }

    pub(crate) fn continue_log(&mut self, log: LogId) {
        loop {
            let Some(ongoing) = self.logs.get_mut(log) else { return };
            let begun = ongoing.start_next();
            if begun.is_empty() {
                break;
            }
            for step in begun {
                let result = self.log_step(LogStep { log, step });
                if let (Some(result), Some(ongoing)) = (result, self.logs.get_mut(log)) {
                    ongoing.complete(step, result);
                }
            }
        }
        if let Some((requester, report, charge)) = self.logs.take_ended(log) {
            self.quotas.give_back([charge]);
            self.reply_logged(requester, Ok(report));
        }
    }

    /// Begins a step. Returns its result if that is known at once.
    fn log_step(&mut self, step: LogStep) -> Option<Result<(), Failure>> {
        let ongoing = self.logs.get(step.log).or_else(|| absent!("log", None))?;
        let (entry, payer) = (ongoing.entry(step).or_else(|| absent!("step", None))?, ongoing.charge.payer);
        let kind = ChannelKind::from_key(&entry.entry.channel);
        if let Err(failure) = entry.options.check_style(kind) {
            return Some(Err(failure));
        }
        let to_output = |channel| (channel, entry.entry.text().unwrap_or_default());
        let is_hosts = self.logs.routes().host.contains(&entry.entry.channel);
        let output = match kind {
            _ if is_hosts => None,
            ChannelKind::Stdout => Some(to_output(Channel::Stdout)),
            ChannelKind::Stderr => Some(to_output(Channel::Stderr)),
            _ => None,
        };
        if let Some((channel, text)) = output {
            return self.log_output(step, channel, text, &entry.options);
        }
        if let Some(route) = self.logs.routes().route(&entry) {
            self.effects.channel_entries.push((route, entry));
            return None;
        }
        let ChannelEntry { entry, directives, .. } = entry;
        let bytes = entry.text().map_or(0, str::len).saturating_add(size_of_infos(&directives));
        if let Err(failure) = self.owe(Call::Log(step), payer, bytes) {
            return Some(Err(failure));
        }
        self.effects.upcalls.push(Upcall::Log { step, log: Log { data: vec![entry], directives } });
        None
    }

    fn reply_logged(&mut self, requester: Requester, result: Result<LogReport, Failure>) {
        self.reply(requester, |request| ToTool::Logged { request, result });
    }
}
