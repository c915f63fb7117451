//! Carriers: the processes that start agents on other nodes and carry their frames.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, stderr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iof_capture::{Child, Guardian, Signal, spawn_helper};
use iof_nodes::limits::MAX_NODES;
use iof_proto::App;
use nix::fcntl::OFlag;
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::pipe2;

/// The command that starts processes on other nodes. The cipher costs half as much as the default
/// of OpenSSH. A terminal that a configuration of the user asks for would change the bytes (-T).
pub const SSH: &str = "ssh -T -o BatchMode=yes -o Compression=no -o ServerAliveInterval=15 -o Ciphers=^aes128-gcm@openssh.com %h";

/// The same for a step of Slurm. The process may use all processors of its node.
const SRUN: &str = "srun -N1 -n1 --overlap --cpu-bind=none --mpi=none -w %h sh -c";

/// The same for one step on all nodes, whose agents connect themselves. One that fails ends no other one.
const SRUN_OF_ALL: &str = "srun -N%n -n%n --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --overlap --cpu-bind=none --mpi=none -w %h sh -c";

/// A resource manager, with the carrier for the nodes that it allocates.
#[derive(Debug)]
pub struct Site {
    /// The variable with the nodes, which it sets in its allocations.
    pub variable: &'static str,
    /// The form of the variable.
    pub nodes: NodeList,
    /// The command.
    pub template: &'static str,
    /// The command for agents that connect themselves.
    pub template_of_all: &'static str,
    /// An agent ends with the command that has started it.
    pub ends_agents: bool,
}

/// The form in which a variable has nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeList {
    /// Slurm's list, such as `n[1-3]`. Further variables of Slurm have the slots.
    Slurm,
    /// The path of a file with a node in each line.
    File,
    /// Nodes with their slots, such as `a 4 b 2`.
    Slots,
}

/// The resource managers.
pub const SITES: [Site; 3] = [
    Site {
        variable: "SLURM_JOB_NODELIST",
        nodes: NodeList::Slurm,
        template: SRUN,
        template_of_all: SRUN_OF_ALL,
        ends_agents: true,
    },
    Site {
        variable: "PBS_NODEFILE",
        nodes: NodeList::File,
        template: SSH,
        template_of_all: SSH,
        ends_agents: false,
    },
    Site {
        variable: "LSB_MCPU_HOSTS",
        nodes: NodeList::Slots,
        template: SSH,
        template_of_all: SSH,
        ends_agents: false,
    },
];

/// The number of agents that a process starts, or reaches again, at the same time over one server.
/// OpenSSH refuses more than ten (MaxStartups in sshd_config(5)), which counts for jump hosts.
pub const MAX_STARTS: usize = 8;

/// The number of agents that a process starts at the same time over servers of their own.
const STARTS: usize = 64;

/// The exit code of ssh(1) if it can't connect.
const REFUSED: i32 = 255;

/// The time that a carrier may take to exit: after it has ended its output, and after SIGTERM.
pub const EXIT_LIMIT: Duration = Duration::from_millis(500);

/// The time that the end of an edge waits until a carrier has taken what was sent.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// The wait after a connection that could not be accepted, such as for want of descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Returns a random part of a time, up to all of it, so that many attempts are not made at once.
pub fn random_part(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) as u32;
    time.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// The time, at most, for which the end of a job tries to reach an agent that outlives its carriers.
pub const END_LIMIT: Duration = Duration::from_secs(30);

/// The command that starts a process on a node, by its words. `%h` stands for the host. With `%n`, it starts one on
/// each of several nodes: that is their number, and `%h` their list with commas. A shell command is appended as the
/// last word.
#[derive(Clone, Debug)]
pub struct Template(Vec<String>);

/// A template of carriers without words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the command of carriers is empty: expected one such as 'ssh %h' or 'sh -c'")]
pub struct EmptyTemplate;

