/*
 * I/O forwarding for launchers and tools written in C, shaped as PMIx is.
 *
 * Made by cbindgen; do not edit. Names are PMIx's with another prefix (PMIx_IOF_pull is iof_IOF_pull, pmix_info_t is
 * iof_info_t, PMIX_ERR_UNREACH is IOF_ERR_UNREACH), and so are the order of arguments, the layout of structures and the
 * values of constants. A program may include pmix.h as well.
 *
 * Functions that give an iof_status_t give IOF_SUCCESS or an error, below zero; where an argument is NULL that must not
 * be, or an array is not aligned, or a text or name is not terminated within its limit, IOF_ERR_BAD_PARAM. A bug of the
 * library's own is IOF_ERROR, and nothing is thrown or aborted.
 *
 * All functions may be called from any thread, at any time, unless their own comment says otherwise; but not in a
 * signal handler, and in a child of fork(2) all that need the engine give IOF_ERR_INIT until it has called exec(3).
 * Signals may be handled on threads of the library's, unless they were blocked when it was initialized.
 *
 * Callbacks come one after the other, on a thread of the library's, or where the program progresses the library itself
 * (see IOF_EXTERNAL_PROGRESS) on the threads that do so. Those of a launcher's module, and of iof_server_IOF_deliver,
 * come on the engine's thread in any case, also while another callback runs. In a callback every function may be called
 * that does not wait: one that would wait gives IOF_ERR_WOULD_BLOCK. Such are those that initialize, finalize or wait by
 * their names, iof_Query_info, iof_Log, and iof_IOF_pull, iof_IOF_deregister and iof_IOF_push if their last callback
 * argument is NULL. A callback must return, for finalizing waits for it, and must not throw or longjmp.
 *
 * Memory that the library gives to the program is malloc's, to be freed by the function that is named there, or as
 * PMIx's macros do.
 */

#ifndef IOF_H
#define IOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>

// For init (bool): the program calls iof_Progress itself; there is no thread of the library for
// callbacks.
#define IOF_EXTERNAL_PROGRESS "pmix.evext"

// For iof_server_init (bool): tools may connect, which is so unless this is false.
#define IOF_SERVER_TOOL_SUPPORT "pmix.srvr.tool"

// For iof_server_init (bool): tools may connect, as to one of the user's session; so it is anyway.
#define IOF_SERVER_SESSION_SUPPORT "pmix.srvr.sess"

// For iof_server_init (bool): be the node's system-level engine.
#define IOF_SERVER_SYSTEM_SUPPORT "pmix.srvr.sys"

// For init (string): the directory of sockets of the session.
#define IOF_SERVER_TMPDIR "pmix.srvr.tmpdir"

// For init (string): the directory of the system-level socket.
#define IOF_SYSTEM_TMPDIR "pmix.sys.tmpdir"

// For iof_server_init (bool): the engine is the site's gateway for logs.
#define IOF_SERVER_GATEWAY "pmix.srv.gway"

// For iof_tool_init (string): the path of an engine's socket.
#define IOF_SERVER_URI "pmix.srvr.uri"

// For iof_tool_init (pid): an engine of the session, by its pid.
#define IOF_SERVER_PIDINFO "pmix.srvr.pidinfo"

// For iof_tool_init (string): an engine of the session, by the name of one of its jobs.
#define IOF_SERVER_NSPACE "pmix.srv.nspace"

// For iof_tool_init (bool): the system-level engine.
#define IOF_CONNECT_TO_SYSTEM "pmix.cnct.sys"

// For iof_tool_init (bool): the system-level engine, else any.
#define IOF_CONNECT_SYSTEM_FIRST "pmix.cnct.sys.first"

// For iof_tool_init (string): what the tool is called.
#define IOF_TOOL_NSPACE "pmix.tool.nspace"

// For iof_tool_init (uint32): the tool's rank.
#define IOF_TOOL_RANK "pmix.tool.rank"

// For iof_tool_init (bool): without an engine.
#define IOF_TOOL_DO_NOT_CONNECT "pmix.tool.nocon"

// For iof_tool_init (bool): without an engine if there is none.
#define IOF_TOOL_CONNECT_OPTIONAL "pmix.tool.conopt"

// Of a tool that connects (uint32).
#define IOF_USERID "pmix.euid"

// Of a tool that connects (uint32).
#define IOF_GRPID "pmix.egid"

// Of a tool that connects (pid).
#define IOF_PROC_PID "pmix.ppid"

// A job (string): its name, for iof_server_spawn; in a query, of this job only.
#define IOF_NSPACE "pmix.nspace"

// In a query (rank): of this rank only.
#define IOF_RANK "pmix.rank"

// In a query (proc): of this process only.
#define IOF_PROCID "pmix.procid"

// How many processes a job has (uint32).
#define IOF_JOB_SIZE "pmix.job.size"

// What a job runs (string).
#define IOF_CMD_LINE "pmix.cmd.line"

// An exit code (int).
#define IOF_EXIT_CODE "pmix.exit.code"

// How a job ended (status).
#define IOF_JOB_TERM_STATUS "pmix.job.term.status"

// Whom an event is about (proc).
#define IOF_EVENT_AFFECTED_PROC "pmix.evproc"

// For iof_server_spawn (rank, or proc): whose stdin can be pushed to; all others' is /dev/null.
#define IOF_STDIN_TGT "pmix.stdin"

// For iof_server_spawn (bool): rank 0's stdin can be pushed to.
#define IOF_FWD_STDIN "pmix.fwd.stdin"

// For iof_server_spawn (bool): stdout is to be forwarded.
#define IOF_FWD_STDOUT "pmix.fwd.stdout"

// For iof_server_spawn (bool): stderr is to be forwarded.
#define IOF_FWD_STDERR "pmix.fwd.stderr"

// For iof_server_spawn (bool): stddiag is to be forwarded.
#define IOF_FWD_STDDIAG "pmix.fwd.stddiag"

// For init, spawn and pull (uint32): bytes of cache for each stream; of a push, of its own.
#define IOF_IOF_CACHE_SIZE "pmix.iof.csize"

// For init, spawn and pull (bool): a full cache loses its oldest bytes.
#define IOF_IOF_DROP_OLDEST "pmix.iof.old"

