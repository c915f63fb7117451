//! While the printer sleeps, the thread that reads the ranks writes their whole lines into a pipe,
//! and never waits for its reader. A file of its own, because a test finds the printer by its
//! thread's name.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use iof_engine::{AdoptSpec, AdoptedRank, Config, Engine, Exit, Grant, Job, Process, Rendezvous};
use iof_output::{Options, Output, PrintError, PrintReport, Printer};
use iof_proto::{Channel, Channels, Nspace, Proc, Rank};
use iof_testing::pipes::pipe;
use iof_testing::stalled::StalledPage;
use iof_tool::{Delivery, Pull};

/// The number of lines of a rank that writes more than the output pipe takes.
const FLOOD: u64 = 100_000;

/// An engine with ranks whose stdout and stderr the test writes, and a printer of both into a pipe.
struct Rig {
    engine: Engine,
    job: Job,
    /// The stdout and the stderr of each rank.
    writers: Vec<[File; 2]>,
    printer: Printer,
    reader: File,
    /// One test after the other: they would count each other's printers.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

fn all() -> Proc {
    Proc::all(Nspace::new("job").unwrap())
}

impl Rig {
    fn new(ranks: usize) -> Rig {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let config = Config::new(Rendezvous::None);
        let engine = Engine::start(config).unwrap();
        let mut tool = engine.attach("test", Grant::Block).unwrap();
        tool.pull(&Pull::new(vec![all()], Channels::STDOUT | Channels::STDERR)).unwrap();
        let (reader, writer) = pipe();
        let output = Output::new(&writer).unwrap();
        let printer =
            Printer::start(tool, output, Options::default(), |proc, _, gap| panic!("{proc}: {gap:?}"));
        let pipes = (0..ranks).map(|_| [pipe(), pipe()]);
        let (mut adopted, mut writers) = (Vec::new(), Vec::new());
        for (rank, [(stdout, out), (stderr, err)]) in (0..).map(Rank).zip(pipes) {
            let new = AdoptedRank::new(rank, "test", Process::Reported { pid: 0 });
            adopted.push(new.with(Channel::Stdout, stdout).with(Channel::Stderr, stderr));
            writers.push([out, err]);
        }
        let job = engine.adopt(AdoptSpec::new(all().nspace, adopted)).unwrap();
        Rig { engine, job, writers, printer: printer.unwrap(), reader: reader.into(), _turn: turn }
    }

    /// Ends the ranks. Returns the result of the printer and what was not read of its output.
    fn end(mut self) -> (Result<PrintReport, PrintError>, String) {
        let ranks = u32::try_from(self.writers.len()).unwrap();
        drop(self.writers);
        (0..ranks).for_each(|rank| assert!(self.job.report_exit(Rank(rank), Exit::Unknown)));
        let rest = thread::spawn(move || {
            let mut rest = String::new();
            self.reader.read_to_string(&mut rest).map(|_| rest).unwrap()
        });
        (self.printer.join(), rest.join().unwrap())
    }
}

/// Writes a line by one write(2).
fn write_line(mut file: &File, number: u64) {
    file.write_all(format!("{number}\n").as_bytes()).unwrap();
}

/// Returns the files in /proc of the thread of this process that is a printer.
fn printer_task() -> PathBuf {
    let mut tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_printer =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "iof-printer");
    tasks.find(is_printer).unwrap()
}

