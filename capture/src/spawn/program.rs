//! The check whether a process can be started, before any is.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use iof_proto::{App, Stdin};
use nix::unistd::{AccessFlags, access};

use crate::spawn::process_spec::ProcessSpec;
use crate::spawn::spawn_error::{SpawnError, check_directory, no_stdin};

/// The search path for programs if `PATH` is not set, as in execvp(3).
pub(crate) const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The part of a file in which the kernel looks for an interpreter, see execve(2).
pub(crate) const SCRIPT_HEAD: usize = 256;

/// The magic number of an ELF file, see elf(5).
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// The machines whose programs Linux may execute on this one: the numbers in an ELF header.
const MACHINES: &[u16] = match env::consts::ARCH.as_bytes() {
    b"x86_64" => &[62, 3],
    b"aarch64" => &[183, 40],
    b"riscv64" => &[243],
    b"powerpc64" => &[21, 20],
    b"s390x" => &[22],
    // Not known, so the kernel decides.
    _ => &[],
};

/// The directory of the handlers for further formats of programs, such as an emulator.
const HANDLERS: &str = "/proc/sys/fs/binfmt_misc";

/// Checks whether the directory, the stdin file and the program of `spec`, in this order, are
/// usable, and the interpreter if the program is a script. Starts nothing, so an error has had no
/// effect. Only [`spawn`](crate::spawn) detects changes after the check.
///
/// # Errors
/// [`SpawnError::Directory`], [`SpawnError::Stdin`], [`SpawnError::NotFound`],
/// [`SpawnError::IsDirectory`], [`SpawnError::NotExecutable`], [`SpawnError::Interpreter`].
pub fn check(spec: &ProcessSpec) -> Result<(), SpawnError> {
    let program = Path::new(&spec.app.program);
    check_directory(program, spec.app.cwd.as_deref())?;
    if let Stdin::File(path) = &spec.stdin {
        check_stdin(path).map_err(|source| no_stdin(program, path, source))?;
    }
    check_program(&spec.app)
}

/// Checks whether a file can be a process's stdin. Does not open it, because the writers of a FIFO
/// would notice.
fn check_stdin(path: &Path) -> io::Result<()> {
    access(path, AccessFlags::R_OK)?;
    if fs::metadata(path)?.is_dir() { Err(io::Error::from_raw_os_error(libc::EISDIR)) } else { Ok(()) }
}

/// Checks whether the program of `app` can be executed, and its interpreter if it is a script.
///
/// # Errors
/// [`SpawnError::NotFound`], [`SpawnError::IsDirectory`], [`SpawnError::NotAFile`],
/// [`SpawnError::NotExecutable`], [`SpawnError::Interpreter`].
fn check_program(app: &App) -> Result<(), SpawnError> {
    let program = PathBuf::from(&app.program);
    let cwd = app.cwd.as_deref().unwrap_or(Path::new("."));
    let path = find_program(app).map_err(|source| match source.raw_os_error() {
        Some(libc::EISDIR) => SpawnError::IsDirectory { program: program.clone() },
        Some(libc::EACCES) => SpawnError::NotExecutable { program: program.clone(), source },
        _ => SpawnError::NotFound { program: program.clone() },
    })?;
    // The kernel executes no FIFO, socket or device, and reading one could wait.
    if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return Err(SpawnError::NotAFile { program });
    }
    let head = head(&path).unwrap_or_default();
    if is_binary(&head) && !is_elf_of_this_machine(&head) && !has_handlers(Path::new(HANDLERS)) {
        let source = io::Error::from_raw_os_error(libc::ENOEXEC);
        return Err(SpawnError::NotExecutable { program, source });
    }
    let Some(interpreter) = interpreter(&head) else { return Ok(()) };
    let checked = match interpreter.as_os_str().is_empty() {
        true => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        false => check_executable(&cwd.join(&interpreter)),
    };
    checked.map_err(|source| SpawnError::Interpreter { program, interpreter, source })
}