/// A carrier that runs.
pub(crate) struct Carrier {
    pub end: CarrierEnd,
    pub down: File,
    pub up: File,
    /// Its stderr, unless that is discarded.
    pub errors: Option<File>,
}

/// A handle that ends a carrier, and tells its end.
#[derive(Clone)]
pub(crate) struct CarrierEnd(Arc<Mutex<Kind>>);

enum Kind {
    /// A process.
    Process { process: Child, status: Option<ExitStatus> },
    /// A connection, until it is ended, and the carrier that has started only what is at its other end.
    Connection(Option<File>, Option<CarrierEnd>),
}

impl Template {
    /// Returns the template with the words of `text`, which spaces separate.
    ///
    /// # Errors
    /// The text has no words.
    pub fn new(text: &str) -> Result<Template, EmptyTemplate> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() { Err(EmptyTemplate) } else { Ok(Template(words)) }
    }

    /// Returns whether the command starts the processes of several nodes.
    pub fn is_of_all(&self) -> bool {
        self.0.iter().any(|word| word.contains("%n"))
    }

    /// Returns how many processes the command may start at once: 64, or 8 if a word of it names a
    /// jump host of ssh(1), over which all of them go, or all if it starts them together.
    pub(crate) fn starts(&self) -> usize {
        if self.is_of_all() {
            return MAX_NODES;
        }
        let jumps = |word: &String| word.starts_with("-J") || word.to_ascii_lowercase().contains("proxyjump");
        if self.0.iter().any(jumps) { MAX_STARTS } else { STARTS }
    }

    /// Returns the name of the command if agents end with it.
    pub fn ends_agents(&self) -> Option<&str> {
        let name = self.0.first()?.rsplit('/').next()?;
        let ends = |site: &Site| site.ends_agents && site.template.split(' ').next() == Some(name);
        SITES.iter().any(ends).then_some(name)
    }

    /// Starts an agent, or a link to one, on `host`. Its command is one word, which ssh(1) and `sh -c`
    /// pass to a shell. The carrier inherits no blocked signals. If `is_silent`, nothing that it
    /// prints on stderr is shown. With `guardian`, it ends with this process.
    pub(crate) fn start(
        &self,
        host: &str,
        command: &OsStr,
        is_silent: bool,
        guardian: Option<&Guardian>,
    ) -> io::Result<Carrier> {
        let (errors, stderr) = match is_silent {
            true => (None, OpenOptions::new().write(true).open("/dev/null")?.into()),
            false => pipe2(OFlag::O_CLOEXEC).map(|(read, write)| (Some(read.into()), write))?,
        };
        let (stdin, down) = pipe2(OFlag::O_CLOEXEC)?;
        // A socket has memory for several records, in larger pieces than the pages of a pipe, each of
        // which is accounted. So the carrier and the reader wait less often for each other.
        let (up, stdout) = UnixStream::pair()?;
        let end = self.spawn(&[host], command, [stdin, stdout.into(), stderr], guardian)?;
        Ok(Carrier { end, down: down.into(), up: OwnedFd::from(up).into(), errors })
    }

    /// Starts agents that connect themselves, on one host, or on several ones if the command does so. They read
    /// `invitation` from their stdin. Returns what arrives from one host; that from several ones is shown on
    /// stderr, whose lines name the agents.
    pub(crate) fn start_agents(
        &self,
        hosts: &[&str],
        command: &OsStr,
        invitation: OwnedFd,
        guardian: Option<&Guardian>,
    ) -> io::Result<(CarrierEnd, Option<File>)> {
        let (errors, output) = match self.is_of_all() {
            true => (None, stderr().as_fd().try_clone_to_owned()?),
            false => pipe2(OFlag::O_CLOEXEC).map(|(read, write)| (Some(read.into()), write))?,
        };
        let end = self.spawn(hosts, command, [invitation, output.try_clone()?, output], guardian)?;
        Ok((end, errors))
    }

    /// Starts the command with these as its stdin, stdout and stderr.
    fn spawn(
        &self,
        hosts: &[&str],
        command: &OsStr,
        files: [OwnedFd; 3],
        guardian: Option<&Guardian>,
    ) -> io::Result<CarrierEnd> {
        let (list, count) = (hosts.join(","), hosts.len().to_string());
        let words = self.0.iter().map(|word| word.replace("%n", &count).replace("%h", &list));
        let mut words = words.map(OsString::from);
        let program = words.next().unwrap_or_default();
        let app = App::new(program, words.chain([command.to_owned()]));
        // It leads a group: signals of the terminal are for the ranks, to which the front end sends them.
        let process = spawn_helper(&app, files, guardian)?;
        Ok(CarrierEnd::new(Kind::Process { process, status: None }))
    }
}

