//! A tool in its own event loop: one descriptor and one timeout announce everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::Write;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::unbounded;
use iof_engine::{Grant, Policy};
use iof_proto::directive::key;
use iof_proto::query::key as query;
use iof_proto::{Channels, Info};
use iof_testing::TIMEOUT;
use iof_testing::engine::streams::{DeliveryRecord, Pipes, all_of, engine_with_policy};
use iof_tool::{Delivery, Pull, Tool};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Sleeps as an event loop does. Panics if the descriptor stays silent without a timeout.
fn sleep(tool: &Tool) {
    let start = Instant::now();
    let timeout = tool.timeout();
    let longest = timeout.unwrap_or(TIMEOUT);
    let millis = PollTimeout::try_from(longest.as_micros().div_ceil(1000)).unwrap();
    let ready = poll(&mut [PollFd::new(tool.as_fd(), PollFlags::POLLIN)], millis).unwrap();
    assert!(ready > 0 || timeout.is_some(), "missed a wake-up for {:?}", start.elapsed());
}

#[test]
fn the_descriptor_and_the_timeout_suffice_to_receive_everything() {
    for buffered in [false, true] {
        let engine = engine_with_policy(Policy::Block, 65_536);
        let mut tool = engine.attach("test", Grant::Block).unwrap();
        let directives = buffered.then(|| {
            [
                Info::required(key::PMIX_IOF_BUFFERING_SIZE, 3000u32),
                Info::required(key::IOF_BUFFERING_TIME_US, 500u32),
            ]
        });
        let directives: Vec<Info> = directives.into_iter().flatten().collect();
        tool.pull(&Pull { directives, ..Pull::new(vec![all_of("job")], Channels::STDOUT) }).unwrap();
        let pipes = Pipes::adopt(&engine, "job", 3);
        let writers: Vec<_> = (0..3)
            .map(|rank| {
                let mut pipe = pipes.writer(rank);
                thread::spawn(move || {
                    for round in 0..2000u32 {
                        pipe.write_all(&[b'x'; 100]).unwrap();
                        if round % 64 == 0 {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                })
            })
            .collect();
        let end = thread::spawn(move || {
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            pipes.end(0);
        });
        let mut record = DeliveryRecord::default();
        while !tool.is_done() {
            sleep(&tool);
            while let Some(delivery) = tool.try_recv().unwrap() {
                record.add(&delivery);
            }
        }
        end.join().unwrap();
        for rank in 0..3 {
            assert_eq!(record.stdout(1, "job", rank).bytes.len(), 200_000);
        }
    }
}

/// Each line is written only after the previous one was delivered, at any moment between the tool's
/// rounds. A single missed wake-up stops the test.
#[test]
fn no_wake_up_is_ever_missed() {
    const LINES: u32 = 10_000;
    const RANKS: usize = 3;
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
    let pipes = Pipes::adopt(&engine, "job", RANKS.try_into().unwrap());
    let turns: Vec<_> = (0..RANKS)
        .map(|rank| {
            let (taken, next) = unbounded::<()>();
            let mut pipe = pipes.writer(rank);
            thread::spawn(move || {
                for line in 0..LINES {
                    pipe.write_all(b"a line\n").unwrap();
                    next.recv_timeout(TIMEOUT).unwrap();
                    // Varies the moment within the tool's round.
                    (0..line % 97 * 20).for_each(|_| std::hint::spin_loop());
                }
            });
            taken
        })
        .collect();
    let mut lines = 0;
    let mut requests = 0u32;
    while lines < RANKS * LINES as usize {
        sleep(&tool);
        while let Some(delivery) = tool.try_recv().unwrap() {
            let Delivery::Bytes(bytes) = delivery else { panic!("{delivery:?}") };
            assert_eq!(&*bytes, b"a line\n");
            let rank = bytes.origin().source.rank.0 as usize;
            lines += 1;
            // The writer of the last line may have ended.
            let _ = turns[rank].send(());
        }
        // Messages that arrive together with an answer must wake the loop, too.
        if requests < 500 && lines % 7 == 0 {
            requests += 1;
            tool.query(&[query::PMIX_QUERY_NAMESPACES]).unwrap();
        }
    }
}

/// Jobs start and end between requests. The messages about them must wake the tool or keep it
/// awake.
#[test]
fn messages_that_arrive_with_an_answer_wake_the_tool() {
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    for round in 0..200 {
        let nspace = format!("job{round}");
        // The registration comes before or after the job.
        let pull = Pull { persistent: true, ..Pull::new(vec![all_of(&nspace)], Channels::STDOUT) };
        let pipes = if round % 2 == 0 {
            tool.pull(&pull).unwrap();
            Pipes::adopt(&engine, &nspace, 2)
        } else {
            let pipes = Pipes::adopt(&engine, &nspace, 2);
            tool.pull(&pull).unwrap();
            pipes
        };
        pipes.write(0, b"one");
        pipes.write(1, b"two");
        let end = thread::spawn(move || pipes.end(0));
        while !end.is_finished() {
            tool.query(&[query::PMIX_QUERY_NAMESPACES]).unwrap();
        }
        tool.query(&[query::PMIX_QUERY_NAMESPACES]).unwrap();
        let mut record = DeliveryRecord::default();
        while record.job_ends.is_empty() {
            sleep(&tool);
            while let Some(delivery) = tool.try_recv().unwrap() {
                record.add(&delivery);
                if let Delivery::Complete { origin, .. } = delivery {
                    assert_eq!(origin.handler, round + 1);
                    tool.query(&[query::PMIX_QUERY_NAMESPACES]).unwrap();
                }
            }
        }
        tool.deregister(round + 1).unwrap();
        while record.deregistered.is_empty() {
            sleep(&tool);
            while let Some(delivery) = tool.try_recv().unwrap() {
                record.add(&delivery);
            }
        }
    }
}

#[test]
fn an_engine_that_ends_wakes_its_tools() {
    let engine = engine_with_policy(Policy::DropNewest, 65_536);
    let mut tool = engine.attach("test", Grant::Never).unwrap();
    tool.pull(&Pull::new(vec![all_of("job")], Channels::STDOUT)).unwrap();
    assert!(tool.try_recv().unwrap().is_none());
    let end = thread::spawn(move || drop(engine));
    while !tool.is_done() {
        sleep(&tool);
        assert!(tool.try_recv().unwrap().is_none());
    }
    end.join().unwrap();
}
