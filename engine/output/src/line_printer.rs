//! A printer without a thread, for programs that receive the bytes of streams themselves.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use iof_proto::{Channel, Proc};
use iof_tool::{LastRead, Origin};

use crate::batch::Batch;
use crate::destination::{Destination, OpenDestination};
use crate::files::FileId;
use crate::format::label::{Label, LabelSource};
use crate::format::style::{OpenLine, Run, Style};
use crate::lines::{Decision, FlushClock, FoundBytes, Hold, HoldRules, LineHolder, Rest};
use crate::options::Options;
use crate::printer::PrintError;
use crate::processes::Processes;
use crate::stream::new_key;

/// A process, its channel, and whether the stream contains logged messages.
type StreamKey = (Proc, Channel, bool);

/// Writes the bytes of streams line by line to one [`Destination`].
///
/// Like a [`Printer`](crate::Printer), it writes whole lines, and a part of a line only if its end
/// is late ([`FlushTimeout`](crate::FlushTimeout)). Unlike a printer, it has neither a thread nor a tool: its caller
/// passes the bytes, and they are written in that order. The calls block while the destination is
/// full. A FIFO without a reader cannot be written.
#[derive(Debug)]
pub struct LinePrinter {
    destination: OpenDestination,
    options: Options,
    clock: FlushClock,
    streams: BTreeMap<StreamKey, Stream>,
}

/// The state of a stream.
#[derive(Debug)]
struct Stream {
    key: u64,
    label: Label,
    file: Option<FileId>,
    part: LineHolder,
}

impl LinePrinter {
    /// Creates a printer. Writes nothing yet.
    pub fn new(destination: impl Into<Destination>, options: Options) -> LinePrinter {
        let destination = destination.into().open(&options);
        let clock = FlushClock::new(&options.flush_timeout, Instant::now());
        LinePrinter { destination, options, clock, streams: BTreeMap::new() }
    }

    /// Returns whether the engine has to be queried for the process of a stream
    /// ([`Processes::lacks`]), because the output shows what it knows.
    pub fn lacks(&self, origin: &Origin<'_>, processes: &Processes) -> bool {
        let shows = match &self.destination {
            OpenDestination::Output(_) => false,
            OpenDestination::Files(open) => open.files.nprocs.is_none() || open.files.shows_host(),
        };
        (shows || self.options.style.shows_process())
            && !self.streams.contains_key(&key(origin))
            && processes.lacks(origin.source)
    }

