//! The attributes of jobs that clients of libpmix spawn, beside those of other spawners.

attributes! {
    /// The nodes of the job: this one.
    ///
    /// PMIx_Spawn of libpmix (string): the nodes of the job. Any but this node is refused. iof_Spawn
    /// refuses it.
    PMIX_HOST = "pmix.host": Text, at PmixSpawn;
    /// Reports the end of the job to the tool, which is done in any case.
    ///
    /// PMIx_Spawn of a tool of libpmix (bool): the end of the job is reported, which is done in any
    /// case. iof_Spawn refuses it.
    PMIX_NOTIFY_COMPLETION = "pmix.notecomp": Bool, at PmixSpawn;
    /// The ranks are tools.
    ///
    /// PMIx_Spawn of a tool of libpmix (bool): the ranks of the job are tools. iof_Spawn refuses it.
    PMIX_SPAWN_TOOL = "pmix.spwn.tool": Bool, at PmixSpawn;
    /// The ranks are daemons of a debugger, and so tools.
    ///
    /// PMIx_Spawn of a tool of libpmix (bool): the ranks of the job are daemons of a debugger.
    /// iof_Spawn refuses it.
    PMIX_DEBUGGER_DAEMONS = "pmix.debugger": Bool, at PmixSpawn;
    /// The job that the daemons of a debugger are for.
    ///
    /// PMIx_Spawn of a tool of libpmix (string): the job that the daemons are for. iof_Spawn refuses
    /// it.
    PMIX_DEBUG_JOB = "pmix.dbg.job": Text, at PmixSpawn;
    /// The processes that the daemons of a debugger are for.
    ///
    /// PMIx_Spawn of a tool of libpmix (proc): the processes that the daemons are for. iof_Spawn
    /// refuses it.
    PMIX_DEBUG_TARGET = "pmix.dbg.tgt": Process, at PmixSpawn;
    /// The number of daemons on each node of their target.
    ///
    /// PMIx_Spawn of a tool of libpmix (uint16): the number of daemons on each node of their target.
    /// iof_Spawn refuses it.
    PMIX_DEBUG_DAEMONS_PER_NODE = "pmix.dbg.dpnd": Number from 0 to 65535, at PmixSpawn;
    /// The number of daemons for each process of their target.
    ///
    /// PMIx_Spawn of a tool of libpmix (uint16): the number of daemons for each process of their
    /// target. iof_Spawn refuses it.
    PMIX_DEBUG_DAEMONS_PER_PROC = "pmix.dbg.dpproc": Number from 0 to 65535, at PmixSpawn;
}
