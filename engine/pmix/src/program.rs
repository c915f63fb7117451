//! Which PMIx library a program needs, as far as its file tells.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use self::elf::Dynamic;

pub(crate) mod elf;
pub(crate) mod python;

/// The name by which the dynamic linker knows libpmix.
const LIBPMIX: &str = "libpmix.so.2";
/// Directories in which the dynamic linker looks last, without those that are configured
/// (ld.so.conf).
pub(crate) const SYSTEM: [&str; 8] = [
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
];
/// The number of libraries between a program and libpmix that are looked at: a binding such as that
/// of Fortran, and Open MPI's own library.
const LIBRARIES_BETWEEN: usize = 4;

/// The launchers of MPI programs, and the programs by which they start ranks on a node.
const LAUNCHERS: [&str; 16] = [
    "aprun",
    "flux",
    "hydra_pmi_proxy",
    "iof",
    "jsrun",
    "mpiexec",
    "mpiexec.hydra",
    "mpirun",
    "orted",
    "orterun",
    "prte",
    "prted",
    "prterun",
    "prun",
    "slurmstepd",
    "srun",
];

/// Returns whether a program is a launcher of MPI programs, by its name. Its ranks are not alone.
pub fn is_launcher(program: &Path) -> bool {
    LAUNCHERS.iter().any(|launcher| program.file_name() == Some(OsStr::new(launcher)))
}

/// The protocol that a program uses to start MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing, as far as the file of the program tells. So it is for a script.
    None,
    /// PMI-1, as MPICH and its relatives. They refuse to start with the variables of both
    /// protocols.
    Pmi1,
    /// PMIx, with a library that fits: a path, or a name for the dynamic linker.
    Pmix(PathBuf),
    /// Open MPI 4 or an earlier version. Only its own launcher can start it.
    OldOpenMpi,
}

impl Need {
    /// Returns what an executable file needs. `search` is its `LD_LIBRARY_PATH`. Reads the lists of
    /// needed libraries in the file and in Open MPI's libraries, if it needs these.
    pub fn of(file: &Path, search: Option<&OsStr>) -> Need {
        Need::within(file, search, LIBRARIES_BETWEEN)
    }

    /// Returns the need of a program that opens this library; `None` if it is not one.
    pub(crate) fn of_library(library: &Path, search: Option<&OsStr>) -> Option<Need> {
        let needed = vec![Dynamic::read(library)?.name?];
        let paths = vec![library.parent()?.into()];
        Some(Need::of_parts(library, &Dynamic { needed, paths, name: None }, search, LIBRARIES_BETWEEN))
    }

    fn within(file: &Path, search: Option<&OsStr>, depth: usize) -> Need {
        match Dynamic::read(file) {
            Some(dynamic) => Need::of_parts(file, &dynamic, search, depth),
            None => Need::None,
        }
    }

    fn of_parts(file: &Path, dynamic: &Dynamic, search: Option<&OsStr>, depth: usize) -> Need {
        let find = |name: &OsStr| look_up(name, file, dynamic, search);
        let needed =
            |is_wanted: fn(&[u8]) -> bool| dynamic.needed.iter().find(|name| is_wanted(name.as_bytes()));
        if needed(|name| name.starts_with(b"libopen-rte.so.")).is_some() {
            return Need::OldOpenMpi;
        }
        if let Some(name) = needed(|name| name.starts_with(b"libpmix.so.")) {
            return Need::Pmix(find(name).unwrap_or_else(|| name.into()));
        }
        let is_open_mpi = |name: &[u8]| name.starts_with(b"libmpi") && name.ends_with(b".so.40");
        let is_mpich = |name: &[u8]| name.starts_with(b"libmpi") && name.ends_with(b".so.12");
        if needed(is_mpich).is_some() {
            return Need::Pmi1;
        }
        let Some(name) = needed(is_open_mpi) else { return Need::None };
        match (find(name), depth.checked_sub(1)) {
            (Some(library), Some(depth)) => match Need::within(&library, search, depth) {
                // A library that contains its own libpmix.
                Need::None | Need::Pmi1 => Need::Pmix(LIBPMIX.into()),
                need => need,
            },
            _ => Need::Pmix(LIBPMIX.into()),
        }
    }
}

/// Returns the path of a library that `file` needs, as the dynamic linker finds it without its
/// cache.
fn look_up(name: &OsStr, file: &Path, dynamic: &Dynamic, search: Option<&OsStr>) -> Option<PathBuf> {
    let file = file.canonicalize().ok()?;
    let origin = file.parent()?.as_os_str();
    let own = dynamic.paths.iter().flat_map(env::split_paths).map(|path| expand(path.as_os_str(), origin));
    let inherited = search.into_iter().flat_map(env::split_paths);
    let directories = own.chain(inherited).chain(SYSTEM.map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// Replaces `$ORIGIN` at the start of a directory.
fn expand(directory: &OsStr, origin: &OsStr) -> PathBuf {
    let bytes = directory.as_bytes();
    let rest = bytes.strip_prefix(b"$ORIGIN").or_else(|| bytes.strip_prefix(b"${ORIGIN}"));
    let Some(rest) = rest else { return directory.into() };
    OsString::from_vec([origin.as_bytes(), rest].concat()).into()
}
