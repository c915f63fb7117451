//! A rank that holds the lock of its pipe, because it writes from memory whose page fault is
//! resolved late.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use iof_testing::command::site::{BACKENDS, Site, program};
use iof_testing::stalled::StalledPage;
use iof_testing::{TIMEOUT, wait_for};
use nix::sys::signal::Signal;

/// Starts to read lines until the end.
fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = channel();
    thread::spawn(move || BufReader::new(output).lines().try_for_each(|line| send.send(line.unwrap())));
    lines
}

/// Returns the number of threads of a process with this name.
fn threads(pid: u32, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

#[test]
fn a_rank_that_delays_all_others_is_reported_and_isolated() {
    if let Err(error) = StalledPage::new() {
        return eprintln!("not tested: this user may not stall a system call ({error})");
    }
    for backend in BACKENDS {
        let site = Site::on(backend);
        let [mut other, mut end] = ["other", "end"].map(|name| site.gate(name));
        let [mut go, mut resolve] =
            ["go", "resolve"].map(|name| [1, 2].map(|round| site.gate(&format!("{name}{round}"))));
        let stall = program("stall");
        let script = format!(
            "[ $IOF_RANK = 1 ] || exec {stall} {}; : < {}; echo other; : < {}",
            site.path().display(),
            other.path(),
            end.path()
        );
        let mut run = site.run_sh(&["-n", "2"], &script);
        let (stdout, stderr) = (lines(run.stdout()), lines(run.stderr()));
        site.wait_for_ranks(2);
        let mut stall_again = |round: usize| {
            // The command is stopped, so that its next read finds bytes and the locked pipe.
            run.stop();
            go[round - 1].open();
            let stalled = site.path().join(format!("stalled{round}"));
            wait_for("the rank to stall", || stalled.exists().then_some(()));
            run.signal(Signal::SIGCONT);
        };
        let next = |lines: &Receiver<String>| lines.recv_timeout(TIMEOUT).unwrap();

        stall_again(1);
        let message = next(&stderr);
        let cause = "iof: rank 0 delays the output of all ranks: it writes to stdout from memory";
        let outlook = "from now on it delays only its own output";
        assert!(message.starts_with(cause) && message.ends_with(outlook), "{message}");
        resolve[0].open();
        assert_eq!([next(&stdout), next(&stdout)], ["before 1", "after 1"]);

        // Each of its three streams then has its own thread.
        wait_for("the streams to be isolated", || (threads(run.pid(), "iof-isolated") == 3).then_some(()));
        stall_again(2);
        other.open();
        assert_eq!(next(&stdout), "other", "on {backend}");
        resolve[1].open();
        assert_eq!([next(&stdout), next(&stdout)], ["before 2", "after 2"]);
        end.open();
        assert_eq!(run.wait(), 0);
        assert_eq!(stderr.iter().collect::<Vec<_>>(), Vec::<String>::new());
    }
}