// For init, spawn and pull (bool): a full cache takes no more; for push: who does not read is cut
// off.
#define IOF_IOF_DROP_NEWEST "pmix.iof.new"

// For init, spawn and pull (uint32): so many bytes at a time.
#define IOF_IOF_BUFFERING_SIZE "pmix.iof.bsize"

// For init, spawn and pull (uint32): or what there is after so many seconds.
#define IOF_IOF_BUFFERING_TIME "pmix.iof.btime"

// The end of a stream (bool): for push and deliver, these bytes are its last.
#define IOF_IOF_COMPLETE "pmix.iof.cmp"

// For push (bool): the library reads the program's own stdin, and pushes it.
#define IOF_IOF_PUSH_STDIN "pmix.iof.stdin"

// For the host (bool): nobody wants it any more.
#define IOF_IOF_STOP "pmix.iof.stop"

// Query (string): the jobs.
#define IOF_QUERY_NAMESPACES "pmix.qry.ns"

// Query (array of infos): the jobs.
#define IOF_QUERY_NAMESPACE_INFO "pmix.qry.nsinfo"

// Query (status): how a job is.
#define IOF_QUERY_JOB_STATUS "pmix.qry.jst"

// Query: the host's.
#define IOF_QUERY_QUEUE_LIST "pmix.qry.qlst"

// Query: the host's.
#define IOF_QUERY_QUEUE_STATUS "pmix.qry.qst"

// Query (array of proc_info): processes.
#define IOF_QUERY_PROC_TABLE "pmix.qry.ptable"

// Query (array of proc_info): processes of this node.
#define IOF_QUERY_LOCAL_PROC_TABLE "pmix.qry.lptable"

// Query (array of infos, each with an array of regattr): what operations understand.
#define IOF_QUERY_ATTRIBUTE_SUPPORT "pmix.qry.attrs"

// Query (string): the channels that can be logged to (RFC0032).
#define IOF_QUERY_LOG_CHANNELS "pmix.qry.lchans"

// Query (array of infos): every stream with its byte counts. Ours.
#define IOF_QUERY_STATS "iof.qry.stats"

// Directive of a log (proc): whose message it is.
#define IOF_LOG_SOURCE "pmix.log.source"

// Log (string): to the stderr of the source.
#define IOF_LOG_STDERR "pmix.log.stderr"

// Log (string): to the stdout of the source.
#define IOF_LOG_STDOUT "pmix.log.stdout"

// Log (string): to the global syslog, else the local one.
#define IOF_LOG_SYSLOG "pmix.log.syslog"

// Log (string): to the local syslog.
#define IOF_LOG_LOCAL_SYSLOG "pmix.log.lsys"

// Log (string): to the syslog of the gateway.
#define IOF_LOG_GLOBAL_SYSLOG "pmix.log.gsys"

// Directive of a log (int): the priority.
#define IOF_LOG_SYSLOG_PRI "pmix.log.syspri"

// Directive of a log (time): when it happened.
#define IOF_LOG_TIMESTAMP "pmix.log.tstmp"

// Directive of a log (bool): say when it came.
#define IOF_LOG_GENERATE_TIMESTAMP "pmix.log.gtstmp"

// Directive of a log (bool): with a tag.
#define IOF_LOG_TAG_OUTPUT "pmix.log.tag"

// Directive of a log (bool): with the time.
#define IOF_LOG_TIMESTAMP_OUTPUT "pmix.log.tsout"

// Directive of a log (bool): in XML.
#define IOF_LOG_XML_OUTPUT "pmix.log.xml"

// Directive of a log (bool): to the first channel that takes it.
#define IOF_LOG_ONCE "pmix.log.once"

// Log (byte object, or string): to every channel.
#define IOF_LOG_MSG "pmix.log.msg"

// Log (array of infos): by email.
#define IOF_LOG_EMAIL "pmix.log.email"

// Of an email (string): to whom.
#define IOF_LOG_EMAIL_ADDR "pmix.log.emaddr"

// Of an email (string): from whom.
#define IOF_LOG_EMAIL_SENDER_ADDR "pmix.log.emfaddr"

// Of an email (string): about what.
#define IOF_LOG_EMAIL_SUBJECT "pmix.log.emsub"

// Of an email (string): the message.
#define IOF_LOG_EMAIL_MSG "pmix.log.emmsg"

// Of an email (string): the mail server.
#define IOF_LOG_EMAIL_SERVER "pmix.log.esrvr"

// Of an email (int32): its port.
#define IOF_LOG_EMAIL_SRVR_PORT "pmix.log.esrvrprt"

// Log (string): the host's.
#define IOF_LOG_GLOBAL_DATASTORE "pmix.log.gstore"

// Log (string): into the record of the job.
#define IOF_LOG_JOB_RECORD "pmix.log.jrec"

// Of a payload (uint64): the place of its first byte in the stream. Ours.
#define IOF_OFFSET "iof.offset"

// Of a payload, and for deliver (uint64): when it was read from its source, in nanoseconds since
// 1970. Ours.
#define IOF_READ_TIME "iof.time"

// Of a payload (uint64): so many bytes before it are missing. With the wildcard rank as its source
// and no bytes: so many bytes of streams that do not come, because this tool read too little for
// too long. Ours.
#define IOF_LOST "iof.lost"

// Of a payload (bool): it was logged on behalf of the source. Ours.
#define IOF_LOGGED "iof.logged"

// Of a payload (bool): the engine has gone. Ours.
#define IOF_GONE "iof.gone"

// As IOF_IOF_BUFFERING_TIME, in microseconds (uint64). Ours.
#define IOF_BUFFERING_TIME_US "iof.btime.us"

// For push (bool): who can't be pushed to is left out. Ours.
#define IOF_PARTIAL "iof.push.partial"

// For pull (bool): not what is cached, only what comes. Ours.
#define IOF_NO_BACKLOG "iof.pull.now"

// For iof_server_init (bool): where a cache is full, ranks wait for the launcher's own
// registrations. Ours.
#define IOF_DROP_NONE "iof.drop.none"

// For iof_server_spawn (rank): who has the launcher's own stdin. Ours.
#define IOF_STDIN_INHERIT "iof.stdin.inherit"

