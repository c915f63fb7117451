//! The core of all requests. Every request is submitted here, and its answer is found later: by
//! [`Tool::recv`] as a delivery, or by a blocking method, which waits for it.

use std::time::Instant;

use iof_proto::FromTool;

use super::Tool;
use crate::error::{LostError, RequestError};
use crate::event::Event;
use crate::reply::{FromReply, Reply};
use crate::request::Request;

/// An answer that no correct engine sends.
const UNFIT: LostError = LostError::Unexpected { what: "an answer of another kind than its request" };

impl Tool {
    /// Sends a request, whose number `message` receives. Returns the number.
    pub(super) fn submit(
        &mut self,
        request: Request,
        message: impl FnOnce(u32) -> FromTool,
    ) -> Result<u32, RequestError> {
        if self.gone {
            return Err(LostError::Closed.into());
        }
        let number = self.requests.next_number();
        self.send(&message(number))?;
        self.requests.sent(number, request);
        Ok(number)
    }

    /// Sends a request of the tool itself, as [`Tool::notify`] sends a message.
    pub(super) fn submit_own(
        &mut self,
        request: Request,
        message: impl FnOnce(u32) -> FromTool,
    ) -> Result<(), LostError> {
        unless_closed(self.submit(request, message))
    }

    /// Sends a message that is not answered at once. A disconnected engine is not an error here:
    /// reading detects it.
    pub(super) fn notify(&mut self, message: &FromTool) -> Result<(), LostError> {
        unless_closed(self.send(message))
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
        self.requests.begin_wait(number);
        loop {
            match self.link.receive_until(deadline) {
                Ok(Some(received)) => self.handle(received)?,
                Ok(None) => {
                    self.requests.abandon(number);
                    return Ok(None);
                }
                Err(lost) => return Err(self.lost(lost).into()),
            }
            if let Some(reply) = self.requests.take_answer() {
                return Ok(Some(T::from_reply(reply).ok_or(UNFIT)??));
            }
        }
    }

    /// Passes the answer to the request `number` on to its owner. Ignores it if the request was
    /// abandoned.
    pub(super) fn answered(&mut self, number: u32, reply: Reply) -> Result<(), LostError> {
        let Some(request) = self.requests.take(number) else { return Ok(()) };
        match (request, &reply) {
            (Request::Pull(registration), Reply::Pulled(result)) => {
                if let Ok(granted) = result {
                    self.registrations.insert(granted.handler, registration);
                }
            }
            (Request::Query, Reply::Answered(_))
            | (Request::Push, Reply::PushBegun(_))
            | (Request::SlowTargets, Reply::SlowTargets(_))
            | (Request::Log, Reply::Logged(_))
            | (Request::Signal, Reply::Signalled(_)) => {}
            (Request::Barrier { handler }, Reply::Answered(_)) => return self.barrier_answered(handler),
            _ => return Err(UNFIT),
        }
        if let Some(reply) = self.requests.end_wait(number, reply) {
            self.events.push_back(Event::Reply { request: number, reply });
        }
        Ok(())
    }

    /// Handles the answer to the end of a registration, which is always a success: the engine knows
    /// each registration that this tool ends.
    pub(super) fn deregistered(&mut self, number: u32) -> Result<(), LostError> {
        match self.requests.take(number) {
            Some(Request::Deregister { handler }) => self.events.push_back(Event::Deregistered { handler }),
            Some(_) => return Err(UNFIT),
            None => {}
        }
        Ok(())
    }

    /// Ends every request, because the engine is gone.
    pub(super) fn fail_requests(&mut self) {
        let failed = self.requests.fail_all().into_iter();
        self.events.extend(failed.map(|(request, reply)| Event::Reply { request, reply }));
    }
}

/// Returns the error of a message that was sent, unless it is the engine's end.
fn unless_closed<T>(result: Result<T, RequestError>) -> Result<(), LostError> {
    match result {
        Err(RequestError::Lost(lost)) if !matches!(lost, LostError::Closed) => Err(lost),
        _ => Ok(()),
    }
}
