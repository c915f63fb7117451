//! The data that the engine drops when a tool reads too little of forgotten jobs.

use std::collections::BinaryHeap;

use iof_capture::SourceId;

use crate::Core;
use crate::count::Count;
use crate::ids::PeerId;
use crate::limits::Limits;
use crate::streams::completion::Completion;

impl Core {
    /// Forgets the complete stream `source`, and notes that at the tools that read it. The capture
    /// thread removes it once all of its readers are in its last generation.
    pub(crate) fn forget_stream(&mut self, source: SourceId) {
        // What a capture that has failed did not take is dropped.
        self.deliveries_taken(source, usize::MAX);
        let Some(stream) = self.streams.remove(source) else { absent!("stream", return) };
        let completion = stream.completion().unwrap_or(Completion { produced: 0, generation: 0 });
        let mut readers = Vec::new();
        for (peer_id, handler) in stream.readers() {
            let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", continue) };
            peer.forget(source, handler, completion);
            readers.extend(peer.reader_of(source, handler).map(|id| (peer_id, id)));
        }
        self.remove_stream(source, readers, completion.generation);
    }

    /// Drops what exceeds the limits on unread data of forgotten jobs, of each tool and of all
    /// tools together.
    pub(crate) fn shed_unread(&mut self) {
        self.shed_beyond_limits();
        self.remove_kept_streams();
    }

    fn shed_beyond_limits(&mut self) {
        let Limits { forgotten: limit, forgotten_per_tool, .. } = self.settings.limits;
        let mut unsent = 0usize;
        for peer in self.tools.iter_mut().map(|(_, peer)| peer).filter(|peer| peer.may_lose()) {
            let (forgotten, ends) = (peer.unread().forgotten(), peer.unread().ends());
            if forgotten.max(ends) > forgotten_per_tool {
                let target = forgotten_per_tool / 2;
                peer.shed(forgotten.saturating_sub(target), ends.saturating_sub(target));
            }
            unsent.raise(peer.unread().unsent());
        }
        self.shed_beyond(unsent, limit);
    }

    /// Drops some of the `unsent` rings that wait to be sent, until `limit` are left or none can be
    /// dropped. The tool with the most rings that can be dropped loses half of them at a time.
    fn shed_beyond(&mut self, mut unsent: usize, limit: usize) {
        if unsent <= limit {
            return;
        }
        let losing = self.tools.iter().filter(|(_, peer)| peer.may_lose());
        let mut droppable: BinaryHeap<(usize, PeerId)> =
            losing.map(|(id, peer)| (peer.droppable(), id)).collect();
        while unsent > limit
            && let Some((most, id)) = droppable.pop()
            && let Some(peer) = self.tools.get_mut(&id)
            && most > 0
        {
            let dropped = most.div_ceil(2);
            peer.shed(dropped, 0);
            unsent.lower(dropped);
            droppable.push((most.saturating_sub(dropped), id));
        }
    }
}
