//! The models. Each runs a writer, in the thread that checks the model, and a reader in a thread of
//! its own. The steps of both before that thread starts have only one order, so they cost nothing
//! to check.

mod bytes;
mod ready_bits;
mod streams;

pub use bytes::*;
pub use ready_bits::*;
pub use streams::*;

/// Calls the macro `$do` with the names of all models.
#[macro_export]
macro_rules! for_each_model {
    ($do:ident) => {
        $do! {
            gating overwriting lapped non_gating non_gating_followed set_non_gating unnoted released dropped copied killed killed_beside_another
            ended woken woken_for_a_group woken_for_a_gap stepped room
            gaps moved_on reconfigured reconfigured_twice grown growth_refused allocated early reused_entry timed followed overtaken inspected
        }
    };
}
