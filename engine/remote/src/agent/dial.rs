//! The connections that an agent makes to its front end (`--carrier tcp`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use iof_nodes::Invitation;
use iof_nodes::proof::{AwaitedConfirmation, CHALLENGE, CONFIRMATION};

use crate::carrier::random_part;
use crate::carriers::NodeConnection;
use crate::tcp::{prepare, random};

/// The time limit of an attempt to connect, and of each step of the proof.
pub const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);
/// The time for which an agent tries to reach its front end for the first time.
const DIAL_LIMIT: Duration = Duration::from_secs(30);
/// The wait between two attempts, at least. Up to as much comes on top at random.
const DIAL_RETRY: Duration = Duration::from_millis(100);

/// Connects an agent to the front end that listens ([`Carriers::over_tcp`](crate::Carriers::over_tcp)). Blocks until both have
/// proved to have the token, for about half a minute at most.
///
/// # Errors
/// The front end is gone, is not reached in time, or does not accept the token.
pub fn dial(invitation: &Invitation) -> io::Result<NodeConnection> {
    let deadline = Instant::now() + DIAL_LIMIT;
    loop {
        match attempt(invitation).and_then(NodeConnection::of_socket) {
            Ok(connection) => return Ok(connection),
            // It listens before agents are started.
            Err(error) if error.kind() != ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                pause(DIAL_RETRY);
            }
            Err(error) => {
                let text = format!("cannot connect to the front end at {}: {error}", invitation.address);
                return Err(io::Error::new(error.kind(), text));
            }
        }
    }
}

/// Makes an attempt to connect, and to prove that both ends have the token.
pub fn attempt(Invitation { address, node, token }: &Invitation) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(address, ATTEMPT_LIMIT)?;
    prepare(&stream)?;
    stream.set_read_timeout(Some(ATTEMPT_LIMIT))?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge)?;
    let (answer, answered) =
        AwaitedConfirmation::new(&challenge, (*node, token), random()?).map_err(io::Error::other)?;
    stream.write_all(&answer)?;
    let mut confirmation = [0; CONFIRMATION];
    stream.read_exact(&mut confirmation).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "it does not accept this agent"),
        _ => error,
    })?;
    answered.check(&confirmation).map_err(io::Error::other)?;
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Waits for a time, and up to as much at random, so that not all agents try again at once.
pub fn pause(time: Duration) {
    thread::sleep(time.saturating_add(random_part(time)));
}