/// Returns how often a thread has gone to sleep.
fn sleeps(task: &Path) -> u64 {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// Waits until a thread sleeps.
fn wait_for_sleep(task: &Path) {
    let is_asleep = || fs::read_to_string(task.join("status")).unwrap().contains("State:\tS");
    while !is_asleep() {
        thread::yield_now();
    }
}

#[test]
fn lone_lines_do_not_wake_the_printer() {
    const LINES: u64 = 200;
    let rig = Rig::new(2);
    let mut printed = BufReader::new(rig.reader.try_clone().unwrap()).lines();
    let mut converse = |number: u64| {
        let rank = usize::try_from(number % 2).unwrap();
        write_line(&rig.writers[rank][0], number);
        assert_eq!(printed.next().unwrap().unwrap(), number.to_string());
    };
    // The printer itself writes the first lines of its streams.
    (0..10).for_each(&mut converse);
    let printer = printer_task();
    let before = sleeps(&printer);
    (10..LINES).for_each(|number| {
        wait_for_sleep(&printer);
        // Lines in close succession make the printer busy, and it then sleeps on a timer.
        thread::sleep(Duration::from_millis(1));
        converse(number);
    });
    let slept = sleeps(&printer) - before;
    assert!(slept < LINES / 4, "the printer slept {slept} times during {LINES} lines");
    let (report, rest) = rig.end();
    assert_eq!((report.unwrap().written, rest.as_str()), (2 * 10 + 3 * 90 + 4 * 100, ""));
}

#[test]
fn lines_of_both_channels_and_in_pieces_are_written_whole() {
    let rig = Rig::new(1);
    let mut printed = BufReader::new(rig.reader.try_clone().unwrap()).lines();
    let mut next = || printed.next().unwrap().unwrap();
    let [mut out, mut err] = rig.writers[0].each_ref();
    for number in 0..300 {
        writeln!(out, "{number} out").unwrap();
        assert_eq!(next(), format!("{number} out"));
        write!(err, "{number} ").unwrap();
        if number % 10 == 0 {
            // The piece alone is read first, and waits in the printer.
            thread::sleep(Duration::from_millis(1));
        }
        err.write_all(b"err\n").unwrap();
        assert_eq!(next(), format!("{number} err"));
    }
    assert!(rig.end().0.is_ok());
}

#[test]
fn a_full_pipe_does_not_block_the_thread_that_reads_the_ranks() {
    let rig = Rig::new(2);
    let mut tool = rig.engine.attach("other", Grant::Never).unwrap();
    tool.pull(&Pull::new(vec![Proc { rank: Rank(1), ..all() }], Channels::STDOUT)).unwrap();
    let (out, other) = (rig.writers[0][0].try_clone().unwrap(), rig.writers[1][0].try_clone().unwrap());
    let flood = thread::spawn(move || {
        (0..FLOOD).for_each(|line| write_line(&out, line));
    });
    for line in 0..100 {
        write_line(&other, line);
        let received = loop {
            if let Some(Delivery::Bytes(bytes)) = tool.recv().unwrap() {
                break bytes.to_vec();
            }
        };
        assert_eq!(received, format!("{line}\n").into_bytes());
        thread::sleep(Duration::from_micros(100));
    }
    drop((tool, other));
    let reader = rig.reader.try_clone().unwrap();
    let read = thread::spawn(move || {
        let lines = BufReader::new(reader).lines();
        lines.inspect(|line| assert!(line.as_ref().unwrap().parse::<u64>().is_ok())).count()
    });
    flood.join().unwrap();
    let Rig { job, writers, printer, .. } = rig;
    drop(writers);
    (0..2).for_each(|rank| assert!(job.report_exit(Rank(rank), Exit::Unknown)));
    assert!(printer.join().is_ok());
    assert_eq!(read.join().unwrap() as u64, FLOOD + 100);
}

#[test]
fn a_closed_pipe_ends_the_printer_with_its_error() {
    let rig = Rig::new(1);
    let Rig { job, writers, printer, reader, engine: _engine, .. } = rig;
    let mut printed = BufReader::new(reader);
    for number in 0..10 {
        write_line(&writers[0][0], number);
        printed.read_line(&mut String::new()).unwrap();
    }
    drop(printed);
    write_line(&writers[0][0], 10);
    match printer.join() {
        Err(PrintError::Write(error)) => assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe),
        other => panic!("{other:?}"),
    }
    drop(writers);
    assert!(job.report_exit(Rank(0), Exit::Unknown));
}

#[test]
fn more_streams_than_one_write_takes_are_printed_after_a_turn_that_filled_all() {
    const RANKS: u32 = 1100;
    let Ok(page) = StalledPage::new().map(Arc::new) else { return };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config::new(Rendezvous::None);
    let engine = Engine::start(config).unwrap();
    let far = Nspace::new("far").unwrap();
    let mut tool = engine.attach("test", Grant::Block).unwrap();
    tool.pull(&Pull::new(vec![Proc::all(far.clone())], Channels::STDOUT)).unwrap();
    let (reader, writer) = pipe();
    let output = Output::new(&writer).unwrap();
    let printer = Printer::start(tool, output, Options::default(), |_, _, _| {}).unwrap();
    drop(writer);
    let deliver = |line: &str| {
        for rank in (0..RANKS).map(Rank) {
            let from = Proc { nspace: far.clone(), rank };
            engine
                .deliver(&from, Channel::Stdout, format!("{line} {rank}\n").into_bytes(), &[], || {})
                .unwrap();
        }
    };
    let mut printed = BufReader::new(File::from(reader)).lines();
    let mut receive = |line: &str| {
        let mut lines: Vec<String> = printed.by_ref().take(RANKS as usize).map(Result::unwrap).collect();
        lines.sort_unstable_by_key(|text| text.rsplit(' ').next().unwrap().parse::<u32>().unwrap());
        assert!(lines.iter().zip(0..).all(|(text, rank)| *text == format!("{line} {rank}")));
    };
    deliver("first");
    receive("first");
    wait_for_sleep(&printer_task());
    // While the thread that reads the ranks waits for the lock of a rank's pipe, the lines of all
    // streams wait in its queue.
    let (stdout, mut out) = pipe();
    out.write_all(b"x").unwrap();
    let (writer_page, holder) = (Arc::clone(&page), out.try_clone().unwrap());
    let holder = thread::spawn(move || writer_page.write_to(holder, 1).unwrap());
    page.wait_for_use().unwrap();
    let new = AdoptedRank::new(Rank(0), "test", Process::Reported { pid: 0 });
    let near = new.with(Channel::Stdout, stdout);
    let job = engine.adopt(AdoptSpec::new(all().nspace, vec![near])).unwrap();
    deliver("second");
    page.resolve(b"").unwrap();
    assert_eq!(holder.join().unwrap(), 1);
    receive("second");
    assert!(engine.end_job(&far, None));
    assert!(job.report_exit(Rank(0), Exit::Unknown));
    printer.join().unwrap();
}

#[test]
fn the_closure_of_a_printer_is_dropped_on_its_thread() {
    /// Sends the name of the thread that drops it.
    struct Told(std::sync::mpsc::Sender<Option<String>>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().name().map(str::to_owned));
        }
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let tool = engine.attach("test", Grant::Block).unwrap();
    let (_reader, writer) = pipe();
    let ((sender, dropped), output) = (channel(), Output::new(&writer).unwrap());
    let told = Told(sender);
    let on_gap = move |_: &Proc, _, _| drop(told.0.send(None));
    let printer = Printer::start(tool, output, Options::default(), on_gap).unwrap();
    printer.join().unwrap();
    assert_eq!(dropped.recv().unwrap().as_deref(), Some("iof-printer"));
}
