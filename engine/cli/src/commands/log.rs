//! `iof log`: logs a message through a running engine. Also the log options of `iof run`, which
//! come from its environment.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;

use clap::Args;
use iof_engine::{LOG_PRIORITIES, LogConfig, LogOrder, MailServer, Syslog, log_channel_name};
use iof_proto::limits::MAX_LOG_TEXT;
use iof_proto::log::key;
use iof_proto::names::sanitize;
use iof_proto::{Info, InfoValue, Log, LogEntry, LogOutcome, LogReport, Proc, Rank, Status};
use iof_tool::{RequestError, own_proc};

use crate::commands::attach::attach;
use crate::error::Failure;
use crate::options::engine::EngineArgs;
use crate::terminal::message::print_message;

/// The variable with the order of channels, as in PMIx's library.
const ORDER: &str = "PMIX_MCA_plog_base_order";
/// The variable that stops at the first channel that takes a message, as in PMIx's library.
const ONCE: &str = "PMIX_MCA_plog_base_log_once";
/// The socket of the syslog daemon, if it is not /dev/log, as in containers.
const SYSLOG: &str = "IOF_SYSLOG";
/// The mail server, HOST or HOST:PORT, if it is not on the node itself.
const MAIL_SERVER: &str = "IOF_MAIL_SERVER";
/// The socket of the site's gateway engine.
const GATEWAY: &str = "IOF_GATEWAY";

#[derive(Args)]
#[command(
    after_help = "Channels: stdout and stderr (of the rank that runs this command, otherwise of the job); \
                        local_syslog; global_syslog; syslog (global_syslog if available, otherwise local_syslog); \
                        email; job_record (a file beside the engine's socket); global_datastore; and keys with a dot, \
                        which name channels of the launcher that embeds the engine. `iof query LOG_CHANNELS` lists \
                        the available channels."
)]
pub struct LogArgs {
    /// Log to these channels, in order of preference
    ///
    /// By default the engine chooses: every available channel except stdout, unless its launcher
    /// sets another order.
    #[arg(long, value_name = "LIST", value_parser = channels)]
    channel: Option<LogOrder>,

    /// Log to these channels even with --once
    ///
    /// They are added to the channels of --channel. With --once, they are tried first.
    #[arg(long, value_name = "LIST", value_parser = channels)]
    required: Option<LogOrder>,

    /// Stop at the first channel that accepts the message
    #[arg(long)]
    once: bool,

    /// Set the syslog priority
    ///
    /// One of emerg, alert, crit, err, warning, notice, info, debug, or 0 to 7.
    #[arg(long, value_name = "P", default_value = "info", value_parser = priority)]
    priority: u32,

    /// Tag the message with its process and channel
    ///
    /// Applies to stdout and stderr.
    #[arg(long)]
    tag: bool,

    /// Add the time to the message
    #[arg(long)]
    timestamp: bool,

    /// Format the message as XML
    ///
    /// Applies to stdout and stderr.
    #[arg(long)]
    xml: bool,

    /// Send email to these addresses
    ///
    /// Separate them by commas.
    #[arg(long, value_name = "LIST")]
    mail_to: Option<String>,

    /// Set the subject of the email
    #[arg(long, value_name = "TEXT", requires = "mail_to")]
    subject: Option<String>,

    /// Use this mail server [default: the engine's]
    ///
    /// HOST or HOST:PORT.
    #[arg(long, value_name = "HOST", requires = "mail_to", value_parser = server)]
    mail_server: Option<ServerAddress>,

    #[command(flatten)]
    engine: EngineArgs,

    /// Message to log, or - to read it from stdin [default: -]
    ///
    /// UTF-8 of at most 32 KiB.
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
}

/// The address of a mail server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServerAddress {
    host: String,
    port: Option<u32>,
}