impl CarrierEnd {
    fn new(kind: Kind) -> CarrierEnd {
        CarrierEnd(Arc::new(Mutex::new(kind)))
    }

    /// Returns what ends a connection. `down` is a duplicate of that connection. `starter` ends with it.
    pub(crate) fn of_connection(down: Option<File>, starter: Option<CarrierEnd>) -> CarrierEnd {
        CarrierEnd::new(Kind::Connection(down, starter))
    }

    /// Returns whether both are of the same carrier.
    pub(crate) fn is_same(&self, other: &CarrierEnd) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the pidfd of the carrier's process, if it has one. It is open until this is dropped.
    pub(crate) fn pidfd(&self) -> Option<RawFd> {
        match &*lock(&self.0) {
            Kind::Process { process, .. } => Some(process.as_fd().as_raw_fd()),
            Kind::Connection(..) => None,
        }
    }

    /// Reaps the carrier's process if it has ended. Returns whether it is reaped.
    pub(crate) fn reap(&self) -> bool {
        match &mut *lock(&self.0) {
            Kind::Process { process, status } => {
                let waited = process.try_wait();
                let is_reaped = !matches!(waited, Ok(None));
                *status = waited.ok().flatten().map(|(status, _)| status).or(*status);
                is_reaped
            }
            Kind::Connection(..) => true,
        }
    }

    /// Returns how the carrier has ended, once it is reaped.
    pub(crate) fn ended(&self) -> Option<String> {
        match &*lock(&self.0) {
            Kind::Process { status, .. } => status.map(|status| format!("its carrier ended with {status}")),
            Kind::Connection(_, Some(starter)) => starter.ended(),
            Kind::Connection(_, None) => Some("its connection has ended".into()),
        }
    }

    /// Returns whether the carrier has exited as ssh(1) does when it can't connect.
    pub(crate) fn was_refused(&self) -> bool {
        let status = |kind: &Kind| if let Kind::Process { status, .. } = kind { *status } else { None };
        status(&lock(&self.0)).and_then(|status| status.code()) == Some(REFUSED)
    }

    /// Sends a signal to the process group that the carrier leads. Once the carrier was reaped, the
    /// rest of its group receives it from Linux 6.9 on. A connection ends instead, at first in its direction
    /// to the agent only if it is SIGTERM.
    pub(crate) fn signal(&self, signal: Signal) {
        match &mut *lock(&self.0) {
            // Fails if it is a pipe, which ends with its last descriptor.
            Kind::Connection(down, starter) => {
                // After SIGTERM, the agent ends it, or gets another signal.
                let is_asked = signal == Signal::TERM;
                let how = if is_asked { Shutdown::Write } else { Shutdown::Both };
                down.take_if(|down| shutdown(down.as_raw_fd(), how).is_err() || !is_asked);
                starter.iter().for_each(|starter| starter.signal(signal));
            }
            // It may have ended.
            Kind::Process { process, .. } => drop(process.signaller().send(signal)),
        }
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a word for a shell, in quotes.
pub fn shell_word(word: &OsStr) -> OsString {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_shell() {
        assert_eq!(shell_word(OsStr::new("/a b/c'd$")), "'/a b/c'\\''d$'");
    }
}
