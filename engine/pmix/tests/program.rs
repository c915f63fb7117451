//! Programs and libraries that the linker of the system makes: what they need is found.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use iof_pmix_server::{Need, PmixServer, StartError};

/// A directory with libraries, which is removed at the end.
struct Site(PathBuf);

impl Site {
    /// Returns `None` where no C compiler is installed.
    fn new(name: &str) -> Option<Site> {
        if Command::new("cc").arg("--version").output().is_err() {
            eprintln!("skipped: no C compiler is installed");
            return None;
        }
        let path = env::temp_dir().join(format!("iof-pmix-{name}-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Some(Site(path.canonicalize().unwrap()))
    }

    /// Compiles `text` to a file below the directory, with these options of cc.
    fn compile(&self, file: &str, text: &str, options: &[&str]) -> PathBuf {
        let (source, output) = (self.0.join("source.c"), self.0.join(file));
        fs::write(&source, text).unwrap();
        fs::create_dir_all(output.parent().unwrap()).unwrap();
        let mut command = Command::new("cc");
        command.current_dir(&self.0).arg("source.c").arg("-o").arg(&output).args(options);
        assert!(command.status().unwrap().success(), "{command:?}");
        output
    }

    fn library(&self, file: &str, options: &[&str]) -> PathBuf {
        let soname = format!("-Wl,-soname,{}", Path::new(file).file_name().unwrap().to_str().unwrap());
        let options = [&["-shared", "-fPIC", "-Wl,--no-as-needed", &soname], options].concat();
        self.compile(file, "void f(void) {}\n", &options)
    }

    fn program(&self, options: &[&str]) -> PathBuf {
        let text = "int main(void) { return 0; }\n";
        self.compile("program", text, &[&["-Wl,--no-as-needed"], options].concat())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const RUNPATH: &str = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/lib";

#[test]
fn the_library_of_open_mpi_leads_to_its_libpmix() {
    let Some(site) = Site::new("open-mpi") else { return };
    let libpmix = site.library("lib/openmpi/libpmix.so.2", &[]);
    let inner = "-Wl,-rpath,$ORIGIN:$ORIGIN/openmpi";
    // The system may have libraries of Open MPI: theirs have other names.
    site.library("lib/libmpi_iof.so.40", &["lib/openmpi/libpmix.so.2", inner]);
    let program = site.program(&["lib/libmpi_iof.so.40", RUNPATH, "-Wl,-rpath-link,lib/openmpi"]);
    assert_eq!(Need::of(&program, None), Need::Pmix(libpmix.clone()));
    // A binding between the program and Open MPI's library.
    site.library("lib/libmpi_iof_mpifh.so.40", &["lib/libmpi_iof.so.40", "-Wl,-rpath,$ORIGIN"]);
    let bound = site.program(&["lib/libmpi_iof_mpifh.so.40", "-Wl,-rpath-link,lib:lib/openmpi"]);
    let search = site.0.join("lib");
    assert_eq!(Need::of(&bound, Some(search.as_os_str())), Need::Pmix(libpmix));
    // Where its library is not found, the linker's own search may find libpmix.
    assert_eq!(Need::of(&bound, None), Need::Pmix("libpmix.so.2".into()));
}

#[test]
fn open_mpi_4_is_told_from_5() {
    let Some(site) = Site::new("old") else { return };
    site.library("lib/libpmix.so.2", &[]);
    site.library("lib/libopen-rte.so.40", &["lib/libpmix.so.2", "-Wl,-rpath,$ORIGIN"]);
    site.library("lib/libmpi.so.40", &["lib/libopen-rte.so.40", "lib/libpmix.so.2", "-Wl,-rpath,$ORIGIN"]);
    let program = site.program(&["lib/libmpi.so.40", RUNPATH]);
    assert_eq!(Need::of(&program, None), Need::OldOpenMpi);
}

#[test]
fn programs_of_mpich_need_pmi_1_and_scripts_and_damaged_files_nothing() {
    let Some(site) = Site::new("other") else { return };
    site.library("lib/libmpi.so.12", &[]);
    let mpich = site.program(&["lib/libmpi.so.12", RUNPATH]);
    assert_eq!(Need::of(&mpich, None), Need::Pmi1);
    let whole = fs::read(site.program(&[])).unwrap();
    let file = site.0.join("file");
    for length in (0..whole.len()).step_by(97) {
        fs::write(&file, &whole[..length]).unwrap();
        assert_eq!(Need::of(&file, None), Need::None, "{length} bytes");
    }
    for index in 0..1024 {
        let mut damaged = whole.clone();
        damaged[index] ^= 0xff;
        fs::write(&file, &damaged).unwrap();
        assert_eq!(Need::of(&file, None), Need::None, "byte {index}");
    }
    fs::write(&file, "#!/bin/sh\nexit 0\n").unwrap();
    for path in [&file, &site.0, Path::new("/dev/zero"), Path::new("/nonexistent")] {
        assert_eq!(Need::of(path, None), Need::None, "{}", path.display());
    }
}

#[test]
fn a_script_of_python_needs_what_its_mpi4py_uses() {
    let Some(site) = Site::new("python") else { return };
    let write = |file: &str, text: &str| {
        let path = site.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    };
    write("base/bin/python3.9", "");
    let settings = write("venv/pyvenv.cfg", "home = /usr/bin\n");
    let interpreter = site.0.join("venv/bin/python");
    fs::create_dir_all(interpreter.parent().unwrap()).unwrap();
    symlink("../../base/bin/python3.9", &interpreter).unwrap();
    let need = || Need::of_python(&interpreter, |_| None);
    assert!(Need::is_python(&interpreter) && !Need::is_python(Path::new("/bin/sh")));

    // The packages of the base count in a virtual environment that includes them.
    site.library("base/lib/libmpi.so.12", &[]);
    write("base/lib/python3.9/site-packages/mpi4py/MPI.mpich.cpython-39.so", "");
    assert_eq!(need(), Need::None);
    write("venv/pyvenv.cfg", "include-system-site-packages = true\n");
    assert_eq!(need(), Need::Pmi1);
    fs::remove_file(settings).unwrap();
    assert_eq!(Need::of_python(&site.0.join("base/bin/python3.9"), |_| None), Need::Pmi1);
    write("venv/pyvenv.cfg", "include-system-site-packages = false\n");

    // An extension that is not linked opens the first library of the environment.
    let wheel = write("venv/lib/python3.9/site-packages/mpi4py/MPI.openmpi.cpython-39.so", "");
    write("venv/lib/libmpi.so", "INPUT(libmpi.so.40)\n");
    let libpmix = site.library("venv/lib/openmpi/libpmix.so.2", &[]);
    let inner = ["venv/lib/openmpi/libpmix.so.2", "-Wl,-rpath,$ORIGIN/openmpi"];
    site.library("venv/lib/libmpi.so.40", &inner);
    assert_eq!(need(), Need::Pmix(libpmix.clone()));
    let chosen = |variable: &str| (variable == "MPI4PY_LIBMPI").then(|| site.0.join("base/lib").into());
    assert_eq!(Need::of_python(&interpreter, chosen), Need::Pmi1);

    // One that is linked has its own.
    fs::remove_file(wheel).unwrap();
    let linked = ["venv/lib/libmpi.so.40", "-Wl,-rpath,$ORIGIN/../../..", "-Wl,-rpath-link,venv/lib/openmpi"];
    site.library("venv/lib/python3.9/site-packages/mpi4py/MPI.cpython-39.so", &linked);
    assert_eq!(Need::of_python(&interpreter, chosen), Need::Pmix(libpmix));
    let packages = |variable: &str| (variable == "PYTHONPATH").then(|| site.0.join("packages").into());
    write("packages/mpi4py/MPI.abi3.so", "");
    assert_eq!(Need::of_python(&interpreter, packages), Need::None);
}

#[test]
fn libraries_of_other_versions_and_without_the_functions_are_refused() {
    let Some(site) = Site::new("refused") else { return };
    let start = |path: &Path| PmixServer::start(path, None, |_| {}, drop).unwrap_err();
    let empty = site.library("lib/libempty.so", &[]);
    let reason = start(&empty).to_string();
    assert!(reason.contains("PMIx_Initialized") || reason.contains("undefined symbol"), "{reason}");
    let missing = start(&site.0.join("none.so")).to_string();
    assert!(missing.contains("none.so") && missing.contains("No such file"), "{missing}");
    let names = [
        "PMIx_Initialized",
        "PMIx_Error_string",
        "PMIx_server_init",
        "PMIx_server_finalize",
        "PMIx_server_register_nspace",
        "PMIx_server_deregister_nspace",
        "PMIx_server_register_client",
        "PMIx_server_setup_fork",
        "PMIx_server_IOF_deliver",
        "PMIx_Notify_event",
        "PMIx_server_dmodex_request",
        "PMIx_Parse_cpuset_string",
        "PMIx_server_generate_locality_string",
    ];
    let functions: String = names.iter().map(|name| format!("int {name}(void) {{ return 0; }}\n")).collect();
    for version in ["OpenPMIx 3.2.3", "PMIx 7.0", "unknown"] {
        let text = format!("{functions}const char *PMIx_Get_version(void) {{ return \"{version}\"; }}\n");
        let library = site.compile("lib/libother.so", &text, &["-shared", "-fPIC"]);
        let error = start(&library);
        assert!(matches!(&error, StartError::Version { version: found, .. } if found == version), "{error}");
        // The next one must not be taken for this one, which stays in memory.
        fs::remove_file(&library).unwrap();
    }
}
