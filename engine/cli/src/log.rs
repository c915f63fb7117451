//! `iof log`: logs a message through a running engine; and the log options of `iof run` from its
//! environment.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;

use clap::Args;
use iof_engine::{LOG_PRIORITIES, LogConfig, LogOrder, MailServer, Syslog};
use iof_proto::limits::MAX_LOG_TEXT;
use iof_proto::log::key;
use iof_proto::names::sanitize;
use iof_proto::{Info, InfoValue, Log, LogEntry, LogOutcome, LogReport, Proc, Rank, Status};
use iof_tool::{RequestError, own_proc};

use crate::args::EngineArgs;
use crate::attach::{Name, attach};
use crate::{Failure, print_message};

/// The order of channels, and whether the first is enough, as PMIx's library has them from its
/// environment.
const ORDER: &str = "PMIX_MCA_plog_base_order";
const ONCE: &str = "PMIX_MCA_plog_base_log_once";
/// The socket of the syslog daemon, where that is not /dev/log, as in containers.
const SYSLOG: &str = "IOF_SYSLOG";
/// The mail server, HOST or HOST:PORT, where that is not the node's own.
const MAIL_SERVER: &str = "IOF_MAIL_SERVER";
/// The socket of the site's gateway engine.
const GATEWAY: &str = "IOF_GATEWAY";

#[derive(Args)]
#[command(after_help = "Channels: stdout and stderr of the calling rank, or of the job; local_syslog, \
                        global_syslog, and syslog, which is the global one if it exists; email; job_record; \
                        global_datastore; and channels of the launcher that embeds the engine, by a key with a dot. \
                        `iof query LOG_CHANNELS` lists the available channels.")]
pub struct LogArgs {
    /// Channels to log to, in order of preference
    ///
    /// The default is the engine's own order, or else every available channel except stdout.
    #[arg(long, value_name = "LIST", value_parser = channels)]
    channel: Option<LogOrder>,

    /// Channels that must take the message
    ///
    /// They may be among those of --channel, or are added to them.
    #[arg(long, value_name = "LIST", value_parser = channels)]
    required: Option<LogOrder>,

    /// Stop at the first channel that takes the message
    #[arg(long)]
    once: bool,

    /// The priority in the syslog
    ///
    /// emerg, alert, crit, err, warning, notice, info, debug, or 0 to 7.
    #[arg(long, value_name = "P", default_value = "info", value_parser = priority)]
    priority: u32,

    /// Tag the message with its process and channel
    ///
    /// Applies to stdout and stderr.
    #[arg(long)]
    tag: bool,

    /// Add the time
    #[arg(long)]
    timestamp: bool,

    /// Print XML on stdout and stderr
    #[arg(long)]
    xml: bool,

    /// Addresses to send email to
    ///
    /// Separated by commas.
    #[arg(long, value_name = "LIST")]
    mail_to: Option<String>,

    /// The subject of the email
    #[arg(long, value_name = "TEXT", requires = "mail_to")]
    subject: Option<String>,

    /// The mail server [default: the engine's]
    ///
    /// HOST or HOST:PORT.
    #[arg(long, value_name = "HOST", requires = "mail_to", value_parser = server)]
    mail_server: Option<Server>,

    #[command(flatten)]
    engine: EngineArgs,

    /// The message [default: read from stdin, as with -]
    ///
    /// At most 32 KiB.
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
}

/// A mail server, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    host: String,
    port: Option<u32>,
}

/// Has a message logged, and says which channels did not take it.
pub fn log(args: &LogArgs) -> Result<(), Failure> {
    let message = match args.message.as_deref() {
        None | Some("-") => read_message(io::stdin())?,
        Some(message) => message.to_owned(),
    };
    let log = Log { data: data(args, &message), directives: directives(args) };
    if args.mail_to.is_none() && log.data.iter().any(|entry| entry.channel == key::PMIX_LOG_EMAIL) {
        return Err(Failure::usage("email needs an address: say --mail-to"));
    }
    let mut tool = attach(&args.engine, &Name::Log)?;
    let LogReport { status, outcomes, ignored } = tool.log(&log).map_err(|error| match error {
        RequestError::Denied(failure) if failure.status == Status::ERR_BAD_PARAM => {
            Failure::usage(failure.reason)
        }
        RequestError::Denied(failure) => Failure::running(failure.reason),
        RequestError::Unsendable(error) => {
            Failure::usage(format!("{error}; or write it to a file, and log its name"))
        }
        error => Failure::running(error),
    })?;
    for key in &ignored {
        print_message(format_args!("{key} is ignored"));
    }
    for LogOutcome { channel, result } in &outcomes {
        if let Err(failure) = result {
            // It may be what a mail server has answered, in several lines.
            print_message(format_args!("{channel}: {}", sanitize(&failure.reason)));
        }
    }
    match status {
        Status::SUCCESS => Ok(()),
        Status::ERR_PARTIAL_COMPLETION => {
            Err(Failure::running(format!("some channels did not take it ({status})")))
        }
        _ => Err(Failure::running(format!("it was not logged as asked ({status})"))),
    }
}

