//! Pushes from a file or pipe on a separate thread, and from an event loop.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use iof_engine::{Engine, Exit};
use iof_proto::{
    Nspace, PartialCause, PartialDelivery, Proc, PushReport, Rank, SlowTarget, SlowTargets, Status,
    StdinUnavailable,
};
use iof_testing::engine::stdins::*;
use iof_testing::engine::wait;
use iof_testing::noise::pattern;
use iof_testing::pipes;
use iof_testing::{TIMEOUT, wait_for};
use iof_tool::{LostError, Push, PushError, Pusher, RequestError};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

fn pipe() -> (File, File) {
    let (read, write) = pipes::pipe();
    (read.into(), write)
}

fn start(engine: &Engine, push: &Push, file: &File) -> Pusher {
    Pusher::start(tool(engine), push, file, |_| {}).unwrap()
}

/// Blocks until a pusher has finished, and returns its result.
fn join(pusher: Pusher) -> Result<PushReport, PushError> {
    wait_for("the end of a pusher", || pusher.is_finished().then_some(()));
    pusher.join()
}

fn reader(file: File) -> impl FnOnce() -> Vec<u8> {
    let reading = std::thread::spawn(move || {
        let mut got = Vec::new();
        std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
        got
    });
    move || reading.join().unwrap()
}

#[test]
fn a_file_is_pushed_from_its_position_to_its_end() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 2);
    let bytes = pattern(1_000_000);
    let mut file = file_of(&bytes);
    file.seek(std::io::SeekFrom::Start(1000)).unwrap();
    let pusher = start(&engine, &final_push(all_ranks()), &file);
    let got = [0, 1].map(|rank| reader(ranks.take(rank)));
    assert_eq!(join(pusher).unwrap(), complete_report(bytes.len() - 1000, 2));
    for got in got {
        assert!(got() == bytes[1000..]);
    }
}

#[test]
fn an_empty_file_pushes_the_end_at_once() {
    let engine = engine_with_cache(65_536);
    let mut ranks = Stdins::adopt(&engine, 1);
    let pusher = start(&engine, &final_push(all_ranks()), &file_of(b""));
    assert_eq!((ranks.rest(0), join(pusher).unwrap()), (vec![], complete_report(0, 1)));
}

#[test]
fn bytes_written_to_a_pipe_arrive_at_once_and_closing_it_pushes_the_end() {
    for nonblocking in [false, true] {
        let engine = engine_with_cache(65_536);
        let mut ranks = Stdins::adopt(&engine, 1);
        let (read, mut write) = pipe();
        if nonblocking {
            nix::fcntl::fcntl(&read, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        }
        let pusher = start(&engine, &final_push(all_ranks()), &read);
        for word in ["one", "two", "three"] {
            write.write_all(word.as_bytes()).unwrap();
            assert_eq!(ranks.read(0, word.len()), word.as_bytes());
        }
        assert!(!pusher.is_finished() && ranks.is_quiet(0));
        assert_eq!(pusher.progress(), 11);
        drop(write);
        assert_eq!((ranks.rest(0), join(pusher).unwrap()), (vec![], complete_report(11, 1)));
    }
}

#[test]
fn a_stopped_pusher_reads_no_more_and_what_it_has_read_arrives() {
    for (completes, push) in [(true, final_push(all_ranks())), (false, push_to(all_ranks()))] {
        let engine = engine_with_cache(65_536);
        let mut ranks = Stdins::adopt(&engine, 1);
        // No end of file follows in this pipe.
        let (read, mut write) = pipe();
        let pusher = start(&engine, &push, &read);
        write.write_all(b"before").unwrap();
        assert_eq!(ranks.read(0, 6), b"before");
        pusher.stop();
        assert_eq!(join(pusher).unwrap(), complete_report(6, 1));
        write.write_all(b"after").unwrap();
        if completes {
            assert_eq!(ranks.rest(0), b"");
        } else {
            assert!(ranks.is_quiet(0));
        }
    }
}

#[test]
fn a_pusher_stopped_while_it_waits_for_a_rank_still_delivers_what_it_has_read() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 1);
    let bytes = pattern(1_000_000);
    let pusher = start(&engine, &final_push(all_ranks()), &file_of(&bytes));
    // The cache and the pipe are full, so the pusher reads no more.
    wait_for("the pusher to wait", || (pusher.progress() >= 16_384 + 65_536).then_some(()));
    pusher.stop();
    let progress = pusher.progress() as usize;
    let got = reader(ranks.take(0))();
    assert!(got.len() >= progress && got.len() < bytes.len() && bytes.starts_with(&got), "{}", got.len());
    assert_eq!(join(pusher).unwrap(), complete_report(got.len(), 1));
}