    /// Writes the whole lines of `run`, which continues the stream, and keeps the rest. `last` is the
    /// newest read of the stream, if it is known.
    ///
    /// # Errors
    /// Returns [`PrintError`] if the destination can't be written. The bytes may be lost.
    pub fn print(
        &mut self,
        origin: &Origin<'_>,
        run: &Run<'_, '_>,
        last: Option<LastRead>,
        processes: &Processes,
    ) -> Result<(), PrintError> {
        let LinePrinter { destination, options, clock, streams } = self;
        clock.advance(Instant::now());
        let stream = match streams.entry(key(origin)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Stream::begin(origin, destination, options, processes)?),
        };
        let found = FoundBytes {
            bytes: run.bytes,
            limit: run.bytes.len(),
            is_last: false,
            has_more: false,
            max_stay: 0,
            is_stalled: false,
        };
        let rules = stream.rules(options, clock, destination, *origin);
        let Decision { write, rest } = stream.part.decide(&found, &rules, || last);
        let (lines, kept) = run.bytes.split_at(write.min(run.bytes.len()));
        if !lines.is_empty() {
            let end = stream.part.complete(lines);
            let offset = run.offset.saturating_add(end as u64);
            let lines = Run { bytes: lines.get(end..).unwrap_or_default(), offset, times: run.times };
            stream.write(origin, destination, &options.style, Some(&lines))?;
        }
        if rest == Rest::Copy {
            let offset = run.offset.saturating_add(write as u64);
            let first = run.times.iter().rev().find(|(start, _)| *start <= offset);
            stream.part.copy(kept, offset, first.map(|(_, time)| *time));
        }
        Ok(())
    }

    /// Writes the parts of lines that have waited for their ends for long enough. Returns when to
    /// call this again: `None` if no part waits for a limited time.
    ///
    /// # Errors
    /// The same as [`LinePrinter::print`].
    pub fn flush(&mut self, now: Instant) -> Result<Option<Instant>, PrintError> {
        let LinePrinter { destination, options, clock, streams } = self;
        clock.advance(now);
        let mut waits = false;
        for ((source, channel, logged), stream) in streams {
            if !stream.part.is_timed() {
                continue;
            }
            let origin = Origin { handler: 0, source, channel: *channel, logged: *logged };
            let rules = stream.rules(options, clock, destination, origin);
            // The wait is that of the last read. A newer one has bytes, which are printed first.
            if stream.part.still_waits(false, &rules, || None) {
                waits = true;
            } else {
                stream.write(&origin, destination, &options.style, None)?;
            }
        }
        Ok(clock.next_check().filter(|_| waits))
    }

    /// Writes what a stream has begun before bytes that are missing. If lines are tagged, ends the
    /// line.
    ///
    /// # Errors
    /// The same as [`LinePrinter::print`].
    pub fn cut(&mut self, origin: &Origin<'_>) -> Result<(), PrintError> {
        let LinePrinter { destination, options, streams, .. } = self;
        let Some(stream) = streams.get_mut(&key(origin)) else { return Ok(()) };
        let Options { style, raw, .. } = options;
        stream.write(origin, destination, style, None)?;
        stream.label.begun = None;
        let may_mix = *raw && style.is_plain();
        write(destination, stream.file, origin, |open, batch| {
            if *open == Some(stream.key) && !may_mix {
                style.cut_line(open, batch);
            }
        })
    }

    /// Writes the rest of a stream, which has ended. Creates its file if it had no bytes.
    ///
    /// # Errors
    /// The same as [`LinePrinter::print`].
    pub fn end(&mut self, origin: &Origin<'_>, processes: &Processes) -> Result<(), PrintError> {
        let mut stream = match self.streams.remove(&key(origin)) {
            Some(stream) => stream,
            None => Stream::begin(origin, &mut self.destination, &self.options, processes)?,
        };
        stream.write(origin, &mut self.destination, &self.options.style, None)
    }

    /// Writes the rests of all streams.
    ///
    /// # Errors
    /// The same as [`LinePrinter::print`].
    pub fn end_all(&mut self) -> Result<(), PrintError> {
        for ((source, channel, logged), mut stream) in std::mem::take(&mut self.streams) {
            let origin = Origin { handler: 0, source: &source, channel, logged };
            stream.write(&origin, &mut self.destination, &self.options.style, None)?;
        }
        Ok(())
    }
}

fn key(origin: &Origin<'_>) -> StreamKey {
    (origin.source.clone(), origin.channel, origin.logged)
}

impl Stream {
    fn begin(
        origin: &Origin<'_>,
        destination: &mut OpenDestination,
        options: &Options,
        processes: &Processes,
    ) -> Result<Stream, PrintError> {
        let Origin { channel, logged, .. } = *origin;
        let Proc { nspace, rank } = origin.source.clone();
        let (host, pid) = processes.find(origin.source);
        let source = LabelSource { nspace, rank, channel, logged, host, pid };
        let mut file = None;
        if let OpenDestination::Files(open) = destination {
            let (id, _) = open.file_for(&source, || processes.count(&source.nspace));
            let failed = |error| PrintError::File { proc: origin.source.clone(), channel, error };
            open.begin(id).map_err(failed)?;
            file = Some(id);
        }
        Ok(Stream { key: new_key(), label: options.style.label(&source), file, part: LineHolder::default() })
    }

