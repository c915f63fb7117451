//! The sections of the manual pages that clap's description of the command line does not contain.

use clap::Command;
use clap::builder::Styles;

/// The sections of one page. Each entry is a term with its explanation.
pub struct Sections {
    pub exit_status: &'static [(&'static str, &'static str)],
    pub environment: &'static [(&'static str, &'static str)],
    pub files: &'static [(&'static str, &'static str)],
    /// Commands with their explanations.
    pub examples: &'static [(&'static str, &'static str)],
    /// Other commands of `iof`.
    pub see_also: &'static [&'static str],
}

type Entry = (&'static str, &'static str);

const SUCCESS: Entry = ("0", "Success.");
const FAILED: Entry = ("1", "A failure at run time, reported in one line on stderr.");
const USAGE: Entry = ("2", "Invalid input, reported in one line on stderr. Nothing was started.");
const SIGNAL: Entry =
    ("128+n", "Signal n ended the command, such as SIGPIPE (141) when the reader of its output was gone.");
const EXIT_STATUS: &[Entry] = &[SUCCESS, FAILED, USAGE, SIGNAL];

const NO_COLOR: Entry = ("NO_COLOR", "If not empty, tags have no colours.");
const CLICOLOR_FORCE: Entry =
    ("CLICOLOR_FORCE", "If neither empty nor 0, tags have colours, also where no terminal shows them.");
const TERM: Entry = ("TERM", "The terminal. If it is 'dumb', tags have no colours.");
const TZ: Entry = ("TZ", "The time zone of time stamps.");
const SERVER: Entry = (
    "IOF_SERVER",
    "The socket of the engine that started this rank. The command attaches to it, unless an option selects \
     another engine.",
);
/// For commands that do not attach to that engine unless an option selects it.
const SERVER_DIRECTORY: Entry = (
    "IOF_SERVER",
    "The socket of the engine that started this rank. The command looks for engines in its directory, too.",
);
const TMPDIR: Entry = (
    "PMIX_SERVER_TMPDIR, TMPDIR, TEMP, TMP",
    "The first that is not empty is the directory in which the rendezvous directory is. By default, /tmp.",
);
const SYSTEM_TMPDIR: Entry = (
    "PMIX_SYSTEM_TMPDIR, TMPDIR, TEMP, TMP",
    "The first that is not empty is the directory of the system-level engine. By default, /tmp.",
);
const TOOL_ENVIRONMENT: &[Entry] = &[SERVER, TMPDIR, SYSTEM_TMPDIR];

const SOCKET: Entry = (
    "/tmp/iof-UID/iof.HOST.tool.PID",
    "The socket of the engine in process PID. The environment or --rendezvous-dir may set another directory.",
);
const AGENT_SOCKET: Entry =
    ("/tmp/iof-UID/iof.HOST.agent.PID", "The socket of the agent in process PID, for tools on its node.");
const LINK_SOCKET: Entry = (
    "/tmp/iof-UID/iof.HOST.link.PID",
    "With --reattach, the socket at which the agent with this pid accepts `iof link`.",
);
const JOB_LINK: Entry = (
    "/tmp/iof-UID/iof.HOST.nspace.PID.NAME",
    "A symbolic link to the socket of the engine that has the job NAME.",
);
const SYSTEM_SOCKET: Entry = ("/tmp/iof.sys.HOST", "The socket of the node's system-level engine.");
const TOOL_FILES: &[Entry] = &[SOCKET, JOB_LINK, SYSTEM_SOCKET];

const SYSLOG: Entry = ("IOF_SYSLOG", "The socket of the syslog daemon, if it is not /dev/log.");

