//! The sources that tools have asked for, and those that the host has granted. By RFC0025, only new
//! sources, and new channels of known sources, go up to the host. This module is pure data: it does
//! no I/O and knows nothing of connections.
//!
//! A *source* is a process, or all processes of a job (the wildcard rank), on one channel. It is in
//! one of two states: *asked*, while an upcall for it has no answer, or *granted*. Each pull holds
//! the sources that it needs, by these rules:
//! * A pull of a rank whose job is granted holds the job, so the host need not be asked.
//! * Pulls of a source that was asked for already wait for the same answer. So do pulls of ranks
//!   whose job was asked for.
//! * When a job is granted, its ranks that were granted before become part of it, and pulls that
//!   hold these ranks hold the job.
//!
//! When the last hold on a source is released, no pull needs it any more, and the engine notifies
//! the host once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iof_proto::{Channel, Channels, Nspace, Proc, Rank};

use crate::count::Count;

/// The id of one pull, from its request to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The id of one upcall that the host is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u64);

/// The subject of one upcall: each of the channels of each of the processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcChannels {
    /// The processes.
    pub procs: Vec<Proc>,
    /// Their channels.
    pub channels: Channels,
}

/// The consequences of a host's answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Pulls that are now granted as a whole.
    pub granted: Vec<Ticket>,
    /// Pulls that were denied at least in part. They hold nothing any more.
    pub denied: Vec<Ticket>,
    /// Granted sources that no pull needs any more.
    pub stopped: Vec<ProcChannels>,
}

/// One process, or one job, on one channel. In the derived order, the ranks of a job on one channel
/// are neighbours. The wildcard rank follows them, and the undefined rank follows the wildcard
/// rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    /// Shared by all sources of one pull.
    nspace: Arc<Nspace>,
    channel: Channel,
    rank: Rank,
}

impl Source {
    /// Returns the source of the whole job on this channel.
    fn job(&self) -> Source {
        Source { rank: Rank::WILDCARD, ..self.clone() }
    }
}

/// The state of a source that is asked for or granted.
struct SourceState {
    /// The upcall without an answer; `None` if the source is granted.
    asked: Option<CallId>,
    /// The number of pulls that hold the source.
    holds: usize,
}

/// An upcall without an answer.
struct PendingCall {
    sources: Vec<Source>,
    /// The pulls that wait for the answer.
    tickets: BTreeSet<Ticket>,
}

/// All pulls and the sources that they hold.
#[derive(Default)]
pub struct Demand {
    known: BTreeMap<Source, SourceState>,
    /// The upcalls without an answer.
    calls: BTreeMap<CallId, PendingCall>,
    /// The sources that each pull holds.
    held: BTreeMap<Ticket, BTreeSet<Source>>,
    /// The upcalls that each pull waits for.
    waiting: BTreeMap<Ticket, BTreeSet<CallId>>,
    last_ticket: u64,
    last_call: u64,
}

impl Demand {
    /// Adds a pull of `channels` of `procs`. Returns its ticket and the upcalls that it requires,
    /// which are none if all its sources are asked for or granted already.
    pub(crate) fn ask(
        &mut self,
        procs: &[Proc],
        channels: Channels,
    ) -> (Ticket, Vec<(CallId, ProcChannels)>) {
        self.last_ticket.raise(1);
        let ticket = Ticket(self.last_ticket);
        let (mut held, mut awaited, mut new) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        // Jobs come first, because they cover their ranks.
        let (jobs, ranks): (Vec<&Proc>, Vec<&Proc>) =
            procs.iter().partition(|proc| proc.rank == Rank::WILDCARD);
        let mut names: BTreeMap<&Nspace, Arc<Nspace>> = BTreeMap::new();
        for proc in jobs.into_iter().chain(ranks) {
            let name = names.entry(&proc.nspace).or_insert_with(|| Arc::new(proc.nspace.clone()));
            for channel in channels.outputs() {
                let wanted = Source { nspace: Arc::clone(name), channel, rank: proc.rank };
                let source = self.covering(&wanted).unwrap_or_else(|| {
                    // `asked` is set below, when the upcalls have ids.
                    self.known.insert(wanted.clone(), SourceState { asked: None, holds: 0 });
                    new.push(wanted.clone());
                    wanted
                });
                let Some(known) = self.known.get_mut(&source) else { absent!("source", continue) };
                if held.insert(source) {
                    known.holds.raise(1);
                    awaited.extend(known.asked);
                }
            }
        }
        let mut upcalls = Vec::new();
        for (list, sources) in group_by_channels(new) {
            self.last_call.raise(1);
            let call = CallId(self.last_call);
            for source in &sources {
                let Some(known) = self.known.get_mut(source) else { absent!("source", continue) };
                known.asked = Some(call);
            }
            awaited.insert(call);
            self.calls.insert(call, PendingCall { sources, tickets: BTreeSet::new() });
            upcalls.push((call, list));
        }
        self.held.insert(ticket, held);
        for call in &awaited {
            let Some(call) = self.calls.get_mut(call) else { absent!("call", continue) };
            call.tickets.insert(ticket);
        }
        if !awaited.is_empty() {
            self.waiting.insert(ticket, awaited);
        }
        (ticket, upcalls)
    }

