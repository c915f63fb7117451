//! What users of mpirun, srun and mpiexec type: each spelling with its meaning for `iof run`.
//!
//! [`translate`](translate::translate) replaces the spellings before clap reads the arguments.

mod convert;
pub mod translate;

use std::ffi::{OsStr, OsString};

/// One option of other launchers, in all of its spellings.
pub struct Spelling {
    /// The spellings. One of several letters has two dashes here; one dash is accepted, too.
    pub names: &'static [&'static str],
    pub values: Values,
    pub meaning: Meaning,
}

/// The values that follow an option.
#[derive(Clone, Copy)]
pub enum Values {
    None,
    One,
    NameAndValue,
    /// One value if the next argument is one, otherwise this default.
    Optional(fn(&OsStr) -> bool, &'static str),
}

/// The meaning of a spelling for `iof run`.
#[cfg_attr(not(test), allow(dead_code, reason = "some texts are only for the book"))]
pub enum Meaning {
    /// The same as these arguments. Each `{}` stands for the next value.
    Same(&'static [&'static str]),
    /// The same as these arguments, for this program and for all further ones.
    Everywhere(&'static [&'static str]),
    /// Depends on the value: a text for the documentation, and the function that returns the
    /// arguments or the reason why the value is refused.
    Depends(&'static str, fn(&OsStr) -> Result<Vec<OsString>, String>),
    /// `iof run` does this anyway, for this reason.
    Always(&'static str),
    /// Refused, with the reason and with what to write.
    Refused(&'static str),
}

use self::convert::{NO_MAP, NOT_BOUND};
use Meaning::{Always, Depends, Everywhere, Refused, Same};
use Values::{NameAndValue, None as No, One, Optional};

const fn row(names: &'static [&'static str], values: Values, meaning: Meaning) -> Spelling {
    Spelling { names, values, meaning }
}

const ONE_NODE: &str =
    "iof runs all ranks on this node: leave it out, or start iof run on the other node with ssh";
const PER_NODE: &str = "iof runs all ranks on this node: leave it out, or write -n with the number of ranks";
const ALLOCATION: &str =
    "iof does not allocate resources: write it to salloc or srun, and start iof run in the allocation";
const NO_MCA: &str =
    "iof has no MCA parameters: leave it out, or write -x OMPI_MCA_NAME=VALUE to set one for the program";
const CLEAN_ENVIRONMENT: &str =
    "ranks inherit the environment of iof: write env -i NAME=VALUE... before iof run";
const DIRECT: &str = "iof starts ranks without daemons or agents: leave it out";
const APP_FILE: &str = "iof reads no file of programs: write them in the command, separated by ':'";
const NO_DEBUGGER: &str =
    "iof starts no debugger: attach it to the pid that iof query procs shows, or start it as the program";
const VERBOSE: &str = "write --summary or --timings for reports at the end, or iof top in another terminal";
const OWN_FILES: &str = "write -o PATTERN -e all for stdout only, or -o PATTERN -e PATTERN for both";

/// All spellings that `iof run` does not have itself.
pub const SPELLINGS: &[Spelling] = &[
    // The number of ranks and the name of the job.
    row(&["--np", "--ntasks", "--n"], One, Same(&["-n", "{}"])),
    row(&["-c"], One, Refused("write -n for the number of ranks; iof does not bind ranks to processors")),
    row(&["-N", "--nodes"], One, Depends("`1` has no effect, others are refused", convert::nodes)),
    row(
        &["--ppn", "--npernode", "--ntasks-per-node", "--perhost", "--pernode", "--npersocket", "--ppr"],
        One,
        Refused(PER_NODE),
    ),
    row(&["-J", "--job-name"], One, Same(&["--nspace", "{}"])),
    // Output.
    row(&["-l", "--label", "--prepend-rank"], No, Same(&["--output", "rank"])),
    row(&["--tag-output"], No, Same(&["--output", "tag"])),
    row(&["--timestamp-output"], No, Same(&["--output", "timestamp"])),
    row(&["--merge-stderr-to-stdout"], No, Same(&["--output", "merge-stderr-to-stdout"])),
    row(&["--xml"], No, Same(&["--output", "xml"])),
    row(&["--xml-file"], One, Refused("write --output xml -o FILE")),
    row(&["-u", "--unbuffered"], No, Same(&["--output", ":raw"])),
    row(
        &["--output-filename"],
        One,
        Depends("`--output dir=DIR:copy`; with `:nocopy`, `--output dir=DIR`", convert::output_filename),
    ),
    row(&["--error"], One, Same(&["-e", "{}"])),
    row(&["--outfile-pattern", "--errfile-pattern", "--outfile", "--errfile"], One, Refused(OWN_FILES)),
    row(&["--prepend-pattern"], One, Refused("write --output rank, tag or timestamp, or several of them")),
    row(&["--xterm"], One, Refused("iof opens no windows: write iof pull --rank N in each terminal")),
    row(&["--print-all-exitcodes"], No, Same(&["--summary"])),
    row(
        &["-v", "--verbose", "-d", "--debug-devel", "--display-comm", "--show-progress"],
        No,
        Refused(VERBOSE),
    ),
    // Stdin and terminals.
    row(
        &["-i", "--input"],
        One,
        Depends("`--stdin` for `all`, `none` or a rank, otherwise `--stdin-file`", convert::input),
    ),
    row(&["--pty"], Optional(convert::is_rank_list, "0"), Same(&["--pty={}"])),
    // The environment of the ranks.
    row(&["--wd", "--cwd", "--chdir", "-D"], One, Same(&["--wdir", "{}"])),
    row(&["--set-cwd-to-session-dir"], No, Refused("write --wdir DIR")),
    row(&["--genv"], NameAndValue, Everywhere(&["-x", "{}={}"])),
    row(&["--env"], NameAndValue, Same(&["-x", "{}={}"])),
    row(&["--genvall", "--envall"], No, Always("ranks inherit the environment of iof")),
    row(&["--genvnone", "--envnone"], No, Refused(CLEAN_ENVIRONMENT)),
    row(&["--genvlist", "--envlist"], One, Refused(CLEAN_ENVIRONMENT)),
    row(
        &["--export"],
        One,
        Depends("`ALL` has no effect, `ALL,NAME=VALUE` is `-x NAME=VALUE`", convert::export),
    ),
    row(&["--path", "--prefix"], One, Refused("write -x PATH=DIR:$PATH")),
    row(&["--mca", "--gmca", "--prtemca", "--pmixmca"], NameAndValue, Refused(NO_MCA)),
    row(&["--tune", "--am"], One, Refused(NO_MCA)),
    row(&["--mpi"], One, Depends("`none` has no effect, others are refused", convert::mpi)),
    // Processors, nodes and resources.
    row(&["--oversubscribe", "-O", "--overcommit", "-s"], No, Always("iof does not count slots")),
    row(&["--allow-run-as-root"], No, Always("iof makes no difference for root")),
    row(&["--bind-to"], One, Depends("`none` has no effect, others are refused", convert::bind_to)),
    row(
        &[
            "--cpu-bind",
            "--mem-bind",
            "--membind",
            "--cpu-set",
            "--cpu-list",
            "--cpus-per-proc",
            "--cpus-per-rank",
        ],
        One,
        Refused(NOT_BOUND),
    ),
    row(
        &["--bind-to-core", "--bind-to-socket", "--use-hwthread-cpus", "--report-bindings"],
        No,
        Refused(NOT_BOUND),
    ),
    row(&["--map-by"], One, Depends("`:oversubscribe` has no effect, others are refused", convert::map_by)),
    row(&["--rank-by", "-m", "--distribution", "--rankfile", "--rf"], One, Refused(NO_MAP)),
    row(&["--bynode", "--byslot", "--bycore", "--nolocal", "--nooversubscribe"], No, Refused(NO_MAP)),
    row(&["--display-map", "--display-allocation"], No, Refused(NO_MAP)),
    row(&["--display"], One, Refused(NO_MAP)),
    row(
        &["-H", "--host", "--hosts", "--hostfile", "--machinefile", "-f", "-w", "--nodelist", "--nodefile"],
        One,
        Refused(ONE_NODE),
    ),
    row(&["--exclusive"], No, Refused(ALLOCATION)),
    row(
        &[
            "--cpus-per-task",
            "--mem",
            "--mem-per-cpu",
            "--gres",
            "--gpus",
            "-G",
            "-p",
            "--partition",
            "-A",
            "--account",
            "--qos",
            "-C",
            "--constraint",
            "--reservation",
        ],
        One,
        Refused(ALLOCATION),
    ),
    row(&["-t", "--time"], One, Refused("write --timeout with seconds, or with suffix s, m or h such as 5m")),
    row(&["-K0"], No, Same(&["--kill-on-bad-exit=0"])),
    row(&["-K1"], No, Same(&["--kill-on-bad-exit=1"])),
    row(&["--disable-auto-cleanup"], No, Same(&["--kill-on-bad-exit=0"])),
    row(&["-Q"], No, Same(&["--quiet"])),
    // The start of the ranks.
    row(&["--configfile", "--app"], One, Refused(APP_FILE)),
    row(&["--multi-prog"], No, Refused(APP_FILE)),
    row(&["--launcher", "--launcher-exec", "--launch-agent", "--rmk", "--iface"], One, Refused(DIRECT)),
    row(&["--debug", "--tv"], No, Refused(NO_DEBUGGER)),
    row(&["--info"], No, Refused("write iof --version")),
];
