//! The models. Each runs a writer, in the thread that checks it, and a reader in a thread of its own. What both did
//! before the thread starts has one order only and costs nothing to check.

mod bytes;
mod news;
mod streams;

pub use bytes::*;
pub use news::*;
pub use streams::*;

/// Every model, with its name.
pub const ALL: &[(&str, fn())] = &[
    ("gated", gated),
    ("overwriting", overwriting),
    ("lapped", lapped),
    ("unnoted", unnoted),
    ("released", released),
    ("dropped", dropped),
    ("copied", copied),
    ("killed", killed),
    ("killed_beside_another", killed_beside_another),
    ("ended", ended),
    ("woken", woken),
    ("woken_for_a_group", woken_for_a_group),
    ("woken_for_a_gap", woken_for_a_gap),
    ("room", room),
    ("gaps", gaps),
    ("moved_on", moved_on),
    ("reconfigured", reconfigured),
    ("early", early),
    ("late", late),
    ("overtaken", overtaken),
];
