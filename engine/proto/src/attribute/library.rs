//! The attributes of the C library alone.
//!
//! The header `iof.h` describes them in more detail. In Rust, functions and fields take their
//! place.

attributes! {
    /// The program calls `iof_Progress` itself, and the library has no thread for callbacks.
    ///
    /// iof_tool_init and iof_server_init (bool): the program calls iof_Progress itself, and the
    /// library has no thread for callbacks.
    PMIX_EXTERNAL_PROGRESS = "pmix.evext": Bool, at ToolInit ServerInit;
    /// Lets tools connect.
    ///
    /// iof_server_init (bool): whether tools can connect. True by default.
    PMIX_SERVER_TOOL_SUPPORT = "pmix.srvr.tool": Bool, at ServerInit;
    /// Accepted without effect: the engine is session-level by default.
    ///
    /// iof_server_init (bool): accepted without effect. The engine is session-level unless
    /// IOF_SERVER_SYSTEM_SUPPORT is true.
    PMIX_SERVER_SESSION_SUPPORT = "pmix.srvr.sess": Bool, at ServerInit;
    /// Makes the engine the system-level engine of the node.
    ///
    /// iof_server_init (bool): makes the engine the system-level engine of the node.
    PMIX_SERVER_SYSTEM_SUPPORT = "pmix.srvr.sys": Bool, at ServerInit;
    /// The directory with the sockets of session-level engines.
    ///
    /// iof_tool_init and iof_server_init (string): the directory with the sockets of session-level
    /// engines. If iof_tool_init is called with it, IOF_SERVER in the environment is ignored.
    /// docs/src/rendezvous.md describes the default directories.
    PMIX_SERVER_TMPDIR = "pmix.srvr.tmpdir": Text, at ToolInit ServerInit;
    /// The directory with the sockets of system-level engines.
    ///
    /// iof_tool_init and iof_server_init (string): the same as IOF_SERVER_TMPDIR, for system-level
    /// engines.
    PMIX_SYSTEM_TMPDIR = "pmix.sys.tmpdir": Text, at ToolInit ServerInit;
    /// Connects to the engine that listens on this socket path.
    ///
    /// iof_tool_init (string): connects to the engine that listens on this socket path
    /// (iof_server_uri). In a query of the library, and in IOF_SERVER_INFO_ARRAY: the path of an
    /// engine's socket.
    PMIX_SERVER_URI = "pmix.srvr.uri": Text, at ToolInit LibraryQuery Answer;
    /// Connects to the user's session-level engine in the process with this pid.
    ///
    /// iof_tool_init (pid): connects to the user's session-level engine in the process with this
    /// pid.
    PMIX_SERVER_PIDINFO = "pmix.srvr.pidinfo": Number from 0 to 4294967295, at ToolInit;
    /// Connects to the user's session-level engine that has a job of this name.
    ///
    /// iof_tool_init (string): connects to the user's session-level engine that has a job of this
    /// name.
    PMIX_SERVER_NSPACE = "pmix.srv.nspace": Text, at ToolInit;
    /// Connects only to the system-level engine of the node.
    ///
    /// iof_tool_init (bool): connects only to the system-level engine of the node.
    PMIX_CONNECT_TO_SYSTEM = "pmix.cnct.sys": Bool, at ToolInit;
    /// Tries the system-level engine of the node first.
    ///
    /// iof_tool_init (bool): tries the system-level engine of the node first, even if IOF_SERVER is
    /// set in the environment.
    PMIX_CONNECT_SYSTEM_FIRST = "pmix.cnct.sys.first": Bool, at ToolInit;
    /// The name of the tool.
    ///
    /// iof_tool_init (string): the name of the tool. By default it is "iof-tool-" and the pid.
    PMIX_TOOL_NSPACE = "pmix.tool.nspace": Text, at ToolInit;
    /// The rank of the tool.
    ///
    /// iof_tool_init (rank or proc): the rank of the tool, 0 by default.
    PMIX_TOOL_RANK = "pmix.tool.rank": Number or Process from 0 to 4294967295, at ToolInit;
    /// Does not connect to an engine.
    ///
    /// iof_tool_init (bool): does not connect to an engine. Functions that need an engine then
    /// return IOF_ERR_UNREACH.
    PMIX_TOOL_DO_NOT_CONNECT = "pmix.tool.nocon": Bool, at ToolInit;
    /// Succeeds without a connection if no engine can be reached.
    ///
    /// iof_tool_init (bool): succeeds without a connection if no engine can be reached. Functions
    /// that need an engine then return IOF_ERR_UNREACH.
    PMIX_TOOL_CONNECT_OPTIONAL = "pmix.tool.conopt": Bool, at ToolInit;
    /// Makes a rank wait for the server's own registrations when a cache is full.
    ///
    /// iof_server_init (bool): whether a rank waits when a cache is full and a registration of the
    /// server itself has not read it, so that this registration loses nothing. True by default,
    /// unless IOF_IOF_DROP_OLDEST or IOF_IOF_DROP_NEWEST is given. If false, new bytes are dropped.
    /// No rank waits for a tool: a tool that is too slow loses bytes (IOF_LOST). An extension of
    /// iof.
    IOF_DROP_NONE = "iof.drop.none": Bool, at ServerInit;
    /// The mechanism that reads the ranks' pipes, "io-uring" or "epoll".
    ///
    /// iof_server_init (string): the mechanism that reads the ranks' pipes, "io-uring" or "epoll".
    /// By default the engine uses io_uring where the kernel supports it. An extension of iof.
    IOF_BACKEND = "iof.backend": Text, at ServerInit;

    /// Keys of directives that the host supports, separated by commas.
    ///
    /// iof_server_init (string): keys of directives that the callbacks iof_pull and log support,
    /// separated by commas. The engine passes these directives to them, required or not. With
    /// IOF_LOG_SOURCE among them, messages may name a source that the engine does not know. An
    /// extension of iof.
    IOF_HOST_DIRECTIVES = "iof.host.directives": Text, at ServerInit;
    /// Keys of queries that the host answers together with the engine, separated by commas.
    ///
    /// iof_server_init (string): keys of queries that the callback query answers even if the engine
    /// knows an answer, separated by commas, such as IOF_QUERY_PROC_TABLE for processes on other
    /// nodes. The engine combines both answers. An extension of iof.
    IOF_HOST_QUERIES = "iof.host.queries": Text, at ServerInit;
    /// Keys of channels that the host logs to, separated by commas.
    ///
    /// iof_server_init (string): keys of channels that the callback log serves, separated by
    /// commas. IOF_QUERY_LOG_CHANNELS lists them, and IOF_LOG_ORDER may name them. An extension of
    /// iof.
    IOF_HOST_LOG_CHANNELS = "iof.host.log.channels": Text, at ServerInit;
    /// The socket of the gateway.
    ///
    /// iof_server_init (string): the socket of the site's gateway, to which the engine relays
    /// messages for the global syslog and for channels that it does not have. An extension of iof.
    IOF_GATEWAY = "iof.gateway": Text, at ServerInit;
    /// The channels for messages that name none, in order of preference.
    ///
    /// iof_server_init (string): the channels for messages that name none, in order of preference,
    /// in the form of PMIx's parameter plog_base_order, such as "local_syslog:req,stderr". An
    /// extension of iof.
    IOF_LOG_ORDER = "iof.log.order": Text, at ServerInit;

    /// The rank whose stdin is a pipe that tools can push to.
    ///
    /// iof_server_spawn and iof_Spawn (rank or proc): the rank whose stdin is a pipe that iof_IOF_push fills.
    /// IOF_RANK_WILDCARD means all ranks. May be repeated. The stdin of a rank that neither this
    /// key nor IOF_FWD_STDIN, IOF_STDIN_INHERIT or IOF_STDIN_FILE selects is /dev/null.
    PMIX_STDIN_TGT = "pmix.stdin": Number or Process from 0 to 4294967295, at ServerSpawn ToolSpawn Program;
    /// The one rank that inherits the launcher's own stdin.
    ///
    /// iof_server_spawn (rank or proc): the one rank that inherits the launcher's own stdin. An
    /// extension of iof.
    IOF_STDIN_INHERIT = "iof.stdin.inherit": Number or Process from 0 to 4294967295, at ServerSpawn Program;
    /// The file that each rank reads as its stdin.
    ///
    /// iof_server_spawn, for a program (string): each rank of the program reads this file as its
    /// stdin, from its beginning. An extension of iof.
    IOF_STDIN_FILE = "iof.stdin.file": Text, at Program;
    /// The rank has a pseudo-terminal.
    ///
    /// iof_server_spawn (rank or proc): the rank has a pseudo-terminal of 24 lines of 80 characters
    /// without echo as stdin, stdout and stderr, whose output arrives as stdout. IOF_RANK_WILDCARD
    /// means all ranks. May be repeated. iof_server_pty returns its other end. An extension of iof.
    IOF_PTY = "iof.pty": Number or Process from 0 to 4294967295, at ServerSpawn Program;
    /// The time for which streams may stay open after the exit of their rank, in milliseconds.
    ///
    /// iof_server_spawn and iof_Spawn (uint32): the time for which the streams of a rank that has ended may stay
    /// open, because a process that it has started holds them, in milliseconds. By default there is
    /// no limit. An extension of iof.
    IOF_GRACE = "iof.grace": Number from 0 to 4294967295, at ServerSpawn ToolSpawn;
    /// The time after which the job is ended, in seconds; 0 for no limit, the default.
    ///
    /// iof_server_spawn and iof_Spawn (int): the time after which the job is ended, with the exit code 124, in
    /// seconds. 0, the default, means without limit.
    PMIX_JOB_TIMEOUT = "pmix.job.time": Number from 0 to 2147483647, at ServerSpawn ToolSpawn PmixSpawn;
    /// A rank that fails in any way ends the job: by a signal, or by an exit code other than 0. By default,
    /// false.
    ///
    /// iof_server_spawn and iof_Spawn (bool): a rank that a signal kills, or whose exit code is not 0, ends the
    /// job. By default, the other ranks go on.
    PMIX_ABORT_NON_ZERO_TERM = "pmix.abnz": Bool, at ServerSpawn ToolSpawn PmixSpawn;
    /// The protocol by which the ranks start MPI: "auto", "pmi1", "pmix" or "none". By default
    /// "none".
    ///
    /// iof_server_spawn and iof_Spawn (string): the protocol by which the ranks start MPI: "pmi1" (MPICH, Intel
    /// MPI, MVAPICH), "pmix" (Open MPI 5, with a libpmix that the library opens), "auto" ("pmix"
    /// for programs linked with Open MPI 5, otherwise "pmi1"), or "none", the default. Unless it is
    /// "none", a rank that a signal kills, or that exits between MPI_Init and MPI_Finalize, ends
    /// the job. An extension of iof.
    IOF_MPI = "iof.mpi": Text, at ServerSpawn ToolSpawn;
    /// Tools of PMIx may attach to the job; the command `iof`, which serves each of them in a
    /// process of its own.
    ///
    /// iof_server_spawn (string): tools of PMIx may attach to the job by PMIx's own protocol, if it
    /// has PMIx (IOF_MPI) and tools can connect. The value is the command iof, of the version of
    /// this library: a path, or a name to look up in PATH. It is started for each of these tools,
    /// as a process of its own. That of the first job serves all jobs. An extension of iof.
    IOF_PMIX_TOOLS = "iof.pmix.tools": Text, at ServerSpawn;
    /// The job has further ranks on other nodes.
    ///
    /// iof_server_spawn and iof_server_adopt (bool): the job has further ranks on other nodes
    /// (iof_server_IOF_deliver, iof_server_end_job). An extension of iof.
    IOF_ELSEWHERE = "iof.elsewhere": Bool, at ServerSpawn ServerAdopt;
    /// The job continues when its parent ends. Accepted without effect for a tool, and for the job
    /// of a launcher, which does not end with a tool.
    ///
    /// iof_Spawn (bool): the job continues when its parent ends. iof_tool_init and iof_server_spawn
    /// (bool): accepted without effect.
    PMIX_NOHUP = "pmix.nohup": Bool, at ToolInit ServerSpawn ToolSpawn PmixSpawn Callback;
    /// The process whose job is the parent of the new one.
    ///
    /// iof_Spawn (proc): the process whose job is the parent of the new one. By default, the rank
    /// that this process is or descends from. If it is none, or its job is unknown, the tool is.
    PMIX_PARENT_ID = "pmix.parent": Process, at ToolSpawn PmixSpawn Callback;
    /// The working directory of programs that have none of their own.
    ///
    /// iof_Spawn (string): the working directory of programs whose cwd is NULL.
    PMIX_WDIR = "pmix.wdir": Text, at ToolSpawn PmixSpawn;
    /// Accepted without effect: the job of a launcher has no parent, whose registrations it could
    /// inherit.
    ///
    /// iof_server_spawn and iof_server_adopt (bool): accepted without effect. The job has no parent,
    /// whose registrations it could inherit.
    PMIX_IOF_INHERIT = "pmix.iof.inhrt": Bool, at ServerSpawn ServerAdopt;
    /// Begins each stream at this offset: the number of bytes that its source had written before.
    ///
    /// iof_IOF_pull (uint64): begins each stream at this offset, the number of bytes that its source
    /// had written before. Dropped bytes behind it are missing; a later offset is waited for. An
    /// extension of iof.
    IOF_FROM_OFFSET = "iof.pull.offset": Number, at LibraryPull;
    /// Begins each stream with the first read at or after this time, in nanoseconds since 1970.
    ///
    /// iof_IOF_pull (uint64): begins each stream with the first read at or after this time, in
    /// nanoseconds since 1970, by the clock of the rank's node; with an earlier one where several
    /// reads share a time. An extension of iof.
    IOF_FROM_TIME = "iof.pull.time": Number, at LibraryPull;
    /// Begins each stream this number of lines before the end of what is cached; 0 for nothing that
    /// is cached.
    ///
    /// iof_IOF_pull (uint64): begins each stream this number of lines before the end of what is
    /// cached. 0 skips all that is cached. An extension of iof.
    IOF_FROM_LINES = "iof.pull.lines": Number, at LibraryPull;
    /// Each delivery is one line.
    ///
    /// iof_IOF_pull (bool): each call of cbfunc has one line, with its newline. A line longer than 64 KiB comes
    /// in parts. A line without its newline comes before a gap and at the end of its stream. Without cbfunc it
    /// has no effect: the library writes whole lines in any case. An extension of iof.
    IOF_LINES = "iof.pull.whole": Bool, at LibraryPull;
    /// Ends the registration at this time, in nanoseconds since 1970.
    ///
    /// iof_IOF_pull (uint64): ends the registration at this time, in nanoseconds since 1970, as
    /// iof_IOF_deregister does. Bytes that are read from then on, by the clock of the rank's node,
    /// are not delivered. An extension of iof.
    IOF_UNTIL = "iof.pull.until": Number, at LibraryPull;

    /// The effective user id of the tool that connects.
    ///
    /// The callback tool_connected (uint32): the effective user id of the tool.
    PMIX_USERID = "pmix.euid": Number, at Callback;
    /// The effective group id of the tool that connects.
    ///
    /// The callback tool_connected (uint32): the effective group id of the tool.
    PMIX_GRPID = "pmix.egid": Number, at Callback;
    /// The pid of the tool that connects.
    ///
    /// The callback tool_connected (pid): the pid of the tool.
    PMIX_PROC_PID = "pmix.ppid": Number, at Callback;
    /// No tool pulls this output any more.
    ///
    /// The callback iof_pull (bool): no tool pulls this output any more.
    PMIX_IOF_STOP = "pmix.iof.stop": Bool, at Callback;

    /// The number of bytes that are missing before these.
    ///
    /// In a payload (uint64): the number of bytes that are missing before it. If the source has the
    /// wildcard rank: the number of bytes of whole streams that are missing (iof_iof_cbfunc_t). An
    /// extension of iof.
    IOF_LOST = "iof.lost": Number, at Output;
    /// The stream contains messages that were logged for the source.
    ///
    /// In a payload, or an answer to IOF_QUERY_STATS (bool): the stream contains messages that were
    /// logged for the source, beside its own output. An extension of iof.
    IOF_LOGGED = "iof.logged": Bool, at Output Answer;
    /// The engine ended before the stream was complete.
    ///
    /// In a payload, which is then empty (bool): the engine ended before the stream was complete.
    /// An extension of iof.
    IOF_GONE = "iof.gone": Bool, at Output;

    /// The programs of the job.
    ///
    /// In an answer to IOF_QUERY_NAMESPACE_INFO (string): the programs of the job, separated by " :
    /// ", for display.
    PMIX_CMD_LINE = "pmix.cmd.line": Text, at Answer;
    /// The engines of this node to which the user can connect.
    ///
    /// Query (array of infos): the engines of this node to which the user can connect. Each is an
    /// info IOF_SERVER_INFO_ARRAY. Answered by the library, also without a connection, by
    /// iof_Query_info.
    PMIX_QUERY_AVAIL_SERVERS = "pmix.qry.asrvrs": Any, at LibraryQuery;
    /// An engine of this node.
    ///
    /// In an answer to IOF_QUERY_AVAIL_SERVERS (array of infos): an engine, with IOF_SERVER_URI,
    /// IOF_SERVER_PIDINFO (0 for a system-level engine), and IOF_SERVER_NSPACE for each of its
    /// jobs.
    PMIX_SERVER_INFO_ARRAY = "pmix.srv.arr": Any, at Answer;
    /// The version of the stable ABI that the library claims: "0.0", none.
    ///
    /// Query (string): the version of the PMIx Standard's stable ABI that the library claims:
    /// "0.0", none. Answered by the library.
    PMIX_QUERY_STABLE_ABI_VERSION = "pmix.qry.stabiver": Text, at LibraryQuery;
    /// The version of the provisional ABI that the library claims: "0.0", none.
    ///
    /// Query (string): the same for the provisional ABI.
    PMIX_QUERY_PROVISIONAL_ABI_VERSION = "pmix.qry.prabiver": Text, at LibraryQuery;
    /// The channel of the stream.
    ///
    /// In an answer to IOF_QUERY_STATS (channel): the channel of the stream. An extension of iof.
    IOF_CHANNEL = "iof.channel": Channel, at Answer;
    /// The number of bytes that were read from the source.
    ///
    /// In an answer to IOF_QUERY_STATS (uint64): the number of bytes that were read from the
    /// source. An extension of iof.
    IOF_PRODUCED = "iof.produced": Number, at Answer;
    /// The number of bytes in the cache.
    ///
    /// In an answer to IOF_QUERY_STATS (uint64): the number of bytes in the cache. An extension of
    /// iof.
    IOF_CACHED = "iof.cached": Number, at Answer;
    /// The number of bytes that were dropped when they were read, because the cache was full.
    ///
    /// In an answer to IOF_QUERY_STATS (uint64): the number of bytes that were dropped when they
    /// were read, because the cache was full. An extension of iof.
    IOF_DROPPED = "iof.dropped": Number, at Answer;
    /// The number of earlier caches of the stream.
    ///
    /// In an answer to IOF_QUERY_STATS (uint64): the number of earlier caches of the stream. An
    /// extension of iof.
    IOF_GENERATION = "iof.generation": Number, at Answer;
    /// The number of readers of the stream.
    ///
    /// In an answer to IOF_QUERY_STATS (uint32): the number of readers of the stream. An extension
    /// of iof.
    IOF_READERS = "iof.readers": Number, at Answer;

    /// The exit code of the job.
    ///
    /// The event IOF_EVENT_JOB_END, or an answer to IOF_QUERY_NAMESPACE_INFO (int): the exit code
    /// of the process that failed first (128 + n if signal n ended it, 1 if its status is unknown),
    /// or 0 if none failed. An exit code that was passed to iof_server_end_job replaces it. Absent
    /// if unknown or if the job has not ended.
    PMIX_EXIT_CODE = "pmix.exit.code": Number, at Answer Event;
    /// The status that tells whether the job succeeded.
    ///
    /// The event IOF_EVENT_JOB_END (status): IOF_SUCCESS if the exit code is 0,
    /// IOF_ERR_JOB_ABORTED_BY_SIG if it is above 128, otherwise IOF_ERR_JOB_NON_ZERO_TERM.
    PMIX_JOB_TERM_STATUS = "pmix.job.term.status": Status, at Event;
    /// The job that ended, with the wildcard rank.
    ///
    /// The event IOF_EVENT_JOB_END (proc): the job that ended, with the wildcard rank.
    PMIX_EVENT_AFFECTED_PROC = "pmix.evproc": Process, at Event;
}
