//! The connection to the gateway engine. This engine attaches to it as a tool for each message.

use std::path::Path;
use std::time::Duration;

use iof_core::ChannelEntry;
use iof_log::{ChannelKind, Stalls};
use iof_proto::attribute::{self, Place};
use iof_proto::log::key;
use iof_proto::rendezvous::ConnectError;
use iof_proto::{Failure, Info, InfoValue, Log, LogEntry, Status};
use iof_tool::{AttachError, RequestError, Tool};

/// The time limit for one message at the gateway. It is longer than the time that the gateway may
/// wait for its mail servers.
const RELAY_LIMIT: Duration = Duration::from_secs(60);

/// Builds the request that relays one entry to the gateway.
pub(crate) fn relayed(ChannelEntry { entry, options, origin, directives, .. }: &ChannelEntry) -> Log {
    let info = |key: &str, value| Info { key: key.to_owned(), value, required: false };
    let mut directives_out = vec![
        Info::required(key::IOF_LOG_RELAYED, origin.requester.as_str()),
        Info::new(key::PMIX_LOG_SYSLOG_PRI, u32::from(options.priority)),
    ];
    if let Some(time) = options.time.and_then(|time| u64::try_from(time.as_second()).ok()) {
        directives_out.push(Info::new(key::PMIX_LOG_TIMESTAMP, time));
    }
    directives_out
        .extend(origin.source.clone().map(|source| info(key::PMIX_LOG_SOURCE, InfoValue::Proc(source))));
    directives_out.extend(options.email.iter().cloned());
    if ChannelKind::from_key(&entry.channel) == ChannelKind::Host {
        // The gateway's host may understand these directives and the output style.
        let style = [key::PMIX_LOG_TAG_OUTPUT, key::PMIX_LOG_XML_OUTPUT];
        let theirs = |info: &&Info| {
            let is_ours = attribute::at(Place::LogDirective).any(|attribute| attribute.key == info.key);
            style.contains(&info.key.as_str()) || !is_ours
        };
        directives_out.extend(directives.iter().filter(theirs).cloned());
    }
    Log { data: vec![LogEntry { required: true, ..entry.clone() }], directives: directives_out }
}

/// Lets the gateway that listens on `socket` log a message, and blocks until it has answered. A
/// gateway that has stalled recently is not asked.
pub(crate) fn relay(socket: &Path, log: &Log, stalls: &Stalls) -> Result<(), Failure> {
    let name = format!("the gateway at {}", socket.display());
    stalls.check(&name)?;
    let failed = |error: &dyn ToString| {
        let reason = format!("{name}: {}", error.to_string());
        Failure::new(Status::ERR_NOT_AVAILABLE, reason)
    };
    let mut gateway = Tool::connect(socket, "iof gateway").map_err(|error| {
        if matches!(error, AttachError::Silent { .. } | AttachError::Connect(ConnectError::Full(_))) {
            stalls.record(&name);
        }
        failed(&error)
    })?;
    let report = match gateway.log_within(log, RELAY_LIMIT) {
        Ok(Some(report)) => report,
        Ok(None) => {
            stalls.record(&name);
            return Err(failed(&format!("no answer for {} s", RELAY_LIMIT.as_secs())));
        }
        Err(RequestError::Denied(Failure { status, reason })) => {
            return Err(Failure { status, ..failed(&reason) });
        }
        Err(error) => return Err(failed(&error)),
    };
    let refused = report.outcomes.into_iter().find_map(|outcome| outcome.result.err());
    refused.map_or(Ok(()), |Failure { status, reason }| Err(Failure { status, ..failed(&reason) }))
}
