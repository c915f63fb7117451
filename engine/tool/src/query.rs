//! Asking what the engine and its host know (`PMIx_Query_info`, RFC0001, RFC0010).

use iof_proto::{Answer, Found, FromTool, Query, ToTool};

use crate::error::RequestError;
use crate::link::Received;
use crate::tool::Tool;

impl Tool {
    /// Asks for some keys, of everything that the engine has; [`iof_proto::query::key`] has those
    /// that it knows, its host may know more. Keys of which nobody knows anything are left out
    /// of the answer.
    ///
    /// # Errors
    /// [`RequestError`]: nothing was found (`PMIX_ERR_NOT_FOUND`), or the engine is gone.
    pub fn query(&mut self, keys: &[&str]) -> Result<Vec<Found>, RequestError> {
        Ok(self.queries(vec![Query::new(keys.iter().copied())])?.found)
    }

    /// Asks several queries, each with keys and qualifiers of its own. Waits for the answer, which
    /// is the host's where the engine does not know a key.
    ///
    /// # Errors
    /// [`RequestError`]: nothing was found (`PMIX_ERR_NOT_FOUND`, or what the host says instead), a qualifier makes no
    /// sense (`PMIX_ERR_BAD_PARAM`), too much is asked at once, or the engine is gone.
    ///
    /// # Example
    /// ```
    /// # use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
    /// use iof_proto::query::{Query, Value, key};
    /// use iof_proto::{Info, Nspace, Status};
    ///
    /// # let engine = Engine::start(Config { rendezvous: Rendezvous::None, ..Config::default() })?;
    /// # let mut tool = engine.attach("example", Grant::Never)?;
    /// # engine.spawn(&JobSpec::new(Nspace::new("ocean")?, vec![App::new("true", [""; 0])]))?.wait();
    /// let of_ocean = Query {
    ///     qualifiers: vec![Info::new(key::PMIX_NSPACE, "ocean")],
    ///     ..Query::new([key::PMIX_QUERY_JOB_STATUS, "site.colour"])
    /// };
    /// let answer = tool.queries(vec![Query::new([key::PMIX_QUERY_NAMESPACES]), of_ocean])?;
    /// assert_eq!(answer.status, Status::ERR_PARTIAL_SUCCESS);
    /// assert_eq!(answer.found[0].value, Value::Text("ocean".into()));
    /// assert_eq!(answer.found[1].value, Value::Status(Status::EVENT_JOB_END));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queries(&mut self, queries: Vec<Query>) -> Result<Answer, RequestError> {
        let request = self.next_request();
        let result = self.ask(&FromTool::Query { request, queries }, |received| match received.message {
            ToTool::Answer { request: of, result } if of == request => Ok(result),
            message => Err(Box::new(Received { message, ..received })),
        })?;
        Ok(result?)
    }
}