/// A message that comes by `input`, without its last newline.
fn read_message(input: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    // With its newline, and one more, which is too much.
    let most = u64::try_from(MAX_LOG_TEXT).unwrap_or(u64::MAX).saturating_add(2);
    input
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::running(format!("reading the message from stdin: {error}")))?;
    bytes.pop_if(|last| *last == b'\n');
    if bytes.is_empty() {
        return Err(Failure::usage("nothing came on stdin to be logged: give a MESSAGE"));
    }
    if bytes.len() > MAX_LOG_TEXT {
        return Err(Failure::usage(format!(
            "more than {MAX_LOG_TEXT} bytes came on stdin, which is the limit of one message; write it to a file, and log \
             its name"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::usage(format!("what came on stdin is no UTF-8 at byte {at}: convert it, as with iconv(1)"))
    })
}

fn data(args: &LogArgs, message: &str) -> Vec<LogEntry> {
    let entry = |(channel, required): (&str, bool)| LogEntry { required, ..LogEntry::new(channel, message) };
    let must = |channel: &str| args.required.as_ref().is_some_and(|required| required.contains(channel));
    let mut data: Vec<LogEntry> = match &args.channel {
        Some(channels) => channels
            .channels()
            .map(|(channel, required)| entry((channel, required || must(channel))))
            .collect(),
        None if args.required.is_none() => vec![entry((key::PMIX_LOG_MSG, false))],
        None => Vec::new(),
    };
    let named = |channel: &str| args.channel.as_ref().is_some_and(|channels| channels.contains(channel));
    let more = args.required.iter().flat_map(LogOrder::channels).filter(|(channel, _)| !named(channel));
    data.extend(more.map(|(channel, _)| entry((channel, true))));
    data
}

fn directives(args: &LogArgs) -> Vec<Info> {
    let mut all = vec![Info::required(key::PMIX_LOG_SYSLOG_PRI, args.priority)];
    let wishes = [(key::PMIX_LOG_ONCE, args.once), (key::PMIX_LOG_GENERATE_TIMESTAMP, args.timestamp)];
    all.extend(wishes.into_iter().filter(|(_, wanted)| *wanted).map(|(key, _)| Info::required(key, true)));
    // For stdout and stderr among the channels: the others take the message all the same.
    let styles = [(key::PMIX_LOG_TAG_OUTPUT, args.tag), (key::PMIX_LOG_XML_OUTPUT, args.xml)];
    all.extend(styles.into_iter().filter(|(_, wanted)| *wanted).map(|(key, _)| Info::new(key, true)));
    let texts = [
        (key::PMIX_LOG_EMAIL_ADDR, args.mail_to.as_deref()),
        (key::PMIX_LOG_EMAIL_SUBJECT, args.subject.as_deref()),
        (key::PMIX_LOG_EMAIL_SERVER, args.mail_server.as_ref().map(|server| server.host.as_str())),
    ];
    all.extend(texts.into_iter().filter_map(|(key, text)| Some(Info::required(key, text?))));
    let port = args.mail_server.as_ref().and_then(|server| server.port);
    all.extend(port.map(|port| Info::required(key::PMIX_LOG_EMAIL_SRVR_PORT, port)));
    // A job that was named; else, at the engine that has started us, the rank that we are.
    let job = args.engine.nspace.clone().map(|nspace| Proc { nspace, rank: Rank::WILDCARD });
    let source = job.or_else(|| if args.engine.is_any() { own_proc() } else { None });
    let source = source.map(InfoValue::Proc);
    let info = |value| Info { key: key::PMIX_LOG_SOURCE.to_owned(), value, required: true };
    all.extend(source.map(info));
    all
}

/// What the environment says of where `iof run` logs to.
pub fn config() -> Result<LogConfig, Failure> {
    let mut config = LogConfig::default();
    let wrong = |name: &str, error: &dyn ToString| Failure::usage(format!("{name}: {}", error.to_string()));
    if let Some(order) = text(ORDER) {
        config.order = order.parse().map_err(|error| wrong(ORDER, &error))?;
    }
    if let Some(once) = text(ONCE) {
        let neither = || format!("'{once}' is neither true nor false: say true, false, or a number");
        config.once = truth(&once).ok_or_else(|| wrong(ONCE, &neither()))?;
    }
    if let Some(path) = value(SYSLOG) {
        config.syslog = Syslog::at(path);
    }
    if let Some(name) = text(MAIL_SERVER) {
        let Server { host, port } = server(&name).map_err(|error| wrong(MAIL_SERVER, &error))?;
        let usual = MailServer::default();
        let port = port.and_then(|port| u16::try_from(port).ok()).unwrap_or(usual.port);
        config.mail = Some(MailServer { host, port, ..usual });
    }
    Ok(config)
}

/// Returns the gateway's socket, if the environment names one.
pub fn gateway() -> Option<PathBuf> {
    value(GATEWAY).map(PathBuf::from)
}

/// What a variable says, unless it is empty.
fn value(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}

/// The same as text. What is none is no name of anything either, and an error that shows it.
fn text(variable: &str) -> Option<String> {
    value(variable).map(|value| value.to_string_lossy().into_owned())
}

/// A truth as PMIx's library and its users write one: a number, or a word in any case.
fn truth(text: &str) -> Option<bool> {
    let text = text.trim().to_ascii_lowercase();
    match text.as_str() {
        "true" | "t" | "yes" | "y" | "on" | "enabled" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "disabled" | "" => Some(false),
        number => number.parse::<i64>().ok().map(|number| number != 0),
    }
}

fn channels(text: &str) -> Result<LogOrder, String> {
    let order: LogOrder = text.parse().map_err(|error: iof_engine::LogOrderError| error.to_string())?;
    if order.channels().next().is_none() { Err("name a channel, such as stderr".into()) } else { Ok(order) }
}

fn priority(text: &str) -> Result<u32, String> {
    let is = |(short, long, others): &(&str, &str, &[&str])| {
        [short, long].into_iter().chain(others.iter()).any(|word| word.eq_ignore_ascii_case(text))
    };
    let known = LOG_PRIORITIES.iter().position(is).and_then(|at| u32::try_from(at).ok());
    let number = || text.parse().ok().filter(|number| *number < 8);
    known.or_else(number).ok_or_else(|| {
        let words = LOG_PRIORITIES.map(|(short, ..)| short).join(", ");
        format!("'{text}' is no priority: say {words}, or 0 to 7")
    })
}

fn server(text: &str) -> Result<Server, String> {
    match text.rsplit_once(':') {
        // An IPv6 address, without a port.
        Some((host, _)) if host.contains(':') && !host.ends_with(']') => {
            Ok(Server { host: text.to_owned(), port: None })
        }
        Some((host, port)) => {
            let port = port.parse().ok().filter(|port| (1..=65535).contains(port));
            let port = port.ok_or_else(|| format!("'{text}' has no port behind its colon"))?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Ok(Server { host, port: Some(port) })
        }
        None => Ok(Server { host: text.to_owned(), port: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_words_or_numbers() {
        assert_eq!((priority("err"), priority("7"), priority("info")), (Ok(3), Ok(7), Ok(6)));
        for (word, number) in [("ERROR", 3), ("Critical", 2), ("warn", 4), ("information", 6), ("PANIC", 0)] {
            assert_eq!(priority(word), Ok(number), "{word}");
        }
        for wrong in ["", "8", "-1", "urgent"] {
            assert!(priority(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn truths_are_those_of_pmix() {
        for text in ["1", "true", "T", "yes", "On", "enabled", " 7", "-1"] {
            assert_eq!(truth(text), Some(true), "{text}");
        }
        for text in ["0", "FALSE", "no", "off", "disabled", "", "00"] {
            assert_eq!(truth(text), Some(false), "{text}");
        }
        assert_eq!((truth("maybe"), truth("1x")), (None, None));
    }

    #[test]
    fn a_message_from_stdin_is_taken_whole_or_refused() {
        let read = |bytes: &[u8]| {
            read_message(bytes).map_err(|failure| match failure {
                Failure::Usage(message) => message,
                _ => panic!("not the user's fault"),
            })
        };
        assert_eq!(read(b"two\nlines\n"), Ok("two\nlines".into()));
        assert_eq!(read(b"\n\n"), Ok("\n".into()));
        let largest = "x".repeat(MAX_LOG_TEXT);
        assert_eq!(read(largest.as_bytes()), Ok(largest.clone()));
        assert_eq!(read(format!("{largest}\n").as_bytes()), Ok(largest.clone()));
        for more in ["x", "x\n", "\n\n", "\nx", "xx\n", "xxxxx"] {
            let refused = read(format!("{largest}{more}").as_bytes()).unwrap_err();
            assert!(refused.starts_with("more than 32768 bytes came on stdin"), "{refused}");
        }
        assert!(read(b"").unwrap_err().contains("nothing came on stdin"));
        assert!(read(b"\n").is_err());
        assert!(read(b"ab\xff").unwrap_err().contains("no UTF-8 at byte 2"));
    }

    #[test]
    fn mail_servers_are_names_or_addresses_with_or_without_a_port() {
        let of = |text| {
            let Server { host, port } = server(text).unwrap();
            (host, port)
        };
        assert_eq!(of("mail"), ("mail".into(), None));
        assert_eq!(of("mail:2525"), ("mail".into(), Some(2525)));
        assert_eq!(of("::1"), ("::1".into(), None));
        assert_eq!(of("[::1]:25"), ("::1".into(), Some(25)));
        for wrong in ["mail:", "mail:x", "mail:0", "mail:65536"] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }
}
