//! Runs of the engine: its core, the capture on the simulated kernel, and tools with their real
//! reading side. Simulated are the launcher, ranks, sockets, the host, the clock and the memory.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iof_capture::test_utils::SimulatedCapture;
use iof_capture::{Event, Signal};
use iof_core::{Buffering, StreamOptions};
use iof_shm_ring::{CacheBudget, HeapMemory, MAX_SLOTS, Policy};
use iof_tool::test_utils::StreamInfo;

use crate::counts::Counts;
use crate::driver::{Digest, SentCommand, Setting as EngineSetting, SimulatedEngine};
use crate::kernel::{Kernel, Mood, with_kernel};
use crate::rng::Rng;
use crate::script::{Action, Kind, Setting, Subject};
use crate::tool::Summary;
use finishes::Finishes;
use host::Host;
use jobs::Jobs;
use tool::{Manner, Tool};
use truth::Truth;

mod configurations;
mod elsewhere;
mod embedder;
mod ends;
mod exchanges;
mod exits;
mod finishes;
mod host;
mod hostile;
mod jobs;
mod limits;
mod logs;
mod push_answers;
mod pusher;
mod queries;
mod registration;
mod requests;
mod rows;
mod settle;
mod spawns;
mod stdins;
mod tool;
mod truth;

/// The whole simulation.
pub struct EngineWorld {
    setting: Setting,
    /// The policy of streams for which nothing else is set.
    policy: Policy,
    /// Dropped first: it owns the streams.
    capture: SimulatedCapture<Kernel>,
    /// Events that the engine has not handled.
    events: VecDeque<Event>,
    engine: SimulatedEngine,
    memory: HeapMemory,
    caches: Arc<CacheBudget>,
    /// The number of rings that existed before.
    rings_before: u64,
    now: Instant,
    jobs: Jobs,
    host: Host,
    tools: Vec<Tool>,
    truth: Truth,
    finishes: Finishes,
    /// From the end of the capture on, jobs are removed as soon as they have ended.
    removes_at_once: bool,
    /// At the end of the run, tools end their registrations.
    ends_registrations: bool,
    /// At the end of the run, tools cut off the slow targets of their pushes.
    cuts_off: bool,
    /// The totals of the tools that have ended.
    past: Summary,
    /// The events that have happened to them, and to the run.
    past_counts: Counts,
    /// Depends on all that was read and all events of the capture. The engine has one for the rest.
    digest: Digest,
}

impl EngineWorld {
    /// The name of the engine's node.
    const NODE: &str = "node";

    /// Creates a world without jobs and tools.
    pub fn new(setting: Setting) -> EngineWorld {
        let memory = HeapMemory::of_this_thread();
        memory.refuse_rings(false);
        memory.refuse_data(false);
        let capture = SimulatedCapture::new(Kernel::new()).expect("descriptors");
        let policy = match setting.sources % 3 {
            0 => Policy::Block,
            1 => Policy::DropNewest,
            _ => Policy::DropOldest,
        };
        let engine = EngineSetting {
            options: StreamOptions::new(Some(setting.capacity as u32), policy, Buffering::default()),
            places: 8,
            limits: setting.limits,
            slots: if setting.few_slots { 2 } else { MAX_SLOTS },
            host_stdin: setting.tools > 2,
            host_queries: if setting.subject == Subject::Host {
                queries::host_keys()
            } else {
                BTreeSet::new()
            },
            host_channels: std::iter::once("their.channel".to_owned()).collect(),
            may_spawn: setting.subject == Subject::Clients,
            late_signals: setting.subject.has_embedder(),
        };
        let (room, now) = (capture.room_bell().expect("a descriptor"), Instant::now());
        EngineWorld {
            policy,
            engine: SimulatedEngine::new(engine, room, now).expect("a descriptor"),
            setting,
            capture,
            events: VecDeque::new(),
            rings_before: memory.rings(),
            memory,
            caches: Arc::new(CacheBudget::new(setting.cache_total.into())),
            now,
            jobs: Jobs::default(),
            host: Host::new(setting.silent_host, setting.subject.has_embedder()),
            tools: Vec::new(),
            truth: Truth::new(!setting.calm || setting.few_slots, !setting.calm, setting.limits),
            finishes: Finishes::default(),
            removes_at_once: false,
            ends_registrations: false,
            cuts_off: false,
            past: Summary::default(),
            past_counts: Counts::default(),
            digest: Digest::default(),
        }
    }

