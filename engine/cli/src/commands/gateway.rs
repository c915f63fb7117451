//! `iof gateway`: an engine without jobs that logs messages for the other engines of a site
//! (PMIX_SERVER_GATEWAY).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use iof_engine::{ApprovalReply, Config, Engine, Grant, Host, LogConfig, Rendezvous, StartError};
use iof_proto::socket::PeerCredentials;

use crate::commands::log;
use crate::error::Failure;
use crate::processes::signals::Signals;
use crate::terminal::print::write;

#[derive(Args)]
#[command(
    after_help = "It runs until a signal ends it. The line that it writes is the path of its socket: set IOF_GATEWAY \
                  to this path for `iof run`. Every user of the node may log through it to its syslog (IOF_SYSLOG), the \
                  channel global_syslog, and by email (IOF_MAIL_SERVER).\n\n\
                  Example:  iof gateway /run/iof-gateway"
)]
pub struct GatewayArgs {
    /// Create the socket in this directory
    ///
    /// It must exist, and all users must be able to reach it. The socket is iof.sys.HOST.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// The host of a gateway: every user may log.
struct Gateway;

impl Host for Gateway {
    fn approve(&self, _: &PeerCredentials, reply: ApprovalReply) {
        reply.answer(Ok(Grant::Never));
    }
}

/// Runs a gateway until a signal ends it.
pub fn gateway(args: &GatewayArgs) -> Result<(), Failure> {
    if !args.directory.is_dir() {
        return Err(Failure::Usage(format!("{}: no such directory: create it", args.directory.display())));
    }
    let signals = Signals::take_fatal().map_err(Failure::running)?;
    let mut config = Config::new(Rendezvous::System(Some(args.directory.clone())));
    config.log = LogConfig { gateway: true, ..log::config()? };
    let engine = Engine::start_with(config, Arc::new(Gateway)).map_err(|error| match error {
        error @ (StartError::Rendezvous(_) | StartError::Files(_)) => Failure::usage(error),
        error => Failure::running(error),
    })?;
    let socket = engine.socket().unwrap_or(&args.directory);
    write(io::stdout(), format!("{}\n", socket.display()).as_bytes())?;
    let received = signals.wait();
    drop(engine);
    received.map_or(Ok(()), |received| Err(Failure::Signal(received.signal)))
}
