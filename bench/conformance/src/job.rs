//! A job of the launcher under test: its command, its descriptors, and what came out of it.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, setsid};

use crate::launcher::{Capability, Launcher};
use crate::text::show;

/// The time in which each job ends on a busy machine, and each thing that is waited for happens.
pub const LIMIT: Duration = Duration::from_secs(20);

/// The stdin of the launcher.
#[derive(Debug)]
pub enum Input {
    /// /dev/null.
    Null,
    /// A pipe with these bytes and then its end.
    Bytes(Vec<u8>),
    /// A pipe that the case writes to and closes.
    Pipe,
    /// A pipe with lines that never end.
    Endless,
    /// No descriptor.
    Closed,
}

/// The stdout of the launcher.
#[derive(Debug)]
pub enum Target {
    Pipe,
    /// One pipe for stdout and stderr.
    Joined,
    /// A pipe of one page.
    SmallPipe,
    /// A pipe whose writing end does not block.
    Nonblocking,
    Socket,
    /// The terminal that controls the launcher, for stdin and stderr as well.
    Terminal,
    /// A file that is given.
    File(File),
    /// No descriptor.
    Closed,
}

/// The pace at which the output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    Fast,
    /// Pauses between reads of a number of bytes.
    Slow(usize, Duration),
    /// Reads nothing until [`Running::read_on`].
    Held,
    /// Closes the pipe after a number of bytes.
    Leaves(usize),
}

/// A job that can be started.
#[derive(Debug)]
pub struct Job<'launcher> {
    pub launcher: &'launcher Launcher,
    pub ranks: u32,
    pub actions: Vec<String>,
    pub options: Vec<Capability>,
    pub input: Input,
    pub target: Target,
    pub reader: Reader,
    /// The program in place of the kit's own.
    pub program: Option<Vec<String>>,
}

/// The output that was read.
#[derive(Debug, Default)]
pub struct Collected {
    bytes: Mutex<(Vec<u8>, bool, bool)>,
    changed: Condvar,
}

