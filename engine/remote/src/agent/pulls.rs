//! The streams that tools of the front end pull: each is sent apart from the output of the node.

use std::collections::{BTreeSet, HashMap};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iof_engine::{Engine, Grant};
use iof_nodes::limits::MAX_RECORD;
use iof_nodes::{Bundle, Frame, StreamKey, ToFrontEnd};
use iof_proto::{Channels, Nspace, Proc, StreamPull};
use iof_tool::{Counts, Delivery, Gap, Origin, Pull, Reply, Tool, poll_timeout};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::uplink::Uplink;
use super::{AgentError, NAME};
use crate::carrier::lock;
use crate::thread::start_thread;

/// The pulls of a front end.
pub struct Pulls {
    nspace: Nspace,
    state: Mutex<State>,
    uplink: Arc<Uplink>,
}

struct State {
    tool: Tool,
    /// The pulls whose requests the engine has not answered; `None` for one that has ended.
    requested: HashMap<u32, Option<u32>>,
    /// The pulls by their registrations.
    by_handler: HashMap<u32, u32>,
}

/// The result of a step.
enum Step {
    /// One delivery: its frame, and the bytes if it is a record.
    Send(Frame<'static>, Vec<u8>),
    /// The rest of the stream of a pull can't be sent.
    Failed(u32),
    /// Nothing is to be sent.
    Done,
    /// The tool waits, for this time at most.
    Wait(Option<Duration>),
}

impl Pulls {
    /// Attaches a reader, which reads nothing yet, and starts the thread that sends what it reads.
    pub fn start(engine: &Engine, nspace: &Nspace, uplink: &Arc<Uplink>) -> Result<Arc<Pulls>, AgentError> {
        let tool = engine.attach(NAME, Grant::Never)?;
        let events = tool.as_fd().try_clone_to_owned()?;
        let state = State { tool, requested: HashMap::new(), by_handler: HashMap::new() };
        let (state, uplink) = (Mutex::new(state), Arc::clone(uplink));
        let pulls = Arc::new(Pulls { nspace: nspace.clone(), state, uplink });
        let sender = Arc::clone(&pulls);
        start_thread("iof-pulls", move || sender.send_all(&events))?;
        Ok(pulls)
    }

    /// Begins to send streams.
    pub fn begin(&self, requests: &[StreamPull]) {
        let mut state = lock(&self.state);
        for StreamPull { number: pull, rank, channel, from_oldest } in requests {
            let source = Proc::new(self.nspace.clone(), *rank);
            let request = Pull { backlog: *from_oldest, ..Pull::new(vec![source], Channels::from(*channel)) };
            match state.tool.submit_pull(&request) {
                Ok(request) => drop(state.requested.insert(request, Some(*pull))),
                // The engine ends.
                Err(_) => return,
            }
        }
    }

    /// Ends pulls.
    pub fn end(&self, pulls: &[u32]) {
        let pulls: BTreeSet<&u32> = pulls.iter().collect();
        let mut state = lock(&self.state);
        let State { tool, requested, by_handler } = &mut *state;
        for pull in requested.values_mut() {
            pull.take_if(|pull| pulls.contains(&*pull));
        }
        for (handler, _) in by_handler.extract_if(|_, pull| pulls.contains(&*pull)) {
            // Fails only if the stream has ended.
            let _ = tool.deregister(handler);
        }
    }

    /// Sends what is read until the edge or the engine ends.
    fn send_all(&self, events: &OwnedFd) {
        while !self.uplink.is_closed() {
            let step = lock(&self.state).step();
            match step {
                Step::Send(frame, bytes) => self.send(&frame, &bytes),
                Step::Failed(pull) => self.uplink.send(&ToFrontEnd::PullFailed { pull }),
                Step::Done => {}
                Step::Wait(limit) => {
                    let limit = PollTimeout::try_from(poll_timeout(limit)).unwrap_or(PollTimeout::NONE);
                    // After an error, such as an interruption, the tool is looked at.
                    let _ = poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], limit);
                    if lock(&self.state).tool.is_gone() {
                        return;
                    }
                }
            }
        }
    }

    /// Sends a frame, or the records that `bytes` need from its position on.
    fn send(&self, frame: &Frame<'_>, bytes: &[u8]) {
        let Frame::Record { pull, stream, mut offset, time, .. } = *frame else {
            return self.uplink.write(&[IoSlice::new(&frame.header().unwrap_or_default())]);
        };
        for bytes in bytes.chunks(MAX_RECORD) {
            if self.uplink.take_window(Bundle::Pulls, bytes.len(), true).is_none() {
                return;
            }
            let record = Frame::Record { pull, stream, offset, time, bytes };
            let header = record.header().unwrap_or_default();
            self.uplink.write(&[IoSlice::new(&header), IoSlice::new(bytes)]);
            offset = offset.saturating_add(bytes.len() as u64);
        }
    }
}

impl State {
    /// Takes the next delivery.
    fn step(&mut self) -> Step {
        let State { tool, requested, by_handler } = self;
        let mut refused = None;
        let step = match tool.try_recv() {
            // The engine has broken the protocol, or there is nothing.
            Err(_) | Ok(None) => return Step::Wait(tool.timeout()),
            Ok(Some(Delivery::Reply { request, reply: Reply::Pulled(result) })) => {
                let pull = requested.remove(&request).flatten();
                match (result, pull) {
                    (Ok(granted), Some(pull)) => drop(by_handler.insert(granted.handler, pull)),
                    (Ok(granted), None) => refused = Some(granted.handler),
                    (Err(_), Some(pull)) => return Step::Failed(pull),
                    (Err(_), None) => {}
                }
                Step::Done
            }
            Ok(Some(delivery)) => {
                let Some(&pull) = by_handler.get(&delivery.handler()) else { return Step::Done };
                let ends = !matches!(delivery, Delivery::Bytes(_) | Delivery::Gap { .. });
                let handler = delivery.handler();
                let stream =
                    |origin: Origin<'_>| StreamKey { rank: origin.source.rank, channel: origin.channel };
                let step = match delivery {
                    Delivery::Bytes(bytes) => {
                        let (offset, time) = (bytes.offset(), bytes.time().unwrap_or(0));
                        let stream = stream(bytes.origin());
                        let frame = Frame::Record { pull, stream, offset, time, bytes: &[] };
                        Step::Send(frame, bytes.to_vec())
                    }
                    Delivery::Gap { origin, gap: Gap { offset, lost } } => {
                        let stream = stream(origin);
                        Step::Send(Frame::Gap { pull, stream, offset, lost }, Vec::new())
                    }
                    Delivery::Complete { origin, counts: Counts { produced, .. } } => {
                        let stream = stream(origin);
                        Step::Send(Frame::End { pull, stream, produced }, Vec::new())
                    }
                    _ => Step::Failed(pull),
                };
                if ends {
                    by_handler.remove(&handler);
                }
                step
            }
        };
        if let Some(handler) = refused {
            // The pull has ended meanwhile.
            let _ = tool.deregister(handler);
        }
        step
    }
}