const RUN: Sections = Sections {
    exit_status: &[
        ("0", "No rank failed."),
        ("1", "A failure at run time, reported in one line on stderr, or that of the ranks."),
        ("2", "Invalid input, reported in one line on stderr, or that of the ranks."),
        ("124", "The job took longer than --timeout, whatever its ranks returned."),
        ("other", "The exit code of the rank that failed first; 128+n if signal n ended that rank."),
        SIGNAL,
    ],
    environment: &[
        TMPDIR,
        NO_COLOR,
        CLICOLOR_FORCE,
        (
            "IOF_RUN_OPTIONS",
            "Defaults of --color and --label, such as \"--label '{rank} '\". Other options are refused.",
        ),
        TERM,
        TZ,
        SYSLOG,
        ("IOF_MAIL_SERVER", "The mail server of `iof log`: HOST or HOST:PORT."),
        (
            "IOF_NSPACE, IOF_RANK, IOF_NPROCS, IOF_APPNUM",
            "Set for each rank: the name of the job, the rank, the number of ranks, and the number of the rank's \
             program, from 0.",
        ),
        ("IOF_SERVER", "Set for each rank: the socket of the engine, for `iof` commands in the rank."),
        (
            "SLURM_JOB_NODELIST, PBS_NODEFILE, LSB_MCPU_HOSTS",
            "The hosts of the allocation, unless --hosts or --hostfile is given. Ignored if it is one host.",
        ),
        ("IOF_LIBPMIX", "The library libpmix.so.2 that serves MPI to programs of Open MPI 5, see --mpi."),
        ("IOF_CHANNEL_FD", "Set for each rank: the descriptor of a further CHANNEL, such as IOF_STDDIAG_FD."),
        (
            "IOF_GATEWAY",
            "The socket of the site's gateway engine, to which `iof log` passes global messages.",
        ),
        ("PMIX_MCA_plog_base_order", "The channels of `iof log`, in order of preference."),
        (
            "PMIX_MCA_plog_base_log_once",
            "If true, `iof log` stops at the first channel that accepts a message.",
        ),
    ],
    files: &[
        SOCKET,
        JOB_LINK,
        ("/tmp/iof-pmix-HOST-PID-LETTERS", "The directory of the PMIx server. TMPDIR may set another place."),
    ],
    examples: &[
        ("iof run -n 4 -- sh -c 'echo rank $IOF_RANK of $IOF_NPROCS'", "Start four ranks."),
        (
            "iof run -n 64 --output tag,dir=logs:copy --ranks 0 ./model",
            "Write a file for each rank, and show rank 0.",
        ),
        ("iof run -n 8 --output 'file=logs/%n.%R.%c:pattern' ./model", "Choose the names of the files."),
        ("iof run -n 2 ./server : -n 4 ./client", "Start two programs in one job."),
        ("iof run -n 8 -o 'out.%t' -e 'err.%t' ./model", "Write stdout and stderr of each rank to files."),
        ("iof run -n 8 -K --timeout 1:30:00 ./model", "End the job if a rank fails, or after 90 minutes."),
    ],
    see_also: &["pull", "push", "top", "query", "ps", "kill", "log", "agent"],
};

const PULL: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[SERVER, TMPDIR, SYSTEM_TMPDIR, NO_COLOR, CLICOLOR_FORCE, TERM, TZ],
    files: TOOL_FILES,
    examples: &[
        ("iof pull --nspace a.out --rank 0-3 --output tag", "Show the output of four ranks of a job."),
        ("iof pull --channel stderr --tail 0", "Show what the ranks write to stderr from now on."),
        ("iof pull 'train-*' --match 'loss|error'", "Show these lines of all jobs with such a name."),
        ("iof pull --wait train --label '{time} {rank} '", "Wait for a job, and show the time of each line."),
        ("iof pull --fold train", "Show equal lines of the ranks once, with the list of these ranks."),
        ("iof pull --no-follow --since 10s", "Show the output of the last ten seconds, and end."),
    ],
    see_also: &["run", "query", "top"],
};

const PUSH: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: TOOL_ENVIRONMENT,
    files: TOOL_FILES,
    examples: &[("iof push --rank 0 < input", "Push a file into the stdin of rank 0.")],
    see_also: &["run", "pull"],
};

const TOP: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[
        SERVER,
        TMPDIR,
        SYSTEM_TMPDIR,
        ("TERM", "The terminal, which must have a movable cursor."),
        ("LC_ALL, LC_CTYPE, LANG", "The first that is not empty tells whether names may be shown in UTF-8."),
    ],
    files: TOOL_FILES,
    examples: &[
        ("iof top --nspace a.out --channel stdout,stderr", "Watch two channels of a job."),
        ("iof top --by-rank --interval 0.5", "Watch the sums of each rank twice a second."),
    ],
    see_also: &["query", "run"],
};

const PS: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[SERVER_DIRECTORY, TMPDIR, SYSTEM_TMPDIR],
    files: TOOL_FILES,
    examples: &[("iof ps", "List your engines on this node and their jobs.")],
    see_also: &["run", "query", "kill"],
};

const KILL: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[SERVER_DIRECTORY, TMPDIR, SYSTEM_TMPDIR],
    files: TOOL_FILES,
    examples: &[
        ("iof kill a.out", "Send SIGTERM to all ranks of a job."),
        ("iof kill --rank 0,3-5 a.out USR1", "Send SIGUSR1 to four of its ranks."),
    ],
    see_also: &["ps", "run"],
};

const QUERY: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: TOOL_ENVIRONMENT,
    files: TOOL_FILES,
    examples: &[
        ("iof query JOB_STATUS --nspace a.out", "Print whether a job is running."),
        ("iof query procs --rank 0-3", "Print the processes of four ranks."),
        ("iof query stats --json", "Print the counters of all streams as JSON."),
    ],
    see_also: &["top", "run"],
};

const SERVE: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[TMPDIR],
    files: &[
        ("/tmp/iof-UID/iof.HOST.serve", "The token that clients must show, and the port."),
        SOCKET,
        JOB_LINK,
    ],
    examples: &[
        ("iof serve", "Print the URL of a page with all jobs."),
        (
            "iof serve 'train-*' --port 8080 --allow signals",
            "Serve some jobs, and let the page send them signals.",
        ),
    ],
    see_also: &["pull", "top"],
};

