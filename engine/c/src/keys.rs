//! The keys, with PMIx's texts. Those that PMIx does not have are named so.
//!
//! cbindgen knows no texts: the test that makes the header takes them from here, a line of
//! documentation and a line of definition each.

/// For init (bool): the program calls iof_Progress itself; there is no thread of the library for
/// callbacks.
pub const IOF_EXTERNAL_PROGRESS: &str = "pmix.evext";
/// For iof_server_init (bool): tools may connect, which is so unless this is false.
pub const IOF_SERVER_TOOL_SUPPORT: &str = "pmix.srvr.tool";
/// For iof_server_init (bool): tools may connect, as to one of the user's session; so it is anyway.
pub const IOF_SERVER_SESSION_SUPPORT: &str = "pmix.srvr.sess";
/// For iof_server_init (bool): be the node's system-level engine.
pub const IOF_SERVER_SYSTEM_SUPPORT: &str = "pmix.srvr.sys";
/// For init (string): the directory of sockets of the session.
pub const IOF_SERVER_TMPDIR: &str = "pmix.srvr.tmpdir";
/// For init (string): the directory of the system-level socket.
pub const IOF_SYSTEM_TMPDIR: &str = "pmix.sys.tmpdir";
/// For iof_server_init (bool): the engine is the site's gateway for logs.
pub const IOF_SERVER_GATEWAY: &str = "pmix.srv.gway";
/// For iof_tool_init (string): the path of an engine's socket.
pub const IOF_SERVER_URI: &str = "pmix.srvr.uri";
/// For iof_tool_init (pid): an engine of the session, by its pid.
pub const IOF_SERVER_PIDINFO: &str = "pmix.srvr.pidinfo";
/// For iof_tool_init (string): an engine of the session, by the name of one of its jobs.
pub const IOF_SERVER_NSPACE: &str = "pmix.srv.nspace";
/// For iof_tool_init (bool): the system-level engine.
pub const IOF_CONNECT_TO_SYSTEM: &str = "pmix.cnct.sys";
/// For iof_tool_init (bool): the system-level engine, else any.
pub const IOF_CONNECT_SYSTEM_FIRST: &str = "pmix.cnct.sys.first";
/// For iof_tool_init (string): what the tool is called.
pub const IOF_TOOL_NSPACE: &str = "pmix.tool.nspace";
/// For iof_tool_init (uint32): the tool's rank.
pub const IOF_TOOL_RANK: &str = "pmix.tool.rank";
/// For iof_tool_init (bool): without an engine.
pub const IOF_TOOL_DO_NOT_CONNECT: &str = "pmix.tool.nocon";
/// For iof_tool_init (bool): without an engine if there is none.
pub const IOF_TOOL_CONNECT_OPTIONAL: &str = "pmix.tool.conopt";
/// Of a tool that connects (uint32).
pub const IOF_USERID: &str = "pmix.euid";
/// Of a tool that connects (uint32).
pub const IOF_GRPID: &str = "pmix.egid";
/// Of a tool that connects (pid).
pub const IOF_PROC_PID: &str = "pmix.ppid";
/// A job (string): its name, for iof_server_spawn; in a query, of this job only.
pub const IOF_NSPACE: &str = "pmix.nspace";
/// In a query (rank): of this rank only.
pub const IOF_RANK: &str = "pmix.rank";
/// In a query (proc): of this process only.
pub const IOF_PROCID: &str = "pmix.procid";
/// How many processes a job has (uint32).
pub const IOF_JOB_SIZE: &str = "pmix.job.size";
/// What a job runs (string).
pub const IOF_CMD_LINE: &str = "pmix.cmd.line";
/// An exit code (int).
pub const IOF_EXIT_CODE: &str = "pmix.exit.code";
/// How a job ended (status).
pub const IOF_JOB_TERM_STATUS: &str = "pmix.job.term.status";
/// Whom an event is about (proc).
pub const IOF_EVENT_AFFECTED_PROC: &str = "pmix.evproc";
/// For iof_server_spawn (rank, or proc): whose stdin can be pushed to; all others' is /dev/null.
pub const IOF_STDIN_TGT: &str = "pmix.stdin";
/// For iof_server_spawn (bool): rank 0's stdin can be pushed to.
pub const IOF_FWD_STDIN: &str = "pmix.fwd.stdin";
/// For iof_server_spawn (bool): stdout is to be forwarded.
pub const IOF_FWD_STDOUT: &str = "pmix.fwd.stdout";
/// For iof_server_spawn (bool): stderr is to be forwarded.
pub const IOF_FWD_STDERR: &str = "pmix.fwd.stderr";
/// For iof_server_spawn (bool): stddiag is to be forwarded.
pub const IOF_FWD_STDDIAG: &str = "pmix.fwd.stddiag";
/// For init, spawn and pull (uint32): bytes of cache for each stream; of a push, of its own.
pub const IOF_IOF_CACHE_SIZE: &str = "pmix.iof.csize";
/// For init, spawn and pull (bool): a full cache loses its oldest bytes.
pub const IOF_IOF_DROP_OLDEST: &str = "pmix.iof.old";
/// For init, spawn and pull (bool): a full cache takes no more; for push: who does not read is cut
/// off.
pub const IOF_IOF_DROP_NEWEST: &str = "pmix.iof.new";
/// For init, spawn and pull (uint32): so many bytes at a time.
pub const IOF_IOF_BUFFERING_SIZE: &str = "pmix.iof.bsize";
/// For init, spawn and pull (uint32): or what there is after so many seconds.
pub const IOF_IOF_BUFFERING_TIME: &str = "pmix.iof.btime";
/// The end of a stream (bool): for push and deliver, these bytes are its last.
pub const IOF_IOF_COMPLETE: &str = "pmix.iof.cmp";
/// For push (bool): the library reads the program's own stdin, and pushes it.
pub const IOF_IOF_PUSH_STDIN: &str = "pmix.iof.stdin";
/// For the host (bool): nobody wants it any more.
pub const IOF_IOF_STOP: &str = "pmix.iof.stop";
/// Query (string): the jobs.
pub const IOF_QUERY_NAMESPACES: &str = "pmix.qry.ns";
/// Query (array of infos): the jobs.
pub const IOF_QUERY_NAMESPACE_INFO: &str = "pmix.qry.nsinfo";
/// Query (status): how a job is.
pub const IOF_QUERY_JOB_STATUS: &str = "pmix.qry.jst";
/// Query: the host's.
pub const IOF_QUERY_QUEUE_LIST: &str = "pmix.qry.qlst";
/// Query: the host's.
pub const IOF_QUERY_QUEUE_STATUS: &str = "pmix.qry.qst";
/// Query (array of proc_info): processes.
pub const IOF_QUERY_PROC_TABLE: &str = "pmix.qry.ptable";
/// Query (array of proc_info): processes of this node.
pub const IOF_QUERY_LOCAL_PROC_TABLE: &str = "pmix.qry.lptable";
/// Query (array of infos, each with an array of regattr): what operations understand.
pub const IOF_QUERY_ATTRIBUTE_SUPPORT: &str = "pmix.qry.attrs";
/// Query (string): the channels that can be logged to (RFC0032).
pub const IOF_QUERY_LOG_CHANNELS: &str = "pmix.qry.lchans";
/// Query (array of infos): every stream with its byte counts. Ours.
pub const IOF_QUERY_STATS: &str = "iof.qry.stats";
/// Directive of a log (proc): whose message it is.
pub const IOF_LOG_SOURCE: &str = "pmix.log.source";
/// Log (string): to the stderr of the source.
pub const IOF_LOG_STDERR: &str = "pmix.log.stderr";
/// Log (string): to the stdout of the source.
pub const IOF_LOG_STDOUT: &str = "pmix.log.stdout";
/// Log (string): to the global syslog, else the local one.
pub const IOF_LOG_SYSLOG: &str = "pmix.log.syslog";
/// Log (string): to the local syslog.
pub const IOF_LOG_LOCAL_SYSLOG: &str = "pmix.log.lsys";
/// Log (string): to the syslog of the gateway.
pub const IOF_LOG_GLOBAL_SYSLOG: &str = "pmix.log.gsys";
/// Directive of a log (int): the priority.
pub const IOF_LOG_SYSLOG_PRI: &str = "pmix.log.syspri";
/// Directive of a log (time): when it happened.
pub const IOF_LOG_TIMESTAMP: &str = "pmix.log.tstmp";
/// Directive of a log (bool): say when it came.
pub const IOF_LOG_GENERATE_TIMESTAMP: &str = "pmix.log.gtstmp";
/// Directive of a log (bool): with a tag.
pub const IOF_LOG_TAG_OUTPUT: &str = "pmix.log.tag";
/// Directive of a log (bool): with the time.
pub const IOF_LOG_TIMESTAMP_OUTPUT: &str = "pmix.log.tsout";
/// Directive of a log (bool): in XML.
pub const IOF_LOG_XML_OUTPUT: &str = "pmix.log.xml";
/// Directive of a log (bool): to the first channel that takes it.
pub const IOF_LOG_ONCE: &str = "pmix.log.once";
/// Log (byte object, or string): to every channel.
pub const IOF_LOG_MSG: &str = "pmix.log.msg";
/// Log (array of infos): by email.
pub const IOF_LOG_EMAIL: &str = "pmix.log.email";
/// Of an email (string): to whom.
pub const IOF_LOG_EMAIL_ADDR: &str = "pmix.log.emaddr";
/// Of an email (string): from whom.
pub const IOF_LOG_EMAIL_SENDER_ADDR: &str = "pmix.log.emfaddr";
/// Of an email (string): about what.
pub const IOF_LOG_EMAIL_SUBJECT: &str = "pmix.log.emsub";
/// Of an email (string): the message.
pub const IOF_LOG_EMAIL_MSG: &str = "pmix.log.emmsg";
/// Of an email (string): the mail server.
pub const IOF_LOG_EMAIL_SERVER: &str = "pmix.log.esrvr";
/// Of an email (int32): its port.
pub const IOF_LOG_EMAIL_SRVR_PORT: &str = "pmix.log.esrvrprt";
/// Log (string): the host's.
pub const IOF_LOG_GLOBAL_DATASTORE: &str = "pmix.log.gstore";
/// Log (string): into the record of the job.
pub const IOF_LOG_JOB_RECORD: &str = "pmix.log.jrec";
/// Of a payload (uint64): the place of its first byte in the stream. Ours.
pub const IOF_OFFSET: &str = "iof.offset";
/// Of a payload, and for deliver (uint64): when it was read from its source, in nanoseconds since
/// 1970. Ours.
pub const IOF_READ_TIME: &str = "iof.time";
/// Of a payload (uint64): so many bytes before it are missing. With the wildcard rank as its source
/// and no bytes: so many bytes of streams that do not come, because this tool read too little for
/// too long. Ours.
pub const IOF_LOST: &str = "iof.lost";
/// Of a payload (bool): it was logged on behalf of the source. Ours.
pub const IOF_LOGGED: &str = "iof.logged";
/// Of a payload (bool): the engine has gone. Ours.
pub const IOF_GONE: &str = "iof.gone";
/// As IOF_IOF_BUFFERING_TIME, in microseconds (uint64). Ours.
pub const IOF_BUFFERING_TIME_US: &str = "iof.btime.us";
/// For push (bool): who can't be pushed to is left out. Ours.
pub const IOF_PARTIAL: &str = "iof.push.partial";
/// For pull (bool): not what is cached, only what comes. Ours.
pub const IOF_NO_BACKLOG: &str = "iof.pull.now";
/// For iof_server_init (bool): where a cache is full, ranks wait for the launcher's own
/// registrations. Ours.
pub const IOF_DROP_NONE: &str = "iof.drop.none";
/// For iof_server_spawn (rank): who has the launcher's own stdin. Ours.
pub const IOF_STDIN_INHERIT: &str = "iof.stdin.inherit";
/// For iof_server_spawn and iof_server_adopt (bool): the job has other ranks, on other nodes. Ours.
pub const IOF_ELSEWHERE: &str = "iof.elsewhere";
/// For iof_server_init (string): what ranks' pipes are read with, io-uring or epoll; else the
/// better one that there is. Ours.
pub const IOF_BACKEND: &str = "iof.backend";