#[test]
fn a_pusher_whose_targets_have_all_closed_reads_no_more() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 1);
    let file = File::open("/dev/zero").unwrap();
    let pusher = start(&engine, &final_push(all_ranks()), &file);
    ranks.wait_for_bytes(0);
    ranks.close(0);
    let report = join(pusher).unwrap();
    assert_eq!((report.complete, report.partial.len()), (0, 1));
    assert_eq!(report.partial[0].cause, PartialCause::Closed);
}

#[test]
fn a_pusher_that_waits_for_input_ends_when_all_its_targets_have_exited() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 2);
    let (read, mut write) = pipe();
    let pusher = start(&engine, &final_push(all_ranks()), &read);
    write.write_all(b"some").unwrap();
    assert_eq!((ranks.read(0, 4), ranks.read(1, 4)), (b"some".to_vec(), b"some".to_vec()));
    // A child of this rank may continue to read.
    let child = ranks.take(1);
    ranks.close(0);
    for rank in [0, 1] {
        assert!(ranks.job.report_exit(Rank(rank), Exit::Unknown));
    }
    wait(&ranks.job);
    write.write_all(b" and more").unwrap();
    let mut more = [0; 9];
    std::io::Read::read_exact(&mut &child, &mut more).unwrap();
    assert!(more == *b" and more" && !pusher.is_finished());
    drop(pusher);

    let (read, _write) = pipe();
    let mut ranks = Stdins::adopt_job(&engine, Nspace::new("second").unwrap(), 1, false);
    let target = Proc::new(Nspace::new("second").unwrap(), Rank(0));
    let pusher = start(&engine, &final_push(vec![target.clone()]), &read);
    ranks.close(0);
    assert!(ranks.job.report_exit(Rank(0), Exit::Unknown));
    let report = join(pusher).unwrap();
    assert_eq!(report.partial, [PartialDelivery { target, delivered: 0, cause: PartialCause::Closed }]);
}

#[test]
fn a_pusher_reports_the_targets_that_it_waits_for() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 1);
    let (sender, waited) = channel();
    let on_wait = move |slow: &SlowTargets| sender.send(slow.clone()).unwrap();
    let pusher =
        Pusher::start(tool(&engine), &final_push(all_ranks()), file_of(&pattern(200_000)), on_wait).unwrap();
    let slow = waited.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(slow.targets, [SlowTarget { target: procs(&[0]).remove(0), stalled: true }]);
    assert!(ranks.rest(0) == pattern(200_000));
    assert_eq!(join(pusher).unwrap(), complete_report(200_000, 1));
}

#[test]
fn an_unreadable_input_is_an_error_and_the_ranks_see_the_end() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 1);
    let unreadable = File::options().write(true).open("/dev/null").unwrap();
    let failed = join(start(&engine, &final_push(all_ranks()), &unreadable));
    assert!(matches!(failed, Err(PushError::Read(_))), "{failed:?}");
    assert_eq!(ranks.rest(0), b"");
}

