//! The jobs on nodes whose ranks may connect to each other by PMIx.

use std::sync::{Arc, Mutex, Weak};

use iof_nodes::ToAgent;
use iof_proto::{Nspace, Relative};

use crate::carrier::lock;
use crate::remote::Remote;

/// The jobs whose ranks may connect to each other by PMIx, since ranks of one have spawned another
/// ([`Launch::relatives`](crate::Launch)). Each node with ranks of one knows all others. Clones are
/// the same set.
#[derive(Clone, Debug, Default)]
pub struct Relatives(Arc<Mutex<Vec<Member>>>);

/// A job that has not ended.
#[derive(Debug)]
struct Member {
    job: Relative,
    remote: Weak<Remote>,
    /// Its ranks run, so that its nodes can be told of others.
    has_started: bool,
}

impl Relatives {
    /// Makes a job that is about to start known to the nodes of those that run. Returns these.
    pub(crate) fn introduce(&self, job: &Relative, remote: &Arc<Remote>) -> Vec<Relative> {
        let mut jobs = lock(&self.0);
        // The name is free again before the last handle is dropped.
        let has_ended =
            |other: &mut Member| other.remote.strong_count() == 0 || other.job.nspace == job.nspace;
        let ended: Vec<_> = jobs.extract_if(.., has_ended).collect();
        let messages = ended.into_iter().map(|ended| ToAgent::RelativeEnded(ended.job.nspace));
        for message in messages.chain([ToAgent::Relative(job.clone())]) {
            tell(&jobs, &message);
        }
        let running = jobs.iter().filter(|other| other.has_started);
        let running = running.map(|other| other.job.clone()).collect();
        jobs.push(Member { job: job.clone(), remote: Arc::downgrade(remote), has_started: false });
        running
    }

    /// Notes that the ranks of a job run. Its nodes know the jobs that have started before it did.
    pub(crate) fn started(&self, job: &Relative, remote: &Arc<Remote>, known: &[Relative]) {
        let mut jobs = lock(&self.0);
        let unknown: Vec<_> = jobs.extract_if(.., |other| !known.contains(&other.job)).collect();
        tell(&unknown, &ToAgent::Relative(job.clone()));
        for other in unknown.iter().filter(|other| other.has_started) {
            remote.send_all(&ToAgent::Relative(other.job.clone()));
        }
        jobs.extend(unknown);
        jobs.iter_mut().filter(|other| other.job == *job).for_each(|own| own.has_started = true);
    }

    /// Makes nodes forget a job that has not started.
    pub(crate) fn withdraw(&self, job: Relative) {
        let mut jobs = lock(&self.0);
        jobs.retain(|other| other.job != job);
        tell(&jobs, &ToAgent::RelativeEnded(job.nspace));
    }

    /// Returns whether the nodes of a job may ask for what ranks of another one have put.
    pub(crate) fn are_related(&self, one: &Nspace, other: &Nspace) -> bool {
        let jobs = lock(&self.0);
        one == other || [one, other].iter().all(|name| jobs.iter().any(|job| job.job.nspace == **name))
    }
}

fn tell(jobs: &[Member], message: &ToAgent) {
    let running = jobs.iter().filter(|job| job.has_started);
    running.filter_map(|job| job.remote.upgrade()).for_each(|remote| remote.send_all(message));
}
