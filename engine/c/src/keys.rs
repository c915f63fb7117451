//! The keys, with PMIx's texts. The comment of a key that PMIx lacks calls it an extension of iof.
//!
//! cbindgen does not export string constants. The header test therefore copies the keys from this
//! file: the documentation of each key, and its definition on one line.

/// iof_tool_init and iof_server_init (bool): the program calls iof_Progress itself, and the library
/// has no thread for callbacks.
pub const IOF_EXTERNAL_PROGRESS: &str = "pmix.evext";
/// iof_server_init (bool): whether tools can connect. They can by default.
pub const IOF_SERVER_TOOL_SUPPORT: &str = "pmix.srvr.tool";
/// iof_server_init (bool): accepted, without effect. The tools of the user's session can connect
/// unless IOF_SERVER_TOOL_SUPPORT is false.
pub const IOF_SERVER_SESSION_SUPPORT: &str = "pmix.srvr.sess";
/// iof_server_init (bool): makes the engine the node's system-level engine.
pub const IOF_SERVER_SYSTEM_SUPPORT: &str = "pmix.srvr.sys";
/// iof_tool_init and iof_server_init (string): the directory of the engines' sockets.
pub const IOF_SERVER_TMPDIR: &str = "pmix.srvr.tmpdir";
/// iof_tool_init and iof_server_init (string): the same, used if IOF_SERVER_TMPDIR is not given.
pub const IOF_SYSTEM_TMPDIR: &str = "pmix.sys.tmpdir";
/// iof_server_init (bool): makes the engine the site's gateway for log messages.
pub const IOF_SERVER_GATEWAY: &str = "pmix.srv.gway";
/// iof_tool_init (string): connects to the engine with this socket path.
pub const IOF_SERVER_URI: &str = "pmix.srvr.uri";
/// iof_tool_init (pid): connects to the engine of the user's session that has this pid.
pub const IOF_SERVER_PIDINFO: &str = "pmix.srvr.pidinfo";
/// iof_tool_init (string): connects to the engine of the user's session that has a job of this
/// name.
pub const IOF_SERVER_NSPACE: &str = "pmix.srv.nspace";
/// iof_tool_init (bool): connects to the node's system-level engine only.
pub const IOF_CONNECT_TO_SYSTEM: &str = "pmix.cnct.sys";
/// iof_tool_init (bool): tries the node's system-level engine before others.
pub const IOF_CONNECT_SYSTEM_FIRST: &str = "pmix.cnct.sys.first";
/// iof_tool_init (string): the name of the tool. By default it is "iof-tool-" and the pid.
pub const IOF_TOOL_NSPACE: &str = "pmix.tool.nspace";
/// iof_tool_init (uint32): the rank of the tool, 0 by default.
pub const IOF_TOOL_RANK: &str = "pmix.tool.rank";
/// iof_tool_init (bool): does not connect to an engine.
pub const IOF_TOOL_DO_NOT_CONNECT: &str = "pmix.tool.nocon";
/// iof_tool_init (bool): succeeds without a connection if no engine can be reached.
pub const IOF_TOOL_CONNECT_OPTIONAL: &str = "pmix.tool.conopt";
/// tool_connected (uint32): the effective user id of the tool.
pub const IOF_USERID: &str = "pmix.euid";
/// tool_connected (uint32): the effective group id of the tool.
pub const IOF_GRPID: &str = "pmix.egid";
/// tool_connected (pid): the pid of the tool.
pub const IOF_PROC_PID: &str = "pmix.ppid";
/// iof_server_spawn, or the qualifier of a query (string): the name of the job.
pub const IOF_NSPACE: &str = "pmix.nspace";
/// The qualifier of a query (rank): restricts the answer to this rank.
pub const IOF_RANK: &str = "pmix.rank";
/// The qualifier of a query (proc): restricts the answer to this process. In an answer to
/// IOF_QUERY_STATS: the source of the stream.
pub const IOF_PROCID: &str = "pmix.procid";
/// In an answer to IOF_QUERY_NAMESPACE_INFO (uint32): the number of processes of the job.
pub const IOF_JOB_SIZE: &str = "pmix.job.size";
/// In an answer to IOF_QUERY_NAMESPACE_INFO (string): the command line of the job.
pub const IOF_CMD_LINE: &str = "pmix.cmd.line";
/// IOF_EVENT_JOB_END, or an answer to IOF_QUERY_NAMESPACE_INFO (int): the exit code of the job.
pub const IOF_EXIT_CODE: &str = "pmix.exit.code";
/// IOF_EVENT_JOB_END (status): how the job ended.
pub const IOF_JOB_TERM_STATUS: &str = "pmix.job.term.status";
/// IOF_EVENT_JOB_END (proc): the job that ended, with the wildcard rank.
pub const IOF_EVENT_AFFECTED_PROC: &str = "pmix.evproc";
/// iof_server_spawn (rank or proc): the rank whose stdin can be pushed to. The stdin of all others
/// is /dev/null.
pub const IOF_STDIN_TGT: &str = "pmix.stdin";
/// iof_server_spawn (bool): bytes can be pushed to the stdin of rank 0.
pub const IOF_FWD_STDIN: &str = "pmix.fwd.stdin";
/// iof_server_spawn (bool): whether stdout is forwarded.
pub const IOF_FWD_STDOUT: &str = "pmix.fwd.stdout";
/// iof_server_spawn (bool): whether stderr is forwarded.
pub const IOF_FWD_STDERR: &str = "pmix.fwd.stderr";
/// iof_server_spawn (bool): whether stddiag is forwarded.
pub const IOF_FWD_STDDIAG: &str = "pmix.fwd.stddiag";
/// iof_server_init, iof_server_spawn and iof_IOF_pull (uint32): the bytes of cache for each stream.
/// iof_IOF_push: the bytes of memory that the push may fill in advance.
pub const IOF_IOF_CACHE_SIZE: &str = "pmix.iof.csize";
/// iof_server_init, iof_server_spawn and iof_IOF_pull (bool): drops the oldest bytes when the cache
/// is full.
pub const IOF_IOF_DROP_OLDEST: &str = "pmix.iof.old";
/// iof_server_init, iof_server_spawn and iof_IOF_pull (bool): drops new bytes when the cache is
/// full. iof_IOF_push: cuts off a target that reads nothing for a second.
pub const IOF_IOF_DROP_NEWEST: &str = "pmix.iof.new";
/// iof_server_init, iof_server_spawn and iof_IOF_pull (uint32): the bytes to collect before they
/// are delivered together.
pub const IOF_IOF_BUFFERING_SIZE: &str = "pmix.iof.bsize";
/// iof_server_init, iof_server_spawn and iof_IOF_pull (uint32): the longest time for which bytes
/// are collected, in seconds.
pub const IOF_IOF_BUFFERING_TIME: &str = "pmix.iof.btime";
/// iof_IOF_push and iof_server_IOF_deliver (bool): these bytes are the last of the stream. In a
/// payload: the stream is complete.
pub const IOF_IOF_COMPLETE: &str = "pmix.iof.cmp";
/// iof_IOF_push (bool): the library reads the program's own stdin and pushes it.
pub const IOF_IOF_PUSH_STDIN: &str = "pmix.iof.stdin";
/// The launcher's iof_pull (bool): no tool wants this output any more.
pub const IOF_IOF_STOP: &str = "pmix.iof.stop";
/// Query (string): the names of all jobs, separated by commas.
pub const IOF_QUERY_NAMESPACES: &str = "pmix.qry.ns";
/// Query (array of infos): all jobs, each with its name, size, status and command line.
pub const IOF_QUERY_NAMESPACE_INFO: &str = "pmix.qry.nsinfo";
/// Query (status): the status of a job.
pub const IOF_QUERY_JOB_STATUS: &str = "pmix.qry.jst";
/// Query (string): the scheduler's queues. Answered by the launcher.
pub const IOF_QUERY_QUEUE_LIST: &str = "pmix.qry.qlst";
/// Query: the status of a scheduler's queue. Answered by the launcher.
pub const IOF_QUERY_QUEUE_STATUS: &str = "pmix.qry.qst";
/// Query (array of proc_info): the processes of jobs.
pub const IOF_QUERY_PROC_TABLE: &str = "pmix.qry.ptable";
/// Query (array of proc_info): the processes of jobs on this node.
pub const IOF_QUERY_LOCAL_PROC_TABLE: &str = "pmix.qry.lptable";
/// Query (array of infos, each with an array of regattr): the attributes that each function
/// supports.
pub const IOF_QUERY_ATTRIBUTE_SUPPORT: &str = "pmix.qry.attrs";
/// Query (string): the channels that messages can be logged to, separated by commas (RFC0032).
pub const IOF_QUERY_LOG_CHANNELS: &str = "pmix.qry.lchans";
/// Query (array of infos): all streams with their byte counts. An extension of iof.
pub const IOF_QUERY_STATS: &str = "iof.qry.stats";
/// Directive of a log request (proc): the process from which the message comes.
pub const IOF_LOG_SOURCE: &str = "pmix.log.source";
/// Data of a log request (string): the message, for the stderr of its source.
pub const IOF_LOG_STDERR: &str = "pmix.log.stderr";
/// Data of a log request (string): the message, for the stdout of its source.
pub const IOF_LOG_STDOUT: &str = "pmix.log.stdout";
/// Data of a log request (string): the message, for the global syslog if there is one, otherwise
/// for the local one.
pub const IOF_LOG_SYSLOG: &str = "pmix.log.syslog";
/// Data of a log request (string): the message, for the syslog of the engine's node.
pub const IOF_LOG_LOCAL_SYSLOG: &str = "pmix.log.lsys";
/// Data of a log request (string): the message, for the syslog of the gateway's node.
pub const IOF_LOG_GLOBAL_SYSLOG: &str = "pmix.log.gsys";
/// Directive of a log request (int): the syslog priority, 0 (emergency) to 7 (debug).
pub const IOF_LOG_SYSLOG_PRI: &str = "pmix.log.syspri";
/// Directive of a log request (time): the time of the event.
pub const IOF_LOG_TIMESTAMP: &str = "pmix.log.tstmp";
/// Directive of a log request (bool): adds the time at which the request arrived.
pub const IOF_LOG_GENERATE_TIMESTAMP: &str = "pmix.log.gtstmp";
/// Directive of a log request (bool): tags the message with its process and channel.
pub const IOF_LOG_TAG_OUTPUT: &str = "pmix.log.tag";
/// Directive of a log request (bool): adds the time to the message.
pub const IOF_LOG_TIMESTAMP_OUTPUT: &str = "pmix.log.tsout";
/// Directive of a log request (bool): writes the message as XML.
pub const IOF_LOG_XML_OUTPUT: &str = "pmix.log.xml";
/// Directive of a log request (bool): stops at the first channel that accepts the message.
pub const IOF_LOG_ONCE: &str = "pmix.log.once";
/// Data of a log request (byte object or string): the message, for every channel.
pub const IOF_LOG_MSG: &str = "pmix.log.msg";
/// Data of a log request (array of infos): an email.
pub const IOF_LOG_EMAIL: &str = "pmix.log.email";
/// In an email (string): the recipients, separated by commas.
pub const IOF_LOG_EMAIL_ADDR: &str = "pmix.log.emaddr";
/// In an email (string): the sender's address.
pub const IOF_LOG_EMAIL_SENDER_ADDR: &str = "pmix.log.emfaddr";
/// In an email (string): the subject.
pub const IOF_LOG_EMAIL_SUBJECT: &str = "pmix.log.emsub";
/// In an email (string): the message.
pub const IOF_LOG_EMAIL_MSG: &str = "pmix.log.emmsg";
/// In an email (string): the name or address of the mail server.
pub const IOF_LOG_EMAIL_SERVER: &str = "pmix.log.esrvr";
/// In an email (int32): the port of the mail server.
pub const IOF_LOG_EMAIL_SRVR_PORT: &str = "pmix.log.esrvrprt";
/// Data of a log request (string): the message, for the global data store. Served by the launcher.
pub const IOF_LOG_GLOBAL_DATASTORE: &str = "pmix.log.gstore";
/// Data of a log request (string): the message, for the record of the job.
pub const IOF_LOG_JOB_RECORD: &str = "pmix.log.jrec";
/// In a payload (uint64): the position of its first byte in the stream. An extension of iof.
pub const IOF_OFFSET: &str = "iof.offset";
/// In a payload, and for iof_server_IOF_deliver (uint64): the time at which the bytes were read
/// from their source, in nanoseconds since 1970. An extension of iof.
pub const IOF_READ_TIME: &str = "iof.time";
/// In a payload (uint64): the number of bytes that are missing before it. If the source has the
/// wildcard rank and the payload is empty: the number of bytes of streams that are never delivered,
/// because this tool read too little for too long. An extension of iof.
pub const IOF_LOST: &str = "iof.lost";
/// In a payload (bool): the bytes were logged on behalf of the source. An extension of iof.
pub const IOF_LOGGED: &str = "iof.logged";
/// In a payload (bool): the engine ended before the stream was complete. An extension of iof.
pub const IOF_GONE: &str = "iof.gone";
/// The same as IOF_IOF_BUFFERING_TIME, in microseconds (uint64). Takes precedence over the time in
/// seconds. An extension of iof.
pub const IOF_BUFFERING_TIME_US: &str = "iof.btime.us";
/// iof_IOF_push (bool): leaves targets whose stdin cannot be pushed to out of the push, instead of
/// failing it. An extension of iof.
pub const IOF_PARTIAL: &str = "iof.push.partial";
/// iof_IOF_pull (bool): skips bytes that were cached before the registration. An extension of iof.
pub const IOF_NO_BACKLOG: &str = "iof.pull.now";
/// iof_server_init (bool): whether ranks wait for the launcher's own registrations when a cache is
/// full, so that no bytes are lost. They do by default. If false, a full cache drops new bytes. An
/// extension of iof.
pub const IOF_DROP_NONE: &str = "iof.drop.none";
/// iof_server_spawn (rank or proc): the rank that inherits the launcher's own stdin. An extension
/// of iof.
pub const IOF_STDIN_INHERIT: &str = "iof.stdin.inherit";
/// iof_server_spawn and iof_server_adopt (bool): the job has further ranks on other nodes. An
/// extension of iof.
pub const IOF_ELSEWHERE: &str = "iof.elsewhere";
/// iof_server_init (string): the mechanism that reads the ranks' pipes, "io-uring" or "epoll". By
/// default the engine uses io_uring where the kernel supports it. An extension of iof.
pub const IOF_BACKEND: &str = "iof.backend";
