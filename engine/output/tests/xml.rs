//! The XML of `--output xml` and a parser of XML 1.0: it accepts every element, and returns the
//! bytes of the stream and the names of its source.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use iof_output::{Batch, Choice, LabelSource, OpenLine, Run, Style, StyleExtras};
use iof_proto::{Channel, Nspace, Rank};
use proptest::prelude::*;
use roxmltree::Document;

const LISTS: [&str; 6] =
    ["xml", "xml,tag", "xml,tag-detailed", "xml,tag-fullname", "xml,timestamp,tag", "xml,rank,timestamp=ns"];

/// Formats `bytes`, cut at `cuts`, as one stream of `source`.
fn format(list: &str, source: &LabelSource, bytes: &[u8], mut cuts: Vec<usize>) -> String {
    let style = Style::new(&list.parse::<Choice>().unwrap(), &StyleExtras::default());
    let (mut label, mut open, mut all) = (style.label(source), None as OpenLine, Vec::new());
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    for ends in cuts.windows(2) {
        let (offset, times) = (ends[0] as u64, [(0, 1_795_267_078_123_456_789)]);
        let mut batch = Batch::new(Vec::new());
        let run = Run { bytes: &bytes[ends[0]..ends[1]], offset, times: &times };
        style.write(&run, &mut label, (0, &mut open), &mut batch, Batch::add);
        all.extend(batch.to_vec());
    }
    String::from_utf8(all).unwrap()
}

/// Returns the byte for a character of an element, as the documentation explains.
fn byte(character: char) -> u8 {
    let code = u32::from(character);
    u8::try_from(if (0x2400..0x2420).contains(&code) { code - 0x2400 } else { code }).unwrap()
}

/// Returns a character that XML 1.0 can contain in place of one that it cannot.
fn legal(character: char) -> char {
    match character {
        '\t' | '\n' | '\r' => character,
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(character)).unwrap(),
        '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        _ => character,
    }
}

proptest! {
    #[test]
    fn a_parser_accepts_each_line_and_the_whole_and_returns_every_byte(
        list in prop::sample::select(&LISTS[..]),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        nspace in any::<String>().prop_filter_map("no name of a job", |name| Nspace::new(name).ok()),
        host in any::<String>(),
    ) {
        let source = LabelSource {
            nspace: nspace.clone(), rank: Rank(3), channel: Channel::Stderr, logged: false,
            host: Some(host.clone()), pid: Some(4711),
        };
        let cuts = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        let text = format(list, &source, &bytes, cuts);
        let whole = format!("<all>{text}</all>");
        let parsed = Document::parse(&whole).unwrap();
        let elements: Vec<_> = parsed.root_element().children().filter(|node| node.is_element()).collect();
        prop_assert_eq!(elements.len(), text.lines().count());
        let received: Vec<u8> =
            elements.iter().flat_map(|element| element.text().unwrap_or_default().chars().map(byte)).collect();
        prop_assert_eq!(received, bytes);
        for (line, element) in text.lines().zip(&elements) {
            let alone = Document::parse(line).unwrap();
            prop_assert_eq!(alone.root_element().text(), element.text());
            prop_assert_eq!(element.tag_name().name(), "stderr");
            prop_assert_eq!(element.attribute("rank"), Some("3"));
            let name: String = nspace.as_str().chars().map(legal).collect();
            if let Some(shown) = element.attribute("nspace") {
                prop_assert_eq!(shown, &name);
            }
            if let Some(shown) = element.attribute("host") {
                let host: String = host.chars().map(legal).collect();
                prop_assert_eq!(shown, &host);
            }
        }
    }
}

#[test]
fn names_with_markup_do_not_end_their_attribute() {
    let nspace = Nspace::new("<a \"b\">&amp;'<stdout>").unwrap();
    let source = LabelSource {
        nspace: nspace.clone(),
        rank: Rank(0),
        channel: Channel::Stdout,
        logged: false,
        host: Some("\0<host>\n\"".into()),
        pid: None,
    };
    let text = format("xml,tag-detailed", &source, b"x", Vec::new());
    let parsed = Document::parse(&text).unwrap();
    let element = parsed.root_element();
    assert_eq!(element.attribute("nspace"), Some(nspace.as_str()));
    assert_eq!(element.attribute("host"), Some("\u{2400}<host>\n\""));
    assert_eq!((element.attribute("pid"), element.text()), (Some("unknown"), Some("x")));
}

#[test]
fn each_byte_has_the_documented_reference() {
    let source = LabelSource {
        nspace: Nspace::new("job").unwrap(),
        rank: Rank(0),
        channel: Channel::Stdout,
        logged: false,
        host: None,
        pid: None,
    };
    let text = format("xml", &source, b"\0\x1b\t\r\x7f\xc3\xa9\n", Vec::new());
    assert_eq!(text, "<stdout rank=\"0\">&#9216;&#9243;&#009;&#013;&#127;&#195;&#169;&#010;</stdout>\n");
}
