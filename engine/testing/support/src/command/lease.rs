//! Leases, by which a test makes calls of other processes wait for its files.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::site::Site;

/// The command of fcntl(2) that sets the signal about a lease, from linux/fcntl.h.
const F_SETSIG: libc::c_int = 10;

/// A file that cannot be opened or executed as long as this lease exists: open(2) and execve(2)
/// wait until its holder gives it up, or the kernel ends it (after 45 seconds by default), see
/// "Leases" in fcntl(2).
pub struct Lease(File);

impl Lease {
    /// Takes a lease on a file that no process has open. Returns `None` if the file system has no
    /// leases.
    pub fn on(path: &Path) -> Option<Lease> {
        let file = File::open(path).unwrap();
        // The holder gets SIGURG, which this process ignores.
        // SAFETY: the arguments are a descriptor and numbers.
        let leased = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        if !leased {
            eprintln!("skipped: the file system of the test has no leases");
        }
        leased.then_some(Lease(file))
    }

    /// Writes a script with an interpreter of its own, a copy of the shell, and takes a lease on
    /// that, because `iof run` reads the script beforehand. Returns also the path of the script;
    /// `None` if the file system has no leases.
    pub fn on_interpreter(site: &Site, script: &str) -> Option<(Lease, PathBuf)> {
        let shell = site.install(Path::new("/bin/sh"), "shell");
        let path = site.install_script(&format!("#!{}\n{script}\n", shell.display()), "script");
        Lease::on(&shell).map(|lease| (lease, path))
    }

    /// Returns whether a process waits for the file.
    pub fn is_waited_for(&self) -> bool {
        // SAFETY: the arguments are a descriptor and numbers.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLEASE) != libc::F_WRLCK }
    }

    pub fn give_up(self) {
        // SAFETY: the arguments are a descriptor and numbers.
        assert_eq!(unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) }, 0);
    }
}
