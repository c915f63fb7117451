//! Moves to another capacity or policy cost no reader a byte within its cache.

use iof_shm_ring::{Policy, Start, StreamConfig};

use crate::tool::{CAPACITY, Tool, bytes, catch_up, stream};

const PIECE: usize = 1000;

fn config(capacity: u64, policy: Policy) -> StreamConfig {
    StreamConfig { capacity, policy }
}

fn assert_all(got: &[u8], produced: &[u8]) {
    assert!(got == produced, "{} of {} bytes, or others", got.len(), produced.len());
}

#[test]
fn a_paused_reader_loses_nothing_to_changes_within_its_cache() {
    for non_gating in [false, true] {
        let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
        let mut reader = if non_gating {
            tool.attach_non_gating(&mut stream, Start::Oldest)
        } else {
            tool.attach(&mut stream, Start::Oldest, false)
        };
        let all = bytes(20 * PIECE);
        for (number, piece) in (0..).zip(all.chunks(PIECE)) {
            stream.reconfigure(config((2 + number % 3) * CAPACITY, Policy::DropNewest)).unwrap();
            stream.push(piece, 1);
        }
        assert_eq!(stream.stats().generation, 1, "the second change waits for the reader");
        assert_all(&catch_up(&tool, &mut stream, &mut reader), &all);
        assert_eq!(reader.lost(), 0);
        stream.reconfigure(config(8 * CAPACITY, Policy::DropNewest)).unwrap();
        stream.push(b"x", 1);
        assert_eq!(stream.stats().generation, 2, "the reader has followed");
    }
}

#[test]
fn a_stopped_reader_costs_nothing_to_one_that_requests_a_larger_cache() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let _stopped = tool.attach(&mut stream, Start::Oldest, false);
    stream.push(b"x", 1);
    stream.reconfigure(config(2 * CAPACITY, Policy::DropNewest)).unwrap();
    stream.push(b"x", 1);
    let mut greedy = tool.attach(&mut stream, Start::Now, false);
    stream.reconfigure(config(16 * CAPACITY, Policy::DropNewest)).unwrap();
    let all = bytes(17 * CAPACITY as usize);
    for piece in all.chunks(PIECE) {
        stream.push(piece, 1);
    }
    assert_eq!(stream.stats().generation, 2);
    assert_all(&catch_up(&tool, &mut stream, &mut greedy), &all);
    assert_eq!(greedy.lost(), 0);
}

#[test]
fn another_policy_takes_effect_before_it_costs_a_byte() {
    let (mut stream, tool) = (stream(Policy::DropOldest), Tool::new());
    let _stopped = tool.attach(&mut stream, Start::Oldest, false);
    stream.reconfigure(config(2 * CAPACITY, Policy::DropOldest)).unwrap();
    stream.push(b"x", 1);
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    stream.reconfigure(config(2 * CAPACITY, Policy::DropNewest)).unwrap();
    let all = bytes(2 * CAPACITY as usize);
    for piece in all.chunks(PIECE) {
        stream.push(piece, 1);
    }
    assert_eq!(stream.policy(), Policy::DropNewest);
    assert_all(&catch_up(&tool, &mut stream, &mut reader), &[b"x", all.as_slice()].concat());
    assert_eq!(reader.lost(), 0);
}

#[test]
fn a_cache_with_readers_shrinks_when_that_frees_memory() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    for _ in 0..100 {
        stream.reconfigure(config(4 * CAPACITY, Policy::DropNewest)).unwrap();
        stream.push(b"x", 1);
        catch_up(&tool, &mut stream, &mut reader);
        stream.reconfigure(config(CAPACITY, Policy::DropNewest)).unwrap();
        stream.push(b"x", 1);
        catch_up(&tool, &mut stream, &mut reader);
    }
    assert_eq!(stream.stats().generation, 1, "a cache that was hardly used stays");
    for piece in bytes(CAPACITY as usize + PIECE).chunks(PIECE) {
        stream.push(piece, 1);
        catch_up(&tool, &mut stream, &mut reader);
    }
    assert_eq!(reader.ring().capacity(), CAPACITY);
    assert_eq!(reader.lost(), 0);
}

#[test]
fn a_stream_that_moves_away_from_a_reader_takes_its_requested_options() {
    let (mut stream, tool) = (stream(Policy::DropNewest), Tool::new());
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let _slow = tool.attach(&mut stream, Start::Oldest, false);
    stream.reconfigure(config(CAPACITY / 2, Policy::DropNewest)).unwrap();
    let all = bytes(2 * CAPACITY as usize);
    let mut got = Vec::new();
    for piece in all.chunks(PIECE) {
        stream.push(piece, 1);
        got.extend(catch_up(&tool, &mut stream, &mut reader));
    }
    assert_eq!(reader.ring().capacity(), CAPACITY / 2);
    assert_all(&got, &all);
    assert_eq!(reader.lost(), 0);
}