const LOG: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[
        ("IOF_NSPACE, IOF_RANK", "The job and the rank on whose behalf the command logs, if a rank runs it."),
        SERVER,
        TMPDIR,
        SYSTEM_TMPDIR,
    ],
    files: TOOL_FILES,
    examples: &[("iof log --channel stderr,syslog 'step 7 is done'", "Log a message to two channels.")],
    see_also: &["run", "query", "gateway"],
};

const GATEWAY: Sections = Sections {
    exit_status: &[FAILED, USAGE, SIGNAL],
    environment: &[
        SYSLOG,
        ("IOF_MAIL_SERVER", "The mail server: HOST or HOST:PORT. By default, port 25 of this node."),
    ],
    files: &[("DIR/iof.sys.HOST", "The socket.")],
    examples: &[
        ("iof gateway /run/iof-gateway", "Log the messages of other engines."),
        (
            "IOF_GATEWAY=/run/iof-gateway/iof.sys.$(hostname) iof run -n 4 ./a.out",
            "Start a job whose messages to global_syslog go there.",
        ),
    ],
    see_also: &["log", "run"],
};

const INSPECT: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[],
    files: &[("/proc/PID/fd/N", "The ring of a stream of process PID.")],
    examples: &[
        ("iof inspect /proc/4711/fd/12", "Decode a ring."),
        ("iof inspect --bytes /proc/4711/fd/12 > output", "Write the cached bytes to a file."),
    ],
    see_also: &["run", "query"],
};

const COMPLETIONS: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[SERVER_DIRECTORY, TMPDIR],
    files: &[SOCKET, JOB_LINK],
    examples: &[("source <(iof completions bash)", "Complete the words of `iof` in this shell.")],
    see_also: &["run"],
};

const MAN: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: &[],
    files: &[("DIR/iof.1, DIR/iof-run.1 and so on", "The pages. Existing files are replaced.")],
    examples: &[("iof man ~/.local/share/man/man1", "Install the manual pages for one user.")],
    see_also: &["run"],
};

const AGENT: Sections = Sections {
    exit_status: &[
        ("0", "`iof run` has all output of the ranks, or the connection ended before they ran."),
        (
            "1",
            "The ranks could not start, a file could not be written, the connection ended while they ran, or it carried \
             invalid frames.",
        ),
        USAGE,
        ("128+n", "Signal n asked the agent to end while ranks ran."),
    ],
    environment: &[
        TMPDIR,
        SYSLOG,
        ("IOF_MAIL_SERVER", "The mail server of `iof log`: HOST or HOST:PORT."),
        ("IOF_SERVER", "Set for each rank: the socket of the agent, for `iof` commands in the rank."),
    ],
    files: &[AGENT_SOCKET, JOB_LINK, LINK_SOCKET],
    examples: &[("ps -C iof -o pid,etime,args", "Show the agents of this node.")],
    see_also: &["run", "link"],
};

const LINK: Sections = Sections {
    exit_status: &[
        ("0", "An agent was reached, also if it has refused the connection."),
        ("1", "No agent of this user listens at PATH, as a line on stderr reports."),
        USAGE,
        SIGNAL,
    ],
    environment: &[],
    files: &[LINK_SOCKET],
    examples: &[(
        "ssh b iof link /tmp/iof-1000/iof.b.link.4711",
        "What `iof run --reattach` runs for another connection to node b.",
    )],
    see_also: &["run", "agent"],
};

const IOF: Sections = Sections {
    exit_status: EXIT_STATUS,
    environment: TOOL_ENVIRONMENT,
    files: TOOL_FILES,
    examples: &[
        ("iof run -n 4 ./a.out", "Start a job."),
        ("iof pull --nspace a.out", "Show its output at another place."),
    ],
    see_also: &[
        "run",
        "pull",
        "push",
        "top",
        "serve",
        "query",
        "ps",
        "kill",
        "log",
        "gateway",
        "inspect",
        "completions",
        "man",
    ],
};

/// Returns the sections of the page of a command, or of `iof` itself.
pub fn of_command(name: &str) -> Option<&'static Sections> {
    Some(match name {
        "iof" => &IOF,
        "run" => &RUN,
        "pull" => &PULL,
        "push" => &PUSH,
        "top" => &TOP,
        "query" => &QUERY,
        "serve" => &SERVE,
        "ps" => &PS,
        "kill" => &KILL,
        "log" => &LOG,
        "gateway" => &GATEWAY,
        "inspect" => &INSPECT,
        "completions" => &COMPLETIONS,
        "man" => &MAN,
        "agent" => &AGENT,
        "link" => &LINK,
        _ => return None,
    })
}

/// Adds the examples of a command's manual page to the beginning of its `--help`.
pub fn with_examples(command: Command) -> Command {
    let Some(sections) = of_command(command.get_name()) else { return command };
    let examples = sections.examples.iter().map(|(example, text)| format!("\n  {example}\n      {text}"));
    command.before_long_help(header("Examples:") + &examples.collect::<String>())
}

/// Returns a heading as clap shows its own.
pub fn header(title: &str) -> String {
    let style = Styles::styled();
    let style = style.get_header();
    format!("{style}{title}{style:#}")
}
