//! Requests of nodes to enter fences.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;
use std::time::Instant;

use iof_proto::{Exchange, Failure, FencePurpose, JobRanks, Mpi, Proc, Quota, Rank, Status, ToTool};

use crate::Core;
use crate::clients::client::{ReplyTo, Requester};
use crate::effects::HandleOp;
use crate::fences::table::{EnterError, Fence, FenceKey, Modex, NodeEntry};
use crate::ids::JobId;
use crate::jobs::early_end::EndCause;
use crate::jobs::nodes::{NodeId, NodeKey};
use crate::notice::Notice;
use crate::upcall::Upcall;

/// The bytes that a node in a fence counts besides its values.
const ENTRY_BYTES: u64 = 1 << 10;

const NOT_AWAITED: &str = "it has entered a fence twice, or one that is none of its ranks'";

impl Core {
    /// Passes a request of a rank on if another engine serves it, since the ranks here are a part of their job.
    /// Returns it otherwise.
    pub(crate) fn pass_on(
        &mut self,
        requester: Requester,
        exchange: Exchange,
    ) -> Option<(Requester, Exchange)> {
        let from = requester.client.rank.clone();
        match (from, requester.reply_to) {
            (Some(from), ReplyTo::Callback(done))
                if self.jobs.get(&from.nspace).is_some_and(|job| job.is_part()) =>
            {
                self.effects.upcalls.push(Upcall::Exchange { from, exchange, done });
                None
            }
            (_, reply_to) => Some((Requester { reply_to, ..requester }, exchange)),
        }
    }

    /// Lets the node of a rank enter a fence, or a group whose members it constructs. The last one ends it.
    pub(crate) fn fence(
        &mut self,
        requester: Requester,
        (job, rank): (&JobId, Rank),
        mut exchange: Exchange,
        now: Instant,
    ) {
        let (mpi, named, purpose, group, data, with_context) = match &mut exchange {
            Exchange::Fence { mpi, purpose, members, data } => {
                (*mpi, take(members), *purpose, None, take(data), false)
            }
            Exchange::Group { name, members, with_context, .. } => {
                let name = Some(name.clone());
                (Mpi::Pmix, take(members), FencePurpose::Values, name, Vec::new(), *with_context)
            }
            other => return debug_assert!(false, "{other:?} is not a fence"),
        };
        let Some(node) = self.node_of(job, rank).map(|node| (job.run, node)) else {
            // All other ranks are here, too.
            return self.reply(requester, |_| ToTool::Fenced(Ok(data.into())));
        };
        let key = match self.members(job, named) {
            Ok(members) => FenceKey { members, purpose, group },
            Err(failure) => return self.reply(requester, |_| ToTool::refused(&exchange, failure)),
        };
        if let Err(reason) = self.open_fence(&key, (node, mpi)) {
            return self.exchange_failed(job, rank, reason, now);
        }
        let is_open =
            |(run, node): &NodeKey| self.jobs.of_run(*run).is_some_and(|(_, job)| job.is_open(*node));
        let awaited = self.fences.awaited(&key);
        let ended = awaited.and_then(|awaited| awaited.iter().find(|node| !is_open(node)).copied());
        let ranks = key.members.values().map(Vec::len).sum::<usize>();
        let size = data.len().saturating_add(ranks.saturating_mul(size_of::<Rank>())) as u64;
        // The values of all jobs together are within the limit of one, which is that of the nodes that receive them.
        let size = ENTRY_BYTES.saturating_add(size).saturating_mul(key.members.len() as u64);
        match self.quotas.charge(requester.client.payer(), [(Quota::FenceBytes, size)]) {
            Ok(charge) => {
                let entry = NodeEntry { requester, data, charge };
                if let Some(fence) = self.fences.enter(&key, node, entry, with_context) {
                    self.end_fence((key, fence), None);
                }
            }
            Err(failure) => return self.exchange_failed(job, rank, failure.reason, now),
        }
        ended.into_iter().for_each(|node| self.fail_fences(node));
    }

