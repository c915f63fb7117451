//! The work of the driver for one edge of the front end.

mod reattach;

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_engine::Signal;
use iof_nodes::limits::MAX_GREETING;
use iof_nodes::proof::Proven;
use iof_nodes::{
    BrokenEnd, EdgeError, Frame, FrameDecoder, FrontEvent, LinkAddress, Silence, SilenceStep, ToFrontEnd,
};

use self::reattach::CarrierSearch;
use super::EdgeDriver;
use crate::carrier::{Carrier, CarrierEnd, DRAIN_LIMIT, EXIT_LIMIT};
use crate::carriers::NodeConnection;
use crate::edge::{EdgeEnds, NodeEvent};
use crate::greeting::TextStream;
use crate::receiver::Receiver;
use crate::tcp::is_cut;

/// The number of bytes that are read at once from the stderr of a carrier.
const TEXT_PIECE: usize = 4096;

/// An edge, as the driver has it.
pub struct Driven {
    pub receiver: Receiver,
    pub ends: Arc<EdgeEnds>,
    /// The output of the carrier, or the connection of the agent, until it ends.
    pub up: Option<File>,
    /// The stderr of the carrier, until it ends, and whether it may have text.
    pub errors: Option<File>,
    pub has_text: bool,
    /// The number of bytes that were skipped, before the first frame.
    pub greeting: Option<usize>,
    pub decoder: FrameDecoder,
    /// Nothing follows in the output but what it holds.
    pub is_ending: bool,
    pub phase: Phase,
    /// The time for which the edge may be without a carrier, once its agent listens for others.
    limit: Duration,
    silence: Silence,
    /// The address at which the agent listens.
    pub address: Option<LinkAddress>,
    /// When the driver looks at the edge again.
    pub timer: Option<Instant>,
}

/// The state of an edge.
pub enum Phase {
    /// The agent was started, and is to connect.
    Dialing,
    Receiving,
    /// The carrier has ended, and another one is tried.
    Searching(CarrierSearch),
    /// The carrier is to exit until this time. If that is when the node is lost, it is told then, with
    /// the rest of the reason.
    Ending(Instant, Option<(String, BrokenEnd)>),
    Over,
}

impl Driven {
    /// Returns an edge over this carrier; without `up`, its agent connects itself. Without a carrier, it is lost
    /// after `limit`; if its agent is silent, after `node_timeout`.
    pub fn new(
        receiver: Receiver,
        up: Option<File>,
        limit: Duration,
        node_timeout: Option<Duration>,
    ) -> Driven {
        let ends = Arc::clone(&receiver.ends);
        Driven {
            receiver,
            ends,
            phase: if up.is_some() { Phase::Receiving } else { Phase::Dialing },
            up,
            errors: None,
            has_text: false,
            greeting: Some(0),
            decoder: FrameDecoder::of_agent(),
            is_ending: false,
            limit,
            silence: Silence::new(node_timeout, Instant::now()),
            address: None,
            timer: None,
        }
    }

    pub fn number(&self) -> usize {
        self.receiver.number
    }

    /// Begins to receive.
    pub fn begin(&mut self, driver: &mut EdgeDriver) {
        let mut state = self.ends.state();
        state.watched = Some(driver.watched_input(self.receiver.number));
        driver.reap_later(&state.carrier, self.receiver.number);
        drop(state);
        self.watch(driver, self.errors.is_some());
    }

    /// Watches the files of the carrier, and those of its text if they are new.
    fn watch(&mut self, driver: &mut EdgeDriver, has_errors: bool) {
        let state = self.ends.state();
        let errors = self.errors.as_ref().filter(|_| has_errors);
        let watched = driver.watch(self.receiver.number, [self.up.as_ref(), state.down.as_ref(), errors]);
        drop(state);
        if let Err(error) = watched {
            self.fail(driver, format!("cannot watch its carrier: {error}"), Instant::now());
        }
    }

