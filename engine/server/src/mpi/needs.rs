//! The needs of programs that start MPI: the library that they are linked with, or that of mpi4py.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use iof_capture::{find_program, interpreter_words};
use iof_pmix_server::{Need, is_launcher};
use iof_proto::{App, JobSpec, Mpi};

use crate::job::plan::first_processes;

/// The variable that names the library.
const LIBRARY_VARIABLE: &str = "IOF_LIBPMIX";
/// The library of the system, as the dynamic linker finds it.
const SYSTEM_LIBRARY: &str = "libpmix.so.2";
/// The variable with directories for the dynamic linker.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The programs that start the program among their arguments.
const STARTERS: [&str; 16] = [
    "chrt", "env", "gdb", "ionice", "ltrace", "nice", "nohup", "numactl", "perf", "setsid", "stdbuf",
    "strace", "taskset", "time", "timeout", "valgrind",
];
/// The number of arguments that are looked at for a program to be started.
const WORDS_OF_STARTER: usize = 16;
/// The number of files that libpmix opens for itself.
const FILES_OF_SERVER: u64 = 16;

/// The needs of the programs of a job to start MPI. To find them, files are opened and read.
pub(crate) struct MpiNeeds {
    /// One need for each program, or that of the first interpreter of Python that has mpi4py.
    needs: Vec<Need>,
    /// A program is linked with an MPI library. A script may use mpi4py or not.
    is_linked: bool,
    /// The library that the variable of ranks names.
    named: Option<PathBuf>,
}

impl MpiNeeds {
    /// Looks at the programs of a job, unless it does not serve MPI.
    pub(crate) fn of(spec: &JobSpec) -> MpiNeeds {
        // Ranks on other nodes have the variables of the launcher, and their engine may not.
        let unknown = MpiNeeds::of_variables(spec.apps.first().map_or(&[], |app| &app.env));
        if spec.mpi == Mpi::None {
            return unknown;
        }
        let needs: Vec<Need> = first_processes(spec).map(|process| need_behind(&process.app)).collect();
        if needs.iter().any(|need| *need != Need::None) {
            return MpiNeeds { needs, is_linked: true, ..unknown };
        }
        let python = first_processes(spec).map(|process| need_of_python(&process.app));
        let needs = python.into_iter().find(|need| *need != Need::None);
        MpiNeeds { needs: needs.into_iter().collect(), ..unknown }
    }

    /// Returns the needs of programs that are not known, apart from these variables.
    pub(crate) fn of_variables(env: &[(OsString, OsString)]) -> MpiNeeds {
        let named = variable(env, LIBRARY_VARIABLE).filter(|library| !library.is_empty());
        MpiNeeds { needs: Vec::new(), is_linked: false, named: named.map(PathBuf::from) }
    }

    /// Returns whether a job has PMI-1 and is known to use it.
    pub(crate) fn is_pmi1(&self, mpi: Mpi) -> bool {
        mpi == Mpi::Pmi1 || (mpi == Mpi::Auto && self.needs.contains(&Need::Pmi1))
    }

    /// Returns whether some programs need PMI-1, others PMIx, and the protocol is not chosen.
    pub(crate) fn is_mixed(&self, mpi: Mpi) -> bool {
        mpi == Mpi::Auto && self.needs.contains(&Need::Pmi1) && self.pmix().is_some()
    }

    /// Returns the number of files that the PMIx server may open for a job.
    pub(crate) fn files(&self, spec: &JobSpec) -> u64 {
        self.library(spec.mpi).map_or(0, |_| spec.nprocs().saturating_add(FILES_OF_SERVER))
    }

    /// Returns the library of the first program that needs PMIx.
    fn pmix(&self) -> Option<&Path> {
        self.needs.iter().find_map(|need| match need {
            Need::Pmix(library) => Some(library.as_path()),
            Need::None | Need::Pmi1 | Need::OldOpenMpi => None,
        })
    }

