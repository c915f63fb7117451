//! The program of a rank: a list of actions, one word of the command line each.
//!
//! Every program ends after [`LIFE`], so that a launcher which forgets its ranks leaves none behind.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, abort, exit};
use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::unistd::{alarm, close, dup2_stderr, dup2_stdout, getpid, isatty, setsid};

use crate::text;

/// The seconds after which SIGALRM ends a rank.
const LIFE: u32 = 40;

/// A rank while it runs its actions.
struct Rank {
    rank: u32,
    /// The variable by which this rank and its children find their rank.
    variable: String,
    /// The descriptor that is written to.
    to: i32,
    /// The next line of stdout and stderr.
    next: [u64; 2],
}

/// Runs a rank whose number stands in an environment variable (`VARIABLE`, or `VARIABLE-1` if it counts from 1).
pub fn run(variable: &str, actions: &[String]) -> Result<(), String> {
    alarm::set(LIFE);
    let (name, first) = variable.strip_suffix("-1").map_or((variable, 0), |name| (name, 1));
    let number =
        std::env::var(name).map_err(|_| format!("{name} is not set: the launcher's `rank` is wrong"))?;
    let rank = number.parse::<u32>().ok().and_then(|number| number.checked_sub(first));
    let rank = rank.ok_or_else(|| format!("{name} is {number}, which is no rank"))?;
    let mut this = Rank { rank, variable: variable.to_owned(), to: 1, next: [0, 0] };
    for (at, action) in actions.iter().enumerate() {
        let words: Vec<&str> = action.split(':').collect();
        let rest = actions.get(at + 1..).unwrap_or_default();
        this.act(&words, rest).map_err(|error| format!("rank {rank}: {action}: {error}"))?;
    }
    Ok(())
}

fn number<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| io::Error::other(format!("{text} is no number")))
}

fn signal(name: &str) -> io::Result<Signal> {
    Ok(format!("SIG{name}").parse::<Signal>()?)
}

impl Rank {
    fn act(&mut self, words: &[&str], rest: &[String]) -> io::Result<()> {
        match *words {
            ["on", ranks, ..] => {
                let is_meant = ranks.split(',').any(|rank| rank.parse() == Ok(self.rank));
                return if is_meant { self.act(words.get(2..).unwrap_or_default(), rest) } else { Ok(()) };
            }
            ["to", channel] => self.to = if channel == "stderr" { 2 } else { 1 },
            ["lines", count, length] => self.lines(number(count)?, number(length)?, "each")?,
            ["lines", count, length, how] => self.lines(number(count)?, number(length)?, how)?,
            ["text", text] => self.write(&self.unescape(text))?,
            ["noise", count] => self.write(&text::noise(u64::from(self.rank), number(count)?))?,
            ["flood", count, file] => self.flood(number(count)?, Path::new(file))?,
            ["pieces", count, length] => self.pieces(number(count)?, number(length)?)?,
            ["sendfile", count] => self.sendfile(number(count)?)?,
            ["cat"] => self.cat()?,
            ["sum"] => self.sum()?,
            ["answer"] => self.answer()?,
            ["read-line"] => drop(read_line()?),
            ["pause", milliseconds] => sleep(Duration::from_millis(number(milliseconds)?)),
            ["exit", code] => exit(number(code)?),
            ["kill", name] => kill_self(signal(name)?)?,
            ["abort"] => abort(),
            ["ignore", name] => set(signal(name)?, SigHandler::SigIgn)?,
            ["await", name] => self.await_signal(signal(name)?)?,
            ["await-file", file] => await_file(Path::new(file)),
            ["touch", file] => drop(File::create(self.own(file))?),
            ["pid", file] => std::fs::write(self.own(file), getpid().to_string())?,
            ["close", channel] => {
                close(["stdin", "stdout", "stderr"].iter().position(|name| *name == channel).unwrap_or(0)
                    as i32)?
            }
            ["flag", "nonblocking"] => self.flag(OFlag::O_NONBLOCK),
            ["flag", "packets"] => self.flag(OFlag::O_DIRECT),
            ["pipe-size", size] => {
                let _ = fcntl(self.fd(), FcntlArg::F_SETPIPE_SZ(number(size)?));
            }
            ["reopen"] => self.reopen()?,
            ["child"] => self.child(rest, false)?,
            ["session"] => self.child(rest, true)?,
            ["tty"] => self.write(format!("{} {} {}\n", tty(0), tty(1), tty(2)).as_bytes())?,
            _ => return Err(io::Error::other("no such action")),
        }
        Ok(())
    }

