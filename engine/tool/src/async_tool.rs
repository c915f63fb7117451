//! A tool on the event loop of tokio.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Sleep, sleep};

use crate::error::LostError;
use crate::owned::OwnedDelivery;
use crate::session::delivery::Delivery;
use crate::tool::Tool;

/// A [`Tool`] as a stream of owned deliveries, on the event loop of tokio. Needs the feature `tokio`.
///
/// Ends when nothing more will be delivered ([`Tool::is_done`]). A registration or a request that is
/// made through [`AsyncTool::get_mut`] while the stream waits is noticed by the task's next poll. Each
/// delivery is copied once; [`Tool::try_recv`] lends bytes without a copy. Dropping the stream detaches
/// the tool.
///
/// ```
/// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
/// use std::future::poll_fn;
/// use std::pin::Pin;
///
/// use futures_core::Stream;
/// use iof_proto::{Channels, Proc};
/// use iof_tool::{AsyncTool, OwnedDelivery, Pull};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = Engine::start(Config::new(Rendezvous::None))?;
/// # let mut tool = engine.attach("example", Grant::Never)?;
/// tool.pull(&Pull::new(vec![Proc::all("job1".parse()?)], Channels::STDOUT))?;
/// # engine.spawn(&JobSpec::new("job1".parse()?, vec![App::new("echo", ["one"])]))?;
/// let mut deliveries = AsyncTool::new(tool)?;
/// let mut text = Vec::new();
/// while let Some(delivery) = poll_fn(|task| Pin::new(&mut deliveries).poll_next(task)).await {
///     if let OwnedDelivery::Bytes { bytes, .. } = delivery? {
///         text.extend(bytes);
///     }
/// }
/// assert_eq!(text, b"one\n");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncTool {
    tool: Tool,
    readiness: AsyncFd<OwnedFd>,
    /// The end of the tool's own wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl AsyncTool {
    /// Takes over a tool. Call this within a tokio runtime with its I/O and time drivers.
    ///
    /// # Errors
    /// The process has no descriptor left, or the runtime refuses it.
    pub fn new(tool: Tool) -> io::Result<AsyncTool> {
        let doorbell = tool.as_fd().try_clone_to_owned()?;
        // SAFETY: the registration owns the duplicate, which `OwnedFd` neither closes nor replaces before
        // it is dropped.
        let readiness = unsafe { AsyncFd::register_with_interest(doorbell, Interest::READABLE) }?;
        Ok(AsyncTool { tool, readiness, timer: None })
    }

    /// Returns the tool, for requests. What it delivers meanwhile is missing from the stream.
    pub fn get_mut(&mut self) -> &mut Tool {
        &mut self.tool
    }

    /// Polls for the next delivery as the stream does, but lends it to `take` instead of copying it. Returns the
    /// result of `take`, which comes with the number of bytes that it has consumed. The others are delivered again in
    /// their stream's next turn.
    pub fn poll_lend<T>(
        &mut self,
        task: &mut Context<'_>,
        mut take: impl FnMut(Delivery<'_>) -> (usize, T),
    ) -> Poll<Option<Result<T, LostError>>> {
        let AsyncTool { tool, readiness, timer } = self;
        loop {
            let taken = tool.try_recv().map(|delivery| delivery.map(&mut take)).transpose();
            if let Some(Ok((consumed, _))) = taken {
                tool.consume(consumed);
            }
            if taken.is_some() || tool.is_done() {
                return Poll::Ready(taken.map(|taken| taken.map(|(_, result)| result)));
            }
            // Nothing was found, so only the doorbell or the tool's own wait can bring more.
            *timer = tool.timeout().map(|limit| Box::pin(sleep(limit)));
            let is_over = timer.as_mut().is_some_and(|timer| timer.as_mut().poll(task).is_ready());
            if !is_over {
                match ready!(readiness.poll_read_ready(task)) {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(error) => return Poll::Ready(Some(Err(LostError::Socket(error)))),
                }
            }
        }
    }

    /// Returns the tool. Nothing that was not returned is lost.
    pub fn into_inner(self) -> Tool {
        self.tool
    }
}

impl Stream for AsyncTool {
    type Item = Result<OwnedDelivery, LostError>;

    fn poll_next(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_lend(task, |delivery| (usize::MAX, delivery.into_owned()))
    }
}
