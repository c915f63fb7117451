//! The keys, with PMIx's texts. The comment of a key that PMIx lacks calls it an extension of iof.
//!
//! cbindgen does not export string constants. The header test therefore copies the keys from this
//! file: the documentation of each key, and its definition on one line.

/// iof_tool_init and iof_server_init (bool): the program calls iof_Progress itself, and the library
/// has no thread for callbacks.
pub const IOF_EXTERNAL_PROGRESS: &str = "pmix.evext";
/// iof_server_init (bool): whether tools can connect. True by default.
pub const IOF_SERVER_TOOL_SUPPORT: &str = "pmix.srvr.tool";
/// iof_server_init (bool): accepted without effect. The engine is session-level unless
/// IOF_SERVER_SYSTEM_SUPPORT is true.
pub const IOF_SERVER_SESSION_SUPPORT: &str = "pmix.srvr.sess";
/// iof_server_init (bool): makes the engine the system-level engine of the node.
pub const IOF_SERVER_SYSTEM_SUPPORT: &str = "pmix.srvr.sys";
/// iof_tool_init and iof_server_init (string): the directory with the sockets of session-level
/// engines. If iof_tool_init is called with it, IOF_SERVER in the environment is ignored.
/// docs/src/rendezvous.md describes the default directories.
pub const IOF_SERVER_TMPDIR: &str = "pmix.srvr.tmpdir";
/// iof_tool_init and iof_server_init (string): the same as IOF_SERVER_TMPDIR, for system-level
/// engines.
pub const IOF_SYSTEM_TMPDIR: &str = "pmix.sys.tmpdir";
/// iof_server_init (bool): makes the engine the gateway of the site, which logs messages for other
/// engines.
pub const IOF_SERVER_GATEWAY: &str = "pmix.srv.gway";
/// iof_tool_init (string): connects to the engine that listens on this socket path
/// (iof_server_uri). In a query of the library, and in IOF_SERVER_INFO_ARRAY: the path of an
/// engine's socket.
pub const IOF_SERVER_URI: &str = "pmix.srvr.uri";
/// iof_tool_init (pid): connects to the user's session-level engine in the process with this pid.
pub const IOF_SERVER_PIDINFO: &str = "pmix.srvr.pidinfo";
/// iof_tool_init (string): connects to the user's session-level engine that has a job of this name.
pub const IOF_SERVER_NSPACE: &str = "pmix.srv.nspace";
/// iof_tool_init (bool): connects only to the system-level engine of the node.
pub const IOF_CONNECT_TO_SYSTEM: &str = "pmix.cnct.sys";
/// iof_tool_init (bool): tries the system-level engine of the node first, even if IOF_SERVER is set
/// in the environment.
pub const IOF_CONNECT_SYSTEM_FIRST: &str = "pmix.cnct.sys.first";
/// iof_tool_init (string): the name of the tool. By default it is "iof-tool-" and the pid.
pub const IOF_TOOL_NSPACE: &str = "pmix.tool.nspace";
/// iof_tool_init (rank or proc): the rank of the tool, 0 by default.
pub const IOF_TOOL_RANK: &str = "pmix.tool.rank";
/// iof_tool_init (bool): does not connect to an engine. Functions that need an engine then return
/// IOF_ERR_UNREACH.
pub const IOF_TOOL_DO_NOT_CONNECT: &str = "pmix.tool.nocon";
/// iof_tool_init (bool): succeeds without a connection if no engine can be reached. Functions that
/// need an engine then return IOF_ERR_UNREACH.
pub const IOF_TOOL_CONNECT_OPTIONAL: &str = "pmix.tool.conopt";
/// The callback tool_connected (uint32): the effective user id of the tool.
pub const IOF_USERID: &str = "pmix.euid";
/// The callback tool_connected (uint32): the effective group id of the tool.
pub const IOF_GRPID: &str = "pmix.egid";
/// The callback tool_connected (pid): the pid of the tool.
pub const IOF_PROC_PID: &str = "pmix.ppid";
/// iof_server_spawn, a qualifier of a query, or an answer to IOF_QUERY_NAMESPACE_INFO (string): the
/// name of the job.
pub const IOF_NSPACE: &str = "pmix.nspace";
/// Qualifier of a query (rank): restricts the answer to this rank. May be repeated.
pub const IOF_RANK: &str = "pmix.rank";
/// Qualifier of a query (proc): restricts the answer to this process. Cannot be combined with
/// IOF_NSPACE or IOF_RANK. In an answer to IOF_QUERY_STATS: the source of the stream.
pub const IOF_PROCID: &str = "pmix.procid";
/// Query, or in an answer to IOF_QUERY_NAMESPACE_INFO (uint32): the number of processes of the job
/// that the engine knows. A query concerns the job that the qualifier IOF_NSPACE names, or the only
/// job.
pub const IOF_JOB_SIZE: &str = "pmix.job.size";
/// In an answer to IOF_QUERY_NAMESPACE_INFO (string): the programs of the job, separated by " : ",
/// for display.
pub const IOF_CMD_LINE: &str = "pmix.cmd.line";
/// The event IOF_EVENT_JOB_END, or an answer to IOF_QUERY_NAMESPACE_INFO (int): the exit code of
/// the process that failed first (128 + n if signal n ended it, 1 if its status is unknown), or 0
/// if none failed. An exit code that was passed to iof_server_end_job replaces it. Absent if
/// unknown or if the job has not ended.
pub const IOF_EXIT_CODE: &str = "pmix.exit.code";
/// The event IOF_EVENT_JOB_END (status): IOF_SUCCESS if the exit code is 0,
/// IOF_ERR_JOB_ABORTED_BY_SIG if it is above 128, otherwise IOF_ERR_JOB_NON_ZERO_TERM.
pub const IOF_JOB_TERM_STATUS: &str = "pmix.job.term.status";
/// The event IOF_EVENT_JOB_END (proc): the job that ended, with the wildcard rank.
pub const IOF_EVENT_AFFECTED_PROC: &str = "pmix.evproc";
/// iof_server_spawn (rank or proc): the rank whose stdin is a pipe that iof_IOF_push fills.
/// IOF_RANK_WILDCARD means all ranks. May be repeated. The stdin of a rank that neither this key
/// nor IOF_FWD_STDIN, IOF_STDIN_INHERIT or IOF_STDIN_FILE selects is /dev/null.
pub const IOF_STDIN_TGT: &str = "pmix.stdin";
/// iof_server_spawn (bool): the stdin of rank 0 is a pipe that iof_IOF_push fills, unless
/// IOF_STDIN_TGT or IOF_STDIN_INHERIT selects rank 0. For a program: the same for its first rank.
pub const IOF_FWD_STDIN: &str = "pmix.fwd.stdin";
/// iof_server_spawn and iof_server_adopt (bool): whether the server's own registrations receive
/// stdout. Tools can pull it in any case. If none of IOF_FWD_STDOUT, IOF_FWD_STDERR and
/// IOF_FWD_STDDIAG is given, the server's registrations receive all three channels, otherwise only
/// those that are true. If it is true and no registration reads the channel yet, a rank waits when
/// the cache is full, unless IOF_DROP_NONE is false.
pub const IOF_FWD_STDOUT: &str = "pmix.fwd.stdout";
/// iof_server_spawn and iof_server_adopt (bool): the same as IOF_FWD_STDOUT, for stderr.
pub const IOF_FWD_STDERR: &str = "pmix.fwd.stderr";
/// iof_server_spawn and iof_server_adopt (bool): the same as IOF_FWD_STDOUT, for stddiag.
pub const IOF_FWD_STDDIAG: &str = "pmix.fwd.stddiag";
/// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (uint32): the size of the
/// cache of each stream, in bytes. 1 MiB by default, at least 16 KiB, in iof_IOF_pull at most 16
/// MiB. iof_IOF_push: the size of the shared memory through which the bytes are pushed.
pub const IOF_IOF_CACHE_SIZE: &str = "pmix.iof.csize";
/// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (bool): overwrites the
/// oldest bytes when the cache is full.
pub const IOF_IOF_DROP_OLDEST: &str = "pmix.iof.old";
/// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (bool): drops new bytes
/// when the cache is full. iof_IOF_push: closes the stdin of a target that reads nothing for a
/// second, instead of waiting for it.
pub const IOF_IOF_DROP_NEWEST: &str = "pmix.iof.new";
/// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (uint32): the number of
/// bytes to collect before they are delivered together. With 0, the default, only
/// IOF_IOF_BUFFERING_TIME limits the number.
pub const IOF_IOF_BUFFERING_SIZE: &str = "pmix.iof.bsize";
/// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (uint32): the longest time
/// for which bytes are collected, in seconds. 0 delivers bytes as they arrive. By default there is
/// no limit if IOF_IOF_BUFFERING_SIZE is above 0; otherwise bytes are delivered as they arrive.
pub const IOF_IOF_BUFFERING_TIME: &str = "pmix.iof.btime";
/// iof_IOF_push (bool): closes the stdin of the targets after these bytes. iof_server_IOF_deliver:
/// ends the stream after these bytes. In a payload, which is then empty: the stream is complete.
pub const IOF_IOF_COMPLETE: &str = "pmix.iof.cmp";
/// iof_IOF_push (bool or proc): the library reads the program's own stdin and pushes it. A process
/// counts as true, and is the target if the function is given none.
pub const IOF_IOF_PUSH_STDIN: &str = "pmix.iof.stdin";
/// iof_server_spawn and iof_server_adopt (uint16): the channels to forward, as a bit mask. This
/// older form sets IOF_FWD_STDIN, IOF_FWD_STDOUT, IOF_FWD_STDERR and IOF_FWD_STDDIAG together.
pub const IOF_IOF_SRV_REQ: &str = "pmix.iof.req";
/// Output that the library writes (bool): tags each line with the part of the job's name after "@",
/// or all of it, and the rank, such as "[1,0]<stdout>: ".
pub const IOF_IOF_TAG_OUTPUT: &str = "pmix.iof.tag";
/// Output that the library writes (bool): tags each line like IOF_IOF_TAG_OUTPUT, and with the host
/// and the pid of the process, such as "[1,0][node1:4711]<stdout>: ".
pub const IOF_IOF_TAG_DETAILED_OUTPUT: &str = "pmix.iof.tagdet";
/// Output that the library writes (bool): tags each line with the whole name of the job and the
/// rank, such as "[launcher@1,0]<stdout>: ".
pub const IOF_IOF_TAG_FULLNAME_OUTPUT: &str = "pmix.iof.tagfull";
/// Output that the library writes (bool): tags each line with the rank, such as "[0]<stdout>: ". If
/// several tags are requested, IOF_IOF_TAG_OUTPUT applies, otherwise the most detailed one.
pub const IOF_IOF_RANK_OUTPUT: &str = "pmix.iof.rank";
/// Output that the library writes (bool): shows the time at which each line was read from its
/// process, in the form of ctime(3) in brackets before the tag.
pub const IOF_IOF_TIMESTAMP_OUTPUT: &str = "pmix.iof.ts";
/// Output that the library writes (bool): writes each line as an XML element, such as
/// "<stdout rank="0">text&#010;</stdout>". Tags and times are its attributes.
pub const IOF_IOF_XML_OUTPUT: &str = "pmix.iof.xml";
/// Output that the library writes (bool): stderr and stddiag go to stdout. For a program of
/// iof_server_spawn (bool): stdout and stderr of a rank are one pipe, whose bytes arrive as stdout
/// in the order in which they were written.
pub const IOF_IOF_MERGE_STDERR_STDOUT: &str = "pmix.iof.mrg";
/// Output that the library writes (bool): parts of lines are written at once. Otherwise a part
/// waits for the end of its line for 100 ms, or until it has 64 KiB.
pub const IOF_IOF_OUTPUT_RAW: &str = "pmix.iof.raw";
/// Output that the library writes (string): goes to the files NAME.JOB.RANK.out and
/// NAME.JOB.RANK.err, where NAME is this text, and RANK has as many digits as the number of ranks.
/// stddiag goes to the file of stderr. Existing files are emptied. A relative name is below the
/// working directory at the call. Channels that IOF_FWD_STDOUT and the like of a job leave out have
/// empty files.
pub const IOF_IOF_OUTPUT_TO_FILE: &str = "pmix.iof.file";
/// Output that the library writes (string): goes to the files DIRECTORY/JOB/rank.RANK/stdout and
/// DIRECTORY/JOB/rank.RANK/stderr, where DIRECTORY is this text. Cannot be combined with
/// IOF_IOF_OUTPUT_TO_FILE.
pub const IOF_IOF_OUTPUT_TO_DIRECTORY: &str = "pmix.iof.dir";
/// Output that the library writes (bool): the text of IOF_IOF_OUTPUT_TO_FILE is a pattern, in which
/// %n is the job, %r the rank with leading zeros, %R the rank, %h the host and %% a percent sign.
/// Nothing is added to a name with placeholders.
pub const IOF_IOF_FILE_PATTERN: &str = "pmix.iof.fpt";
/// Output that the library writes (bool): if false, output that goes to files goes to stdout and
/// stderr as well. True by default.
pub const IOF_IOF_FILE_ONLY: &str = "pmix.iof.fonly";
/// Output that the library writes (bool): whether it goes to the program's own stdout and stderr.
/// For iof_tool_init and iof_IOF_pull it is true by default. For iof_server_init, iof_server_spawn
/// and iof_server_adopt it is false by default, and if it is true, the library writes the output of
/// the jobs although the program has not called iof_IOF_pull.
pub const IOF_IOF_LOCAL_OUTPUT: &str = "pmix.iof.local";
/// Output that the library writes (bool): the older name of IOF_IOF_TAG_OUTPUT.
pub const IOF_TAG_OUTPUT: &str = "pmix.tagout";
/// Output that the library writes (bool): the older name of IOF_IOF_TIMESTAMP_OUTPUT.
pub const IOF_TIMESTAMP_OUTPUT: &str = "pmix.tsout";
/// Output that the library writes (bool): the older name of IOF_IOF_MERGE_STDERR_STDOUT.
pub const IOF_MERGE_STDERR_STDOUT: &str = "pmix.mergeerrout";
/// Output that the library writes (string): the older name of IOF_IOF_OUTPUT_TO_FILE.
pub const IOF_OUTPUT_TO_FILE: &str = "pmix.outfile";
/// Output that the library writes (string): the older name of IOF_IOF_OUTPUT_TO_DIRECTORY.
pub const IOF_OUTPUT_TO_DIRECTORY: &str = "pmix.outdir";
/// Output that the library writes (bool): the older name of IOF_IOF_FILE_ONLY.
pub const IOF_OUTPUT_NOCOPY: &str = "pmix.nocopy";
/// iof_IOF_pull (bool): accepted without effect. The registration receives a copy of the output in
/// any case.
pub const IOF_IOF_COPY: &str = "pmix.iof.cpy";
/// iof_IOF_pull (bool): the registration receives the output in place of the launcher's own
/// readers. True is refused with IOF_ERR_NOT_SUPPORTED if it is required, and otherwise ignored.
pub const IOF_IOF_REDIRECT: &str = "pmix.iof.redir";
/// iof_server_spawn and iof_server_adopt (bool): accepted without effect. No job is the child of
/// another one, whose registrations it could inherit.
pub const IOF_IOF_INHERIT: &str = "pmix.iof.inhrt";
/// iof_tool_init and iof_server_spawn (bool): accepted without effect. Jobs continue when a tool
/// ends.
pub const IOF_NOHUP: &str = "pmix.nohup";
/// The callback iof_pull (bool): no tool pulls this output any more.
pub const IOF_IOF_STOP: &str = "pmix.iof.stop";
/// Query (string): the names of the running jobs, separated by commas.
pub const IOF_QUERY_NAMESPACES: &str = "pmix.qry.ns";
/// Query (array of infos): the jobs that the qualifiers name, or all. Each is an info whose value
/// is an array of infos: IOF_NSPACE, IOF_JOB_SIZE, IOF_QUERY_JOB_STATUS, IOF_CMD_LINE and, if
/// known, IOF_EXIT_CODE.
pub const IOF_QUERY_NAMESPACE_INFO: &str = "pmix.qry.nsinfo";
/// Query (status): the status of the job that the qualifier IOF_NSPACE names, or of the only job.
/// It is IOF_EVENT_JOB_START while the job runs, and then IOF_EVENT_JOB_END,
/// IOF_ERR_JOB_NON_ZERO_TERM or IOF_ERR_JOB_ABORTED_BY_SIG. If the qualifier names several jobs,
/// the answer is an array of infos, each with the name of a job as its key and the status as its
/// value.
pub const IOF_QUERY_JOB_STATUS: &str = "pmix.qry.jst";
/// Query (string): the scheduler's queues, separated by commas. Answered by the launcher.
pub const IOF_QUERY_QUEUE_LIST: &str = "pmix.qry.qlst";
/// Query: the status of the queue that the qualifier "pmix.alloc.queue" names. Answered by the
/// launcher.
pub const IOF_QUERY_QUEUE_STATUS: &str = "pmix.qry.qst";
/// Query (array of proc_info): the processes of the jobs and ranks that the qualifiers name, or
/// all. The engine knows a process on another node only if it has received output of it; the
/// launcher may add others.
pub const IOF_QUERY_PROC_TABLE: &str = "pmix.qry.ptable";
/// Query (array of proc_info): the same, with the processes of the engine's node only.
pub const IOF_QUERY_LOCAL_PROC_TABLE: &str = "pmix.qry.lptable";
/// Query (array of proc): the processes on the engine's node, or on the nodes that IOF_HOSTNAME or
/// IOF_NODEID name.
pub const IOF_LOCAL_PROCS: &str = "pmix.lprocs";
/// Query (string): the ranks on the engine's node, or on the named nodes, of the job that the
/// qualifier IOF_NSPACE names, or of the only job, separated by commas.
pub const IOF_LOCAL_PEERS: &str = "pmix.lpeers";
/// Qualifier of a query (string): restricts the answer to the processes of the node with this name.
/// May be repeated. The engine knows its own node; the launcher may know others.
pub const IOF_HOSTNAME: &str = "pmix.hname";
/// Qualifier of a query (uint32): the same as IOF_HOSTNAME, by the number of the node. Answered by
/// the launcher.
pub const IOF_NODEID: &str = "pmix.nodeid";
/// Query (string): the attributes with which tools spawn processes, separated by commas. The engine
/// has none; the launcher may add some (IOF_HOST_QUERIES).
pub const IOF_QUERY_SPAWN_SUPPORT: &str = "pmix.qry.spawn";
/// Query (string): the attributes with which tools control processes, separated by commas. The
/// engine has none; the launcher may add some (IOF_HOST_QUERIES).
pub const IOF_QUERY_DEBUG_SUPPORT: &str = "pmix.qry.debug";
/// Query (array of infos): the engines of this node to which the user can connect. Each is an info
/// IOF_SERVER_INFO_ARRAY. Answered by the library, also without a connection, by iof_Query_info.
pub const IOF_QUERY_AVAIL_SERVERS: &str = "pmix.qry.asrvrs";
/// In an answer to IOF_QUERY_AVAIL_SERVERS (array of infos): an engine, with IOF_SERVER_URI,
/// IOF_SERVER_PIDINFO (0 for a system-level engine), and IOF_SERVER_NSPACE for each of its jobs.
pub const IOF_SERVER_INFO_ARRAY: &str = "pmix.srv.arr";
/// Query (string): the version of the PMIx Standard's stable ABI that the library claims: "0.0",
/// none. Answered by the library.
pub const IOF_QUERY_STABLE_ABI_VERSION: &str = "pmix.qry.stabiver";
/// Query (string): the same for the provisional ABI.
pub const IOF_QUERY_PROVISIONAL_ABI_VERSION: &str = "pmix.qry.prabiver";
/// Query (array of infos): the attributes that each function supports. Each info has the name of a
/// function of PMIx as its key, such as "PMIx_IOF_pull", and an array of iof_regattr_t as its
/// value.
pub const IOF_QUERY_ATTRIBUTE_SUPPORT: &str = "pmix.qry.attrs";
/// Query (string): the channels that messages can be logged to, separated by commas (RFC0032).
pub const IOF_QUERY_LOG_CHANNELS: &str = "pmix.qry.lchans";
/// Query (array of infos): the streams of the jobs and ranks that the qualifiers name, or all. Each
/// is an info whose value is an array of infos: IOF_PROCID, IOF_CHANNEL, IOF_LOGGED, IOF_PRODUCED,
/// IOF_CACHED, IOF_DROPPED, IOF_GENERATION, IOF_READERS and IOF_IOF_COMPLETE. An extension of iof.
pub const IOF_QUERY_STATS: &str = "iof.qry.stats";
/// In an answer to IOF_QUERY_STATS (channel): the channel of the stream. An extension of iof.
pub const IOF_CHANNEL: &str = "iof.channel";
/// In an answer to IOF_QUERY_STATS (uint64): the number of bytes that were read from the source. An
/// extension of iof.
pub const IOF_PRODUCED: &str = "iof.produced";
/// In an answer to IOF_QUERY_STATS (uint64): the number of bytes in the cache. An extension of iof.
pub const IOF_CACHED: &str = "iof.cached";
/// In an answer to IOF_QUERY_STATS (uint64): the number of bytes that were dropped when they were
/// read, because the cache was full. An extension of iof.
pub const IOF_DROPPED: &str = "iof.dropped";
/// In an answer to IOF_QUERY_STATS (uint64): the number of earlier caches of the stream. An
/// extension of iof.
pub const IOF_GENERATION: &str = "iof.generation";
/// In an answer to IOF_QUERY_STATS (uint32): the number of readers of the stream. An extension of
/// iof.
pub const IOF_READERS: &str = "iof.readers";
/// Directive of a log request (proc): the process or job from which the message comes. The engine
/// must know the job.
pub const IOF_LOG_SOURCE: &str = "pmix.log.source";
/// Data of a log request (string): the message, for the stderr of its source. Tools receive it with
/// IOF_LOGGED.
pub const IOF_LOG_STDERR: &str = "pmix.log.stderr";
/// Data of a log request (string): the message, for the stdout of its source. Tools receive it with
/// IOF_LOGGED.
pub const IOF_LOG_STDOUT: &str = "pmix.log.stdout";
/// Data of a log request (string): the message, for the global syslog if there is one, otherwise
/// for the local one.
pub const IOF_LOG_SYSLOG: &str = "pmix.log.syslog";
/// Data of a log request (string): the message, for the syslog of the engine's node.
pub const IOF_LOG_LOCAL_SYSLOG: &str = "pmix.log.lsys";
/// Data of a log request (string): the message, for the syslog of the gateway's node.
pub const IOF_LOG_GLOBAL_SYSLOG: &str = "pmix.log.gsys";
/// Directive of a log request (int): the syslog priority, 0 (emergency) to 7 (debug), 6 (info) by
/// default.
pub const IOF_LOG_SYSLOG_PRI: &str = "pmix.log.syspri";
/// Directive of a log request (time): the time of the event, in seconds since 1970.
pub const IOF_LOG_TIMESTAMP: &str = "pmix.log.tstmp";
/// Directive of a log request (bool): adds the time at which the request arrived.
pub const IOF_LOG_GENERATE_TIMESTAMP: &str = "pmix.log.gtstmp";
/// Directive of a log request (bool): tags the message with its process and channel on stdout and
/// stderr.
pub const IOF_LOG_TAG_OUTPUT: &str = "pmix.log.tag";
/// Directive of a log request (bool): adds the time to the message.
pub const IOF_LOG_TIMESTAMP_OUTPUT: &str = "pmix.log.tsout";
/// Directive of a log request (bool): writes the message as XML on stdout and stderr.
pub const IOF_LOG_XML_OUTPUT: &str = "pmix.log.xml";
/// Directive of a log request (bool): stops at the first channel that accepts the message.
/// iof_server_init: does so for all messages.
pub const IOF_LOG_ONCE: &str = "pmix.log.once";
/// Directive of a log request (string): marks a request that another engine relays to the gateway,
/// and names its original tool. A gateway does not relay it again. An extension of iof.
pub const IOF_LOG_RELAYED: &str = "iof.log.relayed";
/// Data of a log request (byte object or string): the message, for the default channels of the
/// engine (docs/src/logging.md).
pub const IOF_LOG_MSG: &str = "pmix.log.msg";
/// Data of a log request (array of infos with the keys IOF_LOG_EMAIL_ADDR and following): an email.
/// An engine sends it only if it was built with the feature mail, or has a gateway that was.
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
/// Data of a log request (string): the message, for the global data store, which the callback log
/// of the launcher serves.
pub const IOF_LOG_GLOBAL_DATASTORE: &str = "pmix.log.gstore";
/// Data of a log request (string): the message, for the engine's job record, which is a file.
pub const IOF_LOG_JOB_RECORD: &str = "pmix.log.jrec";
/// In a payload (uint64): the number of bytes of the stream before the payload, including missing
/// ones. For iof_server_IOF_deliver: the bytes between the last delivery and this offset are
/// missing. An extension of iof.
pub const IOF_OFFSET: &str = "iof.offset";
/// In a payload, and for iof_server_IOF_deliver (uint64): the time at which the first byte was read
/// from its source, in nanoseconds since 1970. An extension of iof.
pub const IOF_READ_TIME: &str = "iof.time";
/// In a payload (uint64): the number of bytes that are missing before it. If the source has the
/// wildcard rank: the number of bytes of whole streams that are missing (iof_iof_cbfunc_t). An
/// extension of iof.
pub const IOF_LOST: &str = "iof.lost";
/// In a payload, or an answer to IOF_QUERY_STATS (bool): the stream contains messages that were
/// logged for the source, beside its own output. An extension of iof.
pub const IOF_LOGGED: &str = "iof.logged";
/// In a payload, which is then empty (bool): the engine ended before the stream was complete. An
/// extension of iof.
pub const IOF_GONE: &str = "iof.gone";
/// In a payload, which is then empty, and for iof_server_IOF_deliver (uint64): the stream ends
/// although its source may have written more, because the node of the source was lost. The value is
/// the number of further bytes that the source has written, at least. An extension of iof.
pub const IOF_BROKEN: &str = "iof.broken";
/// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (uint64): the same as
/// IOF_IOF_BUFFERING_TIME, in microseconds. Takes precedence over the time in seconds. An extension
/// of iof.
pub const IOF_BUFFERING_TIME_US: &str = "iof.btime.us";
/// iof_IOF_push (bool): excludes targets whose stdin cannot be pushed to, instead of failing. An
/// extension of iof.
pub const IOF_PARTIAL: &str = "iof.push.partial";
/// iof_IOF_pull (bool): skips bytes that were cached before the registration. An extension of iof.
pub const IOF_NO_BACKLOG: &str = "iof.pull.now";
/// iof_server_init (bool): whether a rank waits when a cache is full and a registration of the
/// server itself has not read it, so that this registration loses nothing. True by default, unless
/// IOF_IOF_DROP_OLDEST or IOF_IOF_DROP_NEWEST is given. If false, new bytes are dropped. No rank
/// waits for a tool: a tool that is too slow loses bytes (IOF_LOST). An extension of iof.
pub const IOF_DROP_NONE: &str = "iof.drop.none";
/// iof_server_spawn (rank or proc): the one rank that inherits the launcher's own stdin. An
/// extension of iof.
pub const IOF_STDIN_INHERIT: &str = "iof.stdin.inherit";
/// iof_server_spawn (string): the protocol by which the ranks start MPI: "pmi1" (MPICH, Intel MPI,
/// MVAPICH), "pmix" (Open MPI 5, with a libpmix that the library opens), "auto" ("pmix" for
/// programs linked with Open MPI 5, otherwise "pmi1"), or "none", the default. Unless it is "none",
/// a rank that a signal kills, or that exits between MPI_Init and MPI_Finalize, ends the job. An
/// extension of iof.
pub const IOF_MPI: &str = "iof.mpi";
/// iof_server_spawn (string): tools of PMIx may attach to the job by PMIx's own protocol, if it has
/// PMIx (IOF_MPI) and tools can connect. The value is the command iof, of the version of this
/// library: a path, or a name to look up in PATH. It is started for each of these tools, as a
/// process of its own. That of the first job serves all jobs. An extension of iof.
pub const IOF_PMIX_TOOLS: &str = "iof.pmix.tools";
/// iof_server_spawn, for a program (string): each rank of the program reads this file as its stdin,
/// from its beginning. An extension of iof.
pub const IOF_STDIN_FILE: &str = "iof.stdin.file";
/// iof_server_spawn (rank or proc): the rank has a pseudo-terminal of 24 lines of 80 characters
/// without echo as stdin, stdout and stderr, whose output arrives as stdout. IOF_RANK_WILDCARD
/// means all ranks. May be repeated. iof_server_pty returns its other end. An extension of iof.
pub const IOF_PTY: &str = "iof.pty";
/// iof_server_spawn (uint32): the time for which the streams of a rank that has ended may stay
/// open, because a process that it has started holds them, in milliseconds. By default there is no
/// limit. An extension of iof.
pub const IOF_GRACE: &str = "iof.grace";
/// iof_server_init (string): keys of directives that the callbacks iof_pull and log support,
/// separated by commas. The engine passes these directives to them, required or not. With
/// IOF_LOG_SOURCE among them, messages may name a source that the engine does not know. An
/// extension of iof.
pub const IOF_HOST_DIRECTIVES: &str = "iof.host.directives";
/// iof_server_init (string): keys of queries that the callback query answers even if the engine
/// knows an answer, separated by commas, such as IOF_QUERY_PROC_TABLE for processes on other nodes.
/// The engine combines both answers. An extension of iof.
pub const IOF_HOST_QUERIES: &str = "iof.host.queries";
/// iof_server_init (string): keys of channels that the callback log serves, separated by commas.
/// IOF_QUERY_LOG_CHANNELS lists them, and IOF_LOG_ORDER may name them. An extension of iof.
pub const IOF_HOST_LOG_CHANNELS: &str = "iof.host.log.channels";
/// iof_server_init (string): the socket of the site's gateway, to which the engine relays messages
/// for the global syslog and for channels that it does not have. An extension of iof.
pub const IOF_GATEWAY: &str = "iof.gateway";
/// iof_server_init (string): the channels for messages that name none, in order of preference, in
/// the form of PMIx's parameter plog_base_order, such as "local_syslog:req,stderr". An extension of
/// iof.
pub const IOF_LOG_ORDER: &str = "iof.log.order";
/// iof_server_spawn and iof_server_adopt (bool): the job has further ranks on other nodes
/// (iof_server_IOF_deliver, iof_server_end_job). An extension of iof.
pub const IOF_ELSEWHERE: &str = "iof.elsewhere";
/// iof_server_init (string): the mechanism that reads the ranks' pipes, "io-uring" or "epoll". By
/// default the engine uses io_uring where the kernel supports it. An extension of iof.
pub const IOF_BACKEND: &str = "iof.backend";
