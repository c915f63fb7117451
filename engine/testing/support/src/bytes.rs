//! Received and expected bytes.

use std::io::{self, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Pending;
use crate::noise::Noise;

/// The length and the SHA-256 of a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Sum {
    pub length: u64,
    pub sha256: String,
}

fn read_sum(mut input: impl Read) -> Sum {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut length = 0;
    loop {
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                hash.update(&buffer[..n]);
                length += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("reading: {error}"),
        }
    }
    let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Sum { length, sha256 }
}

/// Reads to the end, and keeps only the sum.
pub fn sum(input: impl Read + Send + 'static) -> Pending<Sum> {
    Pending::start(move || read_sum(input))
}

/// Returns the sum of the first `length` bytes that `rank` writes to `channel`.
pub fn noise_sum(rank: u32, channel: &'static str, length: u64) -> Pending<Sum> {
    sum(Noise::new(rank, channel).take(length))
}

/// Returns the bytes that `rank` writes to `channel`, from `offset` on.
pub fn noise(rank: u32, channel: &str, offset: u64, length: usize) -> Vec<u8> {
    let mut noise = Noise::new(rank, channel);
    io::copy(&mut (&mut noise).take(offset), &mut io::sink()).unwrap();
    let mut bytes = vec![0; length];
    noise.read_exact(&mut bytes).unwrap();
    bytes
}

/// Compares many bytes. On failure, shows where they differ instead of all bytes.
pub fn assert_same(what: &str, received: &[u8], wanted: &[u8]) {
    let difference = received.iter().zip(wanted).position(|(received, wanted)| received != wanted);
    let lengths = format!("{} bytes received, {} expected", received.len(), wanted.len());
    assert_eq!(difference, None, "{what}: the first wrong byte ({lengths})");
    assert_eq!(received.len(), wanted.len(), "{what}: the length");
}

/// Returns the objects in the output of `--output json`.
pub fn objects(output: &[u8]) -> Vec<Value> {
    output.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Returns the bytes and gaps in the output of `--output json`.
pub fn pieces(output: &[u8]) -> Vec<Value> {
    let is_piece = |object: &Value| ["output", "gap"].contains(&object["type"].as_str().unwrap());
    objects(output).into_iter().filter(is_piece).collect()
}

/// Returns the messages in the output of `--output json`, as they stand on stderr otherwise.
pub fn messages(output: &[u8]) -> String {
    let text = |object: Value| format!("iof: {}\n", object["text"].as_str().unwrap());
    objects(output).into_iter().filter(|object| object["type"] == "message").map(text).collect()
}

/// A loss, as `iof` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub offset: u64,
    pub lost: u64,
}

/// Returns the bytes and the gaps of one stream in the output of `--output json`, which must
/// contain those of no other stream.
pub fn from_json(rank: u32, channel: &str, output: &[u8]) -> (Vec<u8>, Vec<Gap>) {
    let (mut bytes, mut gaps) = (Vec::new(), Vec::new());
    for object in pieces(output) {
        assert_eq!((&object["rank"], &object["channel"]), (&rank.into(), &channel.into()), "{object}");
        match (object["lost"].as_u64(), object["data"].as_str(), object["encoding"].as_str()) {
            (Some(lost), None, None) => gaps.push(Gap { offset: object["offset"].as_u64().unwrap(), lost }),
            (None, Some(data), None) => bytes.extend_from_slice(data.as_bytes()),
            (None, Some(data), Some("base64")) => bytes.extend(BASE64.decode(data).unwrap()),
            _ => panic!("neither data nor a gap: {object}"),
        }
    }
    (bytes, gaps)
}

/// Checks that the stderr of `iof run` or `iof pull` reports exactly `gaps` of one stream, in sums,
/// and contains nothing else.
pub fn assert_told(rank: u32, channel: &str, stderr: &[u8], gaps: &[Gap]) {
    let text = std::str::from_utf8(stderr).unwrap();
    let report = |line: &str| -> Option<(u64, u64, u64, bool)> {
        let (job, line) = line.split_once(": rank ")?;
        let line =
            line.strip_prefix(&format!("{rank} {channel}: ")).filter(|_| job.starts_with("iof: job "))?;
        let (lost, rest) = line.split_once(" bytes are missing ")?;
        let (count, offset) = match rest.strip_prefix("at offset ") {
            Some(offset) => ("1", offset),
            None => rest.strip_prefix("in ")?.split_once(", the first at offset ")?,
        };
        let number = count.split(' ').next()?.parse().ok()?;
        Some((number, lost.parse().ok()?, offset.parse().ok()?, count.ends_with(" in total")))
    };
    let reports: Vec<_> =
        text.lines().map(|line| report(line).unwrap_or_else(|| panic!("no report: {line}"))).collect();
    let (totals, parts): (Vec<_>, Vec<_>) = reports.into_iter().partition(|(.., is_total)| *is_total);
    let lost: u64 = gaps.iter().map(|gap| gap.lost).sum();
    let sum = parts.iter().fold((0, 0), |(gaps, bytes), part| (gaps + part.0, bytes + part.1));
    assert_eq!(sum, (gaps.len() as u64, lost), "{text}");
    assert!(parts.iter().zip(gaps).take(1).all(|(part, gap)| part.2 == gap.offset), "{text}");
    assert_eq!(totals.len(), usize::from(parts.len() > 1), "{text}");
    assert!(totals.iter().all(|total| (total.0, total.1) == sum), "{text}");
}

/// Checks that `delivered` is what `rank` wrote to stdout: each byte in its place, and exactly the
/// bytes in `gaps` missing from the `produced` bytes.
pub fn assert_accounted(rank: u32, delivered: &[u8], gaps: &[Gap], produced: u64) {
    let lost: u64 = gaps.iter().map(|gap| gap.lost).sum();
    assert_eq!(delivered.len() as u64 + lost, produced, "delivered and lost, with {gaps:?}");
    let mut noise = Noise::new(rank, "stdout");
    let (mut rest, mut position) = (delivered, 0);
    let end = Gap { offset: produced, lost: 0 };
    for gap in gaps.iter().chain([&end]) {
        assert!(gap.offset >= position, "a gap lies before the end of the previous gap: {gaps:?}");
        let length = usize::try_from(gap.offset - position).unwrap();
        assert!(length <= rest.len(), "a gap lies behind the last byte: {gaps:?}");
        let (piece, remaining) = rest.split_at(length);
        let mut wanted = vec![0; length];
        noise.read_exact(&mut wanted).unwrap();
        assert_same(&format!("from {position} on, with {gaps:?}"), piece, &wanted);
        io::copy(&mut (&mut noise).take(gap.lost), &mut io::sink()).unwrap();
        (rest, position) = (remaining, gap.offset + gap.lost);
    }
    assert_eq!((position, rest.len()), (produced, 0), "{gaps:?}");
}
