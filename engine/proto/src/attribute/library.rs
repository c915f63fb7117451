//! The attributes of the C library alone.
//!
//! The header `iof.h` describes them in more detail. In Rust, functions and fields take their
//! place.

attributes! {
    /// The program calls `iof_Progress` itself, and the library has no thread for callbacks.
    PMIX_EXTERNAL_PROGRESS = "pmix.evext": Bool, at ToolInit ServerInit;
    /// Whether tools can connect.
    PMIX_SERVER_TOOL_SUPPORT = "pmix.srvr.tool": Bool, at ServerInit;
    /// Accepted without effect: the engine is session-level by default.
    PMIX_SERVER_SESSION_SUPPORT = "pmix.srvr.sess": Bool, at ServerInit;
    /// Makes the engine the system-level engine of the node.
    PMIX_SERVER_SYSTEM_SUPPORT = "pmix.srvr.sys": Bool, at ServerInit;
    /// The directory with the sockets of session-level engines.
    PMIX_SERVER_TMPDIR = "pmix.srvr.tmpdir": Text, at ToolInit ServerInit;
    /// The directory with the sockets of system-level engines.
    PMIX_SYSTEM_TMPDIR = "pmix.sys.tmpdir": Text, at ToolInit ServerInit;
    /// Connects to the engine that listens on this socket path.
    PMIX_SERVER_URI = "pmix.srvr.uri": Text, at ToolInit LibraryQuery Answer;
    /// Connects to the user's session-level engine in the process with this pid.
    PMIX_SERVER_PIDINFO = "pmix.srvr.pidinfo": Number from 0 to 4294967295, at ToolInit;
    /// Connects to the user's session-level engine that has a job of this name.
    PMIX_SERVER_NSPACE = "pmix.srv.nspace": Text, at ToolInit;
    /// Connects only to the system-level engine of the node.
    PMIX_CONNECT_TO_SYSTEM = "pmix.cnct.sys": Bool, at ToolInit;
    /// Tries the system-level engine of the node first.
    PMIX_CONNECT_SYSTEM_FIRST = "pmix.cnct.sys.first": Bool, at ToolInit;
    /// The name of the tool.
    PMIX_TOOL_NSPACE = "pmix.tool.nspace": Text, at ToolInit;
    /// The rank of the tool.
    PMIX_TOOL_RANK = "pmix.tool.rank": Number or Process from 0 to 4294967295, at ToolInit;
    /// Does not connect to an engine.
    PMIX_TOOL_DO_NOT_CONNECT = "pmix.tool.nocon": Bool, at ToolInit;
    /// Succeeds without a connection if no engine can be reached.
    PMIX_TOOL_CONNECT_OPTIONAL = "pmix.tool.conopt": Bool, at ToolInit;
    /// Whether a rank waits for the server's own registrations when a cache is full.
    IOF_DROP_NONE = "iof.drop.none": Bool, at ServerInit;
    /// The mechanism that reads the ranks' pipes, "io-uring" or "epoll".
    IOF_BACKEND = "iof.backend": Text, at ServerInit;

    /// Keys of directives that the host supports, separated by commas.
    IOF_HOST_DIRECTIVES = "iof.host.directives": Text, at ServerInit;
    /// Keys of queries that the host answers together with the engine, separated by commas.
    IOF_HOST_QUERIES = "iof.host.queries": Text, at ServerInit;
    /// Keys of channels that the host logs to, separated by commas.
    IOF_HOST_LOG_CHANNELS = "iof.host.log.channels": Text, at ServerInit;
    /// The socket of the gateway.
    IOF_GATEWAY = "iof.gateway": Text, at ServerInit;
    /// The channels for messages that name none, in order of preference.
    IOF_LOG_ORDER = "iof.log.order": Text, at ServerInit;

    /// The rank whose stdin is a pipe that tools can push to.
    PMIX_STDIN_TGT = "pmix.stdin": Number or Process from 0 to 4294967295, at ServerSpawn Program;
    /// The one rank that inherits the launcher's own stdin.
    IOF_STDIN_INHERIT = "iof.stdin.inherit": Number or Process from 0 to 4294967295, at ServerSpawn Program;
    /// The file that each rank reads as its stdin.
    IOF_STDIN_FILE = "iof.stdin.file": Text, at Program;
    /// The rank has a pseudo-terminal.
    IOF_PTY = "iof.pty": Number or Process from 0 to 4294967295, at ServerSpawn Program;
    /// The time for which streams may stay open after the exit of their rank, in milliseconds.
    IOF_GRACE = "iof.grace": Number from 0 to 4294967295, at ServerSpawn;
    /// The protocol by which the ranks start MPI: "auto", "pmi1", "pmix" or "none". By default
    /// "none".
    IOF_MPI = "iof.mpi": Text, at ServerSpawn;
    /// Tools of PMIx may attach to the job; the command `iof`, which serves each of them in a
    /// process of its own.
    IOF_PMIX_TOOLS = "iof.pmix.tools": Text, at ServerSpawn;
    /// The job has further ranks on other nodes.
    IOF_ELSEWHERE = "iof.elsewhere": Bool, at ServerSpawn ServerAdopt;
    /// Accepted without effect: jobs continue when a tool ends, because tools do not start jobs.
    PMIX_NOHUP = "pmix.nohup": Bool, at ToolInit ServerSpawn;
    /// Accepted without effect: no job is the child of another one, from which it could inherit
    /// registrations.
    PMIX_IOF_INHERIT = "pmix.iof.inhrt": Bool, at ServerSpawn ServerAdopt;
    /// Skips bytes that were cached before the registration.
    IOF_NO_BACKLOG = "iof.pull.now": Bool, at LibraryPull;

    /// The effective user id of the tool that connects.
    PMIX_USERID = "pmix.euid": Number, at Callback;
    /// The effective group id of the tool that connects.
    PMIX_GRPID = "pmix.egid": Number, at Callback;
    /// The pid of the tool that connects.
    PMIX_PROC_PID = "pmix.ppid": Number, at Callback;
    /// No tool pulls this output any more.
    PMIX_IOF_STOP = "pmix.iof.stop": Bool, at Callback;

    /// The number of bytes that are missing before these.
    IOF_LOST = "iof.lost": Number, at Output;
    /// The stream contains messages that were logged for the source.
    IOF_LOGGED = "iof.logged": Bool, at Output Answer;
    /// The engine ended before the stream was complete.
    IOF_GONE = "iof.gone": Bool, at Output;

    /// The programs of the job.
    PMIX_CMD_LINE = "pmix.cmd.line": Text, at Answer;
    /// The engines of this node to which the user can connect.
    PMIX_QUERY_AVAIL_SERVERS = "pmix.qry.asrvrs": Any, at LibraryQuery;
    /// An engine of this node.
    PMIX_SERVER_INFO_ARRAY = "pmix.srv.arr": Any, at Answer;
    /// The version of the stable ABI that the library claims: "0.0", none.
    PMIX_QUERY_STABLE_ABI_VERSION = "pmix.qry.stabiver": Text, at LibraryQuery;
    /// The version of the provisional ABI that the library claims: "0.0", none.
    PMIX_QUERY_PROVISIONAL_ABI_VERSION = "pmix.qry.prabiver": Text, at LibraryQuery;
    /// The channel of the stream.
    IOF_CHANNEL = "iof.channel": Channel, at Answer;
    /// The number of bytes that were read from the source.
    IOF_PRODUCED = "iof.produced": Number, at Answer;
    /// The number of bytes in the cache.
    IOF_CACHED = "iof.cached": Number, at Answer;
    /// The number of bytes that were dropped when they were read, because the cache was full.
    IOF_DROPPED = "iof.dropped": Number, at Answer;
    /// The number of earlier caches of the stream.
    IOF_GENERATION = "iof.generation": Number, at Answer;
    /// The number of readers of the stream.
    IOF_READERS = "iof.readers": Number, at Answer;

    /// The exit code of the job.
    PMIX_EXIT_CODE = "pmix.exit.code": Number, at Answer Event;
    /// Whether the job succeeded.
    PMIX_JOB_TERM_STATUS = "pmix.job.term.status": Status, at Event;
    /// The job that ended, with the wildcard rank.
    PMIX_EVENT_AFFECTED_PROC = "pmix.evproc": Process, at Event;
}
