//! Prints the output of registrations without a callback to the program's own stdout or stderr.
//! Lines of different ranks are not mixed.
//!
//! PMIx specifies this for a callback that is NULL. Tags, files and times need a callback, or the
//! `iof` command.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use iof_proto::{Channel, Proc};
use iof_tool::{Gap, Origin};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The longest time for which the beginning of a line waits for its end.
const LINE_TIMEOUT: Duration = Duration::from_millis(100);
/// The number of bytes after which an unfinished line is written, too.
const MAX_LINE: usize = 64 << 10;

type Stream = (u32, Proc, Channel, bool);

/// The output of all streams, with the unfinished line of each.
#[derive(Default)]
pub(crate) struct LinePrinter {
    unfinished: BTreeMap<Stream, (Instant, Vec<u8>)>,
}

impl LinePrinter {
    /// Writes complete lines, and keeps the rest. `bytes` is empty at the end of the stream.
    pub(crate) fn print(&mut self, origin: &Origin<'_>, bytes: &[u8]) {
        let stream = (origin.handler, origin.source.clone(), origin.channel, origin.logged);
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index.saturating_add(1));
        let (lines, rest) = bytes.split_at(end);
        let (_, mut unfinished) =
            self.unfinished.remove(&stream).unwrap_or_else(|| (Instant::now(), Vec::new()));
        if bytes.is_empty() || !lines.is_empty() {
            write(origin.channel, &unfinished);
            write(origin.channel, lines);
            unfinished.clear();
        }
        unfinished.extend_from_slice(rest);
        if unfinished.len() >= MAX_LINE {
            write(origin.channel, &unfinished);
        } else if !unfinished.is_empty() {
            self.unfinished.insert(stream, (Instant::now(), unfinished));
        }
    }

    /// Reports on stderr that bytes are missing, because stdout does not show it.
    pub(crate) fn missing(&mut self, origin: &Origin<'_>, gap: &Gap) {
        // Output from before the gap is written first.
        self.print(origin, &[]);
        let (rank, channel, Gap { offset, lost }) = (origin.source.rank, origin.channel, gap);
        let line = format!("iof: rank {rank} {channel}: {lost} bytes are missing at offset {offset}\n");
        write(Channel::Stderr, line.as_bytes());
    }

    /// Writes unfinished lines whose time has passed. Returns the time of the next such line.
    pub(crate) fn flush(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let due = |since: &Instant| since.checked_add(LINE_TIMEOUT);
        self.unfinished.retain(|(_, _, channel, _), (since, unfinished)| {
            let waits = due(since).is_some_and(|due| due > now);
            if !waits {
                write(*channel, unfinished);
            }
            waits
        });
        self.unfinished.values().filter_map(|(since, _)| due(since)).min()
    }

    /// Writes all unfinished lines.
    pub(crate) fn end(&mut self) {
        for ((_, _, channel, _), (_, unfinished)) in std::mem::take(&mut self.unfinished) {
            write(channel, &unfinished);
        }
    }
}

/// Writes all bytes, and waits for that, even if the program has made its output non-blocking.
/// Errors are ignored: the program itself notices that the reader of its output has gone.
fn write(channel: Channel, mut bytes: &[u8]) {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let output = if channel == Channel::Stdout { stdout.as_fd() } else { stderr.as_fd() };
    while !bytes.is_empty() {
        match nix::unistd::write(output, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                // An error of poll is ignored, because the next write reports it.
                let _ = poll(&mut [PollFd::new(output, PollFlags::POLLOUT)], PollTimeout::NONE);
            }
            Err(_) => return,
        }
    }
}
