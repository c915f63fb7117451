//! TCP connections between an agent and its front end.

use std::fs::File;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use iof_proto::socket::unacknowledged;
use nix::sys::socket::{setsockopt, sockopt};

/// When the kernel looks whether the other end of a connection is there, in seconds: after this time without
/// news, again at this interval, and so often. As ssh with the options of the default carrier.
const KEEP_ALIVE: (u32, u32, u32) = (15, 15, 2);

/// Lets small pieces leave at once, and the end of a connection whose other end is gone be noticed.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    let (idle, interval, count) = KEEP_ALIVE;
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &idle)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &interval)?;
    setsockopt(stream, sockopt::TcpKeepCount, &count)?;
    Ok(())
}

/// Returns whether the network of a connection is gone: what was sent is not acknowledged for as long as the
/// kernel waits for news if nothing was sent. Keep-alives do not replace that.
pub fn is_cut(socket: impl AsFd) -> bool {
    let (idle, interval, count) = KEEP_ALIVE;
    let limit = idle.saturating_add(interval.saturating_mul(count));
    unacknowledged(socket).is_ok_and(|time| time >= Duration::from_secs(limit.into()))
}

/// Returns random bytes.
///
/// # Errors
/// The kernel has none.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
