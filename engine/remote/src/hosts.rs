//! The hosts of a job with their slots, and the ranks of each.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::str::FromStr;

use iof_engine::Node;
use iof_nodes::limits::{MAX_NODES, MAX_RANKS_OF_NODE};
use iof_proto::{Rank, shown};
use nix::unistd::gethostname;

/// The longest name of a host, in bytes.
pub const MAX_HOST_NAME: usize = 255;

/// Most hosts of a list. Those without ranks need no agents.
pub const MAX_LISTED_HOSTS: usize = 4096;

/// Hosts that the advice for too few slots lists.
const MAX_ADVISED: usize = 4;

/// Names of hosts with their numbers of slots.
///
/// ```
/// use iof_remote::hosts::{Hosts, MapBy};
///
/// let hosts: Hosts = "a:2,b:2".parse()?;
/// let nodes = hosts.place(3, MapBy::Slot)?;
/// assert_eq!(nodes.iter().map(|node| node.ranks.len()).collect::<Vec<_>>(), [2, 1]);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    hosts: Vec<(String, u32)>,
    /// The source that lists the hosts: an option, or a variable of the environment.
    source: &'static str,
}

/// The order in which ranks take the slots of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapBy {
    /// The slots of one host after the other.
    Slot,
    /// One slot of each host in turn.
    Node,
}

impl FromStr for Hosts {
    type Err = String;

    /// Parses the value of `--hosts`: names such as `a,b:4`. Without a number, a host has one slot.
    fn from_str(text: &str) -> Result<Hosts, String> {
        let mut hosts = Hosts::new("--hosts");
        for part in text.split(',') {
            let (name, slots) = name_and_slots(part)?;
            hosts.add(&name, slots.unwrap_or(1))?;
        }
        Ok(hosts)
    }
}

/// Parses `NAME` or `NAME:SLOTS`. An IPv6 address with slots is in brackets. `USER@` may precede each.
///
/// # Errors
/// The text has another form.
pub fn name_and_slots(text: &str) -> Result<(String, Option<u32>), String> {
    let host = host_of(text);
    let user = text.strip_suffix(host).unwrap_or_default();
    let (name, number) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, "")) if is_ipv6(address) => (address, None),
        Some((address, rest)) if is_ipv6(address) => {
            (address, Some(rest.strip_prefix(':').unwrap_or_default()))
        }
        _ if is_ipv6(host) => (host, None),
        _ => host.rsplit_once(':').map_or((host, None), |(name, number)| (name, Some(number))),
    };
    let full = || format!("{user}{name}");
    match number.map(slots) {
        None => Ok((full(), None)),
        Some(Some(slots)) if is_ipv6(name) || !name.contains(':') => Ok((full(), Some(slots))),
        Some(_) => Err(format!(
            "invalid host '{}': expected NAME, NAME:SLOTS or [IPV6-ADDRESS]:SLOTS, with a positive number of slots",
            shown(text)
        )),
    }
}

/// Returns the text of a host with slots, which [`name_and_slots`] parses.
fn with_slots(name: &str, slots: u64) -> String {
    match name.strip_suffix(host_of(name)).filter(|_| is_ipv6(host_of(name))) {
        Some(user) => format!("{user}[{}]:{slots}", host_of(name)),
        None => format!("{name}:{slots}"),
    }
}

/// Returns what follows `USER@`, which a name may begin with.
pub fn host_of(name: &str) -> &str {
    name.split_once('@').map_or(name, |(_, host)| host)
}

/// Returns whether a text is an IPv6 address, perhaps with a zone.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    address.parse::<Ipv6Addr>().is_ok()
        && !zone.is_empty()
        && zone.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Parses a positive number of slots.
pub fn slots(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|slots| is_number && *slots > 0)
}

impl Hosts {
    /// Creates an empty list, which errors call `source`.
    pub fn new(source: &'static str) -> Hosts {
        Hosts { hosts: Vec::new(), source }
    }

