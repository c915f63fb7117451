//! A core with one job, and a capture thread whose answers are held back.

use iof_proto::{Failure, Status};
use iof_shm_ring::{Inlet, Policy, Stream, StreamConfig};

use super::*;
use crate::logs::routes::LogConfig;
use crate::memory::MemorySource;
use crate::streams::options::Buffering;
use crate::tools::grant::Grant;

/// A core, with what performs its commands.
pub struct Rig {
    pub state: Core,
    pub memory: Arc<SharedMemory>,
    pub capture: Capture,
    pub events: Receiver<Event>,
    pub nspace: Nspace,
    pub ranks: u32,
}

/// Returns a core with one job whose ranks are elsewhere.
pub fn rig() -> Rig {
    rig_with_memory(Box::new(NodeMemory))
}

/// The memory of this node.
struct NodeMemory;

impl MemorySource for NodeMemory {
    fn inlet(&self, capacity: u64) -> Result<Inlet, Failure> {
        Ok(Inlet::create(capacity, "test").unwrap())
    }

    fn log_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, Failure> {
        Ok(Stream::create(config, label).unwrap())
    }

    fn delivered_stream(&self, config: StreamConfig, label: &str) -> Result<Stream, CreateError> {
        Stream::create(config, label)
    }

    fn prepare_slot(&self, page: &ReaderPage, slot: ReaderId) -> Result<(), CreateError> {
        page.prepare_slot(slot)
    }

    fn has_syslog(&self) -> bool {
        true
    }
}

/// Memory that is left for slots only.
pub struct NoStreams;

impl MemorySource for NoStreams {
    fn inlet(&self, _capacity: u64) -> Result<Inlet, Failure> {
        Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, "no memory"))
    }

    fn log_stream(&self, _config: StreamConfig, _label: &str) -> Result<Stream, Failure> {
        Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, "no memory"))
    }

    fn delivered_stream(&self, config: StreamConfig, _label: &str) -> Result<Stream, CreateError> {
        Err(CreateError::Capacity { asked: config.capacity })
    }

    fn prepare_slot(&self, _page: &ReaderPage, _slot: ReaderId) -> Result<(), CreateError> {
        Ok(())
    }

    fn has_syslog(&self) -> bool {
        false
    }
}

/// Returns a core whose memory comes from `source`.
pub fn rig_with_memory(source: Box<dyn MemorySource>) -> Rig {
    let options = StreamOptions::new(None, Policy::Block, Buffering::default());
    let routes = LogRoutes {
        config: LogConfig::default(),
        has_record: false,
        has_gateway: false,
        has_mail: false,
        host: Default::default(),
    };
    let settings = Settings {
        host_keys: Default::default(),
        host_queries: Default::default(),
        host_stdin: false,
        options,
        max_cache_size: 16 << 20,
        places: 8,
        slots: MAX_SLOTS,
        limits: Limits::default(),
        run: 0,
        pid: 1,
        uid: 1,
        node: "node".into(),
    };
    let holder = ReaderPage::create(iof_shm_ring::bell().unwrap().0).unwrap();
    let memory = Arc::new(SharedMemory::new(source, holder));
    let mut state = Core::new(2, settings, Logs::new(routes), Box::new(Arc::clone(&memory)));
    let (sender, events) = channel();
    let capture = Capture::start(move |event| drop(sender.send(event))).unwrap();
    let nspace = Nspace::new("job").unwrap();
    state.jobs.get_or_add(&nspace, || JobState::elsewhere(options));
    Rig { state, memory, capture, events, nspace, ranks: 0 }
}

impl Rig {
    /// Connects a tool of the embedder.
    pub fn connect(&mut self) -> PeerId {
        self.connect_tool(true)
    }

    pub fn connect_tool(&mut self, is_own: bool) -> PeerId {
        self.connect_with_slots(MAX_SLOTS, is_own, false)
    }

    pub fn connect_with_slots(&mut self, slots: usize, is_own: bool, may_block: bool) -> PeerId {
        let (ringer, bell) = iof_shm_ring::doorbell().unwrap();
        let id = self.state.tools.next_id();
        self.memory.add_tool(id, ReaderPage::create(ringer).unwrap(), bell, None);
        let process = ClientProcess { pid: 1, uid: 1 };
        let client = Client { id: ClientId::Tool(id), process, name: "tool".into(), own: is_own, rank: None };
        let slots = PageSlots::new(PageId::Tool(id), slots);
        let (limits, now) = (Limits::default(), Instant::now());
        let peer =
            Peer::new(client, None, if may_block { Grant::Block } else { Grant::Never }, slots, limits, now);
        self.state.tools.insert(id, peer);
        id
    }

    /// Serves a query of a tool.
    pub fn query(&mut self, tool: PeerId, request: u32, queries: Vec<Query>, now: Instant) {
        let requester = self.state.tools.get(&tool).unwrap().requester(tool, request);
        self.state.query(requester, queries, now);
    }

    /// Returns the number of free slots of a tool.
    pub fn free_slots(&mut self, tool: PeerId) -> usize {
        let peer = self.state.tools.get_mut(&tool).unwrap();
        let slots: Vec<_> = std::iter::from_fn(|| peer.take_slot(&self.memory).ok()).collect();
        slots.iter().for_each(|slot| peer.return_slot(*slot));
        slots.len()
    }

    /// Connects a tool of the embedder that pulls the job, and has received the answer and its rings.
    pub fn reading_tool(&mut self) -> PeerId {
        let tool = self.connect();
        self.pull(tool);
        self.settle();
        self.send_queue(tool);
        tool
    }

