//! Binding ranks to processor cores.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use iof_capture::Processors;
use iof_proto::{Binding, JobSpec};

use crate::error::LaunchError;

/// Returns the cores to which the ranks of a job are bound, in the order of the ranks; `None` if
/// they are not bound.
///
/// # Errors
/// [`LaunchError::Cores`]: the ranks outnumber the cores on which this thread may run.
pub(crate) fn cores(spec: &JobSpec, ranks: usize) -> Result<Option<Vec<Processors>>, LaunchError> {
    if spec.binding == Binding::None {
        return Ok(None);
    }
    let allowed = Processors::of_this_thread().map_err(LaunchError::Binding)?;
    let mut found = BTreeSet::new();
    let mut cores = Vec::new();
    for processor in allowed.numbers() {
        if found.contains(&processor) {
            continue;
        }
        let core = siblings(processor);
        found.extend(core.iter().copied());
        cores.push(allowed.filtered(|number| core.contains(&number)));
    }
    if ranks > cores.len() {
        return Err(LaunchError::Cores { ranks, cores: cores.len() });
    }
    Ok(Some(cores))
}

/// Returns the processors of the same core, see sysfs-devices-system-cpu of the kernel.
fn siblings(processor: usize) -> BTreeSet<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
    let list = fs::read_to_string(path).unwrap_or_default();
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    // A kernel without this file shows no threads of cores.
    list.trim().split(',').filter_map(range).flatten().chain([processor]).collect()
}

/// Calls `start` on a thread that is bound to `core`, which is then as before.
pub(crate) fn bound<T>(core: Option<&Processors>, start: impl FnOnce() -> T) -> io::Result<T> {
    let Some(core) = core else { return Ok(start()) };
    let before = Processors::of_this_thread()?;
    core.bind_this_thread()?;
    let started = start();
    // It succeeded before with these processors.
    let _ = before.bind_this_thread();
    Ok(started)
}
