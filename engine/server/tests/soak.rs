//! A soak test: one engine runs job after job, and neither the cost of a job nor the engine's
//! memory grows.
//!
//! `IOF_SOAK_JOBS` is the number of jobs; `.ci/soak` runs 100,000. Four fifths of them share one
//! name, the others have a name each. Every tenth job is a spawned process, the others are pipes.
//! Next to a printer there are two tools in their own processes: one that reads, and one that is
//! stopped while the jobs run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it reports what it has measured")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use iof_engine::{AdoptSpec, AdoptedRank, App, Config, Engine, Exit, Grant, JobSpec, Process, Rendezvous};
use iof_output::{Options, Output, Printer};
use iof_proto::limits::MAX_FORGOTTEN_PER_TOOL;
use iof_proto::{Channel, Channels, Nspace, Proc, Rank};
use iof_testing::pipes::pipe;
use iof_tool::{Delivery, Pull, Tool};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// The name that most jobs share.
const SHARED_NAME: &str = "shared";
/// The number of names that a tool registers for at a time.
const BATCH: u64 = 200;

fn main() {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("--reader"), Some(socket)) => Reader::connect(&socket).run(),
        // The list of tests is empty; any other argument runs the whole test.
        (Some("--list"), _) => {}
        _ => {
            soak(std::env::var("IOF_SOAK_JOBS").map_or(5000, |jobs| jobs.parse().expect("a number of jobs")))
        }
    }
}

fn soak(jobs: u64) {
    let directory = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::Session(Some(directory.path().to_owned()));
    let config = Config::new(rendezvous);
    let engine = Engine::start(config).unwrap();
    let mut reading = ToolProcess::start(&engine);
    let mut stopped = ToolProcess::start(&engine);
    let before = Sample::take();

    let same = jobs * 4 / 5;
    let (printer, printed) = print(&engine, vec![SHARED_NAME.to_owned()], true);
    for tool in [&mut reading, &mut stopped] {
        tool.request(&format!("persistent {SHARED_NAME}"));
    }
    stopped.signal(Signal::SIGSTOP);
    let phase = Phase::run("one name", same, |number| {
        run(&engine, SHARED_NAME, number, number % 10 == 0);
    });
    phase.assert_flat(before);
    let read = reading.report(same);
    assert_eq!(read, Report::complete(same), "the tool that reads");
    stopped.signal(Signal::SIGCONT);
    let got = stopped.report(same);
    let Report { streams, bytes, .. } = Report::complete(same);
    assert_eq!((got.jobs, got.streams, got.bytes), (same, streams, bytes), "the tool that was stopped");
    println!("  the stopped tool: {got:?}");

    let many = (jobs - same) / BATCH * BATCH;
    let mut batch = None;
    let mut lines = 0;
    let phase = Phase::run("many names", many, |number| {
        if number % BATCH == 0 {
            lines += join(batch.take());
            let names: Vec<String> = (number..number + BATCH).map(|number| format!("job-{number}")).collect();
            reading.request(&format!("names {}", names.join(" ")));
            batch = Some(print(&engine, names, false));
        }
        run(&engine, &format!("job-{number}"), number, number % 10 == 0);
    });
    lines += join(batch);
    assert_eq!(lines, many, "lines that were printed of many names");
    phase.assert_flat(before);
    let read = reading.report(same + many);
    assert_eq!(read.jobs, same + many, "{read:?}");
    assert_eq!(read.bytes, Report::complete(same).bytes + Report::complete(many).bytes, "{read:?}");

    let kept = jobs / 50;
    Phase::run("kept jobs", kept, |number| {
        let spec = JobSpec::new(name(&format!("kept-{number}")), vec![App::new("true", [""; 0])]);
        assert_eq!(engine.spawn(&spec).unwrap().wait().code(), 0);
    });

    drop(engine);
    printer.join().unwrap();
    assert_eq!(count_lines(printed.path()), same, "lines that were printed of one name");
}

fn name(name: &str) -> Nspace {
    Nspace::new(name).unwrap()
}

