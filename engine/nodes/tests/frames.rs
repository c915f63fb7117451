//! The encoding of frames, and bytes that encode none.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Read;

use iof_nodes::limits::{
    MAX_ANSWER, MAX_CONTROL, MAX_RANKS_OF_NODE, MAX_RECORD, MAX_STDIN, MAX_TEXT, MAX_TOTALS,
};
use iof_nodes::{
    Bundle, Frame, FrameDecoder, FrameError, HEADER, NodeConfig, NodeStart, RankTotal, StreamKey, ToAgent,
    ToFrontEnd, cut_text, first_header,
};
use iof_proto::{Channel, InputState, Interaction, JobSpec, Policy, Rank, Rendezvous};
use proptest::prelude::*;

fn stream() -> impl Strategy<Value = StreamKey> {
    let channels = prop_oneof![Just(Channel::Stdout), Just(Channel::Stderr), Just(Channel::Stddiag)];
    (any::<u32>(), channels).prop_map(|(rank, channel)| StreamKey { rank: Rank(rank), channel })
}

fn frame(payload: &[u8]) -> impl Strategy<Value = Frame<'_>> {
    let numbers = || (0u32..3, stream(), any::<u64>(), any::<u64>());
    prop_oneof![
        numbers().prop_map(move |(pull, stream, offset, time)| Frame::Record {
            pull,
            stream,
            offset,
            time,
            input: InputState { interaction: Interaction::from_bits(time), is_answer: offset % 2 == 0 },
            bytes: payload
        }),
        numbers().prop_map(|(pull, stream, offset, lost)| Frame::Gap { pull, stream, offset, lost }),
        numbers().prop_map(|(pull, stream, produced, _)| Frame::End { pull, stream, produced }),
        any::<u64>().prop_map(|bytes| Frame::Credit { bundle: Bundle::Errors, bytes }),
        Just(Frame::Control(payload)),
        any::<u32>().prop_map(|version| Frame::Hello { version }),
        Just(Frame::Padding),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn frames_survive_their_encoding_in_pieces_of_any_length(
        frames in prop::collection::vec(frame(b"some bytes of output\n"), 1..20),
        pieces in prop::collection::vec(1usize..90, 1..50),
    ) {
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.append_to(&mut bytes);
            // A kind that is skipped.
            bytes.extend([200, 9, 9, 9, 3, 0, 0, 0].into_iter().chain([1; HEADER - 8 + 3]));
        }
        let (mut decoder, mut decoded, mut rest) = (FrameDecoder::of_agent(), 0, bytes.as_slice());
        for length in pieces.into_iter().cycle() {
            let (piece, after) = rest.split_at(length.min(rest.len()));
            decoder.receive(piece);
            while let Some(frame) = decoder.decode().unwrap() {
                prop_assert_eq!(frame, frames[decoded]);
                decoded += 1;
            }
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!((decoded, decoder.held()), (frames.len(), 0));
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..300)) {
        let mut decoder = FrameDecoder::of_agent();
        decoder.receive(&bytes);
        while let Ok(Some(frame)) = decoder.decode() {
            // Each frame has one encoding.
            let mut encoded = Vec::new();
            frame.append_to(&mut encoded);
            prop_assert!(bytes.windows(encoded.len()).any(|window| window == encoded));
        }
    }
}

/// A pipe that returns no more than the next of these lengths at each read.
struct Pieces<'a>(&'a [u8], std::iter::Cycle<std::slice::Iter<'a, usize>>);

impl Read for Pieces<'_> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let length = self.1.next().map_or(room.len(), |length| *length.min(&room.len()));
        self.0.read(&mut room[..length])
    }
}

#[test]
fn long_frames_that_are_read_in_parts_arrive_unchanged() {
    let lengths = [MAX_RECORD, 1, MAX_RECORD - HEADER, 40_000, MAX_RECORD - 1, 3];
    let bytes: Vec<u8> = (0..MAX_RECORD).map(|number| (number % 251) as u8).collect();
    let record = |number: usize| {
        let stream = StreamKey { rank: Rank(1), channel: Channel::Stdout };
        let bytes = &bytes[..lengths[number % lengths.len()]];
        Frame::Record {
            pull: 0,
            stream,
            offset: number as u64,
            time: 5,
            input: InputState::UNBUFFERED,
            bytes,
        }
    };
    let answer = vec![7; MAX_ANSWER];
    let frame = |number| if number % 10 == 9 { Frame::Control(&answer) } else { record(number) };
    let mut sent = Vec::new();
    (0..60).for_each(|number| frame(number).append_to(&mut sent));
    for pieces in [&[usize::MAX][..], &[MAX_RECORD], &[4096, MAX_RECORD + HEADER], &[HEADER + 1, 100_000, 1]]
    {
        let (mut decoder, mut decoded) = (FrameDecoder::of_agent(), 0);
        let mut pipe = Pieces(&sent, pieces.iter().cycle());
        while decoder.read_from(&mut pipe).unwrap() > 0 {
            while let Some(arrived) = decoder.decode().unwrap() {
                assert!(arrived == frame(decoded), "frame {decoded}");
                decoded += 1;
            }
            assert!(decoder.held() < HEADER + MAX_ANSWER);
        }
        assert_eq!((decoded, decoder.held()), (60, 0));
    }
}

