//! The XML that `iof run` writes, and a parser of XML 1.0.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;

use iof_testing::command::site::{BACKENDS, Site, rank};
use iof_testing::noise::Noise;
use iof_testing::process::Process;
use roxmltree::Document;

/// Returns the byte for a character of an element, as the documentation explains.
fn byte(character: char) -> u8 {
    let code = u32::from(character);
    u8::try_from(if (0x2400..0x2420).contains(&code) { code - 0x2400 } else { code }).unwrap()
}

/// The bytes of each channel of each rank.
type Streams = BTreeMap<(String, u32), Vec<u8>>;

/// Parses each line of `text` as a document, and the whole as one, and adds the bytes of all
/// elements to `streams`.
fn parse(text: &str, streams: &mut Streams) {
    let whole = format!("<all>{text}</all>");
    let parsed = Document::parse(&whole).unwrap_or_else(|error| panic!("{error}"));
    let elements: Vec<_> = parsed.root_element().children().filter(|node| node.is_element()).collect();
    assert_eq!(elements.len(), text.lines().count());
    for (line, element) in text.lines().zip(elements) {
        let alone = Document::parse(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(alone.root_element().text(), element.text());
        let rank = element.attribute("rank").unwrap().parse().unwrap();
        let stream = streams.entry((element.tag_name().name().to_owned(), rank)).or_default();
        stream.extend(element.text().unwrap_or_default().chars().map(byte));
    }
}

/// Runs a job of two ranks, and returns the bytes that its XML contains.
fn streams_of(site: &Site, options: &[&str], program: &[String]) -> Streams {
    let done = site.run(&[&["-n", "2"], options].concat(), program).finish();
    assert_eq!(done.code, 0, "{}", done.stderr);
    let mut streams = Streams::new();
    parse(done.text(), &mut streams);
    parse(&done.stderr, &mut streams);
    streams
}

const CHANNELS: [&str; 3] = ["stdout", "stderr", "stddiag"];

#[test]
fn a_parser_restores_the_random_bytes_of_two_ranks_from_the_xml() {
    const LENGTH: usize = 40_000;
    for backend in BACKENDS {
        for options in [&["--xml"][..], &["--output", "xml"], &["--output", "xml,tag-detailed,timestamp=ns"]]
        {
            let site = Site::on(backend);
            let program = rank(["--length", &LENGTH.to_string(), "--channels", &CHANNELS.join(",")]);
            let streams = streams_of(&site, options, &program);
            assert_eq!(streams.len(), 6);
            for ((channel, rank), bytes) in streams {
                let channel = CHANNELS.into_iter().find(|name| *name == channel).unwrap();
                let mut wanted = vec![0; LENGTH];
                Noise::new(rank, channel).read_exact(&mut wanted).unwrap();
                assert!(bytes == wanted, "rank {rank}'s {channel} with {options:?} on {backend}");
            }
        }
    }
}

#[test]
fn a_parser_restores_each_byte_and_markup_of_both_channels_from_the_xml() {
    let site = Site::new();
    let texts = [
        (0..=255).collect(),
        b"<stdout>&amp;&#27;]]><!-- --><?x?></stdout>\n\0\x1b[1m\r\n".to_vec(),
        "é\u{fffe}\u{2400}\u{10ffff}\n".as_bytes().to_vec(),
        b"\xff\xfe\xc3".to_vec(),
    ];
    for (number, text) in texts.iter().enumerate() {
        let file = site.path().join(number.to_string());
        fs::write(&file, text).unwrap();
        // stderr has the bytes in the opposite order.
        let reversed = site.path().join(format!("{number}.reversed"));
        fs::write(&reversed, text.iter().rev().copied().collect::<Vec<u8>>()).unwrap();
        let script = format!("cat {}; cat {} >&2", file.display(), reversed.display());
        let name = "<a \"b\">&amp;'\u{fffe}é";
        let program = ["sh".into(), "-c".into(), script];
        let streams = streams_of(&site, &["--xml", "--nspace", name, "--output", "tag-fullname"], &program);
        assert_eq!(streams.len(), 4, "{streams:?}");
        for ((channel, rank), bytes) in streams {
            let wanted: Vec<u8> = match channel.as_str() {
                "stdout" => text.clone(),
                _ => text.iter().rev().copied().collect(),
            };
            assert_eq!(bytes, wanted, "rank {rank}'s {channel}");
        }
    }
}

#[test]
fn a_parser_restores_the_bytes_from_xml_in_files_and_of_a_pull() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let pattern = site.path().join("%t.%c.xml");
    let files = format!("xml,file={}:pattern:copy", pattern.display());
    let script = format!("printf '\\001<%s>&\\n\\377' $IOF_RANK; printf '\\000' >&2; : < {}", gate.path());
    let run = site.run_sh(&["-n", "2", "--output", &files], &script);
    for rank in 0..2 {
        site.wait_for_bytes(rank, "stdout", 7);
    }
    let pull: Process = site.pull(&["--output", "xml"]);
    site.wait_for_pulls(0, "stdout", 1);
    gate.open();
    let (run, pull) = (run.finish(), pull.finish());
    let wanted: Streams = (0..2)
        .flat_map(|rank| {
            let out = format!("\x01<{rank}>&\n").into_bytes().into_iter().chain([0xff]).collect();
            [(("stdout".into(), rank), out), (("stderr".into(), rank), vec![0])]
        })
        .collect();
    for (place, done) in [("run", run), ("pull", pull)] {
        let mut streams = Streams::new();
        parse(done.text(), &mut streams);
        parse(&done.stderr, &mut streams);
        assert_eq!((done.code, streams), (0, wanted.clone()), "{place}");
    }
    let mut streams = Streams::new();
    for rank in 0..2 {
        for channel in ["stdout", "stderr"] {
            let file = site.path().join(format!("{rank}.{channel}.xml"));
            parse(&fs::read_to_string(file).unwrap(), &mut streams);
        }
    }
    assert_eq!(streams, wanted, "files");
}
