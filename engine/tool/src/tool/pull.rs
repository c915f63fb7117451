//! Registering for output (`PMIx_IOF_pull`) and deregistering (`PMIx_IOF_deregister`).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use iof_proto::Granted;
use iof_shm_ring::Ringer;

use super::Tool;
use crate::direct::{DirectInput, DirectSource};
use crate::error::{LostError, RequestError};
use crate::pull::Pull;
use crate::session::delivery::{Delivery, Origin, origin};
use crate::session::feed::Feed;
use crate::session::feeds::FeedId;
use crate::session::registration::{Callback, RegistrationState};
use crate::session::request::Request;

impl Tool {
    /// Registers for output (`PMIx_IOF_pull`). Returns the id of the registration (PMIx's handler
    /// id), 1 or more, and the keys of optional directives that the engine ignores. [`Tool::recv`]
    /// delivers the output. Blocks until the engine and its host have answered.
    ///
    /// # Errors
    /// Returns [`RequestError`] if `pull` names no process, no output channel, or a rank that its
    /// job does not have; if a required directive can't be honoured, the host refuses, or a limit
    /// is reached; or if the connection has ended.
    pub fn pull(&mut self, pull: &Pull) -> Result<Granted, RequestError> {
        let request = self.submit_pull(pull)?;
        self.wait(request)
    }

    /// Registers like [`Tool::pull`], but passes the deliveries to `callback`. It is called in
    /// [`Tool::dispatch`], [`Tool::recv`] and the other methods that receive deliveries.
    ///
    /// The callback corresponds to RFC0025's `pmix_iof_cbfunc_t`: a delivery has a handler, source,
    /// channel and payload, and [`Delivery::Complete`] stands for `PMIX_IOF_COMPLETE`. The bytes
    /// are consumed when it returns.
    ///
    /// # Errors
    /// The same as [`Tool::pull`]; `callback` is dropped then.
    pub fn pull_with(
        &mut self,
        pull: &Pull,
        callback: impl FnMut(&Delivery<'_>) + Send + 'static,
    ) -> Result<Granted, RequestError> {
        let request = self.submit_pull_with(pull, callback)?;
        self.wait(request)
    }

    /// Sends the request of [`Tool::pull`] without waiting for the answer, see
    /// [`Reply`](crate::Reply).
    ///
    /// # Errors
    /// Returns [`RequestError::Unsendable`] if the request exceeds a limit on messages, and
    /// [`RequestError::Lost`] if the connection has ended. No reply follows then.
    pub fn submit_pull(&mut self, pull: &Pull) -> Result<u32, RequestError> {
        self.register(pull, None)
    }

    /// Sends the request of [`Tool::pull_with`] without waiting for the answer. The reply is
    /// delivered by [`Tool::recv`], not to `callback`.
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_pull_with(
        &mut self,
        pull: &Pull,
        callback: impl FnMut(&Delivery<'_>) + Send + 'static,
    ) -> Result<u32, RequestError> {
        self.register(pull, Some(Box::new(callback)))
    }

    fn register(&mut self, pull: &Pull, callback: Option<Callback>) -> Result<u32, RequestError> {
        let registration = RegistrationState::new(pull, callback);
        self.submit(Request::Pull(registration), |request| pull.message(request))
    }

    /// Returns the input by which another thread passes streams of the registration `handler` to this
    /// tool, which `pull` describes: those of the ranks of one job whose output has no rings in the
    /// engine of this process. A tool has one such input at most. The streams are read as others, and
    /// the tool is not done before all that were pushed have ended.
    ///
    /// # Errors
    /// The process can have no further file, `pull` names no process, or the engine is in another
    /// process.
    pub fn direct_input(&mut self, handler: u32, pull: &Pull) -> io::Result<DirectInput> {
        let nspace = pull.procs.first().map(|proc| proc.nspace.clone());
        let (Some(nspace), Some(stepper)) = (nspace, self.stepper().cloned()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // The bell of an engine in this process is an eventfd.
        let ringer = Ringer::from(self.sleeper().bell.as_fd().try_clone_to_owned()?);
        let queue = Arc::default();
        let input = DirectInput::new(Arc::clone(&queue), pull, (ringer, stepper));
        self.session.direct = Some(DirectSource { queue, handler, nspace, taken: Vec::new() });
        Ok(input)
    }

    /// Blocks until the rings contain all that was cached when the registrations of this tool were made,
    /// on other nodes, too. All streams that had bytes are known then, and none was read.
    ///
    /// # Errors
    /// The engine has violated the protocol. The end of the engine is not an error.
    pub fn wait_for_cached(&mut self) -> Result<(), LostError> {
        let awaits = |registration: &RegistrationState| !registration.cached && !registration.is_over();
        while !self.session.gone && self.session.registrations.values().any(awaits) {
            match self.link.receive_until(None) {
                Ok(received) => received.map_or(Ok(()), |received| self.handle(received))?,
                Err(LostError::Closed) => self.session.engine_gone(),
                Err(lost) => return Err(self.lost(lost)),
            }
        }
        Ok(())
    }

    /// Returns the streams that have not ended.
    pub fn streams(&self) -> impl Iterator<Item = FeedId> {
        self.session.feeds.ids()
    }

    /// Returns the source, channel and registration of a stream.
    pub fn origin(&self, stream: FeedId) -> Option<Origin<'_>> {
        self.session.feeds.get(stream).map(origin)
    }

    /// Makes a stream end behind the newest byte that is cached now.
    pub fn end_here(&mut self, stream: FeedId) {
        self.session.feeds.get_mut(stream).into_iter().for_each(Feed::end_here);
    }

    /// Returns the offset behind the newest byte of a stream that is cached now, or with which it
    /// [ends](Tool::end_here), and then the lines from there back: for each its offset, and the time at which it was read, if that is known.
    pub fn cached_lines(&self, stream: FeedId) -> impl Iterator<Item = (u64, Option<u64>)> {
        self.session.feeds.get(stream).and_then(Feed::cached_lines).into_iter().flatten()
    }

    /// Makes a stream begin at an offset if none of its bytes was consumed, as with
    /// [`Position::Offset`](iof_proto::Position::Offset).
    pub fn begin_at(&mut self, stream: FeedId, offset: u64) {
        self.session.feeds.get_mut(stream).into_iter().for_each(|feed| feed.begin_at(offset));
    }

    /// Begins to end a registration (`PMIx_IOF_deregister`). Does not block. [`Tool::recv`] and
    /// [`Tool::dispatch`] complete it.
    ///
    /// The bytes and gaps that are unread at this moment are still delivered, even in incomplete
    /// groups, and also those of streams that the engine has not announced yet. For each stream
    /// this is at most one ring. Then the tool notifies the engine. When the engine has confirmed,
    /// [`Delivery::Deregistered`] is the last delivery of this registration. A stream that is
    /// complete by then ends with [`Delivery::Complete`]; other streams end without a delivery of
    /// their own. The ends of jobs are not reported any more.
    ///
    /// # Errors
    /// Returns [`RequestError::Denied`] with
    /// [`Status::ERR_NOT_FOUND`](iof_proto::Status::ERR_NOT_FOUND) if the registration does not
    /// exist, is being ended already, or has ended. Returns [`RequestError::Lost`] if the
    /// connection has ended; unread bytes are still delivered.
    pub fn deregister(&mut self, handler: u32) -> Result<(), RequestError> {
        // Streams that the engine has announced already are to be flushed, too.
        self.take_messages()?;
        self.session.deregister(handler)?;
        Ok(self.send_outgoing()?)
    }
}
