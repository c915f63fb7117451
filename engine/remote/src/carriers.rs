//! The ways in which the front end reaches its agents: by a command, or over connections of the
//! launcher.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use iof_capture::Guardian;
use iof_engine::Node;
use iof_nodes::proof::NodeToken;

use crate::carrier::{Carrier, CarrierEnd, Template, shell_word};
use crate::dials::Dials;
use crate::tcp::random;

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

/// An agent that was started.
pub(crate) struct StartedAgent {
    pub end: CarrierEnd,
    /// The connection of its carrier, unless it connects itself.
    pub files: Option<NodeConnection>,
    /// The stderr of the carrier.
    pub errors: Option<File>,
    /// The token of an agent that connects itself.
    pub token: Option<NodeToken>,
}

/// The way in which the front end reaches its agents.
#[derive(Clone)]
pub struct Carriers(Kind);

#[derive(Clone)]
enum Kind {
    Command {
        template: Template,
        agent: OsString,
        link: OsString,
    },
    /// Agents that the command only starts.
    Dials {
        template: Template,
        agent: OsString,
        dials: Arc<Dials>,
    },
    Connections(Arc<Connect>),
}

impl fmt::Debug for Carriers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Command { template, agent, .. } | Kind::Dials { template, agent, .. } => {
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
            Kind::Connections(_) | Kind::Dials { .. } => self,
        }
    }

    /// Lets the command only start agents, with a stdin that invites them: its program calls
    /// [`dial`](crate::dial) with the [`Invitation`](iof_nodes::Invitation) that it has read there. The agents connect to
    /// `listener`, whose address they must reach, and both ends prove that they have the token of the node. The
    /// bytes are not encrypted. With [`Launch::reattach`](crate::Launch::reattach), agents connect again. The carriers serve one
    /// job.
    ///
    /// # Errors
    /// `listener` can't be used.
    pub fn over_tcp(self, listener: TcpListener) -> io::Result<Carriers> {
        match self.0 {
            Kind::Command { template, agent, .. } => {
                let dials = Arc::new(Dials::new(listener)?);
                Ok(Carriers(Kind::Dials { template, agent, dials }))
            }
            Kind::Connections(_) | Kind::Dials { .. } => Ok(self),
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
            Kind::Command { template, .. } | Kind::Dials { template, .. } => template.starts(),
            Kind::Connections(_) => 1,
        }
    }

    /// Returns the address to which agents connect, if they do.
    pub fn address(&self) -> Option<SocketAddr> {
        self.dials().map(|dials| dials.address)
    }

    /// Returns whether a carrier can be replaced by a command for links, which is known.
    pub(crate) fn can_link(&self) -> bool {
        matches!(&self.0, Kind::Command { link, .. } if !link.is_empty())
    }

    /// Returns the connections that agents make, if they do.
    pub(crate) fn dials(&self) -> Option<&Arc<Dials>> {
        if let Kind::Dials { dials, .. } = &self.0 { Some(dials) } else { None }
    }

    /// Returns whether one process has started the agents of all nodes.
    pub(crate) fn are_shared(&self) -> bool {
        matches!(&self.0, Kind::Dials { template, .. } if template.is_of_all())
    }

    /// Starts the agent of the node with this number, or those of all `nodes` if one command does so. Only [`Carriers::dials`] are started so.
    pub(crate) fn start_agents(
        &self,
        nodes: &[Node],
        number: usize,
        guardian: Option<&Guardian>,
    ) -> io::Result<BTreeMap<usize, StartedAgent>> {
        let Kind::Dials { template, agent, dials } = &self.0 else { return Ok(BTreeMap::new()) };
        let started = |index: &usize| template.is_of_all() || *index == number;
        let nodes = nodes.iter().enumerate().filter(|(index, _)| started(index));
        let invited = nodes.map(|(index, node)| Ok((index, node.host.as_str(), NodeToken::new(random()?))));
        let invited: Vec<(usize, &str, NodeToken)> = invited.collect::<io::Result<_>>()?;
        let lines = invited.iter().map(|(index, host, token)| (*index as u32, token, *host));
        let invitation = dials.invitation(lines)?;
        let hosts: Vec<&str> = invited.iter().map(|(_, host, _)| *host).collect();
        let (end, mut errors) = template.start_agents(&hosts, agent, invitation, guardian)?;
        let agents = invited.into_iter().map(|(index, _, token)| {
            (index, StartedAgent { end: end.clone(), files: None, errors: errors.take(), token: Some(token) })
        });
        Ok(agents.collect())
    }

    /// Starts a carrier to a new agent on `host`; with `link`, to the agent that listens at this path,
    /// which only a command reaches. Agents that connect themselves are not started so. If `is_silent`, nothing that it prints on stderr is shown.
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
                let end = CarrierEnd::of_connection(Some(down.try_clone()?), None);
                Ok(Carrier { end, down, up, errors: None })
            }
            (Kind::Dials { .. }, _) => Err(ErrorKind::Unsupported.into()),
        }
    }
}
