//! Reports of bytes that are missing from an output, because ranks wrote faster than they could be
//! read: for each channel of a job at most once a second, and at the end with the sum.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use iof_proto::ranges::listed;
use iof_proto::{Channel, Nspace, Proc, Rank};
use iof_tool::Gap;

use crate::terminal::message::write_message;

/// The shortest time between two reports of a channel.
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
    channels: BTreeMap<Key, ChannelGaps>,
    /// Some channel has gaps that are not reported.
    is_due: bool,
    /// No gap will be added.
    is_over: bool,
    /// The thread that reports, started at the first gap.
    reporter: Option<JoinHandle<()>>,
}

/// A channel of a job, and whether the gaps are those of the job and not of its ranks.
type Key = (Nspace, Channel, bool);

/// The gaps of one channel, by rank.
#[derive(Default)]
struct ChannelGaps {
    /// Those that are not reported yet.
    due: BTreeMap<Rank, Sum>,
    all: BTreeMap<Rank, Sum>,
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
        let Proc { nspace, rank } = source;
        let key = (nspace.clone(), channel, *rank == Rank::WILDCARD);
        let ChannelGaps { due, all, .. } = table.channels.entry(key).or_default();
        due.entry(*rank).or_default().add(gap);
        all.entry(*rank).or_default().add(gap);
        table.is_due = true;
        if table.reporter.is_none() {
            let gaps = Arc::clone(self);
            // Without a thread, the gaps are reported at the end.
            table.reporter = thread::Builder::new().name("iof-gaps".into()).spawn(move || gaps.report()).ok();
        }
        drop(table);
        self.changed.notify_one();
    }

    /// Reports the remaining gaps, and the sums of the channels with more than one report.
    /// Call it after the last gap.
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
        for (key, channel) in table.channels.iter().filter(|(_, channel)| channel.reports > 1) {
            lines.push(self.line(key, &channel.all, " in total"));
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

    /// Returns a line for each channel with gaps that are not reported, which then count as
    /// reported.
    fn due(&self, table: &mut Table) -> Vec<String> {
        table.is_due = false;
        let due = table.channels.iter_mut().filter(|(_, channel)| !channel.due.is_empty());
        let line = |(key, channel): (&Key, &mut ChannelGaps)| {
            channel.reports = channel.reports.saturating_add(1);
            self.line(key, &mem::take(&mut channel.due), "")
        };
        due.map(line).collect()
    }

    fn line(&self, (nspace, channel, _): &Key, ranks: &BTreeMap<Rank, Sum>, total: &str) -> String {
        let sum = |field: fn(&Sum) -> u64| ranks.values().map(field).fold(0, u64::saturating_add);
        let (place, lost, count) = (&self.place, sum(|sum| sum.lost), sum(|sum| sum.count));
        let (of, first) = match ranks.first_key_value() {
            Some((rank, Sum { offset, .. })) if ranks.len() == 1 => (format!("rank {rank}"), Some(offset)),
            _ => (format!("ranks {}", listed(&ranks.keys().copied().collect())), None),
        };
        let gaps = match (count, first) {
            (1, Some(offset)) => format!("at offset {offset}"),
            (_, Some(offset)) => format!("in {count} gaps{total}, the first at offset {offset}"),
            (_, None) => format!("in {count} gaps{total}"),
        };
        format!("job {nspace}: {of} {channel}: {lost} bytes are missing {gaps}{place}")
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