// For iof_server_spawn and iof_server_adopt (bool): the job has other ranks, on other nodes. Ours.
#define IOF_ELSEWHERE "iof.elsewhere"

// For iof_server_init (string): what ranks' pipes are read with, io-uring or epoll; else the
// better one that there is. Ours.
#define IOF_BACKEND "iof.backend"


// The longest name of a job, without its terminator.
#define IOF_MAX_NSLEN 255

// The longest key, without its terminator.
#define IOF_MAX_KEYLEN 511

// How something went: 0, or below zero an error.
typedef int iof_status_t;

// The name of a job, terminated.
typedef char iof_nspace_t[256];

// The number of a process in its job.
typedef uint32_t iof_rank_t;

// A process, or with IOF_RANK_WILDCARD all processes of a job.
typedef struct iof_proc_t {
    // Its job.
    iof_nspace_t nspace;
    // Its number in the job.
    iof_rank_t rank;
} iof_proc_t;

// A key, terminated.
typedef char iof_key_t[512];

// Flags of an iof_info_t.
typedef uint32_t iof_info_directives_t;

// What a value is of.
typedef uint16_t iof_data_type_t;

// Bytes.
typedef struct iof_byte_object_t {
    // Where they are.
    char *bytes;
    // How many.
    size_t size;
} iof_byte_object_t;

// Where a process is in its life.
typedef uint8_t iof_proc_state_t;

// One line of a process table.
typedef struct iof_proc_info_t {
    // Which process.
    struct iof_proc_t proc;
    // Where it runs; NULL if nobody knows.
    char *hostname;
    // What it runs; likewise.
    char *executable_name;
    // Its pid there; 0 if nobody knows.
    pid_t pid;
    // Its exit code once it has ended, 128 + n if signal n ended it.
    int exit_code;
    // Where it is in its life.
    iof_proc_state_t state;
} iof_proc_info_t;

// An array of values of one type.
typedef struct iof_data_array_t {
    // Of which type its elements are.
    iof_data_type_t type;
    // How many elements.
    size_t size;
    // The elements.
    void *array;
} iof_data_array_t;

// What an environment variable is to become.
typedef struct iof_envar_t {
    // Its name.
    char *envar;
    // The value.
    char *value;
    // What stands between parts of it.
    char separator;
} iof_envar_t;

// What a value holds, see iof_value_t.
typedef union iof_value_data_t {
    // IOF_BOOL
    bool flag;
    // IOF_BYTE
    uint8_t byte;
    // IOF_STRING
    char *string;
    // IOF_SIZE
    size_t size;
    // IOF_PID
    pid_t pid;
    // IOF_INT
    int integer;
    // IOF_INT8
    int8_t int8;
    // IOF_INT16
    int16_t int16;
    // IOF_INT32
    int32_t int32;
    // IOF_INT64
    int64_t int64;
    // IOF_UINT
    unsigned int uint;
    // IOF_UINT8
    uint8_t uint8;
    // IOF_UINT16
    uint16_t uint16;
    // IOF_UINT32
    uint32_t uint32;
    // IOF_UINT64
    uint64_t uint64;
    // IOF_FLOAT
    float fval;
    // IOF_DOUBLE
    double dval;
    // IOF_TIMEVAL
    struct timeval tv;
    // IOF_TIME
    time_t time;
    // IOF_STATUS
    iof_status_t status;
    // IOF_PROC_RANK
    iof_rank_t rank;
    // IOF_PROC_NSPACE
    iof_nspace_t *nspace;
    // IOF_PROC
    struct iof_proc_t *proc;
    // IOF_BYTE_OBJECT
    struct iof_byte_object_t bo;
    // IOF_PROC_STATE
    iof_proc_state_t state;
    // IOF_PROC_INFO
    struct iof_proc_info_t *pinfo;
    // IOF_DATA_ARRAY
    struct iof_data_array_t *darray;
    // IOF_POINTER
    void *ptr;
    // IOF_ENVAR
    struct iof_envar_t envar;
} iof_value_data_t;

// A value of one of many types.
typedef struct iof_value_t {
    // Which: IOF_BOOL and the like.
    iof_data_type_t type;
    // It.
    union iof_value_data_t data;
} iof_value_t;

// One piece of information, or one directive.
typedef struct iof_info_t {
    // What it is about.
    iof_key_t key;
    // IOF_INFO_REQD: who can't honour it is to refuse what it comes with.
    iof_info_directives_t flags;
    // What it says.
    struct iof_value_t value;
} iof_info_t;

// A set of channels, the sum of IOF_FWD_STDOUT_CHANNEL and the like.
typedef uint16_t iof_iof_channel_t;

// Something comes of the registration iofhdlr, from one channel of source.
//
// The payload lies in the ring itself, which the engine has mapped as well: it is read in place,
// is valid until the callback returns, and nobody writes there meanwhile. It can't be written to.
// Neither can the other arguments be kept. A payload without bytes comes once for each stream, at
// its end, with IOF_IOF_COMPLETE or, if the engine has gone before that, with IOF_GONE. The infos
// say more:
//
//   IOF_OFFSET         how many bytes the source had produced before these; always
//   IOF_READ_TIME      when they were read from the source, if that is known
//   IOF_LOST           so many bytes before these are missing, if some are
//   IOF_LOGGED         they were not written by the source, but logged on its behalf
//   IOF_IOF_COMPLETE   there is no more of this stream
//   IOF_GONE           the engine has gone, and what else was written is not known
//
// That a job has ended is told to event handlers, see iof_Register_event_handler, after the end of
// its last stream.
typedef void (*iof_iof_cbfunc_t)(size_t iofhdlr,
                                 iof_iof_channel_t channel,
                                 struct iof_proc_t *source,
                                 struct iof_byte_object_t *payload,
                                 struct iof_info_t *info,
                                 size_t ninfo);

// A handler is registered, with this number, or is not.
typedef void (*iof_hdlr_reg_cbfunc_t)(iof_status_t status, size_t refid, void *cbdata);

// An operation is done, with this status.
typedef void (*iof_op_cbfunc_t)(iof_status_t status, void *cbdata);

// One query: keys, and what they are to be answered of.
typedef struct iof_query_t {
    // What is asked, an array that ends with NULL.
    char **keys;
    // Of what.
    struct iof_info_t *qualifiers;
    // How many qualifiers.
    size_t nqual;
} iof_query_t;

