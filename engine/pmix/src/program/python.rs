//! The MPI library that mpi4py uses in the environment of a Python interpreter, as far as files
//! tell.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::program::{Need, SYSTEM};

/// The names under which mpi4py looks for a library, in this order.
const LIBRARIES: [&str; 3] = ["libmpi.so", "libmpi.so.12", "libmpi.so.40"];
/// The extensions of mpi4py that are linked with no library: they use the first one that is found.
const UNLINKED: [&str; 3] = ["MPI.mpich.", "MPI.openmpi.", "MPI.mpiabi."];
/// The file of a virtual environment, and the line with which it has the packages of its base.
const VENV: &str = "pyvenv.cfg";
const WITH_BASE: &str = "include-system-site-packages = true";

impl Need {
    /// Returns whether a program is an interpreter of Python.
    pub fn is_python(file: &Path) -> bool {
        file.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"))
    }

    /// Returns the need of a script that imports mpi4py in an interpreter with these variables.
    /// Returns [`Need::None`] without mpi4py.
    pub fn of_python(interpreter: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Need {
        let search = variable("LD_LIBRARY_PATH");
        let environment = Environment::of(interpreter, variable("HOME"));
        let paths = variable("PYTHONPATH").unwrap_or_default();
        let packages = env::split_paths(&paths).chain(environment.packages());
        let Some(mpi4py) = packages.map(|path| path.join("mpi4py")).find(|path| path.is_dir()) else {
            return Need::None;
        };
        let entries = fs::read_dir(mpi4py).into_iter().flatten().flatten();
        let extension = entries.map(|entry| entry.path()).find(|path| {
            let name = path.file_name().unwrap_or_default().as_bytes();
            name.starts_with(b"MPI.") && name.ends_with(b".so")
        });
        let Some(extension) = extension else { return Need::None };
        let name = extension.file_name().unwrap_or_default().as_bytes();
        if !UNLINKED.iter().any(|unlinked| name.starts_with(unlinked.as_bytes())) {
            return Need::of(&extension, search.as_deref());
        }
        let chosen = variable("MPI4PY_LIBMPI").unwrap_or_default();
        let directories = env::split_paths(&chosen).chain(environment.libraries());
        let system = search.iter().flat_map(env::split_paths).chain(SYSTEM.map(PathBuf::from));
        let files = directories.chain(system).flat_map(|path| match path.is_file() {
            true => vec![path],
            false => LIBRARIES.map(|name| path.join(name)).into(),
        });
        // Some are texts for the linker.
        files.filter_map(|file| Need::of_library(&file, search.as_deref())).next().unwrap_or(Need::None)
    }
}

/// The directories of an interpreter.
struct Environment {
    /// Such as `python3.11`.
    version: OsString,
    /// Prefixes of packages and libraries, each before those behind it.
    prefixes: Vec<PathBuf>,
}

impl Environment {
    fn of(interpreter: &Path, home: Option<OsString>) -> Environment {
        let prefix = |file: &Path| file.parent().and_then(Path::parent).map(Path::to_owned);
        let resolved = interpreter.canonicalize().unwrap_or_default();
        let version = resolved.file_name().unwrap_or_default().to_owned();
        // The file of a virtual environment is a link.
        let own = prefix(interpreter);
        let venv = own.filter(|prefix| prefix.join(VENV).is_file());
        let settings = venv.as_ref().map(|prefix| fs::read_to_string(prefix.join(VENV)).unwrap_or_default());
        let has_base = settings.is_none_or(|text| text.lines().any(|line| line == WITH_BASE));
        let user = home.map(|home| Path::new(&home).join(".local"));
        let mut base = [user, prefix(&resolved)].into_iter().flatten().collect::<Vec<_>>();
        base.retain(|_| has_base);
        if base.iter().any(|prefix| prefix == OsStr::new("/usr")) {
            base.push("/usr/local".into());
        }
        Environment { version, prefixes: venv.into_iter().chain(base).collect() }
    }

    /// Returns the directories of packages.
    fn packages(&self) -> impl Iterator<Item = PathBuf> {
        let version = Path::new(&self.version);
        let own = ["lib", "lib64"].map(|lib| Path::new(lib).join(version).join("site-packages"));
        let debian =
            ["python3".as_ref(), version].map(|name| Path::new("lib").join(name).join("dist-packages"));
        let below = own.into_iter().chain(debian).collect::<Vec<PathBuf>>();
        self.prefixes.iter().flat_map(move |prefix| {
            below.iter().map(|directory| prefix.join(directory)).collect::<Vec<PathBuf>>()
        })
    }

    /// Returns the directories of libraries that are looked at before those of the system.
    fn libraries(&self) -> impl Iterator<Item = PathBuf> {
        self.prefixes.iter().filter(|prefix| *prefix != OsStr::new("/usr")).map(|prefix| prefix.join("lib"))
    }
}
