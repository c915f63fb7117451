//! The options of `iof run` that do not work with `--hosts`.

use crate::args::{BindingChoice, MpiChoice, RunArgs};
use crate::error::Failure;
use crate::output::Outputs;

/// Refuses options that do not work with `--hosts`, each by its name.
pub fn check(args: &RunArgs, outputs: &Outputs<'_>) -> Result<(), Failure> {
    let refused = [
        (args.bind_to == BindingChoice::Core, "--bind-to core", "ranks are bound on this node only"),
        (matches!(args.mpi, MpiChoice::Pmi1), "--mpi pmi1", "MPI programs start on one node only"),
        (matches!(args.mpi, MpiChoice::Pmix), "--mpi pmix", "MPI programs start on one node only"),
        (args.pty.is_some(), "--pty", "terminals are on this node only"),
        (args.timings, "--timings", "they are those of one process"),
        (outputs.names_host(), "%h or %N in the name of a file", "files are on this node only"),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, reason)) => {
            Err(Failure::Usage(format!("{option} does not work with --hosts yet: {reason}; leave one out")))
        }
        None => Ok(()),
    }
}
