//! The jobs that ranks spawn by PMI-1 (`MPI_Comm_spawn`, `MPI_Comm_spawn_multiple`).

use std::path::Path;

use iof_pmi::{SpawnApp, SpawnCommand};
use iof_proto::{App, JobSpec, KillOnBadExit, Mpi, Nspace, Spawn};

use crate::tables::files::node_name;

/// Returns the job that a rank of `parent` requests. It has the name of `parent` with a number.
pub(crate) fn spawn(request: SpawnCommand, parent: &Nspace) -> Spawn {
    let mut spec = JobSpec::new(parent.clone(), Vec::with_capacity(request.apps.len()));
    (spec.mpi, spec.kill_on_bad_exit, spec.pmi_values) = (Mpi::Pmi1, KillOnBadExit::Signal, request.values);
    for SpawnApp { program, args, ranks, infos } in request.apps {
        let mut app = App::new(program, args).ranks(ranks);
        app.env.push(("PMI_SPAWNED".into(), "1".into()));
        infos.iter().for_each(|(key, value)| apply(key, value, &mut app, &mut spec));
        spec.apps.push(app);
    }
    let mut spawn = Spawn::new(spec);
    spawn.rename = true;
    spawn
}

/// Applies an info of MPI to a program. A library is to ignore those that it does not know.
fn apply(key: &str, value: &str, app: &mut App, spec: &mut JobSpec) {
    match key {
        "wdir" => app.cwd = Some(value.into()),
        "path" => {
            let mut files = value.split(':').map(|directory| Path::new(directory).join(&app.program));
            app.program = files.find(|file| file.is_file()).map_or_else(|| app.program.clone(), Into::into);
        }
        "host" | "hosts" => {
            let own = node_name().unwrap_or_default();
            // The engine refuses such jobs.
            spec.elsewhere |= value.split(',').any(|host| host != "localhost" && host != own);
        }
        "hostfile" => spec.elsewhere = true,
        _ => {}
    }
}
