//! The core of all requests. Every request is submitted here, and its answer is found later: by
//! [`Tool::recv`] as a delivery, or by a blocking method, which waits for it.

use std::time::Instant;

use iof_proto::FromTool;

use super::Tool;
use crate::error::{LostError, RequestError};
use crate::session::UNFIT;
use crate::session::reply::FromReply;
use crate::session::request::Request;

impl Tool {
    /// Sends a request, whose number `message` receives. Returns the number.
    pub(super) fn submit(
        &mut self,
        request: Request,
        message: impl FnOnce(u32) -> FromTool,
    ) -> Result<u32, RequestError> {
        if self.session.gone {
            return Err(LostError::Closed.into());
        }
        let number = self.session.requests.next_number();
        self.send(&message(number))?;
        self.session.requests.sent(number, request);
        Ok(number)
    }

    /// Sends the messages that the session has queued. A disconnected engine is not an error here:
    /// reading detects it.
    pub(super) fn send_outgoing(&mut self) -> Result<(), LostError> {
        for message in self.session.take_outgoing() {
            unless_closed(self.send(&message))?;
        }
        Ok(())
    }

    fn send(&mut self, message: &FromTool) -> Result<(), RequestError> {
        match self.link.send(message) {
            // Messages that arrived before the engine disconnected can still be read.
            Err(RequestError::Lost(lost)) if !matches!(lost, LostError::Closed) => {
                Err(self.lost(lost).into())
            }
            result => result,
        }
    }

    /// Blocks until the request `number` is answered.
    pub(super) fn wait<T: FromReply>(&mut self, number: u32) -> Result<T, RequestError> {
        // Without a deadline there is always an answer or an error.
        self.wait_until(number, None)?.ok_or_else(|| LostError::Closed.into())
    }

    /// Blocks until the request `number` is answered. If it is not answered by `deadline`, returns
    /// `None`; the answer is ignored then. Handles the messages that arrive meanwhile.
    pub(super) fn wait_until<T: FromReply>(
        &mut self,
        number: u32,
        deadline: Option<Instant>,
    ) -> Result<Option<T>, RequestError> {
        self.session.requests.begin_wait(number);
        loop {
            match self.link.receive_until(deadline) {
                Ok(Some(received)) => self.handle(received)?,
                Ok(None) => {
                    self.session.requests.abandon(number);
                    return Ok(None);
                }
                Err(lost) => return Err(self.lost(lost).into()),
            }
            if let Some(reply) = self.session.requests.take_answer() {
                return Ok(Some(T::from_reply(reply).ok_or(UNFIT)??));
            }
        }
    }
}

/// Returns the error of a message that was sent, unless it is the engine's end.
fn unless_closed<T>(result: Result<T, RequestError>) -> Result<(), LostError> {
    match result {
        Err(RequestError::Lost(lost)) if !matches!(lost, LostError::Closed) => Err(lost),
        _ => Ok(()),
    }
}
