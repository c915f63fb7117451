
// The constants below are PMIx's, for programs that are written after its Standard. The library
// itself returns none of these statuses and states. It ignores these attributes, and refuses a
// request if one of them is required.

// The state of a job, such as IOF_JOB_STATE_RUNNING.
typedef uint8_t iof_job_state_t;
#define IOF_JOB_STATE_UNDEF 0
#define IOF_JOB_STATE_AWAITING_ALLOC 1
#define IOF_JOB_STATE_LAUNCH_UNDERWAY 2
#define IOF_JOB_STATE_RUNNING 3
#define IOF_JOB_STATE_SUSPENDED 4
#define IOF_JOB_STATE_CONNECTED 5
#define IOF_JOB_STATE_UNTERMINATED 15
#define IOF_JOB_STATE_TERMINATED 20
#define IOF_JOB_STATE_TERMINATED_WITH_ERROR 50
#define IOF_JOB_STATE_PREPPED 1

#define IOF_TIMEOUT "pmix.timeout"
#define IOF_NOTIFY_COMPLETION "pmix.notecomp"
#define IOF_EVENT_HDLR_NAME "pmix.evname"
#define IOF_EVENT_HDLR_FIRST "pmix.evfirst"
#define IOF_EVENT_HDLR_LAST "pmix.evlast"
#define IOF_EVENT_HDLR_FIRST_IN_CATEGORY "pmix.evfirstcat"
#define IOF_EVENT_HDLR_LAST_IN_CATEGORY "pmix.evlastcat"
#define IOF_EVENT_HDLR_BEFORE "pmix.evbefore"
#define IOF_EVENT_HDLR_AFTER "pmix.evafter"
#define IOF_EVENT_HDLR_PREPEND "pmix.evprepend"
#define IOF_EVENT_HDLR_APPEND "pmix.evappend"
#define IOF_EVENT_CUSTOM_RANGE "pmix.evrange"
#define IOF_EVENT_AFFECTED_PROCS "pmix.evaffected"
#define IOF_EVENT_NON_DEFAULT "pmix.evnondef"
#define IOF_EVENT_RETURN_OBJECT "pmix.evobject"
#define IOF_EVENT_DO_NOT_CACHE "pmix.evnocache"
#define IOF_EVENT_SILENT_TERMINATION "pmix.evsilentterm"
#define IOF_EVENT_PROXY "pmix.evproxy"
#define IOF_EVENT_TEXT_MESSAGE "pmix.evtext"
#define IOF_EVENT_TIMESTAMP "pmix.evtstamp"
#define IOF_EVENT_ONESHOT "pmix.evone"
#define IOF_EVENT_TERMINATE_SESSION "pmix.evterm.sess"
#define IOF_EVENT_TERMINATE_JOB "pmix.evterm.job"
#define IOF_EVENT_TERMINATE_NODE "pmix.evterm.node"
#define IOF_EVENT_TERMINATE_PROC "pmix.evterm.proc"
#define IOF_EVENT_ACTION_TIMEOUT "pmix.evtimeout"
#define IOF_NOTIFY_JOB_EVENTS "pmix.note.jev"
#define IOF_NOTIFY_PROC_TERMINATION "pmix.noteproc"
#define IOF_NOTIFY_PROC_ABNORMAL_TERMINATION "pmix.noteabproc"
#define IOF_EVENT_BASE "pmix.evbase"
#define IOF_EVENT_NO_TERMINATION "pmix.evnoterm"
#define IOF_EVENT_WANT_TERMINATION "pmix.evterm"
#define IOF_NOTIFY_LAUNCH "pmix.note.lnch"
