//! Bytes from whoever connects to a front end, at any boundaries, prove nothing unless they are the answer of
//! an agent that has the token; and no text makes an invitation of another one.

#![no_main]

use iof_nodes::Invitation;
use iof_nodes::proof::{AwaitedConfirmation, Challenge, NodeToken, Unproven};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, u32, [u8; 16], Vec<Vec<u8>>)| {
    let (has_token, node, nonce, pieces) = input;
    let token = NodeToken::new([0x5e; 16]);
    let mut challenge = Challenge::new(nonce);
    let (answer, _) =
        AwaitedConfirmation::new(&challenge.bytes(), (node, &token), nonce).expect("a challenge");
    let mut received = Vec::new();
    let answers = has_token.then(|| answer.to_vec());
    for mut piece in answers.into_iter().chain(pieces.iter().cloned()).filter(|piece| !piece.is_empty()) {
        let room = challenge.room();
        piece.truncate(room.len());
        room[..piece.len()].copy_from_slice(&piece);
        received.extend_from_slice(&piece);
        match challenge.received(piece.len(), |number| (number == node).then(|| token.clone())) {
            Ok(None) => assert!(received.len() < answer.len()),
            Ok(Some(proven)) => {
                assert!(has_token && proven.node == node && received == answer);
                break;
            }
            Err(Unproven) => {
                assert!(!has_token && received.len() == answer.len());
                break;
            }
        }
    }
    let text: Vec<u8> = pieces.concat();
    if let Ok(invitation) = Invitation::read(text.as_slice(), &["a".to_owned()]) {
        let again =
            Invitation::text(invitation.address, [(invitation.node, &invitation.token, "a")].into_iter());
        assert_eq!(Invitation::read(again.as_bytes(), &[]).expect("an invitation"), invitation);
    }
});