fn error(bytes: &[u8]) -> FrameError {
    let mut decoder = FrameDecoder::of_front_end();
    decoder.receive(bytes);
    let error = decoder.decode().unwrap_err();
    assert_eq!(decoder.decode(), Err(error.clone()));
    error
}

#[test]
fn what_is_not_a_frame_is_an_error_before_its_payload_is_read() {
    let header = |first: [u8; 8]| -> Vec<u8> { first.into_iter().chain([0; HEADER - 8]).collect() };
    assert_eq!(error(&header([0; 8])), FrameError::Kind(0));
    assert_eq!(error(&header([10, 0, 0, 0, 0, 0, 0, 0])), FrameError::Kind(10));
    let too_long = |kind, length, limit| FrameError::TooLong { kind, length, limit };
    assert_eq!(error(&header([1, 1, 1, 0, 1, 0, 1, 0])), too_long(1, 65537, MAX_RECORD));
    assert_eq!(error(&header([5, 0, 0, 0, 255, 255, 255, 255])), too_long(5, u32::MAX as usize, MAX_CONTROL));
    assert_eq!(error(&header([2, 1, 1, 0, 1, 0, 0, 0])), too_long(2, 1, 0));
    assert_eq!(error(&header([2, 0, 1, 0, 0, 0, 0, 0])), FrameError::Field { kind: 2, field: "channel" });
    assert_eq!(error(&header([2, 2, 1, 0, 0, 0, 0, 0])), FrameError::Field { kind: 2, field: "bundle" });
    assert_eq!(error(&header([6, 0, 0, 0, 0, 0, 0, 0])), FrameError::Field { kind: 6, field: "magic" });
    let meaningless = FrameError::Field { kind: 3, field: "field without a meaning" };
    assert_eq!(error(&header([3, 1, 1, 2, 0, 0, 0, 0])), meaningless);
    let mut reserved = header([4, 0, 1, 0, 0, 0, 0, 0]);
    reserved[12] = 1;
    assert_eq!(error(&reserved), FrameError::Field { kind: 4, field: "field without a meaning" });
    // The end of a pulled stream in the bundle of its channel, and the end of another one in that of pulls.
    let mut pulled = header([3, 1, 1, 0, 0, 0, 0, 0]);
    pulled[12] = 1;
    assert_eq!(error(&pulled), FrameError::Field { kind: 3, field: "bundle" });
    assert_eq!(error(&header([3, 1, 3, 0, 0, 0, 0, 0])), FrameError::Field { kind: 3, field: "bundle" });
}

#[test]
fn control_messages_of_agents_have_a_lower_limit() {
    let header = |length: usize| -> Vec<u8> {
        let length = u32::try_from(length).unwrap().to_le_bytes();
        [5, 0, 0, 0].into_iter().chain(length).chain([0; HEADER - 8]).collect()
    };
    let mut decoder = FrameDecoder::of_agent();
    decoder.receive(&header(MAX_ANSWER));
    assert_eq!(decoder.decode(), Ok(None));
    let mut decoder = FrameDecoder::of_agent();
    decoder.receive(&header(MAX_ANSWER + 1));
    let error = FrameError::TooLong { kind: 5, length: MAX_ANSWER + 1, limit: MAX_ANSWER };
    assert_eq!(decoder.decode(), Err(error));
    let cut_off = vec![(Rank(u32::MAX), Channel::Stddiag); 3 * MAX_RANKS_OF_NODE as usize];
    assert!(ToFrontEnd::Over { cut_off }.frame().is_ok());
    let pids = vec![u32::MAX; MAX_RANKS_OF_NODE as usize];
    assert!(ToFrontEnd::Started { pids }.frame().is_ok());
    let total = RankTotal { rank: Rank(u32::MAX), channel: Channel::Stddiag, produced: u64::MAX };
    assert!(ToFrontEnd::Produced(vec![total; MAX_TOTALS]).frame().is_ok());
}

#[test]
fn the_first_header_is_found_behind_any_text_also_if_it_arrives_in_parts() {
    let text: Vec<u8> = (0..=255).chain(*b"\x06\0\0\0\0\0iofedge\n\t\0\0\0\t\x05\0\0").collect();
    let hello = Frame::HELLO.header().unwrap();
    let resume = Frame::Resume { session: 7, attempt: 1, received: 0 }.header().unwrap();
    let failed = ToFrontEnd::Failed { reason: "a".into(), is_usage: false }.frame().unwrap();
    for header in [&hello[..], &resume, &failed] {
        let bytes = [&text, header].concat();
        assert_eq!(first_header(&bytes), text.len());
        for length in 0..bytes.len() {
            let found = first_header(&bytes[..length]);
            assert!(found <= length.min(text.len()) && length - found <= HEADER.max(header.len()));
        }
    }
    assert_eq!(first_header(&text[..256]), 256);
}