    /// Returns the library with which to serve a job, or `None` if it needs none.
    pub(crate) fn library(&self, mpi: Mpi) -> Option<PathBuf> {
        let named = || self.named.clone();
        let needed = || self.pmix().map(Path::to_owned);
        match mpi {
            Mpi::Auto if self.pmix().is_none() && self.needs.contains(&Need::Pmi1) => None,
            Mpi::Auto => named().or_else(needed),
            Mpi::Pmix => named().or_else(needed).or_else(|| Some(SYSTEM_LIBRARY.into())),
            _ => None,
        }
    }

    /// Returns whether a job can run without the PMIx server, unless it is asked for: one rank can,
    /// and so can programs that are not linked with Open MPI, such as scripts.
    pub(crate) fn can_be_alone(&self, spec: &JobSpec) -> bool {
        spec.mpi == Mpi::Auto && (spec.nprocs() < 2 || !self.is_linked || self.pmix().is_none())
    }

    /// Returns the reason if each rank of a job would be alone, as its protocol is not that of its
    /// linked programs.
    pub(crate) fn reason_to_be_alone(&self, spec: &JobSpec) -> Option<&'static str> {
        let has = |need| self.is_linked && spec.nprocs() > 1 && self.needs.contains(&need);
        if has(Need::OldOpenMpi) {
            Some("only its own mpirun can start Open MPI 4, and iof starts Open MPI 5")
        } else if spec.mpi == Mpi::Pmi1 && self.pmix().is_some_and(|library| has(Need::Pmix(library.into())))
        {
            Some("Open MPI starts by PMIx, and the job has PMI-1: choose auto")
        } else if spec.mpi == Mpi::Pmix && has(Need::Pmi1) {
            Some("MPICH starts by PMI-1 unless it was built with PMIx, and the job has PMIx: choose auto")
        } else {
            None
        }
    }
}

/// Returns the need of the first file that is linked with an MPI library.
fn need_behind(app: &App) -> Need {
    let search = variable(&app.env, LIBRARY_PATH);
    let needs = files_behind(app).into_iter().map(|file| Need::of(&file, search.as_deref()));
    needs.into_iter().find(|need| *need != Need::None).unwrap_or(Need::None)
}

/// Returns the need of mpi4py in the first interpreter of Python that has it.
fn need_of_python(app: &App) -> Need {
    let interpreters = files_behind(app).into_iter().filter(|file| Need::is_python(file));
    let needs = interpreters.map(|file| Need::of_python(&file, |name| variable(&app.env, name)));
    needs.into_iter().find(|need| *need != Need::None).unwrap_or(Need::None)
}

/// Returns a variable of a program: one of its own, or of this process.
fn variable(env: &[(OsString, OsString)], wanted: &str) -> Option<OsString> {
    let own = env.iter().rev().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    own.or_else(|| std::env::var_os(wanted))
}

/// Returns the file of a program, or of the interpreter if it is a script. For a program that starts
/// another one, its first arguments follow. A launcher has its own ranks.
fn files_behind(app: &App) -> Vec<PathBuf> {
    // A program that cannot be found was refused by the checks before.
    let find = |word: &OsString| {
        let mut named = app.clone();
        named.program.clone_from(word);
        find_program(&named).ok()
    };
    let expand = |word: &OsString| match find(word) {
        Some(file) if is_launcher(&file) => Vec::new(),
        Some(file) => interpreter_words(&file).unwrap_or_else(|| vec![word.clone()]),
        None => Vec::new(),
    };
    let mut words = expand(&app.program);
    let name = words.first().and_then(|word| Path::new(word).file_name()).map(OsStr::to_owned);
    if STARTERS.iter().any(|starter| name.as_deref() == Some(OsStr::new(starter))) {
        let named = app.args.iter().take(WORDS_OF_STARTER).filter(|word| !word.as_bytes().starts_with(b"-"));
        words.extend(named.flat_map(expand));
    } else {
        words.truncate(1);
    }
    words.iter().filter_map(find).collect()
}
