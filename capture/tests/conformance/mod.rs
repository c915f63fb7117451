//! What every backend must do alike. Each has a test program of its own, which says `BACKEND`.

mod crowd;
mod deliveries;
mod finishing;
mod pipes;
mod processes;
mod ptys;
mod pushing;
mod stalls;

use iof_shm_ring::{Policy, Reader, Stream};

use crate::BACKEND;
use crate::common::{Rig, Tool, rig_on, stream, tool};

fn rig() -> Rig {
    rig_on(BACKEND)
}

/// A stream whose source waits for its one reader.
fn held_back_by_its_reader(rig: &Rig, capacity: u64) -> (Tool, Stream, Reader) {
    let mut tool = tool();
    let mut stream = stream(capacity, Policy::Block);
    let mut reader = tool.attach_first(&mut stream, true);
    reader.tell_room(rig.capture.room_bell().unwrap());
    (tool, stream, reader)
}