    /// Carries out one action, and checks everything.
    pub fn apply(&mut self, action: Action) {
        let rng = &mut Rng::new(u64::from(action.seed));
        let actor = action.actor as usize;
        match action.kind {
            Kind::Job => {
                self.hurry_jobs(rng);
                self.begin_job(actor, rng);
            }
            Kind::Start => self.start_rank(rng),
            Kind::Write => self.write(actor, rng),
            Kind::Stop => self.stop_rank(actor),
            Kind::CloseChannel => self.close_channel(actor, rng),
            Kind::Exit => self.exit_rank(actor, rng),
            Kind::Deliver => self.deliver(actor, rng),
            Kind::ReleaseBacklog => self.release_backlog(actor),
            Kind::Remove => self.remove_job(actor),
            Kind::Turn => self.turn(rng),
            Kind::Connection => self.serve(actor, 1 + rng.index(4)),
            Kind::NewTool => self.new_tool(rng),
            Kind::Attach => self.pull(actor, rng),
            Kind::Deregister => self.deregister(actor, rng),
            Kind::Stdin => self.stdin(actor, rng),
            Kind::Request => self.small_request(actor, rng),
            Kind::Query => self.query(actor, rng),
            Kind::Log => self.log(actor, rng),
            Kind::Tool => self.run_tool(actor, rng),
            Kind::Pause => self.pause(actor),
            Kind::Kill => self.kill(actor, rng),
            Kind::Host => self.host.act(&mut self.engine, actor, rng),
            Kind::Clock => self.advance(Duration::from_millis(rng.size(4000))),
            Kind::EndCapture => self.end_capture(actor, rng),
            Kind::Mpi => {
                self.report_mpi(actor, rng);
                self.report_of_withdrawn(actor, rng);
            }
            Kind::Flow => self.host.change_flow(&mut self.engine, actor, rng),
            Kind::Spawn => self.spawn(actor, rng),
            Kind::Exchange => self.exchange(actor, rng),
            Kind::Embedder => self.act_as_embedder(actor, rng),
            Kind::Memory => {
                self.memory.refuse_rings(!self.setting.calm && rng.chance(128));
                self.memory.refuse_data(!self.setting.calm && rng.chance(128));
                let (files, slots) = (rng.chance(64), rng.chance(64));
                self.engine.refuse(files, slots);
                self.truth.may_miss |= slots;
                self.truth.configurations.lacks_slots |= slots;
            }
            Kind::Serve | Kind::Reap | Kind::Reconfigure | Kind::Starve | Kind::Close | Kind::Finish => {}
        }
        self.follow_up();
        let Summary { delivered, lost, .. } = self.summary();
        [delivered, lost, self.memory.rings()].into_iter().for_each(|word| self.digest.add_word(word));
    }

