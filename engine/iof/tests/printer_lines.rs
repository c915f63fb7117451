//! Whatever pieces ranks write, the output consists of whole lines, each with the tag of its rank.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use iof_engine::{AdoptSpec, AdoptedRank, Config, Engine, Exit, Grant, Job, Process, Rendezvous};
use iof_output::{FlushTimeout, Notes, Options, Output, PrintReport, Printer, Style, StyleExtras};
use iof_proto::directive::key::PMIX_IOF_CACHE_SIZE;
use iof_proto::query::key::IOF_QUERY_STATS;
use iof_proto::{Channel, Channels, Info, Nspace, Proc, Rank, Value};
use iof_tool::{Pull, Tool};
use proptest::prelude::*;
use tempfile::NamedTempFile;

/// A time after which no part of a line is written within a test, even on a busy machine.
const NEVER: Duration = Duration::from_secs(3600);

/// The bytes that one rank writes, and the lengths of its writes.
#[derive(Clone, Debug)]
struct Script {
    bytes: Vec<u8>,
    writes: Vec<usize>,
}

/// Generates lines that begin with their rank and number, with lengths from zero to more than a
/// small ring, and writes that divide them anywhere.
fn script(rank: u32) -> impl Strategy<Value = Script> {
    let length = prop_oneof![8 => 0usize..100, 2 => 100usize..3000, 1 => 3000usize..20_000];
    let lines = proptest::collection::vec(length, 0..20);
    let writes = proptest::collection::vec(1usize..4000, 1..40);
    (lines, writes).prop_map(move |(lines, writes)| {
        let mut bytes = Vec::new();
        for (number, length) in lines.into_iter().enumerate() {
            bytes.extend(format!("{rank} {number} ").into_bytes());
            bytes.extend(std::iter::repeat_n(b'x', length));
            bytes.push(b'\n');
        }
        Script { bytes, writes }
    })
}

fn scripts() -> impl Strategy<Value = Vec<Script>> {
    (1u32..6).prop_flat_map(|ranks| (0..ranks).map(script).collect::<Vec<_>>())
}

/// An engine with ranks whose stdout the test writes, and a printer of their output.
struct Rig {
    engine: Engine,
    job: Job,
    writers: Vec<File>,
    printer: Printer,
    notes: Notes,
    file: NamedTempFile,
}

impl Rig {
    fn new(ranks: usize, options: Options) -> Rig {
        let mut config = Config::new(Rendezvous::None);
        config.cache_size = Some(16 << 10);
        let engine = Engine::start(config).unwrap();
        let nspace = Nspace::new("launcher@7").unwrap();
        let mut tool = engine.attach("test", Grant::Block).unwrap();
        tool.pull(&Pull::new(vec![all()], Channels::STDOUT)).unwrap();
        let file = NamedTempFile::new().unwrap();
        let output = Output::new(file.as_file()).unwrap();
        let notes = output.notes();
        let printer =
            Printer::start(tool, output, options, |proc, _, gap| panic!("{proc}: {gap:?}")).unwrap();
        let (pipes, writers): (Vec<OwnedFd>, Vec<File>) = (0..ranks)
            .map(|_| nix::unistd::pipe().unwrap())
            .map(|(read, write)| (read, write.into()))
            .unzip();
        let ranks = (0..).map(Rank).zip(pipes).map(|(rank, pipe)| {
            AdoptedRank::new(rank, "test", Process::Reported { pid: 0 }).with(Channel::Stdout, pipe)
        });
        let job = engine.adopt(AdoptSpec::new(nspace, ranks.collect())).unwrap();
        Rig { engine, job, writers, printer, notes, file }
    }

    /// Ends the ranks and returns everything that was printed.
    fn end(self) -> (Vec<u8>, PrintReport) {
        let ranks = u32::try_from(self.writers.len()).unwrap();
        drop(self.writers);
        (0..ranks).for_each(|rank| assert!(self.job.report_exit(Rank(rank), Exit::Unknown)));
        let report = self.printer.join().unwrap();
        (fs::read(self.file.path()).unwrap(), report)
    }
}

fn all() -> Proc {
    Proc::all(Nspace::new("launcher@7").unwrap())
}

/// Lets all ranks write at the same time and returns what was printed.
fn printed(scripts: &[Script], options: Options) -> (Vec<u8>, PrintReport) {
    let rig = Rig::new(scripts.len(), options);
    thread::scope(|scope| {
        for (script, mut writer) in scripts.iter().zip(&rig.writers) {
            scope.spawn(move || {
                let mut rest = &script.bytes[..];
                for &write in script.writes.iter().cycle() {
                    let (now, later) = rest.split_at(write.min(rest.len()));
                    writer.write_all(now).unwrap();
                    rest = later;
                    if rest.is_empty() {
                        break;
                    }
                }
            });
        }
    });
    rig.end()
}

fn options(list: &str, max_line: usize) -> Options {
    let choice = if list.is_empty() { Default::default() } else { list.parse().unwrap() };
    let style = Style::new(&choice, &StyleExtras::default());
    Options {
        style,
        flush_timeout: FlushTimeout { max_line, max_time: Some(NEVER) },
        raw: false,
        fold: None,
        rank_object: None,
    }
}

