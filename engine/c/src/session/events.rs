//! Event handlers: the callbacks for the end of a job, and for the loss of the engine.

use iof_proto::attribute::key::*;
use iof_proto::{Nspace, Proc, Status};

use crate::ffi::callbacks::iof_notification_fn_t;
use crate::ffi::constants::*;
use crate::ffi::guard::Outcome;
use crate::ffi::types::{iof_info_t, iof_proc_t, iof_status_t};
use crate::ffi::{make, memory};
use crate::session::call;

/// The maximum number of handlers at a time.
const MAX_HANDLERS: usize = 64;
/// The maximum number of statuses of a handler.
pub(crate) const MAX_CODES: usize = 64;

struct EventHandler {
    id: usize,
    /// The events that it receives. Empty: all.
    codes: Vec<iof_status_t>,
    callback: iof_notification_fn_t,
}

/// All event handlers of a session.
#[derive(Default)]
pub(crate) struct Events {
    handlers: Vec<EventHandler>,
    last: usize,
}

/// An event.
pub(crate) enum HandlerEvent {
    JobEnded { nspace: Nspace, exit_code: Option<i32> },
    Lost,
}

impl Events {
    /// Registers a handler, and returns its number.
    pub(crate) fn register(
        &mut self,
        codes: Vec<iof_status_t>,
        callback: iof_notification_fn_t,
    ) -> Outcome<usize> {
        if self.handlers.len() >= MAX_HANDLERS {
            return Err(Status::ERR_OUT_OF_RESOURCE);
        }
        self.last = self.last.saturating_add(1);
        self.handlers.push(EventHandler { id: self.last, codes, callback });
        Ok(self.last)
    }

    /// Removes a handler, if it exists.
    pub(crate) fn deregister(&mut self, id: usize) {
        self.handlers.retain(|handler| handler.id != id);
    }

    /// Returns the handlers that receive `event`. They are to be called without the lock.
    pub(crate) fn handlers_for(&self, event: &HandlerEvent) -> Vec<(usize, iof_notification_fn_t)> {
        let wanted =
            |handler: &&EventHandler| handler.codes.is_empty() || handler.codes.contains(&event.status().0);
        self.handlers.iter().filter(wanted).map(|handler| (handler.id, handler.callback)).collect()
    }
}

impl HandlerEvent {
    fn status(&self) -> Status {
        match self {
            HandlerEvent::JobEnded { .. } => Status::EVENT_JOB_END,
            HandlerEvent::Lost => Status::ERR_LOST_CONNECTION,
        }
    }

    /// Calls a handler.
    pub(crate) fn notify(&self, id: usize, callback: iof_notification_fn_t) {
        match self {
            HandlerEvent::Lost => call::notify(callback, id, self.status(), &iof_proc_t::default(), &mut []),
            HandlerEvent::JobEnded { nspace, exit_code } => {
                let job = Proc::all(nspace.clone());
                let end = match exit_code {
                    Some(0) => Status::SUCCESS,
                    Some(code) if *code > 128 => Status::ERR_JOB_ABORTED_BY_SIG,
                    _ => Status::ERR_JOB_NON_ZERO_TERM,
                };
                let mut source = memory::proc(&job);
                let affected = with_proc(&mut source);
                let mut infos = vec![affected, make::info(PMIX_JOB_TERM_STATUS, make::status(end))];
                infos.extend(exit_code.map(|code| make::info(PMIX_EXIT_CODE, make::integer(code))));
                call::notify(callback, id, self.status(), &memory::proc(&job), &mut infos);
            }
        }
    }
}

/// Returns the info that names the affected process. It borrows the process, so it is not freed.
fn with_proc(proc: &mut iof_proc_t) -> iof_info_t {
    let mut value = crate::ffi::value::NOTHING;
    value.r#type = PMIX_PROC;
    value.data.proc = proc;
    iof_info_t { flags: PMIX_INFO_PERSISTENT, ..make::info(PMIX_EVENT_AFFECTED_PROC, value) }
}
