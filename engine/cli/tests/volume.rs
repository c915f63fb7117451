//! A gibibyte of random bytes from 1, 4 and 64 ranks arrives complete at every reader.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Mutex, PoisonError};

use iof_testing::bytes::{Sum, noise_sum, sum};
use iof_testing::command::site::{Site, rank};
use iof_testing::process::Process;
use iof_testing::{BULK_TIMEOUT, Pending, wait_up_to};

const GIB: u64 = 1 << 30;
/// Cache beyond the output: late readers do not get the region that is claimed for the next read.
const SPARE: u64 = 1 << 20;
const CHANNELS: [&str; 2] = ["stdout", "stderr"];

/// Lets one test at a time use a gibibyte of cache.
static MEMORY: Mutex<()> = Mutex::new(());

/// A process and the sums of its stdout and stderr.
struct Summed {
    process: Process,
    sums: [Pending<Sum>; 2],
}

impl Summed {
    fn of(mut process: Process) -> Summed {
        let sums = [sum(process.stdout()), sum(process.stderr())];
        Summed { process, sums }
    }

    fn finish(self) -> [Sum; 2] {
        let sums = self.sums.map(|sum| sum.get_within(BULK_TIMEOUT));
        assert_eq!(self.process.wait(), 0);
        sums
    }
}

/// Checks that the terminal, and early and late pulls of each rank, receive all bytes.
fn a_gibibyte_from(ranks: u32, write_size: u64, site: Site) {
    let _one_at_a_time = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let length = GIB / u64::from(ranks) / 2;
    let (mut first_byte, mut end) = (site.gate("first-byte"), site.gate("end"));
    let run = Summed::of(site.run(
        &["-n", &ranks.to_string(), "--cache-size", &(length + SPARE).to_string()],
        rank([
            "--channels",
            "stdout,stderr",
            "--length",
            &length.to_string(),
            "--write-size",
            &write_size.to_string(),
            "--gate",
            &format!("0:{}", first_byte.path()),
            "--gate",
            &format!("{length}:{}", end.path()),
        ]),
    ));
    let wanted: Vec<[Pending<Sum>; 2]> =
        (0..ranks).map(|rank| CHANNELS.map(|channel| noise_sum(rank, channel, length))).collect();
    let pull =
        |rank: u32| Summed::of(site.pull(&["--rank", &rank.to_string(), "--channel", "stdout,stderr"]));
    let wait_for_streams = |what: &str, produced: u64, pulls: usize| {
        wait_up_to(BULK_TIMEOUT, what, || {
            let streams = site.streams()?.into_iter().filter(|stream| stream.0["channel"] != "stddiag");
            let ready =
                streams.filter(|stream| stream.number("produced") == produced && stream.pulls() == pulls);
            (ready.count() == 2 * ranks as usize).then_some(())
        });
    };

    site.wait_for_ranks(ranks as usize);
    let early: Vec<Summed> = (0..ranks).map(pull).collect();
    wait_for_streams("an early pull of each rank", 0, 1);
    first_byte.open();
    wait_for_streams("the last byte of each rank", length, 1);
    let late: Vec<Summed> = (0..ranks).map(pull).collect();
    wait_for_streams("a late pull of each rank", length, 2);
    end.open();

    let wanted: Vec<[Sum; 2]> =
        wanted.into_iter().map(|sums| sums.map(|sum| sum.get_within(BULK_TIMEOUT))).collect();
    let finish = |pulls: Vec<Summed>| pulls.into_iter().map(Summed::finish).collect::<Vec<_>>();
    assert_eq!(finish(early), wanted, "early pulls");
    assert_eq!(finish(late), wanted, "late pulls");
    let terminal = run.finish();
    if ranks == 1 {
        assert_eq!(&terminal, &wanted[0], "the terminal");
    } else {
        assert_eq!(terminal.map(|sum| sum.length), [GIB / 2; 2], "the terminal, all ranks together");
    }
}

#[test]
fn a_gibibyte_from_one_rank_arrives_complete_at_the_terminal_and_at_pulls() {
    a_gibibyte_from(1, 65_536, Site::new());
}

#[test]
fn a_gibibyte_from_4_ranks_arrives_complete_at_early_and_late_pulls() {
    a_gibibyte_from(4, 1 << 20, Site::new());
}

#[test]
fn a_gibibyte_from_64_ranks_arrives_complete_at_early_and_late_pulls() {
    // A write size that is not aligned to anything.
    a_gibibyte_from(64, 10_007, Site::new());
}

#[test]
fn a_gibibyte_arrives_complete_without_io_uring() {
    a_gibibyte_from(8, 4_001, Site::on("epoll"));
}
