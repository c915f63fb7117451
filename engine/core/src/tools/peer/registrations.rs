//! The registrations of one tool, and its pulls that wait for the host.

use super::Peer;
use crate::tools::demand::Ticket;
use crate::tools::pull::Pull;
use crate::tools::registration::Registration;

impl Peer {
    /// Returns a registration.
    pub fn registration(&self, handler: u32) -> Option<&Registration> {
        self.registrations.get(&handler)
    }

    pub(crate) fn registration_mut(&mut self, handler: u32) -> Option<&mut Registration> {
        self.registrations.get_mut(&handler)
    }

    /// Returns the registrations with their numbers.
    pub fn registrations(&self) -> impl Iterator<Item = (u32, &Registration)> {
        self.registrations.iter().map(|(handler, registration)| (*handler, registration))
    }

    /// Returns the number of the next registration.
    pub(crate) fn next_handler(&self) -> u32 {
        self.last_handler.saturating_add(1)
    }

    /// Notes that the tool is told this number of a registration.
    pub(crate) fn use_handler(&mut self, handler: u32) {
        self.last_handler = handler;
    }

    pub(crate) fn add_registration(&mut self, handler: u32, registration: Registration) {
        self.registrations.insert(handler, registration);
    }

    pub(crate) fn remove_registration(&mut self, handler: u32) -> Option<Registration> {
        self.registrations.remove(&handler)
    }

    /// Adds a pull that waits for the host.
    pub(crate) fn add_waiting(&mut self, ticket: Ticket, pull: Pull) {
        self.waiting.insert(ticket, pull);
    }

    /// Removes and returns a pull that waited for the host.
    pub(crate) fn take_waiting(&mut self, ticket: Ticket) -> Option<Pull> {
        self.waiting.remove(&ticket)
    }

    /// Returns the tickets that the registrations and waiting pulls hold.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let registered = self.registrations.values().filter_map(Registration::ticket);
        registered.chain(self.waiting.keys().copied())
    }
}
