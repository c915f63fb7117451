//! The jobs that the program starts by `iof_Spawn`, and the attributes of their output.

use std::sync::Arc;

use iof_proto::{Channels, Failure, Nspace, Proc, Spawn, Status};
use iof_tool::{Pull, Tool};

use crate::infos::format::{Format, Print};
use crate::session::command::{Command, Done, Sink};

use super::{SessionCore, UnansweredRequest};

/// The maximum number of jobs whose formats are kept.
const MAX_FORMATS: usize = 1024;

impl SessionCore {
    pub(super) fn spawn(&mut self, spawn: &Spawn, format: Format, done: Done<Nspace>) {
        // The output of some could not be written.
        self.formatted.retain(|nspace| self.shared.formats.has(nspace));
        let has_format = |pending: &&UnansweredRequest| matches!(pending, UnansweredRequest::Spawn(format, _) if *format != Format::default());
        let starting = self.pending.values().filter(has_format).count();
        if format != Format::default() && self.formatted.len().saturating_add(starting) >= MAX_FORMATS {
            let reason = format!(
                "attributes of output are kept for {MAX_FORMATS} jobs: receive the output of some to the end"
            );
            return done(Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason)));
        }
        self.ask(Tool::submit_spawn, spawn, UnansweredRequest::Spawn(format, done));
    }

    /// Keeps the format of a job that was started. If the library writes its output without a
    /// registration of the program, registers for it.
    pub(super) fn spawned(&mut self, nspace: Nspace, format: Format, done: Done<Nspace>) {
        // An earlier job may have had the name.
        self.forget_format(&nspace);
        let look = format.clone().look();
        if look != Format::default() {
            self.formatted.insert(nspace.clone());
            self.shared.formats.set(&nspace, look);
        }
        let Some(format) = format.of_own_output() else { return done(Ok(nspace)) };
        let pull = Pull::new(vec![Proc::all(nspace.clone())], Channels::ALL);
        let sink = Sink::Print(Box::new(Print { format, ..Print::default() }));
        let formats = Arc::clone(&self.shared.formats);
        let begun = move |result: Result<usize, Failure>| match result {
            Ok(_) => done(Ok(nspace)),
            Err(Failure { reason, .. }) => {
                formats.forget(&nspace);
                let reason = format!("job {nspace} was started, but its output cannot be written: {reason}");
                done(Err(Failure::new(Status::ERR_IOF_FAILURE, reason)));
            }
        };
        self.run_command(Command::Pull(pull, sink, Box::new(begun)));
    }

    /// Drops the format of a job if no registration names it, and no request for one.
    pub(super) fn forget_unnamed(&mut self, nspace: &Nspace) {
        let requested = self.pending.values().filter_map(|pending| match pending {
            UnansweredRequest::Pull(registration, ..) => Some(registration),
            _ => None,
        });
        let mut registrations = self.handlers.values().chain(requested);
        if !registrations.any(|registration| registration.jobs.contains_key(nspace)) {
            self.forget_format(nspace);
        }
    }

    /// Drops the format of a job.
    pub(super) fn forget_format(&mut self, nspace: &Nspace) {
        if self.formatted.remove(nspace) {
            self.shared.formats.forget(nspace);
        }
    }
}
