//! Requests to an engine.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;

use iof::proto::attribute::{Place, at};
use iof::proto::directive::key as directive;
use iof::proto::query::key;
use iof::proto::rendezvous::{Search, Target, list};
use iof::proto::{Failure, Info, Query, Status};
use iof::tool::{Delivery, Pull, Push, Reply, RequestError, Tool as Connection};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::arguments::{Part, channels, invalid, nspace, procs};
use crate::error::{Raised, error};
use crate::owned::{Owned, opened};
use crate::reader::{Form, PyReader};
use crate::wait::wait_readable;

/// The connection of a tool for requests.
#[pyclass(frozen, module = "iof", name = "Tool")]
pub struct PyTool {
    search: Search,
    name: String,
    /// The pid of the engine.
    #[pyo3(get)]
    engine_pid: u32,
    connection: Owned<Connection>,
}

/// The result of a push: its bytes, the ranks that have received all of them, and the bytes of each other one.
type Pushed = (u64, u64, BTreeMap<u32, u64>);

/// The name and the run of a job, and some of its ranks.
type Selected = (String, u128, Option<Vec<u32>>);

/// Waits for the answer to a request, which `expected` takes out of the reply, until a signal's handler raises
/// an exception.
fn answer<T>(
    py: Python<'_>,
    tool: &mut Connection,
    request: Result<u32, RequestError>,
    expected: impl FnOnce(Reply) -> Option<Result<T, Failure>>,
) -> PyResult<T> {
    let number = request.map_err(Raised::from)?;
    loop {
        match tool.try_recv().map_err(Raised::from)? {
            Some(Delivery::Reply { request, reply }) if request == number => {
                let foreign = || error(Status::ERROR, "the engine gave the answer to another request");
                return Ok(expected(reply).ok_or_else(foreign)?.map_err(Raised::from)?);
            }
            Some(_) => continue,
            None => {}
        }
        if tool.is_gone() {
            return Err(error(Status::ERR_LOST_CONNECTION, "the engine has ended"));
        }
        wait_readable(py, tool.as_fd(), tool.timeout())?;
    }
}

/// Opens a reader of a part of the output of a job's run over a connection of its own.
fn open(
    py: Python<'_>,
    mut tool: Connection,
    (job, run, ranks): Selected,
    part: &Part,
    form: Form,
) -> PyResult<PyReader> {
    let begins = part.begins(&job, run)?;
    let pull = Pull::new(procs(&job, ranks)?, channels(part.channels)?).from(part.position());
    let pull = Pull { begins, until: part.until, ..pull };
    let request = tool.submit_pull(&pull);
    let expected = |reply| if let Reply::Pulled(granted) = reply { Some(granted) } else { None };
    let granted = answer(py, &mut tool, request, expected)?;
    if !part.follow {
        py.detach(|| tool.wait_for_cached()).map_err(Raised::from)?;
        match tool.deregister(granted.handler) {
            // Its time is over, so it has ended already.
            Err(RequestError::Denied(failure)) if failure.status == Status::ERR_NOT_FOUND => {}
            ended => ended.map_err(Raised::from)?,
        }
    }
    Ok(PyReader::new(tool, form, run))
}

impl PyTool {
    /// Passes the connection to `call`.
    fn with<T>(&self, call: impl FnOnce(&mut Connection) -> PyResult<T>) -> PyResult<T> {
        call(opened(&mut *self.connection.lock_alone()?, "tool")?)
    }
}

#[pymethods]
impl PyTool {
    #[new]
    fn new(
        py: Python<'_>,
        job: Option<&str>,
        socket: Option<PathBuf>,
        pid: Option<u32>,
        directory: Option<PathBuf>,
        name: String,
    ) -> PyResult<PyTool> {
        let target = match (job, socket, pid) {
            (Some(job), None, None) => Target::Nspace(nspace("job", job)?),
            (None, Some(socket), None) => Target::Server(socket),
            (None, None, Some(pid)) => Target::Pid(pid),
            (None, None, None) => Target::Any,
            _ => return Err(invalid("job", "expected one of job, socket and pid")),
        };
        let search = Search { target, ..Search::default() }.within(directory);
        let connection = py.detach(|| Connection::find(&search, &name)).map_err(Raised::from)?;
        let engine_pid = connection.engine_pid();
        Ok(PyTool { search, name, engine_pid, connection: Owned::new(connection) })
    }

