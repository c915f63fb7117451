//! The exits of ranks: how they end, and who reports that.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, UNIX_EPOCH};

use iof_capture::{Event, ProcessId, Signal};
use iof_core::Exit;
use iof_proto::{Proc, Rank, UsedResources};

use super::EngineWorld;
use super::tool::Request;
use crate::driver::{ConnectionId, OWN_USER, RankSignals};
use crate::rng::Rng;
use crate::script::Subject;

impl EngineWorld {
    /// A rank exits. At times a child keeps its streams open.
    pub(super) fn exit_rank(&mut self, actor: usize, rng: &mut Rng) {
        let leaves_child = rng.chance(48);
        let Some(rank) = self.rank(actor) else { return };
        if leaves_child {
            rank.exited = true;
        } else {
            rank.exit();
        }
    }

    /// All ranks exit. Children keep their streams open.
    pub(super) fn leave_children(&mut self) {
        let ranks = self.jobs.list.iter_mut().flat_map(|job| &mut job.ranks);
        ranks.for_each(|rank| rank.exited = true);
    }

    /// The exits of ranks are noticed, by the capture or by the embedder, who reports them. The
    /// statuses of some are lost, because other code of the embedder has waited for the ranks.
    pub(super) fn report_exits(&mut self, all: bool, rng: &mut Rng) {
        let EngineWorld { jobs, engine, now, finishes, truth, .. } = self;
        let (runs, loses) = (!self.capture.has_ended(), self.setting.subject == Subject::Host);
        let statuses: &[i32] =
            if self.setting.subject.has_embedder() { &[0, 0, 0, 256, 9, 15] } else { &[0, 0, 0, 256, 9] };
        for job in &mut jobs.list {
            for (number, rank) in job.ranks.iter_mut().enumerate() {
                if runs && rank.exited && !rank.reported && (all || rng.chance(128)) {
                    rank.reported = true;
                    let status = ExitStatus::from_raw(rank.status.unwrap_or_else(|| rng.pick(statuses)));
                    let status = Some(status).filter(|_| !(loses && rng.chance(80)));
                    job.ends.exited(number, status, *now);
                    if rank.signals == RankSignals::OfEmbedder {
                        let reported = engine.report_exit(&job.nspace, job.run, Rank(number as u32));
                        assert_eq!(reported, Some(rank.process), "the report of an exit");
                    }
                    let exit = job.ends.exit(number).filter(|exit| *exit != Exit::Unknown);
                    truth.exits.insert((job.run, Rank(number as u32)), exit.map(Exit::code));
                    let peak_memory = number as u64;
                    let used =
                        status.map(|_| UsedResources { ended: UNIX_EPOCH, cpu: Duration::ZERO, peak_memory });
                    let status = status.ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD));
                    engine.captured(Event::Exited { process: rank.process, status, used });
                    finishes.exited(rank.process, *now);
                    let is_last = engine.has_exited(&job.nspace);
                    truth.exchanges.exited(job.run, (!is_last).then_some(Rank(number as u32)));
                }
            }
        }
        jobs.killed.retain(|rank| {
            let is_reported = runs && (all || rng.chance(128));
            if is_reported {
                let status = Ok(ExitStatus::from_raw(9));
                engine.captured(Event::Exited { process: rank.process, status, used: None });
            }
            !is_reported
        });
    }

    /// Checks the ranks that the engine signals for a tool, and the signal.
    pub(super) fn check_signal(
        &self,
        (id, number): (ConnectionId, u32),
        processes: &[ProcessId],
        signal: Signal,
    ) {
        // Those that wait for the host were not checked: their jobs may have been replaced since.
        if self.truth.signalled.contains_key(&(id, number)) {
            return;
        }
        // The request of a tool that has left may still wait for the host.
        let Some(tool) = self.tools.iter().find(|tool| tool.id == id) else { return };
        assert_eq!(tool.uid, OWN_USER, "a tool of another user has signalled ranks");
        let Some(Request::Signal(procs, asked)) = tool.requests.get(&number) else { return };
        assert_eq!(signal.number(), *asked, "the signal that a tool has asked for");
        let jobs = || self.jobs.list.iter().filter(|job| procs.iter().any(|proc| proc.nspace == job.nspace));
        if jobs().any(|job| job.elsewhere) {
            return;
        }
        let mut expected: Vec<ProcessId> = Vec::new();
        for job in jobs() {
            for (rank, process) in (0..).map(Rank).zip(&job.ranks) {
                let names = |proc: &Proc| {
                    proc.nspace == job.nspace && (proc.rank == rank || proc.rank == Rank::WILDCARD)
                };
                let receives = process.signals != RankSignals::OfEmbedder && procs.iter().any(names);
                expected.extend(receives.then_some(process.process));
            }
        }
        assert_eq!(processes, expected, "the ranks that a tool signals");
    }

    /// Checks the remote ranks that the host is to signal for a tool: each once, and as the tool has
    /// named them.
    pub(super) fn check_signal_elsewhere(&self, (id, number): (ConnectionId, u32), procs: &[Proc]) {
        assert!(!procs.is_empty(), "the host has nothing to signal");
        for proc in procs {
            let whole = Proc::all(proc.nspace.clone());
            let includes = |other: &&Proc| *other == proc || **other == whole;
            let times = procs.iter().filter(includes).count();
            assert_eq!(times, 1, "the times that {proc:?} is signalled: {procs:?}");
        }
        // The request of a tool that has left may still wait for the host.
        let Some(tool) = self.tools.iter().find(|tool| tool.id == id) else { return };
        assert_eq!(tool.uid, OWN_USER, "a tool of another user has signalled remote ranks");
        let Some(Request::Signal(asked, _)) = tool.requests.get(&number) else { return };
        assert!(procs.iter().all(|proc| asked.contains(proc)), "{procs:?} are signalled, not {asked:?}");
    }

    /// Ranks receive a signal. SIGKILL ends them, SIGTERM those that run.
    pub(super) fn signalled(&mut self, processes: &[ProcessId], signal: Signal) {
        let ranks = self.jobs.list.iter_mut().flat_map(|job| &mut job.ranks);
        for rank in ranks.filter(|rank| processes.contains(&rank.process) && !rank.exited) {
            match signal {
                Signal::KILL => rank.status = Some(9),
                Signal::TERM if !rank.stopped => rank.status = Some(15),
                _ => continue,
            }
            rank.exit();
        }
    }
}
