//! Output of remote ranks: the host delivers it, and the engine writes it into rings like those of
//! local ranks (`PMIx_server_IOF_deliver`, RFC0025).

use std::collections::BTreeSet;

#[cfg(doc)]
use iof_core::MAX_DELIVERED;
use iof_core::{DeliverError, DeliveredBytes, DeliveredEnd, Input, MAX_RANKS, TakenCallback};
use iof_proto::attribute::{self, Place};
use iof_proto::directive::key;
use iof_proto::{Channel, Failure, Info, Nspace, Proc};

use crate::engine::Engine;

/// Returns a delivery with its attributes.
///
/// # Errors
/// A required attribute does not apply to deliveries, or has a value of the wrong type.
fn delivered<'a>(
    from: &'a Proc,
    channel: Channel,
    bytes: Vec<u8>,
    infos: &[Info],
) -> Result<DeliveredBytes<'a>, Failure> {
    let mut all = DeliveredBytes { from, channel, bytes, offset: None, time: None, input: None, end: None };
    let mut complete = None;
    attribute::read(infos, Place::Deliver, &BTreeSet::new(), |given| {
        match given.key() {
            key::PMIX_IOF_COMPLETE => complete = given.bool()?.then_some(DeliveredEnd::Complete),
            key::IOF_BROKEN => all.end = Some(DeliveredEnd::Broken(given.number()?)),
            key::IOF_OFFSET => all.offset = Some(given.number()?),
            key::IOF_READ_TIME => all.time = Some(given.number()?),
            _ => return Err(given.unread()),
        }
        Ok(())
    })?;
    Ok(DeliveredBytes { end: all.end.or(complete), ..all })
}

