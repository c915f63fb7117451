//! The search for a carrier that replaces one that has ended (`--reattach`).

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, IoSlice, Write};
use std::mem;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded};
use iof_capture::Signal;
use iof_nodes::{Decoder, Frame, LinkAddress, ToAgent, ToFrontEnd};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::carrier::{Carrier, CarrierEnd, MAX_STARTS, ended, lock, reap, signal_group};
use crate::carriers::Carriers;
use crate::greeting::FirstHeader;
use crate::link::{CarrierNumber, DRAIN_LIMIT, Link};
use crate::thread::{NoThread, start_thread};

/// The time between two attempts, at least. Up to half of it comes on top.
const RETRY: Duration = Duration::from_secs(1);

/// How long the first attempt may take. Each further one may take twice as long, up to the longest.
const FIRST_LIMIT: Duration = Duration::from_secs(5);
const LONGEST_LIMIT: Duration = Duration::from_secs(60);

/// The interval at which an attempt looks whether the edge has ended.
const CLOSED_INTERVAL: Duration = Duration::from_millis(50);

/// How long an attempt counts among those that are being made. One that takes longer waits for a
/// node that may not answer, and holds back no other one.
const TURN_LIMIT: Duration = Duration::from_secs(5);

/// How carriers of a job are replaced.
#[derive(Clone)]
pub struct Reattach {
    carriers: Carriers,
    /// How long a node may be without a carrier.
    limit: Duration,
    /// The number of edges of this process.
    edges: usize,
    /// As many messages as attempts are being made.
    starting: (Sender<()>, Receiver<()>),
}

/// An edge whose carrier may be replaced.
pub(crate) struct LinkedEdge {
    pub(crate) link: Link,
    reattach: Reattach,
    host: String,
    /// Where the agent listens, once it has told so.
    address: Mutex<Option<LinkAddress>>,
}

/// What is sent over an edge.
pub(crate) struct Down {
    /// Whole frames.
    pub frames: Vec<u8>,
    /// The last frame tells the agent the end of the job.
    pub is_last: bool,
    /// Counts among the answers of a node until the frames are written.
    pub _answer: Option<Arc<()>>,
}

impl From<Vec<u8>> for Down {
    fn from(frames: Vec<u8>) -> Down {
        Down { frames, is_last: false, _answer: None }
    }
}

/// An attempt that counts among those that are being made.
struct Turn<'a>(&'a Receiver<()>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // The message of this attempt, or of another one.
        let _ = self.0.try_recv();
    }
}

/// The result of an attempt.
enum Attempt {
    /// The agent has the carrier, with which it goes on.
    Attached(Carrier, CarrierNumber),
    /// Another attempt may succeed. The reason why this one did not.
    Failed(String),
    /// The agent is gone, for this reason.
    Gone(String),
}

/// What a new carrier begins with.
enum First {
    Resume(Frame<'static>),
    /// The agent is gone, for this reason.
    Failed(String),
    /// Something that is not from a link.
    Other,
}

impl Reattach {
    /// Replaces carriers of this number of edges for at most `limit` after their end.
    pub fn new(carriers: Carriers, limit: Duration, edges: usize) -> Reattach {
        Reattach { carriers, limit, edges, starting: bounded(MAX_STARTS) }
    }

    /// Returns the upper end of the edge to `host`.
    pub(crate) fn edge(&self, host: &str) -> Arc<LinkedEdge> {
        Arc::new(LinkedEdge {
            link: Link::default(),
            reattach: self.clone(),
            host: host.to_owned(),
            address: Mutex::default(),
        })
    }
}

impl LinkedEdge {
    /// Notes where the agent listens.
    pub fn set_address(&self, address: LinkAddress) {
        *lock(&self.address) = Some(address);
    }

    /// Returns whether a carrier that has just ended is to be replaced: the agent can be reached, and
    /// does not have the end of the job, at which it ends.
    pub fn is_replaceable(&self) -> bool {
        lock(&self.address).is_some() && self.link.takes_carriers()
    }

    /// Starts to write to a carrier.
    pub fn start_writing(
        self: &Arc<Self>,
        (down, number): (File, CarrierNumber),
        carrier: &Arc<Mutex<CarrierEnd>>,
    ) -> Result<(), NoThread> {
        let (edge, carrier) = (Arc::clone(self), Arc::clone(carrier));
        start_thread("iof-link", move || {
            if edge.link.write_to(number, down, &[]).is_err() && edge.link.is_current(number) {
                // The thread that receives notices that its output ends.
                signal_group(&carrier, Signal::TERM);
            }
        })
    }

