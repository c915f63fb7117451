//! The end of a run: nothing fails any more, and everybody gets a turn. Then everything must end.

use iof_capture::{Command, Gating};
use iof_shm_ring::Policy;

use super::World;
use crate::kernel::{Mood, send, with_kernel};
use crate::rng::Rng;
use crate::source::Source;
use crate::tool::{Manner, Summary, Tool};

/// Rounds within which everything must end.
const MAX_ROUNDS: u64 = 3000;

impl World {
    /// Ends the run under fair scheduling, and checks that all honest readers reach the end of
    /// their streams and that all memory is returned. Returns what was read, and a word that
    /// depends on all that happened.
    pub fn settle(mut self) -> (Summary, u64) {
        self.memory.refuse_rings(false);
        self.memory.refuse_data(false);
        self.stopped.clear();
        for number in 0..self.sources.len() {
            self.hang_up_source(number);
        }
        // Tools that are stopped, killed or hostile stay as they are, and hold up no source.
        self.run_until("a tool that may not hold a source back has done so", |world| {
            (0..world.sources.len()).all(|number| world.is_held(number) || world.is_complete(number))
        });
        self.tools.iter_mut().for_each(|tool| tool.paused = false);
        for number in 0..self.tools.len() {
            if self.tools[number].killed || self.tools[number].manner == Manner::Hostile {
                self.disconnect(number);
            }
        }
        for number in 0..self.sources.len() {
            self.server.release_backlog(&mut self.capture, &mut self.sources[number]);
        }
        self.run_until("a source or an honest reader has not reached its end", |world| {
            let all_read =
                world.tools.iter().all(|tool| tool.side.is_empty() && tool.registrations.is_empty());
            all_read && (0..world.sources.len()).all(|number| world.is_complete(number))
        });
        let mut all_fed = false;
        for _ in 0..MAX_ROUNDS {
            all_fed = self.stdins.settle(&mut self.capture);
            if all_fed {
                break;
            }
            self.settle_turn();
        }
        assert!(all_fed, "a push or a target has not ended");
        for number in 0..self.sources.len() {
            if !self.sources[number].removed {
                self.remove_source(number);
            }
        }
        self.check_memory();
        assert_eq!(self.memory.rings(), self.rings_before, "rings are left of removed streams");
        let result = (self.summary(), self.digest.word());
        self.stop();
        result
    }

    /// Ends the run by an end of the engine that nothing announces. Checks that all honest tools
    /// read what is in memory, and reach an end. Returns the same as [`World::settle`].
    pub fn end_engine(mut self) -> (Summary, u64) {
        let honest = |tool: &&mut Tool| tool.manner != Manner::Hostile && !tool.killed && !tool.gone;
        self.tools.iter_mut().filter(honest).for_each(|tool| tool.read_rest(&self.room));
        let result = (self.summary(), self.digest.word());
        let World { mut capture, server, tools, memory, rings_before, .. } = self;
        memory.refuse_rings(false);
        memory.refuse_data(false);
        with_kernel(&mut capture, |kernel| {
            kernel.mood = Mood { rng: Rng::new(0), answers: 256, faults: 0, may_lack_memory: false }
        });
        drop((capture, server, tools));
        assert_eq!(memory.rings(), rings_before, "rings are left after the end");
        result
    }

    fn hang_up_source(&mut self, number: usize) {
        let source = &mut self.sources[number];
        if !source.hung_up {
            source.hang_up();
            if source.pipe.is_none() {
                send(&self.capture, Command::Finish(source.id));
            }
        }
    }

    fn is_complete(&self, number: usize) -> bool {
        self.sources[number].completed.is_some()
    }

    /// Returns whether a reader that does not read may hold back the source.
    fn is_held(&self, number: usize) -> bool {
        let source = &self.sources[number];
        let stuck = self.tools.iter().filter(|tool| !tool.reads());
        let mut readers = stuck.flat_map(|tool| tool.registrations.values());
        let may_block = source.policy == Policy::Block || source.always_blocks;
        // A change of the policy may still wait for its moment.
        let by_reader = readers.any(|reader| reader.source == source.id && reader.gating == Gating::Block);
        by_reader || source.backlog.is_some() && (may_block || source.backlog_blocks)
    }

    fn run_until(&mut self, message: &str, is_done: impl Fn(&World) -> bool) {
        let mut rounds = 0;
        while !is_done(self) {
            let mut rng = Rng::new(rounds);
            self.settle_turn();
            for number in 0..self.tools.len() {
                self.tools[number].run(&mut rng, true, &self.room);
                self.serve_tool(number, 1000);
            }
            self.check_memory();
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "{message}: {}", self.describe());
        }
    }

    /// Runs a turn in which everything is answered.
    fn settle_turn(&mut self) {
        self.digest.add_word(0);
        let rng = Rng::new(self.digest.word());
        with_kernel(&mut self.capture, |kernel| {
            kernel.mood = Mood { rng, answers: 256, faults: 0, may_lack_memory: false }
        });
        assert!(self.capture.turn(), "the capture has ended");
        self.handle_events();
    }

    fn describe(&self) -> String {
        let sources: Vec<&Source> = self.sources.iter().filter(|source| source.completed.is_none()).collect();
        let registrations: Vec<_> = self.tools.iter().flat_map(|tool| &tool.registrations).collect();
        format!("{sources:?} {registrations:?}")
    }

    fn stop(self) {
        let World { mut capture, server, tools, memory, rings_before, .. } = self;
        capture.stop();
        with_kernel(&mut capture, |kernel| {
            kernel.mood = Mood { rng: Rng::new(0), answers: 256, faults: 0, may_lack_memory: false }
        });
        let ended = (0..100).any(|_| !capture.turn());
        assert!(ended, "the capture does not end");
        drop((capture, server, tools));
        assert_eq!(memory.rings(), rings_before, "rings are left after the end");
    }
}
