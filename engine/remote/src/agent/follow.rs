//! The threads of an agent that tell the front end of the ranks: output, exits and totals.

use std::io::IoSlice;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender};
use iof_engine::{Ending, Engine, Exit, Grant, Job, RankExit};
use iof_nodes::limits::MAX_TOTALS;
use iof_nodes::{RankTotal, ToFrontEnd, cut_text};
use iof_output::{CacheDrops, PrintReport};
use iof_proto::query::key;
use iof_proto::{StreamStats, Value};
use iof_tool::{RequestError, Tool};

use super::hooks::FilesEnd;
use super::host::Frames;
use super::prepare::OutputReaders;
use super::uplink::{AgentInput, Uplink};
use super::{AgentError, NAME};
use crate::cost::{backend_text, cpu_time};
use crate::thread::start_thread;

/// The time between two messages with totals.
const TOTALS_INTERVAL: Duration = Duration::from_secs(1);

/// The time for which the exit of a failed rank waits until its output is sent.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);

/// Starts the threads that send output, exits, totals and messages of the host.
pub(super) fn follow(
    engine: &Arc<Engine>,
    job: &Job,
    (uplink, inputs): (&Arc<Uplink>, Sender<AgentInput>),
    (OutputReaders { bundles, mut files }, messages): (OutputReaders, Receiver<Frames>),
) -> Result<(), AgentError> {
    let mut tool = engine.attach(NAME, Grant::Never)?;
    uplink.send(&ToFrontEnd::Started { pids: job.pids() });
    let up = Arc::clone(uplink);
    start_thread("iof-log", move || {
        messages.into_iter().flatten().for_each(|frame| up.write(&[IoSlice::new(&frame)]))
    })?;
    let output = bundles.start(uplink)?;
    if let Some(files) = &mut files {
        let (uplink, inputs) = (Arc::clone(uplink), inputs.clone());
        let done = move |end| files_ended(&uplink, &inputs, end);
        files.watch(Box::new(done)).map_err(AgentError::Files)?;
    }
    let (job, up, backend) = (job.clone(), Arc::clone(uplink), backend_text(engine));
    start_thread("iof-endings", move || {
        let mut is_requested = false;
        for ending in job.endings() {
            if let Ending::Mpi { rank, event } = ending {
                up.send(&ToFrontEnd::Mpi { rank, event });
            } else if let Ending::Rank(rank) = ending {
                is_requested |= rank.requested;
                send_exit(&job, &up, rank);
                if is_requested && job.try_wait_exit().is_some() {
                    files.iter().for_each(|files| files.ranks_were_ended());
                }
            }
        }
        output.into_iter().for_each(|thread| drop(thread.join()));
        files.iter().for_each(|files| files.wait());
        if up.is_closed() {
            // Such as with blocked files: the node is lost, not over.
            return;
        }
        // The agent may have ended.
        let _ = inputs.send(AgentInput::Over);
        up.send(&cost(backend));
        up.send(&ToFrontEnd::Over { cut_off: job.wait().cut_off });
    })?;
    let up = Arc::clone(uplink);
    Ok(start_thread("iof-totals", move || {
        while !up.is_closed() {
            thread::sleep(TOTALS_INTERVAL);
            let Ok(totals) = totals(&mut tool) else { return };
            for part in totals.chunks(MAX_TOTALS) {
                up.send(&ToFrontEnd::Produced(part.to_vec()));
            }
        }
    })?)
}

/// Tells the front end that the files of this node are complete, or can't be written.
fn files_ended(uplink: &Uplink, inputs: &Sender<AgentInput>, FilesEnd { result, are_blocked }: FilesEnd) {
    let (PrintReport { written, lost, drops, .. }, failure) = match result {
        Ok(report) => (report, None),
        Err(reason) => (PrintReport::default(), Some(cut_text(&reason))),
    };
    let (lost, CacheDrops { bytes: dropped, refusals }) = (lost.into_iter().collect(), drops);
    uplink.send(&ToFrontEnd::FilesWritten { written, lost, dropped, refusals, failure });
    if are_blocked {
        // Before the wait for the files ends.
        uplink.close();
        // The agent may have ended.
        let _ = inputs.send(AgentInput::FilesBlocked);
    }
}

/// Returns what forwarding has cost this process.
fn cost(backend: String) -> ToFrontEnd {
    let (user, system) = cpu_time().unwrap_or_default();
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    ToFrontEnd::Cost { user: micros(user), system: micros(system), backend: cut_text(&backend) }
}

/// Sends the exit of a rank. That of a failed rank follows its output.
fn send_exit(job: &Job, uplink: &Uplink, rank: RankExit) {
    if !rank.exit.success() {
        job.flush_rank(rank.rank, Some(FLUSH_LIMIT));
    }
    let RankExit { rank, exit, requested, used, .. } = rank;
    let status = match exit {
        Exit::Status(status) => Some(status.into_raw()),
        _ => None,
    };
    uplink.send(&ToFrontEnd::Exited { rank, status, requested, used });
}

fn totals(tool: &mut Tool) -> Result<Vec<RankTotal>, RequestError> {
    let found = tool.query(&[key::IOF_QUERY_STATS])?;
    let streams = found.into_iter().filter_map(|found| match found.value {
        Value::Streams(streams) => Some(streams),
        _ => None,
    });
    let total = |stream: StreamStats| RankTotal {
        rank: stream.source.rank,
        channel: stream.channel,
        produced: stream.produced,
    };
    Ok(streams.flatten().map(total).collect())
}
