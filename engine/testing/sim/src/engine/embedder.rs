//! The reports of ranks about MPI, the embedder's actions besides starting jobs, and the ends that
//! jobs must have.

use iof_capture::{ProcessId, Signal};
use iof_proto::log::key as log_key;
use iof_proto::{Log, Proc, Rank};

use super::EngineWorld;
use super::ends::Phase;
use super::jobs::RankProcess;
use crate::driver::{MpiReport, RankSignals};
use crate::rng::Rng;

impl EngineWorld {
    /// A rank begins, finalizes or aborts MPI, also one that is being started. After an abort it may
    /// exit before the engine learns of it. A report about a job that was removed has no effect.
    pub(super) fn report_mpi(&mut self, actor: usize, rng: &mut Rng) {
        let Some(job) = self.job(actor).map(|index| &mut self.jobs.list[index]) else { return };
        let running = job.ranks.len() + usize::from(job.is_starting());
        let Some(number) = (actor >> 8).checked_rem(running) else { return };
        let (rank, phase) = (job.ranks.get_mut(number), job.ends.phase(number));
        let exited = rank.as_ref().map_or(job.starting_status.is_some(), |rank| rank.exited);
        let report = match phase {
            _ if rng.chance(if exited { 16 } else { 24 }) => MpiReport::Aborted(rng.below(256) as i32),
            _ if exited || rank.as_ref().is_some_and(|rank| rank.stopped) => return,
            Phase::Before => MpiReport::Initialized,
            Phase::Inside => MpiReport::Finalized,
            Phase::After => return,
        };
        if rng.chance(16) {
            let earlier = job.run.wrapping_sub(1);
            return self.engine.report_mpi(&job.nspace, earlier, Rank(number as u32), report);
        }
        if let MpiReport::Aborted(code) = report
            && !exited
        {
            let status = Some(code << 8);
            match rank {
                Some(rank) => {
                    rank.status = status;
                    rank.exit();
                }
                None => job.starting_status = status,
            }
        }
        job.ends.reported(number, report);
        let (nspace, run) = (job.nspace.clone(), job.run);
        if let MpiReport::Aborted(_) = report {
            // It has its effect at once, with all that is due then.
            self.note_parents();
        }
        self.engine.report_mpi(&nspace, run, Rank(number as u32), report);
        self.follow_up();
        let job = self.job(actor).map(|index| &self.jobs.list[index]).filter(|job| job.registered);
        if let (MpiReport::Aborted(_), Some(job)) = (report, job) {
            job.ends.check_ended(self.now);
        }
    }

    /// A rank of a job that failed to start has reported something about MPI before it was killed.
    pub(super) fn report_of_withdrawn(&mut self, actor: usize, rng: &mut Rng) {
        let withdrawn = &self.jobs.withdrawn;
        let index = actor.checked_rem(withdrawn.len()).filter(|_| rng.chance(64));
        if let Some((Proc { nspace, rank }, run)) = index.map(|index| withdrawn[index].clone()) {
            let reports = [MpiReport::Initialized, MpiReport::Finalized, MpiReport::Aborted(1)];
            let report = rng.pick(&reports);
            let is_there = self.jobs.list.iter().any(|job| job.run == run);
            if matches!(report, MpiReport::Aborted(_)) && is_there {
                self.note_parents();
            }
            self.engine.report_mpi(&nspace, run, rank, report);
        }
    }

    /// The embedder signals a job, logs a message, or reports an exit that is known.
    pub(super) fn act_as_embedder(&mut self, actor: usize, rng: &mut Rng) {
        match rng.below(4) {
            0 => self.log_message(rng),
            1 => self.report_exit_again(actor),
            _ => self.signal_job(actor, rng),
        }
    }

    fn log_message(&mut self, rng: &mut Rng) {
        let mut channels = vec![log_key::PMIX_LOG_STDERR];
        // A silent host would not answer before the end of the run.
        if !self.setting.silent_host && rng.chance(128) {
            channels.push("their.channel");
        }
        let number = self.host.expect_callback();
        if self.engine.log_message(&Log::to(channels, "a message of the embedder\n"), number).is_err() {
            self.host.withdraw_callback(number);
        }
    }

    /// Reports an exit that was reported before, or is not the embedder's to report.
    fn report_exit_again(&mut self, actor: usize) {
        let Some(job) = self.job(actor).map(|index| &self.jobs.list[index]) else { return };
        for (number, rank) in job.ranks.iter().enumerate() {
            if rank.signals != RankSignals::OfEmbedder || rank.reported {
                let reported = self.engine.report_exit(&job.nspace, job.run, Rank(number as u32));
                assert_eq!(reported, None, "an exit was reported twice");
            }
        }
    }

    fn signal_job(&mut self, actor: usize, rng: &mut Rng) {
        let Some(job) = self.job(actor).map(|index| &mut self.jobs.list[index]) else { return };
        let signal = rng.pick(&[Signal::TERM, Signal::INT, Signal::CONT, Signal::KILL]);
        let groups_only = rng.chance(128);
        let earlier = job.run.wrapping_sub(1);
        let none = self.engine.signal_job(&job.nspace, earlier, signal, groups_only);
        assert_eq!(none, [], "ranks of an earlier job were signalled");
        let receives = |rank: &&RankProcess| match rank.signals {
            RankSignals::OfEmbedder => false,
            RankSignals::ToProcess => !groups_only,
            RankSignals::ToGroup => true,
        };
        let expected: Vec<ProcessId> = job.ranks.iter().filter(receives).map(|rank| rank.process).collect();
        let processes = self.engine.signal_job(&job.nspace, job.run, signal, groups_only);
        assert_eq!(processes, expected, "the ranks that receive a signal");
        if groups_only {
            job.ends.signalled_by_terminal(signal, self.now);
        }
        self.note_signals(&processes, signal);
        self.signalled(&processes, signal);
    }

    /// Notes that the engine sends a signal to ranks, or has decided to.
    pub(super) fn note_signals(&mut self, processes: &[ProcessId], signal: Signal) {
        for job in &mut self.jobs.list {
            for (number, rank) in job.ranks.iter().enumerate() {
                if processes.contains(&rank.process) {
                    job.ends.signalled(number, signal, self.now);
                }
            }
        }
    }

    /// Checks the exit statuses of all jobs so far.
    pub(super) fn check_ends(&mut self) {
        for job in &mut self.jobs.list {
            let Some(status) = self.engine.status(&job.nspace) else { continue };
            job.ends.check(&status, self.now);
            if self.engine.job(&job.nspace) == Some(true) {
                let code = job.exit_code.or((!job.ranks.is_empty()).then(|| status.code()));
                self.truth.has_exit_code(&job.nspace, job.run, code);
            }
        }
    }

    /// Checks that jobs which are to end early were ended, once time has passed.
    pub(super) fn check_early_ends(&mut self) {
        self.check_ends();
        let jobs = self.jobs.list.iter().filter(|job| job.registered);
        jobs.for_each(|job| job.ends.check_ended(self.now));
    }
}
