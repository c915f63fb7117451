//! The attributes of queries: keys and qualifiers.

attributes! {
    /// The names of the running jobs, separated by commas (RFC0001).
    PMIX_QUERY_NAMESPACES = "pmix.qry.ns": Text, at Query;
    /// The status of the job that the qualifier `PMIX_NSPACE` names, or of the only job (RFC0001).
    /// The status is `PMIX_EVENT_JOB_START` while the job runs. Afterwards it is
    /// `PMIX_EVENT_JOB_END` if no process failed, `PMIX_ERR_JOB_ABORTED_BY_SIG` if a signal ended
    /// the process that failed first, and `PMIX_ERR_JOB_NON_ZERO_TERM` otherwise.
    /// If the qualifiers name several jobs, the answer is a list of them.
    PMIX_QUERY_JOB_STATUS = "pmix.qry.jst": Status or Jobs, at Query Answer;
    /// The scheduler's queues, separated by commas (RFC0001). Answered by the host.
    PMIX_QUERY_QUEUE_LIST = "pmix.qry.qlst": Text, at Query;
    /// The status of the scheduler's queue that the qualifier `pmix.alloc.queue` names (RFC0001).
    /// Answered by the host.
    PMIX_QUERY_QUEUE_STATUS = "pmix.qry.qst": Any, at Query;
    /// The processes of the jobs and ranks that the qualifiers name, or all (RFC0010). The engine
    /// knows a process on another node only if it has received output of it; the host may know
    /// more. The processes of a job that is being started have the state "launching".
    PMIX_QUERY_PROC_TABLE = "pmix.qry.ptable": Processes, at Query;
    /// The same table as that of `PMIX_QUERY_PROC_TABLE`, with the processes of this node only.
    PMIX_QUERY_LOCAL_PROC_TABLE = "pmix.qry.lptable": Processes, at Query;
    /// The processes of this node, or of the nodes that the qualifiers name (RFC0010).
    PMIX_LOCAL_PROCS = "pmix.lprocs": Processes, at Query;
    /// The ranks of a job on this node, separated by commas (RFC0010).
    PMIX_LOCAL_PEERS = "pmix.lpeers": Text, at Query;
    /// The number of processes of the job that the engine knows.
    PMIX_JOB_SIZE = "pmix.job.size": Number, at Query Answer;
    /// The attributes with which tools spawn processes, separated by commas: none of the engine.
    PMIX_QUERY_SPAWN_SUPPORT = "pmix.qry.spawn": Text, at Query;
    /// The attributes with which tools control processes, separated by commas: none of the engine.
    PMIX_QUERY_DEBUG_SUPPORT = "pmix.qry.debug": Text, at Query;
    /// The jobs that the qualifiers name, or all.
    PMIX_QUERY_NAMESPACE_INFO = "pmix.qry.nsinfo": Jobs, at Query;
    /// The channels that a message can be logged to, as keys separated by commas (RFC0032).
    PMIX_QUERY_LOG_CHANNELS = "pmix.qry.lchans": Text, at Query;
    /// The attributes that each operation supports.
    PMIX_QUERY_ATTRIBUTE_SUPPORT = "pmix.qry.attrs": Attributes, at Query;
    /// The streams of the jobs and ranks that the qualifiers name, or all, with their byte counts
    /// and readers.
    IOF_QUERY_STATS = "iof.qry.stats": Streams, at Query;
    /// The name of the job.
    PMIX_NSPACE = "pmix.nspace": Text, at Qualifier ServerSpawn Answer;
    /// The rank. May be repeated.
    PMIX_RANK = "pmix.rank": Number from 0 to 4294967295, at Qualifier;
    /// The process, instead of the job and the rank. In an answer: the source of the stream.
    PMIX_PROCID = "pmix.procid": Process, at Qualifier Answer;
    /// The node of the processes, by its name. May be repeated.
    PMIX_HOSTNAME = "pmix.hname": Text, at Qualifier;
    /// The node of the processes, by its number, which only the host knows.
    PMIX_NODEID = "pmix.nodeid": Number from 0 to 4294967295, at Qualifier;
}