/// Returns the file that a process of `app` executes, which is looked up in the child's `PATH` if
/// the program is a name.
///
/// # Errors
/// The error of access(2): no such file can be executed.
pub fn find_program(app: &App) -> io::Result<PathBuf> {
    let cwd = app.cwd.as_deref().unwrap_or(Path::new("."));
    if app.program.as_bytes().contains(&b'/') {
        let path = cwd.join(&app.program);
        check_executable(&path).map(|()| path)
    } else {
        look_up(Path::new(&app.program), cwd, &search_path(app))
    }
}

/// Returns the `PATH` that the process will have.
fn search_path(app: &App) -> OsString {
    let own = app.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
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

/// Returns the first bytes of a program, or `None` if it can't be read.
fn head(path: &Path) -> Option<Vec<u8>> {
    // A program may be a FIFO or a device only by mistake, and opening it could block.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut head = Vec::new();
    File::open(path).ok()?.take(SCRIPT_HEAD as u64).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Returns whether a file that begins with `head` is not a script for the shell: an ELF file, or
/// one whose first line contains a zero byte, as in POSIX. Does not allocate.
pub(crate) fn is_binary(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\n').next();
    head.starts_with(ELF_MAGIC) || line.is_some_and(|line| line.contains(&0))
}

/// Returns whether the kernel may execute the ELF file that begins with `head`.
fn is_elf_of_this_machine(head: &[u8]) -> bool {
    let (Some(order), Some(&[first, second])) = (head.get(5), head.get(18..20)) else { return false };
    let machine = match order {
        2 => u16::from_be_bytes([first, second]),
        _ => u16::from_le_bytes([first, second]),
    };
    head.starts_with(ELF_MAGIC) && (MACHINES.is_empty() || MACHINES.contains(&machine))
}

/// Returns whether the kernel has handlers for further formats of programs.
fn has_handlers(directory: &Path) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name != "register" && name != "status")
}

/// Returns the words of the first line of a script: its interpreter, and what is behind it. Returns
/// `None` for other files.
pub fn interpreter_words(path: &Path) -> Option<Vec<OsString>> {
    let head = head(path)?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    Some(words.map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

/// Returns the interpreter that the first line of a script names. Returns `None` for other files,
/// and for a line that is too long for the kernel to be certain.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let name = match line.iter().position(|byte| !is_blank(byte)) {
        Some(start) => line.get(start..)?.split(is_blank).next()?,
        // A shell executes a script with an empty first line.
        None if head.contains(&b'\n') => return None,
        None => b"",
    };
    let is_whole = head.len() < SCRIPT_HEAD || head.contains(&b'\n');
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
            check_program(&App::new(&path, [""; 0]))
        };
        for text in ["#!/bin/sh\n", "#! /bin/sh -e\nx", "#!\t/bin/sh", "#!\n", "exit 0", ""] {
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
    fn an_elf_file_of_another_machine_and_other_binaries_are_no_scripts() {
        let own = fs::read("/proc/self/exe").unwrap();
        let with_machine = |machine: [u8; 2]| [&own[..18], &machine[..], &own[20..64]].concat();
        assert!(is_binary(&own) && is_elf_of_this_machine(&own));
        for foreign in [&with_machine([0, 0]), &with_machine([0xff, 0xff]), &own[..10], &b"\x7fELF"[..]] {
            assert!(is_binary(foreign) && !is_elf_of_this_machine(foreign));
        }
        assert!(is_binary(b"\0\n") && !is_elf_of_this_machine(b"\0\n"));
        assert!(![&b""[..], b"echo\n\0", b"#!/bin/sh\n", b"\xff\xfe"].into_iter().any(is_binary));
    }

    #[test]
    fn a_handler_for_another_format_is_told_from_the_files_that_control_them() {
        let directory = tempfile::tempdir().unwrap();
        for (name, is_handler) in [("register", false), ("status", false), ("qemu-aarch64", true)] {
            fs::write(directory.path().join(name), "").unwrap();
            assert_eq!(has_handlers(directory.path()), is_handler, "{name}");
        }
        assert!(!has_handlers(&directory.path().join("none")));
    }

    #[test]
    fn a_directory_is_named_as_one() {
        let checked = check_program(&App::new("/dev", [""; 0]));
        assert!(matches!(checked, Err(SpawnError::IsDirectory { .. })), "{checked:?}");
    }
}
