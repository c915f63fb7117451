//! The output of all ranks of a node, as two bundles.

use std::sync::Arc;
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

    /// Starts one thread for each bundle. They end after the last byte.
    pub fn start(self, uplink: &Arc<Uplink>) -> Result<Vec<JoinHandle<()>>, Failure> {
        let start = |tool| {
            let uplink = Arc::clone(uplink);
            let sender = Sender { uplink, batch: Vec::new() };
            thread::Builder::new()
                .name("iof-bundle".into())
                .spawn(move || sender.run(tool))
                .map_err(no_thread)
        };
        self.0.into_iter().map(start).collect()
    }
}

/// The sender of one bundle.
struct Sender {
    uplink: Arc<Uplink>,
    /// Frames that are not written. Records that wait are written together.
    batch: Vec<u8>,
}

impl Sender {
    fn run(mut self, mut tool: Tool) {
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
    fn add(&mut self, delivery: &Delivery<'_>) -> Option<()> {
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

    fn record(&mut self, stream: StreamKey, mut offset: u64, time: u64, mut bytes: &[u8]) -> Option<()> {
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

    fn frame(&mut self, frame: &Frame<'_>) {
        self.batch.extend(frame.header().into_iter().flatten());
        self.batch.extend_from_slice(frame.payload());
        if self.batch.len() >= MAX_RECORD {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.uplink.write(&self.batch);
            self.batch.clear();
        }
    }
}
