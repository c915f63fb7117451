//! The upcalls that the control thread makes: to the host, and to what starts jobs.

use std::sync::{Arc, Weak};

use iof_core::{Call, DueUpcall, Input, ProcChannels, Upcall};
use iof_proto::{Failure, Status};

use crate::control::starter::Starter;
use crate::host::{ApprovalReply, Host, HostReply, QueryReply, SpawnReply};
use crate::tables::reports::Reports;

/// Makes an upcall.
pub(crate) fn make_upcall(
    DueUpcall { upcall, bytes }: DueUpcall,
    host: &dyn Host,
    reports: &Arc<Reports>,
    starter: &Weak<Starter>,
) {
    match upcall {
        Upcall::Approve { peer, credentials } => {
            host.approve(&credentials, ApprovalReply::new(peer, Arc::clone(reports)));
        }
        Upcall::Pull { call, sources: ProcChannels { procs, channels }, directives } => {
            host.iof_pull(
                &procs,
                channels,
                &directives,
                HostReply::new(Call::Pull(call), Arc::clone(reports)),
            );
        }
        Upcall::Stop(ProcChannels { procs, channels }) => host.iof_stop(&procs, channels),
        Upcall::Stdin { push, stdin, .. } => {
            host.push_stdin(&stdin, &bytes, HostReply::new(Call::Stdin(push), Arc::clone(reports)));
        }
        Upcall::Signal { procs, signal, mut requested, receivers } => {
            requested.elsewhere = host.signal(&procs, signal);
            reports.send(Input::SignalledElsewhere { request: requested, signal, receivers });
        }
        Upcall::Query { id, queries } => host.query(&queries, QueryReply::new(id, Arc::clone(reports))),
        Upcall::Log { step, log } => host.log(&log, HostReply::new(Call::Log(step), Arc::clone(reports))),
        Upcall::Spawn { id, request } => {
            host.spawn(*request, SpawnReply::new(id, Arc::clone(reports)));
        }
        // An engine that is being dropped starts and removes nothing.
        Upcall::Start { id, spec } => {
            if let Some(starter) = starter.upgrade() {
                starter.start_for_tool(id, spec);
            }
        }
        Upcall::Abandoned(nspace) => {
            let failure = Failure::new(Status::ERR_UNREACH, "the tool has disconnected");
            host.spawned(&nspace, Err(&failure));
        }
        Upcall::Remove(job) => {
            let starter = starter.upgrade().filter(|starter| starter.tables.lock().job(&job).is_some());
            starter.map(|starter| starter.remove(&job.nspace));
        }
        Upcall::Reply { done, answer } => done(answer),
        Upcall::Exchange { from, exchange, done } => host.exchange(&from, exchange, done),
        Upcall::Taken(callback) => callback(),
    }
}