    /// Queries the engine. Returns the keys and values as JSON.
    fn query(&self, py: Python<'_>, keys: Vec<String>, job: Option<&str>) -> PyResult<String> {
        let job = job.map(|job| nspace("job", job)).transpose()?;
        let qualifiers = job.map(|job| Info::required(key::PMIX_NSPACE, job.as_str())).into_iter().collect();
        let answered = self.with(|tool| {
            let request = tool.submit_query(vec![Query { keys, qualifiers }]);
            let expected = |reply| if let Reply::Answered(answer) = reply { Some(answer) } else { None };
            answer(py, tool, request, expected)
        })?;
        let found: Vec<_> = answered.found.iter().map(|found| (&found.key, &found.value)).collect();
        serde_json::to_string(&found).map_err(|failed| error(Status::ERROR, failed))
    }

    /// Pushes bytes to the stdin of ranks. Returns the number of bytes, the number of ranks that have
    /// received all of them, and each other rank with the number of bytes written to it.
    fn push(&self, py: Python<'_>, target: Selected, data: PyBackedBytes, end: bool) -> PyResult<Pushed> {
        self.with(|tool| {
            let directives = vec![Info::new(directive::PMIX_IOF_COMPLETE, end)];
            let push = Push { directives, ..Push::new(procs(&target.0, target.2)?) };
            let request = tool.submit_push(&push, Some(data.len() as u64));
            let expected = |reply| if let Reply::PushBegun(granted) = reply { Some(granted) } else { None };
            let push = answer(py, tool, request, expected)?.push;
            let (mut rest, mut over) = (&data[..], false);
            loop {
                while tool.try_recv().map_err(Raised::from)?.is_some() {}
                if let Some(report) = tool.take_report(push).map_err(Raised::from)? {
                    let partial =
                        report.partial.iter().map(|target| (target.target.rank.0, target.delivered));
                    return Ok((report.bytes, report.complete, partial.collect()));
                }
                let room = tool.push_room(push);
                let (now, after) = rest.split_at(room.len().min(rest.len()));
                if over || now.is_empty() && !rest.is_empty() {
                    let waited = wait_readable(py, tool.as_fd(), tool.timeout());
                    // Ended with fewer bytes: the next push begins when this one has ended.
                    waited.inspect_err(|_| drop((!over).then(|| tool.fill(push, 0, true))))?;
                    continue;
                }
                room.iter_mut().zip(now).for_each(|(room, byte)| *room = *byte);
                (rest, over) = (after, after.is_empty());
                tool.fill(push, now.len(), over).map_err(Raised::from)?;
            }
        })
    }

    /// Sends a signal to ranks. Returns the number of processes and groups that it was sent to.
    fn signal(&self, py: Python<'_>, target: Selected, signal: i32) -> PyResult<u32> {
        self.with(|tool| {
            let request = tool.submit_signal(&procs(&target.0, target.2)?, signal);
            let expected = |reply| if let Reply::Signalled(count) = reply { Some(count) } else { None };
            answer(py, tool, request, expected)
        })
    }

    /// Opens a reader of a job's output.
    fn open(&self, py: Python<'_>, target: Selected, part: Part, form: Form) -> PyResult<PyReader> {
        let connection = py.detach(|| Connection::find(&self.search, &self.name)).map_err(Raised::from)?;
        if connection.engine_pid() != self.engine_pid {
            let text = "another engine has replaced that of the tool: attach again";
            return Err(error(Status::ERR_NOT_FOUND, text));
        }
        open(py, connection, target, &part, form)
    }

    /// Closes the connection.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.connection.is_inherited() {
            let connection = self.connection.lock_alone()?.take();
            py.detach(|| drop(connection));
        }
        Ok(())
    }
}

/// Returns the sockets of the engines of this node.
#[pyfunction]
pub fn engines(py: Python<'_>, directory: Option<PathBuf>) -> PyResult<Vec<PathBuf>> {
    let listed = py.detach(|| list(directory.as_deref()));
    let listed = listed.map_err(Raised::from)?;
    Ok(listed.into_iter().filter(|engine| engine.is_live).map(|engine| engine.path).collect())
}

/// Returns the keys of queries by their names.
#[pyfunction]
pub fn query_keys() -> BTreeMap<&'static str, &'static str> {
    let short = |name: &'static str| name.trim_start_matches("PMIX_QUERY_").trim_start_matches("IOF_QUERY_");
    at(Place::Query).map(|row| (short(row.name), row.key)).collect()
}
