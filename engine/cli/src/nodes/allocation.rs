//! The hosts that a resource manager has allocated, from the variables that it sets.

use std::path::Path;

use iof_remote::hosts::{Hosts, MAX_HOST_NAME, MAX_LISTED_HOSTS, slots};
use iof_remote::{NodeList, SITES, SSH, Site};

use super::hostfile;
use crate::error::shown;

/// The largest number of pairs of brackets in one part of a list.
const MAX_BRACKETS: usize = 8;

/// The largest number of digits of a number in brackets.
const MAX_DIGITS: usize = 19;

/// The step in which salloc(1) runs a shell if the site starts that on a node of the allocation.
const INTERACTIVE_STEP: &str = "4294967290";

/// The hosts of a job.
#[derive(Debug)]
pub struct ChosenHosts {
    pub hosts: Hosts,
    /// The command that starts processes on them, by default.
    pub rsh: &'static str,
}

/// Returns the manager of the allocation in which this process runs, with the value of its variable.
pub fn site(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static Site, String)> {
    SITES.iter().find_map(|site| Some((site, variable(site.variable)?)))
}

/// Reads the nodes of an allocation. `counts` are the slots of those of Slurm.
fn read(site: &Site, nodes: &str, counts: Option<(&str, String)>) -> Result<Hosts, String> {
    match site.nodes {
        NodeList::Slurm => slurm(site.variable, nodes, counts),
        NodeList::File => hostfile::read(Path::new(nodes), site.variable),
        NodeList::Slots => slots_of(site.variable, nodes),
    }
}

impl ChosenHosts {
    /// Returns these hosts, with the command of the allocation in which this process runs if all are in
    /// it, otherwise ssh(1). `variable` returns the value of a variable.
    pub fn new(hosts: Hosts, variable: impl Fn(&str) -> Option<String>) -> ChosenHosts {
        let has_all = |nodes: Hosts| hosts.names().all(|name| nodes.contains(name));
        let site = site(variable).filter(|(site, nodes)| read(site, nodes, None).is_ok_and(has_all));
        ChosenHosts { rsh: site.map_or(SSH, |(site, _)| site.template), hosts }
    }

    /// Returns the hosts of the allocation of more than one node in which this process runs, unless it is
    /// a rank. `variable` returns the value of a variable.
    ///
    /// # Errors
    /// A variable can't be read.
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Result<Option<ChosenHosts>, String> {
        // A rank of a job is one of many, which do not share one further job.
        if variable("IOF_RANK").is_some() {
            return Ok(None);
        }
        let Some((site, nodes)) = site(&variable) else { return Ok(None) };
        let mut counts = None;
        if site.nodes == NodeList::Slurm {
            // A process of a step is one of many, which do not share one job. Whatever else a job on one
            // node has, it runs there.
            let is_in_step = variable("SLURM_STEP_ID").is_some_and(|step| step != INTERACTIVE_STEP);
            if is_in_step || !nodes.contains([',', '[']) {
                return Ok(None);
            }
            let names = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"];
            counts = names.into_iter().find_map(|name| Some((name, variable(name)?)));
        }
        let hosts = read(site, &nodes, counts).map_err(|error| {
            let source = site.variable;
            let error = if error.starts_with(source) { error } else { format!("{source}: {error}") };
            format!("{error}; write --hosts with the nodes, or --hosts localhost:N for N ranks on this node")
        })?;
        Ok((hosts.len() > 1).then_some(ChosenHosts { hosts, rsh: site.template }))
    }
}

/// Parses Slurm's list of nodes and its numbers of tasks, such as `n[1-3]` and `2(x2),1`.
fn slurm(source: &'static str, nodes: &str, counts: Option<(&str, String)>) -> Result<Hosts, String> {
    let names = expand(nodes)?;
    let counts = match counts {
        Some((name, text)) => {
            repeated(&text).filter(|counts| counts.len() == names.len()).ok_or_else(|| {
                format!("{name} is '{}', which are not the slots of {} nodes", shown(&text), names.len())
            })?
        }
        None => vec![1; names.len()],
    };
    let mut hosts = Hosts::new(source);
    names.iter().zip(counts).try_for_each(|(name, slots)| hosts.add(name, slots))?;
    Ok(hosts)
}

