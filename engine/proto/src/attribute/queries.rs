//! The attributes of queries: keys and qualifiers.

attributes! {
    /// The names of the running jobs, separated by commas (RFC0001).
    ///
    /// Query (string): the names of the running jobs, separated by commas.
    PMIX_QUERY_NAMESPACES = "pmix.qry.ns": Names, at Query;
    /// The status of the job that the qualifier `PMIX_NSPACE` names, or of the only job (RFC0001).
    /// The status is `PMIX_EVENT_JOB_START` while the job runs. Afterwards it is
    /// `PMIX_EVENT_JOB_END` if no process failed, `PMIX_ERR_JOB_ABORTED_BY_SIG` if a signal ended
    /// the process that failed first, and `PMIX_ERR_JOB_NON_ZERO_TERM` otherwise.
    /// If the qualifiers name several jobs, the answer is a list of them.
    ///
    /// Query (status): the status of the job that the qualifier IOF_NSPACE names, or of the only
    /// job. It is IOF_EVENT_JOB_START while the job runs, and then IOF_EVENT_JOB_END,
    /// IOF_ERR_JOB_NON_ZERO_TERM or IOF_ERR_JOB_ABORTED_BY_SIG. If the qualifier names several
    /// jobs, the answer is an array of infos, each with the name of a job as its key and the status
    /// as its value.
    PMIX_QUERY_JOB_STATUS = "pmix.qry.jst": Status or Jobs, at Query Answer;
    /// The scheduler's queues, separated by commas (RFC0001). Answered by the host.
    ///
    /// Query (string): the scheduler's queues, separated by commas. Answered by the launcher.
    PMIX_QUERY_QUEUE_LIST = "pmix.qry.qlst": Names, at Query;
    /// The status of the scheduler's queue that the qualifier `pmix.alloc.queue` names (RFC0001).
    /// Answered by the host.
    ///
    /// Query: the status of the queue that the qualifier "pmix.alloc.queue" names. Answered by the
    /// launcher.
    PMIX_QUERY_QUEUE_STATUS = "pmix.qry.qst": Any, at Query;
    /// The processes of the jobs and ranks that the qualifiers name, or all (RFC0010). The engine
    /// knows a process on another node only if it has received output of it; the host may know
    /// more. The processes of a job that is being started have the state "launching".
    ///
    /// Query (array of proc_info): the processes of the jobs and ranks that the qualifiers name, or
    /// all. The engine knows a process on another node only if it has received output of it; the
    /// launcher may add others.
    PMIX_QUERY_PROC_TABLE = "pmix.qry.ptable": Processes, at Query;
    /// The same table as that of `PMIX_QUERY_PROC_TABLE`, with the processes of this node only.
    ///
    /// Query (array of proc_info): the same, with the processes of the engine's node only.
    PMIX_QUERY_LOCAL_PROC_TABLE = "pmix.qry.lptable": Processes, at Query;
    /// The processes of this node, or of the nodes that the qualifiers name (RFC0010).
    ///
    /// Query (array of proc): the processes on the engine's node, or on the nodes that IOF_HOSTNAME
    /// or IOF_NODEID name.
    PMIX_LOCAL_PROCS = "pmix.lprocs": Processes, at Query;
    /// The ranks of a job on this node, separated by commas (RFC0010).
    ///
    /// Query (string): the ranks on the engine's node, or on the named nodes, of the job that the
    /// qualifier IOF_NSPACE names, or of the only job, separated by commas.
    PMIX_LOCAL_PEERS = "pmix.lpeers": Text, at Query;
    /// The number of processes of the job that the engine knows.
    ///
    /// Query, or in an answer to IOF_QUERY_NAMESPACE_INFO (uint32): the number of processes of the
    /// job that the engine knows. A query concerns the job that the qualifier IOF_NSPACE names, or
    /// the only job.
    PMIX_JOB_SIZE = "pmix.job.size": Number, at Query Answer;
    /// The number of processes of the jobs that the qualifiers name, or of all.
    ///
    /// Query (uint32): the number of processes that the engine knows, of the jobs that the
    /// qualifiers name, or of all jobs.
    PMIX_UNIV_SIZE = "pmix.univ.size": Number, at Query;
    /// The number of process sets. The engine defines none; the host may.
    ///
    /// Query (uint32): the number of process sets, which is 0: the engine defines none.
    PMIX_QUERY_NUM_PSETS = "pmix.qry.psetnum": Number, at Query;
    /// The names of process sets, separated by commas. The engine defines none; the host may.
    ///
    /// Query (string): the names of process sets, separated by commas. The engine defines none.
    PMIX_QUERY_PSET_NAMES = "pmix.qry.psets": Names, at Query;
    /// The names of process groups, separated by commas. Ranks construct them.
    ///
    /// Query (string): the names of process groups, separated by commas. Ranks construct them.
    PMIX_QUERY_GROUP_NAMES = "pmix.qry.pgrp": Names, at Query;
    /// The attributes that every spawn honours, separated by commas, if the host grants jobs.
    ///
    /// Query (string): the attributes that every spawn honours, separated by commas, if the launcher
    /// grants jobs. It may add some (IOF_HOST_QUERIES).
    PMIX_QUERY_SPAWN_SUPPORT = "pmix.qry.spawn": Names, at Query;
    /// The attributes with which tools debug processes, separated by commas: none, except for tools of
    /// libpmix.
    ///
    /// Query (string): the attributes with which tools debug processes, separated by commas. The
    /// library has none; the launcher may add some (IOF_HOST_QUERIES).
    PMIX_QUERY_DEBUG_SUPPORT = "pmix.qry.debug": Names, at Query;
    /// The jobs that the qualifiers name, or all.
    ///
    /// Query (array of infos): the jobs that the qualifiers name, or all. Each is an info whose
    /// value is an array of infos: IOF_NSPACE, IOF_JOB_SIZE, IOF_QUERY_JOB_STATUS, IOF_CMD_LINE
    /// and, if known, IOF_EXIT_CODE.
    PMIX_QUERY_NAMESPACE_INFO = "pmix.qry.nsinfo": Jobs, at Query;
    /// The channels that a message can be logged to, as keys separated by commas (RFC0032).
    ///
    /// Query (string): the channels that messages can be logged to, separated by commas (RFC0032).
    PMIX_QUERY_LOG_CHANNELS = "pmix.qry.lchans": Names, at Query;
    /// The attributes that each operation supports.
    ///
    /// Query (array of infos): the attributes that each function supports. Each info has the name
    /// of a function of PMIx as its key, such as "PMIx_IOF_pull", and an array of iof_regattr_t as
    /// its value.
    PMIX_QUERY_ATTRIBUTE_SUPPORT = "pmix.qry.attrs": Attributes, at Query;
    /// The streams of the jobs and ranks that the qualifiers name, or all, with their byte counts
    /// and readers.
    ///
    /// Query (array of infos): the streams of the jobs and ranks that the qualifiers name, or all.
    /// Each is an info whose value is an array of infos: IOF_PROCID, IOF_CHANNEL, IOF_LOGGED,
    /// IOF_PRODUCED, IOF_CACHED, IOF_DROPPED, IOF_GENERATION, IOF_READERS and IOF_IOF_COMPLETE. An
    /// extension of iof.
    IOF_QUERY_STATS = "iof.qry.stats": Streams, at Query;
    /// The name of the job.
    ///
    /// iof_server_spawn, iof_Spawn, a qualifier of a query, or an answer to IOF_QUERY_NAMESPACE_INFO (string):
    /// the name of the job.
    PMIX_NSPACE = "pmix.nspace": Text, at Qualifier ServerSpawn ToolSpawn PmixSpawn Callback Answer;
    /// The rank. May be repeated.
    ///
    /// Qualifier of a query (rank): restricts the answer to this rank. May be repeated.
    PMIX_RANK = "pmix.rank": Number from 0 to 4294967295, at Qualifier;
    /// The process, instead of the job and the rank. In an answer: the source of the stream.
    ///
    /// Qualifier of a query (proc): restricts the answer to this process. Cannot be combined with
    /// IOF_NSPACE or IOF_RANK. In an answer to IOF_QUERY_STATS: the source of the stream.
    PMIX_PROCID = "pmix.procid": Process, at Qualifier Answer;
    /// The node of the processes, by its name. May be repeated.
    ///
    /// Qualifier of a query (string): restricts the answer to the processes of the node with this
    /// name. May be repeated. The engine knows its own node; the launcher may know others.
    PMIX_HOSTNAME = "pmix.hname": Text, at Qualifier;
    /// The node of the processes, by its number. The engine's node is 0 while it knows no other
    /// node; otherwise only the host knows numbers.
    ///
    /// Qualifier of a query (uint32): the same as IOF_HOSTNAME, by the number of the node. The
    /// engine's node is 0 while it knows no other; otherwise the launcher answers.
    PMIX_NODEID = "pmix.nodeid": Number from 0 to 4294967295, at Qualifier;
}
