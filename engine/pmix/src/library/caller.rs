//! The thread that calls libpmix. A call of libpmix may never return, for example because a client
//! that libpmix refused has left one of its locks locked. The wait for it is limited.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;

use crate::library::Library;

/// The largest number of calls that have not returned when a further one that cleans up is made,
/// with an overdue one.
const MAX_WAITING_CALLS: usize = 1024;

type Call<L> = Box<dyn FnOnce(&L) + Send>;

/// A thread that makes all calls of a library, one after the other. It ends once this is dropped
/// and all calls have returned.
pub(crate) struct Caller<L = Library> {
    calls: mpsc::Sender<Call<L>>,
    state: Arc<Mutex<State>>,
}

/// The state of the calls. The thread reports each result under its lock, so that a call is overdue
/// only while it has no result.
#[derive(Default)]
struct State {
    /// The number of calls that have not returned.
    unfinished: usize,
    /// Set if one of them has not returned in time.
    is_overdue: bool,
    /// Set when the last call was made, or waits.
    has_ended: bool,
}

/// A call has not returned in time. It may still do so.
#[derive(Debug, thiserror::Error)]
#[error("libpmix does not answer")]
pub(crate) struct Stalled;

impl<L: Send + 'static> Caller<L> {
    /// Starts the thread.
    pub(crate) fn start(library: L) -> Result<Caller<L>, std::io::Error> {
        let (calls, queue) = mpsc::channel::<Call<L>>();
        thread::Builder::new().name("iof-pmix".into()).spawn(move || {
            // Handlers of the embedder are not for this thread. It fails only for invalid masks.
            let _ = SigSet::all().thread_block();
            queue.into_iter().for_each(|call| call(&library));
        })?;
        Ok(Caller { calls, state: Arc::default() })
    }

    /// Makes a call on the thread, and waits at most `limit` for its result.
    ///
    /// # Errors
    /// [`Stalled`]: the call has not returned in time, or was not made, because an earlier call has
    /// not returned.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl FnOnce(&L) -> T + Send + 'static,
    ) -> Result<T, Stalled> {
        let state = self.state();
        if state.is_overdue {
            return Err(Stalled);
        }
        let result = self.enqueue(state, call)?;
        self.wait(limit, &result)
    }

    /// Makes a call that undoes others, and waits at most `limit` for its result. If an earlier call
    /// has not returned, this call is made after it, and not waited for.
    ///
    /// # Errors
    /// [`Stalled`]. If [`MAX_WAITING_CALLS`] have not returned, the call is not made.
    pub(crate) fn clean_up<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl FnOnce(&L) -> T + Send + 'static,
    ) -> Result<T, Stalled> {
        let state = self.state();
        if state.is_overdue && state.unfinished >= MAX_WAITING_CALLS {
            return Err(Stalled);
        }
        self.append(state, limit, call)
    }

    /// Makes the last call, as [`Caller::clean_up`] does, however many have not returned.
    ///
    /// # Errors
    /// [`Stalled`].
    pub(crate) fn end<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl FnOnce(&L) -> T + Send + 'static,
    ) -> Result<T, Stalled> {
        let mut state = self.state();
        state.has_ended = true;
        self.append(state, limit, call)
    }

    /// Returns a function that lets the thread pass a value to `take`, for which nothing waits. A
    /// value that the thread finds after [`Caller::end`] is neither passed nor dropped, because both
    /// may use memory that the last call has freed.
    pub(crate) fn poster<T: Send + 'static, F: Fn(T) + Copy + Send + Sync + 'static>(
        &self,
        take: F,
    ) -> impl Fn(T) + Send + Sync + use<L, T, F> {
        let (calls, state) = (self.calls.clone(), Arc::clone(&self.state));
        move |value| {
            let state = Arc::clone(&state);
            let call = move |_: &L| if lock(&state).has_ended { mem::forget(value) } else { take(value) };
            // Fails if the thread has panicked.
            drop(calls.send(Box::new(call)));
        }
    }

    /// Makes a call after all others, and waits for its result unless one of them is overdue.
    fn append<T: Send + 'static>(
        &self,
        state: MutexGuard<'_, State>,
        limit: Duration,
        call: impl FnOnce(&L) -> T + Send + 'static,
    ) -> Result<T, Stalled> {
        let is_overdue = state.is_overdue;
        let result = self.enqueue(state, call)?;
        if is_overdue { Err(Stalled) } else { self.wait(limit, &result) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn enqueue<T: Send + 'static>(
        &self,
        mut state: MutexGuard<'_, State>,
        call: impl FnOnce(&L) -> T + Send + 'static,
    ) -> Result<mpsc::Receiver<T>, Stalled> {
        let (sender, result) = mpsc::sync_channel(1);
        let shared = Arc::clone(&self.state);
        let call = move |library: &L| {
            let returned = call(library);
            let mut state = lock(&shared);
            // Fails if the result is not waited for.
            let _ = sender.send(returned);
            (state.unfinished, state.is_overdue) = (state.unfinished.saturating_sub(1), false);
        };
        self.calls.send(Box::new(call)).map_err(|_| Stalled)?;
        state.unfinished = state.unfinished.saturating_add(1);
        Ok(result)
    }

    fn wait<T>(&self, limit: Duration, result: &mpsc::Receiver<T>) -> Result<T, Stalled> {
        result.recv_timeout(limit).or_else(|_| {
            let mut state = self.state();
            // It may have arrived meanwhile.
            result.try_recv().map_err(|_| {
                state.is_overdue = true;
                Stalled
            })
        })
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Longer than any call of a test takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Makes calls until one returns in time.
    fn call_until_in_time(caller: &Caller<()>) {
        for _ in 0..600_000 {
            if caller.call(LONG, |()| ()).is_ok() {
                return;
            }
            thread::sleep(Duration::from_micros(100));
        }
        panic!("no call returns");
    }

    #[test]
    fn calls_that_return_late_delay_only_those_made_meanwhile() {
        let caller = Caller::start(()).unwrap();
        for _ in 0..2000 {
            // It returns at any time around the end of the wait.
            let _ = caller.call(Duration::ZERO, |()| ());
            call_until_in_time(&caller);
        }
    }

    #[test]
    fn what_is_posted_after_the_last_call_is_neither_used_nor_dropped() {
        struct Reply(mpsc::Sender<&'static str>);
        impl Drop for Reply {
            fn drop(&mut self) {
                let _ = self.0.send("dropped");
            }
        }
        let caller = Caller::start(()).unwrap();
        let (answer, answers) = mpsc::channel();
        let post = caller.poster(|reply: Reply| reply.0.send("answered").unwrap());
        post(Reply(answer.clone()));
        assert!(caller.call(LONG, |()| ()).is_ok() && caller.end(LONG, |()| ()).is_ok());
        post(Reply(answer));
        assert!(caller.clean_up(LONG, |()| ()).is_ok());
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), ["answered", "dropped"]);
    }

    #[test]
    fn a_call_that_is_refused_is_not_made_and_one_that_cleans_up_is() {
        let caller = Caller::start(()).unwrap();
        let (open, gate) = mpsc::channel::<()>();
        assert!(caller.call(Duration::ZERO, move |()| gate.recv()).is_err());
        let (made, calls) = mpsc::channel();
        let make = |number| {
            let made = made.clone();
            move |(): &()| made.send(number).unwrap()
        };
        assert!(caller.call(LONG, make(1)).is_err());
        for number in 2..MAX_WAITING_CALLS + 10 {
            assert!(caller.clean_up(LONG, make(number)).is_err());
        }
        // The last one is made nevertheless.
        assert!(caller.end(LONG, make(0)).is_err());
        drop(open);
        call_until_in_time(&caller);
        drop((caller, made));
        let expected: Vec<usize> = (2..=MAX_WAITING_CALLS).chain([0]).collect();
        assert_eq!(calls.into_iter().collect::<Vec<_>>(), expected);
    }
}