impl Engine {
    /// Delivers output that the host has received from another node (`PMIx_server_IOF_deliver`).
    /// Registered tools read it like output of local ranks. For tools that register later it is
    /// cached, with the options of its job. If the engine has not started or adopted ranks of that
    /// job, the options are those of the engine.
    ///
    /// `infos` may contain these attributes; others are ignored unless they are required:
    /// * [`PMIX_IOF_COMPLETE`](key::PMIX_IOF_COMPLETE): the stream ends after these bytes (`bytes`
    ///   may be empty);
    /// * [`IOF_BROKEN`](key::IOF_BROKEN): the stream ends after these bytes, but its source may
    ///   have produced more, for example because its node was lost. The value is the number of
    ///   further bytes that it has produced, at least. Tools receive another end than that of a
    ///   complete stream;
    /// * [`IOF_OFFSET`](key::IOF_OFFSET): the number of bytes that the source had produced before
    ///   these. The bytes between the end of the last delivery and this offset are a gap;
    /// * [`IOF_READ_TIME`](key::IOF_READ_TIME): the time at which the bytes were read from their
    ///   source.
    ///
    /// Does not block. `taken` is called once: when the bytes are in the ring, when the policy has
    /// dropped them, or when the engine ends. It is called on the engine's control thread, under
    /// the same rules as [upcalls](crate::Host).
    ///
    /// While a reader with [`Grant::Block`](crate::Grant::Block) holds the stream back, at most
    /// [`MAX_DELIVERED`] bytes of it wait. If none wait, a delivery of any size is accepted. An end
    /// of the stream without bytes is always accepted. Deliveries to one stream keep their order.
    ///
    /// # Errors
    /// [`DeliverError`]. `taken` is then dropped without being called.
    ///
    /// # Example
    /// ```
    /// use iof_engine::{Config, Engine, Grant, Rendezvous};
    /// use iof_output::{Options, Output, Printer};
    /// use iof_proto::directive::key;
    /// use iof_proto::{Channel, Channels, Info, Nspace, Proc, Rank};
    /// use iof_tool::Pull;
    ///
    /// let engine = Engine::start(Config::new(Rendezvous::None))?;
    /// let nspace = Nspace::new("far")?;
    /// let rank = Proc::new(nspace.clone(), Rank(7));
    /// engine.deliver(&rank, Channel::Stdout, b"hello\n".to_vec(), &[], || {})?;
    /// engine.deliver(&rank, Channel::Stdout, Vec::new(), &[Info::new(key::PMIX_IOF_COMPLETE, true)], || {})?;
    /// engine.end_job(&nspace, Some(0));
    /// let mut tool = engine.attach("terminal", Grant::Block)?;
    /// tool.pull(&Pull::new(vec![rank], Channels::STDOUT))?;
    /// let output = Output::new(std::io::stdout())?;
    /// let printer = Printer::start(tool, output, Options::default(), |_, _, _| {})?;
    /// assert_eq!(printer.join()?.written, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn deliver(
        &self,
        from: &Proc,
        channel: Channel,
        bytes: Vec<u8>,
        infos: &[Info],
        taken: impl FnOnce() + Send + 'static,
    ) -> Result<(), DeliverError> {
        let delivered = delivered(from, channel, bytes, infos).map_err(DeliverError::Metadata)?;
        if channel == Channel::Stdin || from.rank.0 >= MAX_RANKS {
            return Err(DeliverError::NoSource { from: from.clone(), channel });
        }
        let mut tables = self.starter.tables.lock();
        let stream = tables.deliver(delivered, Box::new(taken))?;
        if let Err(stopped) = tables.perform_effects() {
            tables.withdraw_delivery(stream);
            return Err(stopped.into());
        }
        Ok(())
    }

    /// Pauses the stdin that the tool `source` pushes to remote processes, or if it is `None`, that
    /// all tools push, until [`Engine::resume_stdin`] (`PMIx_server_IOF_flow_control`). The host
    /// may still receive the pieces for which [`Host::push_stdin`](crate::Host::push_stdin) was
    /// called before, and is called once more if that happens at the same time. Stdin of local
    /// processes is not paused. A pause of a name that no connected tool has, and no push, has no
    /// effect. Does not block. `done` is called on the control thread, under the same rules as
    /// [upcalls](crate::Host), once the pause has taken effect. If the engine ends first, it is
    /// dropped.
    pub fn pause_stdin(&self, source: Option<&Proc>, done: impl FnOnce() + Send + 'static) {
        self.set_stdin_flow(source, true, Box::new(done));
    }

    /// Continues the stdin that was paused by [`Engine::pause_stdin`] or
    /// [`HostReply::pause`](crate::HostReply::pause), of the tool `source` or, if it is `None`, of
    /// all tools. A call after such a reply takes effect after it. Does not block. `done` is called
    /// as by [`Engine::pause_stdin`].
    pub fn resume_stdin(&self, source: Option<&Proc>, done: impl FnOnce() + Send + 'static) {
        self.set_stdin_flow(source, false, Box::new(done));
    }

    fn set_stdin_flow(&self, source: Option<&Proc>, paused: bool, done: TakenCallback) {
        self.starter.tables.reports.send(Input::StdinFlow { source: source.cloned(), paused, done });
    }

    /// Ends the remote part of job `nspace`. Call this when all its remote ranks have ended and
    /// their output was delivered. Completes their streams. When the streams of the job's local
    /// ranks are complete as well, tools receive the end of the job with `exit_code`. If
    /// `exit_code` is `None`, they receive the exit code of the local ranks, if there are any. The
    /// job may be unknown to the engine before this call. Does not block.
    ///
    /// Returns `false` if the remote part was ended before, or all ranks of the job are local.
    pub fn end_job(&self, nspace: &Nspace, exit_code: Option<i32>) -> bool {
        let ended = self.starter.tables.lock().end_job(nspace, exit_code);
        if ended {
            self.starter.tables.notify();
            self.starter.tables.reports.wake();
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_honours_exactly_the_attributes_of_the_table() {
        let from = Proc::new(Nspace::new("job").unwrap(), iof_proto::Rank(0));
        let accepts =
            |info: &Info| delivered(&from, Channel::Stdout, Vec::new(), std::slice::from_ref(info)).is_ok();
        assert_eq!(attribute::mismatches(&[Place::Deliver], accepts), []);
    }
}
