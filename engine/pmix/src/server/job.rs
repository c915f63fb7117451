//! A job, and what libpmix is told about it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;

use iof_proto::{MpiNodes, Node, ProcInfo};

use crate::library::info::{Info, Value, c_string, characters};
use crate::library::types::RawProc;

/// A job, whose ranks are numbered in the order of its apps.
#[derive(Clone, Debug)]
pub struct RegisteredJob {
    /// The name, which no other PMIx job of this node may have: libraries derive the names of
    /// shared memory from it. At most 255 bytes.
    pub nspace: String,
    /// The name in PMIx of the job that has this one started, and the rank.
    pub parent: Option<(String, u32)>,
    /// Its nodes, with their ranks.
    pub nodes: MpiNodes,
    /// The number of this node among them; `None` for a job without ranks here.
    pub own: Option<u32>,
    /// The node has fewer processors than it has ranks of the job.
    pub oversubscribed: bool,
    /// The programs, in the order of their ranks.
    pub apps: Vec<AppInfo>,
    /// The numbers of the processors to which each rank of this node is bound, in the order of the ranks. Empty
    /// if they are not bound.
    pub processors: Vec<Vec<usize>>,
}

/// The processors of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Locality {
    /// The set of the processors, in the form of hwloc.
    pub cpuset: CString,
    /// Their place in the topology of the node, if that is known.
    pub locality: Option<CString>,
}

/// A program of a job.
#[derive(Clone, Debug)]
pub struct AppInfo {
    /// The number of ranks that run it.
    pub ranks: u32,
    /// The program and its arguments, separated by spaces.
    pub command: String,
    /// The working directory.
    pub directory: String,
}

