//! The output of a stream, or of all streams of a rank: a bounded number of lines. A page of them is
//! shown, and the thread that pulls them.

use std::collections::VecDeque;
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, bounded};
use iof_proto::rendezvous::Search;
use iof_proto::{Channel, Channels, Position};
use iof_tool::{Delivery, Origin, Pull, Tool};
use memchr::memmem;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;
use ratatui::crossterm::event::KeyCode;

use super::prompt::Prompt;
use super::row::{RowKind, StreamRow};
use crate::processes::threads::start_thread;

/// Returns the position to which a key moves, which may be behind the last one, if it is one that scrolls.
pub fn scrolled(key: KeyCode, position: usize, page: usize) -> Option<usize> {
    Some(match key {
        KeyCode::Up => position.saturating_sub(1),
        KeyCode::Down => position.saturating_add(1),
        KeyCode::PageUp => position.saturating_sub(page),
        KeyCode::PageDown => position.saturating_add(page),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX,
        _ => return None,
    })
}

/// The largest number of lines that a view holds. Older lines are dropped.
const MAX_LINES: usize = 10_000;

/// The largest number of bytes that a view holds.
const MAX_BYTES: usize = 4 << 20;

/// The largest number of bytes that are received at once, and of a line that is not divided.
const MAX_PIECE: usize = 64 << 10;

/// The number of pieces that wait for the screen.
const MAX_PIECES: usize = 16;

/// The number of threads that pull for views, also for closed ones whose engine does not answer.
const MAX_VIEWS: usize = 4;

/// The number of columns by which Left and Right move the page.
const STEP: usize = 8;

/// Bytes that the thread of a view has received, with their channel, or a note about a gap or an end.
pub type Received = (Option<Channel>, Vec<u8>);

/// A line of a view.
pub struct ViewLine {
    /// The channel; `None` for a note.
    pub channel: Option<Channel>,
    pub bytes: Vec<u8>,
    /// Its newline has not arrived.
    is_open: bool,
}

/// The lines of a stream, and the page that is shown.
#[derive(Default)]
pub struct StreamView {
    pub title: String,
    pub lines: VecDeque<ViewLine>,
    /// The number of older lines that were dropped.
    pub dropped: u64,
    /// The first line and the first column of the page.
    pub first: usize,
    pub left: usize,
    /// The page moves with the end of the lines.
    pub follows: bool,
    /// The text that the user types to search for it.
    pub prompt: Option<Prompt>,
    /// The text that was last searched for.
    pub search: String,
    pub notice: Option<String>,
    /// The sum of the lengths of the lines.
    bytes: usize,
    /// The line that the search has found.
    found: Option<usize>,
    page: usize,
    /// The queue of the thread that pulls, until it has ended, and a pipe whose closing ends it.
    source: Option<(Receiver<Received>, OwnedFd)>,
}

