//! The engine's part in the simulation of streams: it attaches readers, moves them to further
//! generations, and detaches them, as `iof-engine` does (`readers.rs`): by requests, which the
//! capture answers later.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use iof_capture::test_utils::SimulatedCapture;
use iof_capture::{Command, Gating, Joined, RequestId, SourceId, StreamAnswer, StreamRequest, StreamStep};
use iof_shm_ring::{Policy, ReaderId, ReaderPage, Ring, Start, bell};

use crate::kernel::{Kernel, send};
use crate::source::Source;
use crate::tool::{FromTool, Registration, ToTool, Tool};

/// One reader, as the engine knows it.
#[derive(Debug)]
struct Reading {
    source: SourceId,
    handler: u32,
    /// The slot in the generation that the reader may still be in, after a move that it did not
    /// request.
    old_id: Option<ReaderId>,
    ring: Weak<Ring>,
    /// The number of its generation, once it is attached.
    generation: Option<u64>,
    /// The request that attaches or moves it, and its next id.
    joining: Option<(RequestId, ReaderId)>,
    /// Its tool has requested the next generation.
    waits: bool,
}

/// A reader that is attached or moved by a request.
#[derive(Clone, Copy, Debug)]
struct JoiningReader {
    tool: usize,
    id: ReaderId,
}

/// The readers of all tools.
#[derive(Debug)]
pub struct Server {
    readings: BTreeMap<(usize, ReaderId), Reading>,
    backlog_holder: Arc<ReaderPage>,
    /// The numbers of the newest generations, as reported.
    generations: BTreeMap<SourceId, u64>,
    awaited: BTreeMap<RequestId, Vec<JoiningReader>>,
    last_request: u64,
    /// The rings of readers whose detachment the capture has not performed yet.
    leaving: Vec<Weak<Ring>>,
    /// The number of readers of the backlog holder that it has not detached yet.
    released: u64,
}

type Capture = SimulatedCapture<Kernel>;

impl Server {
    /// Creates a server without readers.
    pub fn new() -> Server {
        let backlog_holder = Arc::new(ReaderPage::on_heap(bell().expect("a bell").0));
        Server {
            readings: BTreeMap::new(),
            backlog_holder,
            generations: BTreeMap::new(),
            awaited: BTreeMap::new(),
            last_request: 0,
            leaving: Vec::new(),
            released: 0,
        }
    }

    /// Returns the number of readers of a source.
    pub fn readers_of(&self, source: SourceId) -> usize {
        self.readings.values().filter(|reading| reading.source == source).count()
    }

    /// Returns the number of readers of a tool.
    pub fn readers_by(&self, tool: usize) -> usize {
        self.readings.keys().filter(|(owner, _)| *owner == tool).count()
    }

    /// Calls `each` with every ring that a reader of the engine's tables is in.
    pub fn rings(&self, mut each: impl FnMut(*const Ring)) {
        let rings = self.readings.values().map(|reading| &reading.ring).chain(&self.leaving);
        rings.filter(|ring| ring.strong_count() > 0).for_each(|ring| each(ring.as_ptr()));
    }

    /// Returns how many rings the backlog holder may still be in although it was released.
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Takes note that the capture has performed all requests.
    pub fn turned(&mut self) {
        self.leaving.clear();
        self.released = 0;
    }

    fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        RequestId(self.last_request)
    }

    /// Returns a request that attaches tools to a new stream before its first byte.
    pub fn first_request(
        &mut self,
        tools: &mut [Tool],
        source: &mut Source,
        registrations: Vec<(usize, u32, Registration)>,
    ) -> StreamRequest {
        let request = self.next_request();
        let mut steps = Vec::new();
        for (number, handler, registration) in registrations {
            let reader = (number, &mut tools[number]);
            steps.extend(self.join(request, reader, source, handler, registration));
        }
        steps.extend(self.hold_backlog(source, Start::Oldest));
        source.keeps_first &= source.backlog.is_some();
        StreamRequest { id: Some(request), steps }
    }

    /// Attaches a tool to an existing stream.
    pub fn attach(
        &mut self,
        capture: &mut Capture,
        reader: (usize, &mut Tool),
        source: &mut Source,
        handler: u32,
        registration: Registration,
    ) {
        let request = self.next_request();
        let mut steps = self.join(request, reader, source, handler, registration);
        steps.extend(self.detach_backlog_holder(source));
        send(capture, Command::Request(StreamRequest { id: Some(request), steps }));
    }

    /// Returns the steps that attach a reader: its counters are read at the same moment.
    fn join(
        &mut self,
        request: RequestId,
        (number, tool): (usize, &mut Tool),
        source: &mut Source,
        handler: u32,
        mut registration: Registration,
    ) -> Vec<StreamStep> {
        let id = tool.page.take_slot().expect("a slot");
        let (page, start, gating) = (Arc::clone(&tool.page), registration.start, registration.gating);
        // Tools with an odd number are in the engine's process.
        let remote = number % 2 == 0;
        let takes_over = source.keeps_first && source.backlog.is_some();
        registration.from_first = takes_over && start == Start::Oldest && gating != Gating::Never;
        let reading = Reading {
            source: source.id,
            handler,
            old_id: None,
            ring: Weak::new(),
            generation: None,
            joining: Some((request, id)),
            waits: false,
        };
        self.readings.insert((number, id), reading);
        self.awaited.entry(request).or_default().push(JoiningReader { tool: number, id });
        tool.registrations.insert(handler, registration);
        vec![
            StreamStep::Attach { source: source.id, page, reader: id, start, gating, group: 0, remote },
            StreamStep::Count { source: source.id, readers: Vec::new() },
        ]
    }

    /// Returns the step by which the backlog holder reads a stream from `start` on, if the stream
    /// has no other reader and keeps a backlog.
    fn hold_backlog(&mut self, source: &mut Source, start: Start) -> Option<StreamStep> {
        let blocks = source.policy == Policy::Block;
        let keeps = source.policy == Policy::DropNewest || blocks && source.backlog_blocks;
        if !keeps || source.backlog_released || source.backlog.is_some() || self.readers_of(source.id) > 0 {
            return None;
        }
        let reader = self.backlog_holder.take_slot().expect("a slot");
        source.backlog = Some(reader);
        let gating = if blocks { Gating::Hold } else { Gating::Keep };
        let page = Arc::clone(&self.backlog_holder);
        Some(StreamStep::Attach { source: source.id, page, reader, start, gating, group: 0, remote: false })
    }

    fn detach_backlog_holder(&mut self, source: &mut Source) -> Option<StreamStep> {
        source.keeps_first = false;
        let reader = source.backlog.take()?;
        self.released += 1;
        self.backlog_holder.return_slot(reader);
        Some(StreamStep::Detach { source: source.id, page: Arc::clone(&self.backlog_holder), reader })
    }

    /// Releases the backlog of a stream.
    pub fn release_backlog(&mut self, capture: &mut Capture, source: &mut Source) {
        source.backlog_released = true;
        let steps = self.detach_backlog_holder(source).into_iter().collect();
        send(capture, Command::Request(StreamRequest { id: None, steps }));
    }

    /// Takes the capture's answers to a request.
    pub fn answered(&mut self, tools: &mut [Tool], request: RequestId, answers: Vec<StreamAnswer>) {
        let mut answers = answers.into_iter().peekable();
        for JoiningReader { tool: number, id } in self.awaited.remove(&request).unwrap_or_default() {
            let Some(StreamAnswer::Joined(joined)) = answers.next() else {
                panic!("a step was not answered")
            };
            let counted = answers.next_if(|answer| matches!(answer, StreamAnswer::Counted(_)));
            // The reader may have been detached meanwhile, and its slot may be another reader's.
            let Some(reading) = self.readings.get(&(number, id)) else { continue };
            let Some((_, new)) = reading.joining.filter(|(joining, _)| *joining == request) else { continue };
            let tool = &mut tools[number];
            match joined {
                Some(joined) => {
                    if let Some(StreamAnswer::Counted(Some(counted))) = counted
                        && let Some(registration) = tool.registrations.get_mut(&reading.handler)
                    {
                        registration.begin_at(&joined.attached, counted.stats);
                    }
                    self.joined((number, tool), id, new, joined);
                }
                None => self.join_failed((number, tool), id, new),
            }
        }
    }

    /// Sends the ring of a reader that was attached or moved.
    fn joined(&mut self, (number, tool): (usize, &mut Tool), id: ReaderId, new: ReaderId, joined: Joined) {
        let Some(reading) = self.readings.remove(&(number, id)) else { return };
        let follows = reading.generation.is_some().then_some(id);
        let handler = reading.handler;
        let reading = Reading {
            old_id: if new == id { reading.old_id } else { Some(id) },
            ring: Arc::downgrade(&joined.attached.ring),
            generation: Some(joined.generation),
            joining: None,
            waits: false,
            ..reading
        };
        self.readings.insert((number, new), reading);
        tool.inbox.push_back(ToTool::Ring { handler, follows, ring: joined.attached });
    }

    fn join_failed(&mut self, (number, tool): (usize, &mut Tool), id: ReaderId, new: ReaderId) {
        let Some(reading) = self.readings.get_mut(&(number, id)) else { return };
        reading.joining = None;
        if reading.generation.is_some() {
            // It is in the newest generation already.
            if new != id {
                tool.page.return_slot(new);
            }
            return;
        }
        let handler = reading.handler;
        self.readings.remove(&(number, id));
        tool.page.return_slot(id);
        tool.registrations.remove(&handler);
    }

    /// Handles a message of a tool.
    pub fn serve(
        &mut self,
        capture: &mut Capture,
        (number, tool): (usize, &mut Tool),
        sources: &mut [Source],
        message: FromTool,
    ) {
        match message {
            FromTool::Follow(id) => {
                if let Some(reading) = self.readings.get_mut(&(number, id)) {
                    reading.waits = true;
                    self.follow(capture, (number, &*tool), id);
                }
            }
            FromTool::Drained(id) => self.detach(capture, (number, &*tool), sources, id),
            FromTool::Barrier(handler) => tool.inbox.push_back(ToTool::Barrier(handler)),
        }
    }

    /// Takes note of the newest generation of a stream, and moves the readers that wait for it.
    pub fn moved(&mut self, capture: &mut Capture, tools: &[Tool], source: SourceId, generation: u64) {
        let before = self.generations.insert(source, generation);
        assert!(before.is_none_or(|before| before < generation), "source {} moved back", source.0);
        let of_source = |(_, reading): &(&(usize, ReaderId), &Reading)| reading.source == source;
        let readers: Vec<_> = self.readings.iter().filter(of_source).map(|(key, _)| *key).collect();
        readers.into_iter().for_each(|(number, id)| self.follow(capture, (number, &tools[number]), id));
    }

    /// Moves a reader to the newest generation if it waits for that.
    fn follow(&mut self, capture: &mut Capture, (number, tool): (usize, &Tool), id: ReaderId) {
        let request = self.next_request();
        let Some(reading) = self.readings.get_mut(&(number, id)) else { return };
        let newest = self.generations.get(&reading.source).copied();
        if reading.waits && reading.joining.is_none() && reading.generation < newest {
            let step = reading.follow(request, tool, (id, id));
            self.awaited.insert(request, vec![JoiningReader { tool: number, id }]);
            send(capture, Command::Request(StreamRequest { id: Some(request), steps: vec![step] }));
        }
    }

    /// Sends the last generation of a complete stream, which has this number, to the readers that
    /// are not in it.
    pub fn send_last_generation(
        &mut self,
        capture: &mut Capture,
        tools: &[Tool],
        source: SourceId,
        generation: u64,
    ) {
        let request = self.next_request();
        let (mut steps, mut readers) = (Vec::new(), Vec::new());
        for ((number, id), reading) in &mut self.readings {
            let left = reading.joining.is_none() && reading.generation.is_some_and(|old| old < generation);
            if reading.source == source && left {
                let new = tools[*number].page.take_slot().expect("a slot");
                steps.push(reading.follow(request, &tools[*number], (*id, new)));
                readers.push(JoiningReader { tool: *number, id: *id });
            }
        }
        self.awaited.insert(request, readers);
        send(capture, Command::Request(StreamRequest { id: Some(request), steps }));
    }

    /// Detaches a reader that no longer uses its slot. The slot may be used at once, because the
    /// requests of others are performed later.
    fn detach(
        &mut self,
        capture: &mut Capture,
        (number, tool): (usize, &Tool),
        sources: &mut [Source],
        id: ReaderId,
    ) {
        let Some(reading) = self.readings.remove(&(number, id)) else { return };
        self.leaving.push(Weak::clone(&reading.ring));
        let moved = reading.joining.map(|(_, moved)| moved).filter(|moved| *moved != id);
        let page = || Arc::clone(&tool.page);
        let detach = |reader| StreamStep::Detach { source: reading.source, page: page(), reader };
        let mut steps: Vec<StreamStep> = [Some(id), moved].into_iter().flatten().map(detach).collect();
        let slots = [Some(id), reading.old_id, moved];
        slots.into_iter().flatten().for_each(|slot| tool.page.return_slot(slot));
        if let Some(source) = sources.get_mut(reading.source.0 as usize).filter(|source| !source.removed) {
            steps.extend(self.hold_backlog(source, Start::Now));
        }
        send(capture, Command::Request(StreamRequest { id: None, steps }));
    }

    /// Detaches all readers of a tool that has ended.
    pub fn disconnect(
        &mut self,
        capture: &mut Capture,
        (number, tool): (usize, &Tool),
        sources: &mut [Source],
    ) {
        let of_tool = self.readings.range((number, ReaderId::from(0))..=(number, ReaderId::from(u32::MAX)));
        let ids: Vec<ReaderId> = of_tool.map(|((_, id), _)| *id).collect();
        for id in ids {
            self.detach(capture, (number, tool), sources, id);
        }
    }
}

impl Reading {
    /// Returns the step that moves the reader to the newest generation, with its next id.
    fn follow(&mut self, request: RequestId, tool: &Tool, (id, new): (ReaderId, ReaderId)) -> StreamStep {
        self.joining = Some((request, new));
        StreamStep::Follow { source: self.source, page: Arc::clone(&tool.page), reader: id, new }
    }
}
