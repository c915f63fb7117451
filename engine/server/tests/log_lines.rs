//! The embedder's subscriber may call the engine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fmt;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use iof_engine::{Config, Job, Signal};
use iof_proto::{Channel, FromTool, PROTOCOL_VERSION, Rank, encode};
use iof_testing::TIMEOUT;
use iof_testing::engine::{session, shell, spec};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Metadata, Subscriber};

/// Asks the engine for the status of a job with each line of the engine's log, and passes on the
/// line.
struct Caller {
    job: Job,
    lines: Mutex<Sender<String>>,
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Caller {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("iof_engine")
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        // This would wait for ever if the tables were locked.
        assert!(self.job.try_wait_exit().is_none());
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // The test may have ended.
        let _ = lines.send(message.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Blocks until a line with `text` has arrived.
fn expect(lines: &Receiver<String>, text: &str) {
    let next = || {
        lines.recv_timeout(TIMEOUT).unwrap_or_else(|error| {
            eprintln!("\"{text}\" was not written: {error}");
            // The engine cannot end while its control thread waits.
            exit(1)
        })
    };
    while !next().contains(text) {}
}

#[test]
fn a_subscriber_may_call_the_engine_with_each_line_of_the_log() {
    let (engine, _directory) = session(Config::default());
    let job = engine.spawn(&spec([shell("exec sleep 1000")])).unwrap();
    let (sender, lines) = channel();
    set_global_default(Caller { job: job.clone(), lines: Mutex::new(sender) }).unwrap();

    // From the core.
    assert!(job.close(Rank(0), Channel::Stdout));
    expect(&lines, "a stream was cut off");
    // From the driver: a refusal and a broken connection.
    for version in [PROTOCOL_VERSION + 1, PROTOCOL_VERSION] {
        let mut socket = UnixStream::connect(engine.socket().unwrap()).unwrap();
        let hello = FromTool::Hello { version, pid: 0, name: "tool".into() };
        socket.write_all(&encode(&hello).unwrap()).unwrap();
        if version == PROTOCOL_VERSION {
            socket.write_all(&[0xff; 64]).unwrap();
            expect(&lines, "a tool was disconnected");
        } else {
            expect(&lines, "a tool was refused");
        }
    }
    job.signal(Signal::KILL);
}
