//! A printer of a tool that is connected to a scripted engine, which announces streams late.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{PipeReader, Read, pipe};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use iof_output::{Choice, Destination, FilePlace, Files, Fold, Options, Output, Printer, Style, StyleExtras};
use iof_proto::{Channel, Channels, Missed, Proc, Rank, ToTool};
use iof_shm_ring::{Gap, Stream, notify};
use iof_testing::TIMEOUT;
use iof_testing::scripted::{Engine, connect, nspace, pull, stream};

const OUTPUT: Channels = Channels::STDOUT.union(Channels::STDERR).union(Channels::STDDIAG);

/// A stream to announce: its rank, its channel, and the texts that were read from it, with the times
/// of the reads.
type Announced<'a> = (u32, Channel, &'a [(&'a str, u64)]);

/// A printer, and the engine whose streams it writes.
struct Rig {
    engine: Engine,
    printer: Printer,
    streams: Vec<Stream>,
}

impl Rig {
    /// Starts a printer of all channels to `destination`. Also returns the query by which the
    /// printer waits for the streams that exist.
    fn start(destination: impl Into<Destination>) -> (Rig, u32) {
        let (engine, mut tool) = connect();
        pull(&engine, &mut tool, OUTPUT, &[]);
        let on_gap = |proc: &_, _, gap| panic!("{proc}: {gap:?}");
        let printer = Printer::start(tool, destination, Options::default(), on_gap).unwrap();
        let barrier = engine.receive_barrier();
        (Rig { engine, printer, streams: Vec::new() }, barrier)
    }

    /// Starts a printer to `destination`, which finds `streams` at its start. More streams may be
    /// announced later.
    fn new(destination: impl Into<Destination>, streams: &[Announced<'_>]) -> Rig {
        let (mut rig, barrier) = Rig::start(destination);
        streams.iter().for_each(|(rank, channel, reads)| rig.announce(*rank, *channel, reads));
        rig.engine.answer_barrier(barrier);
        rig
    }

    fn announce(&mut self, rank: u32, channel: Channel, reads: &[(&str, u64)]) {
        self.streams.push(self.engine.announce(rank, channel, stream(reads)));
    }

    /// Ends all streams and the printer. Panics if the printer has sent a further message.
    fn end(mut self) {
        self.streams.iter_mut().for_each(Stream::complete);
        notify(&self.streams);
        let ended = ToTool::JobEnded { handler: 1, nspace: nspace(), run: 1, exit_code: Some(0), skipped: 0 };
        self.engine.send(&[ToTool::Announced { handler: 1 }, ended]);
        self.printer.join().unwrap();
        assert_eq!(self.engine.next_request(), None);
    }
}

/// Returns an output into a pipe, and the end to read from.
fn output() -> (Output, PipeReader) {
    let (reader, writer) = pipe().unwrap();
    (Output::new(&writer).unwrap(), reader)
}

/// Reads `text` from the printer's pipe.
fn expect(reader: &mut PipeReader, text: &str) {
    let mut read = vec![0; text.len()];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8(read).unwrap(), text);
}

fn in_directory(path: &Path) -> Files {
    Files { nprocs: Some(999), ..Files::at(FilePlace::Tree(path.to_owned())) }
}

#[test]
fn streams_that_were_missed_entirely_are_reported_with_their_rank_and_channel() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, OUTPUT, &[]);
    let (gaps, reported) = channel();
    let on_gap = move |proc: &Proc, channel, gap| gaps.send((proc.rank, channel, gap)).unwrap();
    let printer = Printer::start(tool, output().0, Options::default(), on_gap).unwrap();
    engine.answer_barrier(engine.receive_barrier());
    let ranks = [Rank(3), Rank::WILDCARD];
    let messages = ranks.map(|rank| {
        let missed = Missed {
            nspace: nspace(),
            rank,
            channel: Channel::Stderr,
            streams: 2,
            ended: Vec::new(),
            offset: None,
            bytes: 7,
        };
        ToTool::Missed { handler: 1, missed }
    });
    engine.send(&messages);
    let ended = ToTool::JobEnded { handler: 1, nspace: nspace(), run: 1, exit_code: Some(0), skipped: 0 };
    engine.send(&[ToTool::Announced { handler: 1 }, ended]);
    assert_eq!(printer.join().unwrap().missed, 4);
    let expected = ranks.map(|rank| (rank, Channel::Stderr, Gap { offset: 0, lost: 7 }));
    assert_eq!(reported.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_folded_line_is_written_before_a_gap_behind_it_is_reported() {
    let (engine, mut tool) = connect();
    pull(&engine, &mut tool, OUTPUT, &[]);
    let (output, mut reader) = output();
    let (lines, reported) = channel();
    let on_gap = move |proc: &Proc, _, gap: Gap| {
        let mut read = [0; 64];
        let len = reader.read(&mut read).unwrap();
        lines.send((proc.rank, gap.lost, String::from_utf8_lossy(&read[..len]).into_owned())).unwrap();
    };
    let style = Style::new(&"rank".parse::<Choice>().unwrap(), &StyleExtras::default());
    let fold = Some(Fold { whole: false, on_full: |_| panic!("little is held") });
    // Announced before the printer looks, so that one query is for both.
    let mut streams: Vec<Stream> = [0, 1]
        .map(|rank| {
            let mut stream = stream(&[("same\n", 1)]);
            if rank == 1 {
                stream.discard(3, 2);
            }
            engine.announce(rank, Channel::Stdout, stream)
        })
        .into();
    let printer =
        Printer::start(tool, output, Options { style, fold, ..Options::default() }, on_gap).unwrap();
    let barrier = engine.receive_barrier();
    // Before the printer goes on: without the end of the job it asks for further streams, once or not at all.
    streams.iter_mut().for_each(Stream::complete);
    notify(&streams);
    let ended = ToTool::JobEnded { handler: 1, nspace: nspace(), run: 1, exit_code: Some(0), skipped: 0 };
    engine.send(&[ToTool::Announced { handler: 1 }, ended]);
    engine.answer_barrier(barrier);
    printer.join().unwrap();
    assert_eq!(reported.iter().collect::<Vec<_>>(), [(Rank(1), 3, "[0-1]<stdout>: same\n".to_owned())]);
}

#[test]
fn a_stream_that_was_read_first_but_is_announced_late_is_written_first() {
    let (output, mut reader) = output();
    let mut rig = Rig::new(output, &[(0, Channel::Stdout, &[("out\n", 2)])]);
    let barrier = rig.engine.receive_barrier();
    rig.announce(0, Channel::Stderr, &[("err\n", 1)]);
    rig.engine.answer_barrier(barrier);
    expect(&mut reader, "err\nout\n");
    rig.end();
}

#[test]
fn one_query_is_for_all_processes_whose_bytes_were_found_and_for_no_others() {
    // More than one write takes.
    const RANKS: u32 = 150;
    let (output, mut reader) = output();
    let texts: Vec<String> = (0..RANKS).map(|rank| format!("out {rank}\n")).collect();
    let reads: Vec<[(&str, u64); 1]> = texts.iter().map(|text| [(text.as_str(), 2)]).collect();
    let streams = (0..).zip(&reads).map(|(rank, reads)| (rank, Channel::Stdout, &reads[..]));
    let streams: Vec<Announced<'_>> = streams.chain([(RANKS, Channel::Stdout, &[][..])]).collect();
    let mut rig = Rig::new(output, &streams);
    rig.engine.answer_barrier(rig.engine.receive_barrier());
    expect(&mut reader, &texts.concat());
    // These groups are whole.
    rig.streams[0].push(b"more\n", 3);
    notify([&rig.streams[0]]);
    expect(&mut reader, "more\n");
    // The last one had no bytes then.
    rig.streams.last_mut().unwrap().push(b"out\n", 5);
    notify([rig.streams.last().unwrap()]);
    let barrier = rig.engine.receive_barrier();
    rig.announce(RANKS, Channel::Stderr, &[("err\n", 4)]);
    rig.engine.answer_barrier(barrier);
    expect(&mut reader, "err\nout\n");
    rig.end();
}

#[test]
fn a_file_waits_only_for_streams_that_can_go_there() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::new(
        in_directory(directory.path()),
        &[
            (0, Channel::Stderr, &[("err\n", 1)]),
            (0, Channel::Stddiag, &[]),
            (1, Channel::Stdout, &[("out\n", 1)]),
        ],
    );
    let begin = Instant::now();
    for (name, text) in [("rank.000/stderr", "err\n"), ("rank.001/stdout", "out\n")] {
        let path = directory.path().join("job").join(name);
        while fs::read_to_string(&path).unwrap_or_default() != text {
            assert!(begin.elapsed() < TIMEOUT, "{name}");
            thread::sleep(Duration::from_millis(1));
        }
    }
    rig.end();
}

#[test]
fn streams_that_end_while_others_are_awaited_leave_their_files_to_their_ranks() {
    // More than one write takes, so that most have ended when the last one is found.
    const RANKS: u32 = 100;
    let directory = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..RANKS).map(|rank| format!("out {rank}\n")).collect();
    let (mut rig, start) = Rig::start(in_directory(directory.path()));
    for (rank, text) in (0..).zip(&texts) {
        rig.announce(rank, Channel::Stdout, &[(text, 1)]);
    }
    rig.streams.iter_mut().for_each(Stream::complete);
    rig.announce(RANKS, Channel::Stderr, &[("err\n", 1)]);
    rig.engine.answer_barrier(start);
    let barrier = rig.engine.receive_barrier();
    for (rank, text) in (RANKS + 1..).zip(&texts) {
        rig.announce(rank, Channel::Stdout, &[(text, 1)]);
    }
    rig.engine.answer_barrier(barrier);
    rig.end();
    let file = |rank: u32, name: &str| {
        fs::read_to_string(directory.path().join(format!("job/rank.{rank:03}/{name}"))).unwrap()
    };
    assert_eq!(file(RANKS, "stderr"), "err\n");
    for (rank, text) in (0..).zip(&texts) {
        assert_eq!((&file(rank, "stdout"), &file(RANKS + 1 + rank, "stdout")), (text, text));
    }
}
