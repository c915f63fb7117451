//! The nodes of a job and the ranks of each.

use std::collections::BTreeSet;
use std::str::FromStr;

use clap::ValueEnum;
use iof_nodes::limits::{MAX_NODES, MAX_RANKS_OF_NODE};
use iof_proto::Rank;
use nix::unistd::gethostname;

/// The longest name of a host, in bytes.
pub(super) const MAX_HOST_NAME: usize = 255;

/// Names of hosts with their numbers of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    hosts: Vec<(String, u32)>,
    /// What lists the hosts: an option, or a variable of the environment.
    source: &'static str,
}

/// A node of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name as the user wrote it.
    pub host: String,
    pub ranks: BTreeSet<Rank>,
}

/// The order in which ranks take the slots of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
            hosts.add(name, slots.unwrap_or(1))?;
        }
        Ok(hosts)
    }
}

/// Parses `NAME` or `NAME:SLOTS`.
pub(super) fn name_and_slots(text: &str) -> Result<(&str, Option<u32>), String> {
    let Some((name, number)) = text.rsplit_once(':') else { return Ok((text, None)) };
    match slots(number) {
        Some(slots) => Ok((name, Some(slots))),
        None => Err(format!(
            "invalid host '{text}': expected NAME or NAME:SLOTS, with a positive number of slots"
        )),
    }
}

/// Parses a positive number of slots.
pub(super) fn slots(text: &str) -> Option<u32> {
    text.parse().ok().filter(|slots| *slots > 0)
}

impl Hosts {
    pub(super) fn new(source: &'static str) -> Hosts {
        Hosts { hosts: Vec::new(), source }
    }

    pub(super) fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Adds slots of a host, which may have some already.
    ///
    /// # Errors
    /// The name is invalid, or a limit is exceeded.
    pub(super) fn add(&mut self, name: &str, slots: u32) -> Result<(), String> {
        let invalid = |reason: &str| Err(format!("invalid host '{name}': {reason}"));
        // A name that begins with '-' would be an option of ssh.
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if name.is_empty() || name.starts_with('-') || !name.chars().all(is_name) {
            return invalid("a name has letters, digits and -_.@ and does not begin with -");
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
            None if count < MAX_NODES => self.hosts.push((name.to_owned(), slots)),
            None => return Err(format!("more than {MAX_NODES} hosts")),
        }
        Ok(())
    }

    /// Places the ranks. Hosts without ranks are left out.
    ///
    /// # Errors
    /// There are fewer slots than ranks.
    pub fn place(&self, nprocs: u64, map_by: MapBy) -> Result<Vec<Node>, String> {
        let sum: u64 = self.hosts.iter().map(|(_, slots)| u64::from(*slots)).sum();
        let Some(nprocs) = u32::try_from(nprocs).ok().filter(|_| nprocs <= sum) else {
            let (source, noun) = (self.source, if sum == 1 { "slot" } else { "slots" });
            let first = self.hosts.first().map_or("HOST", |(name, _)| name.as_str());
            return Err(format!(
                "{nprocs} ranks need as many slots, but {source} has {sum} {noun}: write more, such as \
                 --hosts {first}:{nprocs}"
            ));
        };
        // The host of each slot, in the order in which ranks take them.
        let all = self.hosts.iter().enumerate();
        let mut order: Vec<(u32, usize)> =
            all.flat_map(|(host, (_, slots))| (0..*slots).map(move |slot| (slot, host))).collect();
        if map_by == MapBy::Node {
            order.sort_unstable();
        }
        let node = |(host, _): &(String, u32)| Node { host: host.clone(), ranks: BTreeSet::new() };
        let mut nodes: Vec<Node> = self.hosts.iter().map(node).collect();
        for (rank, (_, host)) in (0..nprocs).zip(order) {
            if let Some(node) = nodes.get_mut(host) {
                node.ranks.insert(Rank(rank));
            }
        }
        nodes.retain(|node| !node.ranks.is_empty());
        Ok(nodes)
    }
}

impl Node {
    /// Returns whether this is the node of this process, by one of its names.
    pub fn is_here(&self) -> bool {
        let own = gethostname().unwrap_or_default();
        let own = own.to_string_lossy();
        let short = own.split('.').next().unwrap_or_default();
        ["localhost", "127.0.0.1", &own, short].contains(&self.host.as_str())
    }
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
    fn a_host_that_is_listed_twice_has_the_sum_of_its_slots() {
        assert_eq!(placed("a,b:2,a", 4, MapBy::Slot), [("a".into(), vec![0, 1]), ("b".into(), vec![2, 3])]);
        assert!("a:4000,a:4000".parse::<Hosts>().is_err());
    }

    #[test]
    fn too_few_slots_and_invalid_names_are_refused() {
        let hosts: Hosts = "a:2,b".parse().unwrap();
        let error = hosts.place(4, MapBy::Slot).unwrap_err();
        assert_eq!(
            error,
            "4 ranks need as many slots, but --hosts has 3 slots: write more, such as --hosts a:4"
        );
        for text in ["", "a,", "a:0", "a:x", "-oProxyCommand=x", "a b", "a;b", "a:5000"] {
            assert!(text.parse::<Hosts>().is_err(), "{text}");
        }
        let many: Vec<String> = (0..=MAX_NODES).map(|number| format!("n{number}")).collect();
        assert!(many.join(",").parse::<Hosts>().is_err());
    }
}