impl RegisteredJob {
    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.apps.iter().fold(0, |sum, app| sum.saturating_add(app.ranks))
    }

    /// Returns this node.
    fn own(&self) -> Option<&Node> {
        self.nodes.nodes.get(usize::try_from(self.own?).ok()?)
    }

    /// Returns the ranks of this node.
    pub fn own_ranks(&self) -> impl Iterator<Item = u32> {
        self.own().into_iter().flat_map(|node| &node.ranks).map(|rank| rank.0)
    }

    /// Returns the sets of processors of the ranks, in the form of hwloc.
    pub(crate) fn cpusets(&self) -> Vec<CString> {
        let list = |processors: &Vec<usize>| {
            processors.iter().map(usize::to_string).collect::<Vec<String>>().join(",")
        };
        self.processors.iter().map(|processors| c_string(&format!("hwloc:{}", list(processors)))).collect()
    }

    /// Returns the infos of the job, whose files are in `directory`, and whose ranks are bound to
    /// `places`, unless that is empty.
    pub(crate) fn infos(&self, directory: &Path, places: &[Locality]) -> Vec<Info> {
        let path = directory.to_string_lossy();
        let count = u32::try_from(self.apps.len()).unwrap_or(u32::MAX);
        let nodes = self.nodes.nodes.iter();
        let nodes: Vec<(&str, Vec<u32>)> =
            nodes.map(|node| (node.host.as_str(), node.ranks.iter().map(|rank| rank.0).collect())).collect();
        let host = self.own().map_or("", |node| node.host.as_str());
        let mut infos = job_infos(&self.nspace, &nodes, host);
        infos.extend([
            Info::number("pmix.job.napps", count),
            Info::text("pmix.anlmap", &self.nodes.mapping()),
            Info::text("pmix.tmpdir", &path),
            Info::text("pmix.nsdir", &path),
            Info::new("pmix.tdir.rmclean", Value::Flag(true)),
            Info::text("pmix.mapby", "slot"),
            Info::text("pmix.bindto", if places.is_empty() { "none" } else { "core" }),
        ]);
        // Ranks then yield their processor while they wait. Open MPI 5 does not look at the value.
        infos.extend(self.oversubscribed.then(|| Info::new("pmix.ndosub", Value::Flag(true))));
        if let Some((nspace, rank)) = &self.parent {
            let parent = RawProc { nspace: characters(nspace), rank: *rank };
            infos.extend([
                Info::new("pmix.parent", Value::Proc(Box::new(parent))),
                Info::new("pmix.spawned", Value::Flag(true)),
            ]);
        }
        infos.extend(self.open_mpi_infos());
        let ranked = (0u32..).zip(&nodes).flat_map(|(number, (host, ranks))| {
            (0u32..).zip(ranks).map(move |(local, rank)| (*rank, (local, (number, *host))))
        });
        let places_of: BTreeMap<u32, (u32, (u32, &str))> = ranked.collect();
        let mut first = 0u32;
        for (number, app) in (0u32..).zip(&self.apps) {
            infos.push(Info::new("pmix.app.arr", Value::Infos(app.infos(number, first))));
            for index in 0..app.ranks {
                let rank = first.saturating_add(index);
                let rank_directory = directory.join(rank.to_string());
                let Some((local, node)) = places_of.get(&rank).copied() else { continue };
                let mut own = rank_infos(rank, local, node);
                own.extend([
                    Info::text("pmix.pdir", &rank_directory.to_string_lossy()),
                    Info::number("pmix.appnum", number),
                    Info::new("pmix.apprank", Value::Rank(index)),
                    Info::text("pmix.wdir", &app.directory),
                ]);
                let place = usize::try_from(local).ok().filter(|_| Some(node.0) == self.own);
                let place = place.and_then(|local| places.get(local));
                own.extend(place.into_iter().flat_map(Locality::infos));
                infos.push(Info::new("pmix.pdata", Value::Infos(own)));
            }
            first = first.saturating_add(app.ranks);
        }
        infos
    }

    /// Returns the pids of the ranks. libpmix takes ranks without the number of an app for those of the
    /// first one.
    pub(crate) fn pids(&self, pids: &[u32]) -> Vec<Info> {
        let apps = (0u32..).zip(&self.apps).flat_map(|(app, info)| (0..info.ranks).map(move |_| app));
        let apps: Vec<u32> = apps.collect();
        let infos = self.own_ranks().zip(pids).map(|(rank, pid)| {
            let app = usize::try_from(rank).ok().and_then(|rank| apps.get(rank)).copied().unwrap_or_default();
            let pid = Info::new("pmix.ppid", Value::Pid(pid.cast_signed()));
            let own = vec![Info::new("pmix.rank", Value::Rank(rank)), pid, Info::number("pmix.appnum", app)];
            Info::new("pmix.pdata", Value::Infos(own))
        });
        infos.collect()
    }

    /// Returns what Open MPI wants to know of a job with several programs.
    fn open_mpi_infos(&self) -> [Info; 2] {
        let sizes: Vec<String> = self.apps.iter().map(|app| app.ranks.to_string()).collect();
        let firsts = self.apps.iter().scan(0u32, |next, app| {
            let first = *next;
            *next = first.saturating_add(app.ranks);
            Some(first.to_string())
        });
        let firsts: Vec<String> = firsts.collect();
        [Info::text("OMPI_APP_SIZES", &sizes.join(" ")), Info::text("OMPI_FIRST_RANKS", &firsts.join(" "))]
    }
}

/// Returns the infos of a job whose process table is known, on the node `own`.
pub(crate) fn table_infos(nspace: &str, table: &[ProcInfo], own: &str) -> Vec<Info> {
    // Node 0 is that of the first rank, and so on.
    let mut nodes: Vec<(&str, Vec<u32>)> = Vec::new();
    let mut ranks = Vec::with_capacity(table.len());
    for row in table {
        let (host, rank) = (row.host.as_str(), row.proc.rank.0);
        let number = nodes.iter().position(|(other, _)| *other == host).unwrap_or_else(|| {
            nodes.push((host, Vec::new()));
            nodes.len().saturating_sub(1)
        });
        let Some((_, peers)) = nodes.get_mut(number) else { continue };
        let local = u32::try_from(peers.len()).unwrap_or(u32::MAX);
        peers.push(rank);
        let mut infos = rank_infos(rank, local, (u32::try_from(number).unwrap_or(u32::MAX), host));
        // It has none while it is being started, or if its host does not know it.
        infos.extend((row.pid > 0).then(|| Info::new("pmix.ppid", Value::Pid(row.pid.cast_signed()))));
        ranks.push(Info::new("pmix.pdata", Value::Infos(infos)));
    }
    let mut infos = job_infos(nspace, &nodes, own);
    infos.extend(ranks);
    infos
}

