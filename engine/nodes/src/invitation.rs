//! The text from which agents know where their front end listens, and with which token.

use std::fmt::Write;
use std::io::{self, BufRead};
use std::net::SocketAddr;

use crate::limits::MAX_INVITATION;
use crate::proof::NodeToken;

/// The address and the secret with which an agent connects to its front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The address at which the front end listens.
    pub address: SocketAddr,
    /// The number of the node.
    pub node: u32,
    /// The token of the node.
    pub token: NodeToken,
}

/// The reason why an agent has no invitation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvitationError {
    /// It can't be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The text is another one, or a part of one.
    #[error("no invitation arrived on stdin, which the command of the carrier must pass on")]
    Invalid,
    /// The agent has none of these names.
    #[error("the front end did not invite {0}")]
    Uninvited(String),
}

impl Invitation {
    /// Returns the text for the agents of these nodes, by number, token and host. It ends with an empty line.
    pub fn text<'a>(
        address: SocketAddr,
        nodes: impl Iterator<Item = (u32, &'a NodeToken, &'a str)>,
    ) -> String {
        let mut text = format!("{address}\n");
        for (number, token, host) in nodes {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{number} {token:x} {host}");
        }
        text.push('\n');
        text
    }

    /// Reads a text, and returns the invitation of the node that has the first of these names that occurs. A text for one node is for whoever reads it.
    ///
    /// # Errors
    /// The text is incomplete, or for other nodes.
    pub fn read(input: impl BufRead, names: &[String]) -> Result<Invitation, InvitationError> {
        let mut lines = input.take(MAX_INVITATION).lines();
        let first = lines.next().ok_or(InvitationError::Invalid)??;
        let address = first.parse().map_err(|_| InvitationError::Invalid)?;
        let mut nodes = Vec::new();
        loop {
            let line = lines.next().ok_or(InvitationError::Invalid)??;
            if line.is_empty() {
                break;
            }
            nodes.push(invited(&line).ok_or(InvitationError::Invalid)?);
        }
        let is_only = nodes.len() == 1;
        let found = names.iter().find_map(|name| nodes.iter().position(|(.., host)| is_host(host, name)));
        let index = if is_only { Some(0) } else { found };
        let found = index.and_then(|index| nodes.into_iter().nth(index));
        let (node, token, _) = found.ok_or_else(|| InvitationError::Uninvited(names.join(" or ")))?;
        Ok(Invitation { address, node, token })
    }
}

/// Parses the line of a node.
fn invited(line: &str) -> Option<(u32, NodeToken, String)> {
    let mut words = line.splitn(3, ' ');
    Some((words.next()?.parse().ok()?, NodeToken::parse(words.next()?)?, words.next()?.to_owned()))
}

/// Returns whether a host is the one with this name, which may have a domain that the other lacks.
fn is_host(host: &str, name: &str) -> bool {
    let is_longer = |long: &str, short: &str| {
        !short.is_empty() && long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'))
    };
    host == name || is_longer(host, name) || is_longer(name, host)
}
