//! The start of a job's ranks, which may fail.

use std::array;
use std::fs::File;
use std::sync::Arc;

use iof_capture::Command;
use iof_proto::{Channel, KillOnBadExit, Proc, Rank};
use iof_shm_ring::{Growth, Policy, Stream};
use iof_tool::test_utils::StreamInfo;

use super::{Job, MAX_WITHDRAWN, RankChannel, RankProcess, pid};
use crate::driver::{RankSignals, RankStdin};
use crate::engine::EngineWorld;
use crate::engine::ends::Ends;
use crate::kernel::{add, send, with_kernel};
use crate::rng::Rng;
use crate::source;

impl EngineWorld {
    /// Starts a rank of a job that has begun. At times the next one can't be started.
    pub(in crate::engine) fn start_rank(&mut self, rng: &mut Rng) {
        if let Some(job) = self.jobs.list.iter().position(Job::is_starting) {
            self.add_rank(job, rng);
            if self.jobs.list[job].is_starting() && rng.chance(24) {
                self.fail_start(job, rng);
            }
            if self.jobs.list[job].failed && rng.chance(128) {
                self.finish_registering(job, rng);
            }
        }
    }

    /// Starts the next rank of a job. If that fails, the job fails to start.
    fn add_rank(&mut self, index: usize, rng: &mut Rng) {
        let is_added =
            if self.capture.has_ended() { self.lose_rank(index, rng) } else { self.try_rank(index, rng) };
        if !is_added {
            self.fail_start(index, rng);
        }
    }

    /// Starts a rank that the capture does not take, because it has ended. Returns whether the job
    /// keeps what it has: one whose ranks are adopted does.
    fn lose_rank(&mut self, index: usize, rng: &mut Rng) -> bool {
        let Job { nspace, run, forward, ranks, grace, .. } = &self.jobs.list[index];
        let (run, forward, grace) = (*run, *forward, *grace);
        let proc = Proc::new(nspace.clone(), Rank(ranks.len() as u32));
        let signals = RankSignals::ToProcess;
        let lost = self.engine.add_lost_rank(&proc, RankStdin::Open, signals);
        assert_eq!(lost.is_none(), self.engine.is_without_capture(), "a rank without a capture");
        let Some((process, sources)) = lost else { return false };
        self.finishes.add(run, sources, grace);
        for (id, channel) in sources.into_iter().zip(Channel::OUTPUTS) {
            let info = StreamInfo { source: proc.clone(), channel, logged: false, run };
            self.jobs.next_number += 1;
            let number = Some(self.jobs.next_number);
            let options = self.jobs.list[index].options(channel);
            self.truth.configurations.add_local(id, info.clone(), options);
            self.truth.add(id, info, number, (false, forward.contains(channel.into())));
        }
        self.jobs.list[index].add_rank(RankProcess {
            process,
            pid: 0,
            channels: Vec::new(),
            stdin: None,
            stdin_kind: RankStdin::Open,
            target: None,
            signals,
            stopped: false,
            exited: false,
            status: None,
            reported: false,
        });
        let adopts = self.setting.subject.has_embedder() && rng.chance(128);
        if adopts {
            self.jobs.list[index].planned = proc.rank.0 + 1;
        }
        adopts
    }

    /// Ends the start of a job because a rank can't be started. The others are killed; at times
    /// children keep their streams open. That no rank follows is recorded later.
    fn fail_start(&mut self, index: usize, rng: &mut Rng) {
        let job = &mut self.jobs.list[index];
        self.engine.withdraw_ranks(&job.nspace);
        self.truth.withdraw_ranks(&job.nspace, job.run);
        self.finishes.withdraw(job.run);
        for number in 0..=job.ranks.len() as u32 {
            self.jobs.withdrawn.push_front((Proc::new(job.nspace.clone(), Rank(number)), job.run));
        }
        self.jobs.withdrawn.truncate(MAX_WITHDRAWN);
        for mut rank in job.ranks.drain(..) {
            if !rng.chance(48) {
                rank.exit();
            }
            self.jobs.killed.push(rank);
        }
        (job.planned, job.failed, job.ends) = (0, true, Ends::new(KillOnBadExit::Never, None));
        job.starting_status = None;
    }

