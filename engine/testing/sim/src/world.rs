//! A run: ranks, the capture on the simulated kernel, the engine's part, and tools, one action
//! after the other, with all checks.

use std::collections::BTreeSet;
use std::sync::Arc;

use iof_capture::test_utils::SimulatedCapture;
use iof_capture::{Command, End, Event, Gating, SourceId};
use iof_shm_ring::{CacheBudget, Growth, HeapMemory, Policy, Ring, Ringer, Stream, StreamConfig};

use crate::driver::Digest;
use crate::kernel::{Kernel, Mood, add, send, with_kernel};
use crate::rng::Rng;
use crate::script::{Action, Kind, Setting};
use crate::server::Server;
use crate::source::{self, Completed, Source};
use crate::stdin::Stdins;
use crate::tool::{FromTool, Manner, Summary, Tool};
use registration::registration;

mod launcher;
mod registration;
mod settle;

/// The whole simulation.
pub struct World {
    setting: Setting,
    /// Dropped first: it owns the streams.
    pub(crate) capture: SimulatedCapture<Kernel>,
    room: Arc<Ringer>,
    memory: HeapMemory,
    caches: Arc<CacheBudget>,
    /// The number of rings that existed before.
    rings_before: u64,
    pub(crate) sources: Vec<Source>,
    ranks: usize,
    /// The ranks that are stopped.
    stopped: BTreeSet<usize>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) server: Server,
    stdins: Stdins,
    last_handler: u32,
    /// Depends on all that was read and all events of the capture.
    digest: Digest,
}

impl World {
    /// Creates a world without ranks and tools.
    pub fn new(setting: Setting) -> World {
        let memory = HeapMemory::of_this_thread();
        memory.refuse_rings(false);
        memory.refuse_data(false);
        let capture = SimulatedCapture::new(Kernel::new()).expect("descriptors");
        let room = Arc::new(capture.room_bell().expect("a descriptor"));
        World {
            setting,
            capture,
            room,
            rings_before: memory.rings(),
            memory,
            caches: Arc::new(CacheBudget::new(setting.cache_total.into())),
            sources: Vec::new(),
            ranks: 0,
            stopped: BTreeSet::new(),
            tools: Vec::new(),
            server: Server::new(),
            stdins: Stdins::default(),
            last_handler: 0,
            digest: Digest::default(),
        }
    }

    /// Carries out one action, and checks everything.
    pub fn apply(&mut self, action: Action) {
        let rng = &mut Rng::new(u64::from(action.seed));
        let actor = action.actor as usize;
        match action.kind {
            Kind::Start => self.start(rng),
            Kind::Write => self.write(actor, rng),
            Kind::Stop => self.stop_rank(actor),
            Kind::CloseChannel => self.hang_up(actor, false),
            Kind::Exit => self.hang_up(actor, true),
            Kind::Turn => self.turn(rng),
            Kind::NewTool => self.new_tool(rng),
            Kind::Attach => self.attach(actor, rng),
            Kind::Deregister => self.deregister(actor, rng),
            Kind::Tool => self.run_tool(actor, rng, false),
            Kind::Serve => self.serve(actor, 1 + rng.below(4)),
            Kind::Pause => self.pause(actor),
            Kind::Kill => self.kill(actor),
            Kind::Reap => self.reap(actor),
            Kind::Reconfigure => self.reconfigure(actor, rng),
            Kind::Starve => self.starve(actor, rng),
            Kind::ReleaseBacklog => self.with_source(actor, |server, capture, source| {
                server.release_backlog(capture, source);
            }),
            Kind::Memory if !self.setting.calm => {
                self.memory.refuse_rings(rng.chance(96));
                self.memory.refuse_data(rng.chance(96));
            }
            Kind::Close => self.close(actor),
            Kind::Finish => self.finish(actor),
            Kind::Remove => self.remove(actor, rng),
            Kind::Stdin => self.stdins.act(&mut self.capture, actor, rng),
            Kind::Memory
            | Kind::Job
            | Kind::Deliver
            | Kind::Host
            | Kind::Request
            | Kind::Connection
            | Kind::Clock
            | Kind::EndCapture
            | Kind::Mpi
            | Kind::Flow
            | Kind::Embedder
            | Kind::Query
            | Kind::Exchange
            | Kind::Spawn
            | Kind::Log => {}
        }
        self.serve_prompt();
        self.check_memory();
        let Summary { delivered, lost, .. } = self.summary();
        [delivered, lost, self.memory.rings()].into_iter().for_each(|word| self.digest.add_word(word));
    }