    /// Returns the rules for the bytes of the stream.
    fn rules<'a>(
        &self,
        options: &'a Options,
        clock: &'a FlushClock,
        destination: &mut OpenDestination,
        origin: Origin<'a>,
    ) -> HoldRules<'a> {
        let (audience, open) = destination.reader_and_line(self.file);
        let Options { style, raw, flush_timeout: timeout, .. } = options;
        let hold = match open == Some(self.key) {
            _ if *raw => Hold::Never,
            _ if style.is_by_fragment() => Hold::Characters,
            true if style.joins_parts() => Hold::Continued,
            _ => Hold::Lines,
        };
        HoldRules { hold, timeout, clock, audience, origin }
    }

    /// Writes the part that waits, and then `lines`.
    fn write(
        &mut self,
        origin: &Origin<'_>,
        destination: &mut OpenDestination,
        style: &Style,
        lines: Option<&Run<'_, '_>>,
    ) -> Result<(), PrintError> {
        let Stream { key, label, file, part } = self;
        if lines.is_none() {
            part.end();
        }
        part.flush(|bytes, offset, time| {
            let time = time.map(|time| (offset, time));
            let part = Run { bytes, offset, times: time.as_slice() };
            let runs = [Some(&part), lines];
            let runs = runs.into_iter().flatten().filter(|run| !run.bytes.is_empty());
            write(destination, *file, origin, |open, batch| {
                for run in runs {
                    style.write(run, label, (*key, open), batch, Batch::add);
                }
            })
        })
    }
}