    /// Carries out what leaves the core, and checks its tables.
    fn follow_up(&mut self) {
        self.remove_spawned_jobs();
        let (answers, reports) = self.engine.take_push_record();
        self.truth.signalled.extend(self.host.take_signalled());
        for command in self.engine.send_commands(&self.capture) {
            match command {
                SentCommand::Signal { processes, signal, requested } => {
                    match requested {
                        Some(request) => self.check_signal(request, &processes, signal),
                        None if signal == Signal::KILL => self.finishes.killed(&processes, self.now),
                        None => {}
                    }
                    self.note_signals(&processes, signal);
                    self.signalled(&processes, signal);
                }
                SentCommand::Opened { source, proc, channel, logged, run, config } => {
                    let job = self.jobs.list.iter().find(|job| job.nspace == proc.nspace);
                    let job = job.expect("the job of a stream");
                    let forwarded = job.forward.contains(channel.into());
                    let info = StreamInfo { source: proc, channel, logged, run };
                    self.truth.configurations.add(source, info.clone(), job.options(channel), config);
                    self.truth.add(source, info, None, (false, forwarded));
                }
                SentCommand::Steps(steps) => self.note_steps(&steps),
                SentCommand::Finished(source) => {
                    self.note_finished(source);
                    self.jobs.finished(source);
                }
                SentCommand::Closed(source) => {
                    self.finishes.check_closed(source);
                    self.jobs.closed(source);
                }
                SentCommand::Left { tool, claimed } => self.note_left(tool, &claimed),
                SentCommand::Delivered { source, lost, bytes } => self.truth.record(source, lost, &bytes),
                command => self.note_stdin_command(command),
            }
        }
        self.check_push_answers(answers);
        for event in self.engine.take_reports() {
            self.note_stdin_event(&event);
            self.events.push_back(event);
        }
        self.host.take_calls(&mut self.engine);
        self.host.take_stdin().into_iter().for_each(|event| self.truth.stdins.note_host(event));
        reports.into_iter().for_each(|(push, report)| self.check_push_over(push, report));
        for (request, procs) in self.host.take_to_signal() {
            self.check_signal_elsewhere(request, &procs);
        }
        for (processes, signal) in self.host.take_promised() {
            self.note_signals(&processes, signal);
        }
        self.note_spawns();
        self.note_queries();
        self.check_logs();
        self.check_exchanges();
        self.engine.check();
        self.check_refusals();
        self.check_ends();
        self.check_configurations();
        if !self.engine.is_without_capture() {
            self.finishes.check_due();
        }
    }

    /// Runs a turn of the capture.
    fn turn(&mut self, rng: &mut Rng) {
        let mood = Mood {
            answers: rng.pick(&[64, 128, 224, 256]),
            faults: self.setting.faults,
            may_lack_memory: !self.setting.calm,
            rng: rng.clone(),
        };
        self.turn_with(mood);
        // The engine learns step by step of the end of a capture.
        self.take_events(if self.capture.has_ended() { 1 + rng.index(4) } else { usize::MAX });
        self.report_exits(false, rng);
        if self.removes_at_once {
            (0..self.jobs.list.len()).rev().for_each(|job| self.remove_job(job));
        }
    }

    /// Runs a turn of the capture, unless it has ended.
    fn turn_with(&mut self, mood: Mood) {
        if self.capture.has_ended() {
            return;
        }
        let fails = with_kernel(&mut self.capture, |kernel| {
            kernel.mood = mood;
            kernel.fails
        });
        assert!(self.capture.turn() != fails, "the capture has ended");
        for event in self.capture.events() {
            self.digest.add_debug(&event);
            if let Event::Complete { source, produced, end, .. } = &event {
                self.truth.complete(*source, *produced, end);
                if !self.truth.is_cut {
                    self.jobs.check_complete(*source, *produced, end);
                }
            }
            self.note_stdin_event(&event);
            self.events.push_back(event);
        }
    }

    /// Ends the capture: the kernel fails. In some runs all ranks have exited before, and children
    /// keep their streams open. In some runs, all tools send requests before the engine knows.
    fn end_capture(&mut self, actor: usize, rng: &mut Rng) {
        if !self.capture.has_ended() {
            if actor.is_multiple_of(2) {
                self.leave_children();
                self.report_exits(true, rng);
                self.removes_at_once = true;
            }
            self.deliver_much(rng);
            with_kernel(&mut self.capture, |kernel| kernel.fails = true);
            self.truth.is_cut = true;
            self.turn(rng);
            if rng.chance(128) {
                self.request_late(rng);
            }
        }
    }