// What was handed out with a callback is no longer needed.
typedef void (*iof_release_cbfunc_t)(void *cbdata);

// A query is answered. The infos are the library's, until release_fn is called with
// release_cbdata, which must be done once, in the callback or later on any thread, if it is not
// NULL.
typedef void (*iof_info_cbfunc_t)(iof_status_t status,
                                  struct iof_info_t *info,
                                  size_t ninfo,
                                  void *cbdata,
                                  iof_release_cbfunc_t release_fn,
                                  void *release_cbdata);

// To be called by an event handler when it is done; the arguments but the last say nothing here.
typedef void (*iof_event_notification_cbfunc_fn_t)(iof_status_t status,
                                                   struct iof_info_t *results,
                                                   size_t nresults,
                                                   iof_op_cbfunc_t cbfunc,
                                                   void *thiscbdata,
                                                   void *notification_cbdata);

// Something has happened, see iof_Register_event_handler. cbfunc may be called with cbdata, or
// not.
typedef void (*iof_notification_fn_t)(size_t evhdlr_registration_id,
                                      iof_status_t status,
                                      const struct iof_proc_t *source,
                                      struct iof_info_t *info,
                                      size_t ninfo,
                                      struct iof_info_t *results,
                                      size_t nresults,
                                      iof_event_notification_cbfunc_fn_t cbfunc,
                                      void *cbdata);

// A callback that PMIx has and this library never calls.
typedef int (*iof_server_unused_fn_t)(void);

// A tool asks what the engine does not know. IOF_SUCCESS: cbfunc will be called with cbdata, now
// or later, on any thread; anything else: it will not, and nothing is known. The arguments are
// valid until cbfunc is called, and what that is called with is copied at once.
typedef iof_status_t (*iof_server_query_fn_t)(struct iof_proc_t *proct,
                                              struct iof_query_t *queries,
                                              size_t nqueries,
                                              iof_info_cbfunc_t cbfunc,
                                              void *cbdata);

// The host's answer to whether a tool may connect: IOF_SUCCESS, or why not. proc may be NULL.
typedef void (*iof_tool_connection_cbfunc_t)(iof_status_t status, struct iof_proc_t *proc, void *cbdata);

// A tool has connected. The infos name it: IOF_USERID, IOF_GRPID, IOF_PROC_PID. The tool waits
// until cbfunc is called with cbdata, in the callback or later, on any thread; others are served
// meanwhile. After four seconds the tool is refused. The infos are valid until this returns.
typedef void (*iof_server_tool_connection_fn_t)(struct iof_info_t *info,
                                                size_t ninfo,
                                                iof_tool_connection_cbfunc_t cbfunc,
                                                void *cbdata);

// Something is to be logged on a channel that the engine does not know. cbfunc must be called with
// cbdata, now or later, on any thread; until then the arguments are valid. Must not be handed back
// to iof_Log.
typedef void (*iof_server_log_fn_t)(const struct iof_proc_t *client,
                                    const struct iof_info_t *data,
                                    size_t ndata,
                                    const struct iof_info_t *directives,
                                    size_t ndirs,
                                    iof_op_cbfunc_t cbfunc,
                                    void *cbdata);

// Tools want output of processes of which nothing was granted before: the host is to see to it
// that it arrives, by iof_server_IOF_deliver if they run elsewhere, or to deny it. With
// IOF_IOF_STOP among the directives: nobody wants it any more. IOF_SUCCESS: cbfunc will be called
// with cbdata, now or later, on any thread; IOF_OPERATION_SUCCEEDED: it is granted, and cbfunc is
// not called; anything else: it is denied. The arguments are valid until this returns.
typedef iof_status_t (*iof_server_iof_fn_t)(const struct iof_proc_t *procs,
                                            size_t nprocs,
                                            const struct iof_info_t *directives,
                                            size_t ndirs,
                                            iof_iof_channel_t channels,
                                            iof_op_cbfunc_t cbfunc,
                                            void *cbdata);

// Bytes for the stdin of processes that run elsewhere; none: it is to be closed. The next come
// when cbfunc was called. The status as with iof_server_iof_fn_t. The arguments, the bytes
// included, are valid until this returns.
typedef iof_status_t (*iof_server_stdin_fn_t)(const struct iof_proc_t *source,
                                              const struct iof_proc_t *targets,
                                              size_t ntargets,
                                              const struct iof_info_t *directives,
                                              size_t ndirs,
                                              const struct iof_byte_object_t *bo,
                                              iof_op_cbfunc_t cbfunc,
                                              void *cbdata);

// The host's part: callbacks of a launcher, each of which may be NULL. They come one after the
// other, on a thread of the library's that serves no tool meanwhile, so they must return soon, and
// must not wait for the library. In them every function may be called that does not wait.
typedef struct iof_server_module_t {
    // Not called.
    iof_server_unused_fn_t client_connected;
    // Not called.
    iof_server_unused_fn_t client_finalized;
    // Not called.
    iof_server_unused_fn_t abort;
    // Not called.
    iof_server_unused_fn_t fence_nb;
    // Not called.
    iof_server_unused_fn_t direct_modex;
    // Not called.
    iof_server_unused_fn_t publish;
    // Not called.
    iof_server_unused_fn_t lookup;
    // Not called.
    iof_server_unused_fn_t unpublish;
    // Not called.
    iof_server_unused_fn_t spawn;
    // Not called.
    iof_server_unused_fn_t connect;
    // Not called.
    iof_server_unused_fn_t disconnect;
    // Not called.
    iof_server_unused_fn_t register_events;
    // Not called.
    iof_server_unused_fn_t deregister_events;
    // Not called.
    iof_server_unused_fn_t listener;
    // Not called.
    iof_server_unused_fn_t notify_event;
    // Without it, what the engine does not know is not found.
    iof_server_query_fn_t query;
    // Without it, tools of the same user and of root are let in.
    iof_server_tool_connection_fn_t tool_connected;
    // Without it, there are the engine's own channels only.
    iof_server_log_fn_t log;
    // Not called.
    iof_server_unused_fn_t allocate;
    // Not called.
    iof_server_unused_fn_t job_control;
    // Not called.
    iof_server_unused_fn_t monitor;
    // Not called.
    iof_server_unused_fn_t get_credential;
    // Not called.
    iof_server_unused_fn_t validate_credential;
    // Without it, everything is granted.
    iof_server_iof_fn_t iof_pull;
    // Without it, nothing can be pushed to processes that run elsewhere.
    iof_server_stdin_fn_t push_stdin;
    // Not called.
    iof_server_unused_fn_t group;
    // Not called.
    iof_server_unused_fn_t fabric;
    // Not called.
    iof_server_unused_fn_t client_connected2;
} iof_server_module_t;

