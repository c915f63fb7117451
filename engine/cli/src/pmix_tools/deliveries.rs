//! The registrations of a tool of PMIx, and what it has of each stream.
//!
//! libpmix passes output to every registration of the tool that covers its source. So the bytes of
//! a stream are delivered once, as those of one registration, even if several cover it.

use std::collections::{BTreeMap, BTreeSet};

use iof_pmix_server::ToolServer;
use iof_proto::attribute::library::{IOF_GONE, IOF_LOGGED, IOF_LOST};
use iof_proto::directive::key::PMIX_IOF_COMPLETE;
use iof_proto::{Channel, Info, Nspace, Proc};
use iof_tool::{Delivery, Origin};

/// The most bytes of one delivery.
const PART: usize = 64 << 10;

/// The registrations that the tool has asked for, and the part of their output that it has.
#[derive(Default)]
pub struct Deliveries {
    /// The registrations, by the engine's numbers.
    registrations: BTreeMap<u32, Registration>,
    streams: BTreeMap<(Proc, Channel, bool), Stream>,
    /// The numbers of the registrations that only report the ends of jobs.
    watches: BTreeSet<u32>,
    /// The jobs that have ended, until the tool knows.
    ended: BTreeMap<Nspace, Option<i32>>,
}

struct Registration {
    /// libpmix's number.
    number: u32,
    procs: Vec<Proc>,
    /// The jobs whose last byte was delivered.
    ended: BTreeSet<Nspace>,
}

/// A stream that the tool has in part.
struct Stream {
    /// The registration that delivers it; `None` if that has ended.
    handler: Option<u32>,
    /// The number of bytes of the stream up to the last one that was delivered or lost.
    position: u64,
    /// The bytes that are missing, and that the tool does not know of yet.
    lost: u64,
}

/// The result of passing a delivery on.
#[derive(Default)]
pub struct Passed {
    /// The size of the message to the tool, if there was one.
    pub bytes: Option<usize>,
    /// The number of bytes to consume; `None`: all.
    pub consumed: Option<usize>,
}

impl Deliveries {
    /// Adds a registration that only reports the ends of jobs.
    pub fn add_watch(&mut self, watch: u32) {
        self.watches.insert(watch);
    }

    pub fn add(&mut self, handler: u32, number: u32, procs: Vec<Proc>) {
        self.registrations.insert(handler, Registration { number, procs, ended: BTreeSet::new() });
    }

    /// Returns the registration to which libpmix has given this number.
    pub fn registration(&self, number: u32) -> Option<u32> {
        let mut all = self.registrations.iter();
        all.find(|(_, registration)| registration.number == number).map(|(handler, _)| *handler)
    }

    /// Removes a registration that has ended.
    pub fn remove(&mut self, handler: u32) {
        self.registrations.remove(&handler);
        for stream in self.streams.values_mut().filter(|stream| stream.handler == Some(handler)) {
            stream.handler = None;
        }
        if self.registrations.is_empty() {
            // The next registration begins with what is cached.
            self.streams.clear();
        }
    }

    /// Returns the jobs that have ended and whose output the tool has, with their exit codes, once.
    pub fn take_ended(&mut self) -> Vec<(Nspace, Option<i32>)> {
        let registrations = &self.registrations;
        let has_all = |nspace: &Nspace| {
            registrations.values().all(|registration| {
                registration.ended.contains(nspace)
                    || !registration.procs.iter().any(|proc| proc.nspace == *nspace)
            })
        };
        let (over, rest) =
            std::mem::take(&mut self.ended).into_iter().partition(|(nspace, _)| has_all(nspace));
        self.ended = rest;
        BTreeMap::into_iter(over).collect()
    }

    /// Reports the ends of all jobs as soon as possible: the engine is gone.
    pub fn give_up(&mut self) {
        self.registrations.clear();
    }

    /// Passes a delivery of the engine to the tool.
    ///
    /// # Errors
    /// libpmix's reason.
    pub fn pass(&mut self, delivery: &Delivery<'_>, server: &ToolServer) -> Result<Passed, String> {
        match delivery {
            Delivery::Bytes(bytes) => {
                let origin = bytes.origin();
                let Some(stream) = self.stream(&origin) else { return Ok(Passed::default()) };
                let skipped = stream.position.saturating_sub(bytes.offset());
                stream.lost = stream.lost.saturating_add(bytes.offset().saturating_sub(stream.position));
                let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(bytes.len());
                let rest = bytes.get(skipped..).unwrap_or_default();
                let part = rest.get(..PART).unwrap_or(rest);
                let consumed = skipped.saturating_add(part.len());
                stream.position = bytes.offset().saturating_add(consumed as u64);
                if part.is_empty() {
                    return Ok(Passed::default());
                }
                server.deliver(origin.source, origin.channel, part, &stream.infos(&origin, None))?;
                Ok(Passed { bytes: Some(part.len()), consumed: Some(consumed) })
            }
            Delivery::Gap { origin, gap } => {
                if let Some(stream) = self.stream(origin) {
                    stream.position = stream.position.saturating_add(gap.lost);
                    stream.lost = stream.lost.saturating_add(gap.lost);
                }
                Ok(Passed::default())
            }
            Delivery::Complete { origin, .. } => self.end(origin, PMIX_IOF_COMPLETE, server),
            Delivery::Gone { origin, .. } => self.end(origin, IOF_GONE, server),
            Delivery::JobEnded { handler, nspace, exit_code, .. } => {
                if self.watches.contains(handler) {
                    self.ended.insert(nspace.clone(), *exit_code);
                } else if let Some(registration) = self.registrations.get_mut(handler) {
                    registration.ended.insert(nspace.clone());
                }
                Ok(Passed::default())
            }
            Delivery::Missed { missed, .. } => {
                let lost = Info::new(IOF_LOST, missed.bytes);
                server.deliver(&Proc::all(missed.nspace.clone()), missed.channel, &[], &[lost])?;
                Ok(Passed { bytes: Some(0), consumed: None })
            }
            Delivery::Deregistered { handler } => {
                self.remove(*handler);
                Ok(Passed::default())
            }
            _ => Ok(Passed::default()),
        }
    }

    /// Returns the state of a stream, unless another registration delivers it.
    fn stream(&mut self, origin: &Origin<'_>) -> Option<&mut Stream> {
        self.registrations.get(&origin.handler)?;
        let key = (origin.source.clone(), origin.channel, origin.logged);
        let first = Stream { handler: None, position: 0, lost: 0 };
        let stream = self.streams.entry(key).or_insert(first);
        let handler = *stream.handler.get_or_insert(origin.handler);
        (handler == origin.handler).then_some(stream)
    }

    /// Reports the end of a stream.
    fn end(&mut self, origin: &Origin<'_>, key: &str, server: &ToolServer) -> Result<Passed, String> {
        let Some(stream) = self.stream(origin) else { return Ok(Passed::default()) };
        let infos = stream.infos(origin, Some(key));
        server.deliver(origin.source, origin.channel, &[], &infos)?;
        Ok(Passed { bytes: Some(0), consumed: None })
    }
}

impl Stream {
    /// Returns the infos of a delivery, which reports all losses before it.
    fn infos(&mut self, origin: &Origin<'_>, end: Option<&str>) -> Vec<Info> {
        let lost = std::mem::take(&mut self.lost);
        let mut infos: Vec<Info> = end.map(|key| Info::new(key, true)).into_iter().collect();
        infos.extend((lost > 0).then(|| Info::new(IOF_LOST, lost)));
        infos.extend(origin.logged.then(|| Info::new(IOF_LOGGED, true)));
        infos
    }
}
