//! A terminal that the test operates: the test holds the master of a pseudo-terminal.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use nix::fcntl::OFlag;
use nix::libc;
use nix::pty::{Winsize, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{ControlFlags, InputFlags, LocalFlags, OutputFlags, Termios, tcgetattr};
use nix::unistd::setsid;

use super::site::{Site, iof};
use crate::process::Process;
use crate::{TIMEOUT, wait_for, wait_or};

/// The test's end of a terminal.
pub struct Terminal {
    master: File,
    /// All output so far.
    shown: Arc<Mutex<Vec<u8>>>,
    size: Cell<(u16, u16)>,
    /// The length of the output before the last change of the size.
    resized: Cell<usize>,
    /// The thread that reads the output.
    reader: JoinHandle<()>,
}

pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const CTRL_Z: &str = "\x1a";

impl Terminal {
    /// Starts `command` as the leader of a session at a new terminal, with the terminal as its
    /// standard files.
    pub fn start(command: &mut Command, rows: u16, columns: u16) -> (Terminal, Process) {
        let (master, process) = Terminal::start_unread(command, rows, columns);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut output, buffer) = (master.try_clone().unwrap(), Arc::clone(&shown));
        let reader = thread::spawn(move || {
            let mut chunk = [0; 4096];
            // Reading fails with EIO when no process has the terminal open any more.
            while let Ok(count @ 1..) = output.read(&mut chunk) {
                buffer.lock().unwrap().extend_from_slice(&chunk[..count]);
            }
        });
        (Terminal { master, shown, size: Cell::new((rows, columns)), resized: Cell::new(0), reader }, process)
    }

    /// Starts `command` in the same way, and returns the master. Dropping it hangs the terminal up.
    pub fn start_unread(command: &mut Command, rows: u16, columns: u16) -> (File, Process) {
        let (master, slave) = open(rows, columns);
        let file = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(file()).stdout(file()).stderr(file());
        // SAFETY: between fork and exec, the closure only makes system calls.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                if libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            })
        };
        let process = Process::start_in_its_group(command);
        // The command keeps copies of the slave.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        (master, process)
    }

    /// Types `keys`.
    pub fn type_keys(&self, keys: &str) {
        (&self.master).write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, rows: u16, columns: u16) {
        self.size.set((rows, columns));
        self.resized.set(self.shown.lock().unwrap().len());
        set_size(&self.master, rows, columns);
    }

    /// Returns all output so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until no process has the terminal open, and returns all output.
    pub fn all_shown(&self) -> String {
        wait_or(TIMEOUT, || self.reader.is_finished().then(|| self.shown()), || self.shown())
    }

    /// Returns the visible lines, as drawn by the output since the last change of the size.
    pub fn picture(&self) -> Vec<String> {
        let (rows, columns) = self.size.get();
        let number = |number| NonZero::new(number).unwrap();
        let mut screen = vt100::Parser::new(number(rows), number(columns), 0);
        screen.process(&self.shown.lock().unwrap()[self.resized.get()..]);
        screen.screen().rows(0, columns).map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until `find` finds a value in the visible lines.
    pub fn wait_to_see<T>(&self, what: &str, find: impl Fn(&[String]) -> Option<T>) -> T {
        let explain = || format!("{what} in {:#?}", self.picture());
        wait_or(TIMEOUT, || find(&self.picture()), explain)
    }

    /// Waits until `text` was shown at least `times` times.
    pub fn wait_for(&self, text: &str, times: usize) {
        let poll = || (self.shown().matches(text).count() >= times).then_some(());
        wait_or(TIMEOUT, poll, || format!("{times} times {text:?} in {:?}", self.shown()));
    }

    /// Returns `true` if the terminal edits lines, echoes, and turns keys into signals.
    pub fn is_cooked(&self) -> bool {
        self.settings().local_flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
    }

    pub fn wait_until_raw(&self) {
        wait_for("the rank to have the keyboard", || (!self.is_cooked()).then_some(()));
    }

    pub fn wait_until_cooked(&self) {
        wait_for("the command to have the keyboard back", || self.is_cooked().then_some(()));
    }

    /// Returns the current settings.
    pub fn settings(&self) -> Settings {
        let Termios { input_flags, output_flags, control_flags, local_flags, control_chars, .. } =
            tcgetattr(&self.master).unwrap();
        let control_chars = control_chars[..KERNEL_CONTROL_CHARS].to_vec();
        Settings { input_flags, output_flags, control_flags, local_flags, control_chars }
    }
}

/// The settings of a terminal as the kernel knows them, see termios(3). The C library's structure
/// has further fields, which musl does not set.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    input_flags: InputFlags,
    output_flags: OutputFlags,
    control_flags: ControlFlags,
    pub local_flags: LocalFlags,
    control_chars: Vec<u8>,
}

/// The number of control characters that the kernel has.
const KERNEL_CONTROL_CHARS: usize = 19;

/// Opens a new terminal: its master and its slave. Both are close-on-exec from the beginning,
/// because the processes of tests that run at the same time would keep the terminal open.
fn open(rows: u16, columns: u16) -> (File, File) {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let slave = ptsname_r(&master).unwrap();
    let slave = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(slave).unwrap();
    let master = File::from(OwnedFd::from(master));
    set_size(&master, rows, columns);
    (master, slave)
}

fn set_size(master: &File, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call reads one `winsize`, and `size` lives until it returns.
    let result = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(result, 0);
}

impl Site {
    /// Starts `iof run ARGS` at a new terminal, without a shell.
    pub fn run_at_terminal<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> (Terminal, Process) {
        Terminal::start(self.iof("run").args(args), 24, 80)
    }

    /// Runs a job in which rank 0 has the keyboard by `options`. Checks that each key reaches the
    /// rank when it is typed, and is echoed once.
    pub fn check_keys(&self, options: &[&str]) {
        // Reads one key at a time, as editors and debuggers do.
        let script = "stty -icanon min 1; echo ready; key=$(dd bs=1 count=1 2>/dev/null); echo \"<$key>\"; \
                  stty icanon; read line; echo \"<$line>\"";
        let (terminal, run) = self.run_at_terminal([options, &["--", "sh", "-c", script]].concat());
        terminal.wait_for("ready", 1);
        terminal.wait_until_raw();
        terminal.type_keys("k");
        terminal.wait_for("<k>", 1);
        terminal.type_keys("words\r");
        terminal.wait_for("<words>", 1);
        assert_eq!(run.wait(), 0);
        assert!(terminal.is_cooked(), "the command leaves the terminal as it was");
        assert_eq!(terminal.all_shown().replace('\r', ""), "ready\nk<k>\nwords\n<words>\n");
    }

    /// Starts a shell with job control at a new terminal. The alias `run` in it is `iof run` of
    /// this site.
    pub fn shell_at_terminal(&self) -> (Terminal, Process) {
        let mut shell = Command::new("sh");
        shell.arg("-i").env("PS1", "").env_remove("ENV");
        let (terminal, process) = Terminal::start(&mut shell, 24, 80);
        let iof = iof().get_program().to_str().unwrap().to_owned();
        // No echo, so that only output of the processes is shown.
        let alias = format!(
            "stty -echo; alias run='{iof} run --rendezvous-dir {}'; echo read''y\n",
            self.path().display()
        );
        terminal.type_keys(&alias);
        terminal.wait_for("ready", 1);
        (terminal, process)
    }
}
