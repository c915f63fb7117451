//! Rings whose memory the kernel cannot provide. The test changes all rings of its process, so this
//! program has one test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail this way")]

use std::fs;
use std::io::Write;

use iof_capture::{BackendKind, SourceId};
use iof_shm_ring::Policy;
use iof_testing::capture::{add, rig_on, stream, tool, wait_end, wait_until};
use iof_testing::noise::seeded_pattern;
use iof_testing::pipes::pipe;

const ID: SourceId = SourceId(1);

/// Sets the protection of the writer's mappings of all ring data in this process.
fn protect(access: libc::c_int) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = 0;
    for map in maps.lines().filter(|map| map.contains("iof-ring") && map.contains("s ")) {
        let fields: Vec<&str> = map.split_whitespace().collect();
        if fields[1].starts_with("r-") {
            // A reader's mapping.
            continue;
        }
        let (start, end) = fields[0].split_once('-').unwrap();
        let [start, end, offset] =
            [start, end, fields[2]].map(|number| usize::from_str_radix(number, 16).unwrap());
        // The control words and the index of a ring this small are in its first page.
        let start = if offset == 0 { start + 4096 } else { start };
        if start == end {
            continue;
        }
        // SAFETY: this is the writer's mapping of the data. Only the kernel writes through it, and
        // nothing reads through it.
        let result =
            unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(start), end - start, access) };
        assert_eq!(result, 0);
        found += 1;
    }
    assert!(found > 0, "no ring is mapped: {maps}");
}

#[test]
fn a_read_without_memory_waits_or_drops_by_the_policy_and_does_not_end_the_source() {
    for backend in [BackendKind::IoUring, BackendKind::Epoll] {
        for policy in [Policy::Block, Policy::DropNewest, Policy::DropOldest] {
            let rig = rig_on(backend);
            let mut tool = tool();
            let mut stream = stream(64 * 1024, policy);
            let mut reader = tool.attach_first(&mut stream, policy == Policy::Block);
            reader.set_room_bell(rig.capture.room_bell().unwrap());
            let (read, mut write) = pipe();
            rig.capture.send([add(ID, read, stream)]).unwrap();
            let bytes = seeded_pattern(3000, 1);
            let mut produced = 1000;
            write.write_all(&bytes[..1000]).unwrap();
            wait_until(&rig.capture, ID, |stats| stats.produced == 1000);
            protect(libc::PROT_NONE);
            write.write_all(&bytes[1000..2000]).unwrap();
            if policy != Policy::Block {
                produced = 2000;
                wait_until(&rig.capture, ID, |stats| (stats.produced, stats.dropped) == (2000, 1000));
            }
            wait_until(&rig.capture, ID, |stats| stats.produced == produced && !stats.complete);
            protect(libc::PROT_READ | libc::PROT_WRITE);
            write.write_all(&bytes[2000..]).unwrap();
            drop(write);
            let end = wait_end(&rig.events, ID);
            assert!(end.error.is_none() && !end.closed, "{end:?}");
            let lost = if policy == Policy::Block { 0 } else { 1000 };
            assert_eq!((end.produced, end.dropped), (3000, lost), "{backend} {policy:?}");
            let (got, gaps) = tool.read_to_end(&rig.capture, ID, &mut reader);
            assert_eq!(gaps.iter().map(|gap| gap.lost).sum::<u64>(), lost);
            assert!(got.ends_with(&bytes[2000..]) && got.starts_with(&bytes[..1000]));
        }
    }
}