// One program of a job, run by some of its ranks.
typedef struct iof_app_t {
    // What they run: a path, or a name to be looked up in PATH.
    char *cmd;
    // Its arguments with its own name before them, an array that ends with NULL; NULL for none.
    char **argv;
    // NAME=VALUE, added to the launcher's environment, an array that ends with NULL; NULL for
    // none.
    char **env;
    // Where they start; NULL for where the launcher is.
    char *cwd;
    // How many ranks run it, 1 at least.
    int maxprocs;
    // Nothing is understood here; what is required is refused.
    struct iof_info_t *info;
    // How many.
    size_t ninfo;
} iof_app_t;

// A process that the launcher has started itself, see iof_server_adopt. A descriptor is -1 where
// there is none; the others are the library's from then on, which closes them.
typedef struct iof_adopted_t {
    // Its number in the job.
    iof_rank_t rank;
    // What the process table says that it runs; may be NULL.
    const char *executable;
    // Where its stdin is written: the write end of a pipe that nobody else writes.
    int stdin_fd;
    // Where its stdout is read: the read end of a pipe, a connected stream socket, or a pty's
    // master.
    int stdout_fd;
    // Likewise.
    int stderr_fd;
    // Likewise.
    int stddiag_fd;
    // Its pidfd, see pidfd_open(2), or -1.
    int pidfd;
    // If there is no pidfd: its pid, which the library waits for; nobody else may then. 0: the
    // launcher waits for it, and says so by iof_server_report_exit.
    pid_t pid;
} iof_adopted_t;

// No rank.
#define IOF_RANK_UNDEF 4294967295u

// Every rank of a job.
#define IOF_RANK_WILDCARD 4294967294u

// It worked.
#define IOF_SUCCESS 0

// A bug of the library.
#define IOF_ERROR -1

// There is such a thing already.
#define IOF_ERR_EXISTS -11

// Called in a callback, where it would wait for what comes after the callback.
#define IOF_ERR_WOULD_BLOCK -15

// It is not allowed.
#define IOF_ERR_NO_PERMISSIONS -23

// It took too long.
#define IOF_ERR_TIMEOUT -24

// There is no engine, or it has gone.
#define IOF_ERR_UNREACH -25

// An argument makes no sense.
#define IOF_ERR_BAD_PARAM -27

// Something is in the way that may pass: try again.
#define IOF_ERR_RESOURCE_BUSY -28

// A limit is reached.
#define IOF_ERR_OUT_OF_RESOURCE -29

// Not initialized, or as something else.
#define IOF_ERR_INIT -31

// No memory.
#define IOF_ERR_NOMEM -32

// Nothing is known of it.
#define IOF_ERR_NOT_FOUND -46

// It makes sense, but is not offered.
#define IOF_ERR_NOT_SUPPORTED -47

// A value is of another type.
#define IOF_ERR_TYPE_MISMATCH -18

// A type that this library does not handle.
#define IOF_ERR_UNKNOWN_DATA_TYPE -16

// Some of it worked.
#define IOF_ERR_PARTIAL_SUCCESS -52

// The engine has gone.
#define IOF_ERR_LOST_CONNECTION -61

// It is not to be had now.
#define IOF_ERR_NOT_AVAILABLE -64

// A job has ended, with exit code 0.
#define IOF_EVENT_JOB_END -145

// It worked at once; no callback follows.
#define IOF_OPERATION_SUCCEEDED -157

// Forwarding itself failed.
#define IOF_ERR_IOF_FAILURE -172

// The stream is complete: nothing will follow.
#define IOF_ERR_IOF_COMPLETE -173

// A signal ended the process of a job that failed first.
#define IOF_ERR_JOB_ABORTED_BY_SIG -184

// A process of a job ended with another exit code than 0.
#define IOF_ERR_JOB_NON_ZERO_TERM -187

// A job could not be started.
#define IOF_ERR_JOB_FAILED_TO_LAUNCH -181

// A job has started.
#define IOF_EVENT_JOB_START -191

// Send no more until told. Ours.
#define IOF_ERR_IOF_XOFF -405

// Nobody could log it (RFC0032). Ours.
#define IOF_ERR_OPERATION_FAILED -3331

// Type: nothing.
#define IOF_UNDEF 0

// Type: bool
#define IOF_BOOL 1

// Type: uint8_t
#define IOF_BYTE 2

// Type: char *
#define IOF_STRING 3

// Type: size_t
#define IOF_SIZE 4

// Type: pid_t
#define IOF_PID 5

// Type: int
#define IOF_INT 6

// Type: int8_t
#define IOF_INT8 7

// Type: int16_t
#define IOF_INT16 8

// Type: int32_t
#define IOF_INT32 9

// Type: int64_t
#define IOF_INT64 10

// Type: unsigned int
#define IOF_UINT 11

// Type: uint8_t
#define IOF_UINT8 12

// Type: uint16_t
#define IOF_UINT16 13

// Type: uint32_t
#define IOF_UINT32 14

// Type: uint64_t
#define IOF_UINT64 15

// Type: float
#define IOF_FLOAT 16

// Type: double
#define IOF_DOUBLE 17

// Type: struct timeval
#define IOF_TIMEVAL 18

// Type: time_t
#define IOF_TIME 19

// Type: iof_status_t
#define IOF_STATUS 20

// Type: iof_value_t
#define IOF_VALUE 21

// Type: iof_proc_t
#define IOF_PROC 22

// Type: iof_info_t
#define IOF_INFO 24

// Type: iof_byte_object_t
#define IOF_BYTE_OBJECT 27

// Type: void *
#define IOF_POINTER 31

// Type: iof_proc_state_t
#define IOF_PROC_STATE 37

