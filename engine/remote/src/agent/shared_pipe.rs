//! A pipe to which several threads write.

use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::Mutex;

use crossbeam::channel::{Sender, bounded};
use iof_nodes::Turns;

use crate::carrier::{lock, write_frames};

/// A pipe to which threads write in the order in which they ask.
///
/// A mutex lets the thread that has just released it lock it again, and so a busy thread keeps
/// others from writing.
pub struct SharedPipe {
    pipe: File,
    turns: Mutex<Turns<Sender<()>>>,
}

impl SharedPipe {
    pub fn new(pipe: File) -> SharedPipe {
        SharedPipe { pipe, turns: Mutex::default() }
    }

    /// Writes whole frames when it is the turn of this thread. Blocks while the carrier takes
    /// nothing.
    pub fn write(&self, frames: &[IoSlice<'_>]) -> io::Result<()> {
        let mut turns = lock(&self.turns);
        if !turns.begin() {
            let (begins, turn) = bounded(1);
            turns.wait(begins);
            drop(turns);
            // The thread that writes before this one sends, whatever becomes of its frames.
            let _ = turn.recv();
        } else {
            drop(turns);
        }
        let written = write_frames(&self.pipe, frames);
        if let Some(next) = lock(&self.turns).end() {
            // The receiver waits.
            let _ = next.send(());
        }
        written
    }
}
