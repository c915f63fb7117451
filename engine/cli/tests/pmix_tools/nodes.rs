//! Ranks on several nodes, with an agent for each that `sh -c` starts on this one.

use std::path::PathBuf;
use std::sync::LazyLock;

use super::{compile, for_each_place};
use iof_testing::process::Process;
use iof_testing::wait_for;

static RANK: LazyLock<Option<PathBuf>> = LazyLock::new(|| compile("nodes"));

#[test]
fn ranks_know_the_nodes_and_exchange_values_over_them_by_fences_and_on_demand() {
    let Some(rank) = RANK.as_deref() else { return };
    for_each_place(|place| {
        for (options, by_rank) in [(&[][..], ["a", "a", "b"]), (&["--map-by", "node"], ["a", "b", "a"])] {
            let mut command = place.site.iof("run");
            command.args(["--mpi", "pmix", "--nspace", "demo", "--rsh", "sh -c", "--hosts", "a:2,b:1"]);
            command.args(["-n", "3"]).args(options).arg(rank);
            command.env("TMPDIR", place.site.path()).env_remove("IOF_LIBPMIX");
            command.envs(place.server.iter().map(|library| ("IOF_LIBPMIX", library)));
            let tools = place.tools.iter().map(|library| ("LD_LIBRARY_PATH", library.parent().unwrap()));
            let mut run = Process::start(command.envs(tools));
            let (stdout, stderr) = run.collect();
            let code = run.wait();
            // Agents end after their front end, and at the latest with `run`.
            wait_for("the agents to remove their files", || place.left().is_none().then_some(()));
            let mut wanted = Vec::new();
            for (rank, host) in by_rank.into_iter().enumerate() {
                let peers: Vec<usize> = (0..3).filter(|other| by_rank[*other] == host).collect();
                let (local, count) = (peers.iter().position(|peer| *peer == rank).unwrap(), peers.len());
                let peers = peers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                let (node, next) = (usize::from(host == "b"), (rank + 1) % 3);
                wanted.push(format!("{rank}: asked 2 of {next}"));
                wanted.push(format!("{rank}: collected 1 of {next}, on {}", by_rank[next]));
                wanted.push(format!("{rank}: node {node}, {host}, local {local} of {count}, peers {peers}"));
            }
            let text = String::from_utf8(stdout.get()).unwrap();
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            let stderr = String::from_utf8(stderr.get()).unwrap();
            assert_eq!((lines, code), (wanted.iter().map(String::as_str).collect(), 0), "{stderr}");
        }
    });
}