impl Collected {
    fn lock(&self) -> MutexGuard<'_, (Vec<u8>, bool, bool)> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the bytes, or their end, satisfy a condition. Returns the bytes.
    fn wait(&self, is_there: impl Fn(&[u8], bool) -> bool) -> Result<Vec<u8>, Vec<u8>> {
        let end = Instant::now() + LIMIT;
        let mut state = self.lock();
        loop {
            if is_there(&state.0, state.1) {
                return Ok(state.0.clone());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(state.0.clone());
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until a text has come.
    pub fn wait_for(&self, text: &[u8], name: &str) -> Result<(), String> {
        let has = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text);
        match self.wait(|bytes, has_ended| has_ended || has(bytes)) {
            Ok(bytes) if has(&bytes) => Ok(()),
            Ok(bytes) | Err(bytes) => {
                Err(format!("{} did not come on {name}, which has {}", show(text), show(&bytes)))
            }
        }
    }

    /// Returns all bytes after their end.
    pub fn whole(&self, name: &str) -> Result<Vec<u8>, String> {
        let ended = self.wait(|_, has_ended| has_ended);
        ended.map_err(|bytes| format!("{name} had no end in {} s, after {}", LIMIT.as_secs(), show(&bytes)))
    }

    /// Reads a descriptor to its end in a thread.
    pub fn read(self: &Arc<Self>, source: OwnedFd, pace: Reader) {
        let this = Arc::clone(self);
        this.lock().2 = pace == Reader::Held;
        thread::spawn(move || {
            let mut source = File::from(source);
            let mut block = vec![0; if let Reader::Slow(size, _) = pace { size } else { 64 << 10 }];
            loop {
                let held = this.lock();
                drop(this.changed.wait_while(held, |state| state.2).unwrap_or_else(PoisonError::into_inner));
                // A terminal without a process returns EIO.
                let count = source.read(&mut block).unwrap_or(0);
                let mut state = this.lock();
                state.0.extend_from_slice(block.get(..count).unwrap_or_default());
                let leaves = matches!(pace, Reader::Leaves(after) if state.0.len() >= after);
                state.1 = count == 0 || leaves;
                this.changed.notify_all();
                if state.1 {
                    return;
                }
                drop(state);
                if let Reader::Slow(_, pause) = pace {
                    sleep(pause);
                }
            }
        });
    }
}

/// A job that runs. Its launcher and what is left of its process group are killed in the end.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdin: Option<File>,
    stdout: Arc<Collected>,
    stderr: Arc<Collected>,
    /// The side of a terminal that writes what is typed.
    terminal: Option<File>,
}

/// A job that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code, or 128 and the number of the signal.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Job<'_> {
    /// Returns the words of the command line.
    pub fn words(&self, job: &str) -> io::Result<Vec<String>> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => {
                let this = std::env::current_exe()?.display().to_string();
                let mut program = vec![this, "rank".to_owned(), self.launcher.rank.clone()];
                program.extend_from_slice(&self.actions);
                program
            }
        };
        let mut words = self.launcher.words(self.ranks, job, &self.options, &program);
        let closed =
            [(matches!(self.input, Input::Closed), "<&-"), (matches!(self.target, Target::Closed), ">&-")];
        for (is_closed, how) in closed {
            if is_closed {
                let shell = ["sh".to_owned(), "-c".to_owned(), format!("exec \"$0\" \"$@\" {how}")];
                words.splice(0..0, shell);
            }
        }
        Ok(words)
    }

    pub fn start(self, job: &str) -> io::Result<Running> {
        let words = self.words(job)?;
        let mut command = Command::new(words.first().map_or("", String::as_str));
        command.args(words.get(1..).unwrap_or_default()).envs(self.launcher.environment());
        let (stdout, stderr) = (Arc::new(Collected::default()), Arc::new(Collected::default()));
        let mut terminal = None;
        let mut stdin = None;
        let feeder = match self.input {
            Input::Null | Input::Closed => {
                command.stdin(Stdio::null());
                None
            }
            Input::Pipe | Input::Bytes(_) | Input::Endless => {
                let (reading, writing) = pipe()?;
                command.stdin(reading);
                stdin = Some(File::from(writing));
                Some(())
            }
        };
        let (reading, writing): (Option<OwnedFd>, OwnedFd) = match self.target {
            Target::Pipe | Target::Joined | Target::Closed => {
                pipe().map(|(reading, writing)| (Some(reading), writing))?
            }
            Target::SmallPipe => {
                let (reading, writing) = pipe()?;
                fcntl(&writing, FcntlArg::F_SETPIPE_SZ(4096))?;
                (Some(reading), writing)
            }
            Target::Nonblocking => {
                let (reading, writing) = pipe()?;
                fcntl(&writing, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
                (Some(reading), writing)
            }
            Target::Socket => {
                UnixStream::pair().map(|(reading, writing)| (Some(reading.into()), writing.into()))?
            }
            Target::File(ref file) => (None, file.try_clone()?.into()),
            Target::Terminal => {
                let pair = openpty(&Winsize { ws_row: 33, ws_col: 99, ws_xpixel: 0, ws_ypixel: 0 }, None)?;
                terminal = Some(File::from(pair.master.try_clone()?));
                (Some(pair.master), pair.slave)
            }
        };
        if terminal.is_some() {
            command.stdin(writing.try_clone()?);
            // SAFETY: setsid(2) and ioctl(2) alone are called between fork and exec.
            unsafe {
                command.pre_exec(|| {
                    setsid()?;
                    // Stdin becomes the terminal that controls the session.
                    control()
                });
            }
        } else {
            command.process_group(0);
        }
        if terminal.is_some() || matches!(self.target, Target::Joined) {
            command.stderr(writing.try_clone()?);
        } else {
            let (reading, writing) = pipe()?;
            stderr.read(reading, Reader::Fast);
            command.stderr(writing);
        }
        command.stdout(writing);
        let child = command.spawn()?;
        drop(command);
        match reading {
            Some(reading) => stdout.read(reading, self.reader),
            None => stdout.lock().1 = true,
        }
        if terminal.is_some() || matches!(self.target, Target::Joined) {
            stderr.lock().1 = true;
        }
        let mut running = Running { child, stdin, stdout, stderr, terminal };
        if feeder.is_some() {
            match self.input {
                Input::Bytes(bytes) => running.feed(move |mut pipe| drop(pipe.write_all(&bytes))),
                Input::Endless => running
                    .feed(|mut pipe| while pipe.write_all(b"a line that never ends to come\n").is_ok() {}),
                _ => {}
            }
        }
        Ok(running)
    }
}

