//! Runs: one seed, its failure if it has one, and the smallest script that still fails.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::counts::Counts;
use crate::engine::EngineWorld;
use crate::script::{Action, Setting, Subject, of_seed};
use crate::tool::Summary;
use crate::world::World;

/// The time for which a failing script is made smaller.
const SHRINK_TIME: Duration = Duration::from_secs(20);

/// The bytes read in a run, the events that have happened in it, and a word that depends on all of
/// it.
pub type Outcome = (Summary, Counts, u64);

/// A failed check of a run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// The setting of the run.
    pub setting: Box<Setting>,
    /// The script, up to the failure.
    pub script: Vec<Action>,
    /// The description of the fault.
    pub message: String,
    /// The place of the check.
    pub place: Box<str>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = self.setting.subject;
        writeln!(f, "seed {} of {subject:?}: {} ({})", self.seed, self.message, self.place)?;
        writeln!(f, "{:?}, {} actions:", self.setting, self.script.len())?;
        for Action { kind, actor, seed } in &self.script {
            writeln!(f, "    {kind:?} {actor} {seed}")?;
        }
        Ok(())
    }
}

thread_local! {
    /// The message of the first panic, and its place.
    static PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
    /// Set if this thread runs a script.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Makes panics of runs leave their message here instead of printing it.
fn keep_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !RUNS.get() {
                return before(info);
            }
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let text = info.payload_as_str().unwrap_or("a panic without a message");
            // The first panic is the cause.
            PANIC.with_borrow_mut(|panic| _ = panic.get_or_insert_with(|| (text.to_owned(), place)));
        }));
    });
}

/// Runs the script.
fn try_script(seed: u64, setting: Setting, script: &[Action]) -> Result<Outcome, Failure> {
    keep_messages();
    PANIC.take();
    RUNS.set(true);
    let mut done = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let actions = script.iter().inspect(|_| done += 1);
        match setting.subject {
            Subject::Streams => {
                let mut world = World::new(setting);
                actions.for_each(|action| world.apply(*action));
                let (summary, word) = if setting.ends_early { world.end_engine() } else { world.settle() };
                (summary, Counts::default(), word)
            }
            Subject::Engine | Subject::Embedder | Subject::Host | Subject::Clients => {
                let mut world = EngineWorld::new(setting);
                actions.for_each(|action| world.apply(*action));
                world.settle()
            }
        }
    }));
    RUNS.set(false);
    outcome.map_err(|_| {
        let (message, place) = PANIC.take().unwrap_or_default();
        let script = script[..done].to_vec();
        Failure { seed, setting: setting.into(), script, message, place: place.into() }
    })
}

/// Runs the script of a seed.
///
/// # Errors
/// The failure, if a check fails.
pub fn run(subject: Subject, seed: u64, steps: usize) -> Result<Outcome, Failure> {
    let (setting, script) = of_seed(subject, seed, steps);
    try_script(seed, setting, &script)
}

/// Returns the smallest failure that can be found by leaving out parts of the script.
pub fn shrink(failure: Failure) -> Failure {
    let (seed, setting) = (failure.seed, *failure.setting);
    shrink_by(failure, |script| try_script(seed, setting, script).err())
}

/// Shrinks a failure. `fails` runs a script, and returns its failure if it has one.
fn shrink_by(failure: Failure, fails: impl Fn(&[Action]) -> Option<Failure>) -> Failure {
    let (mut smallest, began) = (failure, Instant::now());
    let mut len = smallest.script.len().div_ceil(2);
    while len > 0 && began.elapsed() < SHRINK_TIME {
        let mut start = 0;
        let before = smallest.script.len();
        while start < smallest.script.len() && began.elapsed() < SHRINK_TIME {
            let end = (start + len).min(smallest.script.len());
            let mut shorter = smallest.script.clone();
            shorter.drain(start..end);
            match fails(&shorter) {
                Some(found) if found.place == smallest.place => smallest = found,
                _ => start = end,
            }
        }
        // Shorter parts only once no part of this length can be left out.
        if smallest.script.len() == before || len > smallest.script.len() {
            len /= 2;
        }
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Kind;

    #[test]
    fn shrinking_leaves_what_the_same_failure_needs() {
        let (setting, script) = of_seed(Subject::Engine, 7, 2000);
        let failed = |script: &[Action], place: &str| Failure {
            seed: 7,
            setting: setting.into(),
            script: script.to_vec(),
            message: String::new(),
            place: place.into(),
        };
        // A tool, and a pull after it, fail at one place. A tool without a write fails elsewhere.
        let fails = |script: &[Action]| {
            let tool = script.iter().position(|action| action.kind == Kind::NewTool)?;
            let pull = script[tool..].iter().any(|action| action.kind == Kind::Attach);
            let writes = script.iter().any(|action| action.kind == Kind::Write);
            (pull || !writes).then(|| failed(script, if writes { "here" } else { "elsewhere" }))
        };
        let smallest = shrink_by(failed(&script, "here"), fails);
        let mut kinds: Vec<Kind> = smallest.script.iter().map(|action| action.kind).collect();
        kinds.retain(|kind| *kind != Kind::Write);
        assert_eq!((kinds, smallest.script.len()), (vec![Kind::NewTool, Kind::Attach], 3));
    }
}
