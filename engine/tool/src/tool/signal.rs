//! Signals to the processes of a job.

use iof_proto::{FromTool, Proc};

use super::Tool;
use crate::error::RequestError;
use crate::session::reply::Signalled;
use crate::session::request::Request;

impl Tool {
    /// Sends the signal with this number (signal(7)) to the `procs` that run on the engine's node,
    /// and to the process groups that they lead. A wildcard rank means all such ranks of its job.
    /// The engine identifies processes by pidfds, so that no other process receives the signal.
    /// Returns the number of processes and groups that the signal was sent to. Blocks until the
    /// engine has answered.
    ///
    /// # Errors
    /// Returns [`RequestError`] if a job or rank does not exist, a job is being started
    /// (`PMIX_ERR_RESOURCE_BUSY`), the signal is not a standard signal, this process belongs
    /// neither to the engine's user nor to root, or the engine is gone. No signal was sent then,
    /// unless the engine is gone.
    pub fn signal(&mut self, procs: &[Proc], signal: i32) -> Result<u32, RequestError> {
        let request = self.submit_signal(procs, signal)?;
        self.wait::<Signalled>(request).map(|Signalled(count)| count)
    }

    /// Sends the request of [`Tool::signal`] without waiting for the answer, see
    /// [`Reply`](crate::Reply).
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_signal(&mut self, procs: &[Proc], signal: i32) -> Result<u32, RequestError> {
        self.submit(Request::Signal, |request| FromTool::Signal { request, procs: procs.to_vec(), signal })
    }
}
