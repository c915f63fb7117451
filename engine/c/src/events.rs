//! Event handlers: who is told that a job has ended, or the engine has gone.

use iof_proto::{Nspace, Proc, Status};

use crate::callbacks::iof_notification_fn_t;
use crate::constants::*;
use crate::guard::Outcome;
use crate::keys::*;
use crate::types::{iof_info_t, iof_proc_t, iof_status_t};
use crate::{call, make, memory};

/// Handlers at a time.
const MAX_HANDLERS: usize = 64;
/// Statuses that one handler may name.
pub(crate) const MAX_CODES: usize = 64;

struct Handler {
    id: usize,
    /// None: all.
    codes: Vec<iof_status_t>,
    callback: iof_notification_fn_t,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Events {
    handlers: Vec<Handler>,
    last: usize,
}

/// What has happened.
pub(crate) enum Event {
    JobEnded { nspace: Nspace, exit_code: Option<i32> },
    Lost,
}

impl Events {
    /// Gives the handler's number.
    pub(crate) fn register(
        &mut self,
        codes: Vec<iof_status_t>,
        callback: iof_notification_fn_t,
    ) -> Outcome<usize> {
        if self.handlers.len() >= MAX_HANDLERS {
            return Err(IOF_ERR_OUT_OF_RESOURCE);
        }
        self.last = self.last.saturating_add(1);
        self.handlers.push(Handler { id: self.last, codes, callback });
        Ok(self.last)
    }

    pub(crate) fn deregister(&mut self, id: usize) -> Outcome<()> {
        let at = self.handlers.iter().position(|handler| handler.id == id).ok_or(IOF_ERR_NOT_FOUND)?;
        self.handlers.remove(at);
        Ok(())
    }

    /// Those that want to hear of it, to be called without the lock.
    pub(crate) fn of(&self, event: &Event) -> Vec<(usize, iof_notification_fn_t)> {
        let wanted = |handler: &&Handler| handler.codes.is_empty() || handler.codes.contains(&event.status());
        self.handlers.iter().filter(wanted).map(|handler| (handler.id, handler.callback)).collect()
    }
}

impl Event {
    fn status(&self) -> iof_status_t {
        match self {
            Event::JobEnded { .. } => IOF_EVENT_JOB_END,
            Event::Lost => IOF_ERR_LOST_CONNECTION,
        }
    }

    /// Tells a handler.
    pub(crate) fn tell(&self, id: usize, callback: iof_notification_fn_t) {
        let nobody = iof_proc_t { nspace: [0; 256], rank: IOF_RANK_UNDEF };
        match self {
            Event::Lost => call::notify(callback, id, self.status(), &nobody, &mut []),
            Event::JobEnded { nspace, exit_code } => {
                let job = Proc::all(nspace.clone());
                let how = match exit_code {
                    Some(0) => Status::SUCCESS,
                    Some(code) if *code > 128 => Status::ERR_JOB_ABORTED_BY_SIG,
                    _ => Status::ERR_JOB_NON_ZERO_TERM,
                };
                let mut source = memory::proc(&job);
                let affected = with_proc(&mut source);
                let mut infos = vec![affected, make::info(IOF_JOB_TERM_STATUS, make::status(how))];
                infos.extend(exit_code.map(|code| make::info(IOF_EXIT_CODE, make::integer(code))));
                call::notify(callback, id, self.status(), &memory::proc(&job), &mut infos);
            }
        }
    }
}

/// Whom it is about; not to be freed.
fn with_proc(proc: &mut iof_proc_t) -> iof_info_t {
    let mut value = crate::value::NOTHING;
    value.r#type = IOF_PROC;
    value.data.proc = proc;
    iof_info_t { flags: IOF_INFO_PERSISTENT, ..make::info(IOF_EVENT_AFFECTED_PROC, value) }
}
