//! The way to the gateway engine: this engine is a tool of it for as long as one message takes.

use std::path::Path;
use std::time::Duration;

use iof_log::How;
use iof_proto::log::key;
use iof_proto::{Failure, Info, InfoValue, Log, LogEntry, Status};
use iof_tool::{RequestError, Tool};

/// How long a gateway may take for one message: longer than the mail servers that it may have to wait for.
const PATIENCE: Duration = Duration::from_secs(60);

/// One entry of a request as the gateway is asked for it.
pub(super) fn relayed(entry: LogEntry, how: &How) -> Log {
    let mut directives = vec![
        Info::required(key::IOF_LOG_RELAYED, true),
        Info::new(key::PMIX_LOG_SYSLOG_PRI, u32::from(how.priority)),
    ];
    if let Some(time) = how.time.and_then(|time| u64::try_from(time.as_second()).ok()) {
        directives.push(Info::new(key::PMIX_LOG_TIMESTAMP, time));
    }
    if let Some(source) = &how.source {
        let value = InfoValue::Proc(source.clone());
        directives.push(Info { key: key::PMIX_LOG_SOURCE.to_owned(), value, required: false });
    }
    directives.extend(how.email.iter().cloned());
    Log { data: vec![LogEntry { required: true, ..entry }], directives }
}

/// Has the gateway that listens on `socket` log it, and waits for that.
pub(super) fn relay(socket: &Path, log: &Log) -> Result<(), Failure> {
    let failed = |error: &dyn ToString| {
        let reason = format!("the gateway at {}: {}", socket.display(), error.to_string());
        Failure { status: Status::ERR_NOT_AVAILABLE, reason }
    };
    let mut gateway = Tool::connect(socket, "iof gateway").map_err(|error| failed(&error))?;
    let report = match gateway.log_within(log, PATIENCE) {
        Ok(Some(report)) => report,
        Ok(None) => return Err(failed(&format!("it has not answered for {} s", PATIENCE.as_secs()))),
        Err(RequestError::Denied(Failure { status, reason })) => {
            return Err(Failure { status, ..failed(&reason) });
        }
        Err(error) => return Err(failed(&error)),
    };
    let refused = report.outcomes.into_iter().find_map(|of| of.result.err());
    refused.map_or(Ok(()), |Failure { status, reason }| Err(Failure { status, ..failed(&reason) }))
}
