//! The search for a carrier that replaces one that has ended (`--reattach`).

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::time::{Duration, Instant};

use iof_engine::Signal;
use iof_nodes::{Frame, FrameDecoder, LinkAddress, ToFrontEnd};

use super::{Driven, Phase};
use crate::carrier::{Carrier, CarrierEnd, END_LIMIT, EXIT_LIMIT, random_part};
use crate::driver::EdgeDriver;

/// The time between two attempts, at least. Up to half of it comes on top.
const RETRY: Duration = Duration::from_secs(1);

/// The time limit of the first attempt. Each further one has twice the time, up to the longest.
const FIRST_LIMIT: Duration = Duration::from_secs(5);
const LONGEST_LIMIT: Duration = Duration::from_secs(60);

/// The time for which an attempt counts among those that are made. One that takes longer waits for a
/// node that may not answer, and holds back no other one.
const TURN_LIMIT: Duration = Duration::from_secs(5);

/// Why an attempt fails that reaches something else.
const NO_LINK: &str = "what its carrier reached is not a link";

/// The search for a carrier of one edge.
pub struct CarrierSearch {
    address: LinkAddress,
    /// The time limit of the next attempt.
    limit: Duration,
    /// `true` from the second attempt on, which would print the same as the first.
    is_silent: bool,
    step: Step,
    /// Until when the attempt counts among those that are being made.
    turn: Option<Instant>,
    /// The bytes that arrived before, while the first frame over another carrier is received.
    decoder: FrameDecoder,
}

enum Step {
    /// As many attempts as may be are being made, until this time.
    Turn(Instant),
    /// The carrier is being started.
    Start,
    /// The agent is to answer until this time.
    Answer(CarrierEnd, File, Instant),
    /// The carrier has ended its output, and is to exit until this time.
    Exit(CarrierEnd, Instant),
    /// The last attempt has failed for this reason. The next one follows.
    Pause(Instant, String),
}

impl CarrierSearch {
    /// Begins to search for a carrier to the agent at this address, from which this has arrived.
    pub fn new(address: LinkAddress, decoder: FrameDecoder, is_silent: bool, now: Instant) -> CarrierSearch {
        let step = Step::Turn(now + FIRST_LIMIT);
        CarrierSearch { address, limit: FIRST_LIMIT, is_silent, step, turn: None, decoder }
    }

    /// Returns when the search goes on whatever happens.
    pub fn due(&self) -> Option<Instant> {
        let step = match &self.step {
            Step::Start => None,
            Step::Turn(time) | Step::Answer(.., time) | Step::Exit(_, time) | Step::Pause(time, _) => {
                Some(*time)
            }
        };
        step.into_iter().chain(self.turn).min()
    }

    fn end_turn(&mut self, driver: &mut EdgeDriver) {
        if self.turn.take().is_some() {
            driver.end_turn();
        }
    }

    /// Ends the attempt that is being made, if any.
    fn stop(&mut self, driver: &mut EdgeDriver, next: Step) {
        if let Step::Answer(end, ..) | Step::Exit(end, _) = mem::replace(&mut self.step, next) {
            end.signal(Signal::KILL);
        }
        self.end_turn(driver);
    }

    /// Notes that a carrier has ended its output.
    pub fn await_exit(&mut self, now: Instant) {
        if let Step::Answer(end, ..) = &self.step {
            self.step = Step::Exit(end.clone(), now + EXIT_LIMIT);
        }
    }
}

impl Driven {
    /// Returns the time that is left to search.
    fn left(&self, now: Instant) -> Duration {
        let end = self.ends.state().link.lost_at();
        end.map_or(Duration::MAX, |end| end.saturating_duration_since(now))
    }

    /// Goes on to search for a carrier.
    pub fn search(&mut self, driver: &mut EdgeDriver, now: Instant) {
        let (left, number) = (self.left(now), self.number());
        let Phase::Searching(search) = &mut self.phase else { return };
        if !self.ends.state().link.takes_carriers(now) {
            search.stop(driver, Step::Start);
            self.forget_up(driver);
            return self.await_exit(", and no other one was waited for", now);
        }
        if search.turn.is_some_and(|until| now >= until) {
            search.end_turn(driver);
        }
        if let Step::Pause(time, reason) = &search.step
            && now >= *time
        {
            if left.is_zero() {
                let time = self.ends.state().link.limit().as_secs_f64();
                let reason = format!(", and no other one reached its agent in {time} s: {reason}");
                return self.await_exit(reason, now);
            }
            search.step = if driver.carriers.dials().is_some() {
                Step::Pause(now + END_LIMIT.min(left), reason.clone())
            } else {
                Step::Turn(now + search.limit.min(left))
            };
        }
        let failure = match &search.step {
            Step::Turn(_) if driver.take_turn(number) => {
                (search.step, search.turn) = (Step::Start, Some(now + TURN_LIMIT));
                let (host, path) = (&self.receiver.node.host, search.address.path.clone());
                let started = driver.start_carrier((number, host), path, search.is_silent);
                started.err().map(|error| error.to_string())
            }
            Step::Turn(time) if now >= *time => Some("too many carriers are being started".into()),
            Step::Answer(.., time) if now >= *time => Some("its agent did not answer in time".into()),
            Step::Exit(end, time) => match end.ended() {
                None if now >= *time => Some("its carrier has closed its output".into()),
                ended => ended,
            },
            _ => None,
        };
        if let Some(reason) = failure {
            self.attempt_failed(driver, reason, now);
        }
    }

