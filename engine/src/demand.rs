//! What tools have asked for, and what of it the host has granted: RFC0025's rule that only new
//! sources, and new channels of known ones, go up to the host. No I/O here, and nothing of
//! connections.
//!
//! A *source* is a process, or all processes of a job (the wildcard rank), on one channel. It is in
//! one of two states: *asked*, when an upcall for it has no answer yet, or *granted*. Pulls hold
//! the sources that they need:
//! * a rank whose job is granted is held as that job: there is nothing to ask for;
//! * what somebody has asked for already is waited for together, by the ranks of a job that was
//!   asked for as well;
//! * once a job is granted, its ranks that were granted before are part of it, and who holds them
//!   holds it.
//!
//! So when the last hold on a source goes, nobody wants anything of it, and the host is told once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iof_proto::{Channel, Channels, Nspace, Proc, Rank};

/// One pull, from its request to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// One upcall that the host is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CallId(u64);

/// Every channel of every process: what one upcall is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    pub procs: Vec<Proc>,
    pub channels: Channels,
}

/// What a host's answer leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    /// Pulls of which everything is granted now.
    pub granted: Vec<Ticket>,
    /// Pulls of which something was denied. They hold nothing any more.
    pub denied: Vec<Ticket>,
    /// What was granted, and nobody wants any more.
    pub stopped: Vec<Sources>,
}

/// In this order the ranks of a job on one channel are neighbours, the wildcard behind them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    /// Shared by all that one pull names.
    nspace: Arc<Nspace>,
    channel: Channel,
    rank: Rank,
}

impl Source {
    /// The whole job on this channel.
    fn job(&self) -> Source {
        Source { rank: Rank::WILDCARD, ..self.clone() }
    }
}

/// A source that is asked for or granted.
struct Known {
    /// The upcall without an answer; `None` if it is granted.
    asked: Option<CallId>,
    /// How many pulls hold it.
    holds: usize,
}

/// An upcall without an answer.
struct Call {
    about: Vec<Source>,
    /// The pulls that wait for it.
    tickets: BTreeSet<Ticket>,
}

/// All pulls and what they hold.
#[derive(Default)]
pub(crate) struct Demand {
    known: BTreeMap<Source, Known>,
    /// The upcalls without an answer.
    calls: BTreeMap<CallId, Call>,
    held: BTreeMap<Ticket, BTreeSet<Source>>,
    /// The upcalls that a pull waits for.
    waiting: BTreeMap<Ticket, BTreeSet<CallId>>,
    last_ticket: u64,
    last_call: u64,
}

impl Demand {
    /// Notes a pull of `channels` of `procs`. Gives the upcalls to be made for it, none if
    /// everything is covered.
    pub(crate) fn ask(&mut self, procs: &[Proc], channels: Channels) -> (Ticket, Vec<(CallId, Sources)>) {
        self.last_ticket = self.last_ticket.saturating_add(1);
        let ticket = Ticket(self.last_ticket);
        let (mut held, mut waits, mut new) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        // Jobs first: they cover their ranks.
        let (jobs, ranks): (Vec<&Proc>, Vec<&Proc>) =
            procs.iter().partition(|proc| proc.rank == Rank::WILDCARD);
        let mut names: BTreeMap<&Nspace, Arc<Nspace>> = BTreeMap::new();
        for proc in jobs.into_iter().chain(ranks) {
            let name = names.entry(&proc.nspace).or_insert_with(|| Arc::new(proc.nspace.clone()));
            for channel in channels.outputs() {
                let asked = Source { nspace: Arc::clone(name), channel, rank: proc.rank };
                let source = self.covering(&asked).unwrap_or_else(|| {
                    // Which upcall is found out below.
                    self.known.insert(asked.clone(), Known { asked: None, holds: 0 });
                    new.push(asked.clone());
                    asked
                });
                if let Some(known) = self.known.get_mut(&source).filter(|_| !held.contains(&source)) {
                    known.holds = known.holds.saturating_add(1);
                    waits.extend(known.asked);
                    held.insert(source);
                }
            }
        }
        let mut calls = Vec::new();
        for (sources, about) in together(new) {
            self.last_call = self.last_call.saturating_add(1);
            let call = CallId(self.last_call);
            for source in &about {
                if let Some(known) = self.known.get_mut(source) {
                    known.asked = Some(call);
                }
            }
            waits.insert(call);
            self.calls.insert(call, Call { about, tickets: BTreeSet::new() });
            calls.push((call, sources));
        }
        self.held.insert(ticket, held);
        for call in &waits {
            if let Some(call) = self.calls.get_mut(call) {
                call.tickets.insert(ticket);
            }
        }
        if !waits.is_empty() {
            self.waiting.insert(ticket, waits);
        }
        (ticket, calls)
    }

    /// Whether a pull waits for nothing.
    pub(crate) fn is_granted(&self, ticket: Ticket) -> bool {
        !self.waiting.contains_key(&ticket)
    }

    /// The host has answered `call`. Nothing follows from a second answer.
    pub(crate) fn answer(&mut self, call: CallId, granted: bool) -> Answered {
        let Some(Call { about, tickets }) = self.calls.remove(&call) else { return Answered::default() };
        if granted { self.grant(call, &about, tickets) } else { self.deny(&about, tickets) }
    }

