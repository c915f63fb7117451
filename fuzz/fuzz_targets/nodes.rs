//! What either end of an edge sends, at any boundaries, costs the other end nothing but this edge:
//! its memory stays bounded, and its figures stay true.

#![no_main]

use std::time::Instant;

use iof_nodes::limits::{MAX_CONTROL, MAX_RECORD};
use iof_nodes::{AgentEnd, Decoder, Frame, FrontEnd, FrontEvent, HEADER, StreamKey, ToFrontEnd};
use iof_proto::{Channel, Rank};
use libfuzzer_sys::fuzz_target;

/// Returns a frame that random bytes hardly ever contain.
fn frame(number: u8, bytes: &[u8]) -> Vec<u8> {
    let stream = StreamKey { rank: Rank(0), channel: Channel::Stdout };
    let offset = bytes.len() as u64;
    let frame = match number {
        0 => Frame::HELLO,
        1 => Frame::Record { stream, offset: 0, time: 0, bytes: bytes.get(..MAX_RECORD).unwrap_or(bytes) },
        2 => Frame::Gap { stream, offset, lost: 3 },
        3 => Frame::End { stream, produced: offset },
        4 => Frame::Padding,
        5 => return ToFrontEnd::Ready.frame().unwrap_or_default(),
        6 => return ToFrontEnd::Started { pids: vec![1] }.frame().unwrap_or_default(),
        7 => return ToFrontEnd::Over { cut_off: Vec::new() }.frame().unwrap_or_default(),
        _ => return bytes.to_vec(),
    };
    let header = frame.header().unwrap_or_default();
    header.iter().chain(frame.payload()).copied().collect()
}

fuzz_target!(|pieces: Vec<(u8, &[u8])>| {
    let (mut front, mut agent) = (FrontEnd::new(&(0..1).map(Rank).collect()), AgentEnd::default());
    let (mut to_front, mut to_agent) = (Decoder::default(), Decoder::default());
    let (mut delivered, mut lost) = (0u64, 0u64);
    let now = Instant::now();
    for (number, bytes) in pieces {
        let bytes = frame(number, bytes);
        to_front.receive(&bytes);
        to_agent.receive(&bytes);
        while let Ok(Some(frame)) = to_front.decode() {
            match front.receive(&frame, now) {
                Ok(FrontEvent::Record { stream, bytes, .. }) => {
                    delivered += bytes.len() as u64;
                    front.taken(stream.channel, bytes.len());
                }
                Ok(FrontEvent::Gap { lost: more, .. }) => lost = lost.saturating_add(more),
                Ok(_) => {}
                Err(_) => return,
            }
        }
        assert!(to_front.held() <= HEADER + MAX_CONTROL + bytes.len());
        let open = front.broken().streams;
        assert!(open.iter().map(|stream| stream.delivered).sum::<u64>() <= delivered);
        assert!(open.iter().fold(0u64, |sum, stream| sum.saturating_add(stream.lost)) <= lost);
        while let Ok(Some(frame)) = to_agent.decode() {
            if agent.receive(&frame).is_err() {
                break;
            }
        }
    }
});