    /// Notes that an attempt has failed. Another one follows while there is time.
    pub fn attempt_failed(&mut self, driver: &mut EdgeDriver, reason: String, now: Instant) {
        self.forget_up(driver);
        // An agent that connects itself does so when it can.
        let is_dialed = driver.carriers.dials().is_some();
        let pause = if is_dialed { END_LIMIT } else { RETRY.saturating_add(random_part(RETRY / 2)) };
        let pause = pause.min(self.left(now));
        let Phase::Searching(search) = &mut self.phase else { return };
        search.stop(driver, Step::Pause(now + pause, reason));
        search.limit = search.limit.saturating_mul(2).min(LONGEST_LIMIT);
        search.is_silent = true;
    }

    /// Begins with a connection of the agent in place of any other one.
    pub fn search_ended(&mut self, driver: &mut EdgeDriver, carrier: Carrier) {
        if let Phase::Searching(search) = &mut self.phase {
            search.stop(driver, Step::Start);
            self.forget_up(driver);
            self.attempt_started(driver, Ok(carrier));
        }
    }

    /// Begins with a carrier that was started, or not.
    pub fn attempt_started(&mut self, driver: &mut EdgeDriver, carrier: io::Result<Carrier>) {
        let (now, number) = (Instant::now(), self.number());
        let left = self.left(now);
        let Phase::Searching(search @ CarrierSearch { step: Step::Start, .. }) = &mut self.phase else {
            return drop(carrier.map(|carrier| carrier.end.signal(Signal::KILL)));
        };
        let Carrier { end, mut down, up, errors } = match carrier {
            Ok(carrier) => carrier,
            Err(error) => return self.attempt_failed(driver, error.to_string(), now),
        };
        let mut state = self.ends.state();
        state.link.begin_attempt();
        let frame = state.link.resume_frame(search.address.session).header().unwrap_or_default();
        drop(state);
        let begun = driver
            .watch(number, [Some(&up), Some(&down), errors.as_ref()])
            .and_then(|()| down.write_all(&frame));
        search.step = Step::Answer(end, down, now + search.limit.min(left));
        (self.up, self.is_ending) = (Some(up), false);
        // What has started an agent that connects itself may still print.
        if driver.carriers.dials().is_none() {
            self.errors = errors;
            self.ends.text().begin(search.is_silent);
        }
        (self.greeting, self.decoder) = (Some(0), FrameDecoder::of_agent());
        match begun {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => search.await_exit(now),
            Err(error) => self.attempt_failed(driver, error.to_string(), now),
        }
    }

    /// Takes what a new carrier begins with, if that has arrived whole.
    pub fn read_answer(&mut self, driver: &mut EdgeDriver, now: Instant) {
        let Phase::Searching(search) = &mut self.phase else { return };
        let failure = match self.decoder.decode() {
            Ok(None) => return,
            Ok(Some(frame @ Frame::Resume { .. })) => {
                let resumed = self.ends.state().link.resume(search.address.session, &frame);
                match resumed {
                    Ok(()) => return self.attach(driver, now),
                    Err(error) => error.to_string(),
                }
            }
            Ok(Some(Frame::Control(payload))) => match ToFrontEnd::decode(payload) {
                Ok(ToFrontEnd::Failed { reason, .. }) => {
                    search.stop(driver, Step::Start);
                    self.forget_up(driver);
                    return self.await_exit(format!(", and {reason}"), now);
                }
                Ok(_) => NO_LINK.into(),
                Err(error) => error.to_string(),
            },
            Ok(Some(_)) => NO_LINK.into(),
            Err(error) => error.to_string(),
        };
        self.attempt_failed(driver, failure, now);
    }

