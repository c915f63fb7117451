//! The command line.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use axum::http::Uri;
use clap::Parser;
use iof_proto::rendezvous::session_directory;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::gethostname;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use wildmatch::WildMatch;

use crate::access::{AccessRules, TokenFile};
use crate::engines::ServedEngines;
use crate::limits::MAX_BLOCKING;
use crate::listen::Listening;
use crate::server::router;
use crate::state::{Allowed, HttpServer};

/// Show the output of jobs in a browser, and serve it to programs
///
/// Prints the URL of the page. Listens on 127.0.0.1, for this user only: each request must show a token, which the URL
/// contains. Token and port are kept between runs, in the
/// file iof.HOST.serve of the rendezvous directory. Ctrl-C ends the server.
#[derive(Parser, Debug)]
#[command(name = "iof-serve", bin_name = "iof serve", version, max_term_width = 100)]
struct Args {
    /// Jobs to serve, by name or pattern such as 'train-*' [default: all of this user on this node]
    #[arg(value_name = "JOB", default_value = "*", hide_default_value = true)]
    jobs: Vec<String>,

    /// Look for engines in this directory, and keep the token there
    #[arg(long, value_name = "DIR")]
    rendezvous_dir: Option<PathBuf>,

    /// Listen on this port of 127.0.0.1 [default: that of the last run, or any]
    #[arg(long, value_name = "PORT", conflicts_with_all = ["listen", "socket"])]
    port: Option<u16>,

    /// Listen on a Unix socket with mode 0600
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,

    /// Listen on another address, such as 10.0.0.1:8080
    ///
    /// Requests are not encrypted. So this needs --behind-proxy: a proxy that speaks TLS with users.
    #[arg(long, value_name = "ADDR:PORT", requires = "behind_proxy")]
    listen: Option<SocketAddr>,

    /// Accept requests from a proxy at this origin, such as https://hub.example.org
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    behind_proxy: Option<String>,

    /// Let clients do more than read
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    allow: Vec<Allowed>,

    /// Make a new token: the old one, and browsers that have its cookie, lose access
    #[arg(long)]
    new_token: bool,

    /// Also serve jobs of the system-level engine and of other users
    #[arg(long)]
    system: bool,
}

/// Returns an origin, as browsers write it: without the port that the scheme has by default.
fn origin(text: &str) -> Result<String, String> {
    let expected = "expected a scheme and a host without a path, such as https://hub.example.org";
    let text = text.to_ascii_lowercase();
    let uri: Uri = text.parse().map_err(|_| expected)?;
    let (scheme, host) = uri.scheme_str().zip(uri.host()).ok_or(expected)?;
    let default = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return Err(expected.into()),
    };
    let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    if host.is_empty() || text != format!("{scheme}://{host}{port}") {
        return Err(expected.into());
    }
    match uri.port_u16() {
        Some(port) if port == default => Err(format!("drop the port {port}, which browsers leave out")),
        _ => Ok(text),
    }
}

/// Runs the program. An error is something that the user can correct.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if error.use_stderr() => {
            eprintln!("iof: {}", reason(&error.to_string()));
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    match serve(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iof: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns the reason of an error of the command line, in one line.
fn reason(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").trim_start_matches("error: ").escape_debug().to_string().replace("\\'", "'")
}

fn serve(args: &Args) -> Result<(), Box<dyn Error>> {
    let directory = session_directory(args.rendezvous_dir.as_deref())?;
    let path = directory.join(format!("iof.{}.serve", gethostname()?.to_string_lossy()));
    let in_file = |error: io::Error| format!("{}: {error}", path.display());
    // Another server that starts waits until the file has this one's token.
    let lock = File::open(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    lock.lock().map_err(in_file)?;
    let kept = TokenFile::read(&path).map_err(in_file)?;
    let port = args.port.or(kept.as_ref().map(|kept| kept.port)).unwrap_or(0);
    let mut file = kept.filter(|_| !args.new_token).map_or_else(|| TokenFile::new(port), Ok)?;
    // Each client has about ten. Fewer clients are served otherwise.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(MAX_BLOCKING).build()?;
    let done = runtime.block_on(async {
        let address = args.listen.unwrap_or(([127, 0, 0, 1], port).into());
        let (listening, place) = match &args.socket {
            Some(path) => (Listening::unix(path), path.display().to_string()),
            None => (Listening::tcp(address).await, address.to_string()),
        };
        let remedy = "if another iof serve of yours runs, use it, or choose another --port";
        let listening = listening.map_err(|error| format!("can't listen on {place}: {error}; {remedy}"))?;
        let origin = match &listening {
            Listening::Tcp(listener) => format!("http://{}", listener.local_addr()?),
            Listening::Unix(..) => "http://localhost".into(),
        };
        if let (Listening::Tcp(listener), None) = (&listening, args.listen) {
            file.port = listener.local_addr()?.port();
        }
        file.write(&path).map_err(in_file)?;
        drop(lock);
        let engines = ServedEngines {
            directory: args.rendezvous_dir.clone(),
            system: args.system,
            names: args.jobs.iter().map(|name| WildMatch::new(name)).collect(),
        };
        let rules = AccessRules::new(&file.token, args.behind_proxy.clone())?;
        let router = router(HttpServer::new(engines, rules, args.allow.clone()));
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let url = args.behind_proxy.as_deref().unwrap_or(&origin);
        writeln!(io::stdout(), "{url}/?token={}", file.token)
            .map_err(|error| format!("can't print the URL: {error}"))?;
        tokio::select! {
            never = listening.serve(router) => match never {},
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    });
    // Threads that still wait for an engine end with the process.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_one_that_browsers_send() {
        for valid in
            ["https://hub.example.org", "http://hub:8080", "https://[::1]:8443", "HTTPS://Hub.example.org"]
        {
            assert_eq!(origin(valid), Ok(valid.to_ascii_lowercase()));
        }
        for wrong in [
            "",
            "hub",
            "https://",
            "ftp://hub",
            "https://hub/",
            "https://hub/x",
            "https://hub?x",
            "https://u@hub",
            "https://hub:",
            "https://hub:x",
            "https://hub:99999",
            "https://hub:0443",
            "https://hub:443",
            "http://hub:80",
            "https://a b",
            "https://hub\n",
            "https://h\u{fc}b",
            "https://:8080",
            "null",
            "*",
        ] {
            assert!(origin(wrong).is_err(), "{wrong:?}");
        }
    }
}