/// Parses numbers such as `2(x3),1`.
fn repeated(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (number, times) = match part.split_once("(x") {
            Some((number, times)) => (number, slots(times.strip_suffix(')')?)?),
            None => (part, 1),
        };
        let times = usize::try_from(times)
            .ok()
            .filter(|times| numbers.len().saturating_add(*times) <= MAX_LISTED_HOSTS)?;
        numbers.extend(std::iter::repeat_n(slots(number)?, times));
    }
    Some(numbers)
}

/// Parses pairs of a host and its number of slots, such as `a 4 b 2`.
fn slots_of(source: &'static str, text: &str) -> Result<Hosts, String> {
    let mut hosts = Hosts::new(source);
    let mut words = text.split_whitespace();
    while let Some(name) = words.next() {
        let slots = words.next().and_then(slots);
        hosts.add(
            name,
            slots.ok_or_else(|| format!("the number of slots of '{}' is missing", shown(name)))?,
        )?;
    }
    if hosts.len() == 0 { Err("no hosts".into()) } else { Ok(hosts) }
}

/// Expands Slurm's list of nodes, such as `login,n[1-3,07]-x[0-1]`.
fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let (mut depth, mut start) = (0usize, 0usize);
    for (index, byte) in list.bytes().chain([b',']).enumerate() {
        match byte {
            b'[' => depth = depth.saturating_add(1),
            b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                let part = list.get(start..index).unwrap_or_default();
                if names.len() >= MAX_LISTED_HOSTS {
                    return Err(format!("more than {MAX_LISTED_HOSTS} hosts"));
                }
                expand_part(String::new(), part, &mut names).ok_or_else(|| {
                    format!("cannot expand '{}' to at most {MAX_LISTED_HOSTS} hosts", shown(part))
                })?;
                start = index.saturating_add(1);
            }
            _ => {}
        }
    }
    if depth > 0 { Err(format!("'{}' has an open bracket", shown(list))) } else { Ok(names) }
}

