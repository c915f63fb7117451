//! Output of registrations without a callback: to our own stdout or stderr, lines of different
//! ranks not mixed.
//!
//! It is what PMIx promises for a callback that is NULL. A launcher that wants more (tags, files,
//! times) has callbacks, or the `iof` command.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use iof_proto::{Channel, Proc};
use iof_tool::{Gap, Origin};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// For how long the begin of a line waits for its end.
const PATIENCE: Duration = Duration::from_millis(100);
/// So much of a line waits for its end.
const MAX_LINE: usize = 64 << 10;

type Stream = (u32, Proc, Channel, bool);

/// The begins of lines.
#[derive(Default)]
pub(crate) struct Prints {
    begun: BTreeMap<Stream, (Instant, Vec<u8>)>,
}

impl Prints {
    /// Writes what is whole, and keeps the rest. `bytes` are empty at the end of the stream.
    pub(crate) fn print(&mut self, origin: &Origin<'_>, bytes: &[u8]) {
        let stream = (origin.handler, origin.source.clone(), origin.channel, origin.logged);
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at.saturating_add(1));
        let (lines, rest) = bytes.split_at(whole);
        let (_, mut begun) = self.begun.remove(&stream).unwrap_or_else(|| (Instant::now(), Vec::new()));
        if bytes.is_empty() || !lines.is_empty() {
            write(origin.channel, &begun);
            write(origin.channel, lines);
            begun.clear();
        }
        begun.extend_from_slice(rest);
        if begun.len() >= MAX_LINE {
            write(origin.channel, &begun);
        } else if !begun.is_empty() {
            self.begun.insert(stream, (Instant::now(), begun));
        }
    }

    /// Says that bytes are missing: what was printed has them nowhere.
    pub(crate) fn missing(&mut self, origin: &Origin<'_>, gap: &Gap) {
        // What came before them is written before.
        self.print(origin, &[]);
        let (rank, channel, Gap { offset, lost }) = (origin.source.rank, origin.channel, gap);
        let line = format!("iof: rank {rank} {channel}: {lost} bytes are missing at offset {offset}\n");
        write(Channel::Stderr, line.as_bytes());
    }

    /// Writes what has waited long enough; gives when to look again.
    pub(crate) fn flush(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let due = |since: &Instant| since.checked_add(PATIENCE);
        self.begun.retain(|(_, _, channel, _), (since, begun)| {
            let waits = due(since).is_some_and(|due| due > now);
            if !waits {
                write(*channel, begun);
            }
            waits
        });
        self.begun.values().filter_map(|(since, _)| due(since)).min()
    }

    /// Writes what is left.
    pub(crate) fn end(&mut self) {
        for ((_, _, channel, _), (_, begun)) in std::mem::take(&mut self.begun) {
            write(channel, &begun);
        }
    }
}

/// Writes all of it, waiting as long as that takes, also where the program has made its output
/// non-blocking. That the reader of our output has gone is the program's to find out.
fn write(channel: Channel, mut bytes: &[u8]) {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let to = if channel == Channel::Stdout { stdout.as_fd() } else { stderr.as_fd() };
    while !bytes.is_empty() {
        match nix::unistd::write(to, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                // What it can't tell the next write does.
                let _ = poll(&mut [PollFd::new(to, PollFlags::POLLOUT)], PollTimeout::NONE);
            }
            Err(_) => return,
        }
    }
}
