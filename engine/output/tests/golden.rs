//! The exact output of each `--output` list for the same input, with one file in `tests/golden` for
//! each.
//!
//! `IOF_BLESS=1 cargo test -p iof-output --test suite golden` rewrites the files; review the changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use iof_output::{Batch, Choice, Label, LabelSource, OpenLine, Run, Style, StyleExtras};
use iof_proto::{Channel, Nspace, Rank};
use jiff::tz::{Offset, TimeZone};

/// 2026-11-21 13:17:58 in UTC.
const TIME: u64 = 1_795_267_078_123_456_789;

/// The input in order: stream, bytes, and the offset in them from which they are a second younger.
const INPUT: [(usize, &[u8], u64); 10] = [
    (0, b"first\nsecond & <third>\n", 6),
    (1, b"rank 1 \"quoted\" \\ back\tslash\n", 99),
    (2, b"an error\n", 99),
    (0, b"Password: ", 99),
    (0, b"typed\nthen 10%\r", 6),
    (0, b"20%\r", 99),
    (1, b"between\n", 99),
    (0, b"30%\n\n", 99),
    (3, b"gr\xc3\xbc\xc3\x9fe \xff\x00\n", 99),
    (1, b"the end, without newline", 99),
];

fn sources() -> [LabelSource; 4] {
    let source = |nspace: &str, rank, channel, pid: Option<u32>| LabelSource {
        nspace: Nspace::new(nspace).unwrap(),
        rank: Rank(rank),
        channel,
        logged: false,
        host: pid.map(|_| "node1".to_owned()),
        pid,
    };
    [
        source("prterun-node1-77@1", 0, Channel::Stdout, Some(4711)),
        source("prterun-node1-77@1", 1, Channel::Stdout, Some(4712)),
        source("prterun-node1-77@1", 0, Channel::Stderr, Some(4711)),
        source("a \"job\" & more", 13, Channel::Stddiag, None),
    ]
}

fn format(style: &Style) -> Vec<u8> {
    let mut streams: Vec<(Label, u64)> = sources().iter().map(|source| (style.label(source), 0)).collect();
    let mut open = None as OpenLine;
    let mut all = Vec::new();
    for (number, bytes, younger) in INPUT {
        let (label, offset) = &mut streams[number];
        let run =
            Run { bytes, offset: *offset, times: &[(0, TIME), (*offset + younger, TIME + 1_000_000_000)] };
        let mut batch = Batch::new(Vec::new());
        style.write(&run, label, (number as u64, &mut open), &mut batch, Batch::add);
        *offset += bytes.len() as u64;
        all.extend(batch.to_vec());
    }
    all
}

fn check(name: &str, list: &str, extras: &StyleExtras) {
    let choice = if list.is_empty() { Choice::default() } else { list.parse().unwrap() };
    let zone = TimeZone::fixed(Offset::constant(2));
    let written = format(&Style::new(&choice, extras).in_zone(zone));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("IOF_BLESS").is_some() {
        fs::write(&path, &written).unwrap();
    }
    let wanted = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(
        written == wanted,
        "expected {name} to be\n{}\nbut it is\n{}",
        String::from_utf8_lossy(&wanted),
        String::from_utf8_lossy(&written)
    );
}

#[test]
fn every_format_matches_its_golden_file() {
    for (name, list) in [
        ("plain", ""),
        ("tag", "tag"),
        ("tag-detailed", "tag-detailed"),
        ("tag-detailed-fullname", "tag-detailed,tag-fullname"),
        ("tag-fullname", "tag-fullname"),
        ("tag-before-all-others", "rank,tag-fullname,tag-detailed,tag"),
        ("rank", "rank"),
        ("timestamp", "timestamp"),
        ("timestamp-ns", "timestamp=ns"),
        ("timestamp-us-rank", "timestamp=us,rank"),
        ("timestamp-ms-tag", "timestamp=ms,tag"),
        ("timestamp-rfc3339-tag", "timestamp=rfc3339,tag"),
        ("timestamp-tag-detailed", "timestamp,tag-detailed"),
        ("xml", "xml"),
        ("xml-tag-timestamp", "xml,tag,timestamp"),
        ("xml-fullname-before-detailed", "xml,tag-detailed,tag-fullname"),
        ("xml-tag-detailed", "xml,tag-detailed"),
        ("json", "json"),
        ("json-timestamp-ns", "json,timestamp=ns"),
        ("json-batch", "json=batch"),
    ] {
        check(name, list, &StyleExtras::default());
    }
}

