//! Limits on what PMIx tools cost, and on waits for libpmix.

use std::time::Duration;

/// The largest number of tools that are attached at a time. Further ones are disconnected.
pub const MAX_PMIX_TOOLS: usize = 32;

/// The largest number of bytes of output that libpmix has queued for a tool, except the last
/// message, beside those in the tool's socket. No more output is delivered until the tool reads;
/// what the cache drops meanwhile is reported as a loss.
pub const MAX_PMIX_TOOL_QUEUE: usize = 256 << 10;

/// The largest number of messages of output that are in this queue.
pub const MAX_PMIX_TOOL_MESSAGES: usize = 64;

/// The largest number of a tool's requests that wait for answers. No more are received until then,
/// except those that libpmix has received already.
pub const MAX_PMIX_TOOL_REQUESTS: usize = 64;

/// The largest number of ranks of a job that the libpmix of a tool knows. The answers to `PMIx_Get`
/// of larger jobs are that nothing was found.
pub const MAX_PMIX_TOOL_RANKS: usize = 16_384;

/// The longest time for which a pull of a tool waits for the engine and its host. The pull is
/// refused then. Shorter than [`MAX_CALL_WAIT`], because libpmix does nothing else meanwhile.
pub const MAX_PMIX_PULL_WAIT: Duration = Duration::from_secs(5);

/// The largest size of the data of the process that serves a tool, in bytes (RLIMIT_DATA). The
/// process, and the tool's connection, end at this limit.
pub const MAX_PMIX_TOOL_MEMORY: u64 = 512 << 20;

/// The time for which a tool may read nothing after the launcher has ended, before it is
/// disconnected.
pub const PMIX_TOOL_LINGER: Duration = Duration::from_secs(5);

/// The longest time from the start of the process that serves a tool until the tool has introduced
/// itself. Then the process ends, and the tool is disconnected.
pub const PMIX_TOOL_HANDSHAKE: Duration = Duration::from_secs(10);

/// The longest wait for a call of libpmix, besides [`MAX_CALL_WAIT_PER_RANK`].
pub const MAX_CALL_WAIT: Duration = Duration::from_secs(10);

/// The longest wait for a call of libpmix, for each rank that it concerns.
pub const MAX_CALL_WAIT_PER_RANK: Duration = Duration::from_millis(10);

/// The longest time for which libpmix waits until all ranks of a job have started, when one of them
/// calls `PMIx_Init`. It does nothing else meanwhile. The ranks do not know each other's pids then.
pub const MAX_START_WAIT: Duration = Duration::from_secs(5);

/// The longest wait for the end of the server.
pub const MAX_END_WAIT: Duration = Duration::from_secs(2);

/// The largest size of the arguments and the environment of a program that a rank or a tool spawns, in bytes.
pub const MAX_PMIX_SPAWN_BYTES: usize = 1 << 20;
