//! An engine, the program that serves its jobs, and a client that speaks HTTP.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use iof_engine::{Config, Engine, Job, JobSpec, Signal};
use iof_testing::engine::session;
use iof_testing::process::Process;
use serde_json::Value;
use tempfile::TempDir;

pub struct Site {
    pub engine: Engine,
    pub directory: TempDir,
    pub server: Server,
    jobs: RefCell<Vec<Job>>,
}

impl Drop for Site {
    fn drop(&mut self) {
        for job in self.jobs.get_mut() {
            job.signal_groups(Signal::KILL);
            job.signal(Signal::KILL);
        }
    }
}

/// A running server.
pub struct Server {
    pub process: Process,
    /// The host and port.
    pub host: String,
    pub token: String,
}

/// Returns the command of a server for the engines in a directory.
pub fn command(directory: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_iof-serve"));
    command.arg("--rendezvous-dir").arg(directory).args(options);
    command
}

impl Server {
    pub fn start(directory: &Path, options: &[&str]) -> Server {
        let mut process = Process::start(&mut command(directory, options));
        let mut url = String::new();
        BufReader::new(process.stdout()).read_line(&mut url).unwrap();
        let (host, token) = url.trim().strip_prefix("http://").unwrap().split_once("/?token=").expect(&url);
        Server { host: host.into(), token: token.into(), process }
    }

    /// Sends a request with these further lines of the head.
    pub fn send(&self, line: &str, lines: &[&str], body: &[u8]) -> io::Result<Answer> {
        request(&self.host, line, lines, body)
    }

    /// Sends a request with the token.
    pub fn request(&self, request: &str, lines: &[&str], body: &[u8]) -> Answer {
        let bearer = format!("Authorization: Bearer {}", self.token);
        let lines: Vec<&str> = lines.iter().copied().chain([&*bearer]).collect();
        self.send(request, &lines, body).unwrap()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path}"), &[], b"")
    }

    /// Returns the JSON of a path.
    pub fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}");
        answer.json()
    }
}

/// Sends a request with these further lines of the head, and reads the head of the answer.
pub fn request(host: &str, line: &str, lines: &[&str], body: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(host)?;
    let mut head = vec![format!("{line} HTTP/1.1"), "Connection: close".into()];
    head.push(format!("Content-Length: {}", body.len()));
    if !lines.iter().any(|line| line.starts_with("Host:")) {
        head.push(format!("Host: {host}"));
    }
    head.extend(lines.iter().map(|line| (*line).to_owned()));
    stream.write_all(format!("{}\r\n\r\n", head.join("\r\n")).as_bytes())?;
    stream.write_all(body)?;
    Answer::read(stream)
}

impl Site {
    pub fn new(options: &[&str]) -> Site {
        Site::with(Config::new(iof_engine::Rendezvous::None), options)
    }

    pub fn with(config: Config, options: &[&str]) -> Site {
        let (engine, directory) = session(config);
        let server = Server::start(directory.path(), options);
        Site { engine, directory, server, jobs: RefCell::default() }
    }

    /// Starts a job, which is killed at the end of the test at the latest.
    pub fn spawn(&self, spec: &JobSpec) -> Job {
        self.keep(self.engine.spawn(spec).unwrap())
    }

    /// Kills a job at the end of the test.
    pub fn keep(&self, job: Job) -> Job {
        self.jobs.borrow_mut().push(job.clone());
        job
    }
}

/// An answer, whose body is read when it arrives.
pub struct Answer {
    pub status: u16,
    headers: BTreeMap<String, String>,
    body: BufReader<TcpStream>,
    /// The bytes that are left of the body, or of its chunk. `None` before the first chunk.
    left: Option<usize>,
    is_chunked: bool,
}

/// A server-sent event.
#[derive(Debug)]
pub struct Event {
    pub id: Option<String>,
    pub name: String,
    pub data: Value,
}

impl Event {
    pub fn number(&self, field: &str) -> u64 {
        self.data[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {self:?}"))
    }

    /// Returns the bytes of an event of output.
    pub fn bytes(&self) -> Vec<u8> {
        let data = self.data["data"].as_str().unwrap();
        if self.data["encoding"] == "base64" { BASE64_STANDARD.decode(data).unwrap() } else { data.into() }
    }
}

impl Answer {
    fn read(stream: TcpStream) -> io::Result<Answer> {
        stream.set_read_timeout(Some(iof_testing::TIMEOUT))?;
        let mut body = BufReader::with_capacity(4096, stream);
        let line = read_line(&mut body)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        let mut headers = BTreeMap::new();
        loop {
            let line = read_line(&mut body)?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let is_chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
        let left = headers.get("content-length").map(|length| length.parse().unwrap());
        let left = if is_chunked { None } else { left.or(Some(0)) };
        Ok(Answer { status, headers, body, left, is_chunked })
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Returns the whole body.
    pub fn bytes(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub fn json(self) -> Value {
        serde_json::from_slice(&self.bytes().unwrap()).unwrap()
    }

    /// Returns the next event, or `None` at the end of the body.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        let (mut id, mut name, mut data) = (None, String::new(), Value::Null);
        loop {
            let mut line = Vec::new();
            loop {
                let mut byte = [0];
                if self.read(&mut byte)? == 0 {
                    return Ok(None);
                }
                match byte[0] {
                    b'\n' => break,
                    byte => line.push(byte),
                }
            }
            let line = String::from_utf8(line).unwrap();
            match line.split_once(": ") {
                Some(("id", value)) => id = Some(value.to_owned()),
                Some(("event", value)) => name = value.to_owned(),
                Some(("data", value)) => data = serde_json::from_str(value).unwrap(),
                _ if line.is_empty() && !name.is_empty() => return Ok(Some(Event { id, name, data })),
                _ => {}
            }
        }
    }
}

impl Read for Answer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_chunked && self.left.is_none_or(|left| left == 0) {
            if self.left.is_some() {
                read_line(&mut self.body)?;
            }
            let size = usize::from_str_radix(&read_line(&mut self.body)?, 16).map_err(io::Error::other)?;
            self.is_chunked = size > 0;
            self.left = Some(size);
        }
        let left = self.left.unwrap_or(0);
        let count = left.min(buffer.len());
        if count == 0 {
            return Ok(0);
        }
        let count = self.body.read(&mut buffer[..count])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left = Some(left - count);
        Ok(count)
    }
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(line.to_owned())
}
