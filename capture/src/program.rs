//! The check whether a program can be executed, before any process is started.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::process_spec::ProcessSpec;
use crate::spawn_error::SpawnError;

/// The search path for programs if `PATH` is not set, as in execvp(3).
pub(crate) const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The part of a file in which the kernel looks for an interpreter, see execve(2).
const SCRIPT_HEAD: u64 = 256;

/// Checks whether the program of `spec` can be executed, and its interpreter if it is a script.
///
/// # Errors
/// [`SpawnError::NotFound`], [`SpawnError::IsDirectory`], [`SpawnError::NotExecutable`],
/// [`SpawnError::Interpreter`].
pub(crate) fn check_program(spec: &ProcessSpec) -> Result<(), SpawnError> {
    let program = PathBuf::from(&spec.program);
    let cwd = spec.cwd.as_deref().unwrap_or(Path::new("."));
    let found = if spec.program.as_bytes().contains(&b'/') {
        let path = cwd.join(&program);
        check_executable(&path).map(|()| path)
    } else {
        look_up(&program, cwd, &search_path(spec))
    };
    let path = found.map_err(|source| match source.raw_os_error() {
        Some(libc::EISDIR) => SpawnError::IsDirectory { program: program.clone() },
        Some(libc::EACCES) => SpawnError::NotExecutable { program: program.clone(), source },
        _ => SpawnError::NotFound { program: program.clone() },
    })?;
    let Some(interpreter) = interpreter(&path) else { return Ok(()) };
    let checked = check_executable(&cwd.join(&interpreter));
    checked.map_err(|source| SpawnError::Interpreter { program, interpreter, source })
}

/// Returns the `PATH` that the process will have.
fn search_path(spec: &ProcessSpec) -> OsString {
    let own = spec.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    own.or_else(|| env::var_os("PATH")).unwrap_or_else(|| DEFAULT_PATH.into())
}

/// Searches `path` for an executable `program`, as execvp(3) does. If there is none, returns the
/// error for a file that cannot be executed, or else `ENOENT`.
fn look_up(program: &Path, cwd: &Path, path: &OsStr) -> io::Result<PathBuf> {
    let mut found = Err(io::Error::from_raw_os_error(libc::ENOENT));
    if program.as_os_str().is_empty() {
        return found;
    }
    for directory in env::split_paths(path) {
        let candidate = cwd.join(directory).join(program);
        match check_executable(&candidate) {
            Ok(()) => return Ok(candidate),
            // In an inaccessible directory it is unknown whether the program exists.
            Err(error) if error.raw_os_error() == Some(libc::EACCES) && candidate.exists() => {
                found = Err(error)
            }
            Err(_) => {}
        }
    }
    found
}

/// Checks whether a file can be executed.
///
/// # Errors
/// `EISDIR` for a directory, or the error of access(2).
fn check_executable(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    Ok(access(path, AccessFlags::X_OK)?)
}

/// Returns the interpreter that the first line of a script names. Returns `None` for other files,
/// for one that can't be read, and for a line that is too long for the kernel to be certain.
fn interpreter(path: &Path) -> Option<PathBuf> {
    // A program may be a FIFO or a device only by mistake, and opening it could block.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut head = Vec::new();
    File::open(path).ok()?.take(SCRIPT_HEAD).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !is_blank(byte))?;
    let name = line.get(start..)?.split(is_blank).next()?;
    let is_whole = (head.len() as u64) < SCRIPT_HEAD || head.contains(&b'\n');
    is_whole.then(|| PathBuf::from(OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_interpreter_of_a_script_is_checked_and_that_of_other_files_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        let check = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            check_program(&ProcessSpec::new(&path, [""; 0]))
        };
        for text in ["#!/bin/sh\n", "#! /bin/sh -e\nx", "#!\t/bin/sh", "#!\n", "exit 0", "", "#!", "\x7fELF"]
        {
            assert!(check(text).is_ok(), "{text:?}");
        }
        let too_long = format!("#!/{}\n", "x".repeat(300));
        assert!(check(&too_long).is_ok(), "the kernel decides");
        for (text, missing) in [
            ("#!/no/such\n", "/no/such"),
            ("#!/no/such -e\n", "/no/such"),
            ("#! /no/such", "/no/such"),
            ("#!/bin/sh\r\n", "/bin/sh\r"),
            ("#!/dev\n", "/dev"),
        ] {
            let error = check(text).unwrap_err();
            assert!(
                matches!(&error, SpawnError::Interpreter { interpreter, .. } if interpreter == Path::new(missing)),
                "{text:?}: {error}"
            );
            assert_eq!(error.to_string().contains("carriage return"), missing.ends_with('\r'), "{error}");
        }
    }

    #[test]
    fn a_directory_is_named_as_one() {
        let checked = check_program(&ProcessSpec::new("/dev", [""; 0]));
        assert!(matches!(checked, Err(SpawnError::IsDirectory { .. })), "{checked:?}");
    }
}
