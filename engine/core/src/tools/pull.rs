//! Pulls that wait for the host or for their readers.

use iof_proto::{Channels, Info, Proc};

use crate::tools::registration::Registration;

/// A valid pull.
pub struct Pull {
    /// The tool's number for the pull.
    pub request: u32,
    /// The registration that it becomes.
    pub registration: Registration,
    /// All directives, unchanged.
    pub directives: Vec<Info>,
    /// The keys of directives that are not supported.
    pub ignored: Vec<String>,
}

/// A pull that is granted and registered, and whose answer follows when its readers are attached.
pub(crate) struct RegisteredPull {
    pub request: u32,
    pub handler: u32,
    pub ignored: Vec<String>,
}

impl Pull {
    /// Returns the sources and directives that the pull asks the host for.
    pub(crate) fn asks_for(&self) -> (Vec<Proc>, Channels, Vec<Info>) {
        (self.registration.procs().to_vec(), self.registration.channels(), self.directives.clone())
    }
}
