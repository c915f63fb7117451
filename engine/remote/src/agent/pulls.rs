//! The streams that tools of the front end pull: each is sent apart from the output of the node.

use std::collections::{BTreeSet, HashMap};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iof_engine::{Engine, Grant};
use iof_nodes::limits::MAX_RECORD;
use iof_nodes::{Bundle, Frame, StreamKey, ToFrontEnd};
use iof_proto::{Channels, InputState, Nspace, Proc, StreamPull};
use iof_tool::{Counts, Delivery, Gap, Pull, Reply, Tool, poll_timeout};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::uplink::Uplink;
use super::{AgentError, NAME};
use crate::carrier::lock;
use crate::thread::start_thread;

/// Reads that are less far apart, in nanoseconds, have one record and one time.
const RECORD_GRAIN: u64 = 10_000_000;

/// The pulls of a front end.
pub struct Pulls {
    nspace: Nspace,
    state: Mutex<State>,
    uplink: Arc<Uplink>,
}

struct State {
    tool: Tool,
    /// The pulls whose requests the engine has not answered; `None` for one that has ended.
    requested: HashMap<u32, Option<SentStream>>,
    /// The pulls by their registrations.
    by_handler: HashMap<u32, SentStream>,
}

/// A stream that is sent for a pull.
#[derive(Clone, Copy)]
struct SentStream {
    pull: u32,
    stream: StreamKey,
    /// The offset behind what was sent.
    offset: u64,
}

/// The result of a step.
enum Step {
    /// One delivery: its frame, and if it is a record, the bytes, and the offsets and times of their
    /// reads.
    Send(Frame<'static>, Vec<u8>, Vec<(u64, u64)>),
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
        for StreamPull { number: pull, rank, channel } in requests {
            let source = Proc::new(self.nspace.clone(), *rank);
            let request = Pull { reports_cached: true, ..Pull::new(vec![source], Channels::from(*channel)) };
            let stream = StreamKey { rank: *rank, channel: *channel };
            let sent = SentStream { pull: *pull, stream, offset: 0 };
            match state.tool.submit_pull(&request) {
                Ok(request) => drop(state.requested.insert(request, Some(sent))),
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
            pull.take_if(|sent| pulls.contains(&sent.pull));
        }
        for (handler, _) in by_handler.extract_if(|_, sent| pulls.contains(&sent.pull)) {
            // Fails only if the stream has ended.
            let _ = tool.deregister(handler);
        }
    }

    /// Sends what is read until the edge or the engine ends.
    fn send_all(&self, events: &OwnedFd) {
        while !self.uplink.is_closed() {
            let step = lock(&self.state).step();
            match step {
                Step::Send(frame, bytes, times) => self.send(&frame, &bytes, &times),
                Step::Failed(pull) => _ = self.uplink.send(&ToFrontEnd::PullFailed { pull }),
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

    /// Sends a frame, or the records that `bytes` with these read times need from its position on.
    fn send(&self, frame: &Frame<'_>, bytes: &[u8], times: &[(u64, u64)]) {
        let Frame::Record { pull, stream, offset, input, .. } = *frame else {
            return self.uplink.write(&[IoSlice::new(&frame.header().unwrap_or_default())]);
        };
        for (offset, time, bytes) in records(offset, times, bytes) {
            if self.uplink.take_window(Bundle::Pulls, bytes.len(), true).is_none() {
                return;
            }
            let record = Frame::Record { pull, stream, offset, time, input, bytes };
            let header = record.header().unwrap_or_default();
            self.uplink.write(&[IoSlice::new(&header), IoSlice::new(bytes)]);
        }
    }
}

/// Divides the bytes at `offset` into records: with their offsets, times and bytes.
fn records<'a>(
    mut offset: u64,
    times: &[(u64, u64)],
    mut bytes: &'a [u8],
) -> impl Iterator<Item = (u64, u64, &'a [u8])> {
    let mut times = times.iter().copied().peekable();
    let mut time = 0;
    std::iter::from_fn(move || {
        while let Some((_, next)) = times.next_if(|(from, _)| *from <= offset) {
            time = next;
        }
        // Reads within the grain are one record.
        while times.next_if(|(_, next)| next.abs_diff(time) < RECORD_GRAIN).is_some() {}
        let until = times.peek().map_or(u64::MAX, |(from, _)| from.saturating_sub(offset));
        let len = usize::try_from(until).unwrap_or(usize::MAX).min(MAX_RECORD).min(bytes.len());
        let (record, rest) = bytes.split_at(len);
        let found = (offset, time, record);
        (offset, bytes) = (offset.saturating_add(len as u64), rest);
        (len > 0).then_some(found)
    })
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
                let sent = requested.remove(&request).flatten();
                match (result, sent) {
                    (Ok(granted), Some(sent)) => drop(by_handler.insert(granted.handler, sent)),
                    (Ok(granted), None) => refused = Some(granted.handler),
                    (Err(_), Some(sent)) => return Step::Failed(sent.pull),
                    (Err(_), None) => {}
                }
                Step::Done
            }
            Ok(Some(delivery)) => {
                let handler = delivery.handler();
                let Some(sent) = by_handler.get_mut(&handler) else { return Step::Done };
                let ends =
                    !matches!(delivery, Delivery::Bytes(_) | Delivery::Gap { .. } | Delivery::Cached { .. });
                let SentStream { pull, stream, .. } = *sent;
                let step = match delivery {
                    Delivery::Bytes(bytes) => {
                        let offset = bytes.offset();
                        sent.offset = offset.saturating_add(bytes.len() as u64);
                        let mut times = Vec::new();
                        bytes.times(&mut times);
                        let last = bytes.last_read().unwrap_or_default();
                        let input = InputState { interaction: last.interaction, is_answer: last.is_answer };
                        let frame = Frame::Record { pull, stream, offset, time: 0, input, bytes: &[] };
                        Step::Send(frame, bytes.to_vec(), times)
                    }
                    Delivery::Gap { gap: Gap { offset, lost }, .. } => {
                        sent.offset = offset.saturating_add(lost);
                        Step::Send(Frame::Gap { pull, stream, offset, lost }, Vec::new(), Vec::new())
                    }
                    // A gap without bytes marks the end of what was cached.
                    Delivery::Cached { .. } => {
                        let frame = Frame::Gap { pull, stream, offset: sent.offset, lost: 0 };
                        Step::Send(frame, Vec::new(), Vec::new())
                    }
                    Delivery::Complete { counts: Counts { produced, .. }, .. } => {
                        Step::Send(Frame::End { pull, stream, produced }, Vec::new(), Vec::new())
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