#[test]
fn hello_and_padding_end_in_a_newline() {
    assert_eq!(Frame::HELLO.header().unwrap().last(), Some(&b'\n'));
    assert_eq!(Frame::Padding.header().unwrap().last(), Some(&b'\n'));
}

#[test]
fn messages_beyond_a_limit_are_not_sent() {
    let stdin = |length| ToAgent::Stdin { call: 1, ranks: None, bytes: vec![0; length] };
    let is_sent = |length| stdin(length).frame().is_ok();
    assert!(is_sent(MAX_STDIN) && !is_sent(MAX_STDIN + 1));
    let mut spec = JobSpec::new("job".parse().unwrap(), Vec::new());
    let config = NodeConfig {
        env: Vec::new(),
        cache_size: None,
        cache_total: 0,
        policy: Policy::Block,
        max_line: 0,
        max_line_time: None,
        backend: None,
        rendezvous: Rendezvous::None,
        files: None,
    };
    for (ranks, is_sent) in
        [(None, false), (Some(MAX_RANKS_OF_NODE), true), (Some(MAX_RANKS_OF_NODE + 1), false)]
    {
        spec.local = ranks.map(|ranks| (0..ranks).map(Rank).collect());
        let start = NodeStart { spec: spec.clone(), config: config.clone() };
        assert_eq!(ToAgent::Start(start.into()).frame().is_ok(), is_sent, "{ranks:?}");
    }
    let failed = |reason| ToFrontEnd::Failed { reason, is_usage: true };
    let long = "ä".repeat(MAX_TEXT);
    assert!(failed(long.clone()).frame().is_err() && failed(cut_text(&long)).frame().is_ok());
}

/// One frame of each kind.
fn one_of_each() -> [Frame<'static>; 9] {
    let (pull, stream) = (1, StreamKey { rank: Rank(2), channel: Channel::Stderr });
    let input = InputState { interaction: Interaction::Typed, is_answer: true };
    [
        Frame::Record { pull, stream, offset: 3, time: 4, input, bytes: b"b\n" },
        Frame::Gap { pull: 0, stream, offset: 5, lost: 6 },
        Frame::End { pull, stream, produced: 7 },
        Frame::Credit { bundle: Bundle::Pulls, bytes: 8 },
        Frame::Control(b"c"),
        Frame::HELLO,
        Frame::Padding,
        Frame::Ack { received: 9 },
        Frame::Resume { session: u64::from(b'\n') << 56, attempt: 10, received: 11 },
    ]
}

#[test]
fn every_pair_of_frames_cut_at_any_two_places_is_the_same_pair() {
    let mut decoder = FrameDecoder::of_agent();
    for pair in one_of_each().iter().flat_map(|first| one_of_each().map(|second| [*first, second])) {
        let mut bytes = Vec::new();
        pair.iter().for_each(|frame| frame.append_to(&mut bytes));
        for (from, to) in (0..=bytes.len()).flat_map(|from| (from..=bytes.len()).map(move |to| (from, to))) {
            let mut expected = pair.iter();
            for piece in [&bytes[..from], &bytes[from..to], &bytes[to..]] {
                decoder.receive(piece);
                while let Some(frame) = decoder.decode().unwrap() {
                    assert_eq!(Some(&frame), expected.next());
                }
            }
            assert_eq!((expected.len(), decoder.held()), (0, 0), "{pair:?} cut at {from} and {to}");
        }
    }
}

#[test]
fn a_frame_with_any_byte_changed_is_the_frame_of_these_bytes_or_an_error() {
    // All values of those that decide on the others, and some of numbers.
    let values = |index| if index < 8 { (0..=255).collect() } else { vec![0, 1, 10, 127, 128, 255] };
    for frame in one_of_each() {
        let mut bytes = Vec::new();
        frame.append_to(&mut bytes);
        for (index, value) in
            (0..bytes.len()).flat_map(|index| values(index).into_iter().map(move |value| (index, value)))
        {
            let mut changed = bytes.clone();
            changed[index] = value;
            let mut decoder = FrameDecoder::of_agent();
            decoder.receive(&changed);
            let (held, optional) = (decoder.held(), changed[0] >= 128);
            match decoder.decode() {
                Ok(Some(decoded)) => {
                    let mut encoded = Vec::new();
                    decoded.append_to(&mut encoded);
                    assert_eq!(encoded, changed[..encoded.len()]);
                }
                Ok(None) => assert!(optional || held == decoder.held(), "{frame:?}: {index} is {value}"),
                Err(error) => assert_eq!(decoder.decode(), Err(error)),
            }
        }
    }
}
