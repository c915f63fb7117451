//! The command line.

use std::error::Error;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

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

/// Returns an origin, as browsers write it.
fn origin(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match host.filter(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@'])) {
        Some(_) => Ok(text.to_ascii_lowercase()),
        None => Err("expected a scheme and a host without a path, such as https://hub.example.org".into()),
    }
}

/// Runs the program. An error is something that the user can correct.
pub fn run() -> ExitCode {
    match serve(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iof: {error}");
            ExitCode::from(2)
        }
    }
}

fn serve(args: &Args) -> Result<(), Box<dyn Error>> {
    let directory = session_directory(args.rendezvous_dir.as_deref())?;
    let path = directory.join(format!("iof.{}.serve", gethostname()?.to_string_lossy()));
    let in_file = |error: io::Error| format!("{}: {error}", path.display());
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
