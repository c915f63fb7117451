//! Reports of bytes that are missing from an output, because a rank wrote faster than they could be
//! read: each stream at most once a second, and at the end with its sum.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use iof_proto::{Channel, Proc};
use iof_tool::Gap;

use crate::message::write_message;

/// The shortest time between two reports of a stream.
const INTERVAL: Duration = Duration::from_secs(1);

/// The gaps of one output.
pub struct Gaps {
    /// The words that name the output, if there are several.
    place: String,
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    streams: BTreeMap<(Proc, Channel), StreamGaps>,
    /// Some stream has gaps that are not reported.
    is_due: bool,
    /// No gap will be added.
    is_over: bool,
    /// The thread that reports, started at the first gap.
    reporter: Option<JoinHandle<()>>,
}

/// The gaps of one stream.
#[derive(Default)]
struct StreamGaps {
    /// Those that are not reported yet.
    due: Sum,
    all: Sum,
    reports: u64,
}

/// The sum of several gaps.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    lost: u64,
    /// The offset of the first gap.
    offset: u64,
}

impl Sum {
    fn add(&mut self, gap: Gap) {
        if self.count == 0 {
            self.offset = gap.offset;
        }
        self.count = self.count.saturating_add(1);
        self.lost = self.lost.saturating_add(gap.lost);
    }
}

impl Gaps {
    /// `place` names the output in reports, such as ` on stdout`; it is empty for an only output.
    pub fn new(place: String) -> Arc<Gaps> {
        Arc::new(Gaps { place, table: Mutex::default(), changed: Condvar::new() })
    }

    /// Adds a gap, which is reported within a second. Does not wait for stderr.
    pub fn add(self: &Arc<Gaps>, source: &Proc, channel: Channel, gap: Gap) {
        let mut table = self.lock();
        let stream = table.streams.entry((source.clone(), channel)).or_default();
        stream.due.add(gap);
        stream.all.add(gap);
        table.is_due = true;
        if table.reporter.is_none() {
            let gaps = Arc::clone(self);
            // Without a thread, the gaps are reported at the end.
            table.reporter = thread::Builder::new().name("iof-gaps".into()).spawn(move || gaps.report()).ok();
        }
        drop(table);
        self.changed.notify_one();
    }

    /// Reports what is not reported yet, and the sums of the streams with more than one report. To
    /// be called after the last gap.
    pub fn finish(&self) {
        let mut table = self.lock();
        table.is_over = true;
        let reporter = table.reporter.take();
        drop(table);
        self.changed.notify_one();
        // A panic of the reporter is on stderr already.
        let _ = reporter.map(JoinHandle::join);
        let mut table = self.lock();
        let mut lines = self.due(&mut table);
        for ((source, channel), stream) in table.streams.iter().filter(|(_, stream)| stream.reports > 1) {
            lines.push(self.line(source, *channel, stream.all, " in total"));
        }
        drop(table);
        lines.iter().for_each(|line| write_message(format_args!("{line}")));
    }

    /// Reports gaps until the end.
    fn report(&self) {
        let mut table = self.lock();
        while !table.is_over {
            let waits = |table: &mut Table| !table.is_due && !table.is_over;
            table = self.changed.wait_while(table, waits).unwrap_or_else(PoisonError::into_inner);
            // Gaps often come in groups.
            let waits = |table: &mut Table| !table.is_over;
            let waited = self.changed.wait_timeout_while(table, INTERVAL, waits);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
            let lines = self.due(&mut table);
            drop(table);
            lines.iter().for_each(|line| write_message(format_args!("{line}")));
            table = self.lock();
        }
    }

    /// Returns a line for each stream with gaps that are not reported, which then count as
    /// reported.
    fn due(&self, table: &mut Table) -> Vec<String> {
        table.is_due = false;
        let due = table.streams.iter_mut().filter(|(_, stream)| stream.due.count > 0);
        let line = |((source, channel), stream): (&(Proc, Channel), &mut StreamGaps)| {
            stream.reports = stream.reports.saturating_add(1);
            self.line(source, *channel, std::mem::take(&mut stream.due), "")
        };
        due.map(line).collect()
    }

    fn line(&self, source: &Proc, channel: Channel, sum: Sum, total: &str) -> String {
        let (rank, place, Sum { count, lost, offset }) = (source.rank, &self.place, sum);
        match count {
            1 => format!("rank {rank} {channel}: {lost} bytes are missing at offset {offset}{place}"),
            _ => format!(
                "rank {rank} {channel}: {lost} bytes are missing in {count} gaps{total}, the first at offset \
                 {offset}{place}"
            ),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