impl Running {
    /// Writes to stdin in a thread, and closes it.
    fn feed(&mut self, write: impl FnOnce(File) + Send + 'static) {
        if let Some(pipe) = self.stdin.take() {
            thread::spawn(move || write(pipe));
        }
    }

    /// Writes to the launcher's stdin, or types on its terminal.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let input = self.stdin.as_mut().or(self.terminal.as_mut()).ok_or("stdin is closed")?;
        input.write_all(bytes).map_err(|error| format!("stdin takes no more: {error}"))
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Lets a held reader read.
    pub fn read_on(&self) {
        self.stdout.lock().2 = false;
        self.stdout.changed.notify_all();
    }

    pub fn wait_for_stdout(&self, text: &[u8]) -> Result<(), String> {
        self.stdout.wait_for(text, "stdout")
    }

    pub fn wait_for_stderr(&self, text: &[u8]) -> Result<(), String> {
        self.stderr.wait_for(text, "stderr")
    }

    /// Waits until stdout has a text as often as `count`.
    pub fn wait_for_each(&self, text: &[u8], count: usize) -> Result<(), String> {
        let occurrences = |bytes: &[u8]| bytes.windows(text.len()).filter(|window| window == &text).count();
        let found = self.stdout.wait(|bytes, has_ended| has_ended || occurrences(bytes) >= count);
        let bytes = found.unwrap_or_else(|bytes| bytes);
        let found = occurrences(&bytes);
        if found >= count {
            Ok(())
        } else {
            Err(format!("{found} of {count} times {:?} in {}", text.escape_ascii().to_string(), show(&bytes)))
        }
    }

    /// Waits for the end of the launcher, whose stdin stays open.
    pub fn wait_for_end(&mut self) -> Result<(), String> {
        let end = Instant::now() + LIMIT;
        while self.child.try_wait().map_err(|error| error.to_string())?.is_none() {
            if Instant::now() > end {
                let so_far = self.stdout.lock().0.clone();
                return Err(format!(
                    "the launcher did not end in {} s; stdout: {}",
                    LIMIT.as_secs(),
                    show(&so_far)
                ));
            }
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Returns the settings of the terminal.
    pub fn settings(&self) -> Result<String, String> {
        let terminal = self.terminal.as_ref().ok_or("no terminal")?;
        let settings = nix::sys::termios::tcgetattr(terminal).map_err(|error| error.to_string())?;
        let nix::sys::termios::Termios { input_flags, output_flags, local_flags, .. } = settings;
        Ok(format!("{input_flags:?} {output_flags:?} {local_flags:?}"))
    }

    /// Sends a signal to the launcher alone.
    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        nix::sys::signal::kill(self.pid(), signal).map_err(|error| error.to_string())
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Waits for the end of the launcher and of its output.
    pub fn end(mut self) -> Result<Ended, String> {
        self.close_stdin();
        self.wait_for_end()?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        // What controls a terminal has ended; its other side is ours as well.
        self.terminal = None;
        let (stdout, stderr) = (self.stdout.whole("stdout")?, self.stderr.whole("stderr")?);
        Ok(Ended {
            code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            stdout,
            stderr,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.read_on();
        // The group of a launcher that has ended may have ranks; where it has none, there is nothing to kill.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reading, writing) = io::pipe()?;
    Ok((reading.into(), writing.into()))
}

/// Makes stdin the terminal that controls this session.
fn control() -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an integer, and stdin is open.
    Errno::result(unsafe { nix::libc::ioctl(0, nix::libc::TIOCSCTTY, 0) })?;
    Ok(())
}
