//! How the front end reaches its agents: by a command, or over connections of the launcher.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use iof_capture::Guardian;

use crate::carrier::{Carrier, CarrierEnd, Template, shell_word};

/// The two byte streams between a front end and an agent. An agent needs blocking ones. The front end
/// makes its own non-blocking, with their duplicates.
///
/// The front end can end a connection of stream sockets at any time. A pipe it can only close, so
/// an agent that reads nothing more from a pipe is not ended.
#[derive(Debug)]
pub struct NodeConnection {
    /// The stream from the front end to the agent.
    pub down: File,
    /// The stream from the agent to the front end.
    pub up: File,
}

impl NodeConnection {
    /// Returns the connection of two streams, such as two pipes.
    pub fn new(down: impl Into<OwnedFd>, up: impl Into<OwnedFd>) -> NodeConnection {
        NodeConnection { down: down.into().into(), up: up.into().into() }
    }

    /// Returns the connection over a stream socket, whose descriptor is duplicated.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn of_socket(socket: impl Into<OwnedFd>) -> io::Result<NodeConnection> {
        let up = socket.into();
        Ok(NodeConnection::new(up.try_clone()?, up))
    }
}

/// A function that connects to a new agent on a host.
type Connect = dyn Fn(&str) -> io::Result<NodeConnection> + Send + Sync;

/// How the front end reaches its agents.
#[derive(Clone)]
pub struct Carriers(Kind);

#[derive(Clone)]
enum Kind {
    Command { template: Template, agent: OsString, link: OsString },
    Connections(Arc<Connect>),
}

impl fmt::Debug for Carriers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Command { template, agent, .. } => {
                f.debug_struct("Carriers").field("template", template).field("agent", agent).finish()
            }
            Kind::Connections(_) => f.debug_struct("Carriers").finish_non_exhaustive(),
        }
    }
}

impl Carriers {
    /// Starts a process for each node, whose stdin and stdout are the connection: the words of
    /// `template`, and as its last word the shell command `agent`. That program calls
    /// [`Agent::start`](crate::Agent::start).
    pub fn command(template: Template, agent: impl Into<OsString>) -> Carriers {
        Carriers(Kind::Command { template, agent: agent.into(), link: OsString::new() })
    }

    /// Sets the shell command of a program that calls [`link`](crate::link) with the path that is
    /// appended to the command. Needed for [`Launch::reattach`](crate::Launch::reattach).
    pub fn with_link(self, command: impl Into<OsString>) -> Carriers {
        match self.0 {
            Kind::Command { template, agent, .. } => {
                Carriers(Kind::Command { template, agent, link: command.into() })
            }
            Kind::Connections(_) => self,
        }
    }

    /// Calls `connect` for the connection to the agent of each host. It holds back the start and its time
    /// limit, so it should have a limit of its own. Connections are not replaced:
    /// [`Launch::reattach`](crate::Launch::reattach) is refused.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    ///
    /// use iof_remote::{Carriers, NodeConnection};
    ///
    /// let carriers = Carriers::connections(|host| {
    ///     NodeConnection::of_socket(UnixStream::connect(format!("/run/my-daemon/{host}"))?)
    /// });
    /// ```
    pub fn connections(
        connect: impl Fn(&str) -> io::Result<NodeConnection> + Send + Sync + 'static,
    ) -> Carriers {
        Carriers(Kind::Connections(Arc::new(connect)))
    }

    /// Returns how many agents may be started at once: 64, or 8 if a command goes over a jump host of
    /// ssh(1), whose server refuses more than ten (MaxStartups in sshd_config(5)).
    pub fn starts(&self) -> usize {
        match &self.0 {
            Kind::Command { template, .. } => template.starts(),
            Kind::Connections(_) => 1,
        }
    }

    /// Returns whether a carrier can be replaced: a command for links is known.
    pub(crate) fn can_link(&self) -> bool {
        matches!(&self.0, Kind::Command { link, .. } if !link.is_empty())
    }

    /// Starts a carrier to a new agent on `host`; with `link`, to the agent that listens at this path,
    /// which only a command reaches. If `is_silent`, nothing that it prints on stderr is shown.
    pub(crate) fn start(
        &self,
        host: &str,
        link: Option<&Path>,
        is_silent: bool,
        guardian: Option<&Guardian>,
    ) -> io::Result<Carrier> {
        match (&self.0, link) {
            (Kind::Command { template, agent, .. }, None) => template.start(host, agent, is_silent, guardian),
            (Kind::Command { template, link, .. }, Some(path)) => {
                let words = [link, OsStr::new(" "), &shell_word(path.as_os_str())];
                template.start(host, &words.into_iter().collect::<OsString>(), is_silent, guardian)
            }
            (Kind::Connections(connect), _) => {
                let NodeConnection { down, up } = connect(host)?;
                let end = CarrierEnd::of_connection(down.try_clone()?);
                Ok(Carrier { end, down, up, errors: None })
            }
        }
    }
}