#[test]
fn suffixes_colours_and_fragments_match_their_golden_files() {
    let suffix = StyleExtras { suffix: " |".into(), ..StyleExtras::default() };
    check("tag-suffix", "tag", &suffix);
    check("suffix-alone", "", &suffix);
    let fragments = StyleExtras { fragments: true, ..StyleExtras::default() };
    check("rank-by-fragment", "rank", &fragments);
    check("rank-suffix-by-fragment", "rank", &StyleExtras { suffix: "~".into(), ..fragments.clone() });
    check("json-by-fragment", "json", &fragments);
    let colour = StyleExtras { colour: true, ..StyleExtras::default() };
    check("timestamp-tag-colour", "timestamp,tag", &colour);
    check("plain-colour", "", &colour);
}

#[test]
fn fragments_without_tags_are_lines_and_with_tags_end_open_lines() {
    let fragments = StyleExtras { fragments: true, ..StyleExtras::default() };
    check("plain", "", &fragments);
    check("suffix-alone", "", &StyleExtras { suffix: " |".into(), ..fragments.clone() });
    let style = Style::new(&"rank".parse().unwrap(), &fragments);
    assert!(String::from_utf8_lossy(&format(&style)).contains("20%\r\n[1]<stdout>: between\n"));
    assert!(style.is_by_fragment() && !Style::new(&Choice::default(), &fragments).is_by_fragment());
}

#[test]
fn json_output_is_valid_and_contains_every_byte() {
    let style = Style::new(&"json".parse().unwrap(), &StyleExtras::default());
    let text = String::from_utf8(format(&style)).unwrap();
    let mut streams = vec![Vec::new(); 4];
    for line in text.lines() {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        let stream = sources().iter().position(|source| {
            object["rank"] == source.rank.0 && object["channel"] == source.channel.as_str()
        });
        let bytes = &mut streams[stream.unwrap()];
        assert_eq!(object["offset"], bytes.len());
        let data = object["data"].as_str().unwrap();
        match object.get("encoding") {
            None => bytes.extend(data.bytes()),
            Some(encoding) => {
                use base64::Engine;
                assert_eq!(encoding, "base64");
                bytes.extend(base64::engine::general_purpose::STANDARD.decode(data).unwrap());
            }
        }
    }
    for (number, bytes) in streams.iter().enumerate() {
        let input = INPUT.iter().filter(|(stream, ..)| *stream == number);
        let wanted: Vec<u8> = input.flat_map(|(_, bytes, _)| bytes.to_vec()).collect();
        assert_eq!(*bytes, wanted, "stream {number}");
    }
}

#[test]
fn json_marks_logged_data_and_has_no_rank_for_data_of_the_whole_job() {
    let line = |rank, logged| {
        let nspace = Nspace::new("job").unwrap();
        let source = LabelSource { nspace, rank, channel: Channel::Stderr, logged, host: None, pid: None };
        let style = Style::new(&"json".parse().unwrap(), &StyleExtras::default());
        let (mut batch, mut open) = (Batch::new(Vec::new()), None as OpenLine);
        let run = Run { bytes: b"x\n", offset: 0, times: &[(0, TIME)] };
        style.write(&run, &mut style.label(&source), (0, &mut open), &mut batch, Batch::add);
        let line: serde_json::Value = serde_json::from_slice(&batch.to_vec()).unwrap();
        (line["rank"].clone(), line.get("logged").cloned())
    };
    use serde_json::Value::Null;
    assert_eq!(line(Rank(2), false), (2.into(), None));
    assert_eq!(line(Rank(2), true), (2.into(), Some(true.into())));
    assert_eq!(line(Rank::UNDEF, true), (Null, Some(true.into())));
}
