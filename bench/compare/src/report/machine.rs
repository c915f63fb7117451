//! The description of the machine.

use std::collections::BTreeMap;
use std::fs;

/// Returns the properties that affect the figures, by name.
pub fn describe() -> BTreeMap<&'static str, String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    BTreeMap::from([
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("load average at the start", read("/proc/loadavg").trim().to_owned()),
        ("memory", value(&read("/proc/meminfo"), "MemTotal")),
        ("processors", format!("{processors} of {}", value(&read("/proc/cpuinfo"), "model name"))),
    ])
}