fn line(number: u64) -> String {
    format!("this is the line of job {number}\n")
}

/// Runs a job that writes one line, and removes it.
fn run(engine: &Engine, nspace: &str, number: u64, spawned: bool) {
    let nspace = name(nspace);
    let text = line(number);
    let job = if spawned {
        engine.spawn(&JobSpec::new(nspace.clone(), vec![App::new("printf", [text])])).unwrap()
    } else {
        let (stdout, mut write) = pipe();
        let rank =
            AdoptedRank::new(Rank(0), "soak", Process::Reported { pid: 0 }).with(Channel::Stdout, stdout);
        let job = engine.adopt(AdoptSpec::new(nspace.clone(), vec![rank])).unwrap();
        write.write_all(text.as_bytes()).unwrap();
        assert!(job.report_exit(Rank(0), Exit::Status(ExitStatus::default())));
        job
    };
    assert_eq!(job.wait().code(), 0);
    assert!(engine.remove(&nspace));
}

/// Starts a printer of the stdout of jobs into a file.
fn print(engine: &Engine, names: Vec<String>, persistent: bool) -> (Printer, tempfile::NamedTempFile) {
    let mut tool = engine.attach("printer", Grant::Block).unwrap();
    let procs = names.iter().map(|nspace| Proc { nspace: name(nspace), rank: Rank::WILDCARD }).collect();
    tool.pull(&Pull { persistent, ..Pull::new(procs, Channels::STDOUT) }).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Output::new(file.as_file()).unwrap();
    (Printer::start(tool, output, Options::default(), |_, _, _| panic!("a gap")).unwrap(), file)
}

/// Waits for a printer. Returns how many lines it has printed.
fn join(printing: Option<(Printer, tempfile::NamedTempFile)>) -> u64 {
    let Some((printer, file)) = printing else { return 0 };
    printer.join().unwrap();
    count_lines(file.path())
}

fn count_lines(path: &std::path::Path) -> u64 {
    BufReader::new(File::open(path).unwrap()).lines().count() as u64
}

/// The resources of the engine's process.
#[derive(Clone, Copy, Debug)]
struct Sample {
    files: usize,
    maps: usize,
    rss_kib: usize,
}

impl Sample {
    fn take() -> Sample {
        let files = fs::read_dir("/proc/self/fd").unwrap().count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let rss_kib = rss.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
        Sample { files, maps, rss_kib }
    }
}

/// The measurements of many jobs run one after the other, in ten parts.
struct Phase {
    /// At the end of the first part.
    first: Sample,
    /// At the end of the last part.
    last: Sample,
    /// The CPU time of the engine's process in the first and the last part.
    cpu: [Duration; 2],
}

impl Phase {
    fn run(what: &str, jobs: u64, mut run: impl FnMut(u64)) -> Phase {
        let cpu = || Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap());
        let mut parts: Vec<(Duration, Duration, Sample)> = Vec::new();
        for part in 0..10 {
            let (began, used) = (Instant::now(), cpu());
            (jobs * part / 10..jobs * (part + 1) / 10).for_each(&mut run);
            parts.push((began.elapsed(), cpu() - used, Sample::take()));
        }
        let [first, .., last] = &parts[..] else { unreachable!() };
        let part = |(wall, cpu, sample): &(Duration, Duration, Sample)| {
            let each = |time: &Duration| time.as_secs_f64() * 1e6 / (jobs as f64 / 10.0);
            format!("{:.0} us a job, {:.0} us of CPU, {sample:?}", each(wall), each(cpu))
        };
        println!("{what}: {jobs} jobs\n  first tenth: {}\n  last tenth:  {}", part(first), part(last));
        Phase { first: first.2, last: last.2, cpu: [first.1, last.1] }
    }

    /// Asserts that the stopped tool keeps no more than it may, and that nothing grew after the
    /// first part.
    fn assert_flat(&self, before: Sample) {
        const MARGIN: usize = 256;
        let Phase { first, last, cpu } = self;
        let rings = MAX_FORGOTTEN_PER_TOOL + MARGIN;
        assert!(last.files < before.files + rings, "{before:?} {last:?}");
        assert!(last.maps < before.maps + 6 * rings, "{before:?} {last:?}");
        // A ring has at least one page each of data, index, times and control words.
        assert!(last.rss_kib < first.rss_kib + 128 * rings, "{first:?} {last:?}");
        // CPU time hardly depends on other load of the machine.
        assert!(cpu[1] < 4 * cpu[0], "{cpu:?}");
    }
}