/// Asserts that `lines` are all lines of the ranks, unbroken, and in order for each rank.
fn assert_whole<'a>(scripts: &[Script], lines: impl Iterator<Item = (usize, &'a [u8])>) {
    let mut rest: Vec<_> = scripts.iter().map(|script| &script.bytes[..]).collect();
    for (rank, line) in lines {
        let whole = rest[rank].split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(line), String::from_utf8_lossy(whole), "rank {rank}");
        rest[rank] = &rest[rank][whole.len()..];
    }
    assert!(rest.iter().all(|rest| rest.is_empty()), "lines are missing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn random_writes_of_many_ranks_become_whole_lines_with_the_right_tags(scripts in scripts()) {
        let (printed, report) = printed(&scripts, options("tag", usize::MAX));
        let lines = printed.split_inclusive(|byte| *byte == b'\n').map(|line| {
            let text = std::str::from_utf8(line).unwrap();
            let (rank, text) = text.strip_prefix("[7,").unwrap().split_once("]<stdout>: ").unwrap();
            (rank.parse().unwrap(), text.as_bytes())
        });
        assert_whole(&scripts, lines);
        let written: usize = scripts.iter().map(|script| script.bytes.len()).sum();
        let exit_codes = report.exit_codes.clone();
        prop_assert_eq!(report, PrintReport { written: written as u64, exit_codes, ..PrintReport::default() });
    }

    #[test]
    fn lines_of_many_ranks_stay_whole_without_tags(scripts in scripts()) {
        let (printed, _) = printed(&scripts, options("", usize::MAX));
        let lines = printed.split_inclusive(|byte| *byte == b'\n').map(|line| {
            let rank = std::str::from_utf8(line).unwrap().split(' ').next().unwrap();
            (rank.parse().unwrap(), line)
        });
        assert_whole(&scripts, lines);
    }

    #[test]
    fn lines_are_cut_only_beyond_the_limit_and_no_byte_is_lost(scripts in scripts(), max_line in 1usize..5000) {
        let (printed, _) = printed(&scripts, options("json", max_line));
        let mut written: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for object in std::str::from_utf8(&printed).unwrap().lines() {
            let object: serde_json::Value = serde_json::from_str(object).unwrap();
            let bytes = written.entry(object["rank"].as_u64().unwrap()).or_default();
            if object["type"] == "end" {
                continue;
            }
            prop_assert_eq!(object["offset"].as_u64().unwrap(), bytes.len() as u64);
            let data = object["data"].as_str().unwrap();
            prop_assert!(data.ends_with('\n') || data.len() >= max_line, "{}", data);
            bytes.extend(data.bytes());
        }
        for (rank, script) in (0u64..).zip(&scripts) {
            prop_assert_eq!(written.remove(&rank).unwrap_or_default(), script.bytes.clone());
        }
    }
}

/// Blocks until the engine has read `produced` bytes of rank 0 and its stream has at least this
/// generation.
fn wait_for_stream(observer: &mut Tool, produced: u64, generation: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = observer.query(&[IOF_QUERY_STATS]).unwrap().into_iter().next().map(|found| found.value);
        let Some(Value::Streams(streams)) = found else { panic!("no streams: {found:?}") };
        let stream =
            streams.iter().find(|stream| stream.source.rank == Rank(0) && stream.channel == Channel::Stdout);
        if stream.is_some_and(|stream| stream.produced >= produced && stream.generation >= generation) {
            return;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {produced} bytes: {stream:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_line_that_begins_in_one_generation_and_ends_in_another_stays_whole() {
    for (list, tag) in [("", ""), ("tag", "[7,0]<stdout>: ")] {
        let rig = Rig::new(2, options(list, usize::MAX));
        let mut other = rig.engine.attach("other", Grant::Never).unwrap();
        (&rig.writers[0]).write_all(b"one half").unwrap();
        wait_for_stream(&mut other, 8, 0);
        // A larger cache needs another generation.
        let larger = vec![Info::required(PMIX_IOF_CACHE_SIZE, 1u32 << 20)];
        other.pull(&Pull { directives: larger, ..Pull::new(vec![all()], Channels::STDOUT) }).unwrap();
        (&rig.writers[0]).write_all(b", another").unwrap();
        wait_for_stream(&mut other, 17, 1);
        (&rig.writers[1]).write_all(b"between\n").unwrap();
        (&rig.writers[0]).write_all(b", a third\n").unwrap();
        let (printed, _) = rig.end();
        let text = String::from_utf8(printed).unwrap();
        assert!(text.contains(&format!("{tag}one half, another, a third\n")), "{text}");
    }
}

#[test]
fn a_message_gets_its_own_line_while_the_output_is_in_the_middle_of_one() {
    for (list, tag) in [("", ""), ("tag", "[7,0]<stdout>: ")] {
        let mut rig = Rig::new(1, options(list, usize::MAX));
        (&rig.writers[0]).write_all(b"first ").unwrap();
        let begun = format!("{tag}first ");
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::read_to_string(rig.file.path()).unwrap() != begun {
            assert!(Instant::now() < deadline, "a stream alone on its output is written at once");
            thread::sleep(Duration::from_millis(5));
        }
        rig.notes.write_all(b"a message\n").unwrap();
        rig.notes.write_all(b"another\n").unwrap();
        (&rig.writers[0]).write_all(b"second\n").unwrap();
        let (printed, _) = rig.end();
        let wanted = format!("{begun}\na message\nanother\n{tag}second\n");
        assert_eq!(String::from_utf8(printed).unwrap(), wanted);
    }
}
