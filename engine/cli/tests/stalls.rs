//! A rank that holds the lock of its pipe, because it writes from memory that faults slowly.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use common::site::{BACKENDS, Site, program};
use common::{DEADLINE, wait_for};
use iof_stalled_memory::StalledPage;
use nix::sys::signal::Signal;

/// The lines that come, until the end.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = channel();
    thread::spawn(move || BufReader::new(from).lines().try_for_each(|line| send.send(line.unwrap())));
    lines
}

/// How many threads of a process have this name.
fn threads(pid: u32, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

#[test]
fn a_rank_that_holds_up_all_others_is_named_while_it_does_and_does_so_once() {
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
            // So that its next read finds bytes, and the lock taken.
            run.stop();
            go[round - 1].open();
            let stalled = site.path().join(format!("stalled{round}"));
            wait_for("the rank to stall", || stalled.exists().then_some(()));
            run.signal(Signal::SIGCONT);
        };
        let next = |lines: &Receiver<String>| lines.recv_timeout(DEADLINE).unwrap();

        stall_again(1);
        let told = next(&stderr);
        let named =
            told.starts_with("iof: rank 0 delays the output of all ranks: it writes to stdout from memory");
        assert!(named && told.ends_with("from now on it delays only its own"), "{told}");
        resolve[0].open();
        assert_eq!([next(&stdout), next(&stdout)], ["before 1", "after 1"]);

        // Its three streams have threads of their own by then.
        wait_for("its streams to be isolated", || (threads(run.pid(), "iof-isolated") == 3).then_some(()));
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
