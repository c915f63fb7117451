//! All charges, wherever they lie.

use crate::Core;
use crate::clients::quotas::Charge;
use crate::tools::peer::Peer;

impl Core {
    /// Returns all charges.
    pub fn charges(&self) -> impl Iterator<Item = &Charge> {
        let connections =
            self.pending.values().filter_map(|pending| pending.place.as_ref()).chain(self.departed.values());
        let connections = connections.chain(self.tools.values().flat_map(Peer::charges));
        let requests = self.queries.charges().chain(self.logs.charges()).chain(self.published.charges());
        let requests = requests.chain(self.spawns.charges()).chain(self.fences.charges());
        connections.chain(requests).chain(self.pushes.charges()).chain(self.owed.values())
    }

    /// Ends all charges, because the engine ends.
    pub(crate) fn waive_charges(&self) {
        self.charges().for_each(Charge::waive);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.waive_charges();
    }
}
