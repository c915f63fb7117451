//! Clients that mean harm cost the limits of docs/src/serve.md, and nothing else.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::site::Site;

#[test]
fn slow_heads_half_open_connections_and_giant_heads_end_and_others_are_served() {
    let Site { server, .. } = &Site::new(&[]);
    let connect = || TcpStream::connect(&server.host).unwrap();
    let mut slow = connect();
    slow.write_all(b"GET /jobs HTTP/1.1\r\n").unwrap();
    let half_open: Vec<TcpStream> = (0..100)
        .map(|_| {
            let stream = connect();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            stream
        })
        .collect();
    let mut giant = connect();
    let line = format!("GET /{} HTTP/1.1\r\n", "x".repeat(200 << 10));
    // The server may close the connection before it has all of it.
    let _ = giant.write_all(line.as_bytes());
    let answer = rest(giant);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(server.get("/jobs").status, 200);
    for mut stream in half_open {
        // Closed at once, without an answer.
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
    // Closed after the limit on a head.
    assert!(!rest(slow).starts_with(b"HTTP/1.1 200"));
}

/// Reads until the server ends the connection.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection stays open");
    }
    rest
}
