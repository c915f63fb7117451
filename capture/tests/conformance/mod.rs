//! The conformance suite, which every backend must pass. Each backend has a test program, which
//! defines `BACKEND`.

mod crowd;
mod deliveries;
mod finishing;
mod growth;
mod pipes;
mod processes;
mod ptys;
mod pushing;
mod requests;
mod stalls;

use iof_shm_ring::{Policy, Reader, Stream};

use crate::BACKEND;
use iof_testing::capture::{CaptureRig, TestTool, rig_on, stream, tool};

fn rig() -> CaptureRig {
    rig_on(BACKEND)
}

/// Returns a stream with one reader, for which its source waits while the stream is full.
fn blocking_stream(rig: &CaptureRig, capacity: u64) -> (TestTool, Stream, Reader) {
    let mut tool = tool();
    let mut stream = stream(capacity, Policy::Block);
    let mut reader = tool.attach_first(&mut stream, true);
    reader.set_room_bell(rig.capture.room_bell().unwrap());
    (tool, stream, reader)
}