// Type: iof_proc_info_t
#define IOF_PROC_INFO 38

// Type: iof_data_array_t
#define IOF_DATA_ARRAY 39

// Type: iof_rank_t
#define IOF_PROC_RANK 40

// Type: iof_query_t
#define IOF_QUERY 41

// Type: iof_iof_channel_t
#define IOF_IOF_CHANNEL 45

// Type: iof_envar_t
#define IOF_ENVAR 46

// Type: iof_regattr_t
#define IOF_REGATTR 48

// Type: iof_nspace_t
#define IOF_PROC_NSPACE 60

// Flag: required.
#define IOF_INFO_REQD 1

// Flag: the last of an array.
#define IOF_INFO_ARRAY_END 2

// Flag: the value is not to be freed with the info.
#define IOF_INFO_PERSISTENT 16

// None.
#define IOF_FWD_NO_CHANNELS 0

// What a process reads.
#define IOF_FWD_STDIN_CHANNEL 1

// Its ordinary output.
#define IOF_FWD_STDOUT_CHANNEL 2

// Its errors.
#define IOF_FWD_STDERR_CHANNEL 4

// Its diagnostics.
#define IOF_FWD_STDDIAG_CHANNEL 8

// All that there are and will be.
#define IOF_FWD_ALL_CHANNELS 255

// Nobody knows.
#define IOF_PROC_STATE_UNDEF 0

// Being started.
#define IOF_PROC_STATE_LAUNCH_UNDERWAY 2

// Running.
#define IOF_PROC_STATE_RUNNING 5

// Ended, with exit code 0.
#define IOF_PROC_STATE_TERMINATED 20

// Could not be started.
#define IOF_PROC_STATE_FAILED_TO_START 53

// A signal ended it.
#define IOF_PROC_STATE_ABORTED_BY_SIG 54

// Ended, with another exit code.
#define IOF_PROC_STATE_TERM_NON_ZERO 62

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Connects to an engine, as PMIx_tool_init does; proc, which may be NULL, gets what the tool is
// called. Without infos it looks for the engine that has started the process (IOF_SERVER in the
// environment), else for the node's system-level one, else for the only one of the user's session.
// Each further call is counted, and changes nothing.
//
// Infos: IOF_SERVER_URI, IOF_SERVER_PIDINFO, IOF_SERVER_NSPACE, IOF_CONNECT_TO_SYSTEM,
// IOF_CONNECT_SYSTEM_FIRST, IOF_SERVER_TMPDIR, IOF_SYSTEM_TMPDIR, IOF_TOOL_NSPACE, IOF_TOOL_RANK,
// IOF_TOOL_DO_NOT_CONNECT, IOF_TOOL_CONNECT_OPTIONAL, IOF_EXTERNAL_PROGRESS.
//
// IOF_ERR_UNREACH: there is no engine, or more than one; IOF_ERR_TIMEOUT: it does not answer;
// IOF_ERR_INIT: this process is a server. Waits for the engine's welcome, five seconds at most;
// not in a callback.
iof_status_t iof_tool_init(struct iof_proc_t *proc, struct iof_info_t *info, size_t ninfo);

// Ends the connection, when it was called as often as iof_tool_init. What is under way is answered
// with IOF_ERR_UNREACH before it returns; no callback comes afterwards. What was pushed stays
// pushed. Not in a callback.
iof_status_t iof_tool_finalize(void);

// 1 if the process is a tool or a server, else 0.
int iof_Initialized(void);

// Registers for the output of processes, which need not exist yet. What they wrote before and is
// still cached comes first. For the callback see iof_iof_cbfunc_t; without one, output goes to the
// program's own stdout and stderr, in whole lines, and what is missing is told on stderr.
//
// Without regcbfunc it waits, and gives the handler's number, 1 or more. With one it gives
// IOF_SUCCESS, and regcbfunc is called with the number or the error, before anything comes of the
// registration.
//
// Directives: IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST,
// IOF_IOF_BUFFERING_SIZE, IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US, IOF_NO_BACKLOG.
// IOF_ERR_NOT_SUPPORTED: stdin, or a directive that is required and can't be honoured.
iof_status_t iof_IOF_pull(const struct iof_proc_t *procs,
                          size_t nprocs,
                          const struct iof_info_t *directives,
                          size_t ndirs,
                          iof_iof_channel_t channel,
                          iof_iof_cbfunc_t cbfunc,
                          iof_hdlr_reg_cbfunc_t regcbfunc,
                          void *regcbdata);

// Ends a registration. What was written before and is not handed out yet still comes, and then
// cbfunc is called, after which nothing does; without cbfunc this waits for that. There are no
// directives. IOF_ERR_NOT_FOUND: there is no such registration.
iof_status_t iof_IOF_deregister(size_t iofhdlr,
                                const struct iof_info_t *directives,
                                size_t ndirs,
                                iof_op_cbfunc_t cbfunc,
                                void *cbdata);

// Pushes bytes into the stdin of processes, and closes it behind them with IOF_IOF_COMPLETE (bo
// may be NULL or empty then). When all targets have them, cbfunc is called, for which they are
// copied; without it this waits, and nothing is copied. At a target the bytes of one push come in
// one piece, behind those of pushes that came before.
//
// With IOF_IOF_PUSH_STDIN and without bo, the library reads the program's own stdin until its end
// and pushes that; it answers when it has begun. A thread of its own goes on reading until then,
// also when the library is finalized.
//
// Directives: IOF_IOF_COMPLETE, IOF_IOF_PUSH_STDIN, IOF_IOF_DROP_NEWEST, IOF_PARTIAL,
// IOF_IOF_CACHE_SIZE. IOF_ERR_PARTIAL_SUCCESS: some targets did not get all; IOF_ERR_IOF_FAILURE:
// none did. While a target does not read, this waits, unless IOF_IOF_DROP_NEWEST says that it is
// to be cut off after a second.
iof_status_t iof_IOF_push(const struct iof_proc_t *targets,
                          size_t ntargets,
                          struct iof_byte_object_t *bo,
                          const struct iof_info_t *directives,
                          size_t ndirs,
                          iof_op_cbfunc_t cbfunc,
                          void *cbdata);

