//! The accounting of what clients hold, by the table of [`Quota`]s.
//!
//! Each [`Charge`] lies with what was charged, such as a registration, and is given back with it.
//! An account exists while it holds something. A connection is charged, too, so that charges to a
//! connected tool allocate nothing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use iof_proto::limits::MAX_CONNECTIONS;
use iof_proto::{Failure, Quota, QuotaLimit, QuotaScope};

use crate::clients::client::{ClientId, ClientProcess, Payer};

/// The limits of an engine's quotas. By default they are the values of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaLimits([[u64; QuotaScope::ALL.len()]; Quota::COUNT]);

impl Default for QuotaLimits {
    fn default() -> QuotaLimits {
        let mut limits = QuotaLimits([[u64::MAX; QuotaScope::ALL.len()]; Quota::COUNT]);
        for quota in Quota::ALL {
            quota.limits().iter().for_each(|limit| limits.set(*quota, limit.scope, limit.value as u64));
        }
        limits
    }
}

impl QuotaLimits {
    /// Returns a limit.
    pub fn get(&self, quota: Quota, scope: QuotaScope) -> u64 {
        self.0
            .get(quota as usize)
            .and_then(|limits| limits.get(scope as usize))
            .copied()
            .unwrap_or_else(|| absent!("limit", u64::MAX))
    }

    /// Sets a limit.
    pub fn set(&mut self, quota: Quota, scope: QuotaScope, value: u64) {
        let limits = self.0.get_mut(quota as usize);
        if let Some(limit) = limits.and_then(|limits| limits.get_mut(scope as usize)) {
            *limit = value;
        }
    }

    /// Shrinks the limits of connections in proportion, so that there are at most `places`.
    fn shrink_connections(&mut self, places: usize) {
        for quota in [Quota::Connections, Quota::OtherConnections] {
            for QuotaLimit { scope, value, .. } in quota.limits() {
                let part = value.saturating_mul(places) / MAX_CONNECTIONS;
                self.set(quota, *scope, part as u64);
            }
        }
    }
}

/// The largest number of quotas for which one charge counts.
const AMOUNTS: usize = 3;

/// Something that a client holds. `Quotas::give_back` consumes it. It must not be dropped before.
#[must_use = "a charge is given back with what was charged"]
#[derive(Debug)]
pub struct Charge {
    /// The client.
    pub(crate) payer: Payer,
    /// The amount of each quota for which it counts; empty once it was given back.
    amounts: Cell<[Option<(Quota, u64)>; AMOUNTS]>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        // A further panic while one unwinds would end the process.
        let is_over = self.amounts().all(|(_, amount)| amount == 0) || std::thread::panicking();
        debug_assert!(is_over, "{self:?} is dropped and not given back");
    }
}

impl Charge {
    fn amounts(&self) -> impl Iterator<Item = (Quota, u64)> + use<> {
        self.amounts.get().into_iter().flatten()
    }

    /// Ends the charge without its account, which ends as well.
    pub(crate) fn waive(&self) {
        self.amounts.take();
    }
}

/// A holder of charges: each charge to a client counts for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Engine,
    User(u32),
    /// The job with this number.
    Job(u64),
    Process(ClientProcess),
    Client(ClientId),
}

impl Holder {
    fn scope(self) -> QuotaScope {
        match self {
            Holder::Engine => QuotaScope::Engine,
            Holder::User(_) => QuotaScope::User,
            Holder::Job(_) => QuotaScope::Job,
            Holder::Process(_) => QuotaScope::Process,
            Holder::Client(_) => QuotaScope::Tool,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Engine => f.write_str("the engine"),
            Holder::User(uid) => write!(f, "user {uid}"),
            Holder::Job(_) => f.write_str("this job"),
            Holder::Process(process) => write!(f, "process {}", process.pid),
            Holder::Client(ClientId::Rank(_, rank)) => write!(f, "rank {rank}"),
            Holder::Client(_) => f.write_str("this tool"),
        }
    }
}

impl Payer {
    /// Returns the one whose holdings a limit of `quota` bounds for this client.
    fn holder(self, quota: Quota, scope: QuotaScope) -> Option<Holder> {
        match scope {
            QuotaScope::Engine => Some(Holder::Engine),
            QuotaScope::User => self.process.map(|process| Holder::User(process.uid)),
            QuotaScope::Job => match self.id {
                ClientId::Rank(run, _) => Some(Holder::Job(run)),
                ClientId::Embedder | ClientId::Tool(_) | ClientId::Ranks => None,
            },
            // All processes of a user that are not visible are one, unless the user has a limit.
            QuotaScope::Process => {
                let has_user_limit = quota.limits().iter().any(|limit| limit.scope == QuotaScope::User);
                self.process.filter(|process| process.pid != 0 || !has_user_limit).map(Holder::Process)
            }
            QuotaScope::Tool => match self.id {
                ClientId::Embedder | ClientId::Ranks => None,
                ClientId::Tool(_) | ClientId::Rank(..) => Some(Holder::Client(self.id)),
            },
        }
    }
}

