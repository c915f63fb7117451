//! All short histories of the two ends of an edge that outlives its carriers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

use iof_nodes::LinkEnd;

/// The steps of a history.
const DEPTH: u32 = 7;
const STEPS: usize = 6;
const SESSION: u64 = 9;

/// A carrier that takes a number of bytes at a time.
#[derive(Default)]
struct Carrier {
    takes: usize,
    bytes: Vec<u8>,
}

impl Write for Carrier {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.takes);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.takes -= count;
        self.bytes.extend(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end that sends the numbers from 0, the one that receives them, and what lies between them.
struct Edge {
    sender: LinkEnd,
    receiver: LinkEnd,
    carrier: Carrier,
    sent: u8,
    received: Vec<u8>,
}

impl Edge {
    fn new() -> Edge {
        let (mut sender, mut receiver) = (LinkEnd::default(), LinkEnd::default());
        [&mut sender, &mut receiver].into_iter().for_each(|end| end.outlive_carriers(Duration::from_secs(1)));
        Edge { sender, receiver, carrier: Carrier::default(), sent: 0, received: Vec::new() }
    }

    fn send(&mut self, count: u8) {
        let bytes: Vec<u8> = (self.sent..self.sent + count).collect();
        self.sender.send(&bytes);
        self.sent += count;
    }

    /// Lets the carrier take some bytes.
    fn write(&mut self, takes: usize) {
        self.carrier.takes = takes;
        let written = self.sender.write_to(&mut self.carrier);
        assert!(written.is_ok_and(|()| self.sender.is_drained()) || self.carrier.takes == 0);
    }

    fn deliver(&mut self) {
        let bytes = std::mem::take(&mut self.carrier.bytes);
        self.receiver.receive(bytes.len());
        self.received.extend(bytes);
        assert!(self.received.iter().copied().eq(0..self.received.len() as u8), "{:?}", self.received);
    }

    /// Replaces the carrier. What was under way in the old one is lost.
    fn replace(&mut self) {
        let Edge { sender, receiver, carrier, .. } = self;
        *carrier = Carrier::default();
        let now = Instant::now();
        [&mut *sender, &mut *receiver].into_iter().for_each(|end| end.detach(now));
        sender.begin_attempt();
        receiver.resume(SESSION, &sender.resume_frame(SESSION)).unwrap();
        sender.resume(SESSION, &receiver.resume_frame(SESSION)).unwrap();
    }

    fn apply(&mut self, step: usize) {
        match step {
            0 => self.send(1),
            1 => self.send(2),
            2 => self.write(1),
            3 => self.deliver(),
            4 => self.sender.acknowledged(self.received.len() as u64).unwrap(),
            _ => self.replace(),
        }
        let missing = usize::from(self.sent) - self.received.len();
        assert!((missing..=usize::from(self.sent)).contains(&self.sender.held()), "{missing} bytes are kept");
    }
}

#[test]
fn every_short_history_of_an_edge_brings_each_byte_once_and_in_order() {
    for history in 0..STEPS.pow(DEPTH) {
        let (mut edge, mut digits) = (Edge::new(), history);
        for _ in 0..DEPTH {
            edge.apply(digits % STEPS);
            digits /= STEPS;
        }
        edge.replace();
        edge.write(usize::MAX);
        edge.deliver();
        assert_eq!(edge.received.len(), usize::from(edge.sent), "history {history}");
        edge.sender.acknowledged(edge.received.len() as u64).unwrap();
        assert_eq!(edge.sender.held(), 0, "history {history}");
    }
}