    /// Returns what all tools have read.
    fn summary(&self) -> Summary {
        let mut sum = Summary::default();
        self.tools.iter().for_each(|tool| sum += tool.summary);
        sum
    }

    /// Returns the number of a source whose stream exists.
    fn source(&self, actor: usize) -> Option<usize> {
        let present: Vec<usize> = self.present().collect();
        present.get(actor.checked_rem(present.len())?).copied()
    }

    fn present(&self) -> impl Iterator<Item = usize> {
        self.sources
            .iter()
            .enumerate()
            .filter(|(_, source)| source.may_have_stream())
            .map(|(number, _)| number)
    }

    fn tool(&self, actor: usize) -> Option<usize> {
        let live: Vec<usize> = (0..self.tools.len()).filter(|tool| !self.tools[*tool].gone).collect();
        live.get(actor.checked_rem(live.len())?).copied()
    }

    fn with_source(
        &mut self,
        actor: usize,
        f: impl FnOnce(&mut Server, &mut SimulatedCapture<Kernel>, &mut Source),
    ) {
        if let Some(number) = self.source(actor) {
            f(&mut self.server, &mut self.capture, &mut self.sources[number]);
        }
    }

    fn config(&self, rng: &mut Rng) -> StreamConfig {
        let pages = if self.setting.calm { 4..=self.setting.capacity / 4096 } else { 1..=16 };
        let capacity = (pages.start() + rng.below(pages.end() - pages.start() + 1)) * 4096;
        let policy = rng.pick(&[Policy::DropNewest, Policy::DropOldest, Policy::Block]);
        StreamConfig { capacity: capacity.min(self.setting.capacity), policy }
    }

    /// Starts a rank with one to three channels.
    fn start(&mut self, rng: &mut Rng) {
        let channels = 1 + rng.index(3);
        if self.present().count() + channels > self.setting.sources {
            return;
        }
        let config = self.config(rng);
        let first = rng.pick(&[config.capacity, 4096, 8192, 16 << 10]);
        let growth = Growth { first, budget: Arc::clone(&self.caches) };
        let create = |_| Stream::growing_on_heap(config, &growth);
        // Without memory for its streams, a rank does not start.
        let Ok(mut streams) = (0..channels).map(create).collect::<Result<Vec<_>, _>>() else { return };
        Stream::share_order(&mut streams);
        self.ranks += 1;
        let packets = config.capacity.min(first) >= 16 << 10 && rng.chance(24);
        let (delivered, holds) = (!packets && rng.chance(64), rng.chance(128));
        for stream in streams {
            self.add_source(stream, config, rng, (packets, delivered, holds));
        }
    }