    /// Goes over to a new carrier, which the agent has.
    fn attach(&mut self, driver: &mut EdgeDriver, now: Instant) {
        let Phase::Searching(mut search) = mem::replace(&mut self.phase, Phase::Receiving) else { return };
        search.end_turn(driver);
        let Step::Answer(end, down, _) = search.step else { return };
        let mut state = self.ends.state();
        state.down = Some(down);
        mem::replace(&mut state.carrier, end).signal(Signal::KILL);
        state.write();
        drop(state);
        let first = mem::replace(&mut self.decoder, search.decoder);
        self.decoder.receive(first.rest());
        self.receive(driver, first.held(), now);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

    use std::fs;
    use std::sync::{Arc, Weak};

    use crossbeam::channel::unbounded;
    use iof_engine::Node;
    use iof_nodes::FrontEnd;
    use iof_proto::Rank;
    use mio::{Poll, Waker};

    use super::*;
    use crate::carrier::{MAX_STARTS, Template};
    use crate::carriers::Carriers;
    use crate::driver::WAKER;
    use crate::edge::{Edge, EdgeEnds, NodeEvent};
    use crate::receiver::Receiver;
    use crate::relatives::Relatives;

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn a_node_is_told_as_silent_once_while_a_carrier_is_searched() {
        let carriers = Carriers::command(Template::new("sh -c").unwrap(), "true").with_link("true");
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).unwrap());
        let mut driver = EdgeDriver::new(&poll, (Weak::new(), waker), carriers.clone(), None).unwrap();
        let Carrier { end, .. } = carriers.start("a", None, true, None).unwrap();
        let ranks = [Rank(0)].into();
        let ends = Arc::new(EdgeEnds::new("a", FrontEnd::new(&ranks, 1..=1), end, None));
        let started = ToFrontEnd::Started { pids: vec![1] }.frame().unwrap();
        let frames = [Frame::HELLO.header().unwrap().to_vec(), ToFrontEnd::Ready.frame().unwrap(), started];
        let (mut decoder, mut state) = (FrameDecoder::of_agent(), ends.state());
        decoder.receive(&frames.concat());
        let now = Instant::now();
        while let Some(frame) = decoder.decode().unwrap() {
            state.front.receive(&frame, now).unwrap();
        }
        state.link.outlive_carriers(LONG);
        state.link.detach(now);
        drop(state);
        let (events, queue) = unbounded();
        let (remote, engine, node) = (Weak::new(), Weak::new(), Node { host: "a".into(), ranks });
        let relatives = Relatives::default();
        let receiver = Receiver { node, number: 0, remote, engine, ends, output: None, events, relatives };
        // The search has a limit of its own.
        let mut driven = Driven::new(receiver, None, LONG, Some(Duration::from_secs(5)));
        let address = LinkAddress { path: "/nonexistent".into(), session: 0 };
        driven.phase = Phase::Searching(CarrierSearch::new(address, decoder, true, now));
        let mut events_after = |seconds| {
            driven.look(&mut driver, now + Duration::from_secs(seconds));
            assert!(driven.due().is_some_and(|due| due > now + Duration::from_secs(seconds)));
            queue.try_iter().map(|(_, event)| event).collect::<Vec<_>>()
        };
        assert!(events_after(29).is_empty());
        assert!(matches!(*events_after(31), [NodeEvent::Silent(length)] if length.as_secs() >= 30));
        assert!(events_after(100).is_empty());
    }

    #[test]
    fn attempts_that_are_not_answered_hold_back_no_other_one_for_long_and_end_with_their_edges() {
        // What follows in the command is a comment for the shell.
        let link = "[ $NODE = refuses ] && exit 7; exec sleep 1000 #";
        let template = Template::new("env NODE=%h sh -c").unwrap();
        let carriers = Carriers::command(template, "true").with_link(link);
        let driver = EdgeDriver::start(&carriers).unwrap();
        let (events, lost) = unbounded();
        let edge = |number: usize, host: &str, limit| {
            let Carrier { end, down, up, .. } = carriers.start(host, None, true, None).unwrap();
            let ranks = [Rank(0)].into();
            let ends = Arc::new(EdgeEnds::new(host, FrontEnd::new(&ranks, 1..=1), end, Some(down)));
            let node = Node { host: host.into(), ranks };
            let events = events.clone();
            let (remote, engine) = (Weak::new(), Weak::new());
            ends.state().link.outlive_carriers(limit);
            let relatives = Relatives::default();
            let receiver = Receiver { node, number, remote, engine, ends, output: None, events, relatives };
            let mut driven = Driven::new(receiver, Some(up), limit, None);
            driven.address = Some(LinkAddress { path: "/nonexistent".into(), session: 0 });
            driver.drive(driven)
        };
        let reason = || match lost.recv().unwrap() {
            (number, NodeEvent::Lost { reason, .. }) => (number, reason),
            _ => panic!("another event"),
        };
        // Their carriers end at once, and are replaced by some that do not answer.
        let silent: Vec<Edge> = (0..MAX_STARTS).map(|number| edge(number, "silent", LONG)).collect();
        let names = |name: &str| {
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
            let children: String = children.collect();
            let comms = children
                .split_whitespace()
                .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
            comms.filter(|comm| comm.trim() == name).count()
        };
        while names("sleep") < MAX_STARTS {
            std::thread::yield_now();
        }
        let other = edge(MAX_STARTS, "refuses", TURN_LIMIT + RETRY);
        let (number, text) = reason();
        assert_eq!(number, MAX_STARTS);
        assert!(text.ends_with(" 6 s: its carrier ended with exit status: 7"), "{text}");
        silent.iter().for_each(|edge| edge.signal_carrier(Signal::TERM));
        for _ in &silent {
            assert!(reason().1.ends_with(", and no other one was waited for"));
        }
        while names("sleep") > 0 {
            std::thread::yield_now();
        }
        drop((silent, other));
    }
}