    fn try_rank(&mut self, index: usize, rng: &mut Rng) -> bool {
        let Job { nspace, run, config, forward, ranks, grace, .. } = &self.jobs.list[index];
        let (run, config, forward, grace) = (*run, *config, *forward, *grace);
        let proc = Proc::new(nspace.clone(), Rank(ranks.len() as u32));
        // Without memory for its streams, a rank does not start.
        let first = rng.pick(&[config.capacity, 4096, 8192]);
        let growth = Growth { first, budget: Arc::clone(&self.caches) };
        let streams = Channel::OUTPUTS.into_iter().map(|_| Stream::growing_on_heap(config, &growth));
        let Ok(mut streams) = streams.collect::<Result<Vec<_>, _>>() else { return false };
        Stream::share_order(&mut streams);
        let stdin = rng.pick(&[RankStdin::Open, RankStdin::Open, RankStdin::Own, RankStdin::Closed]);
        let signals = if self.setting.subject.has_embedder() {
            rng.pick(&[RankSignals::ToProcess, RankSignals::ToGroup, RankSignals::OfEmbedder])
        } else {
            RankSignals::ToProcess
        };
        let pid = pid(proc.rank);
        self.engine.note_pid(&proc, pid);
        let added = self.engine.add_rank(&proc, stdin, signals, streams).expect("the job has begun");
        assert_eq!(self.engine.pid(&proc), Some(pid));
        let reader = (stdin != RankStdin::Closed).then(|| {
            let (reader, writer) = source::pipe(4096, false).expect("a pipe");
            send(&self.capture, Command::AddTarget { target: added.target, pipe: writer.into() });
            self.truth.stdins.add(added.target, proc.clone());
            File::from(reader)
        });
        self.finishes.add(run, array::from_fn(|number| added.sources[number].0), grace);
        let mut channels = Vec::new();
        for ((id, stream, first), channel) in added.sources.into_iter().zip(Channel::OUTPUTS) {
            let (end, writer) = source::pipe(rng.pick(&[4096, 65536]), false).expect("a pipe");
            with_kernel(&mut self.capture, |kernel| kernel.add_pipe(source::number(&end), false));
            self.jobs.next_number += 1;
            let number = self.jobs.next_number;
            let info = StreamInfo { source: proc.clone(), channel, logged: false, run };
            let forwarded = forward.contains(channel.into());
            let options = self.jobs.list[index].options(channel);
            self.truth.configurations.add_local(id, info.clone(), options);
            self.truth.add(id, info, Some(number), (config.policy == Policy::Block, forwarded));
            send(&self.capture, add(id, end, stream, first));
            channels.push(RankChannel {
                source: id,
                writer: Some(writer),
                number,
                written: 0,
                finished: None,
                closed: false,
            });
        }
        let rank = RankProcess {
            process: added.process,
            pid,
            channels,
            stdin: reader,
            stdin_kind: stdin,
            target: (stdin != RankStdin::Closed).then_some(added.target),
            signals,
            stopped: false,
            exited: false,
            status: None,
            reported: false,
        };
        self.jobs.list[index].add_rank(rank);
        true
    }

    /// Starts the other ranks of a job, and records that all are registered.
    pub(in crate::engine) fn finish_registering(&mut self, index: usize, rng: &mut Rng) {
        while self.jobs.list[index].is_starting() {
            self.add_rank(index, rng);
        }
        let job = &mut self.jobs.list[index];
        job.registered = true;
        job.launching = 0..0;
        let nspace = job.nspace.clone();
        if let Some(call) = job.spawn {
            let run = (!job.failed).then_some(job.run);
            self.truth.spawns.registered(call, run);
        }
        self.engine.all_registered(&nspace);
        if self.engine.job(&nspace).is_none() {
            // It has no ranks and no output, so it is as if it had not begun.
            self.truth.withdraw(&nspace);
            let job = self.jobs.list.remove(index);
            self.truth.exchanges.exited(job.run, None);
        }
    }
}