// Asks what the engine and its host know, and waits for the answer: an array of infos, one for
// each key of which something is known, to be freed by iof_Info_free. On any status but
// IOF_SUCCESS and IOF_ERR_PARTIAL_SUCCESS, *results is NULL. IOF_ERR_NOT_FOUND: nothing is known.
iof_status_t iof_Query_info(struct iof_query_t *queries,
                            size_t nqueries,
                            struct iof_info_t **results,
                            size_t *nresults);

// The same, without a wait: cbfunc is called with the answer, and must not be NULL.
iof_status_t iof_Query_info_nb(struct iof_query_t *queries,
                               size_t nqueries,
                               iof_info_cbfunc_t cbfunc,
                               void *cbdata);

// Has something logged, and waits until that is done: data name channels and have texts,
// directives say how. Without IOF_LOG_SOURCE the source is the process of a job that we are, if we
// are one. IOF_ERR_PARTIAL_SUCCESS: some channels have it; IOF_ERR_OPERATION_FAILED: none has, or
// a required one has not.
iof_status_t iof_Log(const struct iof_info_t *data,
                     size_t ndata,
                     const struct iof_info_t *directives,
                     size_t ndirs);

// The same, without a wait: cbfunc is called when it is done, and may be NULL.
iof_status_t iof_Log_nb(const struct iof_info_t *data,
                        size_t ndata,
                        const struct iof_info_t *directives,
                        size_t ndirs,
                        iof_op_cbfunc_t cbfunc,
                        void *cbdata);

// Registers a callback for events: IOF_EVENT_JOB_END, when a job that something was pulled from
// has ended, behind the last bytes of its last stream, with IOF_EVENT_AFFECTED_PROC,
// IOF_JOB_TERM_STATUS and, if it is known, IOF_EXIT_CODE (as a shell would show it);
// IOF_ERR_LOST_CONNECTION, when the engine has gone. No codes: all of them. Infos are not
// understood.
//
// Without cbfunc it gives the handler's number, 1 or more, and does not wait; with one it gives
// IOF_SUCCESS, and cbfunc is called with it.
iof_status_t iof_Register_event_handler(iof_status_t *codes,
                                        size_t ncodes,
                                        struct iof_info_t *info,
                                        size_t ninfo,
                                        iof_notification_fn_t evhdlr,
                                        iof_hdlr_reg_cbfunc_t cbfunc,
                                        void *cbdata);

// Takes an event handler away; it may still be called once. cbfunc, which may be NULL, is called
// then.
iof_status_t iof_Deregister_event_handler(size_t evhdlr_ref, iof_op_cbfunc_t cbfunc, void *cbdata);

// Does what there is to do, and calls callbacks, without a wait, if the program has said
// IOF_EXTERNAL_PROGRESS; else nothing. Functions that wait do the same meanwhile. To be called
// when iof_progress_fd is readable, or the time of iof_progress_timeout is over. In a callback it
// does nothing.
void iof_Progress(void);

// A descriptor for the program's own event loop (poll, epoll): it is readable when iof_Progress is
// to be called. It stays the library's. Below zero: there is none, without IOF_EXTERNAL_PROGRESS.
// A server has it once it has called iof_IOF_pull or another function of a tool.
int iof_progress_fd(void);

// For how many milliseconds at most the event loop may wait for iof_progress_fd, to be asked
// before each wait; -1: without end.
int iof_progress_timeout(void);

// Why the last call on this thread failed that gave an error, in words, and what to do about it;
// empty if nobody knows more than the status. It stays where it is until the thread ends, and says
// something else after the thread's next call.
const char *iof_last_error(void);

// Fills a process.
iof_status_t iof_Load_procid(struct iof_proc_t *p, const char *ns, iof_rank_t rk);

// Fills a value with a copy of data, of which the type says what it points to; of IOF_STRING it is
// the text itself, of IOF_POINTER the value itself, of IOF_BOOL NULL stands for true. What was in
// the value before is not freed.
iof_status_t iof_Value_load(struct iof_value_t *val, const void *data, iof_data_type_t type);

// Gives a copy of what a value holds: numbers and flags into what *data points to, others as
// memory to be freed. *sz is how many bytes it has.
iof_status_t iof_Value_unload(struct iof_value_t *val, void **data, size_t *sz);

// Frees what a value points to, not the value itself.
void iof_Value_destruct(struct iof_value_t *val);

// Copies a value with all that it points to. What was in dest before is not freed.
iof_status_t iof_Value_xfer(struct iof_value_t *dest, const struct iof_value_t *src);

// Frees the elements of an array, not the structure itself.
void iof_Data_array_destruct(struct iof_data_array_t *d);

// Fills an info, as iof_Value_load does with its value; it is not required. Frees nothing.
iof_status_t iof_Info_load(struct iof_info_t *info, const char *key, const void *data, iof_data_type_t type);

// Says that who can't honour an info is to refuse what it comes with.
void iof_Info_required(struct iof_info_t *info);

// Frees an array of infos that the library gave, or PMIX_INFO_CREATE, with all their values.
void iof_Info_free(struct iof_info_t *info, size_t ninfo);

// Copies an info with all that its value points to. Frees nothing.
iof_status_t iof_Info_xfer(struct iof_info_t *dest, const struct iof_info_t *src);

// Begins a list of infos, to be used by one thread at a time and given back by
// iof_Info_list_release.
void *iof_Info_list_start(void);

// Adds an info as iof_Info_load makes it.
iof_status_t iof_Info_list_add(void *ptr, const char *key, const void *value, iof_data_type_t type);

// Adds a copy of an info.
iof_status_t iof_Info_list_xfer(void *ptr, const struct iof_info_t *info);

// Makes an array of copies of what is in a list; IOF_ERR_NOT_FOUND if that is nothing.
iof_status_t iof_Info_list_convert(void *ptr, struct iof_data_array_t *par);

// Frees a list with all that is in it.
void iof_Info_list_release(void *ptr);

// The library's version.
const char *iof_Get_version(void);

// The name of a status, as PMIx spells its constant.
const char *iof_Error_string(iof_status_t status);

// The channels of a set, with spaces between them; NONE for none.
const char *iof_IOF_channel_string(iof_iof_channel_t channel);

// The name of where a process is in its life.
const char *iof_Proc_state_string(iof_proc_state_t state);

