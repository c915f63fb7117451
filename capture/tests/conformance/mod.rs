//! What every backend must do alike. Each has a test program of its own, which says `BACKEND`.

mod crowd;
mod deliveries;
mod feeding;
mod finishing;
mod pipes;
mod processes;
mod ptys;

use crate::BACKEND;
use crate::common::{Rig, rig_on};

fn rig() -> Rig {
    rig_on(BACKEND)
}