#[test]
fn the_targets_of_a_detached_pusher_see_the_end_of_an_unreadable_file_or_a_stop() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 1);
    let unreadable = File::options().write(true).open("/dev/null").unwrap();
    let _pusher = start(&engine, &final_push(all_ranks()), &unreadable).detach();
    assert_eq!(ranks.rest(0), b"");

    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 1);
    let (read, mut write) = pipe();
    let pusher = start(&engine, &final_push(all_ranks()), &read).detach();
    write.write_all(b"typed").unwrap();
    assert_eq!(ranks.read(0, 5), b"typed");
    pusher.stop();
    assert_eq!(ranks.rest(0), b"");
}

#[test]
fn a_push_is_refused_before_any_input_is_read() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 2);
    ranks.close(1);
    let mut file = file_of(b"unread");
    let refused = refusal(Pusher::start(tool(&engine), &final_push(all_ranks()), &file, |_| {}).map(drop));
    assert_eq!(refused.status, Status::ERR_IOF_COMPLETE);
    assert_eq!(file.stream_position().unwrap(), 0);
    let partly = push_with(all_ranks(), &[iof_proto::directive::key::IOF_PARTIAL]);
    let pusher = start(&engine, &partly, &file);
    assert_eq!(pusher.granted().skipped[0].reason, StdinUnavailable::Closed);
    assert_eq!(join(pusher).unwrap(), complete_report(6, 1));
    assert_eq!(ranks.read(0, 6), b"unread");
}

#[test]
fn a_pusher_that_waits_for_input_ends_when_the_engine_ends() {
    let engine = engine_with_cache(16_384);
    let _ranks = Stdins::adopt(&engine, 1);
    let (read, _write) = pipe();
    let pusher = start(&engine, &final_push(all_ranks()), &read);
    drop(engine);
    let result = join(pusher);
    assert!(matches!(result, Err(PushError::Request(RequestError::Lost(LostError::Closed)))), "{result:?}");
}

#[test]
fn in_an_event_loop_the_descriptor_signals_credit_and_the_report() {
    let engine = engine_with_cache(16_384);
    let mut ranks = Stdins::adopt(&engine, 2);
    let mut tool = tool(&engine);
    let bytes = pattern(2_000_000);
    let pushes = [0, 1].map(|rank| tool.begin_push(&final_push(procs(&[rank])), None).unwrap().push);
    let got = [0, 1].map(|rank| reader(ranks.take(rank)));
    let mut sent = [0, 0];
    let mut reports = [None, None];
    while reports.iter().any(Option::is_none) {
        let mut moved = false;
        for ((push, sent), report) in pushes.iter().zip(&mut sent).zip(&mut reports) {
            let room = tool.push_room(*push);
            let n = room.len().min(bytes.len() - *sent);
            room[..n].copy_from_slice(&bytes[*sent..*sent + n]);
            if n > 0 {
                *sent += n;
                tool.fill(*push, n, *sent == bytes.len()).unwrap();
                moved = true;
            }
            if let Some(done) = tool.take_report(*push).unwrap() {
                *report = Some(done);
                moved = true;
            }
        }
        if !moved {
            // A missed wake-up makes this poll time out.
            let timeout = tool.timeout();
            let millis = PollTimeout::try_from(timeout.unwrap_or(TIMEOUT)).unwrap();
            let ready = poll(&mut [PollFd::new(tool.as_fd(), PollFlags::POLLIN)], millis).unwrap();
            assert!(ready > 0 || timeout.is_some(), "missed wake-up with {sent:?} and {reports:?}");
        }
        while tool.dispatch(Some(Duration::ZERO)).unwrap() {}
    }
    for (got, report) in got.into_iter().zip(reports) {
        assert!(got() == bytes);
        assert_eq!(report, Some(complete_report(bytes.len(), 1)));
    }
    // The pushes are forgotten.
    assert_eq!((tool.take_report(pushes[0]).unwrap(), tool.push_room(pushes[0]).len()), (None, 0));
    tool.fill(pushes[0], 1, true).unwrap();
}