    fn add_source(
        &mut self,
        stream: Stream,
        config: StreamConfig,
        rng: &mut Rng,
        (packets, delivered, holds): (bool, bool, bool),
    ) {
        let id = SourceId(self.sources.len() as u64);
        let backlog_blocks = rng.chance(128);
        let keeps_first = match config.policy {
            Policy::DropNewest => holds,
            Policy::Block => holds && backlog_blocks,
            Policy::DropOldest => false,
        };
        let mut source = Source {
            id,
            rank: self.ranks,
            writer: None,
            pipe: None,
            written: 0,
            untaken: 0,
            hung_up: false,
            closed: false,
            finished: None,
            removed: false,
            completed: None,
            policy: config.policy,
            always_blocks: config.policy == Policy::Block,
            keeps_first: keeps_first && self.setting.calm,
            backlog: None,
            backlog_released: !holds,
            backlog_blocks,
        };
        let mut reader = None;
        if !delivered {
            let pipe = source::pipe(rng.pick(&[4096, 16384, 65536]), packets);
            let Ok((end, writer)) = pipe else { return };
            source.pipe =
                Some(with_kernel(&mut self.capture, |kernel| kernel.add_pipe(source::number(&end), packets)));
            source.writer = Some(writer);
            reader = Some(end);
        }
        let mut registrations = Vec::new();
        let of_256 = rng.pick(&[0, 160]);
        for tool in 0..self.tools.len() {
            if rng.chance(of_256)
                && let Some(registration) =
                    registration(&self.setting, &self.server, (tool, &self.tools[tool]), &source, rng)
            {
                self.last_handler += 1;
                registrations.push((tool, self.last_handler, registration));
            }
        }
        let first = self.server.first_request(&mut self.tools, &mut source, registrations);
        let first = Some(first);
        let command = match reader {
            Some(reader) => add(id, reader, stream, first),
            None => Command::Open { source: id, stream: Box::new(stream), first },
        };
        send(&self.capture, command);
        self.sources.push(source);
    }

    /// Runs a turn in which only commands are handled.
    fn quiet_turn(&mut self) {
        let seed = Rng::new(0);
        with_kernel(&mut self.capture, |kernel| {
            kernel.mood = Mood { rng: seed, answers: 0, faults: 0, may_lack_memory: false }
        });
        self.capture.turn();
        self.handle_events();
    }

    fn turn(&mut self, rng: &mut Rng) {
        self.serve_prompt();
        let mood = Mood {
            answers: rng.pick(&[64, 128, 224, 256]),
            faults: self.setting.faults,
            may_lack_memory: !self.setting.calm,
            rng: rng.clone(),
        };
        with_kernel(&mut self.capture, |kernel| kernel.mood = mood);
        assert!(self.capture.turn(), "the capture has ended");
        self.handle_events();
    }

    /// Checks the events of a turn.
    fn handle_events(&mut self) {
        self.server.turned();
        for event in self.capture.events() {
            self.digest.add_debug(&event);
            match event {
                Event::Complete { source, produced, dropped, generation, end } => {
                    self.complete(source, Completed { produced, dropped }, &end);
                    self.server.send_last_generation(&mut self.capture, &self.tools, source, generation);
                }
                Event::Moved { source, generation } => {
                    self.server.moved(&mut self.capture, &self.tools, source, generation);
                }
                Event::Answered { request, answers } => {
                    self.server.answered(&mut self.tools, request, answers);
                }
                Event::Delivered { source, deliveries, bytes } => {
                    let source = &mut self.sources[source.0 as usize];
                    assert!(deliveries > 0 && source.completed.is_none() && source.pipe.is_none());
                    source.untaken = source.untaken.checked_sub(bytes).expect("more bytes than delivered");
                }
                other => self.stdins.handle(other, self.setting.faults > 0),
            }
        }
    }

    fn complete(&mut self, id: SourceId, completed: Completed, end: &End) {
        let source = &mut self.sources[id.0 as usize];
        assert!(source.completed.is_none(), "source {} ended twice", id.0);
        source.completed = Some(completed);
        let Completed { produced, dropped } = completed;
        assert!(dropped <= produced);
        match source.pipe.map(|pipe| with_kernel(&mut self.capture, |kernel| kernel.pipe(pipe))) {
            Some(record) => {
                assert_eq!(produced, record.given, "source {}: what the kernel gave", id.0);
                match end {
                    End::EndOfFile => {
                        assert!(source.hung_up, "source {} ended before its end", id.0);
                        assert_eq!(produced, source.written, "source {} ended too early", id.0);
                    }
                    End::Closed => {
                        assert!(!source.is_whole(), "source {} was not closed", id.0);
                        let wanted = source.finished.filter(|_| !source.closed).unwrap_or(0);
                        assert!(produced >= wanted, "source {} was finished too early", id.0);
                    }
                    End::Error(error) => assert!(record.failed, "source {} failed: {error}", id.0),
                }
            }
            None => {
                assert_eq!(source.untaken, 0, "deliveries to source {} were not reported", id.0);
                assert_eq!(produced, source.written, "source {}: what was delivered", id.0);
            }
        }
        // The capture counts what it drops, and nothing else is lost.
        if source.always_blocks && source.pipe.is_some() && dropped > 0 {
            let blockers = self.server.readers_of(id);
            assert!(blockers == 0 || source.policy == Policy::Block, "source {}", id.0);
        }
    }