/// A tool in its own process, as its parent sees it.
struct ToolProcess {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ToolProcess {
    fn start(engine: &Engine) -> ToolProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--reader").arg(engine.socket().unwrap()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        ToolProcess { child, commands, answers: BufReader::new(answers) }
    }

    fn request(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the tool has died");
        answer.trim_end().to_owned()
    }

    /// Returns what the tool has received once `jobs` jobs have ended.
    fn report(&mut self, jobs: u64) -> Report {
        let answer = self.request(&format!("report {jobs}"));
        let mut numbers = answer.split(' ').map(|number| number.parse().unwrap());
        let [jobs, streams, bytes, skipped, missed] = std::array::from_fn(|_| numbers.next().unwrap());
        Report { jobs, streams, bytes, skipped, missed }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for ToolProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The part of stdout that a tool has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Report {
    jobs: u64,
    streams: u64,
    bytes: u64,
    /// The number of ended jobs that were reported only in sum.
    skipped: u64,
    /// The number of bytes that were reported as missed.
    missed: u64,
}

impl Report {
    /// Returns the report of a tool that reads everything of `jobs` jobs.
    fn complete(jobs: u64) -> Report {
        let bytes = (0..jobs).map(|number| line(number).len() as u64).sum();
        Report { jobs, streams: jobs, bytes, skipped: 0, missed: 0 }
    }
}

/// The tool within its own process.
struct Reader {
    tool: Tool,
    commands: Receiver<String>,
    report: Report,
}

impl Reader {
    fn connect(socket: &str) -> Reader {
        let (sender, commands) = channel();
        thread::spawn(move || stdin().lines().for_each(|line| sender.send(line.unwrap()).unwrap()));
        let tool = Tool::connect(socket.as_ref(), "soak").unwrap();
        Reader { tool, commands, report: Report::default() }
    }

    fn run(mut self) {
        let mut awaited = None;
        loop {
            if let Ok(command) = self.commands.try_recv() {
                let (what, rest) = command.split_once(' ').unwrap();
                match what {
                    "report" => awaited = Some(rest.parse().unwrap()),
                    _ => {
                        let procs =
                            rest.split(' ').map(|nspace| Proc { nspace: name(nspace), rank: Rank::WILDCARD });
                        let pull = Pull::new(procs.collect(), Channels::STDOUT);
                        self.tool.pull(&Pull { persistent: what == "persistent", ..pull }).unwrap();
                        println!("ok");
                    }
                }
            }
            if awaited.is_some_and(|jobs| self.report.jobs >= jobs) {
                awaited = None;
                let Report { jobs, streams, bytes, skipped, missed } = self.report;
                println!("{jobs} {streams} {bytes} {skipped} {missed}");
            }
            self.take();
            if self.tool.is_gone() {
                return;
            }
        }
    }

    /// Processes the next delivery.
    fn take(&mut self) {
        let report = &mut self.report;
        match self.tool.recv_timeout(Duration::from_millis(2)).unwrap() {
            Some(Delivery::Bytes(bytes)) => report.bytes += bytes.len() as u64,
            Some(Delivery::Complete { .. }) => report.streams += 1,
            Some(Delivery::JobEnded { skipped, .. }) => {
                report.jobs += 1 + skipped;
                report.skipped += skipped;
            }
            Some(Delivery::Missed { missed, .. }) => {
                report.streams += missed.streams;
                report.bytes += missed.bytes;
                report.missed += missed.bytes;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}
