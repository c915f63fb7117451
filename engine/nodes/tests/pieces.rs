//! Values of ranks that are longer than a control message.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::time::Instant;

use iof_nodes::limits::{MAX_EXCHANGE, MAX_PIECE, MAX_WINDOW};
use iof_nodes::{
    AgentEnd, AgentEvent, EdgeError, ExchangeAnswer, Frame, FrameDecoder, FrontEnd, FrontEvent, ToAgent,
    ToFrontEnd,
};
use iof_proto::{Exchange, Failure, FencePurpose, Mpi, Rank, Status};

/// The front end's end of an edge whose ranks, 2 and 3, run.
fn front() -> FrontEnd {
    let mut front = FrontEnd::new(&[2, 3].map(Rank).into(), MAX_WINDOW..=MAX_WINDOW);
    front.receive(&Frame::HELLO, Instant::now()).unwrap();
    for message in [ToFrontEnd::Ready, ToFrontEnd::Started { pids: vec![7, 8] }] {
        assert_eq!(send(&mut front, &message), Ok(Some(message)));
    }
    front
}

/// Returns the message that the front end takes a message for.
fn send(front: &mut FrontEnd, message: &ToFrontEnd) -> Result<Option<ToFrontEnd>, EdgeError> {
    let mut decoder = FrameDecoder::of_agent();
    decoder.receive(&message.frame().unwrap());
    match front.receive(&decoder.decode().unwrap().unwrap(), Instant::now())? {
        FrontEvent::None => Ok(None),
        FrontEvent::Message(message) => Ok(Some(message)),
        event => panic!("{event:?}"),
    }
}

fn fence(rank: u32, data: &[u8]) -> ToFrontEnd {
    let exchange = Exchange::Fence {
        mpi: Mpi::Pmi1,
        purpose: FencePurpose::Values,
        members: Vec::new(),
        data: data.to_vec(),
    };
    ToFrontEnd::Exchange { call: 1, rank: Rank(rank), exchange }
}

#[test]
fn pieces_become_the_values_of_the_next_message_of_an_agent() {
    let mut front = front();
    let values: Vec<u8> = (0..3 * MAX_PIECE + 5).map(|number| number as u8).collect();
    for _ in 0..2 {
        for piece in values.chunks(MAX_PIECE) {
            assert_eq!(send(&mut front, &ToFrontEnd::Piece(piece.to_vec())), Ok(None));
        }
        assert_eq!(send(&mut front, &fence(3, &[])), Ok(Some(fence(3, &values))));
    }
    assert_eq!(send(&mut front, &fence(2, &[])), Ok(Some(fence(2, &[]))));
    send(&mut front, &ToFrontEnd::Piece(vec![1, 2])).unwrap();
    let answer = |values| ToFrontEnd::Modex { call: 1, values };
    assert_eq!(send(&mut front, &answer(Ok(Vec::new()))), Ok(Some(answer(Ok(vec![1, 2])))));
    let refused = answer(Err(Status::ERR_NOT_FOUND));
    assert_eq!(send(&mut front, &refused), Ok(Some(refused)));
}

#[test]
fn an_agent_that_breaks_the_rules_of_pieces_is_cut_off() {
    let piece = |bytes| ToFrontEnd::Piece(vec![0; bytes]);
    assert_eq!(send(&mut front(), &piece(0)), Err(EdgeError::Pieces { bytes: 0, limit: MAX_EXCHANGE }));
    let too_long = EdgeError::Pieces { bytes: MAX_PIECE + 1, limit: MAX_EXCHANGE };
    assert_eq!(send(&mut front(), &piece(MAX_PIECE + 1)), Err(too_long));
    let mut full = front();
    // The frame of the same piece again and again.
    let mut decoder = FrameDecoder::of_agent();
    decoder.receive(&piece(MAX_PIECE).frame().unwrap());
    let frame = decoder.decode().unwrap().unwrap();
    for _ in 0..MAX_EXCHANGE / MAX_PIECE {
        full.receive(&frame, Instant::now()).unwrap();
    }
    let error = send(&mut full, &piece(1)).unwrap_err();
    assert!(error.to_string().contains("MAX_EXCHANGE"), "{error}");
    assert_eq!(send(&mut front(), &fence(4, &[])), Err(EdgeError::Rank(Rank(4))));
    assert_eq!(send(&mut front(), &fence(3, b"x")), Err(EdgeError::Unexpected("values outside of pieces")));
    let unpublish = Exchange::Unpublish { keys: Vec::new(), range: iof_proto::DataRange::Job };
    let other = ToFrontEnd::Exchange { call: 1, rank: Rank(2), exchange: unpublish };
    let mut front = front();
    send(&mut front, &piece(1)).unwrap();
    assert_eq!(send(&mut front, &other), Err(EdgeError::Unexpected("pieces before another message")));
}

#[test]
fn the_values_of_all_nodes_arrive_at_an_agent_with_the_answer() {
    let mut agent = AgentEnd::default();
    agent.receive(&Frame::HELLO).unwrap();
    let mut send = |message: &ToAgent| {
        let mut decoder = FrameDecoder::of_front_end();
        decoder.receive(&message.frame().unwrap());
        agent.receive(&decoder.decode().unwrap().unwrap())
    };
    let answer = |answer| ToAgent::Exchanged { call: 3, answer: ExchangeAnswer::Fenced(answer) };
    // 10,000 ranks with 200 bytes each.
    let values: Vec<u8> = (0..10_000 * 200).map(|number| number as u8).collect();
    for piece in values.chunks(MAX_PIECE) {
        assert_eq!(send(&ToAgent::Piece(piece.to_vec())), Ok(AgentEvent::None));
    }
    assert_eq!(send(&answer(Ok(Vec::new()))), Ok(AgentEvent::Message(answer(Ok(values)))));
    let refused = answer(Err(Failure::new(Status::ERR_LOST_CONNECTION, "node b has ended")));
    assert_eq!(send(&refused), Ok(AgentEvent::Message(refused)));
}