    /// Returns whether a pull waits for no upcall.
    pub fn is_granted(&self, ticket: Ticket) -> bool {
        !self.waiting.contains_key(&ticket)
    }

    /// Applies the host's answer to `call`. A second answer has no effect.
    pub(crate) fn answer(&mut self, call: CallId, granted: bool) -> Answered {
        let Some(PendingCall { sources, tickets }) = self.calls.remove(&call) else {
            return Answered::default();
        };
        if granted { self.grant(call, &sources, tickets) } else { self.deny(&sources, tickets) }
    }

    fn grant(&mut self, call: CallId, sources: &[Source], tickets: BTreeSet<Ticket>) -> Answered {
        for source in sources {
            let Some(known) = self.known.get_mut(source) else { absent!("source", continue) };
            known.asked = None;
        }
        for source in sources {
            self.absorb(source);
        }
        let unwanted: Vec<Source> =
            sources.iter().filter(|source| self.forget_unwanted(source)).cloned().collect();
        let mut granted = Vec::new();
        for ticket in tickets {
            let Some(awaited) = self.waiting.get_mut(&ticket) else { absent!("ticket", continue) };
            awaited.remove(&call);
            if awaited.is_empty() {
                self.waiting.remove(&ticket);
                granted.push(ticket);
            }
        }
        Answered { granted, denied: Vec::new(), stopped: grouped(unwanted) }
    }

    fn deny(&mut self, sources: &[Source], tickets: BTreeSet<Ticket>) -> Answered {
        for source in sources {
            self.known.remove(source);
        }
        let denied: Vec<Ticket> = tickets.into_iter().collect();
        let mut unwanted = Vec::new();
        for ticket in &denied {
            let Some(held) = self.held.get_mut(ticket) else { absent!("ticket", continue) };
            for source in sources {
                held.remove(source);
            }
            self.release_holds(*ticket, &mut unwanted);
        }
        Answered { granted: Vec::new(), denied, stopped: grouped(unwanted) }
    }

    /// Removes a pull that has ended or was abandoned. Returns the granted sources that no pull
    /// needs any more. Sources without an answer for which no other pull waits are returned by
    /// [`Demand::answer`] if the host grants them.
    pub(crate) fn release(&mut self, ticket: Ticket) -> Vec<ProcChannels> {
        let mut unwanted = Vec::new();
        self.release_holds(ticket, &mut unwanted);
        grouped(unwanted)
    }

    /// Panics unless exactly the pulls `tickets` hold sources, and each source counts its holds.
    pub fn check(&self, tickets: &BTreeSet<Ticket>) {
        assert!(self.held.keys().eq(tickets), "pulls that have ended hold sources");
        let mut holds: BTreeMap<Source, usize> = BTreeMap::new();
        for held in self.held.values().flatten() {
            let source = if self.known.contains_key(held) { held.clone() } else { held.job() };
            *holds.entry(source).or_default() += 1;
        }
        for (source, known) in &self.known {
            assert_eq!(known.holds, holds.remove(source).unwrap_or(0), "{source:?}");
            assert!(known.asked.is_some() || known.holds > 0, "{source:?} is granted and not needed");
        }
        assert!(holds.is_empty(), "a pull holds an unknown source: {holds:?}");
        assert!(self.waiting.keys().all(|ticket| self.held.contains_key(ticket)));
    }