    /// Returns the file of this rank.
    fn own(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("{file}.{}", self.rank))
    }

    fn fd(&self) -> BorrowedFd<'static> {
        // SAFETY: stdout and stderr are never closed while an action uses them; `close` is followed by none that does.
        unsafe { BorrowedFd::borrow_raw(self.to) }
    }

    /// Writes bytes by as few calls as the descriptor takes.
    fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match nix::unistd::write(self.fd(), bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(Errno::EAGAIN) => sleep(Duration::from_millis(1)),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes lines: `each` by a call of its own, `bytes` by one call a byte, `halves` by two with a pause between, or
    /// in blocks of a number of bytes, as a buffered program does.
    fn lines(&mut self, count: u64, length: usize, how: &str) -> io::Result<()> {
        let (channel, at) = if self.to == 2 { ("err", 1) } else { ("out", 0) };
        let first = self.next[at];
        self.next[at] += count;
        let mut lines = (first..first + count).map(|at| text::line(self.rank, channel, at, length));
        match how {
            "each" => lines.try_for_each(|line| self.write(&line)),
            "bytes" => lines.try_for_each(|line| line.chunks(1).try_for_each(|byte| self.write(byte))),
            "halves" => lines.try_for_each(|line| {
                let (left, right) = line.split_at(line.len() / 2);
                self.write(left)?;
                sleep(Duration::from_millis(20));
                self.write(right)
            }),
            size => {
                let size: usize = number(size)?;
                let mut block = Vec::new();
                for line in lines {
                    block.extend_from_slice(&line);
                    while block.len() >= size {
                        let rest = block.split_off(size);
                        self.write(&block)?;
                        block = rest;
                    }
                }
                self.write(&block)
            }
        }
    }

    /// Writes up to `count` MiB of zeros with a newline each KiB, and after each MiB the number of those written to a file.
    fn flood(&self, count: u64, file: &Path) -> io::Result<()> {
        let progress = File::create(format!("{}.{}", file.display(), self.rank))?;
        let mut block = vec![b'0'; 1024];
        block[1023] = b'\n';
        let block = block.repeat(1024);
        for written in 1..=count {
            self.write(&block)?;
            progress.write_all_at(format!("{written:10}").as_bytes(), 0)?;
        }
        Ok(())
    }

    /// Writes lines by calls of writev(2) with a line in several pieces.
    fn pieces(&mut self, count: u64, length: usize) -> io::Result<()> {
        for at in 0..count {
            let line = text::line(self.rank, "out", at, length);
            let mut pieces: Vec<IoSlice<'_>> = line.chunks(7).map(IoSlice::new).collect();
            let mut pieces = pieces.as_mut_slice();
            while !pieces.is_empty() {
                let written = nix::sys::uio::writev(self.fd(), pieces)?;
                IoSlice::advance_slices(&mut pieces, written);
            }
        }
        Ok(())
    }

    /// Writes noise by sendfile(2) from a file, which splices its pages into a pipe.
    fn sendfile(&self, count: usize) -> io::Result<()> {
        let mut file = tempfile::tempfile()?;
        file.write_all(&text::noise(u64::from(self.rank), count))?;
        let mut at = 0;
        while (at as usize) < count {
            let left = count - at as usize;
            nix::sys::sendfile::sendfile(self.fd(), &file, Some(&mut at), left)?;
        }
        Ok(())
    }

    fn cat(&self) -> io::Result<()> {
        let mut block = vec![0; 64 << 10];
        loop {
            let count = io::stdin().lock().read(&mut block)?;
            if count == 0 {
                return Ok(());
            }
            self.write(block.get(..count).unwrap_or_default())?;
        }
    }

    /// Reads stdin to its end, and writes a line with the count and the sum of its bytes.
    fn sum(&self) -> io::Result<()> {
        let mut read = Vec::new();
        io::stdin().lock().read_to_end(&mut read)?;
        self.write(received(self.rank, &read).as_bytes())
    }

    /// Writes a prompt without a newline, and answers each line of stdin by one.
    fn answer(&self) -> io::Result<()> {
        loop {
            self.write(b"? ")?;
            let line = read_line()?;
            if line.is_empty() {
                return Ok(());
            }
            self.write(&[b"! ", line.as_slice()].concat())?;
        }
    }

    /// Writes "ready", waits for a signal, and writes its name.
    fn await_signal(&self, signal: Signal) -> io::Result<()> {
        let set = SigSet::from(signal);
        set.thread_block()?;
        self.write(b"ready\n")?;
        let came = set.wait()?;
        self.write(format!("{} {came}\n", self.rank).as_bytes())
    }

    /// Sets a flag of the descriptor, where a descriptor of its kind has it: a launcher may give a terminal.
    fn flag(&self, flag: OFlag) {
        if let Ok(flags) = fcntl(self.fd(), FcntlArg::F_GETFL) {
            let _ = fcntl(self.fd(), FcntlArg::F_SETFL(OFlag::from_bits_retain(flags) | flag));
        }
    }

    /// Opens the file of the descriptor once more by its path, and goes on with that.
    fn reopen(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(format!("/dev/fd/{}", self.to))?;
        if self.to == 1 {
            dup2_stdout(file.as_fd())?
        } else {
            dup2_stderr(file.as_fd())?
        }
        Ok(())
    }

    /// Starts a child that runs the actions that follow, in a session of its own if `apart`, and ends without it.
    fn child(&self, rest: &[String], apart: bool) -> io::Result<()> {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["rank", &self.variable]).args(rest.iter().map(OsString::from));
        if apart {
            // SAFETY: setsid(2) alone is called between fork and exec.
            unsafe { child.pre_exec(|| setsid().map(|_| ()).map_err(std::io::Error::from)) };
        }
        child.spawn()?;
        exit(0)
    }

    /// Replaces `\n`, `\r`, `\0`, `\e`, `\xHH`, `\c` (a colon), and `%` (the rank).
    fn unescape(&self, text: &str) -> Vec<u8> {
        let mut chars = text.chars();
        let mut bytes = Vec::new();
        while let Some(char) = chars.next() {
            match char {
                '%' => bytes.extend(self.rank.to_string().bytes()),
                '\\' => bytes.push(match chars.next() {
                    Some('n') => b'\n',
                    Some('r') => b'\r',
                    Some('0') => 0,
                    Some('e') => 0x1b,
                    Some('x') => {
                        u8::from_str_radix(&chars.by_ref().take(2).collect::<String>(), 16).unwrap_or(b'?')
                    }
                    _ => b':',
                }),
                char => bytes.extend(char.to_string().bytes()),
            }
        }
        bytes
    }
}