/// Adds the names that begin with `before` and end as `part` expands. Returns `None` if there are
/// too many or `part` can't be expanded.
fn expand_part(before: String, part: &str, names: &mut Vec<String>) -> Option<()> {
    let is_long = before.len().saturating_add(part.len()) > MAX_HOST_NAME;
    let Some((fixed, rest)) = part.split_once('[') else {
        if is_long || names.len() >= MAX_LISTED_HOSTS || part.contains(']') {
            return None;
        }
        names.push(before + part);
        return Some(());
    };
    let (ranges, rest) = rest.split_once(']')?;
    if before.len().saturating_add(fixed.len()) > MAX_HOST_NAME || rest.matches('[').count() >= MAX_BRACKETS {
        return None;
    }
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| {
            (1..=MAX_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let (low, high) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        if low > high || high.saturating_sub(low) >= MAX_LISTED_HOSTS as u64 {
            return None;
        }
        for number in low..=high {
            // The first number has the zeros that each has.
            let name = format!("{before}{fixed}{number:0width$}", width = first.len());
            expand_part(name, rest, names)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use iof_remote::hosts::MapBy;

    fn find_in(variables: &[(&str, &str)]) -> Result<Option<ChosenHosts>, String> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        ChosenHosts::find(|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    /// Returns the hosts with their slots.
    fn hosts(allocation: Result<Option<ChosenHosts>, String>) -> Vec<(String, usize)> {
        let hosts = allocation.unwrap().unwrap().hosts;
        let all = (1..).map_while(|count| hosts.place(count, MapBy::Slot).ok()).last().unwrap();
        all.into_iter().map(|node| (node.host, node.ranks.len())).collect()
    }

    #[test]
    fn srun_starts_agents_on_nodes_of_its_allocation_and_ssh_all_others() {
        let [Site { variable, template, .. }, ..] = SITES;
        let command = |hosts: &str| {
            let value = |name: &str| (name == variable).then(|| "n[1-3]".into());
            ChosenHosts::new(hosts.parse().unwrap(), value).rsh
        };
        assert_eq!(command("n1,n3:4"), template);
        assert!(template.starts_with("srun "));
        assert_eq!(command("n1,n4"), SSH);
        assert_eq!(ChosenHosts::new("n1".parse().unwrap(), |_| None).rsh, SSH);
    }

    #[test]
    fn a_rank_does_not_take_the_allocation_of_its_job() {
        let allocation = [("LSB_MCPU_HOSTS", "a 1 b 1")];
        assert_eq!(hosts(find_in(&allocation)).len(), 2);
        assert!(find_in(&[&allocation[..], &[("IOF_RANK", "0")]].concat()).unwrap().is_none());
    }

    #[test]
    fn lists_of_slurm_are_expanded_with_their_zeros() {
        let names = |list| expand(list).unwrap().join(" ");
        assert_eq!(names("n1"), "n1");
        assert_eq!(names("n[1-3,7],login"), "n1 n2 n3 n7 login");
        assert_eq!(names("n[08-11]-ib"), "n08 n09 n10 n11-ib".replace(' ', "-ib "));
        assert_eq!(names("x[0-1]y[1,3]z"), "x0y1z x0y3z x1y1z x1y3z");
        assert_eq!(names("a[001,100]"), "a001 a100");
    }

    #[test]
    fn lists_that_cannot_be_expanded_are_refused_in_bounded_time() {
        let long = format!("n{}", "[0-9]".repeat(100));
        let (deep, many) = ("[".repeat(10_000), "[1]".repeat(40_000));
        let zeros = format!("n[{}1-9]", "0".repeat(10_000));
        for list in [
            "n[1-99999999]",
            "n[0-18446744073709551615]",
            "n[99999999999999999999]",
            "n[3-1]",
            "n[1-3",
            "n1]",
            "n[a-b]",
            "n[]",
            "n[[1-2]]",
            &long,
            &deep,
            &many,
            &zeros,
            "n[0-4095],n[0-4095]",
        ] {
            assert!(expand(list).is_err(), "{list}");
        }
        assert_eq!(expand(&"n,".repeat(5000)), Err("more than 4096 hosts".into()));
    }

    #[test]
    fn the_nodes_and_tasks_of_a_slurm_job_are_hosts_and_slots() {
        let job = [("SLURM_JOB_NODELIST", "n[1-3]"), ("SLURM_TASKS_PER_NODE", "2(x2),1")];
        let expected = [("n1".into(), 2), ("n2".into(), 2), ("n3".into(), 1)];
        assert_eq!(hosts(find_in(&job)), expected);
        assert_eq!(find_in(&job).unwrap().unwrap().rsh, SITES[0].template);
        let step = |id| find_in(&[job[0], job[1], ("SLURM_STEP_ID", id)]);
        assert!(step("0").unwrap().is_none());
        assert_eq!(hosts(step(INTERACTIVE_STEP)), expected);
        assert!(find_in(&[("SLURM_JOB_NODELIST", "n1")]).unwrap().is_none());
        for tasks in ["2(x2)", "2(x999999999999)", "0(x3)", "2(x3", ""] {
            let error = find_in(&[job[0], ("SLURM_TASKS_PER_NODE", tasks)]).unwrap_err();
            assert!(error.starts_with("SLURM_JOB_NODELIST: SLURM_TASKS_PER_NODE is "), "{error}");
        }
    }

    #[test]
    fn the_hosts_of_lsf_and_pbs_are_understood() {
        let expected = [("a".into(), 4), ("b".into(), 2)];
        assert_eq!(hosts(find_in(&[("LSB_MCPU_HOSTS", "a 4 b 2 ")])), expected);
        assert!(find_in(&[("LSB_MCPU_HOSTS", "a 4 b")]).unwrap_err().contains("'b' is missing"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nodes");
        std::fs::write(&path, "a\nb\na\na\nb\na\n").unwrap();
        assert_eq!(hosts(find_in(&[("PBS_NODEFILE", path.to_str().unwrap())])), expected);
        let error = find_in(&[("PBS_NODEFILE", "/no/such")]).unwrap_err();
        assert!(error.starts_with("PBS_NODEFILE /no/such: No such file"), "{error}");
        assert!(find_in(&[]).unwrap().is_none());
    }
}
