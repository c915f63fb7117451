//! The reasons why options of other launchers are refused or have no effect, each with what to
//! write.

pub const NAME_NODES: &str =
    "write --hosts or --hostfile with the nodes to run on, or leave it out to run all ranks on this node";
pub const PER_NODE: &str =
    "write -n with the number of all ranks, and --hosts with the slots of each node, such as --hosts a:4,b:4";
pub const NO_MAP: &str = "iof maps ranks by slot or by node: write --map-by slot or --map-by node, or leave it out; iof query procs \
     shows the ranks while they run";
pub const NOT_BOUND: &str = "iof binds ranks to cores or not at all: write --bind-to core, or start the program with taskset(1), such as \
     sh -c 'exec taskset -c $IOF_RANK PROG'";
pub const ALLOCATION: &str =
    "iof does not allocate resources: write it to salloc or srun, and start iof run in the allocation";
pub const NO_COPY: &str = "iof copies no files to nodes: leave it out";
pub const NO_MCA: &str =
    "iof has no MCA parameters: leave it out, or write -x OMPI_MCA_NAME=VALUE to set one for the program";
pub const NO_MPI: &str =
    "iof serves MPI programs by PMI-1 and PMIx (--mpi) and has no such setting: leave it out";
pub const CLEAN_ENVIRONMENT: &str =
    "ranks inherit the environment of iof: write env -i NAME=VALUE... before iof run";
pub const DIRECT: &str = "iof starts ranks itself, on other nodes by --rsh: leave it out, or write that";
pub const APP_FILE: &str = "iof reads no file of programs: write them in the command, separated by ':'";
pub const NO_DEBUGGER: &str =
    "iof starts no debugger: attach it to the pid that iof query procs shows, or start it as the program";
pub const NO_RESTART: &str =
    "iof does not restart ranks: leave it out, or write --kill-on-bad-exit=0 to let the other ranks run on";
pub const NO_CHECKPOINT: &str =
    "iof takes no checkpoints of ranks: leave it out, or let the program write its own";
pub const NO_SCRIPTS: &str =
    "iof runs no scripts around the ranks: write them as the program, such as sh -c 'BEFORE; PROG; AFTER'";
pub const NO_PROFILE: &str =
    "iof does not measure programs: leave it out, or start the program with time(1) or perf(1)";
pub const NO_MAIL: &str =
    "iof sends no mail about jobs: write iof log --channel local_syslog MESSAGE when the job ends";
pub const PIDS: &str = "write iof ps for the engines and iof query procs for the pids, while they run";
pub const REPORTS: &str =
    "write --summary or --timings for reports at the end, or iof top in another terminal";
pub const FROM_NOW: &str = "iof run shows all output of its job: leave it out, or write iof pull --tail N JOB or \
     iof pull --since 10s JOB for a job that runs";
pub const OWN_FILES: &str = "write -o PATTERN -e all for stdout only, or -o PATTERN -e PATTERN for both";