    fn grant(&mut self, call: CallId, sources: &[Source], tickets: BTreeSet<Ticket>) -> Answered {
        for source in sources {
            if let Some(known) = self.known.get_mut(source) {
                known.asked = None;
            }
        }
        for source in sources {
            self.absorb(source);
        }
        let unwanted: Vec<Source> =
            sources.iter().filter(|source| self.forget_unwanted(source)).cloned().collect();
        let mut granted = Vec::new();
        for ticket in tickets {
            let Some(waits) = self.waiting.get_mut(&ticket) else { continue };
            waits.remove(&call);
            if waits.is_empty() {
                self.waiting.remove(&ticket);
                granted.push(ticket);
            }
        }
        Answered { granted, denied: Vec::new(), stopped: lists(unwanted) }
    }

    fn deny(&mut self, sources: &[Source], tickets: BTreeSet<Ticket>) -> Answered {
        for source in sources {
            self.known.remove(source);
        }
        let denied: Vec<Ticket> = tickets.into_iter().collect();
        let mut unwanted = Vec::new();
        for ticket in &denied {
            if let Some(held) = self.held.get_mut(ticket) {
                for source in sources {
                    held.remove(source);
                }
            }
            self.give_back(*ticket, &mut unwanted);
        }
        Answered { granted: Vec::new(), denied, stopped: lists(unwanted) }
    }

    /// A pull has ended, or has never become one. Gives what nobody wants any more; what it alone
    /// waits for is given by [`Demand::answer`].
    pub(crate) fn release(&mut self, ticket: Ticket) -> Vec<Sources> {
        let mut unwanted = Vec::new();
        self.give_back(ticket, &mut unwanted);
        lists(unwanted)
    }

    fn give_back(&mut self, ticket: Ticket, unwanted: &mut Vec<Source>) {
        for call in self.waiting.remove(&ticket).unwrap_or_default() {
            if let Some(call) = self.calls.get_mut(&call) {
                call.tickets.remove(&ticket);
            }
        }
        for held in self.held.remove(&ticket).unwrap_or_default() {
            // If it is not there it has become part of its job.
            let source = if self.known.contains_key(&held) { held } else { held.job() };
            if let Some(known) = self.known.get_mut(&source) {
                known.holds = known.holds.saturating_sub(1);
            }
            if self.forget_unwanted(&source) {
                unwanted.push(source);
            }
        }
    }

    /// What has to be held to get `source`, if anything of it is known.
    fn covering(&self, source: &Source) -> Option<Source> {
        let job = source.job();
        let of_job = self.known.get(&job);
        if of_job.is_some_and(|known| known.asked.is_none()) {
            return Some(job);
        }
        if self.known.contains_key(source) {
            return Some(source.clone());
        }
        of_job.map(|_| job)
    }

    /// Makes granted ranks part of their job, if that is granted: `source` is one of the two.
    fn absorb(&mut self, source: &Source) {
        let job = source.job();
        if self.known.get(&job).is_none_or(|known| known.asked.is_some()) {
            return;
        }
        let first = if source.rank == Rank::WILDCARD { Rank(0) } else { source.rank };
        let ranks = Source { rank: first, ..source.clone() }..=source.clone();
        let granted =
            |(of, known): (&Source, &Known)| (*of != job && known.asked.is_none()).then(|| of.clone());
        let parts: Vec<Source> = self.known.range(ranks).filter_map(granted).collect();
        for part in parts {
            let holds = self.known.remove(&part).map_or(0, |known| known.holds);
            if let Some(known) = self.known.get_mut(&job) {
                known.holds = known.holds.saturating_add(holds);
            }
        }
    }

    /// Forgets `source` if it is granted and nobody holds it; whether that was so.
    fn forget_unwanted(&mut self, source: &Source) -> bool {
        let unwanted = self.known.get(source).is_some_and(|known| known.asked.is_none() && known.holds == 0);
        unwanted && self.known.remove(source).is_some()
    }
}

/// The same sources in as few lists as it takes: the processes with the same channels together.
fn together(sources: Vec<Source>) -> Vec<(Sources, Vec<Source>)> {
    let mut of_procs: BTreeMap<(Arc<Nspace>, Rank), Vec<Source>> = BTreeMap::new();
    for source in sources {
        of_procs.entry((Arc::clone(&source.nspace), source.rank)).or_default().push(source);
    }
    let mut alike: BTreeMap<u16, (Vec<Proc>, Vec<Source>)> = BTreeMap::new();
    for ((nspace, rank), of) in of_procs {
        let channels: Channels = of.iter().map(|source| Channels::from(source.channel)).collect();
        let (procs, sources) = alike.entry(channels.bits()).or_default();
        procs.push(Proc { nspace: Nspace::clone(&nspace), rank });
        sources.extend(of);
    }
    let list = |(bits, (procs, sources))| {
        let channels = Channels::from_bits_truncate(bits);
        (Sources { procs, channels }, sources)
    };
    alike.into_iter().map(list).collect()
}

/// The lists alone.
fn lists(sources: Vec<Source>) -> Vec<Sources> {
    together(sources).into_iter().map(|(list, _)| list).collect()
}

#[cfg(test)]
mod tests;
