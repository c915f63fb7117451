//! The values of ranks that are longer than a control message: pieces, which precede the message that they
//! belong to.

use iof_proto::{Answer, Exchange, Failure, FoundValue, Nspace, Status, ToTool};
use serde::{Deserialize, Serialize};

use crate::EdgeError;
use crate::limits::MAX_PIECE;

/// The answer to an exchange of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExchangeAnswer {
    /// Published values that were found.
    Found(Result<Vec<FoundValue>, Failure>),
    /// A group.
    Group(Result<Answer, Failure>),
    /// The values of all nodes in a fence, which precede the message on an edge.
    Fenced(Result<Vec<u8>, Failure>),
    /// The name of a job, all of whose ranks are started.
    Spawned(Result<Nspace, Failure>),
}

impl ExchangeAnswer {
    /// Returns the answer without the values of a fence; `None` if it is not one to an exchange.
    pub fn of(answer: ToTool) -> Option<ExchangeAnswer> {
        match answer {
            ToTool::Exchanged(result) => Some(ExchangeAnswer::Found(result)),
            ToTool::Answer { result, .. } => Some(ExchangeAnswer::Group(result)),
            ToTool::Fenced(result) => Some(ExchangeAnswer::Fenced(result.map(|_| Vec::new()))),
            ToTool::Spawned { result, .. } => Some(ExchangeAnswer::Spawned(result)),
            _ => None,
        }
    }

    /// Returns the answer for the rank.
    pub fn into_answer(self) -> ToTool {
        match self {
            ExchangeAnswer::Found(result) => ToTool::Exchanged(result),
            ExchangeAnswer::Group(result) => ToTool::Answer { request: 0, result },
            ExchangeAnswer::Fenced(result) => ToTool::Fenced(result.map(Into::into)),
            ExchangeAnswer::Spawned(result) => ToTool::Spawned { request: 0, result },
        }
    }
}

/// The pieces that have arrived since the last message that takes them.
#[derive(Debug, Default)]
pub(crate) struct PieceBuffer(Vec<u8>);

impl PieceBuffer {
    /// Adds a piece, up to `limit` bytes in all.
    pub fn add(&mut self, piece: &[u8], limit: usize) -> Result<(), EdgeError> {
        self.0.extend_from_slice(piece);
        if piece.is_empty() || piece.len() > MAX_PIECE || self.0.len() > limit {
            return Err(EdgeError::Pieces { bytes: self.0.len(), limit });
        }
        Ok(())
    }

    /// Completes a message of an agent, which has no values of its own.
    pub fn complete(&mut self, exchange: &mut Exchange) -> Result<(), EdgeError> {
        match exchange {
            Exchange::Fence { data, .. } => self.give(data),
            _ => self.expect_none(),
        }
    }

    /// Completes the values of a rank.
    pub fn complete_values(&mut self, values: &mut Result<Vec<u8>, Status>) -> Result<(), EdgeError> {
        match values {
            Ok(values) => self.give(values),
            Err(_) => self.expect_none(),
        }
    }

    /// Completes an answer of the front end.
    pub fn complete_answer(&mut self, answer: &mut ExchangeAnswer) -> Result<(), EdgeError> {
        match answer {
            ExchangeAnswer::Fenced(Ok(values)) => self.give(values),
            _ => self.expect_none(),
        }
    }

    fn expect_none(&self) -> Result<(), EdgeError> {
        if self.0.is_empty() { Ok(()) } else { Err(EdgeError::Unexpected("pieces before another message")) }
    }

    /// Moves the pieces to `values`.
    fn give(&mut self, values: &mut Vec<u8>) -> Result<(), EdgeError> {
        if !values.is_empty() {
            return Err(EdgeError::Unexpected("values outside of pieces"));
        }
        std::mem::swap(values, &mut self.0);
        Ok(())
    }
}
