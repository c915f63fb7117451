//! The end of a run: nothing fails any more, every process gets turns, and everything must end.

use std::time::Duration;

use iof_capture::SourceId;
use iof_tool::test_utils::StreamInfo;

use super::EngineWorld;
use super::jobs::Job;
use super::requests::MAX_PUSHES;
use super::tool::{Request, Tool};
use crate::counts::Counts;
use crate::driver::ConnectionId;
use crate::kernel::Mood;
use crate::rng::Rng;
use crate::script::Subject;
use crate::tool::Summary;

/// Rounds within which everything must end.
const MAX_ROUNDS: u64 = 3000;

impl EngineWorld {
    /// Ends the run under fair scheduling, and checks that every honest request is answered, every
    /// honest tool reaches its end, and nothing is left. Returns what was read, what has happened,
    /// and a word that depends on all of it.
    pub fn settle(mut self) -> (Summary, Counts, u64) {
        self.memory.refuse_rings(false);
        self.memory.refuse_data(false);
        self.engine.refuse(false, false);
        self.host.resume_all(&mut self.engine);
        self.follow_up();
        if self.setting.silent_host {
            self.leave_orphans();
        }
        self.end_jobs();
        if self.setting.leaves_paused {
            self.settle_without_paused();
        }
        for index in 0..self.tools.len() {
            let tool = &mut self.tools[index];
            tool.paused = false;
            if !tool.is_honest() && !tool.closed {
                tool.close(&mut self.engine);
            }
        }
        self.run_until("a job or a request has not ended", Self::has_settled);
        if self.setting.silent_host {
            self.settle_pushes();
            // A request that has waited behind them may have started a job.
            self.run_until("a job or a request of a silent host has not ended", Self::has_settled);
        }
        // The removal of a job moves readers that were left behind, so in half of the runs it is
        // too late for them.
        if self.setting.drains_first {
            self.drain();
        }
        for job in (0..self.jobs.list.len()).rev() {
            self.remove_job(job);
        }
        assert!(self.jobs.list.is_empty(), "a job that has ended was not removed");
        self.drain();
        self.ends_registrations = true;
        self.run_until("a registration has not ended", |world| {
            world.tools.iter().all(|tool| tool.registrations.is_empty() && !tool.has_streams())
        });
        assert!(self.setting.silent_host || self.tools.iter().all(Tool::is_idle), "{}", self.describe());
        self.tools.iter_mut().for_each(|tool| tool.close(&mut self.engine));
        self.run_until("a tool is not disconnected", |world| world.tools.is_empty());
        // Of jobs that have failed to start at the end.
        self.run_until("a stream is left", |world| world.engine.streams().next().is_none());
        self.advance(Duration::from_secs(3600));
        self.follow_up();
        self.settle_round();
        if self.setting.silent_host {
            let remains = self.engine.remains_without_owed();
            assert!(remains.is_empty(), "left while the host does not answer: {remains:?}");
            self.host.end_silence(&mut self.engine);
            self.settle_round();
        }
        self.host.check_idle();
        self.truth.exchanges.check_end();
        let remains = self.engine.remains();
        assert!(remains.is_empty(), "left at the end: {remains:?} {:?}", self.truth.spawns);
        assert_eq!(self.engine.next_deadline(), None, "a time to wake up at is left");
        assert_eq!(self.memory.rings(), self.rings_before, "rings are left");
        self.count_reached();
        (self.past, self.past_counts, self.digest.word())
    }

    /// Returns whether all jobs have ended, and all requests that can be answered are.
    fn has_settled(&self) -> bool {
        let ended = |nspace| self.engine.job(nspace).is_none_or(|ended| ended);
        let idle = |tool: &Tool| tool.requests.is_empty() && tool.pushes.is_empty();
        let is_silent = self.setting.silent_host;
        let are_idle = is_silent || self.tools.iter().all(idle) && !self.host.has_callbacks();
        are_idle
            && self.truth.spawns.are_settled(is_silent)
            && self.jobs.list.iter().all(|job| ended(&job.nspace))
    }

    /// Lets everything end that does not depend on tools which read nothing: jobs that none of them
    /// may hold back, and what the others have asked for and read.
    fn settle_without_paused(&mut self) {
        self.run_until("a tool that may not hold a job back has done so", |world| {
            let ended = |job: &Job| world.engine.job(&job.nspace).is_none_or(|ended| ended);
            let is_free = |job: &Job| ended(job) || world.is_held(job);
            let runs = |tool: &&Tool| tool.runs() && !tool.lost;
            // A message may wait in a stream that is held.
            let waits = |request: &Request| !matches!(request, Request::Log(_));
            let is_idle = |tool: &Tool| !tool.requests.values().any(waits);
            let is_complete = |info: &StreamInfo| world.truth.stream(info).produced.is_some();
            let reads = |tool: &Tool| {
                let mut feeds = tool.registrations.values().flat_map(|found| &found.feeds);
                feeds.all(|(info, feed)| feed.ended || !is_complete(info))
            };
            world.jobs.list.iter().all(is_free)
                && world
                    .tools
                    .iter()
                    .filter(runs)
                    .all(|tool| (world.setting.silent_host || is_idle(tool)) && reads(tool))
        });
    }