    /// Lets every tool read what there is and request what follows, and the host deliver more,
    /// before the engine knows that the capture has ended.
    fn request_late(&mut self, rng: &mut Rng) {
        while !self.engine.is_without_capture() {
            self.deliver_much(rng);
            for index in (0..self.tools.len()).rev() {
                // Several may be forgotten at once.
                let Some(tool) = self.tools.get_mut(index) else { continue };
                tool.run(&mut self.engine, &self.truth, rng, true);
                self.serve(index, 1000);
                self.follow_up();
            }
            self.take_events(1);
        }
    }

    /// Passes the next events to the engine, `most` at most. The commands of each are sent before
    /// the next.
    fn take_events(&mut self, most: usize) {
        self.follow_up();
        for _ in 0..most {
            let Some(event) = self.events.pop_front() else { break };
            let had_capture = !self.engine.is_without_capture();
            if let Event::Complete { source, .. } = &event {
                self.truth.configurations.complete(*source);
                self.finishes.complete(*source);
            }
            self.note_known(&event);
            self.engine.captured(event);
            if had_capture && self.engine.is_without_capture() {
                self.truth.configurations.capture_ended();
                self.jobs.list.iter_mut().for_each(|job| job.ends.lost(self.now));
            }
            self.follow_up();
        }
    }

    /// Serves the connection of a tool.
    fn serve(&mut self, actor: usize, messages: usize) {
        if let Some(index) = self.tool(actor) {
            self.engine.serve(self.tools[index].id, messages);
            self.forget_ended();
        }
    }

    fn run_tool(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.tool(actor) else { return };
        let tool = &mut self.tools[index];
        match tool.manner {
            Manner::Hostile if !tool.closed => tool.attack(&mut self.engine, rng),
            Manner::HalfClosed if !tool.closed => tool.send_on(&mut self.engine, rng),
            _ => _ = tool.run(&mut self.engine, &self.truth, rng, false),
        }
    }

    fn pause(&mut self, actor: usize) {
        if let Some(index) = self.tool(actor) {
            self.tools[index].paused = !self.tools[index].paused;
        }
    }

    /// Kills a tool, or lets it shut its receiving side.
    fn kill(&mut self, actor: usize, rng: &mut Rng) {
        let Some(index) = self.tool(actor) else { return };
        let tool = &mut self.tools[index];
        let may_go_on = tool.is_honest() && tool.page.is_some() && !tool.closed;
        if !may_go_on || rng.chance(208) {
            tool.close(&mut self.engine);
        } else {
            tool.shut_receiving(&mut self.engine);
        }
    }

    /// Lets time pass.
    fn advance(&mut self, by: Duration) {
        // A turn of the driver before it sleeps, and another one for what was removed then.
        for _ in 0..if self.setting.subject == Subject::Clients { 2 } else { 1 } {
            self.note_parents();
            self.engine.set_time(self.now);
            self.follow_up();
            self.check_spawns();
        }
        self.now += by;
        self.engine.set_time(self.now);
        self.truth.exchanges.tick(self.now);
        self.finishes.tick(self.now);
        self.check_early_ends();
        self.forget_ended();
    }

    /// Forgets tools whose connections have ended on both sides.
    fn forget_ended(&mut self) {
        for index in (0..self.tools.len()).rev() {
            let tool = &self.tools[index];
            let ended = self.engine.is_ended(tool.id);
            assert!(!ended || !tool.runs() || tool.page.is_none(), "an honest tool was disconnected");
            if ended && (tool.closed || !tool.is_honest() || tool.page.is_none()) {
                self.engine.forget(tool.id);
                let tool = self.tools.remove(index);
                self.past += tool.summary;
                self.past_counts += tool.counts;
            }
        }
    }

    fn summary(&self) -> Summary {
        let mut sum = self.past;
        self.tools.iter().for_each(|tool| sum += tool.summary);
        sum
    }
}
