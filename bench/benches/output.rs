//! Writing tagged lines to a pipe: copying each line behind its tag into one buffer, beside
//! writev(2) of the tags and the lines in place. `iof_output::MIN_LENT` is the length at which the
//! two cost the same. Also compares the output formats with each other.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark may panic")]

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use iof_output::{Batch, Choice, LabelSource, Run, Style, StyleExtras};
use iof_proto::{Channel, Nspace, Rank};
use nix::fcntl::{FcntlArg, SpliceFFlags, fcntl, splice};
use nix::sys::uio::writev;
use nix::unistd::pipe;

/// The size of one batch, in bytes.
const BYTES: usize = 64 << 10;
const IOV_MAX: usize = 1024;

/// A pipe that is drained without copying.
struct Drain {
    read: OwnedFd,
    write: OwnedFd,
    null: File,
}

impl Drain {
    fn new() -> Drain {
        let (read, write) = pipe().unwrap();
        fcntl(&write, FcntlArg::F_SETPIPE_SZ(1 << 20)).unwrap();
        Drain { read, write, null: File::options().write(true).open("/dev/null").unwrap() }
    }

    fn write(&self, slices: &mut [IoSlice<'_>]) {
        let mut rest = slices;
        while !rest.is_empty() {
            let written = writev(&self.write, &rest[..rest.len().min(IOV_MAX)]).unwrap();
            IoSlice::advance_slices(&mut rest, written);
            let mut remaining = written;
            while remaining > 0 {
                remaining -=
                    splice(&self.read, None, &self.null, None, remaining, SpliceFFlags::empty()).unwrap();
            }
        }
    }
}

fn source() -> LabelSource {
    let nspace = Nspace::new("prterun-node1-77@1").unwrap();
    LabelSource {
        nspace,
        rank: Rank(3),
        channel: Channel::Stdout,
        logged: false,
        host: Some("node1".into()),
        pid: Some(4711),
    }
}

fn lines(length: usize) -> Vec<u8> {
    let mut line = vec![b'x'; length];
    line[length - 1] = b'\n';
    line.repeat(BYTES / length)
}

/// Measures writing `bytes`. `put` adds each piece to the batch.
fn bench_write<'b>(
    b: &mut criterion::Bencher<'_>,
    style: &Style,
    bytes: &'b [u8],
    put: impl Fn(&mut Batch<'b>, &'b [u8]) + Copy,
) {
    let drain = Drain::new();
    let mut label = style.label(&source());
    let mut buffer = Vec::new();
    b.iter(|| {
        let mut batch = Batch::new(std::mem::take(&mut buffer));
        let run = Run { bytes, offset: 0, times: &[(0, 1_795_267_078_123_456_789)] };
        style.write(&run, &mut label, (0, &mut None), &mut batch, put);
        drain.write(&mut batch.slices());
        buffer = batch.into_buffer();
    });
}

fn style(list: &str) -> Style {
    let choice = if list.is_empty() { Choice::default() } else { list.parse().unwrap() };
    Style::new(&choice, &StyleExtras::default())
}

fn copied_or_lent(c: &mut Criterion) {
    for length in [16, 80, 256, 512, 1024, 2048, 4096, 16384] {
        let bytes = lines(length);
        let mut group = c.benchmark_group(format!("tagged-lines/{length}"));
        group.throughput(Throughput::Bytes(BYTES as u64)).measurement_time(Duration::from_secs(1));
        group.warm_up_time(Duration::from_millis(300)).sample_size(30);
        group.bench_function("copied", |b| {
            bench_write(b, &style("tag"), &bytes, |batch, piece| batch.copy(piece));
        });
        group.bench_function("lent", |b| bench_write(b, &style("tag"), &bytes, Batch::lend));
        group.finish();
    }
}

fn formats(c: &mut Criterion) {
    let bytes = lines(80);
    let mut group = c.benchmark_group("formats/80");
    group.throughput(Throughput::Elements((BYTES / 80) as u64)).measurement_time(Duration::from_secs(1));
    group.warm_up_time(Duration::from_millis(300)).sample_size(30);
    for list in ["", "tag", "tag-detailed,timestamp", "timestamp=rfc3339,tag", "xml,tag", "json"] {
        let name = if list.is_empty() { "plain" } else { list };
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            bench_write(b, &style(list), &bytes, Batch::add);
        });
    }
    group.finish();
}

criterion_group!(benches, copied_or_lent, formats);
criterion_main!(benches);