    /// Returns whether no source is asked for or granted.
    pub fn is_empty(&self) -> bool {
        let Demand { known, calls, held, waiting, .. } = self;
        known.is_empty() && calls.is_empty() && held.is_empty() && waiting.is_empty()
    }

    fn release_holds(&mut self, ticket: Ticket, unwanted: &mut Vec<Source>) {
        for call in self.waiting.remove(&ticket).unwrap_or_default() {
            if let Some(call) = self.calls.get_mut(&call) {
                call.tickets.remove(&ticket);
            }
        }
        for held in self.held.remove(&ticket).unwrap_or_default() {
            // A source that is not known any more has become part of its job.
            let source = if self.known.contains_key(&held) { held } else { held.job() };
            let Some(known) = self.known.get_mut(&source) else { absent!("source", continue) };
            known.holds.lower(1);
            if self.forget_unwanted(&source) {
                unwanted.push(source);
            }
        }
    }

    /// Returns the known source that a pull of `source` has to hold: its job or the source itself.
    fn covering(&self, source: &Source) -> Option<Source> {
        let job = source.job();
        let job_state = self.known.get(&job);
        if job_state.is_some_and(|known| known.asked.is_none()) {
            return Some(job);
        }
        if self.known.contains_key(source) {
            return Some(source.clone());
        }
        job_state.map(|_| job)
    }

    /// Merges granted ranks into their job if that is granted. `source` is a rank or the job.
    fn absorb(&mut self, source: &Source) {
        let job = source.job();
        if self.known.get(&job).is_none_or(|known| known.asked.is_some()) {
            return;
        }
        let (first, last) = match source.rank {
            // What is logged for the job as a whole is a part of it, too.
            Rank::WILDCARD => (Rank(0), Rank::UNDEF),
            rank => (rank, rank),
        };
        let ranks = Source { rank: first, ..source.clone() }..=Source { rank: last, ..source.clone() };
        let granted = |(part, known): (&Source, &SourceState)| {
            (*part != job && known.asked.is_none()).then(|| part.clone())
        };
        let parts: Vec<Source> = self.known.range(ranks).filter_map(granted).collect();
        for part in parts {
            let Some(SourceState { holds, .. }) = self.known.remove(&part) else {
                absent!("source", continue)
            };
            let Some(known) = self.known.get_mut(&job) else { absent!("source", return) };
            known.holds.raise(holds);
        }
    }

    /// Forgets `source` if it is granted and no pull holds it. Returns whether it was forgotten.
    fn forget_unwanted(&mut self, source: &Source) -> bool {
        let unwanted = self.known.get(source).is_some_and(|known| known.asked.is_none() && known.holds == 0);
        unwanted && self.known.remove(source).is_some()
    }
}

/// Groups sources into as few lists as possible: processes with the same channels share a list.
/// Returns each list with its sources.
fn group_by_channels(sources: Vec<Source>) -> Vec<(ProcChannels, Vec<Source>)> {
    let mut by_proc: BTreeMap<(Arc<Nspace>, Rank), Vec<Source>> = BTreeMap::new();
    for source in sources {
        by_proc.entry((Arc::clone(&source.nspace), source.rank)).or_default().push(source);
    }
    let mut by_channels: BTreeMap<u16, (Vec<Proc>, Vec<Source>)> = BTreeMap::new();
    for ((nspace, rank), proc_sources) in by_proc {
        let channels: Channels = proc_sources.iter().map(|source| Channels::from(source.channel)).collect();
        let (procs, sources) = by_channels.entry(channels.bits()).or_default();
        procs.push(Proc::new(Nspace::clone(&nspace), rank));
        sources.extend(proc_sources);
    }
    let list = |(bits, (procs, sources))| {
        let channels = Channels::from_bits_truncate(bits);
        (ProcChannels { procs, channels }, sources)
    };
    by_channels.into_iter().map(list).collect()
}

/// Returns only the lists of [`group_by_channels`].
fn grouped(sources: Vec<Source>) -> Vec<ProcChannels> {
    group_by_channels(sources).into_iter().map(|(list, _)| list).collect()
}

#[cfg(test)]
mod tests;