/// Returns the facts about a job with ranks on `nodes` that tools and ranks on the node `own` get.
fn job_infos(nspace: &str, nodes: &[(&str, Vec<u32>)], own: &str) -> Vec<Info> {
    let count = |ranks: &[u32]| u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    let proc = |rank| RawProc { nspace: characters(nspace), rank };
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<String>>().join(",");
    let size = nodes.iter().fold(0u32, |sum, (_, ranks)| sum.saturating_add(count(ranks)));
    let hosts: Vec<&str> = nodes.iter().map(|(host, _)| *host).collect();
    let maps: Vec<String> = nodes.iter().map(|(_, ranks)| list(ranks)).collect();
    let mut infos = vec![
        Info::text("pmix.jobid", nspace),
        Info::number("pmix.job.size", size),
        Info::number("pmix.univ.size", size),
        Info::number("pmix.max.size", size),
        Info::number("pmix.num.nodes", u32::try_from(nodes.len()).unwrap_or(u32::MAX)),
        Info::list("pmix.nmap", &hosts.join(",")),
        Info::list("pmix.pmap", &maps.join(";")),
    ];
    if let Some((_, ranks)) = nodes.iter().find(|(host, _)| *host == own) {
        infos.extend([
            Info::number("pmix.local.size", count(ranks)),
            Info::number("pmix.node.size", count(ranks)),
            Info::text("pmix.lpeers", &list(ranks)),
            Info::new("pmix.lprocs", Value::Procs(ranks.iter().map(|rank| proc(*rank)).collect())),
        ]);
        infos.extend(ranks.first().map(|rank| Info::new("pmix.lldr", Value::Rank(*rank))));
    }
    infos
}

/// Returns the infos of a rank, which is number `local` among those of its node.
fn rank_infos(rank: u32, local: u32, (node, host): (u32, &str)) -> Vec<Info> {
    let short = u16::try_from(local).unwrap_or(u16::MAX);
    vec![
        // The first one names the rank of the others.
        Info::new("pmix.rank", Value::Rank(rank)),
        Info::new("pmix.grank", Value::Rank(rank)),
        Info::new("pmix.lrank", Value::Uint16(short)),
        Info::new("pmix.nrank", Value::Uint16(short)),
        Info::number("pmix.reinc", 0),
        Info::number("pmix.nodeid", node),
        Info::text("pmix.hname", host),
    ]
}

impl Locality {
    fn infos(&self) -> impl Iterator<Item = Info> {
        let cpuset = Info::new("pmix.cpuset", Value::Text(self.cpuset.clone()));
        let locality = self.locality.clone();
        std::iter::once(cpuset).chain(locality.map(|text| Info::new("pmix.locstr", Value::Text(text))))
    }
}

impl AppInfo {
    fn infos(&self, number: u32, first: u32) -> Vec<Info> {
        vec![
            // The first one names the app of the others.
            Info::number("pmix.appnum", number),
            Info::number("pmix.app.size", self.ranks),
            Info::new("pmix.aldr", Value::Rank(first)),
            Info::text("pmix.wdir", &self.directory),
            Info::text("pmix.app.argv", &self.command),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranks_that_share_processors_are_told_to_yield() {
        for oversubscribed in [false, true] {
            let job = RegisteredJob {
                nspace: "demo".into(),
                parent: None,
                nodes: MpiNodes { name: String::new(), nodes: Vec::new(), relatives: Vec::new() },
                own: Some(0),
                oversubscribed,
                apps: Vec::new(),
                processors: Vec::new(),
            };
            let infos = job.infos(Path::new("/tmp"), &[]);
            assert_eq!(infos.iter().any(|info| info.key == "pmix.ndosub"), oversubscribed);
        }
    }
}
