//! The topology of the node, which ranks of MPICH read from a file instead of searching for it.

use std::path::PathBuf;
use std::sync::OnceLock;

use iof_pmix_server::TopologyFile;
use iof_proto::JobSpec;

use crate::mpi::needs::MpiNeeds;

/// The fewest ranks of a job for which the file is written. The search takes the engine longer than
/// a rank, which has no libraries to open for it: 20 ms in place of 5 ms.
const FEWEST_RANKS: u64 = 8;

/// The file of an engine. It is written for the first job that needs it, if that is possible.
#[derive(Default)]
pub(crate) struct Topology(OnceLock<Option<TopologyFile>>);

impl Topology {
    /// Returns whether the ranks of a job would search for the topology.
    pub(crate) fn is_for(spec: &JobSpec, needs: &MpiNeeds) -> bool {
        spec.nprocs() >= FEWEST_RANKS && needs.is_pmi1(spec.mpi)
    }

    /// Returns the file, if it can be written. The first call blocks until it is.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let create = || {
            let created = TopologyFile::create();
            created.inspect_err(|error| tracing::debug!(%error, "ranks search for the topology")).ok()
        };
        self.0.get_or_init(create).as_ref().map(TopologyFile::path)
    }
}