// The name of a type.
const char *iof_Data_type_string(iof_data_type_t type);

// Starts the engine: there is one in a process, which is no tool then. Tools of the same user find
// it (iof_tool_init), unless the module or the infos say otherwise. The module may be NULL: a
// launcher that forwards what its own ranks write has no part to play.
//
// Infos: IOF_SERVER_TOOL_SUPPORT, IOF_SERVER_SYSTEM_SUPPORT, IOF_SERVER_TMPDIR, IOF_SYSTEM_TMPDIR,
// IOF_SERVER_GATEWAY, IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST, IOF_DROP_NONE,
// IOF_IOF_BUFFERING_SIZE, IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US, IOF_EXTERNAL_PROGRESS,
// IOF_BACKEND.
//
// It installs no signal handlers, and raises the limit on open files. IOF_ERR_EXISTS: there is one
// already; IOF_ERR_INIT: the process is a tool; IOF_ERR_OUT_OF_RESOURCE: threads or files are
// short, or the directory of the sockets will not do.
iof_status_t iof_server_init(struct iof_server_module_t *module, struct iof_info_t *info, size_t ninfo);

// Ends the engine. Ranks that still run lose their pipes, so wait for the jobs first. Tools get
// what they are due, for half a second at most; the launcher's own callbacks are called with all
// that there is before it returns. Not in a callback.
iof_status_t iof_server_finalize(void);

// The path of the socket that tools connect to (IOF_SERVER_URI); NULL if there is none. Valid
// until iof_server_finalize.
const char *iof_server_uri(void);

// Starts the processes of a job, as PMIx_Spawn has it done by a host: ranks are numbered on from
// one program to the next, and have in their environment IOF_NSPACE, IOF_RANK, IOF_NPROCS,
// IOF_APPNUM, IOF_SERVER and IOF_STDDIAG_FD. nspace, which may be NULL, gets the job's name. Each
// rank has a process group of its own. Until it returns, the other functions for launchers give
// IOF_ERR_NOT_FOUND for the job, in callbacks as well.
//
// Infos of the job: IOF_NSPACE (its name; else one is made), IOF_STDIN_TGT, IOF_STDIN_INHERIT,
// IOF_ELSEWHERE, IOF_FWD_STDIN, IOF_FWD_STDOUT, IOF_FWD_STDERR, IOF_FWD_STDDIAG,
// IOF_IOF_CACHE_SIZE, IOF_IOF_DROP_OLDEST, IOF_IOF_DROP_NEWEST, IOF_IOF_BUFFERING_SIZE,
// IOF_IOF_BUFFERING_TIME, IOF_BUFFERING_TIME_US.
//
// IOF_ERR_EXISTS: there is a job of that name; IOF_ERR_OUT_OF_RESOURCE: files, memory or processes
// are short; IOF_ERR_JOB_FAILED_TO_LAUNCH: a program can't be started; nothing runs then.
iof_status_t iof_server_spawn(const struct iof_info_t *job_info,
                              size_t ninfo,
                              const struct iof_app_t *apps,
                              size_t napps,
                              char *nspace);

// Forwards what processes write that the launcher has started itself, as one job. The descriptors
// are the library's from this call on, and closed if it fails, unless that is with
// IOF_ERR_BAD_PARAM or IOF_ERR_INIT. Infos: as iof_server_spawn, those of stdin and the name
// excepted.
//
// IOF_ERR_BAD_PARAM: there is no rank, or a number that no rank can have or that two have; or a
// descriptor is not open, or named twice; IOF_ERR_EXISTS: there is a job of that name;
// IOF_ERR_NOT_SUPPORTED: a descriptor is of a kind that can't be read, or a process is not the
// launcher's child.
iof_status_t iof_server_adopt(const char *nspace,
                              const struct iof_adopted_t *ranks,
                              size_t nranks,
                              const struct iof_info_t *info,
                              size_t ninfo);

// Says how an adopted process ended that the launcher waits for itself, with the status of
// wait(2). IOF_ERR_NOT_FOUND: it is none of these, or that was said before.
iof_status_t iof_server_report_exit(const struct iof_proc_t *proc, int wait_status);

// Waits until every process of a job that runs here has ended, all that they wrote was read, and
// the launcher's own registrations have it. exit_code, which may be NULL, gets the exit code of
// the process that failed first, 128 + n if signal n ended it, or 0. Not in a callback.
// IOF_ERR_UNREACH: the library was finalized meanwhile, or the job forgotten.
iof_status_t iof_server_wait(const char *nspace, int *exit_code);

// Sends a signal to every process of a job, with the children that they have in their process
// groups. IOF_ERR_BAD_PARAM: it is no signal, or 0, or a real-time one.
iof_status_t iof_server_signal(const char *nspace, int signal);

// Forgets a job that has ended, with what is cached of it; its name is free again.
// IOF_ERR_NOT_FOUND: there is no such job; IOF_ERR_RESOURCE_BUSY: it has not ended.
iof_status_t iof_server_forget(const char *nspace);

// Takes output that the launcher has received from another node, of one process and one channel;
// with IOF_IOF_COMPLETE it is the last of the stream, and bo may be NULL or empty. cbfunc, which
// may be NULL, is called when the bytes are in the ring or were dropped; they were copied before
// this returns, which does not wait. Infos: IOF_IOF_COMPLETE, IOF_READ_TIME.
//
// IOF_ERR_IOF_XOFF: a registration of the launcher's own holds the stream back, deliver again when
// cbfunc was called for what was delivered before; IOF_ERR_IOF_COMPLETE: the stream is complete;
// IOF_ERR_BAD_PARAM: the process runs here, or the channel is no output.
iof_status_t iof_server_IOF_deliver(const struct iof_proc_t *source,
                                    iof_iof_channel_t channel,
                                    const struct iof_byte_object_t *bo,
                                    const struct iof_info_t *info,
                                    size_t ninfo,
                                    iof_op_cbfunc_t cbfunc,
                                    void *cbdata);

// Says that the processes of a job that run elsewhere have ended and all that they wrote was
// delivered. exit_code: that of the job, as far as it is known there; below zero if it is not.
// IOF_ERR_NOT_FOUND: it was said before, or all of them run here.
iof_status_t iof_server_end_job(const char *nspace, int exit_code);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* IOF_H */