    /// Returns the number of hosts.
    #[expect(clippy::len_without_is_empty, reason = "a list has hosts")]
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Adds slots of a host, which may have some already.
    ///
    /// # Errors
    /// The name is invalid, or a limit is exceeded.
    pub fn add(&mut self, name: &str, slots: u32) -> Result<(), String> {
        let invalid = |reason: &str| Err(format!("invalid host '{}': {reason}", shown(name)));
        // A name that begins with '-' would be an option of ssh.
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        // Without the address, if it is one of IPv6.
        let plain = name.strip_suffix(host_of(name)).filter(|_| is_ipv6(host_of(name))).unwrap_or(name);
        if host_of(name).is_empty() || name.starts_with(['-', '@']) || !plain.chars().all(is_name) {
            return invalid(
                "expected an address, or a name of letters, digits and -_.@ that does not begin with -",
            );
        }
        if name.len() > MAX_HOST_NAME {
            return Err(format!("the name of a host has more than {MAX_HOST_NAME} bytes"));
        }
        let count = self.hosts.len();
        let place = self.hosts.iter_mut().find(|(other, _)| other == name);
        let sum = place.as_ref().map_or(0, |(_, slots)| *slots).saturating_add(slots);
        if sum > MAX_RANKS_OF_NODE {
            return invalid(&format!("a node has at most {MAX_RANKS_OF_NODE} slots"));
        }
        match place {
            Some((_, slots)) => *slots = sum,
            None if count < MAX_LISTED_HOSTS => self.hosts.push((name.to_owned(), slots)),
            None => return Err(format!("more than {MAX_LISTED_HOSTS} hosts")),
        }
        Ok(())
    }

    /// Returns whether one of the hosts has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.hosts.iter().any(|(host, _)| host == name)
    }

    /// Returns the names of the hosts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the number of slots of all hosts.
    pub fn slots(&self) -> u64 {
        self.hosts.iter().map(|(_, slots)| u64::from(*slots)).sum()
    }

    /// Returns the number of slots of this node, if it is one of the hosts.
    pub fn slots_here(&self) -> Option<u64> {
        let here = self.hosts.iter().filter(|(name, _)| is_here(host_of(name)));
        here.map(|(_, slots)| u64::from(*slots)).reduce(u64::saturating_add)
    }

    /// Adds as many slots to each host, so that there are enough for `nprocs` ranks.
    ///
    /// # Errors
    /// A host gets too many.
    pub fn oversubscribe(&mut self, nprocs: u64) -> Result<(), String> {
        let missing = nprocs.saturating_sub(self.slots()).div_ceil(self.hosts.len().max(1) as u64);
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        self.hosts.clone().into_iter().try_for_each(|(name, _)| self.add(&name, missing))
    }

    /// Places the ranks. Hosts without ranks are left out.
    ///
    /// # Errors
    /// There are fewer slots than ranks, or more than [`MAX_NODES`] hosts get ranks.
    pub fn place(&self, nprocs: u64, map_by: MapBy) -> Result<Vec<Node>, String> {
        let sum = self.slots();
        let Some(ranks) = u32::try_from(nprocs).ok().filter(|_| nprocs <= sum) else {
            let (source, noun) = (self.source, if sum == 1 { "slot" } else { "slots" });
            let advice = self.with_slots_for(nprocs);
            return Err(format!(
                "{nprocs} ranks need as many slots, but {source} has {sum} {noun}: write more, such as {advice}"
            ));
        };
        let mut nodes: Vec<Node> =
            self.names().map(|name| Node { host: name.to_owned(), ranks: BTreeSet::new() }).collect();
        let mut place = |(rank, host): (u32, usize)| {
            if let Some(node) = nodes.get_mut(host) {
                node.ranks.insert(Rank(rank));
            }
        };
        let slots = || self.hosts.iter().map(|(_, slots)| *slots).enumerate();
        match map_by {
            MapBy::Slot => {
                let hosts = slots().flat_map(|(host, slots)| (0..slots).map(move |_| host));
                (0..ranks).zip(hosts).for_each(&mut place);
            }
            MapBy::Node => {
                let turn = |turn| slots().filter(move |(_, slots)| turn < *slots).map(|(host, _)| host);
                (0..ranks).zip((0..MAX_RANKS_OF_NODE).flat_map(turn)).for_each(&mut place);
            }
        }
        nodes.retain(|node| !node.ranks.is_empty());
        if nodes.len() > MAX_NODES {
            return Err(format!(
                "{nprocs} ranks take slots of {} hosts of {}, and a job has at most {MAX_NODES}: give each host \
                 more slots",
                nodes.len(),
                self.source
            ));
        }
        Ok(nodes)
    }

    /// Returns these hosts with slots for `nprocs` ranks.
    fn with_slots_for(&self, nprocs: u64) -> String {
        let each = nprocs.div_ceil(self.hosts.len().max(1) as u64);
        let mut hosts: Vec<String> = self.names().map(|name| with_slots(name, each)).collect();
        if hosts.len() > MAX_ADVISED {
            hosts.truncate(MAX_ADVISED);
            hosts.push("...".into());
        }
        hosts.join(",")
    }
}

