//! Tools: their connections, registrations and messages.

pub(crate) mod admission;
pub(crate) mod cached;
pub(crate) mod demand;
pub(crate) mod elsewhere;
pub(crate) mod grant;
pub(crate) mod linger;
pub(crate) mod outgoing;
pub(crate) mod peer;
pub(crate) mod pending;
pub(crate) mod pull;
pub(crate) mod pulls;
pub(crate) mod registration;
pub(crate) mod registrations;
pub(crate) mod requests;
pub(crate) mod shed;
pub(crate) mod table;