/// The charges that clients hold, and their limits.
pub struct Quotas {
    /// The limits.
    pub limits: QuotaLimits,
    held: BTreeMap<Holder, [u64; Quota::COUNT]>,
}

impl Quotas {
    pub(crate) fn new(mut limits: QuotaLimits, places: usize) -> Quotas {
        limits.shrink_connections(places);
        Quotas { limits, held: BTreeMap::new() }
    }

    fn held(&self, holder: Holder, quota: Quota) -> u64 {
        self.held.get(&holder).and_then(|held| held.get(quota as usize)).copied().unwrap_or_default()
    }

    /// Returns the scope of the first limit that `payer` would exceed, with the failure that names it.
    pub(crate) fn excess(&self, payer: Payer, quota: Quota, amount: u64) -> Option<(QuotaScope, Failure)> {
        quota.limits().iter().find_map(|QuotaLimit { name, scope, .. }| {
            let holder = payer.holder(quota, *scope)?;
            let (held, limit) = (self.held(holder, quota), self.limits.get(quota, *scope));
            let exceeds = amount > 0 && held.saturating_add(amount) > limit;
            exceeds.then(|| (*scope, quota.failure(name, holder, held, limit, amount)))
        })
    }

    /// Charges a client for all of `amounts`.
    ///
    /// # Errors
    /// A limit would be exceeded. Nothing is charged then.
    pub(crate) fn charge<const N: usize>(
        &mut self,
        payer: Payer,
        amounts: [(Quota, u64); N],
    ) -> Result<Charge, Failure> {
        const { assert!(N <= AMOUNTS) }
        if let Some((_, failure)) =
            amounts.iter().find_map(|(quota, amount)| self.excess(payer, *quota, *amount))
        {
            return Err(failure);
        }
        let held = std::array::from_fn(|index| amounts.get(index).copied());
        let charge = Charge { payer, amounts: Cell::new(held) };
        self.change(&charge, u64::saturating_add);
        Ok(charge)
    }

    /// Ends charges with what was charged.
    pub(crate) fn give_back(&mut self, charges: impl IntoIterator<Item = Charge>) {
        for charge in charges {
            self.change(&charge, |held, amount| {
                debug_assert!(held >= amount, "{charge:?} was given back twice");
                held.saturating_sub(amount)
            });
            charge.waive();
        }
    }

    /// Changes what a client and those that it is counted with hold by the amounts of a charge.
    fn change(&mut self, charge: &Charge, change: impl Fn(u64, u64) -> u64) {
        for ((quota, amount), scope) in
            charge.amounts().flat_map(|held| QuotaScope::ALL.map(|scope| (held, scope)))
        {
            let Some(holder) = charge.payer.holder(quota, scope) else { continue };
            let account = self.held.entry(holder).or_insert([0; Quota::COUNT]);
            account.get_mut(quota as usize).into_iter().for_each(|held| *held = change(*held, amount));
            if account.iter().all(|held| *held == 0) {
                self.held.remove(&holder);
            }
        }
    }

    /// Panics unless `charges` are all that is held, and within the limits. Passes the names of limits
    /// that one more of `unit` exceeds to `reached`.
    pub fn check<'a>(
        &self,
        charges: impl Iterator<Item = &'a Charge>,
        unit: impl Fn(Quota) -> u64,
        mut reached: impl FnMut(&'static str),
    ) {
        let mut sums = Quotas { limits: self.limits, held: BTreeMap::new() };
        charges.for_each(|charge| sums.change(charge, |sum, amount| sum + amount));
        assert_eq!(sums.held, self.held, "what clients hold");
        for (holder, quota) in
            self.held.keys().flat_map(|holder| Quota::ALL.iter().map(move |quota| (*holder, *quota)))
        {
            for QuotaLimit { name, scope, .. } in
                quota.limits().iter().filter(|limit| limit.scope == holder.scope())
            {
                let (held, limit) = (self.held(holder, quota), self.limits.get(quota, *scope));
                assert!(held <= limit, "{holder} has {held}, beyond {name} of {limit}");
                if held.saturating_add(unit(quota)) > limit {
                    reached(name);
                }
            }
        }
    }

    /// Returns the amount that all clients hold.
    pub fn total(&self, quota: Quota) -> u64 {
        self.held(Holder::Engine, quota)
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