    /// Lets a rank write a burst, or a trickle.
    fn write(&mut self, actor: usize, rng: &mut Rng) {
        let most = rng.pick(&[80, 80, 4096, 20_000]);
        self.write_at_most(most, actor, rng);
    }

    fn write_at_most(&mut self, most: u64, actor: usize, rng: &mut Rng) {
        let Some(number) = self.source(actor) else { return };
        if self.stopped.contains(&self.sources[number].rank) {
            return;
        }
        let source = &mut self.sources[number];
        let packets = source
            .pipe
            .is_some_and(|pipe| with_kernel(&mut self.capture, |kernel| kernel.pipe(pipe).packets));
        let most = if packets { most.min(4096) } else { most };
        if let Some(bytes) = source.write(rng.size(most) as usize) {
            send(&self.capture, Command::Deliver { source: source.id, delivery: bytes.into() });
        }
    }

    fn stop_rank(&mut self, actor: usize) {
        let rank = 1 + actor % self.ranks.max(1);
        if !self.stopped.remove(&rank) {
            self.stopped.insert(rank);
        }
    }

    fn hang_up(&mut self, actor: usize, whole_rank: bool) {
        let Some(number) = self.source(actor) else { return };
        let rank = self.sources[number].rank;
        for source in &mut self.sources {
            let meant = if whole_rank { source.rank == rank } else { source.id.0 as usize == number };
            if meant && !source.hung_up {
                source.hang_up();
                if source.pipe.is_none() {
                    send(&self.capture, Command::Finish(source.id));
                }
            }
        }
    }

    fn new_tool(&mut self, rng: &mut Rng) {
        if self.tools.iter().filter(|tool| !tool.gone).count() < self.setting.tools {
            let manner = rng.pick(&[Manner::Prompt, Manner::Slow, Manner::Slow, Manner::Hostile]);
            let may_block = manner != Manner::Hostile && rng.chance(128);
            self.tools.push(Tool::new(manner, may_block));
        }
    }

    fn attach(&mut self, actor: usize, rng: &mut Rng) {
        if let (Some(tool), Some(source)) = (self.tool(actor), self.source(rng.word() as usize >> 8)) {
            let wanted = registration(
                &self.setting,
                &self.server,
                (tool, &self.tools[tool]),
                &self.sources[source],
                rng,
            );
            if let Some(registration) = wanted {
                self.last_handler += 1;
                let (reader, source) = ((tool, &mut self.tools[tool]), &mut self.sources[source]);
                self.server.attach(&mut self.capture, reader, source, self.last_handler, registration);
            }
        }
    }

    fn deregister(&mut self, actor: usize, rng: &mut Rng) {
        let Some(tool) = self.tool(actor).map(|tool| &mut self.tools[tool]).filter(|tool| tool.reads())
        else {
            return;
        };
        let handlers: Vec<u32> = tool.registrations.keys().copied().collect();
        if let Some(handler) = handlers.get(rng.index(handlers.len())) {
            tool.outbox.push_back(FromTool::Barrier(*handler));
        }
    }

    fn run_tool(&mut self, actor: usize, rng: &mut Rng, eager: bool) {
        let Some(tool) = self.tool(actor) else { return };
        if self.tools[tool].manner == Manner::Hostile {
            let source = self.source(actor >> 4).map(|source| self.sources[source].written);
            self.tools[tool].attack(rng, source.unwrap_or(0));
        } else {
            self.tools[tool].run(rng, eager, &self.room);
        }
    }

    fn serve(&mut self, actor: usize, messages: u64) {
        if let Some(tool) = self.tool(actor) {
            self.serve_tool(tool, messages);
        }
    }

