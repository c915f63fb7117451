//! The options of `iof run` for several nodes.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, io};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use iof_engine::JobSpec;
use iof_proto::Rank;
use iof_remote::hosts::{Hosts, MapBy, is_here};
use iof_remote::{Carriers, EmptyTemplate, Launch, Node, NodeConfig, SITES, Template, shell_word};

use super::allocation::{ChosenHosts, site};
use super::hostfile;
use super::tcp::TcpCarrier;
use crate::error::Failure;
use crate::options::values::{duration, timeout};

/// The options for nodes.
#[derive(Args, Clone)]
pub struct NodeArgs {
    /// Run the ranks on these nodes, such as a:4,b:4
    ///
    /// Each host has a number of slots, by default 1. Each node needs iof at the same path.
    /// localhost and the name of this node need neither that nor --rsh if no other node is listed.
    #[arg(long, help_heading = "Node options", short = 'H', value_name = "LIST")]
    hosts: Option<Hosts>,

    /// Run the ranks on the nodes in this file
    ///
    /// Each line has a host and its slots, as 'a slots=4' or 'a:4', by default 1. A host that
    /// occurs twice has the sum. What follows # is ignored. Without --hosts and --hostfile, the
    /// ranks run on the nodes of the allocation of Slurm, PBS or LSF in which iof runs, if it has
    /// more than one, and otherwise on this node.
    #[arg(long, help_heading = "Node options", value_name = "FILE", conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,

    /// Map ranks by slot or node
    ///
    /// With slot, the default, ranks fill the slots of one host after the other. With node, ranks
    /// take one slot of each host in turn.
    #[arg(long, help_heading = "Node options", value_name = "HOW", value_parser = map_by(), default_value = "slot")]
    #[arg(hide_possible_values = true, hide_default_value = true)]
    map_by: MapBy,

    /// Let ranks outnumber the slots
    ///
    /// Without it, the ranks need as many slots as --hosts, --hostfile or the allocation gives them, with
    /// those of jobs that tools start on this node. With it, each host takes as many ranks more.
    #[arg(long, help_heading = "Node options")]
    oversubscribe: bool,

    /// Leave this environment variable to each node
    ///
    /// Ranks on other nodes have the variables of iof, except those of the host and of the session,
    /// such as DISPLAY and SSH_AUTH_SOCK. With this option they have NAME as their node sets it.
    /// May be repeated.
    #[arg(long, help_heading = "Node options", value_name = "NAME", value_parser = variable_name)]
    pub host_env: Vec<OsString>,

    /// Start processes on nodes by this command
    ///
    /// %h stands for the host. A shell command is appended as the last word. The words are
    /// separated by spaces. The default is that of the resource manager in whose allocation all nodes
    /// are, which is srun for Slurm, and otherwise ssh, without a terminal and without questions for
    /// passwords. With --carrier tcp and %n, one command starts all agents: %n is the number of
    /// hosts, and %h their list with commas.
    #[arg(long, help_heading = "Node options", value_name = "TEMPLATE")]
    rsh: Option<String>,

    /// Connect nodes by TCP, such as tcp:10.0.0.1
    ///
    /// The value is tcp, tcp:ADDRESS or tcp:ADDRESS:PORT, with an IPv6 address in brackets. The command
    /// of --rsh only starts the agents. They connect to this address of this node, by default the one
    /// from which it reaches the hosts, and prove that iof has started them. The connections are plain
    /// text: whoever can read or change the traffic can read and change the output and stdin of the
    /// ranks, and run programs on the nodes. In an allocation of Slurm, one srun starts all agents.
    #[arg(long, help_heading = "Node options", value_name = "CARRIER")]
    carrier: Option<TcpCarrier>,

    /// Let --carrier use a public address
    ///
    /// Without it, an address outside the private ranges and the loopback ones is refused.
    #[arg(long, help_heading = "Node options", requires = "carrier")]
    carrier_insecure: bool,

    /// End a start that takes longer
    ///
    /// The job ends if its ranks do not run after this time, by default 60 s, such as when a login
    /// hangs. After 5 s, a line names the nodes that are waited for. In seconds, with suffix ms, s, m
    /// or h, or as MINUTES:SECONDS.
    #[arg(long, help_heading = "Node options", value_name = "DURATION", value_parser = timeout)]
    start_timeout: Option<Duration>,

    /// Give up a node that is silent for this time
    ///
    /// Each node reports once a second. If nothing arrives from one for 30 s, a line names it. Its ranks
    /// count as lost after this time, also if it only stood still. In seconds, with suffix ms, s, m or
    /// h, or as MINUTES:SECONDS. By default, such a node is waited for.
    #[arg(long, help_heading = "Node options", value_name = "DURATION", value_parser = node_timeout)]
    node_timeout: Option<Duration>,

