//! Queries about what the engine and its host know (`PMIx_Query_info`, RFC0001, RFC0010).

use iof_proto::{Answer, Found, FromTool, Query};

use super::Tool;
use crate::error::RequestError;
use crate::session::request::Request;

impl Tool {
    /// Queries the values of `keys`, for all jobs and processes. [`iof_proto::query::key`] lists
    /// the keys that the engine knows; its host may know more. The answer omits unknown keys.
    /// Blocks until the engine, and for some keys its host, has answered.
    ///
    /// # Errors
    /// Returns [`RequestError`] if nothing was found (`PMIX_ERR_NOT_FOUND`) or the engine is gone.
    pub fn query(&mut self, keys: &[&str]) -> Result<Vec<Found>, RequestError> {
        Ok(self.queries(vec![Query::new(keys.iter().copied())])?.found)
    }

    /// Sends several queries in one request, each with its own keys and qualifiers. Blocks until
    /// the engine, and its host for keys that the engine does not know, has answered.
    ///
    /// # Errors
    /// Returns [`RequestError`] if nothing was found (`PMIX_ERR_NOT_FOUND`, or the host's status),
    /// a qualifier is invalid (`PMIX_ERR_BAD_PARAM`), the request exceeds a limit, or the engine is
    /// gone.
    ///
    /// # Example
    /// ```
    /// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
    /// use iof_proto::query::{Query, Value, key};
    /// use iof_proto::{Info, Nspace, Status};
    ///
    /// # let engine = Engine::start(Config::new(Rendezvous::None))?;
    /// # let mut tool = engine.attach("example", Grant::Never)?;
    /// # engine.spawn(&JobSpec::new(Nspace::new("ocean")?, vec![App::new("true", [""; 0])]))?.wait();
    /// let ocean = Query {
    ///     qualifiers: vec![Info::new(key::PMIX_NSPACE, "ocean")],
    ///     ..Query::new([key::PMIX_QUERY_JOB_STATUS, "site.colour"])
    /// };
    /// let answer = tool.queries(vec![Query::new([key::PMIX_QUERY_NAMESPACES]), ocean])?;
    /// assert_eq!(answer.status, Status::ERR_PARTIAL_SUCCESS);
    /// // No job runs: that of the second query has ended.
    /// assert_eq!(answer.found[0].value, Value::Text("".into()));
    /// assert_eq!(answer.found[1].value, Value::Status(Status::EVENT_JOB_END));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queries(&mut self, queries: Vec<Query>) -> Result<Answer, RequestError> {
        let request = self.submit_query(queries)?;
        self.wait(request)
    }

    /// Blocks until all that the engine has sent until now has arrived.
    pub(crate) fn pass_barrier(&mut self) -> Result<(), RequestError> {
        let request = self.submit(Request::Query, |request| FromTool::Barrier { request })?;
        self.wait::<Answer>(request).map(drop)
    }

    /// Sends the request of [`Tool::queries`] without waiting for the answer, see
    /// [`Reply`](crate::Reply).
    ///
    /// # Errors
    /// The same as [`Tool::submit_pull`].
    pub fn submit_query(&mut self, queries: Vec<Query>) -> Result<u32, RequestError> {
        self.submit(Request::Query, |request| FromTool::Query { request, queries })
    }
}