/// Writes what `build` adds to a batch.
fn write<'a>(
    destination: &mut OpenDestination,
    file: Option<FileId>,
    origin: &Origin<'_>,
    build: impl FnOnce(&mut OpenLine, &mut Batch<'a>),
) -> Result<(), PrintError> {
    let mut batch = Batch::default();
    match destination {
        OpenDestination::Output(output) => {
            let (mut open, _busy) = output.lock();
            build(&mut open, &mut batch);
            output.write(&mut batch.slices()).map_err(PrintError::Write)
        }
        OpenDestination::Files(files) => {
            let Some(id) = file else { return Ok(()) };
            let mut open = files.open_line(id);
            build(&mut open, &mut batch);
            if batch.is_empty() {
                return Ok(());
            }
            files.write(id, batch.slices(), open).map(drop).map_err(|error| {
                let (proc, channel) = (origin.source.clone(), origin.channel);
                PrintError::File { proc, channel, error }
            })
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::time::Duration;

    use iof_proto::{Nspace, Rank};
    use iof_tool::Interaction;

    use super::*;
    use crate::files::tests::files;
    use crate::format::choice::Choice;
    use crate::format::style::StyleExtras;
    use crate::output::Output;

    fn options(choice: &str) -> Options {
        let choice: Choice = choice.parse().unwrap();
        Options { style: Style::new(&choice, &StyleExtras::default()), raw: choice.raw, ..Options::default() }
    }

    fn proc(rank: u32) -> Proc {
        Proc::new(Nspace::new("job").unwrap(), Rank(rank))
    }

    fn origin(source: &Proc) -> Origin<'_> {
        Origin { handler: 1, source, channel: Channel::Stdout, logged: false }
    }

    /// A printer to a pipe, and what arrives there.
    struct Rig {
        printer: LinePrinter,
        arrived: File,
    }

    impl Rig {
        fn new(choice: &str) -> Rig {
            let (read, write) = nix::unistd::pipe().unwrap();
            let printer = LinePrinter::new(Output::new(write).unwrap(), options(choice));
            Rig { printer, arrived: read.into() }
        }

        fn print(&mut self, rank: u32, bytes: &str) {
            self.print_read(rank, bytes, None);
        }

        fn print_read(&mut self, rank: u32, bytes: &str, last: Option<LastRead>) {
            let run = Run { bytes: bytes.as_bytes(), offset: 0, times: &[] };
            self.printer.print(&origin(&proc(rank)), &run, last, &Processes::default()).unwrap();
        }

        /// Flushes until no part waits for a limited time. Returns the time that has passed for the
        /// printer.
        fn flush_all(&mut self) -> Duration {
            let began = Instant::now();
            let mut now = began;
            while let Some(due) = self.printer.flush(now).unwrap() {
                now = due;
            }
            now.duration_since(began)
        }

        fn read(&mut self) -> String {
            let mut bytes = vec![0; 1 << 16];
            let count = self.arrived.read(&mut bytes).unwrap();
            String::from_utf8(bytes[..count].to_vec()).unwrap()
        }
    }

    #[test]
    fn lines_of_several_streams_stay_whole_and_parts_wait_for_their_ends() {
        let mut rig = Rig::new("rank");
        rig.print(0, "one\ntw");
        rig.print(1, "a\n");
        rig.print(0, "o\nthr");
        rig.printer.end(&origin(&proc(0)), &Processes::default()).unwrap();
        rig.print(1, "b\n");
        let expected =
            "[0]<stdout>: one\n[1]<stdout>: a\n[0]<stdout>: two\n[0]<stdout>: thr\n[1]<stdout>: b\n";
        assert_eq!(rig.read(), expected);
    }

    #[test]
    fn a_part_is_written_when_its_time_has_passed_or_at_once_if_output_is_raw() {
        let mut rig = Rig::new("tag");
        rig.print(0, "prompt");
        let waited = rig.flush_all();
        assert!((900..1100).contains(&waited.as_millis()), "{waited:?}");
        assert_eq!(rig.read(), "[job,0]<stdout>: prompt");
        let mut rig = Rig::new(":raw");
        rig.print(0, "prompt");
        assert_eq!(rig.printer.flush(Instant::now()).unwrap(), None);
        assert_eq!(rig.read(), "prompt");
    }

    #[test]
    fn a_part_of_a_flushed_buffer_waits_as_its_read_was_when_it_was_printed() {
        let mut rig = Rig::new("tag");
        let read = |interaction| Some(LastRead { len: 4096, interaction, is_answer: false });
        rig.print_read(0, "nobody answers", read(Interaction::None));
        rig.print_read(1, "one may answer", read(Interaction::Piped));
        let waited = rig.flush_all();
        assert!((9900..10_500).contains(&waited.as_millis()), "{waited:?}");
        assert_eq!(rig.read(), "[job,1]<stdout>: one may answer");
        rig.print(0, "\n");
        assert_eq!(rig.read(), "\n[job,0]<stdout>: nobody answers\n");
    }

    #[test]
    fn a_gap_ends_the_line_before_it_and_the_rest_is_a_line_of_its_own() {
        let mut rig = Rig::new("rank");
        rig.print(0, "begin");
        rig.printer.cut(&origin(&proc(0))).unwrap();
        rig.print(0, "end\n");
        rig.print(0, "more");
        rig.printer.end_all().unwrap();
        assert_eq!(rig.read(), "[0]<stdout>: begin\n[0]<stdout>: end\n[0]<stdout>: more");
    }

    #[test]
    fn the_engine_is_asked_only_for_processes_that_the_output_shows() {
        let mut processes = Processes::default();
        let source = proc(0);
        let lacks =
            |choice, processes: &Processes| Rig::new(choice).printer.lacks(&origin(&source), processes);
        assert!(!lacks("tag", &processes) && lacks("tag-detailed", &processes));
        processes.learn(&source, Vec::new());
        assert!(!lacks("tag-detailed", &processes));
    }

    #[test]
    fn each_rank_has_its_file_and_a_file_that_cannot_be_written_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let tree = |name: &str| files(crate::FilePlace::Tree(directory.path().join(name)));
        let mut printer = LinePrinter::new(tree("out"), options("rank"));
        let run = Run { bytes: b"text\n", offset: 0, times: &[] };
        for rank in [0, 1] {
            printer.print(&origin(&proc(rank)), &run, None, &Processes::default()).unwrap();
        }
        printer.end(&origin(&proc(2)), &Processes::default()).unwrap();
        let path = |rank| directory.path().join(format!("out/job/rank.{rank}/stdout"));
        let contents = [0, 1, 2].map(|rank| fs::read_to_string(path(rank)).unwrap());
        assert_eq!(contents, ["[0]<stdout>: text\n", "[1]<stdout>: text\n", ""]);
        fs::write(directory.path().join("file"), "").unwrap();
        let mut printer = LinePrinter::new(tree("file"), options("rank"));
        let refused = printer.print(&origin(&proc(0)), &run, None, &Processes::default());
        assert!(matches!(refused, Err(PrintError::File { .. })), "{refused:?}");
    }
}