    /// Start processes on this many nodes at once
    ///
    /// By default 64, or 8 if --rsh names a jump host of ssh. A connection that ssh can't make is tried
    /// three times: sshd refuses connections when more than ten begin at once (its MaxStartups).
    #[arg(long, help_heading = "Node options", value_name = "N", value_parser = at_least_one)]
    starts: Option<usize>,

    /// Let nodes wait for another connection
    ///
    /// If the connection to a node ends, this process tries for this time to make another one, over
    /// which the output goes on where it ended. The ranks run meanwhile. In seconds, with suffix ms,
    /// s, m or h, or as MINUTES:SECONDS. By default, or with 0, such a node is lost at once.
    #[arg(long, help_heading = "Node options", value_name = "DURATION", value_parser = duration)]
    reattach: Option<Duration>,
}

impl NodeArgs {
    /// Returns how the agents of these nodes are reached, for a job that a rank spawns if it `is_spawned`.
    pub fn carriers(
        &self,
        nodes: &[Node],
        template: &Template,
        is_spawned: bool,
    ) -> Result<Carriers, Failure> {
        let agent = agent_command(self.reattach_limit(), self.has_tcp()).map_err(Failure::running)?;
        let carriers = Carriers::command(template.clone(), agent);
        match &self.carrier {
            None => Ok(carriers.with_link(own_command("link").map_err(Failure::running)?)),
            Some(carrier) => {
                let listener = carrier.listen(nodes, self.carrier_insecure, is_spawned)?;
                carriers.over_tcp(listener).map_err(Failure::running)
            }
        }
    }

    /// Returns whether agents connect by TCP.
    pub fn has_tcp(&self) -> bool {
        self.carrier.is_some()
    }

    /// Refuses what does not fit the carrier or its command.
    fn check_carrier(&self, template: &Template) -> Result<(), Failure> {
        match &self.carrier {
            Some(carrier) => carrier.check(self.carrier_insecure)?,
            None if template.is_of_all() => {
                return Err(Failure::usage(
                    "--rsh with %n starts all agents at once, which needs --carrier tcp: write a command for each \
                     host, or add that option",
                ));
            }
            None => {}
        }
        if template.is_of_all() && self.starts.is_some() {
            return Err(Failure::usage(
                "--starts has no effect: one command starts all agents; leave it out",
            ));
        }
        Ok(())
    }

    /// Returns the launch of a job with these limits for nodes that do not answer, without printers.
    pub fn launch<'a>(&self, spec: &'a JobSpec, carriers: &'a Carriers, config: NodeConfig) -> Launch<'a> {
        let mut launch = Launch { config, ..Launch::new(spec, carriers) };
        (launch.reattach, launch.node_timeout) = (self.reattach_limit(), self.node_timeout);
        launch.start_timeout = self.start_timeout.or(launch.start_timeout);
        launch.starts = self.starts.unwrap_or(launch.starts);
        launch
    }

    /// Returns the nodes of `nprocs` ranks that follow the `used` ones which run there, and the command that
    /// starts agents on them.
    pub fn choose_after(&self, used: u64, nprocs: u64) -> Result<(Vec<Node>, Template), Failure> {
        let chosen = self.choose(used.saturating_add(nprocs))?;
        let (mut nodes, template) = chosen.ok_or_else(|| Failure::running("there are no nodes"))?;
        for node in &mut nodes {
            let after =
                |rank: &Rank| u64::from(rank.0).checked_sub(used).and_then(|rank| rank.try_into().ok());
            node.ranks = node.ranks.iter().filter_map(after).map(Rank).collect();
        }
        nodes.retain(|node| !node.ranks.is_empty());
        Ok((nodes, template))
    }

    /// Returns how long a node may be without a carrier, if carriers are replaced.
    pub fn reattach_limit(&self) -> Option<Duration> {
        self.reattach.filter(|limit| !limit.is_zero())
    }

    /// Returns the hosts that the options list.
    fn listed(&self) -> Result<Option<Hosts>, Failure> {
        match (&self.hosts, &self.hostfile) {
            (Some(hosts), _) => Ok(Some(hosts.clone())),
            (None, Some(path)) => hostfile::read(path, "--hostfile").map(Some).map_err(Failure::Usage),
            (None, None) => Ok(None),
        }
    }

    /// Returns whether the options list other nodes than this one.
    pub fn lists_others(&self) -> Result<bool, Failure> {
        Ok(self.listed()?.is_some_and(|hosts| !hosts.names().all(is_here)))
    }

