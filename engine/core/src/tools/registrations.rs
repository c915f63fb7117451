//! Registrations of tools, and what they are informed of.

use iof_proto::limits::MAX_RANKS_PER_REPORT;
use iof_proto::{Nspace, ProcInfo, ProcState, Rank, ToTool};

use crate::Core;
use crate::ids::PeerId;
use crate::jobs::job::JobState;
use crate::queries::answers::proc_info;
use crate::tools::registration::Registration;

impl Core {
    /// Ends a registration, or a pull before it is one. It then counts towards no limit and holds no
    /// sources at the host.
    pub(crate) fn end_registration(&mut self, mut registration: Registration) {
        self.quotas.give_back(registration.charge.take());
        registration.ticket().inspect(|ticket| self.release(*ticket));
    }

    /// Informs the tools whose registrations name `nspace` and can get no further source.
    pub(crate) fn announce_complete_registrations(&mut self, nspace: &Nspace) {
        for (peer_id, handler) in self.tools.naming(nspace) {
            self.announce_if_complete(peer_id, handler);
        }
    }

    /// Informs `peer_id` if its registration `handler` can get no further source, and no further
    /// report of one that it misses.
    pub(crate) fn announce_if_complete(&mut self, peer_id: PeerId, handler: u32) {
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        let may_pull = peer.may_lose();
        let registration = peer.registration_mut(handler);
        let is_missing = || self.streams.iter().any(|(_, stream)| stream.is_missed_by(peer_id, handler));
        let complete = registration.and_then(|registration| {
            registration.announce_if_complete((handler, may_pull), &self.jobs, is_missing)
        });
        if let Some(message) = complete {
            peer.answer(&message);
        }
    }

    /// Informs the tools that registered for `nspace` of the starts and ends of its ranks.
    pub(crate) fn announce_ranks(&mut self, nspace: &Nspace) {
        for (peer_id, handler) in self.tools.naming(nspace) {
            self.report_ranks(peer_id, handler, nspace);
        }
    }

    /// Informs `peer_id` of the starts and ends of ranks of `nspace` that its registration `handler` asks for,
    /// each once.
    fn report_ranks(&mut self, peer_id: PeerId, handler: u32, nspace: &Nspace) {
        let Some(job) = self.jobs.get(nspace) else { return };
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        let Some(registration) = peer.registration_mut(handler) else { return };
        let Some((has_started, ended)) = registration.take_ranks(nspace, job) else { return };
        let (own, run) = (self.settings.node.as_str(), job.run());
        let info = |rank: Rank| Some(proc_info(own, (nspace, job), (rank, job.rank(rank)?)));
        let start = |info| ProcInfo { state: ProcState::Running, exit_code: None, used: None, ..info };
        let started = job.ranks().filter(|_| has_started).filter_map(|(rank, _)| info(rank)).map(start);
        let ranks = started.chain(ended.into_iter().filter_map(info));
        let ranks: Vec<ProcInfo> = ranks.filter(|info| registration.covers(&info.proc)).collect();
        let mut is_sent = false;
        for part in ranks.chunks(MAX_RANKS_PER_REPORT) {
            is_sent = registration.is_due(ToTool::Ranks { handler, run, ranks: part.to_vec() });
        }
        if is_sent {
            self.send_due(peer_id, handler);
        }
    }

    /// If `nspace` has ended, informs the tools that registered for it, and ends the registrations
    /// that can receive nothing more. All its rings were announced before.
    pub(crate) fn announce_end(&mut self, nspace: &Nspace) {
        if self.jobs.get(nspace).is_some_and(JobState::has_ended) {
            for (peer_id, handler) in self.tools.naming(nspace) {
                self.report_end(peer_id, handler, nspace);
            }
        }
    }

    /// Informs `peer_id` of each job named by its registration `handler` that has ended, and of ranks.
    pub(crate) fn report_ends(&mut self, peer_id: PeerId, handler: u32) {
        let registration = self.tools.get(&peer_id).and_then(|peer| peer.registration(handler));
        let jobs: Vec<Nspace> =
            registration.map(|registration| registration.jobs().cloned().collect()).unwrap_or_default();
        jobs.iter().for_each(|nspace| self.report_end(peer_id, handler, nspace));
    }

    /// Informs `peer_id` that `nspace`, which its registration `handler` names, has ended, unless
    /// it has not or the tool was informed before. The message follows all rings of the job, and what is
    /// reported of its ranks.
    fn report_end(&mut self, peer_id: PeerId, handler: u32, nspace: &Nspace) {
        self.report_ranks(peer_id, handler, nspace);
        let Some(job) = self.jobs.get(nspace).filter(|job| job.has_ended()) else { return };
        let (run, exit_code) = (job.run(), job.exit_code());
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        let Some(registration) = peer.registration_mut(handler) else { return };
        if !registration.mark_end_reported(nspace, run) {
            return;
        }
        let message = ToTool::JobEnded { handler, nspace: nspace.clone(), run, exit_code, skipped: 0 };
        if registration.is_due(message) {
            self.send_due(peer_id, handler);
        }
    }

    /// Continues with a registration all of whose rings are queued.
    pub(crate) fn readers_settled(&mut self, peer_id: PeerId, handler: u32) {
        self.announce_cached(peer_id, handler);
        self.announce_if_complete(peer_id, handler);
        self.send_due(peer_id, handler);
    }

    /// Sends what is due about ranks and ends of jobs, and ends the registration if nothing can follow.
    fn send_due(&mut self, peer_id: PeerId, handler: u32) {
        let Some(peer) = self.tools.get_mut(&peer_id) else { absent!("tool", return) };
        let Some(registration) = peer.registration_mut(handler) else { return };
        let is_over = registration.is_over();
        let due = registration.take_due();
        due.iter().for_each(|message| peer.answer(message));
        if is_over {
            // Its readers remain until the tool has drained them. It misses only streams of ranks
            // whose start has failed.
            self.streams.registration_ended(peer_id, Some(handler));
            let ended = self.tools.remove_registration(peer_id, handler);
            ended.into_iter().for_each(|registration| self.end_registration(registration));
        }
    }
}
