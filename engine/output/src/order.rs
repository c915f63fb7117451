//! The order of one process's streams at one destination. Pure.
//!
//! Stdout and stderr of a process are separate streams. Where both are written to one place, their
//! bytes are written in the order in which they were read from the process. A line is written at
//! the place of its last byte, so no stream waits for the rest of another stream's line.

use std::collections::BTreeMap;
use std::mem;

use iof_proto::{Channels, Proc};
use iof_tool::FeedId;

use crate::files::FileId;

/// A process and, if it has files, one of them.
type GroupKey = (Proc, Option<FileId>);

/// The groups of streams that come from one process and go to one place.
#[derive(Default)]
pub(crate) struct Siblings {
    groups: Vec<Group>,
    /// The groups of the feeds, by their numbers.
    by_feed: Vec<Option<usize>>,
    by_key: BTreeMap<GroupKey, usize>,
    /// The groups without members.
    free: Vec<usize>,
}

struct Group {
    key: GroupKey,
    members: Vec<FeedId>,
    /// The last round in which the group was peeked at.
    round: u64,
    /// The channels of the streams that were added.
    channels: Channels,
    /// Set if no stream of the process is missing that has bytes which were read before those of
    /// the members.
    whole: bool,
}

impl Siblings {
    /// Adds a stream of `source`. `file` is its file, if its destination is one. `channels` is its
    /// channel; empty if the process has not written the stream.
    pub fn add(&mut self, id: FeedId, source: &Proc, channels: Channels, file: Option<FileId>) {
        let key = (source.clone(), file);
        let index = match self.by_key.get(&key) {
            Some(index) => *index,
            None => {
                let (members, channels) = (Vec::new(), Channels::empty());
                let group = Group { key: key.clone(), members, round: 0, channels, whole: false };
                let index = self.free.pop().unwrap_or(self.groups.len());
                match self.groups.get_mut(index) {
                    Some(free) => *free = group,
                    None => self.groups.push(group),
                }
                self.by_key.insert(key, index);
                index
            }
        };
        let Some(group) = self.groups.get_mut(index) else { return debug_assert!(false, "no group {index}") };
        group.members.push(id);
        group.channels |= channels;
        if self.by_feed.len() <= id.index() {
            self.by_feed.resize(id.index().saturating_add(1), None);
        }
        let Some(entry) = self.by_feed.get_mut(id.index()) else { return debug_assert!(false, "no {id:?}") };
        *entry = Some(index);
    }

    /// Removes a stream that has ended.
    pub fn remove(&mut self, id: FeedId) {
        let Some(index) = self.by_feed.get_mut(id.index()).and_then(Option::take) else { return };
        let Some(group) = self.groups.get_mut(index) else { return debug_assert!(false, "no group {index}") };
        group.members.retain(|member| *member != id);
        if group.members.is_empty() {
            self.by_key.remove(&group.key);
            self.free.push(index);
        }
    }

    /// Returns whether the stream was added and not removed.
    pub fn contains(&self, id: FeedId) -> bool {
        self.by_feed.get(id.index()).is_some_and(Option::is_some)
    }

    /// Returns whether all streams were added that the group of `id` needs, if streams of the
    /// channels that `unannounced` returns may be added later. Once this is so, it remains so.
    pub fn is_whole(&mut self, id: FeedId, unannounced: impl FnOnce() -> Channels) -> bool {
        let Some(group) = self.group_mut(id) else { return true };
        group.whole = group.whole || group.channels.contains(unannounced());
        group.whole
    }

    /// Records that all streams were added that the group of `id` needs.
    pub fn complete(&mut self, id: FeedId) {
        if let Some(group) = self.group_mut(id) {
            group.whole = true;
        }
    }

    fn group_mut(&mut self, id: FeedId) -> Option<&mut Group> {
        let index = self.by_feed.get(id.index()).copied().flatten()?;
        self.groups.get_mut(index)
    }

    /// Records that the group of `id` is peeked at in `round`. Returns `false` if it was already.
    pub fn begin_round(&mut self, id: FeedId, round: u64) -> bool {
        self.group_mut(id).is_none_or(|group| mem::replace(&mut group.round, round) != round)
    }

    /// Stores the streams of the group of `id`, including `id`, in `members`.
    pub fn group_of(&self, id: FeedId, members: &mut Vec<FeedId>) {
        let index = self.by_feed.get(id.index()).copied().flatten();
        members.clear();
        if let Some(group) = index.and_then(|index| self.groups.get(index)) {
            members.extend_from_slice(&group.members);
        }
    }
}

