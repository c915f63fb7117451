//! The limits that the core enforces. `iof_proto::limits` describes what reaching each one causes.

use iof_proto::limits::{
    MAX_DEFERRED_BYTES, MAX_FORGOTTEN, MAX_FORGOTTEN_PER_TOOL, MAX_LOG_BYTES, MAX_LOGS, MAX_LOGS_PER_PROCESS,
    MAX_OWED_BYTES_PER_USER, MAX_PROCS_PER_PROCESS, MAX_PROCS_PER_TOOL, MAX_PROCS_PER_USER, MAX_PUSH_BYTES,
    MAX_PUSH_BYTES_PER_PROCESS, MAX_PUSHES, MAX_PUSHES_PER_PROCESS, MAX_PUSHES_PER_TARGET,
    MAX_PUSHES_PER_TOOL, MAX_READERS_PER_TOOL, MAX_REGISTRATIONS_PER_TOOL, MAX_WAITING_PER_TOOL,
};

/// The number of unsent answers from which on the engine defers a tool's requests. Unsolicited
/// messages do not count: their number is bounded by the tool's registrations.
const MAX_ANSWERS_WAITING: usize = 64;
/// The same limit for the answers' size, in bytes.
const MAX_BYTES_WAITING: usize = 256 * 1024;

/// The limits of an engine. By default they are the constants of `iof_proto::limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `MAX_REGISTRATIONS_PER_TOOL`.
    pub registrations_per_tool: usize,
    /// `MAX_PROCS_PER_TOOL`.
    pub procs_per_tool: usize,
    /// `MAX_PROCS_PER_PROCESS`.
    pub procs_per_process: usize,
    /// `MAX_PROCS_PER_USER`.
    pub procs_per_user: usize,
    /// `MAX_READERS_PER_TOOL`.
    pub readers_per_tool: usize,
    /// `MAX_FORGOTTEN_PER_TOOL`.
    pub forgotten_per_tool: usize,
    /// `MAX_FORGOTTEN`.
    pub forgotten: usize,
    /// `MAX_WAITING_PER_TOOL`.
    pub waiting_per_tool: usize,
    /// `MAX_LOGS`.
    pub logs: usize,
    /// `MAX_LOGS_PER_PROCESS`.
    pub logs_per_process: usize,
    /// `MAX_LOG_BYTES`.
    pub log_bytes: usize,
    /// `MAX_PUSHES_PER_TOOL`.
    pub pushes_per_tool: usize,
    /// `MAX_PUSHES_PER_TARGET`.
    pub pushes_per_target: usize,
    /// `MAX_PUSHES`.
    pub pushes: usize,
    /// `MAX_PUSHES_PER_PROCESS`.
    pub pushes_per_process: usize,
    /// `MAX_PUSH_BYTES`.
    pub push_bytes: u64,
    /// `MAX_PUSH_BYTES_PER_PROCESS`.
    pub push_bytes_per_process: u64,
    /// `MAX_OWED_BYTES_PER_USER`.
    pub owed_bytes_per_user: usize,
    /// `MAX_ANSWERS_WAITING`.
    pub answers_waiting: usize,
    /// `MAX_BYTES_WAITING`.
    pub bytes_waiting: usize,
    /// `MAX_DEFERRED_BYTES`.
    pub deferred_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            registrations_per_tool: MAX_REGISTRATIONS_PER_TOOL,
            procs_per_tool: MAX_PROCS_PER_TOOL,
            procs_per_process: MAX_PROCS_PER_PROCESS,
            procs_per_user: MAX_PROCS_PER_USER,
            readers_per_tool: MAX_READERS_PER_TOOL,
            forgotten_per_tool: MAX_FORGOTTEN_PER_TOOL,
            forgotten: MAX_FORGOTTEN,
            waiting_per_tool: MAX_WAITING_PER_TOOL,
            logs: MAX_LOGS,
            logs_per_process: MAX_LOGS_PER_PROCESS,
            log_bytes: MAX_LOG_BYTES,
            pushes_per_tool: MAX_PUSHES_PER_TOOL,
            pushes_per_target: MAX_PUSHES_PER_TARGET,
            pushes: MAX_PUSHES,
            pushes_per_process: MAX_PUSHES_PER_PROCESS,
            push_bytes: MAX_PUSH_BYTES,
            push_bytes_per_process: MAX_PUSH_BYTES_PER_PROCESS,
            owed_bytes_per_user: MAX_OWED_BYTES_PER_USER,
            answers_waiting: MAX_ANSWERS_WAITING,
            bytes_waiting: MAX_BYTES_WAITING,
            deferred_bytes: MAX_DEFERRED_BYTES,
        }
    }
}
