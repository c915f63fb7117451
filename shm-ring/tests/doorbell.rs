//! Doorbells with a hostile listener.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use iof_shm_ring::{Bell, doorbell};
use iof_testing::stalled::StalledPage;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt::SndBuf};
use nix::unistd::write;

fn rings(bell: &Bell) -> bool {
    poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
}

#[test]
fn a_listener_whose_memory_faults_slowly_does_not_block_the_ringer() {
    let page = match StalledPage::new() {
        Ok(page) => page,
        Err(error) => return eprintln!("not tested: this user may not stall a system call ({error})"),
    };
    let (ringer, bell) = doorbell().unwrap();
    ringer.ring();
    let read = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            assert!(page.read_from(&bell, 512).unwrap() > 0);
            read.store(true, SeqCst);
        });
        page.wait_for_use().unwrap();
        let rung = threads.spawn(|| {
            (0..1000).for_each(|_| ringer.ring());
            read.load(SeqCst)
        });
        // If a ring waits for the listener, it waits for the page, which is resolved after a minute
        // at the latest.
        let done = (0..6000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            rung.is_finished()
        });
        page.resolve(&[]).unwrap();
        let read_before = rung.join().unwrap();
        assert!(done && !read_before, "the ringer waited for the listener");
    });
    ringer.ring();
    assert!(rings(&bell), "a later ring arrives");
}

#[test]
fn a_full_blocking_or_closed_listener_does_not_block_the_ringer() {
    let (ringer, bell) = doorbell().unwrap();
    fcntl(&bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (0..10_000).for_each(|_| ringer.ring());
    assert!(rings(&bell));
    drop(bell);
    ringer.ring();
}

#[test]
fn unread_rings_count_as_one() {
    let (ringer, bell) = doorbell().unwrap();
    assert!(!rings(&bell));
    (0..10_000).for_each(|_| ringer.ring());
    assert!(rings(&bell));
    bell.silence();
    assert!(!rings(&bell));
    ringer.ring();
    assert!(rings(&bell), "a bell that was silenced rings again");
}

#[test]
fn a_ringer_that_floods_the_bell_does_not_keep_the_listener_busy() {
    let (ringer, bell) = doorbell().unwrap();
    setsockopt(&ringer, SndBuf, &1_000_000).unwrap();
    assert_eq!(write(&ringer, &[1; 10_000]), Ok(10_000));
    bell.silence();
    assert!(rings(&bell), "the listener has taken a bounded number of rings");
    for _ in 0..10_000 {
        bell.silence();
    }
    assert!(!rings(&bell));
    ringer.ring();
    assert!(rings(&bell), "a bell that was silenced rings again");
}

#[test]
fn a_listener_cannot_send_to_the_ringer() {
    let (_ringer, bell) = doorbell().unwrap();
    assert_eq!(write(&bell, b"x"), Err(Errno::EPIPE));
}