    pub fn pull(&mut self, peer_id: PeerId) {
        self.pull_from(peer_id, Start::Oldest);
    }

    pub fn pull_from(&mut self, peer_id: PeerId, start: Start) {
        let procs = vec![Proc::all(self.nspace.clone())];
        let registration = Registration::new(procs, Channels::STDOUT, start, Directives::default(), &[]);
        self.state
            .pull(peer_id, Pull { request: 7, registration, directives: Vec::new(), ignored: Vec::new() });
    }

    /// Adds a stream of the next rank.
    pub fn add_stream(&mut self) -> SourceId {
        let source = Proc::new(self.nspace.clone(), Rank(self.ranks));
        self.ranks += 1;
        let options = self.state.jobs.get(&self.nspace).unwrap().options();
        let name = StreamName { source, channel: Channel::Stdout, logged: false, run: 1 };
        let id = self.state.streams.next_id();
        self.memory.create_delivered_stream(id, options.config(), "test").unwrap();
        self.state.open_stream(id, StreamState::new(name, options, None), 0);
        let job = self.state.jobs.get_mut(&self.nspace).unwrap();
        job.add_delivered(Rank(self.ranks - 1), Channel::Stdout, id);
        // The job does not wait for the stream, so that each test decides when the job ends.
        job.delivery_completed();
        id
    }

    /// Discards the queued commands as a capture thread does that ends, and reports its end.
    pub fn end_capture(&mut self) {
        self.state.effects.commands.clear();
        assert!(self.state.handle(Input::CaptureEnded, Instant::now()).is_ok());
    }

    /// Notes that a stream is complete, and sends its last generation.
    pub fn complete(&mut self, source: SourceId, generation: u64) {
        self.state.stream_completed(source, Completion { produced: 0, generation });
        self.state.send_last_generation(source);
    }

    pub fn end_job(&mut self) {
        assert!(self.state.end_job(&self.nspace, Some(0)));
    }

    /// Sends the queued commands. Their answers are held back.
    pub fn send(&mut self) {
        let commands = std::mem::take(&mut self.state.effects.commands);
        self.capture.send(self.memory.with_memory(commands)).unwrap();
    }

    /// Sends the queued commands, and continues with all answers.
    pub fn settle(&mut self) {
        self.send();
        while !self.state.awaited.is_empty() {
            if let Event::Answered { request, answers } = self.events.recv_timeout(LIMIT).unwrap() {
                let tools = self.state.joining_tools(request);
                let answers = self.memory.keep_rings(&tools, request, answers);
                self.state.stream_answered(request, answers, Instant::now());
            }
            self.send();
        }
    }

    /// Sends everything that is queued for a tool.
    pub fn send_queue(&mut self, peer_id: PeerId) {
        let peer = self.state.tools.get_mut(&peer_id).unwrap();
        while let Some(len) = peer.front().map(|out| out.frame().len()) {
            peer.sent(len, Instant::now());
        }
    }

    /// Takes the messages that wait for a tool, as words.
    pub fn messages(&mut self, peer_id: PeerId) -> Vec<String> {
        let queue = self.state.tools.get_mut(&peer_id).unwrap().take_outgoing();
        let message = |frame: &[u8]| Decoder::new().decode(&mut &*frame).unwrap().unwrap();
        let word = |message: ToTool| match message {
            ToTool::Pulled { result: Ok(_), .. } => "pulled".to_owned(),
            ToTool::Ring { source, follows, .. } => {
                let kind = if follows.is_some() { "next ring" } else { "ring" };
                format!("{kind} {}", source.rank)
            }
            ToTool::Announced { .. } => "announced".to_owned(),
            ToTool::JobEnded { .. } => "ended".to_owned(),
            ToTool::PushBegun { result: Ok(_), .. } => "push begun".to_owned(),
            ToTool::PushBegun { result: Err(_), .. } => "push refused".to_owned(),
            ToTool::Pushed { .. } => "pushed".to_owned(),
            ToTool::SlowTargets { slow, .. } => match &slow.targets[..] {
                [] => "slow targets: none".to_owned(),
                targets => {
                    let kind = if targets[0].stalled { "stalled" } else { "waiting" };
                    format!("slow targets: {kind}")
                }
            },
            ToTool::Answer { result: Ok(Answer { found, .. }), .. } => {
                let [Found { value: Value::Streams(streams), .. }] = &found[..] else { panic!("{found:?}") };
                format!("counters of {}", streams.len())
            }
            other => panic!("unexpected {other:?}"),
        };
        // What the tool misses is encoded when it is sent.
        let of = |frame: &[u8]| if frame.is_empty() { "missed".to_owned() } else { word(message(frame)) };
        queue.iter().map(|out| of(out.frame())).collect()
    }

    /// Returns how many of the slots `0..8` of `page` are readers of a stream.
    pub fn readers(&mut self, source: SourceId, page: &Arc<ReaderPage>) -> usize {
        let readers = (0..8).map(|slot| (Arc::clone(page), slot.into())).collect();
        let step = StreamStep::Count { source, readers };
        let request = StreamRequest { id: Some(RequestId(u64::MAX)), steps: vec![step] };
        self.capture.send([iof_capture::Command::Request(request)]).unwrap();
        loop {
            if let Event::Answered { request: RequestId(u64::MAX), answers } =
                self.events.recv_timeout(LIMIT).unwrap()
            {
                let [StreamAnswer::Counted(Some(Counted { lags, .. }))] = &answers[..] else {
                    panic!("{answers:?}")
                };
                return lags.iter().flatten().count();
            }
        }
    }
}
