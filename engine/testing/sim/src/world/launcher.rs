//! The launcher's actions on streams: it changes their options, and ends and removes them.

use iof_capture::{Command, SourceId, StreamRequest, StreamStep};
use iof_shm_ring::Policy;

use super::World;
use crate::kernel::{send, with_kernel};
use crate::rng::Rng;

impl World {
    pub(super) fn reconfigure(&mut self, actor: usize, rng: &mut Rng) {
        let Some(number) = self.source(actor) else { return };
        let mut config = self.config(rng);
        let source = &mut self.sources[number];
        if source.pipe.is_some_and(|pipe| with_kernel(&mut self.capture, |kernel| kernel.pipe(pipe).packets))
        {
            // A smaller cache has no room for a whole packet at a time, see `NewSource`.
            config.capacity = config.capacity.max(16 << 10);
        }
        if rng.chance(160) {
            config.policy = source.policy;
        }
        let steps = vec![StreamStep::Reconfigure { source: source.id, config }];
        send(&self.capture, Command::Request(StreamRequest { id: None, steps }));
        source.policy = config.policy;
        // A new generation begins empty for those that register later.
        source.keeps_first = false;
        if config.policy != Policy::Block {
            source.always_blocks = false;
            self.relax(number);
        }
    }

    /// Records that readers of a source may lose bytes although they hold it back. Those that keep
    /// up must lose nothing once they have read everything again.
    fn relax(&mut self, number: usize) {
        let id = self.sources[number].id;
        let registrations = self.tools.iter_mut().flat_map(|tool| tool.registrations.values_mut());
        let of_source = registrations.filter(|registration| registration.source == id);
        of_source.for_each(|registration| registration.strict = false);
    }

    pub(super) fn close(&mut self, actor: usize) {
        let Some(number) = self.source(actor) else { return };
        self.end_early(number);
        send(&self.capture, Command::Close(self.sources[number].id));
    }

    fn end_early(&mut self, number: usize) {
        let source = &mut self.sources[number];
        source.closed |= source.completed.is_none();
        // Deliveries that wait are lost then.
        if source.pipe.is_none() {
            source.always_blocks = false;
            self.relax(number);
        }
    }

    pub(super) fn finish(&mut self, actor: usize) {
        let Some(number) = self.source(actor) else { return };
        let source = &mut self.sources[number];
        if source.pipe.is_none() {
            source.hang_up();
        }
        if source.completed.is_none() {
            source.finished.get_or_insert(source.written);
        }
        send(&self.capture, Command::Finish(source.id));
    }

    /// Removes a source, mostly a complete one.
    pub(super) fn remove(&mut self, actor: usize, rng: &mut Rng) {
        let complete: Vec<usize> =
            self.present().filter(|number| self.sources[*number].completed.is_some()).collect();
        let complete = actor.checked_rem(complete.len()).map(|index| complete[index]);
        // The engine removes an incomplete one only before anything reads it.
        let unread = |number: &usize| self.server.readers_of(SourceId(*number as u64)) == 0;
        let number = if rng.chance(16) { self.source(actor).filter(unread) } else { complete };
        let Some(number) = number.filter(|number| !self.sources[*number].removed) else { return };
        self.end_early(number);
        self.remove_source(number);
    }

    pub(super) fn remove_source(&mut self, number: usize) {
        self.server.release_backlog(&mut self.capture, &mut self.sources[number]);
        self.sources[number].removed = true;
        send(&self.capture, Command::Remove(self.sources[number].id));
        self.quiet_turn();
    }
}
