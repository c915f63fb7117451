//! The attributes of jobs that clients of libpmix spawn, beside those of other spawners. `iof.h` does
//! not have them.

attributes! {
    /// The nodes of the job: this one.
    PMIX_HOST = "pmix.host": Text, at PmixSpawn;
    /// Reports the end of the job to the tool, which is done in any case.
    PMIX_NOTIFY_COMPLETION = "pmix.notecomp": Bool, at PmixSpawn;
    /// The ranks are tools.
    PMIX_SPAWN_TOOL = "pmix.spwn.tool": Bool, at PmixSpawn;
    /// The ranks are daemons of a debugger, and so tools.
    PMIX_DEBUGGER_DAEMONS = "pmix.debugger": Bool, at PmixSpawn;
    /// The job that the daemons of a debugger are for.
    PMIX_DEBUG_JOB = "pmix.dbg.job": Text, at PmixSpawn;
    /// The processes that the daemons of a debugger are for.
    PMIX_DEBUG_TARGET = "pmix.dbg.tgt": Process, at PmixSpawn;
    /// The number of daemons on each node of their target.
    PMIX_DEBUG_DAEMONS_PER_NODE = "pmix.dbg.dpnd": Number from 0 to 65535, at PmixSpawn;
    /// The number of daemons for each process of their target.
    PMIX_DEBUG_DAEMONS_PER_PROC = "pmix.dbg.dpproc": Number from 0 to 65535, at PmixSpawn;
}