/// Logs a message, and reports the channels that did not take it.
pub fn log(args: &LogArgs) -> Result<(), Failure> {
    let message = match args.message.as_deref() {
        None | Some("-") => read_message(io::stdin())?,
        Some(message) => message.to_owned(),
    };
    let log = Log { data: data(args, &message), directives: directives(args) };
    if args.mail_to.is_none() && log.data.iter().any(|entry| entry.channel == key::PMIX_LOG_EMAIL) {
        return Err(Failure::usage("the channel email needs an address: add --mail-to"));
    }
    let mut tool = attach(&args.engine, "iof log")?;
    let LogReport { status, outcomes, ignored } = tool.log(&log).map_err(|error| match error {
        RequestError::Denied(failure) if failure.status == Status::ERR_BAD_PARAM => {
            Failure::usage(failure.reason)
        }
        RequestError::Denied(failure) => Failure::running(failure.reason),
        RequestError::Unsendable(error) => {
            Failure::usage(format!("{error}; or write the message to a file and log its name"))
        }
        error => Failure::running(error),
    })?;
    for key in &ignored {
        print_message(format_args!("{key} is ignored"));
    }
    for LogOutcome { channel, result } in &outcomes {
        if let Err(failure) = result {
            // The reason may quote the answer of a mail server, in several lines.
            print_message(format_args!("{}: {}", log_channel_name(channel), sanitize(&failure.reason)));
        }
    }
    match status {
        Status::SUCCESS => Ok(()),
        Status::ERR_PARTIAL_COMPLETION => {
            Err(Failure::running(format!("some channels did not take the message ({status})")))
        }
        _ => Err(Failure::running(format!("the message was not logged as requested ({status})"))),
    }
}

/// Reads a message from `input`, without its last newline.
fn read_message(input: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    // Room for the newline, and for one more byte that shows that the message is too long.
    let limit = u64::try_from(MAX_LOG_TEXT).unwrap_or(u64::MAX).saturating_add(2);
    input
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::running(format!("cannot read the message from stdin: {error}")))?;
    bytes.pop_if(|last| *last == b'\n');
    if bytes.is_empty() {
        return Err(Failure::usage("the message on stdin is empty: give a MESSAGE"));
    }
    if bytes.len() > MAX_LOG_TEXT {
        return Err(Failure::usage(format!(
            "the message on stdin has more than {MAX_LOG_TEXT} bytes, the limit of one message: write it to a file and \
             log its name"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Failure::usage(format!(
            "the message on stdin is not UTF-8 at byte {offset}: convert it, for example with iconv(1)"
        ))
    })
}

fn data(args: &LogArgs, message: &str) -> Vec<LogEntry> {
    let entry = |(channel, required): (&str, bool)| LogEntry { required, ..LogEntry::new(channel, message) };
    let is_required =
        |channel: &str| args.required.as_ref().is_some_and(|required| required.contains(channel));
    let mut data: Vec<LogEntry> = match &args.channel {
        Some(channels) => channels
            .channels()
            .map(|(channel, required)| entry((channel, required || is_required(channel))))
            .collect(),
        None if args.required.is_none() => vec![entry((key::PMIX_LOG_MSG, false))],
        None => Vec::new(),
    };
    let is_listed = |channel: &str| args.channel.as_ref().is_some_and(|channels| channels.contains(channel));
    let added = args.required.iter().flat_map(LogOrder::channels).filter(|(channel, _)| !is_listed(channel));
    data.extend(added.map(|(channel, _)| entry((channel, true))));
    data
}

fn directives(args: &LogArgs) -> Vec<Info> {
    let mut all = vec![Info::required(key::PMIX_LOG_SYSLOG_PRI, args.priority)];
    let flags = [(key::PMIX_LOG_ONCE, args.once), (key::PMIX_LOG_GENERATE_TIMESTAMP, args.timestamp)];
    all.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| Info::required(key, true)));
    // Optional, because only stdout and stderr support them: the other channels log the message as
    // it is.
    let styles = [(key::PMIX_LOG_TAG_OUTPUT, args.tag), (key::PMIX_LOG_XML_OUTPUT, args.xml)];
    all.extend(styles.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| Info::new(key, true)));
    let texts = [
        (key::PMIX_LOG_EMAIL_ADDR, args.mail_to.as_deref()),
        (key::PMIX_LOG_EMAIL_SUBJECT, args.subject.as_deref()),
        (key::PMIX_LOG_EMAIL_SERVER, args.mail_server.as_ref().map(|server| server.host.as_str())),
    ];
    all.extend(texts.into_iter().filter_map(|(key, text)| Some(Info::required(key, text?))));
    let port = args.mail_server.as_ref().and_then(|server| server.port);
    all.extend(port.map(|port| Info::required(key::PMIX_LOG_EMAIL_SRVR_PORT, port)));
    // The source is the job of --nspace. Without an option that selects an engine, it is the rank
    // in which this command runs, if any.
    let job = args.engine.nspace.clone().map(|nspace| Proc { nspace, rank: Rank::WILDCARD });
    let source = job.or_else(|| if args.engine.is_any() { own_proc() } else { None });
    let source = source.map(InfoValue::Proc);
    let info = |value| Info { key: key::PMIX_LOG_SOURCE.to_owned(), value, required: true };
    all.extend(source.map(info));
    all
}