    /// Sends frames until the last ones are sent, or no more follow. Then ends the edge.
    pub fn send_all(&self, sent: &mpsc::Receiver<Down>) {
        for Down { frames, is_last, .. } in sent {
            if is_last {
                return self.link.send_end(&[IoSlice::new(&frames)], DRAIN_LIMIT);
            }
            self.link.send(&[IoSlice::new(&frames)]);
        }
        self.hang_up();
    }

    /// Ends the edge: tells the agent, and does not replace the carrier any more. An edge that is
    /// closed, such as by the end of the job, sends no further message.
    pub fn hang_up(&self) {
        // The message is within its limits.
        self.link.close_with(&ToAgent::HangUp.frame().unwrap_or_default());
    }

    /// Ends the edge, and sends a signal to the carrier. With SIGTERM, an agent that would wait for
    /// another carrier is asked to end instead.
    pub fn signal(&self, carrier: &Mutex<CarrierEnd>, signal: Signal) {
        self.hang_up();
        if signal != Signal::TERM || !self.link.is_attached() {
            signal_group(carrier, signal);
        }
    }

    /// Ends the edge to an agent that has broken a rule, or can't be reached.
    pub fn cut_off(&self) {
        self.hang_up();
        if self.link.is_attached() {
            self.link.drain(Instant::now() + DRAIN_LIMIT);
        }
    }

    /// Replaces a carrier that has ended its output. Blocks until another one has reached the agent.
    /// Returns the output of that one.
    ///
    /// # Errors
    /// None has within the limit, the agent is gone, or the edge was closed.
    pub fn replace(self: &Arc<Self>, carrier: &Arc<Mutex<CarrierEnd>>) -> Result<File, String> {
        self.link.detach_current();
        let address = lock(&self.address).clone().filter(|_| self.link.takes_carriers());
        let Some(address) = address else { return Err(ended(carrier)) };
        let (deadline, mut limit) = (Instant::now().checked_add(self.reattach.limit), FIRST_LIMIT);
        // What each further attempt prints would be the same. At the end of the job, the agent may
        // have ended.
        let mut is_silent = self.link.is_ending();
        let left = || deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        loop {
            let reason = match self.attempt(&address, is_silent, limit.min(left())) {
                Attempt::Attached(Carrier { end, down, up }, number) => {
                    end_carrier(Mutex::new(mem::replace(&mut *lock(carrier), end)));
                    let writes = self.start_writing((down, number), carrier);
                    return writes.map(|()| up).map_err(|_| "cannot start a thread".to_owned());
                }
                Attempt::Gone(reason) => return Err(format!("{}, and {reason}", ended(carrier))),
                Attempt::Failed(reason) => reason,
            };
            if !self.link.wait_for_retry(RETRY.saturating_add(jitter()).min(left())) {
                return Err(format!("{}, and no other one was waited for", ended(carrier)));
            }
            if left().is_zero() {
                let time = self.reattach.limit.as_secs_f64();
                let ended = ended(carrier);
                return Err(format!("{ended}, and no other one reached its agent in {time} s: {reason}"));
            }
            limit = limit.saturating_mul(2).min(LONGEST_LIMIT);
            is_silent = true;
        }
    }

    /// Tries once to start a carrier and to reach the agent over it.
    fn attempt(&self, address: &LinkAddress, is_silent: bool, limit: Duration) -> Attempt {
        let Some(turn) = self.wait_for_turn(limit) else {
            return Attempt::Failed("too many carriers are being started".into());
        };
        let carrier = self.reattach.carriers.start(
            &self.host,
            Some(Path::new(&address.path)),
            self.reattach.edges,
            is_silent,
            None,
        );
        match carrier {
            Ok(carrier) => {
                let first = FirstHeader::new(is_silent);
                self.greet(carrier, (address.session, first), (turn, Instant::now().checked_add(limit)))
            }
            Err(error) => Attempt::Failed(error.to_string()),
        }
    }

    /// Waits until less than [`MAX_STARTS`] attempts are being made. Returns `None` after `limit`, or
    /// when the edge is closed.
    fn wait_for_turn(&self, limit: Duration) -> Option<Turn<'_>> {
        let (starting, started) = &self.reattach.starting;
        let deadline = Instant::now().checked_add(limit);
        while starting.send_timeout((), CLOSED_INTERVAL.min(limit)).is_err() {
            if !self.link.takes_carriers() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
        }
        Some(Turn(started))
    }

