//! Signals to the processes of a job.

use iof_proto::{FromTool, Proc, ToTool};

use crate::error::RequestError;
use crate::link::Received;
use crate::tool::Tool;

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
        let request = self.next_request();
        let message = FromTool::Signal { request, procs: procs.to_vec(), signal };
        let result = self.ask(&message, |received| match received.message {
            ToTool::Signalled { request: answered, result } if answered == request => Ok(result),
            message => Err(Box::new(Received { message, ..received })),
        })?;
        Ok(result?)
    }
}
