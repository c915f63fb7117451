//! The deliveries of tools, and the answers to their requests.

use iof_proto::ProcState;
use iof_tool::Reply;
use iof_tool::test_utils::Delivered;

use super::{Request, Tool};
use crate::driver::OWN_USER;
use crate::engine::limits::Limited;
use crate::engine::pusher::Push;
use crate::engine::registration::{Closing, Registration};
use crate::engine::truth::Truth;

/// More local ranks than any signal is sent to.
const MOST_SIGNALLED: usize = 100;

impl Tool {
    /// Takes what the tool delivers, and checks it.
    pub(super) fn take_delivered(&mut self, truth: &Truth) {
        while let Some(delivered) = self.side().take_delivered() {
            match delivered {
                Delivered::Reply { request, reply } => {
                    let sent = self.requests.remove(&request).expect("a request that was not answered");
                    self.answered(sent, request, reply, truth);
                }
                Delivered::JobEnded { handler, nspace, run, exit_code, .. } => {
                    truth.check_exit_code(&nspace, run, exit_code);
                    let registration = self.registrations.get_mut(&handler).expect("a registration");
                    registration.end_delivered(&nspace, run);
                    if !self.side().has_registration(handler) {
                        let registration = self.registrations.remove(&handler);
                        assert!(registration.is_some_and(|found| found.is_over()), "it ended too early");
                    }
                }
                Delivered::Rank { handler, run, info } => {
                    self.counts
                        .count("rank", if info.state == ProcState::Running { "started" } else { "ended" });
                    let registration = self.registrations.get_mut(&handler).expect("a registration");
                    registration.rank(run, &info, truth);
                }
                Delivered::Missed { handler, .. } => {
                    assert!(self.granted.contains(&handler), "streams of no registration are missing");
                }
                Delivered::Deregistered { handler } => {
                    let registration = self.registrations.remove(&handler).expect("a registration");
                    assert_eq!(registration.closing, Closing::Asked);
                }
            }
        }
    }

    fn answered(&mut self, request: Request, number: u32, reply: Reply, truth: &Truth) {
        match (request, reply) {
            (Request::Pull(pull), Reply::Pulled(Ok(granted))) => {
                self.counts.count("pull", "granted");
                self.granted.insert(granted.handler);
                let registration = Registration::new(pull, truth);
                assert!(self.registrations.insert(granted.handler, registration).is_none());
            }
            (Request::Pull(pull), Reply::Pulled(Err(failure))) => {
                if !self.is_limited(Limited::Pull, &failure, truth) {
                    self.counts.count("pull", "denied");
                    pull.check_refusal(&failure, truth);
                }
            }
            (Request::Push(plan), Reply::PushBegun(result)) => {
                self.counts.count("push", if result.is_ok() { "begun" } else { "refused" });
                match result {
                    Ok(granted) => _ = self.pushes.insert(granted.push, Push::new(plan)),
                    Err(failure) => self.check_refused_push(&failure, truth),
                }
            }
            (Request::Query(number), Reply::Answered(result)) => {
                self.counts.count("query", if result.is_ok() { "answered" } else { "refused" });
                result
                    .as_ref()
                    .err()
                    .into_iter()
                    .for_each(|failure| self.check_refused_query(failure, truth));
                number.into_iter().for_each(|number| truth.check_query(number, &result));
            }
            (Request::Spawn(number), Reply::Spawned(result)) => {
                self.counts.count("spawn", if result.is_ok() { "answered" } else { "refused" });
                result.iter().for_each(|_| assert_eq!(self.uid, OWN_USER, "a job of another user"));
                result.as_ref().err().map(|failure| self.is_limited(Limited::Spawn, failure, truth));
                truth.spawns.check(number, &result);
            }
            (Request::SlowTargets(push), Reply::SlowTargets(result)) => {
                self.counts.count("slow targets", "reported");
                result.iter().for_each(|slow| truth.stdins.check_slow((self.id, push), slow));
            }
            (Request::Log(message), Reply::Logged(result)) => {
                self.check_log(&result, truth);
                let Some(message) = message else { return };
                for (stream, handler) in truth.messages.received_by(message, self.id, &result) {
                    let registration = self.registrations.get(&handler);
                    let registration = registration.filter(|found| found.closing == Closing::No);
                    registration.into_iter().for_each(|found| found.check_logged(stream, truth));
                }
                self.log_reports.push((message, result));
            }
            (Request::Signal(..), Reply::Signalled(result)) => {
                self.counts.count("signal", if result.is_ok() { "sent" } else { "refused" });
                let elsewhere = truth.signalled.get(&(self.id, number)).copied().unwrap_or_default();
                let count = result.map_or(0, |count| count as usize);
                let is_right = (elsewhere..elsewhere + MOST_SIGNALLED).contains(&count);
                assert!(is_right, "{count} ranks were signalled, {elsewhere} of them elsewhere");
            }
            (request, reply) => panic!("{reply:?} answers {request:?}"),
        }
    }
}
