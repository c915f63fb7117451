//! A rank for the integration tests that writes pseudo-random bytes to its channels and waits at
//! gates.
//!
//! ```text
//! rank --length BYTES [--channels stdout,stderr,stddiag] [--write-size BYTES] [--gate OFFSET:FIFO]... [--progress FILE]
//! ```
//!
//! Every channel gets `--length` bytes of the [`Noise`] of this rank (`IOF_RANK`) and channel. The
//! channels alternate after each write. Before the byte at a gate's offset, the rank waits until
//! the fifo is opened for writing; it passes a gate at `--length` before it exits. After every
//! write, the rank stores in the `--progress` file how many bytes of its last channel the kernel
//! has accepted, as 8 bytes in native order.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a broken test program should fail loudly")]

use std::env;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use iof_testing::noise::Noise;

struct Channel {
    file: File,
    noise: Noise,
}

fn main() {
    let (mut length, mut write_size, mut channels) = (0u64, 65_536u64, String::from("stdout"));
    let mut gates: Vec<(u64, PathBuf)> = Vec::new();
    let mut progress = None;
    let mut args = env::args().skip(1);
    while let Some(option) = args.next() {
        let value = args.next().unwrap();
        match option.as_str() {
            "--length" => length = value.parse().unwrap(),
            "--write-size" => write_size = value.parse().unwrap(),
            "--channels" => channels = value,
            "--gate" => {
                let (offset, fifo) = value.split_once(':').unwrap();
                gates.push((offset.parse().unwrap(), fifo.into()));
            }
            "--progress" => progress = Some(File::create(value).unwrap()),
            other => panic!("unknown option {other}"),
        }
    }
    gates.sort();

    let rank = env::var("IOF_RANK").unwrap().parse().unwrap();
    let open = |name: &str| Channel { file: file(name), noise: Noise::new(rank, name) };
    let mut channels: Vec<Channel> = channels.split(',').map(open).collect();
    let mut buffer = vec![0; usize::try_from(write_size).unwrap()];
    let mut gates = gates.into_iter().peekable();
    let mut offset = 0;
    loop {
        while let Some((_, fifo)) = gates.next_if(|(position, _)| *position == offset) {
            File::open(fifo).unwrap();
        }
        if offset == length {
            return;
        }
        let next_stop = gates.peek().map_or(length, |(position, _)| *position);
        let n = write_size.min(next_stop - offset);
        let bytes = &mut buffer[..usize::try_from(n).unwrap()];
        for Channel { file, noise } in &mut channels {
            noise.read_exact(bytes).unwrap();
            file.write_all(bytes).unwrap();
        }
        offset += n;
        if let Some(file) = &progress {
            file.write_all_at(&offset.to_ne_bytes(), 0).unwrap();
        }
    }
}

/// Opens a channel without a buffer: each write is one write(2).
fn file(channel: &str) -> File {
    match channel {
        "stdout" => std::io::stdout().as_fd().try_clone_to_owned().unwrap().into(),
        "stderr" => std::io::stderr().as_fd().try_clone_to_owned().unwrap().into(),
        "stddiag" => {
            let fd = env::var("IOF_STDDIAG_FD").unwrap();
            File::options().write(true).open(format!("/proc/self/fd/{fd}")).unwrap()
        }
        other => panic!("unknown channel {other}"),
    }
}
