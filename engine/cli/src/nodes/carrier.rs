//! Carriers: the processes that start agents on other nodes and carry their frames.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use iof_nodes::Frame;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::Failure;

/// The command that starts processes on other nodes. The cipher costs half as much as the default
/// of OpenSSH. A terminal that a configuration of the user asks for would change the bytes (-T).
pub const SSH: &str = "ssh -T -o BatchMode=yes -o Compression=no -o ServerAliveInterval=15 -o Ciphers=^aes128-gcm@openssh.com %h";

/// The same inside an allocation of Slurm. The process may use all processors of its node.
pub const SRUN: &str = "srun -N1 -n1 --overlap --cpu-bind=none --mpi=none -w %h sh -c";

/// The largest number of agents that a process starts at the same time. OpenSSH refuses more than
/// ten (MaxStartups in sshd_config(5)), which counts for jump hosts.
pub const MAX_STARTS: usize = 8;

/// How long a carrier may take to exit: after it has ended its output, and after SIGTERM.
pub const EXIT_LIMIT: Duration = Duration::from_millis(500);

/// The words of `--rsh`.
#[derive(Clone, Debug)]
pub struct Template(Vec<String>);

/// A carrier that runs.
pub struct Carrier {
    pub child: Child,
    pub down: ChildStdin,
    pub up: ChildStdout,
}

impl Template {
    pub fn new(text: &str) -> Result<Template, Failure> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(Failure::usage("--rsh is empty: expected a command, such as 'ssh %h' or 'sh -c'"));
        }
        Ok(Template(words))
    }

    /// Returns the template with these words.
    pub fn of_words(words: Vec<String>) -> Template {
        Template(words)
    }

    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Starts an agent on `host`. Its command is one word, which ssh(1) and `sh -c` pass to a
    /// shell.
    pub fn start(&self, host: &str, agent: &OsStr) -> io::Result<Carrier> {
        let mut words = self.0.iter().map(|word| word.replace("%h", host));
        let mut command = Command::new(words.next().unwrap_or_default());
        // Signals of the terminal are for the ranks, to which the front end sends them.
        command.args(words).arg(agent).process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(down), Some(up)) => Ok(Carrier { child, down, up }),
            _ => Err(io::Error::other("the carrier has no pipes")),
        }
    }
}

/// Returns how a carrier has ended that has ended its output.
pub fn ended(carrier: &Mutex<Child>) -> String {
    let deadline = Instant::now() + EXIT_LIMIT;
    loop {
        match lock(carrier).try_wait() {
            Ok(Some(status)) => return format!("its carrier ended with {status}"),
            Ok(None) if Instant::now() < deadline => {}
            Ok(None) | Err(_) => break,
        }
        thread::sleep(Duration::from_millis(5));
    }
    signal_group(carrier, Signal::SIGTERM);
    "its carrier has closed its output".into()
}

/// Sends a signal to the process group of a carrier, which the carrier leads, unless the carrier
/// has ended.
pub fn signal_group(carrier: &Mutex<Child>, signal: Signal) {
    let mut carrier = lock(carrier);
    // The pid can't belong to another process: only these functions wait for the carrier, with its
    // lock.
    if let (Ok(None), Ok(pid)) = (carrier.try_wait(), i32::try_from(carrier.id())) {
        let _ = killpg(Pid::from_raw(pid), signal);
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes whole frames. Carriers may hold back what does not end in a newline, so padding follows:
/// srun does until 1,024 bytes.
pub fn write_frames(mut pipe: impl Write, frames: &[u8]) -> io::Result<()> {
    pipe.write_all(frames)?;
    match frames.last() {
        Some(b'\n') | None => Ok(()),
        Some(_) => pipe.write_all(&Frame::Padding.header().unwrap_or_default()),
    }
}

/// Returns the shell command of the agent: this program, which the other nodes have at the same
/// path.
pub fn agent_command() -> io::Result<OsString> {
    let program = std::env::current_exe()?;
    let mut command = b"exec ".to_vec();
    command.extend(quoted(program.as_os_str().as_bytes()));
    command.extend(b" agent");
    Ok(OsString::from_vec(command))
}

/// Returns a word for a shell.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_shell() {
        assert_eq!(quoted(b"/a b/c'd$"), b"'/a b/c'\\''d$'");
    }
}
