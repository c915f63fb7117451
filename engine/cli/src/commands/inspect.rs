//! `iof inspect`: decodes a ring from outside, also when its writer is stopped or dead.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use iof_shm_ring::{InspectError, Mark, Ring, Snapshot};
use jiff::Timestamp;
use nix::libc;
use serde_json::json;

use crate::error::Failure;
use crate::terminal::print::{table, write};

#[derive(Args)]
#[command(override_usage = "iof inspect [OPTIONS] <FD|PATH>")]
pub struct InspectArgs {
    /// Ring to decode: a descriptor, or a path such as /proc/PID/fd/N
    ///
    /// A ring is a stream's buffer in shared memory. `ls -l /proc/PID/fd | grep iof-ring` lists the
    /// rings of a process.
    #[arg(value_name = "FD|PATH")]
    pub ring: Option<PathBuf>,

    /// Write the cached bytes to stdout, the report to stderr
    #[arg(long)]
    pub bytes: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The number of marks in the text report. The JSON report has all marks.
const MAX_MARKS: usize = 16;

/// Prints a report on a ring. With `--bytes`, writes the cached bytes to stdout and the report to
/// stderr.
pub fn inspect(args: &InspectArgs) -> Result<(), Failure> {
    let Some(name) = &args.ring else {
        return Err(Failure::usage(
            "missing ring: expected a descriptor of iof, or a path such as /proc/PID/fd/N; \
             `ls -l /proc/PID/fd | grep iof-ring` lists the rings of a process",
        ));
    };
    let path = ring_path(name);
    let unusable = |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
    let failed = |error: &InspectError| Failure::running(format!("{}: {error}", path.display()));
    let file = open(&path).map_err(|error| unusable(&error))?;
    let ring = Ring::open(file.into()).map_err(|error| unusable(&error))?;
    if args.bytes {
        let (snapshot, bytes) = Snapshot::with_bytes(&ring).map_err(|error| failed(&error))?;
        write(io::stderr(), report(&snapshot, args.json).as_bytes())?;
        write(io::stdout(), &bytes)
    } else {
        let snapshot = Snapshot::take(&ring).map_err(|error| failed(&error))?;
        write(io::stdout(), report(&snapshot, args.json).as_bytes())
    }
}

/// Returns the path of a ring: a number is a descriptor of this process, all else is a path.
fn ring_path(name: &Path) -> PathBuf {
    match name.to_str().and_then(|name| name.parse::<u32>().ok()) {
        Some(number) => PathBuf::from(format!("/proc/self/fd/{number}")),
        None => name.to_owned(),
    }
}

/// Opens a file of any kind. Does not block on a fifo, and does not acquire a controlling terminal.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// Returns the state of the process with a pid. (The pid may have been reused, or belong to another pid
/// namespace.)
pub fn process_state(pid: u64) -> &'static str {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The format is "PID (NAME) STATE ...". The name may contain any bytes, also ')'.
    let state = stat.rsplit(|byte| *byte == b')').next().and_then(|rest| rest.get(1));
    match state {
        None | Some(b'Z' | b'X') => "dead",
        Some(b'T' | b't') => "stopped",
        Some(_) => "running",
    }
}

fn report(snapshot: &Snapshot, as_json: bool) -> String {
    if as_json { format!("{:#}\n", json(snapshot)) } else { text(snapshot) }
}

fn json(snapshot: &Snapshot) -> serde_json::Value {
    let gaps = snapshot.gaps().map(|gap| json!({"offset": gap.offset, "lost": gap.lost}));
    let marks = snapshot
        .marks
        .iter()
        .map(|mark| json!({"position": mark.offset, "time": rfc3339(mark), "dropped": mark.dropped}));
    json!({
        "label": snapshot.label, "writer_pid": snapshot.writer_pid,
        "writer": process_state(snapshot.writer_pid), "generation": snapshot.generation,
        "base": snapshot.base, "overwrite": snapshot.overwrite, "capacity": snapshot.capacity,
        "entries": snapshot.entries, "data_offset": snapshot.data_offset,
        "produced": snapshot.produced(), "cached": snapshot.cached(), "dropped": snapshot.dropped,
        "floor": snapshot.floor, "tail": snapshot.tail, "claimed": snapshot.claimed,
        "wanted": snapshot.wanted, "sealed": snapshot.sealed, "complete": snapshot.complete,
        "missing": snapshot.missing,
        "gaps": gaps.collect::<Vec<_>>(), "retired_marks": snapshot.retired,
        "marks": marks.collect::<Vec<_>>(),
    })
}

fn text(snapshot: &Snapshot) -> String {
    let Snapshot { generation, base, capacity, entries, floor, tail, claimed, .. } = snapshot;
    let state = match (snapshot.complete, snapshot.sealed, snapshot.wanted) {
        (Some(end), ..) => match snapshot.missing {
            Some(missing) => format!("broken at {end}: at least {missing} bytes are missing"),
            None => format!("complete at {end}"),
        },
        (None, Some(end), _) => format!("sealed at {end}: continues in the next generation"),
        (None, None, Some(wanted)) => format!("full: waits until its readers reach {wanted}"),
        (None, None, None) => "open".into(),
    };
    let policy = if snapshot.overwrite { "the oldest bytes" } else { "bytes that its readers have consumed" };
    let mut text = [
        // A label from another process may contain control sequences.
        ("label", snapshot.label.escape_debug().to_string()),
        ("writer", format!("pid {}, {}", snapshot.writer_pid, process_state(snapshot.writer_pid))),
        ("generation", format!("{generation}, from {base}")),
        (
            "layout",
            format!("{capacity} bytes from offset {} of the file, {entries} marks", snapshot.data_offset),
        ),
        ("overwrites", policy.into()),
        ("state", state),
        ("produced", snapshot.produced().to_string()),
        ("dropped", snapshot.dropped.to_string()),
        ("cached", format!("{}, from {floor} to {tail}", snapshot.cached())),
        ("claimed", format!("to {claimed}")),
    ]
    .map(|(name, value)| format!("{name:<12}{value}\n"))
    .concat();

    let gaps: Vec<_> =
        snapshot.gaps().map(|gap| vec![gap.offset.to_string(), gap.lost.to_string()]).collect();
    text.push_str(&format!("gaps        {}\n", gaps.len()));
    let hidden = snapshot.marks.len().saturating_sub(MAX_MARKS);
    let marks = snapshot.marks.iter().skip(hidden);
    let marks = marks.map(|mark| vec![mark.offset.to_string(), rfc3339(mark), mark.dropped.to_string()]);
    let selection = if hidden == 0 { String::new() } else { format!(", the newest {MAX_MARKS} below") };
    let mark_count = format!("marks       {}{selection}\n", snapshot.marks.len());
    if !gaps.is_empty() {
        text.push_str(&format!("\n{}\n", table(&["LOST AT", "BYTES"], gaps.into_iter())));
    }
    text.push_str(&mark_count);
    if !snapshot.marks.is_empty() {
        text.push_str(&format!("\n{}", table(&["POSITION", "TIME", "DROPPED BEFORE"], marks)));
    }
    text
}

/// Formats the time of a mark as RFC 3339.
fn rfc3339(mark: &Mark) -> String {
    // Cannot fail: every 64-bit number of nanoseconds is within a timestamp's range.
    Timestamp::from_nanosecond(i128::from(mark.time))
        .map_or_else(|_| mark.time.to_string(), |time| format!("{time:.9}"))
}
