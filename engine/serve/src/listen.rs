//! The sockets on which the server listens, and its connections.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::stat::{Mode, umask};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::limits::{CONNECTION_BUFFER, HEAD_LIMIT, MAX_CONNECTIONS, SOCKET_BUFFER, STALL_LIMIT};

/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;

/// Time until the next connection after a failure, such as that the process has no descriptor left.
const RETRY: Duration = Duration::from_millis(100);

/// A listening socket.
pub enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listening {
    /// Listens on an address. Connections inherit the size of the buffer and the limit on a client that does not read.
    ///
    /// # Errors
    /// The address can't be used.
    pub async fn tcp(address: SocketAddr) -> io::Result<Listening> {
        let listener = TcpListener::bind(address).await?;
        let stall = u32::try_from(STALL_LIMIT.as_millis()).unwrap_or(u32::MAX);
        setsockopt(&listener, sockopt::TcpUserTimeout, &stall)?;
        setsockopt(&listener, sockopt::TcpNoDelay, &true)?;
        bound_buffer(&listener)?;
        Ok(Listening::Tcp(listener))
    }

    /// Listens on a Unix socket with mode 0600, in place of one that a server left which was killed.
    ///
    /// # Errors
    /// The path can't be used, or a process listens on it.
    pub fn unix(path: &Path) -> io::Result<Listening> {
        match unix::UnixStream::connect(path) {
            Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
                is_socket.then(|| fs::remove_file(path)).transpose()?;
            }
            Err(_) => {}
        }
        // No other thread runs yet.
        let before = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener?;
        bound_buffer(&listener)?;
        Ok(Listening::Unix(listener, path.to_owned()))
    }

    /// Serves connections without end.
    pub async fn serve(&self, router: Router) -> Infallible {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let slot = Arc::clone(&slots).acquire_owned().await;
            let accepted = match self {
                Listening::Tcp(listener) => {
                    listener.accept().await.map(|(stream, _)| spawn(stream, router.clone(), slot))
                }
                // It inherits nothing.
                Listening::Unix(listener, _) => listener.accept().await.and_then(|(stream, _)| {
                    bound_buffer(&stream).map(|()| spawn(stream, router.clone(), slot))
                }),
            };
            if accepted.is_err() {
                sleep(RETRY).await;
            }
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Listening::Unix(_, path) = self {
            // It may be gone.
            let _ = fs::remove_file(path);
        }
    }
}

fn bound_buffer(socket: impl AsFd) -> io::Result<()> {
    Ok(setsockopt(&socket, sockopt::SndBuf, &SOCKET_BUFFER)?)
}

/// Serves a connection in a task of its own, which ends with it.
fn spawn(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    slot: impl Send + 'static,
) {
    tokio::spawn(async move {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
        http.max_buf_size(CONNECTION_BUFFER).max_headers(MAX_HEADERS);
        // The client has closed the connection, or did not keep to a limit.
        let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
        drop(slot);
    });
}