/// The bytes of one stream of a group, as found by a peek.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
    /// The offsets at which reads begin, with the times of the reads, in ascending order.
    pub times: Vec<(u64, u64)>,
}

impl Found {
    /// Returns the latest time of a read, or 0 if it is unknown. The times of a remote rank may run
    /// backwards.
    pub fn newest(&self) -> u64 {
        self.times.iter().map(|(_, time)| *time).max().unwrap_or(0)
    }

    /// Returns the ends of the reads, as numbers of bytes, with the times of the reads. Bytes
    /// without a known time come first.
    fn reads(&self) -> Vec<(usize, u64)> {
        let position =
            |offset: u64| usize::try_from(offset.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let ends = self.times.iter().skip(1).map(|(offset, _)| position(*offset).min(self.len));
        let ends = ends.chain([self.len]);
        let first = self.times.first().map_or(self.len, |(offset, _)| position(*offset).min(self.len));
        let unknown = (first > 0).then_some((first, 0));
        let known = ends.zip(&self.times).map(|(end, (_, time))| (end, *time));
        unknown.into_iter().chain(known).collect()
    }
}

/// A piece of the order: the bytes of one stream up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderedPiece {
    /// The number of the stream in its group.
    pub stream: usize,
    /// The number of its bytes that precede the end of the piece.
    pub end: usize,
}

/// Returns the pieces of `streams` in the order in which they were read, as far as they were read
/// at `horizon` or before. Of reads with equal times, that of the stream with the lowest number is
/// first.
pub(crate) fn pieces(streams: &[Found], horizon: u64) -> Vec<OrderedPiece> {
    let reads: Vec<Vec<(usize, u64)>> = streams.iter().map(Found::reads).collect();
    let mut next: Vec<_> = reads.iter().map(|reads| reads.iter().peekable()).collect();
    let mut pieces: Vec<OrderedPiece> = Vec::new();
    loop {
        let heads = next.iter_mut().enumerate().filter_map(|(stream, reads)| {
            let (_, time) = reads.peek()?;
            (*time <= horizon).then_some((*time, stream))
        });
        let Some((_, stream)) = heads.min() else { return pieces };
        let Some((end, _)) = next.get_mut(stream).and_then(Iterator::next) else { return pieces };
        match pieces.last_mut().filter(|last| last.stream == stream) {
            Some(last) => last.end = *end,
            None => pieces.push(OrderedPiece { stream, end: *end }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(offset: u64, len: usize, times: &[(u64, u64)]) -> Found {
        Found { offset, len, times: times.to_vec() }
    }

    fn order(streams: &[Found], horizon: u64) -> Vec<(usize, usize)> {
        pieces(streams, horizon).into_iter().map(|piece| (piece.stream, piece.end)).collect()
    }

    #[test]
    fn reads_of_two_streams_are_put_in_the_order_of_their_times() {
        let out = found(100, 12, &[(100, 10), (104, 30), (108, 50)]);
        let err = found(7, 6, &[(7, 20), (9, 40), (11, 45)]);
        let expected = [(0, 4), (1, 2), (0, 8), (1, 6), (0, 12)];
        assert_eq!(order(&[out.clone(), err.clone()], u64::MAX), expected);
        assert_eq!(order(&[out.clone(), err.clone()], 40), [(0, 4), (1, 2), (0, 8), (1, 4)]);
        assert_eq!(order(&[out, err], 5), []);
    }

    #[test]
    fn bytes_of_unknown_time_come_first_and_equal_times_keep_the_streams_order() {
        let out = found(0, 8, &[(4, 10)]);
        let err = found(0, 3, &[]);
        assert_eq!(order(&[err, out.clone()], 10), [(0, 3), (1, 8)]);
        assert_eq!(order(&[out.clone(), found(0, 2, &[(0, 10)])], 10), [(0, 8), (1, 2)]);
        assert_eq!(order(&[out], 9), [(0, 4)]);
    }

    #[test]
    fn a_time_before_the_first_byte_or_behind_the_last_moves_no_end() {
        assert_eq!(order(&[found(10, 5, &[(2, 1), (12, 2), (15, 3)])], 3), [(0, 5)]);
        assert_eq!(order(&[found(10, 5, &[(40, 3)])], 3), [(0, 5)]);
    }
}