    /// Returns the node of a rank if that is another one.
    pub(crate) fn node_of(&self, job: &JobId, rank: Rank) -> Option<NodeId> {
        self.jobs.find(job)?.rank(rank)?.node()
    }

    /// Returns the members of a fence by the numbers of their jobs. None are all ranks of `own`.
    fn members(&self, own: &JobId, members: Vec<JobRanks>) -> Result<BTreeMap<u64, Vec<Rank>>, Failure> {
        if members.is_empty() {
            return Ok(BTreeMap::from([(own.run, Vec::new())]));
        }
        let numbered = |JobRanks { nspace, ranks }| match self.jobs.get(&nspace) {
            _ if nspace == own.nspace => Ok((own.run, ranks)),
            Some(job) => Ok((job.run(), ranks)),
            None => Err(Failure::new(Status::ERR_NOT_FOUND, format!("job {nspace} has ended"))),
        };
        members.into_iter().map(numbered).collect()
    }

    /// Checks that a node may enter a fence, and opens that if it is the first one.
    fn open_fence(&mut self, key: &FenceKey, (node, mpi): (NodeKey, Mpi)) -> Result<(), &'static str> {
        if self.fences.awaited(key).is_none() {
            let nodes = key.members.iter().map(|(run, ranks)| self.nodes_of(*run, ranks));
            let nodes: BTreeSet<NodeKey> =
                nodes.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
            if !nodes.contains(&node) {
                return Err(NOT_AWAITED);
            }
            self.fences.open(key.clone(), mpi, nodes);
        }
        self.fences.check(key, node, mpi).map_err(|error| match error {
            EnterError::NotAwaited => NOT_AWAITED,
            EnterError::Protocol => {
                "it has entered a fence by another protocol than other nodes: choose one protocol for all nodes of the job"
            }
        })
    }

    /// Returns the nodes of these ranks of a job; with none, of all.
    fn nodes_of(&self, run: u64, ranks: &[Rank]) -> Result<BTreeSet<NodeKey>, &'static str> {
        let (_, job) = self.jobs.of_run(run).ok_or("it has entered a fence of a job that has ended")?;
        let place = |rank: &Rank| Some((run, job.rank(*rank)?.node()?));
        match ranks {
            [] => Ok(job.ranks().filter_map(|(_, state)| Some((run, state.node()?))).collect()),
            ranks if ranks.is_sorted_by(|one, next| one < next) => {
                let nodes = ranks.iter().map(place).collect::<Option<_>>();
                nodes.ok_or("it has entered a fence of a rank that does not exist")
            }
            _ => Err("it has entered a fence whose ranks are not in order"),
        }
    }

    /// Answers the nodes in a fence with the values of all, or the reason why it has failed.
    fn end_fence(&mut self, (key, fence): (FenceKey, Fence), failure: Option<&Failure>) {
        let payer = fence.entries.values().next().map(|entry| entry.requester.client.payer());
        let run = key.members.keys().next().copied().unwrap_or_default();
        let constructed = key.group.zip(payer).map(|(name, payer)| match failure {
            None => self.construct_group(payer, (run, name), fence.with_context),
            Some(failure) => Err(failure.clone()),
        });
        let values = fence.entries.values().filter(|_| failure.is_none()).flat_map(|entry| &entry.data);
        let values: Arc<[u8]> = values.copied().collect::<Vec<u8>>().into();
        for NodeEntry { requester, charge, .. } in fence.entries.into_values() {
            self.quotas.give_back([charge]);
            let result = failure.map_or_else(|| Ok(Arc::clone(&values)), |failure| Err(failure.clone()));
            self.reply(requester, |request| match &constructed {
                Some(result) => ToTool::Answer { request, result: result.clone() },
                None => ToTool::Fenced(result),
            });
        }
    }

    /// Ends the fences that wait for a node that has ended or is lost.
    pub(crate) fn fail_fences(&mut self, (run, node): NodeKey) {
        let host = self.jobs.of_run(run).and_then(|(_, job)| job.host(node)).unwrap_or_default();
        let failure = Failure::new(Status::ERR_LOST_CONNECTION, format!("node {host} has ended"));
        let failed = self.fences.remove(run, Some(node));
        failed.into_iter().for_each(|fence| self.end_fence(fence, Some(&failure)));
        for modex in self.fences.remove_modexes(run, Some(node)) {
            self.end_modex(modex, Err(failure.clone()));
        }
    }

    /// Notes which nodes the fences of a job wait for, whose time is over.
    pub(crate) fn note_awaited(&mut self, run: u64) {
        let nodes = self.fences.awaited_by(run);
        let first = nodes.first().and_then(|(run, node)| {
            let (name, job) = self.jobs.of_run(*run)?;
            Some((name, job.host(*node)?))
        });
        if let Some((name, host)) = first {
            let (job, host, others) = (name.clone(), host.to_owned(), nodes.len().saturating_sub(1));
            self.effects.notices.push(Notice::FenceAwaits { job, host, others });
        }
    }

    /// Requests what a rank has put of its node.
    pub(crate) fn modex(&mut self, requester: Requester, owner: &Proc) {
        let rank = owner.rank;
        let node = self.jobs.get(&owner.nspace).and_then(|job| {
            let node = job.rank(rank)?.node().filter(|node| job.is_open(*node))?;
            Some((job.run(), node))
        });
        let unknown = || Failure::new(Status::ERR_NOT_FOUND, format!("rank {rank} runs on no other node"));
        let charged = node.ok_or_else(unknown).and_then(|node| {
            let charge = self.quotas.charge(requester.client.payer(), [(Quota::FenceBytes, ENTRY_BYTES)])?;
            Ok((node, charge))
        });
        match charged {
            Ok((node, charge)) => {
                let call = self.fences.add_modex(Modex { owner: node, requester, charge });
                self.effects.handles.push(HandleOp::Modex { node, call, rank });
            }
            Err(failure) => self.reply(requester, |_| ToTool::Fenced(Err(failure))),
        }
    }

    /// Notes that a node has answered a request for what one of its ranks has put.
    pub(crate) fn modex_answered(&mut self, node: NodeKey, call: u64, values: Result<Vec<u8>, Status>) {
        let values = values.map_err(|status| Failure::new(status, "the rank's own server has refused"));
        if let Some(modex) = self.fences.take_modex(call, node) {
            self.end_modex(modex, values.map(Into::into));
        }
    }

    fn end_modex(&mut self, Modex { requester, charge, .. }: Modex, values: Result<Arc<[u8]>, Failure>) {
        self.quotas.give_back([charge]);
        self.reply(requester, |_| ToTool::Fenced(values));
    }

    /// Forgets the fences of a job.
    pub(crate) fn forget_fences(&mut self, run: u64) {
        let failure = Failure::new(Status::ERR_LOST_CONNECTION, "a job that takes part has ended");
        for fence in self.fences.remove(run, None) {
            self.end_fence(fence, Some(&failure));
        }
        let modexes = self.fences.remove_modexes(run, None).into_iter().map(|modex| modex.charge);
        self.quotas.give_back(modexes.collect::<Vec<_>>());
    }

    /// Ends a job whose ranks can't exchange values, because of those of the node of `rank`.
    pub(crate) fn exchange_failed(
        &mut self,
        job: &JobId,
        rank: Rank,
        reason: impl Into<String>,
        now: Instant,
    ) {
        let Some(state) = self.jobs.find_mut(job) else { return };
        let host = state.rank(rank).and_then(|state| state.node()).and_then(|node| state.host(node));
        let (host, reason) = (host.unwrap_or_default().to_owned(), reason.into());
        state.end(EndCause::Exchange(rank));
        self.effects.notices.push(Notice::ExchangeFailed { job: job.nspace.clone(), host, reason });
        self.jobs.schedule_early_end(&job.nspace, now);
    }
}
