//! The rank that this process is or descends from.

use std::env;

use iof_proto::{Nspace, Proc, Rank};

/// Returns the rank that this process is or descends from, according to the environment variables
/// `IOF_NSPACE` and `IOF_RANK`; `None` if they are missing or invalid. It can be passed as
/// [`PMIX_LOG_SOURCE`](iof_proto::log::key::PMIX_LOG_SOURCE).
pub fn own_proc() -> Option<Proc> {
    let nspace = Nspace::new(env::var("IOF_NSPACE").ok()?).ok()?;
    let rank = env::var("IOF_RANK").ok()?.parse().ok()?;
    Some(Proc::new(nspace, Rank(rank)))
}