/// Returns whether a host is the node of this process, by one of its names. Upper and lower case
/// are the same, and a dot may end a name.
pub fn is_here(host: &str) -> bool {
    let own = gethostname().unwrap_or_default();
    let own = own.to_string_lossy();
    let short = own.split('.').next().unwrap_or_default();
    let host = host.strip_suffix('.').unwrap_or(host);
    ["localhost", "127.0.0.1", "::1", &own, short].iter().any(|name| name.eq_ignore_ascii_case(host))
}

/// Returns the number of ranks of these nodes that are on this node.
pub fn ranks_here(nodes: &[Node]) -> u64 {
    let here = nodes.iter().filter(|node| is_here(host_of(&node.host)));
    here.map(|node| node.ranks.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(hosts: &str, nprocs: u64, map_by: MapBy) -> Vec<(String, Vec<u32>)> {
        let nodes = hosts.parse::<Hosts>().unwrap().place(nprocs, map_by).unwrap();
        let ranks = |node: &Node| node.ranks.iter().map(|rank| rank.0).collect();
        nodes.iter().map(|node| (node.host.clone(), ranks(node))).collect()
    }

    #[test]
    fn ranks_fill_the_slots_of_one_host_after_the_other() {
        assert_eq!(placed("a:2,b", 3, MapBy::Slot), [("a".into(), vec![0, 1]), ("b".into(), vec![2])]);
        assert_eq!(placed("a:2,b:4,c", 3, MapBy::Slot), [("a".into(), vec![0, 1]), ("b".into(), vec![2])]);
    }

    #[test]
    fn by_node_ranks_take_one_slot_of_each_host_in_turn() {
        let nodes = placed("a:3,b,c:2", 5, MapBy::Node);
        assert_eq!(nodes, [("a".into(), vec![0, 3]), ("b".into(), vec![1]), ("c".into(), vec![2, 4])]);
        assert_eq!(placed("a:2,b,c", 1, MapBy::Node), [("a".into(), vec![0])]);
    }

    #[test]
    fn ranks_beyond_the_slots_are_shared_by_the_hosts() {
        let mut hosts = "a:2,b:1".parse::<Hosts>().unwrap();
        hosts.oversubscribe(3).unwrap();
        assert_eq!(hosts.slots(), 3);
        hosts.oversubscribe(6).unwrap();
        let nodes = hosts.place(6, MapBy::Slot).unwrap();
        assert_eq!(nodes.iter().map(|node| node.ranks.len()).collect::<Vec<_>>(), [4, 2]);
        assert!(hosts.oversubscribe(u64::MAX).unwrap_err().contains("at most 4096 slots"));
    }

    #[test]
    fn an_ipv6_address_is_a_host_and_has_slots_in_brackets() {
        let nodes = placed("::1,[fe80::1%eth0]:2,[::2]", 4, MapBy::Slot);
        let hosts = [("::1", vec![0]), ("fe80::1%eth0", vec![1, 2]), ("::2", vec![3])];
        assert_eq!(nodes, hosts.map(|(host, ranks)| (host.into(), ranks)));
        let nodes = placed("root@::1,root@[::2]:2,root@[fe80::1%eth0],u@b:2", 6, MapBy::Slot);
        let hosts = [
            ("root@::1", vec![0]),
            ("root@::2", vec![1, 2]),
            ("root@fe80::1%eth0", vec![3]),
            ("u@b", vec![4, 5]),
        ];
        assert_eq!(nodes, hosts.map(|(host, ranks)| (host.into(), ranks)));
    }

    #[test]
    fn the_advice_for_too_few_slots_is_a_list_with_enough() {
        for (listed, advice) in [
            ("fd00::7:4", "[fd00::7:4]:3"),
            ("root@[fd00::7]:2", "root@[fd00::7]:3"),
            ("fe80::1%eth0,u@b", "[fe80::1%eth0]:2,u@b:2"),
        ] {
            let error = listed.parse::<Hosts>().unwrap().place(3, MapBy::Slot).unwrap_err();
            assert!(error.ends_with(&format!("such as {advice}")), "{error}");
            assert!(advice.parse::<Hosts>().unwrap().place(3, MapBy::Slot).is_ok(), "{advice}");
        }
    }

    #[test]
    fn a_host_that_is_listed_twice_has_the_sum_of_its_slots() {
        assert_eq!(placed("a,b:2,a", 4, MapBy::Slot), [("a".into(), vec![0, 1]), ("b".into(), vec![2, 3])]);
        assert!("a:4000,a:4000".parse::<Hosts>().is_err());
    }

    #[test]
    fn too_few_slots_and_invalid_names_are_refused() {
        let hosts: Hosts = "a:2,b".parse().unwrap();
        let error = hosts.place(4, MapBy::Slot).unwrap_err();
        assert_eq!(error, "4 ranks need as many slots, but --hosts has 3 slots: write more, such as a:2,b:2");
        for text in ["", "a,", "a:0", "a:x", "-oProxyCommand=x", "a b", "a;b", "a:5000"] {
            assert!(text.parse::<Hosts>().is_err(), "{text}");
        }
        for text in [
            "::1:x",
            "[a]:4",
            "[a]",
            "[::1",
            "[::1]4",
            "[::1]:0",
            "[::1]:",
            "fe80::1%",
            "fe80::1%a b",
            "a:b:4",
            "root@::1:x",
            "root@[::1]4",
            "[root@::1]:2",
            "a@b@::1",
            "ro ot@::1",
            "-x@::1",
            "@::1",
            "root@",
        ] {
            assert!(text.parse::<Hosts>().is_err(), "{text}");
        }
        let many: Vec<String> = (0..=MAX_LISTED_HOSTS).map(|number| format!("n{number}")).collect();
        assert!(many.join(",").parse::<Hosts>().is_err());
        let error = format!("x{}", ";".repeat(10_000)).parse::<Hosts>().unwrap_err();
        assert!(error.len() < 300, "{error}");
    }

    #[test]
    fn the_own_node_is_known_by_its_names_in_any_case() {
        let own = gethostname().unwrap().into_string().unwrap();
        for host in
            ["localhost", "LocalHost.", "127.0.0.1", "::1", &own, &own.to_uppercase(), &format!("{own}.")]
        {
            assert!(is_here(host), "{host}");
        }
        for host in ["", ".", "localhost..", "root@localhost", "other", "127.0.0.2"] {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    fn only_hosts_that_get_ranks_count_as_nodes() {
        let many: Vec<String> = (0..MAX_LISTED_HOSTS).map(|number| format!("n{number}:2")).collect();
        let hosts: Hosts = many.join(",").parse().unwrap();
        let count = |nprocs, map_by| hosts.place(nprocs, map_by).map(|nodes| nodes.len());
        assert_eq!(count(3, MapBy::Slot), Ok(2));
        assert_eq!(count(MAX_NODES as u64, MapBy::Node), Ok(MAX_NODES));
        assert!(count(MAX_NODES as u64 + 1, MapBy::Node).is_err());
        let error = hosts.place(10_000, MapBy::Slot).unwrap_err();
        assert!(error.ends_with("such as n0:3,n1:3,n2:3,n3:3,..."), "{error}");
    }
}
