//! The output of all ranks of a node, as two bundles.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use iof_engine::{Engine, Grant};
use iof_nodes::limits::MAX_RECORD;
use iof_nodes::{Frame, StreamKey};
use iof_proto::{Channels, Nspace, Proc};
use iof_tool::{Delivery, Pull, Tool};

use super::NAME;
use super::uplink::Uplink;
use crate::error::Failure;
use crate::threads::no_thread;

/// The readers of a node's output.
pub struct Bundles(Vec<Tool>);

impl Bundles {
    /// Attaches the readers. The ranks wait for them.
    pub fn attach(engine: &Engine, nspace: &Nspace) -> Result<Bundles, Failure> {
        let attach = |channels| {
            let mut tool = engine.attach(NAME, Grant::Block).map_err(Failure::running)?;
            tool.pull(&Pull::new(vec![Proc::all(nspace.clone())], channels)).map_err(Failure::running)?;
            Ok(tool)
        };
        let bundles = [Channels::STDOUT, Channels::STDERR | Channels::STDDIAG];
        bundles.into_iter().map(attach).collect::<Result<_, _>>().map(Bundles)
    }

    /// Starts one thread for each bundle. They end after the last byte. Returns them with their
    /// batches.
    pub fn start(self, uplink: &Arc<Uplink>) -> Result<(Vec<JoinHandle<()>>, Vec<Batch>), Failure> {
        let start = |tool| {
            let sender = Sender { uplink: Arc::clone(uplink), batch: Batch::default() };
            let batch = sender.batch.clone();
            let thread = thread::Builder::new().name("iof-bundle".into()).spawn(move || sender.run(tool));
            thread.map_err(no_thread).map(|thread| (thread, batch))
        };
        self.0.into_iter().map(start).collect()
    }
}

/// The frames of a bundle that are not written. Records that wait are written together.
#[derive(Clone, Default)]
pub struct Batch(Arc<Mutex<Vec<u8>>>);

impl Batch {
    /// Writes the frames. Frames that another thread writes meanwhile are written first.
    pub fn write(&self, uplink: &Uplink) {
        let mut frames = self.frames();
        if !frames.is_empty() {
            uplink.write(&frames);
            frames.clear();
        }
    }

    /// Adds a frame. Returns the length of the batch.
    fn add(&self, frame: &Frame<'_>) -> usize {
        let mut frames = self.frames();
        frames.extend(frame.header().into_iter().flatten());
        frames.extend_from_slice(frame.payload());
        frames.len()
    }

    fn frames(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sender of one bundle.
struct Sender {
    uplink: Arc<Uplink>,
    batch: Batch,
}

impl Sender {
    fn run(self, mut tool: Tool) {
        // The engine lives as long as the agent.
        loop {
            match tool.try_recv() {
                Ok(Some(delivery)) if self.add(&delivery).is_none() => return,
                Ok(Some(_)) => continue,
                Ok(None) => self.flush(),
                Err(_) => return,
            }
            match tool.recv() {
                Ok(Some(delivery)) if self.add(&delivery).is_none() => return,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return self.flush(),
            }
        }
    }

    /// Adds the frames of a delivery. Returns `None` when the edge has ended.
    fn add(&self, delivery: &Delivery<'_>) -> Option<()> {
        match delivery {
            Delivery::Bytes(bytes) => {
                let origin = bytes.origin();
                let stream = StreamKey { rank: origin.source.rank, channel: origin.channel };
                self.record(stream, bytes.offset(), bytes.time().unwrap_or(0), bytes.as_slice())?;
            }
            Delivery::Gap { origin, gap } => {
                let stream = StreamKey { rank: origin.source.rank, channel: origin.channel };
                self.frame(&Frame::Gap { stream, offset: gap.offset, lost: gap.lost });
            }
            Delivery::Complete { origin, counts } => {
                let stream = StreamKey { rank: origin.source.rank, channel: origin.channel };
                self.frame(&Frame::End { stream, produced: counts.produced });
            }
            _ => {}
        }
        Some(())
    }

    fn record(&self, stream: StreamKey, mut offset: u64, time: u64, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            let length = match self.uplink.take_window(stream.channel, bytes.len()) {
                0 => {
                    // The front end credits only what it has.
                    self.flush();
                    self.uplink.wait_for_window(stream.channel, bytes.len())?
                }
                length => length,
            };
            let (now, later) = bytes.split_at_checked(length)?;
            self.frame(&Frame::Record { stream, offset, time, bytes: now });
            offset = offset.saturating_add(length as u64);
            bytes = later;
        }
        Some(())
    }

    fn frame(&self, frame: &Frame<'_>) {
        if self.batch.add(frame) >= MAX_RECORD {
            self.flush();
        }
    }

    fn flush(&self) {
        self.batch.write(&self.uplink);
    }
}
