//! The proof of both ends of a connection that anybody could have made.
//!
//! | step | sent by | bytes |
//! |---|---|---|
//! | challenge | front end | the text `iofdial1` and a nonce |
//! | answer | agent | the number of its node, a nonce, and its code |
//! | confirmation | front end | its code |
//!
//! A code is HMAC-SHA256 with the token of the node, over the name of the end that sends it, the number
//! of the node, and both nonces. So the token never crosses the connection, a code that was overheard
//! proves nothing later, and the front end tells nothing to whoever has no token. What follows the
//! proof is neither encrypted nor authenticated.

use std::fmt;

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha2::Sha256;

const MAGIC: [u8; 8] = *b"iofdial1";
const NONCE: usize = 16;
const CODE: usize = 32;

/// The length of a challenge in bytes.
pub const CHALLENGE: usize = MAGIC.len() + NONCE;
/// The length of an answer in bytes.
pub const ANSWER: usize = 4 + NONCE + CODE;
/// The length of a confirmation in bytes.
pub const CONFIRMATION: usize = CODE;

/// Random bytes that are used for one connection only.
pub type Nonce = [u8; NONCE];

/// The secret of one node and its front end.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeToken([u8; 16]);

impl fmt::Debug for NodeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeToken")
    }
}

/// Writes the digits of the secret, for its one reader.
impl fmt::LowerHex for NodeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl NodeToken {
    /// Returns the token of these random bytes.
    pub fn new(random: [u8; 16]) -> NodeToken {
        NodeToken(random)
    }

    /// Returns the token that was written as 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<NodeToken> {
        let is_hexadecimal = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hexadecimal.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
        Some(NodeToken(number.to_be_bytes()))
    }

    /// Returns the token of all connections after the first one.
    #[must_use]
    pub fn next(&self) -> NodeToken {
        let code = self.mac(&[b"iof next token"]).finalize().into_bytes();
        let mut next = [0; 16];
        next.iter_mut().zip(code).for_each(|(to, from)| *to = from);
        NodeToken(next)
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // A shorter key is padded with zeros.
        let mut block = [0; 64];
        block.iter_mut().zip(self.0).for_each(|(to, from)| *to = from);
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    fn of_agent(&self, node: u32, front: &Nonce, agent: &Nonce) -> Hmac<Sha256> {
        self.mac(&[b"iof agent", &node.to_le_bytes(), front, agent])
    }

    fn of_front_end(&self, node: u32, front: &Nonce, agent: &Nonce) -> Hmac<Sha256> {
        self.mac(&[b"iof front end", &node.to_le_bytes(), front, agent])
    }
}

/// The front end's end of a connection whose agent has not proved anything.
#[derive(Debug)]
pub struct Challenge {
    nonce: Nonce,
    answer: [u8; ANSWER],
    received: usize,
}

/// A connection whose agent has the token of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proven {
    /// The number of the node.
    pub node: u32,
    /// The bytes by which the front end proves itself.
    pub confirmation: [u8; CONFIRMATION],
}

/// The other end of a connection does not prove that it has the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is at the other end does not have the token of this node")]
pub struct Unproven;

impl Challenge {
    /// Begins with a nonce.
    pub fn new(nonce: Nonce) -> Challenge {
        Challenge { nonce, answer: [0; ANSWER], received: 0 }
    }

    /// Returns the bytes that are sent first.
    pub fn bytes(&self) -> [u8; CHALLENGE] {
        let mut bytes = [0; CHALLENGE];
        bytes.iter_mut().zip(MAGIC.iter().chain(&self.nonce)).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Returns room for what is missing of the answer. Nothing is due before the confirmation beyond it.
    pub fn room(&mut self) -> &mut [u8] {
        self.answer.get_mut(self.received..).unwrap_or_default()
    }

    /// Notes that so many bytes of the room were filled. Returns the result once the answer is whole.
    /// `token` returns that of a node that is expected.
    ///
    /// # Errors
    /// No node with that number is expected, or the token is another one.
    pub fn received(
        &mut self,
        length: usize,
        token: impl FnOnce(u32) -> Option<NodeToken>,
    ) -> Result<Option<Proven>, Unproven> {
        self.received = self.received.saturating_add(length).min(ANSWER);
        if self.received < ANSWER {
            return Ok(None);
        }
        let (node, rest) = self.answer.split_first_chunk::<4>().ok_or(Unproven)?;
        let (nonce, code) = rest.split_first_chunk::<NONCE>().ok_or(Unproven)?;
        let node = u32::from_le_bytes(*node);
        let token = token(node).ok_or(Unproven)?;
        // Takes the same time wherever they differ.
        token.of_agent(node, &self.nonce, nonce).verify_slice(code).map_err(|_| Unproven)?;
        let confirmation = token.of_front_end(node, &self.nonce, nonce).finalize().into_bytes().into();
        Ok(Some(Proven { node, confirmation }))
    }
}

/// The agent's end of a connection after its answer.
#[derive(Debug)]
pub struct AwaitedConfirmation(Hmac<Sha256>);

impl AwaitedConfirmation {
    /// Returns the answer to a challenge for the node with this number.
    ///
    /// # Errors
    /// The other end is not a front end.
    pub fn new(
        challenge: &[u8; CHALLENGE],
        (node, token): (u32, &NodeToken),
        nonce: Nonce,
    ) -> Result<([u8; ANSWER], AwaitedConfirmation), Unproven> {
        let front: &Nonce = challenge.strip_prefix(&MAGIC).and_then(<[u8]>::first_chunk).ok_or(Unproven)?;
        let code = token.of_agent(node, front, &nonce).finalize().into_bytes();
        let mut answer = [0; ANSWER];
        let bytes = node.to_le_bytes().into_iter().chain(nonce).chain(code);
        answer.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Ok((answer, AwaitedConfirmation(token.of_front_end(node, front, &nonce))))
    }

    /// Checks the confirmation of the front end.
    ///
    /// # Errors
    /// It does not have the token.
    pub fn check(self, confirmation: &[u8; CONFIRMATION]) -> Result<(), Unproven> {
        self.0.verify_slice(confirmation).map_err(|_| Unproven)
    }
}