    /// Returns the hosts of a job, if the options or an allocation list them.
    fn found(&self) -> Result<Option<ChosenHosts>, Failure> {
        match self.listed()? {
            Some(hosts) => Ok(Some(ChosenHosts::new(hosts, variable))),
            None => ChosenHosts::find(variable).map_err(Failure::Usage),
        }
    }

    /// Returns the number of ranks that may run on this node, if that is limited.
    pub fn slots(&self) -> Result<Option<u64>, Failure> {
        let found = self.found()?.filter(|_| !self.oversubscribe);
        Ok(found.and_then(|found| found.hosts.slots_here()))
    }

    /// Returns the nodes of a job, and the command that starts agents on them. Returns `None` for
    /// ranks on this node.
    pub fn choose(&self, nprocs: u64) -> Result<Option<(Vec<Node>, Template)>, Failure> {
        let Some(ChosenHosts { mut hosts, rsh: default }) = self.found()? else {
            let given = [
                ("--host-env", !self.host_env.is_empty()),
                ("--rsh", self.rsh.is_some()),
                ("--carrier", self.carrier.is_some()),
                ("--start-timeout", self.start_timeout.is_some()),
                ("--starts", self.starts.is_some()),
                ("--node-timeout", self.node_timeout.is_some()),
                ("--reattach", self.reattach.is_some()),
            ];
            let option = given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option);
            return match option {
                Some(option) if site(variable).is_none() => {
                    Err(Failure::Usage(format!("{option} needs nodes: write --hosts or --hostfile")))
                }
                _ => Ok(None),
            };
        };
        if self.oversubscribe {
            if self.rsh.is_none() && hosts.names().all(is_here) {
                return Ok(None);
            }
            hosts.oversubscribe(nprocs).map_err(Failure::Usage)?;
        }
        let nodes = hosts.place(nprocs, self.map_by).map_err(Failure::Usage)?;
        if self.rsh.is_none() && nodes.iter().all(|node| is_here(&node.host)) {
            return Ok(None);
        }
        let all = SITES.iter().find(|site| self.has_tcp() && site.template == default);
        let default = all.map_or(default, |site| site.template_of_all);
        let template = Template::new(self.rsh.as_deref().unwrap_or(default)).map_err(|EmptyTemplate| {
            Failure::usage("--rsh is empty: expected a command, such as 'ssh %h' or 'sh -c'")
        })?;
        self.check_carrier(&template)?;
        Ok(Some((nodes, template)))
    }
}

/// Returns the value of a variable of the environment that is set.
fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.map(|value| value.to_string_lossy().into_owned())
}

/// The shortest value of `--node-timeout`: an agent on a busy node may report late.
const MIN_NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Parses the time after which a silent node is given up.
fn node_timeout(text: &str) -> Result<Duration, String> {
    let too_short =
        || format!("expected {} seconds or more: nodes report once a second", MIN_NODE_TIMEOUT.as_secs());
    duration(text).and_then(|time| (time >= MIN_NODE_TIMEOUT).then_some(time).ok_or_else(too_short))
}

/// Parses the number of starts at once.
fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| "expected a number of nodes, at least 1".into())
}

/// Returns the parser of `--map-by`.
fn map_by() -> impl TypedValueParser<Value = MapBy> {
    let slot = PossibleValue::new("slot").help("The slots of one host after the other");
    let node = PossibleValue::new("node").help("One slot of each host in turn");
    PossibleValuesParser::new([slot, node])
        .map(|value| if value == "node" { MapBy::Node } else { MapBy::Slot })
}

/// Parses the name of a variable.
fn variable_name(text: &str) -> Result<OsString, String> {
    match text {
        "" => Err("the name is empty".into()),
        text if text.contains(['=', ',', '*']) => Err("expected the name of one variable".into()),
        text => Ok(text.into()),
    }
}

/// Returns the shell command of the agent, which connects itself if it `dials`. With `reattach`, it goes on for
/// that time without a carrier.
fn agent_command(reattach: Option<Duration>, dials: bool) -> io::Result<OsString> {
    let mut command = own_command("agent")?;
    if dials {
        command.push(" --dial");
    }
    if let Some(time) = reattach {
        command.push(format!(" --reattach {}ms", time.as_millis()));
    }
    Ok(command)
}

/// Returns the shell command of a subcommand of this program, which the other nodes have at the
/// same path.
fn own_command(name: &str) -> io::Result<OsString> {
    let program = shell_word(env::current_exe()?.as_os_str());
    let words = [OsStr::new("exec "), &program, OsStr::new(" "), OsStr::new(name)];
    Ok(words.into_iter().collect())
}