    /// Handles at most `messages` messages of a tool. Returns whether there was one.
    fn serve_tool(&mut self, number: usize, messages: u64) -> bool {
        let tool = &mut self.tools[number];
        let mut any = false;
        for _ in 0..messages {
            let Some(message) = tool.outbox.pop_front() else { break };
            any = true;
            self.server.serve(&mut self.capture, (number, tool), &mut self.sources, message);
        }
        any
    }

    /// Lets prompt tools read until they sleep, as fast tools would between two turns.
    fn serve_prompt(&mut self) {
        for number in 0..self.tools.len() {
            if self.tools[number].manner != Manner::Prompt {
                continue;
            }
            let mut rounds = 0;
            while self.tools[number].run(&mut Rng::new(0), true, &self.room) | self.serve_tool(number, 100) {
                rounds += 1;
                assert!(rounds < 1000, "tool {number} is busy without end");
            }
        }
    }

    /// Stops the slow tools that may hold a source back, and lets its rank write until its stream
    /// has waited for long, and so has grown if it was small. The larger ring may be full then.
    fn starve(&mut self, actor: usize, rng: &mut Rng) {
        let Some(number) = self.source(actor) else { return };
        let id = self.sources[number].id;
        let holds = |tool: &Tool| {
            tool.registrations.values().any(|reader| reader.source == id && reader.gating == Gating::Block)
        };
        for tool in self.tools.iter_mut().filter(|tool| tool.manner == Manner::Slow && holds(tool)) {
            tool.paused = true;
        }
        let most = rng.pick(&[4096, 20_000]);
        for _ in 0..32 {
            self.write_at_most(most, actor, rng);
            self.turn(rng);
        }
    }

    fn pause(&mut self, actor: usize) {
        // A tool that keeps up is never stopped.
        if let Some(tool) = self.tool(actor).filter(|tool| self.tools[*tool].manner == Manner::Slow) {
            self.tools[tool].paused = !self.tools[tool].paused;
        }
    }

    fn kill(&mut self, actor: usize) {
        if let Some(tool) = self.tool(actor) {
            self.tools[tool].killed = true;
        }
    }

    fn reap(&mut self, actor: usize) {
        if let Some(tool) = self.tool(actor).filter(|tool| self.tools[*tool].killed) {
            self.disconnect(tool);
        }
    }

    fn disconnect(&mut self, number: usize) {
        let tool = &mut self.tools[number];
        self.server.disconnect(&mut self.capture, (number, tool), &mut self.sources);
        tool.gone = true;
        tool.inbox.clear();
        tool.outbox.clear();
        tool.registrations.clear();
        tool.side = Default::default();
    }

    /// Checks that no ring exists that nothing needs.
    fn check_memory(&self) {
        let mut rings: BTreeSet<*const Ring> = BTreeSet::new();
        self.server.rings(|ring| _ = rings.insert(ring));
        for tool in &self.tools {
            tool.side.rings(|ring| _ = rings.insert(std::ptr::from_ref(ring)));
            for message in &tool.inbox {
                if let crate::tool::ToTool::Ring { ring, .. } = message {
                    rings.insert(Arc::as_ptr(&ring.ring));
                }
            }
        }
        // Beside those that readers are in: the newest of each stream, its spare one, and the one
        // that the backlog holder is in.
        let of_stream = |source: &Source| match source.completed {
            Some(_) => 1 + u64::from(source.backlog.is_some()),
            None => 2 + u64::from(source.backlog.is_some()),
        };
        let present = self.present().map(|number| of_stream(&self.sources[number])).sum::<u64>();
        let (found, most) =
            (self.memory.rings() - self.rings_before, rings.len() as u64 + present + self.server.released());
        assert!(found <= most, "{found} rings exist, at most {most} are needed");
        let bytes = self.memory.bytes();
        assert!(bytes <= found * self.setting.capacity + self.rings_before * (1 << 32), "{bytes} bytes");
        if self.rings_before == 0 {
            assert_eq!(self.caches.used(), bytes, "the budget counts what exists");
        }
    }
}
