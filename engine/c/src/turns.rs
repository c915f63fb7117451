//! Turns at a core that the program progresses itself: one thread at a time has it, all others that
//! wait hear of what it does.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::core::Core;
use crate::session::lock;

/// A core, and who has it.
pub(crate) struct Turns {
    place: Mutex<Place>,
    /// It is back, or has done something.
    moved: Condvar,
}

enum Place {
    Here(Box<Core>),
    Taken,
    Ended,
}

/// What a thread gets that waits for something.
pub(crate) enum Waited<'t, T> {
    /// It.
    Heard(T),
    /// The core, with which it may bring it about.
    Turn(Turn<'t>),
    /// The core has ended.
    Ended,
}

impl Turns {
    pub(crate) fn new(core: Core) -> Turns {
        Turns { place: Mutex::new(Place::Here(Box::new(core))), moved: Condvar::new() }
    }

    /// The core, unless another has it, or we have it ourselves.
    pub(crate) fn take(&self) -> Option<Turn<'_>> {
        self.take_from(&mut lock(&self.place))
    }

    fn take_from(&self, place: &mut Place) -> Option<Turn<'_>> {
        match std::mem::replace(place, Place::Taken) {
            Place::Here(core) => Some(Turn { turns: self, core: Some(core) }),
            other => {
                *place = other;
                None
            }
        }
    }

    /// Waits until there is something to `hear`, or the core is to be had. Who has it says so
    /// whenever there may be.
    pub(crate) fn wait<T>(&self, mut hear: impl FnMut() -> Option<T>) -> Waited<'_, T> {
        let mut place = lock(&self.place);
        loop {
            if let Some(heard) = hear() {
                return Waited::Heard(heard);
            }
            if let Some(turn) = self.take_from(&mut place) {
                return Waited::Turn(turn);
            }
            if matches!(*place, Place::Ended) {
                return Waited::Ended;
            }
            place = self.moved.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// For how long a wait of the program's loop may last, if nobody else has the core.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        if let Place::Here(core) = &*lock(&self.place) { core.timeout() } else { None }
    }

    /// Says that there may be something to hear.
    fn tell(&self, place: Option<Place>) {
        let mut here = lock(&self.place);
        if let Some(place) = place {
            *here = place;
        }
        drop(here);
        self.moved.notify_all();
    }
}

/// The core, until this is dropped.
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    core: Option<Box<Core>>,
}

impl Turn<'_> {
    /// One turn of the core, see [`Core::turn`]; its last if the program wants no more, and then
    /// there is none after it.
    pub(crate) fn turn(&mut self) -> Option<Option<Duration>> {
        let core = self.core.as_mut()?;
        let timeout = core.turn();
        if core.is_stopped() {
            core.last_turn();
            self.core = None;
            return None;
        }
        self.turns.tell(None);
        Some(timeout)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // After a panic it is of no more use, and may not keep what callers have lent it.
        let core = self.core.take().filter(|_| !thread::panicking());
        self.turns.tell(Some(core.map_or(Place::Ended, Place::Here)));
    }
}
