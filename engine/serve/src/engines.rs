//! The engines whose jobs are served, and requests to them.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use iof_proto::query::{JobInfo, key};
use iof_proto::rendezvous::{Level, Listed, list};
use iof_proto::{Info, Nspace, ProcInfo, Query, Status, StreamStats, Value};
use iof_tool::{AsyncTool, AttachError, LostError, OwnedDelivery, Reply, RequestError, Tool};
use nix::unistd::geteuid;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use wildmatch::WildMatch;

use crate::error::ApiError;
use crate::limits::{ANSWER_LIMIT, MAX_CONNECTING};

/// The choice of engines and jobs.
pub struct ServedEngines {
    /// The directory in which engines are looked for, if not the default one.
    pub directory: Option<PathBuf>,
    /// The system-level engine and jobs of other users are served, too.
    pub system: bool,
    /// The names and patterns of the jobs.
    pub names: Vec<WildMatch>,
}

/// An engine, and its jobs or the reason why they are unknown.
type Answer = (Listed, Result<Vec<JobInfo>, &'static str>);

impl ServedEngines {
    /// Returns the engines that may be asked, about all jobs or about one, or the one with the given pid.
    fn list(&self, job: Option<&Nspace>, pid: Option<u32>) -> Result<Vec<Listed>, ApiError> {
        let mut engines = list(self.directory.as_deref()).map_err(ApiError::failed)?;
        let own = geteuid().as_raw();
        // The system-level engine has 0.
        engines.retain(|engine| pid.is_none_or(|pid| engine.pid.unwrap_or(0) == pid));
        engines.retain(|engine| match engine.level {
            // Its jobs are not listed.
            Level::System => self.system && engine.is_live,
            _ => {
                let has_job = job.is_none_or(|job| engine.jobs.contains(job));
                engine.is_live && has_job && (self.system || engine.uid == own)
            }
        });
        Ok(engines)
    }

    /// Returns the engines with their jobs, as far as these are served, or with the one job. A job that an agent has a
    /// part of is that of the engine which has it whole.
    pub async fn jobs(&self, job: Option<&Nspace>, pid: Option<u32>) -> Result<Vec<Answer>, ApiError> {
        let mut asked = JoinSet::new();
        for engine in self.list(job, pid)? {
            asked.spawn(async move {
                let jobs = match timeout(ANSWER_LIMIT, EngineClient::jobs_at(&engine.path)).await {
                    Ok(Ok(jobs)) => Ok(jobs),
                    Ok(Err(_)) => Err("refused"),
                    Err(_) => Err("no answer"),
                };
                (engine, jobs)
            });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(engine, _)| (engine.level == Level::Agent, engine.pid));
        let mut names: Vec<Nspace> = Vec::new();
        for (engine, jobs) in &mut answers {
            let is_served = |info: &JobInfo| {
                let name = &info.nspace;
                job.is_none_or(|job| job == name) && self.names.iter().any(|one| one.matches(name.as_str()))
            };
            let is_known = |job: &JobInfo| engine.level == Level::Agent && names.contains(&job.nspace);
            jobs.iter_mut().for_each(|jobs| jobs.retain(|job| is_served(job) && !is_known(job)));
            names.extend(jobs.iter().flatten().map(|job| job.nspace.clone()));
        }
        Ok(answers)
    }

    /// Returns the engine that has this job, with the given pid if any, and the state of the job.
    pub async fn find(&self, job: &Nspace, pid: Option<u32>) -> Result<(Listed, JobInfo), ApiError> {
        let (mut found, mut failure) = (Vec::new(), None);
        for (engine, jobs) in self.jobs(Some(job), pid).await? {
            match jobs.map_err(|state| ApiError::new(504, format!("the engine of job {job}: {state}"))) {
                Ok(mut infos) => found.extend(infos.pop().map(|info| (engine, info))),
                Err(error) if engine.level == Level::Session => return Err(error),
                // Another engine may have the job, or the whole of it.
                Err(error) => failure = Some(error),
            }
        }
        if let [_, _, ..] = found.as_slice() {
            let pids: Vec<String> =
                found.iter().map(|(engine, _)| engine.pid.unwrap_or(0).to_string()).collect();
            let reason =
                format!("several engines have a job {job}: choose one by engine={}", pids.join(" or "));
            return Err(ApiError::new(409, reason));
        }
        let missing = || failure.unwrap_or_else(|| ApiError::new(404, format!("there is no job {job}")));
        found.pop().ok_or_else(missing)
    }
}

/// A connection to an engine, for requests one by one. After the first registration, further requests would be mixed
/// with deliveries: they need another connection.
pub struct EngineClient(pub AsyncTool);

impl EngineClient {
    /// Attaches to the engine at `path`.
    pub async fn connect(path: &Path) -> Result<EngineClient, ApiError> {
        Ok(EngineClient(AsyncTool::new(connect(path).await?).map_err(ApiError::failed)?))
    }

    /// Waits for the answer to the request that `submit` sends, at most [`ANSWER_LIMIT`].
    pub async fn request(
        &mut self,
        submit: impl FnOnce(&mut Tool) -> Result<u32, RequestError>,
    ) -> Result<Reply, ApiError> {
        submit(self.0.get_mut())?;
        let answered = poll_fn(|task| self.0.poll_lend(task, |delivery| (0, delivery.into_owned())));
        match timeout(ANSWER_LIMIT, answered).await.map_err(late)? {
            Some(Ok(OwnedDelivery::Reply { reply, .. })) => Ok(reply),
            Some(Err(lost)) => Err(RequestError::from(lost).into()),
            _ => Err(RequestError::from(LostError::Closed).into()),
        }
    }

    async fn query(&mut self, query: Query) -> Result<Vec<Value>, ApiError> {
        let Reply::Answered(answer) = self.request(|tool| tool.submit_query(vec![query])).await? else {
            return Err(RequestError::from(LostError::Closed).into());
        };
        Ok(answer.map_err(RequestError::Denied)?.found.into_iter().map(|found| found.value).collect())
    }

    /// Returns the jobs that the engine at `path` knows.
    pub async fn jobs_at(path: &Path) -> Result<Vec<JobInfo>, ApiError> {
        let query = Query::new([key::PMIX_QUERY_NAMESPACE_INFO]);
        let values = EngineClient::connect(path).await?.query(query).await?;
        let jobs = values
            .into_iter()
            .find_map(|value| if let Value::Jobs(jobs) = value { Some(jobs) } else { None });
        Ok(jobs.unwrap_or_default())
    }

    /// Returns the ranks of a job and the counters of its streams.
    pub async fn details(&mut self, job: &Nspace) -> Result<(Vec<ProcInfo>, Vec<StreamStats>), ApiError> {
        let keys = [key::PMIX_QUERY_PROC_TABLE, key::IOF_QUERY_STATS];
        let qualifiers = vec![Info::new(key::PMIX_NSPACE, job.as_str())];
        let (mut procs, mut streams) = (Vec::new(), Vec::new());
        for value in self.query(Query { qualifiers, ..Query::new(keys) }).await? {
            match value {
                Value::Procs(found) => procs.extend(found),
                Value::Streams(found) => streams.extend(found),
                _ => {}
            }
        }
        Ok((procs, streams))
    }
}

fn late(_: Elapsed) -> ApiError {
    ApiError::new(504, "the engine does not answer: it may be stopped")
}

/// Attaches a tool. Connecting blocks, for [`iof_tool::HANDSHAKE_LIMIT`] at most, so it has a thread. One engine has few
/// of them, so that a stopped one delays no request to another.
pub async fn connect(path: &Path) -> Result<Tool, ApiError> {
    static TURNS: Mutex<BTreeMap<PathBuf, Arc<Semaphore>>> = Mutex::new(BTreeMap::new());
    let turns = {
        let mut all = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turns| Arc::strong_count(turns) > 1);
        Arc::clone(all.entry(path.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(MAX_CONNECTING))))
    };
    let turn = timeout(ANSWER_LIMIT, turns.acquire_owned()).await.map_err(late)?;
    let path = path.to_owned();
    let connected = spawn_blocking(move || {
        // Kept until the thread is free, also if the request has ended.
        let _turn = turn;
        Tool::connect(&path, "iof serve")
    });
    connected.await.map_err(ApiError::failed)?.map_err(|error| {
        let is_full = matches!(error, AttachError::Refused { status: Status::ERR_OUT_OF_RESOURCE, .. });
        ApiError::new(if is_full { 503 } else { 502 }, error)
    })
}
