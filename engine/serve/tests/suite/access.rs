//! Who reaches the server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use iof_testing::process::Process;
use iof_testing::wait_for;
use nix::sys::signal::Signal;

use crate::site::{Server, Site, command};

#[test]
fn a_browser_exchanges_the_token_for_a_cookie_and_others_are_refused() {
    let Site { server, .. } = &Site::new(&[]);
    let get = |path: &str, lines: &[&str]| server.send(&format!("GET {path}"), lines, b"").unwrap();
    let redirect = get(&format!("/?token={}", server.token), &[]);
    assert_eq!((redirect.status, redirect.header("location")), (303, "./"));
    let cookie = format!("Cookie: {}", redirect.header("set-cookie").split(';').next().unwrap());
    for path in ["/", "/page.css", "/page.js", "/store.js", "/openapi.json", "/jobs"] {
        assert_eq!(get(path, &[&cookie]).status, 200, "{path}");
        let refused = get(path, &[]);
        assert_eq!(refused.status, 401, "{path}");
        for (name, value) in [
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
        ] {
            assert_eq!(refused.header(name), value);
        }
        assert!(refused.header("content-security-policy").starts_with("default-src 'self';"));
    }
    assert_eq!(get("/?token=0", &[]).status, 401);
    for line in ["Host: evil.example.org", "Origin: http://evil.example.org", "Origin: http://localhost:1"] {
        assert_eq!(get("/jobs", &[&cookie, line]).status, 403, "{line}");
    }
}

fn kill(server: &Server) {
    server.process.signal(Signal::SIGKILL);
    server.process.wait();
}

#[test]
fn token_and_port_are_kept_between_runs_until_a_new_token_is_asked_for() {
    let mut site = Site::new(&[]);
    let directory = site.directory.path().to_owned();
    let (host, token) = (site.server.host.clone(), site.server.token.clone());
    let is_private = |entry: fs::DirEntry| {
        let is_file = entry.file_name().to_string_lossy().ends_with(".serve");
        is_file && entry.metadata().unwrap().permissions().mode() & 0o7777 == 0o600
    };
    assert!(fs::read_dir(&directory).unwrap().any(|entry| is_private(entry.unwrap())));
    let second = Process::start(&mut command(&directory, &[])).finish();
    assert_eq!(second.code, 2);
    assert!(second.stderr.contains("choose another --port"), "{}", second.stderr);
    kill(&site.server);
    site.server = Server::start(&directory, &[]);
    assert_eq!((&site.server.host, &site.server.token), (&host, &token));
    kill(&site.server);
    site.server = Server::start(&directory, &["--new-token"]);
    assert_eq!(site.server.host, host);
    assert_ne!(site.server.token, token);
}

#[test]
fn another_address_needs_a_proxy() {
    let site = Site::new(&[]);
    let done = Process::start(&mut command(site.directory.path(), &["--listen", "127.0.0.1:0"])).finish();
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("--behind-proxy"), "{}", done.stderr);
}

#[test]
fn a_url_that_cannot_be_printed_is_an_error() {
    let site = Site::new(&[]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut serve = command(site.directory.path(), &["--port", "0"]);
    let done = serve.stdout(full).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).starts_with("iof: can't print the URL: "));
}

#[test]
fn a_unix_socket_is_private_and_removed_at_the_end() {
    let site = Site::new(&[]);
    let path = site.directory.path().join("http");
    let server = Process::start(&mut command(site.directory.path(), &["--socket", path.to_str().unwrap()]));
    let mut stream = wait_for("the socket", || UnixStream::connect(&path).ok());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let bearer = format!("Authorization: Bearer {}", site.server.token);
    write!(stream, "GET /jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{bearer}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), 0);
    assert!(!path.exists());
}

#[test]
fn servers_that_start_at_the_same_time_have_one_token() {
    let directory = tempfile::tempdir().unwrap();
    let lock = fs::File::open(directory.path()).unwrap();
    lock.lock().unwrap();
    let start = || Process::start(&mut command(directory.path(), &["--port", "0"]));
    let mut servers = [start(), start()];
    // Both are about to look for the file.
    for server in &servers {
        let pid = server.pid().to_string();
        let waits = |line: &str| line.contains("-> FLOCK") && line.split_whitespace().any(|word| word == pid);
        wait_for("the lock to be waited for", || {
            fs::read_to_string("/proc/locks").unwrap().lines().any(waits).then_some(())
        });
    }
    lock.unlock().unwrap();
    let tokens = servers.each_mut().map(|server| {
        let mut url = String::new();
        BufReader::new(server.stdout()).read_line(&mut url).unwrap();
        url.split_once("token=").unwrap().1.to_owned()
    });
    assert_eq!(tokens[0], tokens[1]);
}

#[test]
fn an_origin_that_no_browser_sends_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    for origin in ["https://hub/x", "https://hub:443", "https://a\nb", ""] {
        let done = Process::start(&mut command(directory.path(), &["--behind-proxy", origin])).finish();
        assert_eq!((done.code, done.stderr.lines().count()), (2, 1), "{done:?}");
        assert!(done.stderr.starts_with("iof: ") && done.stderr.contains("--behind-proxy"), "{done:?}");
    }
}
