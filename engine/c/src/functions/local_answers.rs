//! Keys of queries that the library answers itself, without an engine.

use std::path::PathBuf;

use iof_proto::attribute::key::*;
use iof_proto::rendezvous::{Candidate, Level, Search, Target};
use iof_proto::{Answer, Failure, Query, Status};

use crate::ffi::make;
use crate::ffi::types::iof_info_t;
use crate::library::directories;

/// The version of the ABI of the PMIx Standard that the library claims: none.
const NO_ABI: &str = "0.0";

/// The library's own answers to queries, each with its key.
#[derive(Default)]
pub(crate) struct LocalAnswers(Vec<(String, LocalValue)>);

enum LocalValue {
    Text(String),
    Servers(Vec<Candidate>),
}

impl LocalAnswers {
    /// Answers the keys that the library knows, and removes them from the queries. `socket` is that
    /// of the engine to which the process is connected.
    pub(crate) fn take_from(queries: &mut Vec<Query>, socket: Option<PathBuf>) -> LocalAnswers {
        let mut all = LocalAnswers::default();
        let socket = socket.and_then(|path| path.into_os_string().into_string().ok());
        for query in &mut *queries {
            query.keys.retain(|key| {
                let value = match key.as_str() {
                    PMIX_QUERY_STABLE_ABI_VERSION | PMIX_QUERY_PROVISIONAL_ABI_VERSION => {
                        Some(LocalValue::Text(NO_ABI.into()))
                    }
                    PMIX_SERVER_URI => socket.clone().map(LocalValue::Text),
                    PMIX_QUERY_AVAIL_SERVERS => Some(LocalValue::Servers(servers(directories()))),
                    _ => None,
                };
                let is_unknown = value.is_none();
                all.0.extend(value.map(|value| (key.clone(), value)));
                is_unknown
            });
        }
        queries.retain(|query| !query.keys.is_empty());
        all
    }

    /// Returns the infos of both answers, with the status of their union.
    pub(crate) fn join(self, asked: Option<Result<Answer, Failure>>) -> (Status, Vec<iof_info_t>) {
        let (status, mut infos) = match &asked {
            None => (Status::SUCCESS, Vec::new()),
            Some(Ok(answer)) => (answer.status, make::answer(answer)),
            Some(Err(_)) if !self.0.is_empty() => (Status::ERR_PARTIAL_SUCCESS, Vec::new()),
            Some(Err(failure)) => (failure.status, Vec::new()),
        };
        infos.extend(self.0.iter().map(|(key, value)| make::info(key, value.to_c())));
        (status, infos)
    }

    /// Returns whether the library has no answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl LocalValue {
    fn to_c(&self) -> crate::ffi::types::iof_value_t {
        match self {
            LocalValue::Text(text) => make::text(text),
            LocalValue::Servers(servers) => make::infos(&servers.iter().map(server).collect::<Vec<_>>()),
        }
    }
}

fn server(from: &Candidate) -> iof_info_t {
    let mut fields = vec![
        make::info(PMIX_SERVER_URI, make::text(&from.path.to_string_lossy())),
        make::info(PMIX_SERVER_PIDINFO, make::pid(from.pid)),
    ];
    fields.extend(from.jobs.iter().map(|job| make::info(PMIX_SERVER_NSPACE, make::text(job.as_str()))));
    make::info(PMIX_SERVER_INFO_ARRAY, make::infos(&fields))
}

/// Returns the engines in the directories of `session` to which the user could connect. Those that
/// cannot be found, for whatever reason, are left out.
fn servers(session: Search) -> Vec<Candidate> {
    let system = Search { target: Target::System, ..session.clone() };
    let system: Vec<PathBuf> = system.sockets().filter_map(Result::ok).collect();
    let system =
        system.into_iter().map(|path| Candidate { pid: 0, level: Level::System, path, jobs: Vec::new() });
    system.chain(session.engines().unwrap_or_default()).collect()
}