    /// Lets tools push more, and one leave whose push the host does not take, so that other pushes
    /// wait for that one.
    fn leave_orphans(&mut self) {
        let rng = &mut Rng::new(self.digest.word());
        for actor in 0..4 * MAX_PUSHES {
            self.push(actor, rng);
            self.settle_round();
        }
        let ignored = self.host.ignored_pushes().filter_map(|push| self.truth.stdins.pushes.get(&push)?.tool);
        let ignored: Vec<ConnectionId> = ignored.map(|(tool, _)| tool).collect();
        let left = self.tools.iter_mut().find(|tool| tool.runs() && ignored.contains(&tool.id));
        left.into_iter().for_each(|tool| tool.close(&mut self.engine));
    }

    /// Lets all pushes end although the host does not answer: tools cut off what it does not take.
    fn settle_pushes(&mut self) {
        self.cuts_off = true;
        self.run_until("a push was not cut off", |world| {
            let begins = |request: &Request| matches!(request, Request::Push(_));
            let is_over = |tool: &Tool| tool.pushes.is_empty() && !tool.requests.values().any(begins);
            world.tools.iter().filter(|tool| tool.runs() && !tool.lost).all(is_over)
        });
        self.cuts_off = false;
    }

    /// Lets every tool cut off all slow targets of its pushes.
    fn cut_off_pushes(&mut self) {
        let (engine, stdins) = (&mut self.engine, &mut self.truth.stdins);
        for tool in self.tools.iter_mut().filter(|tool| tool.runs() && !tool.lost) {
            let asks = |request: &Request| matches!(request, Request::SlowTargets(_));
            if tool.requests.values().any(asks) {
                continue;
            }
            for push in tool.pushes.keys().copied().collect::<Vec<u32>>() {
                let position = u64::MAX;
                stdins.note_cut_off((tool.id, push), position);
                let request = Request::SlowTargets(push);
                tool.request(engine, request, |side| side.slow_targets(push, Some(position)));
            }
        }
    }

    /// Returns whether a tool that reads nothing may hold back a stream of a job.
    fn is_held(&self, job: &Job) -> bool {
        let stuck = |tool: ConnectionId| {
            let runs = self.tools.iter().any(|found| found.id == tool && found.runs());
            self.may_block(tool, job.run) && !runs
        };
        let of_job = |source: SourceId| {
            let info = self.truth.info(source);
            info.is_some_and(|info| (&info.source.nspace, info.run) == (&job.nspace, job.run))
        };
        let mut streams = self.engine.streams().filter(|(source, _)| of_job(*source));
        streams.any(|(_, mut readers)| readers.any(|(tool, _)| stuck(tool)))
    }

    /// Lets the tools read everything.
    fn drain(&mut self) {
        self.run_until("a tool has not received everything", |world| {
            let registrations = world.tools.iter().flat_map(|tool| tool.registrations.values());
            registrations.clone().all(|found| found.has_all_ends(&world.truth) && found.is_drained())
        });
    }

    /// Lets every tool end its registrations.
    fn deregister_all(&mut self) {
        for tool in &mut self.tools {
            let handlers: Vec<u32> = tool.registrations.keys().copied().collect();
            handlers.into_iter().for_each(|handler| tool.deregister(&mut self.engine, handler));
        }
    }

    fn run_until(&mut self, message: &str, is_done: impl Fn(&EngineWorld) -> bool) {
        let mut rounds = 0;
        while !is_done(self) {
            self.settle_round();
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "{message}: {}", self.describe());
        }
    }

    /// Lets everything have a turn.
    fn settle_round(&mut self) {
        // Pulls that the host answers late are granted meanwhile.
        if self.ends_registrations {
            self.deregister_all();
        }
        if self.cuts_off {
            self.cut_off_pushes();
        }
        self.digest.add_word(self.engine.digest().word());
        let rng = &mut Rng::new(self.digest.word());
        self.turn_with(Mood { rng: rng.clone(), answers: 256, faults: 0, may_lack_memory: false });
        self.take_events(usize::MAX);
        self.report_exits(true, rng);
        self.advance(Duration::from_millis(20));
        self.host.answer_all(&mut self.engine);
        self.note_queries();
        if self.setting.subject == Subject::Clients {
            self.follow_up();
            self.settle_spawns(rng);
        }
        for index in (0..self.tools.len()).rev() {
            // Several may be forgotten at once.
            let Some(tool) = self.tools.get_mut(index) else { continue };
            tool.run(&mut self.engine, &self.truth, rng, true);
            self.engine.serve(tool.id, 1000);
            self.forget_ended();
        }
        for actor in 0..64 {
            self.read_stdin(actor << 8 | actor & 3, 1 << 16);
        }
        self.follow_up();
    }

    fn describe(&self) -> String {
        let tools = &self.tools;
        format!("{:?} {:?} {:?} {:?}", self.jobs.list, tools, self.host, self.engine.remains())
    }
}