    /// Exchanges the first frames over a new carrier.
    fn greet(
        &self,
        carrier: Carrier,
        (session, first): (u64, FirstHeader),
        (turn, deadline): (Turn<'_>, Option<Instant>),
    ) -> Attempt {
        let Carrier { end, mut down, mut up } = carrier;
        let end = Mutex::new(end);
        let greeted = down.write_all(&self.link.begin_attempt(session));
        let attempt = match greeted.and_then(|()| self.read_first(&mut up, first, (turn, deadline))) {
            Ok(First::Resume(frame)) => match self.link.resume(session, &frame) {
                Ok(number) => {
                    let end = end.into_inner().unwrap_or_else(PoisonError::into_inner);
                    return Attempt::Attached(Carrier { end, down, up }, number);
                }
                Err(error) => Attempt::Failed(error.to_string()),
            },
            Ok(First::Failed(reason)) => Attempt::Gone(reason),
            Ok(First::Other) => Attempt::Failed("what its carrier reached is not a link".into()),
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe) => {
                Attempt::Failed(ended(&end))
            }
            Err(error) => Attempt::Failed(error.to_string()),
        };
        end_carrier(end);
        attempt
    }

    /// Reads the first frame, and nothing behind a resume.
    fn read_first(
        &self,
        up: &mut File,
        mut first: FirstHeader,
        (turn, deadline): (Turn<'_>, Option<Instant>),
    ) -> io::Result<First> {
        let (mut turn, begun) = (Some(turn), Instant::now());
        let (mut decoder, mut has_header) = (Decoder::of_agent(), false);
        loop {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(io::Error::new(ErrorKind::TimedOut, "its agent did not answer in time"));
            }
            if !self.link.takes_carriers() {
                return Err(ErrorKind::Interrupted.into());
            }
            turn.take_if(|_| begun.elapsed() >= TURN_LIMIT);
            let mut files = [PollFd::new(up.as_fd(), PollFlags::POLLIN)];
            if poll(&mut files, PollTimeout::try_from(CLOSED_INTERVAL).unwrap_or(PollTimeout::ZERO))? == 0 {
                continue;
            }
            if has_header {
                if decoder.read_from(up)? == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            } else if let Some(header) = first.read_from(up)? {
                decoder.receive(&header);
                has_header = true;
            }
            match decoder.decode().map_err(io::Error::other)? {
                None => {}
                Some(Frame::Control(payload)) => {
                    return match ToFrontEnd::decode(payload).map_err(io::Error::other)? {
                        ToFrontEnd::Failed { reason, .. } => Ok(First::Failed(reason)),
                        _ => Ok(First::Other),
                    };
                }
                Some(Frame::Resume { session, attempt, received }) => {
                    return Ok(First::Resume(Frame::Resume { session, attempt, received }));
                }
                Some(_) => return Ok(First::Other),
            }
        }
    }
}

/// Ends a carrier that was replaced, or has not reached the agent.
fn end_carrier(process: Mutex<CarrierEnd>) {
    signal_group(&process, Signal::KILL);
    // Without a thread it is a zombie until this process ends.
    let _ = start_thread("iof-reap", move || reap(&process));
}

/// Returns a random part of half the time between two attempts.
fn jitter() -> Duration {
    let random = RandomState::new().hash_one(0u8);
    RETRY.mul_f64(f64::from(u32::try_from(random % 512).unwrap_or(0)) / 1024.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::thread;

    use super::*;
    use crate::carrier::Template;

    const LONG: Duration = Duration::from_secs(1000);

    fn carriers(template: &str) -> Carriers {
        // What follows in the command is a comment for the shell.
        Carriers::command(Template::new(template).unwrap(), "true").with_link("exec sleep 1000 #")
    }

    fn attempt(edge: &LinkedEdge) -> Option<String> {
        let address = LinkAddress { path: "/nonexistent".into(), session: 0 };
        match edge.attempt(&address, true, LONG) {
            Attempt::Failed(reason) => Some(reason),
            Attempt::Attached(..) | Attempt::Gone(_) => None,
        }
    }

    #[test]
    fn attempts_that_are_not_answered_hold_back_no_other_one() {
        let silent = Reattach::new(carriers("sh -c"), LONG, MAX_STARTS);
        let silent_edges = [(); MAX_STARTS].map(|()| silent.edge("0"));
        let other = Reattach { carriers: carriers("false"), ..silent };
        let closed = other.edge("a");
        thread::scope(|scope| {
            for edge in &silent_edges {
                scope.spawn(|| attempt(edge));
            }
            while other.starting.0.len() < MAX_STARTS {
                thread::yield_now();
            }
            let reason = attempt(&other.edge("a"));
            assert_eq!(reason.as_deref(), Some("its carrier ended with exit status: 1"));
            silent_edges.iter().for_each(|edge| edge.hang_up());
        });
        // As many as may be made, which do not end.
        (0..MAX_STARTS).for_each(|_| other.starting.0.send(()).unwrap());
        closed.hang_up();
        assert_eq!(attempt(&closed).as_deref(), Some("too many carriers are being started"));
    }
}
