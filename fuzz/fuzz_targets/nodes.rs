//! The bytes that either end of an edge sends, at any boundaries, cost the other end nothing but this edge:
//! memory stays bounded, and figures stay true.

#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use iof_nodes::limits::{MAX_ANSWER, MAX_RECORD};
use iof_nodes::{
    AgentEnd, Bundle, Frame, FrameDecoder, FrontEnd, FrontEvent, HEADER, LinkAddress, LinkEnd, StreamKey,
    ToFrontEnd, window,
};
use iof_proto::{Channel, InputState, Rank, StreamPull};
use libfuzzer_sys::fuzz_target;

/// The number with which carriers that replace another one begin.
const SESSION: u64 = 0x0a00_0000_0000_5e55;

/// Returns a frame that random bytes hardly ever contain.
fn frame(number: u8, bytes: &[u8]) -> Vec<u8> {
    let stream = StreamKey { rank: Rank(0), channel: Channel::Stdout };
    let (offset, pull) = (bytes.len() as u64, u32::from(number > 10));
    let frame = match number {
        0 => Frame::HELLO,
        1 | 11 => Frame::Record {
            pull,
            stream,
            offset: 0,
            time: 0,
            input: InputState::UNBUFFERED,
            bytes: bytes.get(..MAX_RECORD).unwrap_or(bytes),
        },
        2 | 12 => Frame::Gap { pull, stream, offset, lost: 3 },
        3 | 13 => Frame::End { pull, stream, produced: offset },
        4 => Frame::Padding,
        5 => return ToFrontEnd::Ready.frame().unwrap_or_default(),
        6 => return ToFrontEnd::Started { pids: vec![1] }.frame().unwrap_or_default(),
        7 => return ToFrontEnd::Over { cut_off: Vec::new() }.frame().unwrap_or_default(),
        8 => Frame::Ack { received: offset },
        9 => Frame::Resume { session: SESSION, attempt: 1, received: offset },
        10 => {
            let path = OsStr::from_bytes(bytes).to_owned();
            let address = LinkAddress { path, session: SESSION };
            return ToFrontEnd::Link(address).frame().unwrap_or_default();
        }
        _ => return bytes.to_vec(),
    };
    let header = frame.header().unwrap_or_default();
    header.iter().chain(frame.payload()).copied().collect()
}

/// Passes a frame to an end whose carrier may be replaced, which has sent some bytes. It keeps what
/// the peer does not have.
fn pass_to_link(link: &mut LinkEnd, frame: &Frame<'_>, length: usize) {
    let held = link.held();
    match frame {
        Frame::Ack { received } => drop(link.acknowledged(*received)),
        Frame::Resume { .. } => drop(link.resume(SESSION, frame)),
        _ => {}
    }
    assert!(link.held() <= held);
    link.receive(length);
    link.send(b"more");
    let _ = link.write_to(&mut [0; 3].as_mut_slice());
}

fuzz_target!(|pieces: Vec<(u8, &[u8])>| {
    let (mut front, mut agent) = (FrontEnd::new(&[Rank(0)].into(), window(1)), AgentEnd::default());
    let request = StreamPull { number: 1, rank: Rank(0), channel: Channel::Stdout };
    front.begin_pulls(&[request]);
    let (mut to_front, mut to_agent) = (FrameDecoder::of_agent(), FrameDecoder::of_front_end());
    let mut link = LinkEnd::default();
    link.outlive_carriers(Duration::MAX);
    let (mut delivered, mut lost) = (0u64, 0u64);
    let now = Instant::now();
    for (number, bytes) in pieces {
        let bytes = frame(number, bytes);
        to_front.receive(&bytes);
        to_agent.receive(&bytes);
        while let Ok(Some(frame)) = to_front.decode() {
            pass_to_link(&mut link, &frame, bytes.len());
            match front.receive(&frame, now) {
                Ok(FrontEvent::Output(Frame::Record { pull, stream, bytes, .. })) => {
                    delivered += if pull == 0 { bytes.len() as u64 } else { 0 };
                    front.taken(Bundle::of_record(pull, stream.channel).unwrap(), bytes.len(), now);
                }
                Ok(FrontEvent::Output(Frame::Gap { pull: 0, lost: more, .. })) => {
                    lost = lost.saturating_add(more)
                }
                Ok(_) => {}
                Err(_) => {
                    front.cut();
                    assert_eq!(front.receive(&Frame::HELLO, now), Ok(FrontEvent::None));
                    return;
                }
            }
        }
        assert!(to_front.held() <= HEADER + MAX_ANSWER + bytes.len());
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
