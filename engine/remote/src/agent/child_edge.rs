//! The threads of one edge of a relay: one starts its carrier and passes frames up, and one passes
//! frames down.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read};
use std::iter;
use std::sync::{Arc, Mutex};

use iof_nodes::limits::MAX_RELAY_DOWN;
use iof_nodes::{ChildNode, ChildNote, ChildUp, EdgeError};
use nix::sys::signal::Signal;

use super::relay::{Added, Relay};
use super::uplink::Uplink;
use crate::carrier::{Carrier, CarrierEnd, ended, reap, signal_group, write_frames};
use crate::carriers::Purpose;
use crate::greeting::skip_greeting;
use crate::reattach::{Down, LinkedEdge};
use crate::thread::{NoThread, start_thread};

/// A carrier's output, and the carrier.
type StartedCarrier = (File, Arc<Mutex<CarrierEnd>>);

/// Why an edge did not start, and its carrier if that runs.
type NotStarted = (String, Option<Arc<Mutex<CarrierEnd>>>);

/// One edge, as its thread that passes frames up sees it.
struct ChildEdge {
    relay: Arc<Relay>,
    uplink: Arc<Uplink>,
    child: usize,
    host: String,
    up: ChildUp,
}

/// Starts the threads of all edges of a relay.
pub fn start(
    relay: &Arc<Relay>,
    children: Vec<ChildNode>,
    ups: Vec<ChildUp>,
    uplink: &Arc<Uplink>,
) -> Result<(), NoThread> {
    for (child, (node, up)) in children.into_iter().zip(ups).enumerate() {
        let (relay, uplink) = (Arc::clone(relay), Arc::clone(uplink));
        let edge = ChildEdge { relay, uplink, child, host: node.host, up };
        start_thread("iof-up", move || edge.run())?;
    }
    Ok(())
}

impl ChildEdge {
    /// Passes frames until the edge has ended, and tells the front end that it has.
    fn run(mut self) {
        let (reason, carrier) = match self.start() {
            Ok(Some((pipe, carrier))) => (self.receive_all(pipe, &carrier), Some(carrier)),
            Ok(None) => return,
            Err(not_started) => not_started,
        };
        let reason = if self.relay.was_overfull(self.child) {
            format!("more than {} bytes wait for it", MAX_RELAY_DOWN.saturating_mul(2))
        } else {
            reason
        };
        self.linked().into_iter().for_each(|linked| linked.link.abandon());
        if self.relay.lose(self.child) {
            self.uplink.send(&self.up.lost(&reason));
        }
        if let Some(carrier) = carrier {
            reap(&carrier);
        }
    }

    /// Starts the carrier when few others are being started, and the thread that passes frames
    /// down. Returns `None` if the front end is gone.
    ///
    /// # Errors
    /// [`NotStarted`]. The carrier was asked to end.
    fn start(&self) -> Result<Option<StartedCarrier>, NotStarted> {
        let relay = &self.relay;
        match relay.wait_for_start(self.child) {
            None => return Ok(None),
            Some(false) => return Err(("it was not started".into(), None)),
            Some(true) => {}
        }
        let started = relay.carriers().start(&self.host, Purpose::Agent, relay.edges(), false);
        let Carrier { end, down, up } =
            started.map_err(|error| (format!("{error}: needed on relays, too"), None))?;
        let carrier = Arc::new(Mutex::new(end));
        if let Added::Ended = relay.add_carrier(self.child, &carrier) {
            reap(&carrier);
            return Ok(None);
        }
        if self.start_sending(down, &carrier).is_err() {
            signal_group(&carrier, Signal::SIGTERM);
            return Err(("its relay cannot start a thread".to_owned(), Some(carrier)));
        }
        Ok(Some((up, carrier)))
    }

    /// Starts the thread that passes frames down.
    fn start_sending(&self, down: File, carrier: &Arc<Mutex<CarrierEnd>>) -> Result<(), NoThread> {
        let (relay, child) = (Arc::clone(&self.relay), self.child);
        let Some(linked) = self.linked().cloned() else {
            return start_thread("iof-down", move || send(&relay, child, down));
        };
        linked.start(down, carrier)?;
        start_thread("iof-down", move || linked.send_all(iter::from_fn(|| relay.take(child))))
    }

    fn linked(&self) -> Option<&Arc<LinkedEdge>> {
        self.relay.linked(self.child)
    }

    /// Returns the edge if a carrier that has ended is to be replaced: the agent can be reached, the
    /// front end is there, and the agent does not have the end of the job.
    fn replaceable(&self) -> Option<&Arc<LinkedEdge>> {
        self.linked().filter(|linked| linked.is_replaceable() && !self.uplink.is_closed())
    }

    /// Passes frames up over one carrier after the other. Returns why none follows.
    fn receive_all(&mut self, pipe: File, carrier: &Arc<Mutex<CarrierEnd>>) -> String {
        let mut received = skip_greeting(pipe).and_then(|pipe| self.receive(pipe));
        while let (Ok(()), Some(linked)) = (&received, self.replaceable().cloned()) {
            received = linked.replace(carrier).and_then(|pipe| self.receive(pipe));
        }
        match received {
            Ok(()) => ended(carrier),
            Err(reason) => {
                self.linked().into_iter().for_each(|linked| linked.cut_off());
                signal_group(carrier, Signal::SIGTERM);
                reason
            }
        }
    }

    /// Passes frames up until the carrier ends its output, or the front end is gone.
    ///
    /// # Errors
    /// The child has broken a rule, or its output can't be read and its carrier is not replaced.
    fn receive(&mut self, mut pipe: impl Read) -> Result<(), String> {
        let (mut piece, mut frames) = (vec![0; 64 << 10], Vec::new());
        while !self.uplink.is_closed() {
            let length = match pipe.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Another carrier can be read.
                Err(_) if self.linked().is_some() => return Ok(()),
                Err(error) => return Err(format!("cannot read from its carrier: {error}")),
            };
            let passed = self.pass(piece.get(..length).unwrap_or_default(), &mut frames);
            if !frames.is_empty() {
                self.uplink.write(&[IoSlice::new(&frames)]);
                frames.clear();
            }
            passed.map_err(|error| format!("its agent is cut off: {error}"))?;
        }
        Ok(())
    }

    /// Appends the frames to pass up, and does what the child tells its relay.
    fn pass(&mut self, bytes: &[u8], frames: &mut Vec<u8>) -> Result<(), EdgeError> {
        let is_starting = !self.up.has_greeted();
        let notes = self.up.pass(bytes, frames)?;
        if is_starting && self.up.has_greeted() {
            self.relay.started(self.child);
        }
        let Some(linked) = self.linked() else { return Ok(()) };
        linked.link.receive(bytes.len());
        for note in notes {
            match note {
                ChildNote::Acknowledged(received) => linked.link.acknowledged(received)?,
                ChildNote::Address(address) => linked.set_address(address),
            }
        }
        Ok(())
    }
}

/// Writes the frames for a child until its edge has ended or can't be written. The thread that
/// passes frames up notices that it has ended.
fn send(relay: &Relay, child: usize, mut pipe: File) {
    while let Some(Down { frames, .. }) = relay.take(child) {
        if write_frames(&mut pipe, &[IoSlice::new(&frames)]).is_err() {
            return;
        }
    }
}
