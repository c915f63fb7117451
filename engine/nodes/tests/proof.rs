//! The proof of a connection, and the text that invites agents.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;

use iof_nodes::limits::{MAX_INVITATION, MAX_NODES};
use iof_nodes::proof::{ANSWER, AwaitedConfirmation, Challenge, NodeToken, Nonce, Proven, Unproven};
use iof_nodes::{Invitation, InvitationError};
use proptest::prelude::*;

/// Passes bytes to a challenge in pieces of this length.
fn pass(
    challenge: &mut Challenge,
    mut bytes: &[u8],
    piece: usize,
    token: impl Fn(u32) -> Option<NodeToken>,
) -> Result<Option<Proven>, Unproven> {
    while !bytes.is_empty() {
        let room = challenge.room();
        let length = room.len().min(piece).min(bytes.len());
        assert!(length > 0, "an answer that is whole has a result");
        room[..length].copy_from_slice(&bytes[..length]);
        bytes = &bytes[length..];
        if let Some(proven) = challenge.received(length, &token)? {
            return Ok(Some(proven));
        }
    }
    Ok(None)
}

proptest! {
    #[test]
    fn both_ends_accept_each_other_if_and_only_if_they_have_the_same_token(
        (node, front, agent) in any::<(u32, Nonce, Nonce)>(),
        (token, other) in any::<([u8; 16], [u8; 16])>(),
        piece in 1..ANSWER + 1,
    ) {
        let tokens = [token, if token == other { [other[0] ^ 1; 16] } else { other }].map(NodeToken::new);
        for (theirs, ours) in [(0, 0), (0, 1), (1, 0)] {
            let mut challenge = Challenge::new(front);
            let (answer, answered) = AwaitedConfirmation::new(&challenge.bytes(), (node, &tokens[theirs]), agent).unwrap();
            let expected = |number| (number == node).then(|| tokens[ours].clone());
            match pass(&mut challenge, &answer, piece, expected) {
                Ok(proven) => {
                    let proven = proven.unwrap();
                    prop_assert_eq!((theirs, proven.node), (ours, node));
                    prop_assert_eq!(answered.check(&proven.confirmation), Ok(()));
                }
                Err(Unproven) => prop_assert_ne!(theirs, ours),
            }
        }
    }

    #[test]
    fn an_answer_that_is_changed_or_for_another_challenge_or_node_proves_nothing(
        (node, front, agent, token) in any::<(u32, Nonce, Nonce, [u8; 16])>(),
        (index, change) in (0..ANSWER, 1..=u8::MAX),
    ) {
        let token = NodeToken::new(token);
        let challenge = Challenge::new(front);
        let (answer, answered) = AwaitedConfirmation::new(&challenge.bytes(), (node, &token), agent).unwrap();
        let mut changed = answer;
        changed[index] ^= change;
        // Other nodes have other tokens, but even with the same one the number counts.
        let any_node = |_| Some(token.clone());
        prop_assert_eq!(pass(&mut Challenge::new(front), &changed, ANSWER, any_node), Err(Unproven));
        let mut other = front;
        other[index % 16] ^= change;
        prop_assert_eq!(pass(&mut Challenge::new(other), &answer, ANSWER, any_node), Err(Unproven));
        prop_assert_eq!(pass(&mut Challenge::new(front), &answer, ANSWER, |_| None), Err(Unproven));
        let next = |_| Some(token.next());
        prop_assert_eq!(pass(&mut Challenge::new(front), &answer, ANSWER, next), Err(Unproven));
        // The agent's own code does not confirm it.
        prop_assert_eq!(answered.check(answer.last_chunk().unwrap()), Err(Unproven));
    }

    #[test]
    fn bytes_that_are_no_challenge_are_not_answered(bytes in any::<[u8; 24]>()) {
        let is_challenge = bytes.starts_with(b"iofdial1");
        let answered = AwaitedConfirmation::new(&bytes, (0, &NodeToken::new([1; 16])), [2; 16]);
        prop_assert_eq!(answered.is_ok(), is_challenge);
    }

    #[test]
    fn any_text_is_an_invitation_or_an_error(text in any::<Vec<u8>>()) {
        drop(Invitation::read(text.as_slice(), &["a".to_owned()]));
    }
}

/// The key is padded with zeros, as HMAC does with one that is shorter.
#[test]
fn codes_are_those_of_hmac_sha256() {
    let mut key = [0; 16];
    key[..4].copy_from_slice(b"Jefe");
    let challenge = Challenge::new([3; 16]).bytes();
    let (answer, _) = AwaitedConfirmation::new(&challenge, (5, &NodeToken::new(key)), [4; 16]).unwrap();
    // printf 'iof agent\5\0\0\0' and 16 bytes each of 3 and 4 | openssl dgst -sha256 -hmac Jefe
    let code: String = answer[20..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(code, CODE);
}

const CODE: &str = "1ae4b3f395b10f6b7630dc2df4145791e0cc9e1b30e661cfc3f26c11dcb8d052";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn each_node_finds_its_token_by_its_name() {
    let tokens = [1, 2, 3].map(|byte| NodeToken::new([byte; 16]));
    let hosts = ["n1", "n10.site", "n2"];
    let nodes = tokens.iter().zip(hosts).zip(4..).map(|((token, host), number)| (number, token, host));
    let text = Invitation::text(address("[fd00::1]:70"), nodes);
    let read = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Invitation::read(text.as_bytes(), &names)
    };
    for (names, node) in [(&["n2"][..], 6), (&["n10"], 5), (&["n1.site"], 4), (&["x", "n10.site"], 5)] {
        let found = read(names).unwrap();
        assert_eq!((found.address, found.node), (address("[fd00::1]:70"), node));
        assert_eq!(found.token, tokens[node as usize - 4]);
    }
    for names in [&["n"][..], &["n1x"], &[""], &[]] {
        assert!(matches!(read(names), Err(InvitationError::Uninvited(_))), "{names:?}");
    }
}

#[test]
fn an_invitation_for_one_node_needs_no_name_and_one_that_is_cut_is_refused() {
    let token = NodeToken::new([0xab; 16]);
    let text = Invitation::text(address("127.0.0.1:70"), [(9, &token, "a host")].into_iter());
    assert_eq!(text, format!("127.0.0.1:70\n9 {} a host\n\n", "ab".repeat(16)));
    assert_eq!(Invitation::read(text.as_bytes(), &[]).unwrap().node, 9);
    for length in 0..text.len() - 1 {
        assert!(Invitation::read(&text.as_bytes()[..length], &[]).is_err(), "{length}");
    }
    assert_eq!(format!("{token:?}"), "NodeToken");
}

#[test]
fn the_longest_invitation_is_within_its_limit() {
    let (token, host) = (NodeToken::new([1; 16]), "h".repeat(255));
    let nodes = (0..MAX_NODES as u32).map(|number| (number, &token, host.as_str()));
    let text = Invitation::text(address("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"), nodes);
    assert!((text.len() as u64) < MAX_INVITATION);
    let endless = std::io::repeat(b'x');
    assert!(Invitation::read(std::io::BufReader::new(endless), &[]).is_err());
}
