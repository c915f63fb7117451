//! The names of jobs in requests of ranks and in their answers. In PMIx, a job has a name that is
//! unique on the node.

use std::collections::BTreeMap;

use iof_core::JobId;
use iof_proto::query::key::{PMIX_NSPACE, PMIX_QUERY_NAMESPACES};
use iof_proto::{Exchange, FromTool, Info, InfoValue, JobSpec, Nspace, ToTool, Value};

/// The jobs by their names in PMIx.
pub(crate) type PmixNames = BTreeMap<String, JobId>;

/// Replaces the names of PMIx in a request.
pub(crate) fn from_pmix(message: &mut FromTool, names: &PmixNames) {
    let rename_job = |nspace: &mut Nspace| {
        names.get(nspace.as_str()).into_iter().for_each(|job| *nspace = job.nspace.clone());
    };
    let rename = |info: &mut Info| match &mut info.value {
        InfoValue::Text(text) if info.key == PMIX_NSPACE => {
            names.get(text).into_iter().for_each(|job| *text = job.nspace.to_string());
        }
        InfoValue::Proc(proc) => rename_job(&mut proc.nspace),
        _ => {}
    };
    match message {
        FromTool::Query { queries, .. } => {
            queries.iter_mut().flat_map(|query| &mut query.qualifiers).for_each(rename);
        }
        FromTool::Signal { procs, .. } => procs.iter_mut().for_each(|proc| rename_job(&mut proc.nspace)),
        FromTool::Exchange(Exchange::Modex(owner)) => rename_job(&mut owner.nspace),
        FromTool::Exchange(Exchange::Fence { members, .. } | Exchange::Group { members, .. }) => {
            members.iter_mut().for_each(|job| rename_job(&mut job.nspace));
        }
        FromTool::Log { log, .. } => log.directives.iter_mut().for_each(rename),
        FromTool::Spawn { spawn, .. } => {
            let JobSpec { nspace, parent, .. } = &mut spawn.spec;
            let parent = parent.as_mut().map(|parent| &mut parent.nspace);
            parent.into_iter().chain([nspace]).for_each(rename_job);
        }
        _ => {}
    }
}

/// Replaces the names of jobs in an answer by those of PMIx.
pub(crate) fn to_pmix(answer: &mut ToTool, names: &PmixNames) {
    let mut jobs: Vec<(&String, &JobId)> = names.iter().collect();
    // Of several jobs of one name, the last one is meant.
    jobs.sort_unstable_by_key(|(_, job)| job.run);
    let in_pmix: BTreeMap<&str, &String> =
        jobs.into_iter().map(|(name, job)| (job.nspace.as_str(), name)).collect();
    let rename = |nspace: &mut Nspace| {
        let name = in_pmix.get(nspace.as_str()).and_then(|name| Nspace::new(name.as_str()).ok());
        name.into_iter().for_each(|name| *nspace = name);
    };
    let found = match answer {
        ToTool::Answer { result: Ok(answer), .. } => answer.found.as_mut_slice(),
        ToTool::Spawned { result: Ok(nspace), .. } => return rename(nspace),
        _ => return,
    };
    for found in found {
        match &mut found.value {
            Value::Text(list) if found.key == PMIX_QUERY_NAMESPACES => {
                let all = list.split(',').map(|name| in_pmix.get(name).map_or(name, |name| name.as_str()));
                *list = all.collect::<Vec<&str>>().join(",");
            }
            Value::Procs(all) => all.iter_mut().for_each(|info| rename(&mut info.proc.nspace)),
            Value::Jobs(all) => all.iter_mut().for_each(|info| rename(&mut info.nspace)),
            Value::Streams(all) => all.iter_mut().for_each(|row| rename(&mut row.source.nspace)),
            _ => {}
        }
    }
}