/// Returns the log options of `iof run` from its environment.
pub fn config() -> Result<LogConfig, Failure> {
    let mut config = LogConfig::default();
    let invalid = |name: &str, error: &dyn ToString| Failure::usage(format!("{name}: {}", error.to_string()));
    if let Some(order) = text(ORDER) {
        config.order = order.parse().map_err(|error| invalid(ORDER, &error))?;
    }
    if let Some(once) = text(ONCE) {
        let not_a_boolean = || format!("invalid value '{once}': expected true, false or a number");
        config.once = parse_bool(&once).ok_or_else(|| invalid(ONCE, &not_a_boolean()))?;
    }
    if let Some(path) = value(SYSLOG) {
        config.syslog = Syslog::at(path);
    }
    if let Some(name) = text(MAIL_SERVER) {
        let ServerAddress { host, port } = server(&name).map_err(|error| invalid(MAIL_SERVER, &error))?;
        let default = MailServer::default();
        let port = port.and_then(|port| u16::try_from(port).ok()).unwrap_or(default.port);
        config.mail = Some(MailServer { host, port, ..default });
    }
    Ok(config)
}

/// Returns the gateway's socket, if the environment names one.
pub fn gateway() -> Option<PathBuf> {
    value(GATEWAY).map(PathBuf::from)
}

/// Returns the value of a variable, unless it is empty.
fn value(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}

/// Returns the value of a variable as text. Bytes that are not UTF-8 are replaced; the result then
/// fails to parse, and the error shows it.
fn text(variable: &str) -> Option<String> {
    value(variable).map(|value| value.to_string_lossy().into_owned())
}

/// Parses a boolean as PMIx's library does: a number, or a word in any case.
fn parse_bool(text: &str) -> Option<bool> {
    let text = text.trim().to_ascii_lowercase();
    match text.as_str() {
        "true" | "t" | "yes" | "y" | "on" | "enabled" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "disabled" | "" => Some(false),
        number => number.parse::<i64>().ok().map(|number| number != 0),
    }
}

fn channels(text: &str) -> Result<LogOrder, String> {
    let order: LogOrder = text.parse().map_err(|error: iof_engine::LogOrderError| error.to_string())?;
    if order.channels().next().is_none() {
        return Err("missing channel: expected a list such as stderr,email".into());
    }
    Ok(order)
}

