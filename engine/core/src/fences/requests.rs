//! Requests of nodes to enter fences.

use std::sync::Arc;
use std::time::Instant;

use iof_proto::{Exchange, Failure, Mpi, Quota, Rank, Status, ToTool};

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

/// A request of a node to enter a fence.
pub(crate) struct FenceRequest {
    pub mpi: Mpi,
    pub key: FenceKey,
    pub data: Vec<u8>,
    /// A group is to get a number.
    pub with_context: bool,
}

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
        FenceRequest { mpi, key, data, with_context }: FenceRequest,
        now: Instant,
    ) {
        let Some(node) = self.node_of(job, rank) else {
            // All other ranks are here, too.
            return self.reply(requester, |_| ToTool::Fenced(Ok(data.into())));
        };
        if let Err(reason) = self.open_fence(job, &key, (node, mpi)) {
            return self.exchange_failed(job, rank, reason, now);
        }
        let is_open = |node: &NodeId| self.jobs.find(job).is_some_and(|job| job.is_open(*node));
        let awaited = self.fences.awaited(&key);
        let ended = awaited.and_then(|awaited| awaited.iter().find(|node| !is_open(node)).copied());
        let size = data.len().saturating_add(key.ranks.len().saturating_mul(size_of::<Rank>())) as u64;
        let size = ENTRY_BYTES.saturating_add(size);
        match self.quotas.charge(requester.client.payer(), [(Quota::FenceBytes, size)]) {
            Ok(charge) => {
                let entry = NodeEntry { requester, data, charge };
                if let Some(fence) = self.fences.enter(&key, node, entry, with_context) {
                    self.end_fence((key, fence), None);
                }
            }
            Err(failure) => return self.exchange_failed(job, rank, failure.reason, now),
        }
        ended.into_iter().for_each(|node| self.fail_fences(job, node));
    }

    /// Returns the node of a rank if that is another one.
    pub(crate) fn node_of(&self, job: &JobId, rank: Rank) -> Option<NodeId> {
        self.jobs.find(job)?.rank(rank)?.node()
    }

    /// Checks that a node may enter a fence, and opens that if it is the first one.
    fn open_fence(
        &mut self,
        job: &JobId,
        key: &FenceKey,
        (node, mpi): (NodeId, Mpi),
    ) -> Result<(), &'static str> {
        if self.fences.awaited(key).is_none() {
            let state = self.jobs.find(job).ok_or("no job")?;
            let place = |rank: &Rank| state.rank(*rank).and_then(|state| state.node());
            let nodes = match key.ranks.as_slice() {
                [] => state.ranks().filter_map(|(_, state)| state.node()).collect(),
                ranks if ranks.is_sorted_by(|one, next| one < next) => ranks
                    .iter()
                    .map(place)
                    .collect::<Option<_>>()
                    .ok_or("it has entered a fence of a rank that does not exist")?,
                _ => return Err("it has entered a fence whose ranks are not in order"),
            };
            self.fences.open(key.clone(), mpi, nodes);
        }
        self.fences.check(key, node, mpi).map_err(|error| match error {
            EnterError::NotAwaited => "it has entered a fence twice, or one that is none of its ranks'",
            EnterError::Protocol => {
                "it has entered a fence by another protocol than other nodes: choose one with --mpi"
            }
        })
    }

    /// Answers the nodes in a fence with the values of all, or the reason why it has failed.
    fn end_fence(&mut self, (key, fence): (FenceKey, Fence), failure: Option<&Failure>) {
        let payer = fence.entries.values().next().map(|entry| entry.requester.client.payer());
        let constructed = key.group.zip(payer).map(|(name, payer)| match failure {
            None => self.construct_group(payer, (key.run, name), fence.with_context),
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
    pub(crate) fn fail_fences(&mut self, job: &JobId, node: NodeId) {
        let host = self.jobs.find(job).and_then(|job| job.host(node)).unwrap_or_default();
        let failure = Failure::new(Status::ERR_LOST_CONNECTION, format!("node {host} has ended"));
        let failed = self.fences.remove(job.run, Some(node));
        failed.into_iter().for_each(|fence| self.end_fence(fence, Some(&failure)));
        for modex in self.fences.remove_modexes(job.run, Some(node)) {
            self.end_modex(modex, Err(failure.clone()));
        }
    }

    /// Notes which nodes the fences of a job wait for, whose time is over.
    pub(crate) fn note_awaited(&mut self, run: u64) {
        let Some((name, job)) = self.jobs.iter().find(|(_, job)| job.run() == run) else { return };
        let nodes = self.fences.awaited_by(run);
        if let Some(host) = nodes.first().and_then(|node| job.host(*node)) {
            let (job, host, others) = (name.clone(), host.to_owned(), nodes.len().saturating_sub(1));
            self.effects.notices.push(Notice::FenceAwaits { job, host, others });
        }
    }

    /// Requests what a rank has put of its node.
    pub(crate) fn modex(&mut self, requester: Requester, job: &JobId, rank: Rank) {
        let state = self.jobs.find(job);
        let node = state.and_then(|job| job.rank(rank)?.node().filter(|node| job.is_open(*node)));
        let unknown = || Failure::new(Status::ERR_NOT_FOUND, format!("rank {rank} runs on no other node"));
        let charged = node.ok_or_else(unknown).and_then(|node| {
            let charge = self.quotas.charge(requester.client.payer(), [(Quota::FenceBytes, ENTRY_BYTES)])?;
            Ok((node, charge))
        });
        match charged {
            Ok((node, charge)) => {
                let node = (job.run, node);
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
        let fences = self.fences.remove(run, None).into_iter();
        let fences = fences.flat_map(|(_, fence)| fence.entries).map(|(_, entry)| entry.charge);
        let modexes = self.fences.remove_modexes(run, None).into_iter().map(|modex| modex.charge);
        self.quotas.give_back(fences.chain(modexes).collect::<Vec<_>>());
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
