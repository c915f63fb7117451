//! The nodes of a job and the ranks of each.

use std::ops::Range;
use std::str::FromStr;

use iof_nodes::limits::{MAX_NODES, MAX_RANKS_OF_NODE};
use nix::unistd::gethostname;

/// The value of `--hosts`: names with numbers of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<(String, u32)>);

/// A node of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name as the user wrote it.
    pub host: String,
    pub ranks: Range<u32>,
}

impl FromStr for Hosts {
    type Err = String;

    /// Parses names such as `a,b:4`. Without a number, a host has one slot.
    fn from_str(text: &str) -> Result<Hosts, String> {
        let mut hosts: Vec<(String, u32)> = Vec::new();
        for part in text.split(',') {
            let (name, slots) = match part.rsplit_once(':') {
                Some((name, slots)) => (name, slots.parse().ok().filter(|slots| *slots > 0)),
                None => (part, Some(1)),
            };
            let invalid = |reason: &str| format!("invalid host '{part}': {reason}");
            let Some(slots) = slots else {
                return Err(invalid("expected NAME or NAME:SLOTS, with a positive number of slots"));
            };
            // A name that begins with '-' would be an option of ssh.
            let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
            if name.is_empty() || name.starts_with('-') || !name.chars().all(is_name) {
                return Err(invalid("a name has letters, digits and -_.@ and does not begin with -"));
            }
            if slots > MAX_RANKS_OF_NODE {
                return Err(invalid(&format!("a node has at most {MAX_RANKS_OF_NODE} slots")));
            }
            if hosts.iter().any(|(other, _)| other == name) {
                return Err(invalid("it is listed twice: write it once, with the sum of its slots"));
            }
            hosts.push((name.to_owned(), slots));
        }
        match hosts.len() {
            count if count > MAX_NODES => Err(format!("{count} hosts exceed the limit of {MAX_NODES}")),
            _ => Ok(Hosts(hosts)),
        }
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

impl Hosts {
    /// Fills the slots of one host after the other. Hosts without ranks are left out.
    ///
    /// # Errors
    /// There are fewer slots than ranks.
    pub fn place(&self, nprocs: u64) -> Result<Vec<Node>, String> {
        let slots: u64 = self.0.iter().map(|(_, slots)| u64::from(*slots)).sum();
        let Some(nprocs) = u32::try_from(nprocs).ok().filter(|_| nprocs <= slots) else {
            let noun = if slots == 1 { "slot" } else { "slots" };
            return Err(format!(
                "{nprocs} ranks need as many slots, but --hosts has {slots} {noun}: write more, such as {}:{nprocs}",
                self.0.first().map_or("HOST", |(name, _)| name.as_str()),
            ));
        };
        let mut first = 0u32;
        let nodes = self.0.iter().map(|(host, slots)| {
            let end = first.saturating_add(*slots).min(nprocs);
            let ranks = std::mem::replace(&mut first, end)..end;
            Node { host: host.clone(), ranks }
        });
        Ok(nodes.filter(|node| !node.ranks.is_empty()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(hosts: &str, nprocs: u64) -> Vec<(String, Range<u32>)> {
        let nodes = hosts.parse::<Hosts>().unwrap().place(nprocs).unwrap();
        nodes.into_iter().map(|node| (node.host, node.ranks)).collect()
    }

    #[test]
    fn ranks_fill_the_slots_of_one_host_after_the_other() {
        assert_eq!(placed("a:2,b", 3), [("a".into(), 0..2), ("b".into(), 2..3)]);
        assert_eq!(placed("a:2,b:4,c", 3), [("a".into(), 0..2), ("b".into(), 2..3)]);
    }

    #[test]
    fn too_few_slots_and_invalid_names_are_refused() {
        let hosts: Hosts = "a:2,b".parse().unwrap();
        let error = hosts.place(4).unwrap_err();
        assert_eq!(error, "4 ranks need as many slots, but --hosts has 3 slots: write more, such as a:4");
        for text in ["", "a,", "a:0", "a:x", "-oProxyCommand=x", "a b", "a;b", "a,a:2", "a:5000"] {
            assert!(text.parse::<Hosts>().is_err(), "{text}");
        }
        let many: Vec<String> = (0..=MAX_NODES).map(|number| format!("n{number}")).collect();
        assert!(many.join(",").parse::<Hosts>().is_err());
    }
}