fn priority(text: &str) -> Result<u32, String> {
    let matches = |(short, long, others): &(&str, &str, &[&str])| {
        [short, long].into_iter().chain(others.iter()).any(|name| name.eq_ignore_ascii_case(text))
    };
    let named = LOG_PRIORITIES.iter().position(matches).and_then(|index| u32::try_from(index).ok());
    let number = || text.parse().ok().filter(|number| *number < 8);
    named.or_else(number).ok_or_else(|| {
        let names = LOG_PRIORITIES.map(|(short, ..)| short).join(", ");
        format!("invalid priority '{text}': expected {names}, or 0 to 7")
    })
}

fn server(text: &str) -> Result<ServerAddress, String> {
    match text.rsplit_once(':') {
        // An IPv6 address without a port.
        Some((host, _)) if host.contains(':') && !host.ends_with(']') => {
            Ok(ServerAddress { host: text.to_owned(), port: None })
        }
        Some((host, port)) => {
            let port = port.parse().ok().filter(|port| (1..=65535).contains(port));
            let port =
                port.ok_or_else(|| format!("invalid mail server '{text}': expected a port after the colon"))?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Ok(ServerAddress { host, port: Some(port) })
        }
        None => Ok(ServerAddress { host: text.to_owned(), port: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_a_name_or_a_number() {
        assert_eq!((priority("err"), priority("7"), priority("info")), (Ok(3), Ok(7), Ok(6)));
        for (word, number) in [("ERROR", 3), ("Critical", 2), ("warn", 4), ("information", 6), ("PANIC", 0)] {
            assert_eq!(priority(word), Ok(number), "{word}");
        }
        for invalid in ["", "8", "-1", "urgent"] {
            assert!(priority(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn booleans_are_parsed_as_in_pmix() {
        for text in ["1", "true", "T", "yes", "On", "enabled", " 7", "-1"] {
            assert_eq!(parse_bool(text), Some(true), "{text}");
        }
        for text in ["0", "FALSE", "no", "off", "disabled", "", "00"] {
            assert_eq!(parse_bool(text), Some(false), "{text}");
        }
        assert_eq!((parse_bool("maybe"), parse_bool("1x")), (None, None));
    }

    #[test]
    fn a_message_from_stdin_is_read_whole_or_rejected() {
        let read = |bytes: &[u8]| {
            read_message(bytes).map_err(|failure| match failure {
                Failure::Usage(message) => message,
                _ => panic!("expected a usage error"),
            })
        };
        assert_eq!(read(b"two\nlines\n"), Ok("two\nlines".into()));
        assert_eq!(read(b"\n\n"), Ok("\n".into()));
        let largest = "x".repeat(MAX_LOG_TEXT);
        assert_eq!(read(largest.as_bytes()), Ok(largest.clone()));
        assert_eq!(read(format!("{largest}\n").as_bytes()), Ok(largest.clone()));
        for more in ["x", "x\n", "\n\n", "\nx", "xx\n", "xxxxx"] {
            let message = read(format!("{largest}{more}").as_bytes()).unwrap_err();
            assert!(message.contains("has more than 32768 bytes"), "{message}");
        }
        assert!(read(b"").unwrap_err().contains("the message on stdin is empty"));
        assert!(read(b"\n").is_err());
        assert!(read(b"ab\xff").unwrap_err().contains("not UTF-8 at byte 2"));
    }

    #[test]
    fn a_mail_server_is_a_name_or_an_address_with_an_optional_port() {
        let parsed = |text| {
            let ServerAddress { host, port } = server(text).unwrap();
            (host, port)
        };
        assert_eq!(parsed("mail"), ("mail".into(), None));
        assert_eq!(parsed("mail:2525"), ("mail".into(), Some(2525)));
        assert_eq!(parsed("::1"), ("::1".into(), None));
        assert_eq!(parsed("[::1]:25"), ("::1".into(), Some(25)));
        for invalid in ["mail:", "mail:x", "mail:0", "mail:65536"] {
            assert!(server(invalid).is_err(), "{invalid}");
        }
    }
}