/// Pulls, and sends what arrives, until nothing more arrives or the view is closed. Returns the reason if
/// this is an error.
fn receive(
    search: &Search,
    pull: &Pull,
    logged: Option<bool>,
    pieces: &Sender<Received>,
    closed: &OwnedFd,
) -> Result<(), Box<dyn Error>> {
    let mut tool = Tool::find(search, "iof top")?;
    tool.pull(pull)?;
    loop {
        if let Some(delivery) = tool.try_recv()? {
            let is_other = |origin: Origin<'_>| logged.is_some_and(|logged| logged != origin.logged);
            if !delivery.origin().is_some_and(is_other) && !forward(&delivery, pieces) {
                return Ok(());
            }
            continue;
        }
        if tool.is_done() {
            return Ok(());
        }
        let limit = tool.timeout().map(|limit| PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
        let mut fds =
            [PollFd::new(tool.as_fd(), PollFlags::POLLIN), PollFd::new(closed.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, limit.unwrap_or(PollTimeout::NONE));
        if ready.is_ok() && fds[1].revents().is_some_and(|ready| !ready.is_empty()) {
            return Ok(());
        }
    }
}

/// Sends a delivery to the view. Returns `false` if the view is closed.
fn forward(delivery: &Delivery<'_>, pieces: &Sender<Received>) -> bool {
    let note = match delivery {
        Delivery::Bytes(bytes) => {
            let channel = Some(bytes.origin().channel);
            return bytes.chunks(MAX_PIECE).all(|piece| pieces.send((channel, piece.to_vec())).is_ok());
        }
        Delivery::Gap { gap, .. } => format!("{} bytes are missing here", gap.lost),
        Delivery::Complete { origin, counts } => {
            format!("end of {} after {} bytes", origin.channel, counts.produced)
        }
        Delivery::Broken { origin, missing, .. } => {
            format!("{} is broken: at least {missing} bytes are missing", origin.channel)
        }
        Delivery::Gone { origin, .. } => format!("lost the engine before the end of {}", origin.channel),
        Delivery::Missed { missed, .. } => {
            format!("{} streams with {} bytes are missing", missed.streams, missed.bytes)
        }
        _ => return true,
    };
    pieces.send((None, format!("{note}\n").into())).is_ok()
}

impl StreamView {
    /// Begins to pull the output of a row. Returns its view. Each thread that pulls for a view holds
    /// `viewers`.
    pub fn open(viewers: &Arc<()>, row: &StreamRow, search: &Search) -> Result<StreamView, String> {
        if Arc::strong_count(viewers) > MAX_VIEWS {
            return Err("the engines of earlier views do not answer: try again".into());
        }
        let source = row.stats.source.clone();
        let (channels, logged, title) = match row.kind {
            RowKind::Stream => {
                let title = format!("{source} {}", row.stats.channel);
                (row.stats.channel.into(), Some(row.stats.logged), title)
            }
            RowKind::Rank | RowKind::Job => (Channels::OUTPUTS, None, source.to_string()),
        };
        let (closed, open) =
            pipe2(OFlag::O_CLOEXEC).map_err(|error| format!("cannot create a pipe: {error}"))?;
        let (sender, pieces) = bounded(MAX_PIECES);
        let (search, thread) = (search.clone(), Arc::clone(viewers));
        let pull = Pull::new(vec![source], channels).from(Position::Lines(MAX_LINES as u64));
        start_thread("iof-view", move || {
            if let Err(reason) = receive(&search, &pull, logged, &sender, &closed) {
                let _ = sender.send((None, format!("{reason}\n").into()));
            }
            drop(thread);
        })
        .map_err(|_| "cannot start a thread: raise RLIMIT_NPROC (`ulimit -u`)")?;
        Ok(StreamView { title, follows: true, source: Some((pieces, open)), ..StreamView::default() })
    }

    /// Returns a view of a text.
    pub fn of_text(title: &str, text: &str) -> StreamView {
        let mut view = StreamView { title: title.into(), ..StreamView::default() };
        view.push((Some(Channel::Stdout), text.into()));
        view
    }

    /// Returns the queue of what is received, until the last of it.
    pub fn pieces(&self) -> Option<Receiver<Received>> {
        self.source.as_ref().map(|(pieces, _)| pieces.clone())
    }

    /// Adds what its thread has sent. `None` is the end of the thread.
    pub fn receive(&mut self, piece: Option<Received>) {
        match piece {
            Some(piece) => self.push(piece),
            None => self.source = None,
        }
    }

    /// Adds what was received, and drops the oldest lines beyond the limits.
    pub fn push(&mut self, (channel, bytes): Received) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_open) = part.strip_suffix(b"\n").map_or((part, true), |text| (text, false));
            let fits = |last: &&mut ViewLine| {
                let length = last.bytes.len().saturating_add(text.len());
                last.is_open && last.channel == channel && length <= MAX_PIECE
            };
            match self.lines.back_mut().filter(fits) {
                Some(last) => {
                    last.bytes.extend_from_slice(text);
                    last.is_open = is_open;
                }
                None => self.lines.push_back(ViewLine { channel, bytes: text.to_vec(), is_open }),
            }
            self.bytes = self.bytes.saturating_add(text.len());
            self.trim();
        }
    }

    fn trim(&mut self) {
        while self.lines.len() > MAX_LINES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes = self.bytes.saturating_sub(oldest.bytes.len());
            self.dropped = self.dropped.saturating_add(1);
            // The same lines stay on the page.
            self.first = self.first.saturating_sub(1);
            self.found = self.found.and_then(|found| found.checked_sub(1));
        }
    }

    /// Returns the lines that fit into `room` lines.
    pub fn page(&mut self, room: usize) -> impl Iterator<Item = &ViewLine> {
        self.page = room.max(1);
        self.first = if self.follows { self.last_first() } else { self.first.min(self.last_first()) };
        self.lines.iter().skip(self.first).take(room)
    }

    fn last_first(&self) -> usize {
        self.lines.len().saturating_sub(self.page)
    }

    fn move_to(&mut self, first: usize) {
        self.first = first.min(self.last_first());
        self.follows = self.first == self.last_first();
    }

    /// Handles a key. Returns `true` if it closes the view.
    pub fn pressed(&mut self, key: KeyCode) -> bool {
        self.notice = None;
        if self.prompt.is_some() {
            if let Some(text) = Prompt::pressed(&mut self.prompt, key) {
                // Without a text, the last one is searched for again.
                if !text.is_empty() {
                    self.search = text;
                }
                self.found = None;
                self.find(true);
            }
            return false;
        }
        match key {
            KeyCode::Esc | KeyCode::Char('q') => return true,
            KeyCode::Char('/') => self.prompt = Some(Prompt::default()),
            KeyCode::Char('n') => self.find(true),
            KeyCode::Char('N') => self.find(false),
            KeyCode::Char('F') => self.move_to(usize::MAX),
            KeyCode::Left => self.left = self.left.saturating_sub(STEP),
            KeyCode::Right => self.left = self.left.saturating_add(STEP).min(MAX_PIECE),
            key => scrolled(key, self.first, self.page).into_iter().for_each(|first| self.move_to(first)),
        }
        false
    }

    /// Moves the page to the next or the previous line with the text that was searched for, from the line
    /// that was found last or the first of the page on. Continues at the other end.
    fn find(&mut self, forward: bool) {
        let (count, finder) = (self.lines.len(), memmem::Finder::new(&self.search));
        let from = match (self.found, forward) {
            (Some(found), true) => found.saturating_add(1),
            (found, _) => found.unwrap_or(self.first),
        };
        let after = (from..count).chain(0..from.min(count));
        let has_text =
            |index: &usize| self.lines.get(*index).is_some_and(|line| finder.find(&line.bytes).is_some());
        let found = if forward { { after }.find(has_text) } else { after.rev().find(has_text) };
        match found.filter(|_| !self.search.is_empty()) {
            None => self.notice = Some(format!("not found: {}", self.search)),
            Some(index) => {
                self.found = Some(index);
                if !(self.first..self.first.saturating_add(self.page)).contains(&index) {
                    self.move_to(index);
                }
                self.follows = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: Option<Channel> = Some(Channel::Stdout);

    fn texts(view: &mut StreamView, room: usize) -> Vec<String> {
        view.page(room).map(|line| String::from_utf8_lossy(&line.bytes).into_owned()).collect()
    }

    fn view_of(lines: usize) -> StreamView {
        let mut view = StreamView { follows: true, ..StreamView::default() };
        (0..lines).for_each(|line| view.push((OUT, format!("{line}\n").into())));
        view
    }

    #[test]
    fn parts_of_a_line_are_joined_unless_another_channel_or_a_note_is_between() {
        let mut view = StreamView::default();
        for part in ["a", "b\n\nc", "d\n", "e"] {
            view.push((OUT, part.into()));
        }
        view.push((None, "gap\n".into()));
        view.push((OUT, "f".into()));
        view.push((Some(Channel::Stderr), "g\n".into()));
        assert_eq!(texts(&mut view, 99), ["ab", "", "cd", "e", "gap", "f", "g"]);
        view.push((OUT, vec![b'x'; 2 * MAX_PIECE]));
        view.push((OUT, b"y".into()));
        assert_eq!(view.lines.len(), 9, "a long line is divided");
    }

    #[test]
    fn older_lines_are_dropped_beyond_the_limits_and_the_page_stays() {
        let mut view = view_of(MAX_LINES);
        assert_eq!((texts(&mut view, 2), view.dropped), (vec!["9998".into(), "9999".into()], 0));
        view.pressed(KeyCode::Char('g'));
        view.pressed(KeyCode::PageDown);
        assert_eq!(texts(&mut view, 2), ["2", "3"]);
        view.push((OUT, b"a\nb\n".into()));
        assert_eq!((texts(&mut view, 2), view.dropped), (vec!["2".into(), "3".into()], 2));
        view.push((OUT, b"c\n".into()));
        assert_eq!(texts(&mut view, 1), ["3"], "line 2 is gone");
        for _ in 0..2 * MAX_BYTES / MAX_PIECE {
            view.push((OUT, [&vec![b'x'; MAX_PIECE - 1][..], b"\n"].concat()));
        }
        let bytes: usize = view.lines.iter().map(|line| line.bytes.len()).sum();
        assert!(bytes <= MAX_BYTES && bytes > MAX_BYTES - MAX_PIECE && bytes == view.bytes);
    }

    #[test]
    fn the_page_follows_the_end_until_it_is_scrolled_and_again_at_the_end() {
        let mut view = view_of(10);
        assert_eq!(texts(&mut view, 3), ["7", "8", "9"]);
        view.pressed(KeyCode::Up);
        view.push((OUT, b"10\n".into()));
        assert_eq!((texts(&mut view, 3), view.follows), (["6", "7", "8"].map(String::from).to_vec(), false));
        for key in [KeyCode::Char('F'), KeyCode::Char('G'), KeyCode::End] {
            view.pressed(KeyCode::Char('g'));
            assert_eq!((texts(&mut view, 3)[0].as_str(), view.follows), ("0", false));
            view.pressed(key);
            assert!(view.follows, "{key:?}");
        }
        view.push((OUT, b"11\n".into()));
        assert_eq!(texts(&mut view, 3), ["9", "10", "11"]);
        for key in [KeyCode::Esc, KeyCode::Char('q')] {
            assert!(view.pressed(key), "{key:?}");
        }
    }

    #[test]
    fn a_search_finds_the_next_and_the_previous_line_and_goes_round() {
        let mut view = view_of(40);
        texts(&mut view, 3);
        let mut keys = |keys: &str| {
            assert!(keys.chars().all(|letter| !view.pressed(KeyCode::Char(letter))));
            if keys.starts_with('/') {
                view.pressed(KeyCode::Enter);
            }
            (view.found, view.notice.clone())
        };
        // From the page on, which shows the end.
        assert_eq!(keys("/5"), (Some(5), None));
        let found = ["n", "n", "n", "n", "N", "N", "N", "N"].map(|key| keys(key).0.unwrap());
        assert_eq!(found, [15, 25, 35, 5, 35, 25, 15, 5]);
        assert_eq!(keys("/"), (Some(5), None), "the same text again");
        assert_eq!(keys("/x").1.as_deref(), Some("not found: x"));
        assert!(!view.follows && texts(&mut view, 3).contains(&"5".to_owned()));
        let before = view.search.clone();
        view.pressed(KeyCode::Char('/'));
        assert!(!view.pressed(KeyCode::Esc), "Esc ends the prompt only");
        assert!(view.prompt.is_none() && view.search == before);
    }
}