/// Returns the line by which a rank reports what it got on stdin.
pub fn received(rank: u32, bytes: &[u8]) -> String {
    format!("rank {rank} got {} bytes, {:x}\n", bytes.len(), text::sum(bytes))
}

/// Reads a line of stdin with its newline, no byte beyond it. Empty at the end.
fn read_line() -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') && nix::unistd::read(io::stdin().as_fd(), &mut byte)? == 1 {
        line.push(byte[0]);
    }
    Ok(line)
}

fn await_file(file: &Path) {
    while !file.exists() {
        sleep(Duration::from_millis(5));
    }
}

/// Ends this process by a signal, also by one for which Rust has a handler (SIGSEGV).
fn kill_self(signal: Signal) -> io::Result<()> {
    if signal != Signal::SIGKILL {
        set(signal, SigHandler::SigDfl)?;
    }
    Ok(raise(signal)?)
}

fn set(signal: Signal, handler: SigHandler) -> io::Result<()> {
    // SAFETY: the handler is none of ours: the signal is ignored or has its default.
    unsafe { sigaction(signal, &SigAction::new(handler, SaFlags::empty(), SigSet::empty()))? };
    Ok(())
}

fn tty(fd: i32) -> &'static str {
    // SAFETY: the descriptor is one of the three that a program starts with.
    if isatty(unsafe { BorrowedFd::borrow_raw(fd) }).unwrap_or(false) { "tty" } else { "no-tty" }
}
