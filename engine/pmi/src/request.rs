//! The requests of PMI-1, and their parser.

use crate::error::{ProtocolError, quoted};

/// A request of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PmiRequest<'a> {
    /// Begin, with the highest version that the rank speaks.
    Init { version: u32 },
    /// The greatest lengths of names, keys and values.
    Maxes,
    /// The number of the rank's app.
    AppNumber,
    /// The number of ranks that the launcher can start.
    UniverseSize,
    /// The name of the job's key-value space.
    SpaceName,
    /// Store a value.
    Put { space: &'a str, key: &'a str, value: &'a str },
    /// Return a value.
    Get { space: &'a str, key: &'a str },
    /// Wait for all ranks.
    Barrier,
    /// End.
    Finalize,
    /// End the job.
    Abort { code: i32 },
    /// Publish, remove or find a service.
    Service { action: ServiceAction, service: &'a str },
    /// The first line of a request to spawn a job, which ends with the line `endcmd`.
    Spawn,
}

/// A request about a service (`MPI_Publish_name` and others).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAction {
    /// Publish it with this port.
    Publish(String),
    /// Remove it.
    Unpublish,
    /// Return its port.
    Lookup,
}

/// The first line of a request to spawn a job.
const SPAWN: &str = "mcmd=spawn";
/// The exit code of a job that a rank aborts without a code.
const ABORTED: i32 = 1;
/// The code in place of one that is not an `i32`. Like any code outside 0 to 255, it ends the job
/// with 255.
const UNREADABLE: i32 = -1;

impl<'a> PmiRequest<'a> {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is not a request, or it lacks a word.
    pub(crate) fn parse(line: &'a str) -> Result<PmiRequest<'a>, ProtocolError> {
        let line = line.trim();
        if line == SPAWN {
            return Ok(PmiRequest::Spawn);
        }
        let unknown = || ProtocolError::Unknown { command: quoted(line) };
        let command = word(line, "cmd").ok_or_else(unknown)?;
        let lacks = |key| ProtocolError::Word { command: quoted(command), key };
        let required = |key| word(line, key).ok_or_else(|| lacks(key));
        let remaining = |key| rest(line, key).ok_or_else(|| lacks(key));
        Ok(match command {
            "init" => {
                let version = required("pmi_version")?.parse();
                PmiRequest::Init { version: version.map_err(|_| lacks("pmi_version"))? }
            }
            "get_maxes" => PmiRequest::Maxes,
            "get_appnum" => PmiRequest::AppNumber,
            "get_universe_size" => PmiRequest::UniverseSize,
            "get_my_kvsname" => PmiRequest::SpaceName,
            "put" => PmiRequest::Put {
                space: required("kvsname")?,
                key: required("key")?,
                value: remaining("value")?,
            },
            "get" => PmiRequest::Get { space: required("kvsname")?, key: required("key")? },
            "barrier_in" => PmiRequest::Barrier,
            "finalize" => PmiRequest::Finalize,
            "abort" => PmiRequest::Abort {
                // Older clients send no code.
                code: word(line, "exitcode").map_or(ABORTED, |code| code.parse().unwrap_or(UNREADABLE)),
            },
            "publish_name" | "unpublish_name" | "lookup_name" => PmiRequest::Service {
                action: match command {
                    "publish_name" => ServiceAction::Publish(remaining("port")?.into()),
                    "unpublish_name" => ServiceAction::Unpublish,
                    _ => ServiceAction::Lookup,
                },
                service: required("service")?,
            },
            _ => return Err(ProtocolError::Unknown { command: quoted(command) }),
        })
    }
}

/// Returns the value of the first word with this key.
fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Returns everything that follows the first word with this key: such a value may contain spaces.
fn rest<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let mut words = line.split_inclusive(|character: char| character.is_ascii_whitespace());
    let mut start = 0usize;
    words.find_map(|word| {
        let value = word.strip_prefix(key).and_then(|word| word.strip_prefix('='));
        let from = start.checked_add(key.len())?.checked_add(1)?;
        start = start.checked_add(word.len())?;
        value.and_then(|_| line.get(from..))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn requests_of_mpich_are_recognized() {
        for (line, request) in [
            ("cmd=init pmi_version=1 pmi_subversion=1", PmiRequest::Init { version: 1 }),
            ("cmd=get_maxes", PmiRequest::Maxes),
            ("cmd=get_appnum", PmiRequest::AppNumber),
            ("cmd=get_universe_size", PmiRequest::UniverseSize),
            ("cmd=get_my_kvsname", PmiRequest::SpaceName),
            (
                "cmd=put kvsname=s key=k value=a=b c ",
                PmiRequest::Put { space: "s", key: "k", value: "a=b c" },
            ),
            (
                "key=k  cmd=put value= kvsname=s",
                PmiRequest::Put { space: "s", key: "k", value: " kvsname=s" },
            ),
            ("cmd=put kvsname=s key=k value=", PmiRequest::Put { space: "s", key: "k", value: "" }),
            ("cmd=get kvsname=s key=k", PmiRequest::Get { space: "s", key: "k" }),
            ("cmd=barrier_in", PmiRequest::Barrier),
            ("cmd=finalize", PmiRequest::Finalize),
            ("cmd=abort exitcode=7 message=too bad", PmiRequest::Abort { code: 7 }),
            ("cmd=abort", PmiRequest::Abort { code: 1 }),
            ("cmd=abort exitcode=-7", PmiRequest::Abort { code: -7 }),
            ("cmd=abort exitcode=99999999999999", PmiRequest::Abort { code: -1 }),
            (
                "cmd=lookup_name service=x",
                PmiRequest::Service { action: ServiceAction::Lookup, service: "x" },
            ),
            (
                "cmd=publish_name service=x port=tag#0$a b",
                PmiRequest::Service { action: ServiceAction::Publish("tag#0$a b".into()), service: "x" },
            ),
            ("mcmd=spawn", PmiRequest::Spawn),
        ] {
            assert_eq!(PmiRequest::parse(line), Ok(request), "{line}");
        }
    }

    #[test]
    fn other_lines_are_refused_with_the_reason() {
        let word = |command: &str, key| ProtocolError::Word { command: command.into(), key };
        for (line, error) in [
            ("", ProtocolError::Unknown { command: String::new() }),
            ("hello", ProtocolError::Unknown { command: "hello".into() }),
            ("cmd=fly me", ProtocolError::Unknown { command: "fly".into() }),
            ("cmd=init", word("init", "pmi_version")),
            ("cmd=init pmi_version=-1", word("init", "pmi_version")),
            ("cmd=put kvsname=s key=k", word("put", "value")),
            ("cmd=get kvsname=s", word("get", "key")),
            ("cmd=publish_name service=x", word("publish_name", "port")),
        ] {
            assert_eq!(PmiRequest::parse(line), Err(error), "{line}");
        }
        let long = format!("cmd={}\u{7}", "x".repeat(100));
        let error = PmiRequest::parse(&long).unwrap_err().to_string();
        assert!(error.len() < 80, "{error}");
    }
}
