//! The way to the gateway engine: this engine is a tool of it for as long as one message takes.

use std::path::Path;
use std::time::Duration;

use iof_log::{ChannelKind, LogOptions, Stalls};
use iof_proto::log::key;
use iof_proto::rendezvous::ConnectError;
use iof_proto::{Failure, Info, InfoValue, Log, LogEntry, Status};
use iof_tool::{AttachError, RequestError, Tool};

use super::channels::Entry;

/// How long a gateway may take for one message: longer than the mail servers that it may have to
/// wait for.
const PATIENCE: Duration = Duration::from_secs(60);

/// One entry of a request as the gateway is asked for it.
pub(super) fn relayed(Entry { entry, how, origin, directives, .. }: &Entry) -> Log {
    let info = |key: &str, value| Info { key: key.to_owned(), value, required: false };
    let mut said = vec![
        Info::required(key::IOF_LOG_RELAYED, origin.requester.as_str()),
        Info::new(key::PMIX_LOG_SYSLOG_PRI, u32::from(how.priority)),
    ];
    if let Some(time) = how.time.and_then(|time| u64::try_from(time.as_second()).ok()) {
        said.push(Info::new(key::PMIX_LOG_TIMESTAMP, time));
    }
    said.extend(origin.source.clone().map(|source| info(key::PMIX_LOG_SOURCE, InfoValue::Proc(source))));
    said.extend(how.email.iter().cloned());
    if ChannelKind::from_key(&entry.channel) == ChannelKind::Host {
        // What only its host understands; and how it is to look, which that may understand.
        let style = [key::PMIX_LOG_TAG_OUTPUT, key::PMIX_LOG_XML_OUTPUT];
        let theirs = |info: &&Info| {
            let key = info.key.as_str();
            style.contains(&key)
                || (key != key::IOF_LOG_RELAYED && LogOptions::keys().all(|known| known != key))
        };
        said.extend(directives.iter().filter(theirs).cloned());
    }
    Log { data: vec![LogEntry { required: true, ..entry.clone() }], directives: said }
}

/// Has the gateway that listens on `socket` log it, and waits for that. One that has stalled a
/// short time ago is not asked.
pub(super) fn relay(socket: &Path, log: &Log, stalls: &Stalls) -> Result<(), Failure> {
    let name = format!("the gateway at {}", socket.display());
    stalls.check(&name)?;
    let failed = |error: &dyn ToString| {
        let reason = format!("{name}: {}", error.to_string());
        Failure { status: Status::ERR_NOT_AVAILABLE, reason }
    };
    let mut gateway = Tool::connect(socket, "iof gateway").map_err(|error| {
        if matches!(error, AttachError::Silent { .. } | AttachError::Connect(ConnectError::Full(_))) {
            stalls.record(&name);
        }
        failed(&error)
    })?;
    let report = match gateway.log_within(log, PATIENCE) {
        Ok(Some(report)) => report,
        Ok(None) => {
            stalls.record(&name);
            return Err(failed(&format!("it has not answered for {} s", PATIENCE.as_secs())));
        }
        Err(RequestError::Denied(Failure { status, reason })) => {
            return Err(Failure { status, ..failed(&reason) });
        }
        Err(error) => return Err(failed(&error)),
    };
    let refused = report.outcomes.into_iter().find_map(|of| of.result.err());
    refused.map_or(Ok(()), |Failure { status, reason }| Err(Failure { status, ..failed(&reason) }))
}