    /// Returns whether the edge may get another carrier.
    pub fn outlives_carriers(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Goes over to a connection of the agent, which has proved to be that of this node.
    ///
    /// # Errors
    /// The connection can't be used. The agent makes another one.
    pub fn dialed(&mut self, driver: &mut EdgeDriver, stream: TcpStream, proven: &Proven) -> io::Result<()> {
        // A new connection has room for it.
        (&stream).write_all(&proven.confirmation)?;
        let NodeConnection { down, up } = NodeConnection::of_socket(stream)?;
        let now = Instant::now();
        if matches!(self.phase, Phase::Dialing) || self.awaits_greeting(driver) {
            self.forget_up(driver);
            self.ends.state().down = Some(down);
            (self.up, self.phase) = (Some(up), Phase::Receiving);
            self.silence.end(now);
            self.watch(driver, false);
            return Ok(());
        }
        // The agent knows that its last connection has ended.
        if matches!(self.phase, Phase::Receiving) && self.ends.state().link.is_resumable() {
            self.up_ended(driver, now);
        }
        let end = CarrierEnd::of_connection(Some(down.try_clone()?), None);
        let carrier = Carrier { end, down, up, errors: None };
        self.search_ended(driver, carrier);
        Ok(())
    }

    /// Returns whether an agent has connected, and has sent nothing. It may give up such a connection for another
    /// one, such as after this process has stood still.
    fn awaits_greeting(&self, driver: &EdgeDriver) -> bool {
        let is_first = matches!(self.phase, Phase::Receiving) && self.greeting.is_some();
        is_first && driver.carriers.dials().is_some()
    }

    /// Notes that an agent that has connected greets: its connection is the carrier.
    fn agent_greets(&mut self, driver: &EdgeDriver) {
        driver.carriers.dials().iter().for_each(|dials| dials.note_use(self.number()));
        // The agent outlives what has started it, or others have it, too.
        let is_own = self.limit.is_zero() && !driver.carriers.are_shared();
        let mut state = self.ends.state();
        let (end, starter) = (state.down.as_ref(), is_own.then(|| state.carrier.clone()));
        state.carrier = CarrierEnd::of_connection(end.and_then(|down| down.try_clone().ok()), starter);
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Returns when the driver has to look at the edge again.
    pub fn due(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Receiving => self.silence.due(),
            Phase::Over | Phase::Dialing => None,
            Phase::Searching(search) => {
                let ends_at = self.ends.state().link.ends_at();
                search.due().into_iter().chain(ends_at).chain(self.silence.tells_at()).min()
            }
            Phase::Ending(until, _) => Some(*until),
        }
    }

    /// Goes on as far as time, carriers and the handles of the edge allow.
    pub fn look(&mut self, driver: &mut EdgeDriver, now: Instant) {
        let mut state = self.ends.state();
        let (is_closed, given_up) = (state.link.is_closed(), state.given_up.take());
        drop(state);
        if is_closed {
            self.ends.notify();
        }
        if let Some(broken) = given_up {
            self.receiver.tell(NodeEvent::Lost { reason: "its agent does not answer".into(), broken });
        }
        if matches!(self.phase, Phase::Dialing) && (is_closed || self.ends.state().carrier.ended().is_some())
        {
            self.await_exit("", now);
        }
        self.search(driver, now);
        self.note_silence(driver, now);
        if matches!(self.phase, Phase::Ending(..)) {
            // All that it printed before its end. Others may hold its stderr open, and print on.
            self.has_text = true;
            (0..MAX_GREETING / TEXT_PIECE).take_while(|_| self.read_text()).for_each(drop);
        }
        let Phase::Ending(until, lost) = &mut self.phase else { return };
        let carrier = self.ends.state().carrier.clone();
        let ended = match carrier.ended() {
            None if now < *until => return,
            ended => ended.unwrap_or_else(|| {
                carrier.signal(Signal::TERM);
                "its carrier has closed its output".into()
            }),
        };
        if let Some((rest, broken)) = lost.take() {
            let text = self.ends.text().take();
            self.receiver.tell(NodeEvent::Lost { reason: ended + &rest + &text, broken });
        }
        self.finish(now);
    }

    /// Tells that the agent is silent, or gives it up, when it is time. While another carrier is searched, only the
    /// limit for that gives it up.
    fn note_silence(&mut self, driver: &mut EdgeDriver, now: Instant) {
        let due = match &self.phase {
            Phase::Receiving => self.silence.due(),
            Phase::Searching(_) => self.silence.tells_at(),
            Phase::Dialing | Phase::Ending(..) | Phase::Over => None,
        };
        if due.is_none_or(|due| now < due) {
            return;
        }
        if !self.ends.state().front.is_to_report() {
            return self.silence.end(now);
        }
        // What has arrived while this process stood still ends the silence.
        self.read(driver, now);
        let step = match self.phase {
            Phase::Receiving => self.silence.step(now),
            Phase::Searching(_) => self.silence.tell(now).map(SilenceStep::Tell),
            // It was the end of the carrier, which has a reason of its own.
            Phase::Dialing | Phase::Ending(..) | Phase::Over => None,
        };
        if let Some(SilenceStep::Tell(length)) = step {
            self.receiver.tell(NodeEvent::Silent(length));
        }
        let is_receiving = matches!(self.phase, Phase::Receiving);
        if is_receiving && step.is_some() && self.up.as_ref().is_some_and(is_cut) {
            return self.up_failed(driver, &ErrorKind::TimedOut.into(), now);
        }
        match step {
            Some(SilenceStep::GiveUp(length)) => {
                self.fail(driver, format!("its agent was silent for {} s", length.as_secs()), now);
                // A process that stands still does not take SIGTERM.
                self.ends.state().carrier.signal(Signal::KILL);
            }
            Some(SilenceStep::Tell(_) | SilenceStep::Check) | None => {}
        }
    }

    /// Reads once from the stderr of the carrier. Returns whether more may follow at once.
    pub fn read_text(&mut self) -> bool {
        let mut piece = [0; TEXT_PIECE];
        let Some(errors) = self.errors.as_mut().filter(|_| self.has_text) else { return false };
        match errors.read(&mut piece) {
            Ok(length @ 1..) => {
                self.ends.text().add(TextStream::Errors, piece.get(..length).unwrap_or_default())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.has_text = false,
            Ok(0) | Err(_) => self.errors = None,
        }
        self.has_text && self.errors.is_some()
    }

    /// Reads once, and passes on what has arrived. Returns whether more may follow at once.
    pub fn read(&mut self, driver: &mut EdgeDriver, now: Instant) -> bool {
        let Some(up) = &mut self.up else { return false };
        let read = self.decoder.read_from(up).and_then(|length| match &mut self.greeting {
            None => Ok((length, length)),
            Some(greeting) if length > 0 => {
                let is_over = self.ends.text().skip(&mut self.decoder, greeting)?;
                Ok((length, if is_over { self.decoder.held() } else { 0 }))
            }
            Some(_) => Ok((0, 0)),
        });
        let is_full = self.decoder.is_full();
        let received = match read {
            Ok((0, _)) => {
                self.up_ended(driver, now);
                return false;
            }
            Ok((_, received)) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                driver.await_output(self.receiver.number, up);
                return false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return true,
            Err(error) => {
                self.up_failed(driver, &error, now);
                return false;
            }
        };
        if received > 0 {
            if self.awaits_greeting(driver) {
                self.agent_greets(driver);
            }
            self.greeting = None;
            self.receive(driver, received, now);
        }
        // What arrives after a short read is another event, except the end.
        self.is_ending || is_full
    }

    /// Passes on what has arrived, of which `length` bytes are new.
    pub fn receive(&mut self, driver: &mut EdgeDriver, length: usize, now: Instant) {
        self.silence.end(now);
        if matches!(self.phase, Phase::Searching(_)) {
            return self.read_answer(driver, now);
        }
        let mut state = self.ends.state();
        if state.link.receive(length) {
            state.write();
        }
        drop(state);
        if let Err(reason) = self.decode(now) {
            self.fail(driver, reason, now);
        }
    }

    /// Notes that the carrier's output can't be read.
    fn up_failed(&mut self, driver: &mut EdgeDriver, error: &io::Error, now: Instant) {
        match self.phase {
            Phase::Searching(_) => self.attempt_failed(driver, error.to_string(), now),
            // The agent has ended before it had read everything.
            _ if error.kind() == ErrorKind::ConnectionReset => self.up_ended(driver, now),
            // Another carrier can be read.
            _ if self.ends.state().link.is_resumable() => self.up_ended(driver, now),
            _ => self.fail(driver, format!("cannot read from its carrier: {error}"), now),
        }
    }

    /// Passes on the frames that have arrived whole.
    ///
    /// # Errors
    /// The agent has broken a rule, or the output can't be taken.
    fn decode(&mut self, now: Instant) -> Result<(), String> {
        let refused = |error: EdgeError| format!("its agent is cut off: {error}");
        while let Some(frame) = self.decoder.decode().map_err(|error| refused(error.into()))? {
            let mut state = self.ends.state();
            if let Frame::Ack { received } = frame {
                state.link.acknowledged(received).map_err(refused)?;
                state.write();
                continue;
            }
            match state.front.receive(&frame, now).map_err(refused)? {
                FrontEvent::Message(ToFrontEnd::Link(address)) => {
                    state.link.outlive_carriers(self.limit);
                    self.address = Some(address);
                }
                event => {
                    drop(state);
                    self.receiver.handle(event)?;
                }
            }
        }
        self.receiver.flush();
        Ok(())
    }

    /// Replaces a carrier that has ended its output: the agent can be reached, has not failed to start
    /// its ranks, and the job goes on. An agent that has sent everything waits for the end of the job,
    /// which only another carrier can tell it.
    fn up_ended(&mut self, driver: &mut EdgeDriver, now: Instant) {
        self.forget_up(driver);
        if let Phase::Searching(search) = &mut self.phase {
            return search.await_exit(now);
        }
        if self.awaits_greeting(driver) {
            self.ends.state().down = None;
            self.phase = Phase::Dialing;
            return;
        }
        let mut state = self.ends.state();
        state.link.detach(now);
        state.down = None;
        let is_replaced = !state.front.has_failed() && state.link.takes_carriers(now);
        // At the end of the job, the agent may have ended.
        let is_silent = state.link.ends_at().is_some();
        drop(state);
        match self.address.clone().filter(|_| is_replaced) {
            Some(address) => {
                // That of the agent begins with the search: this process may have stood still before.
                self.silence.end(now);
                let decoder = mem::replace(&mut self.decoder, FrameDecoder::of_agent());
                self.phase = Phase::Searching(CarrierSearch::new(address, decoder, is_silent, now));
                if driver.carriers.dials().is_some() {
                    self.attempt_failed(driver, "its agent does not connect".into(), now);
                }
            }
            None => self.await_exit("", now),
        }
    }

    pub fn forget_up(&mut self, driver: &EdgeDriver) {
        self.up.take().iter().for_each(|up| driver.forget(up));
    }

    /// Tells that the node is lost when it is known how its carrier has ended, unless it was over or
    /// given up: whatever follows has no meaning. `rest` is the rest of the reason.
    pub fn await_exit(&mut self, rest: impl Into<String>, now: Instant) {
        let (rest, cut) = (rest.into(), self.ends.state().front.cut());
        match cut {
            Some(broken) => self.phase = Phase::Ending(now + EXIT_LIMIT, Some((rest, broken))),
            None => self.finish(now),
        }
    }

    /// Cuts off the node, for this reason. The agent ends its ranks when its edge ends.
    pub fn fail(&mut self, driver: &EdgeDriver, reason: String, now: Instant) {
        self.forget_up(driver);
        let mut state = self.ends.state();
        let cut = state.front.cut();
        state.hang_up();
        if !state.link.is_resumable() {
            state.carrier.signal(Signal::TERM);
        }
        drop(state);
        match cut {
            Some(broken) => {
                let reason = reason + &self.ends.text().take();
                self.receiver.tell(NodeEvent::Lost { reason, broken });
                self.phase = Phase::Ending(now + DRAIN_LIMIT, None);
            }
            None => self.finish(now),
        }
    }

    fn finish(&mut self, now: Instant) {
        self.phase = Phase::Over;
        self.ends.text().show(true);
        self.ends.state().abandon(now);
        self.ends.notify();
    }
}
