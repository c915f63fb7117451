//! Carriers: the processes that start agents on other nodes and carry their frames.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::error::Failure;

/// The command that starts processes on other nodes. The cipher costs half as much as the default of OpenSSH. A terminal that a
/// configuration of the user asks for would change the bytes (-T).
pub const SSH: &str = "ssh -T -o BatchMode=yes -o Compression=no -o ServerAliveInterval=15 -o Ciphers=^aes128-gcm@openssh.com %h";

/// The same inside an allocation of Slurm. The process may use all processors of its node.
pub const SRUN: &str = "srun -N1 -n1 --overlap --cpu-bind=none --mpi=none -w %h sh -c";

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

    /// Starts an agent on `host`. Its command is one word, which ssh(1) and `sh -c` pass to a shell.
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

/// Returns the shell command of the agent: this program, which the other nodes have at the same path.
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
