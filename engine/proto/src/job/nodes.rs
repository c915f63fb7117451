//! The nodes of a job.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::names::{Nspace, Rank};

/// A node of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The name by which it is reached.
    pub host: String,
    /// The ranks that run on the node.
    pub ranks: BTreeSet<Rank>,
}

/// The nodes of a job whose ranks start MPI together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpiNodes {
    /// A name of the job that no other job has on any of the nodes, at any time, after the character `@`.
    pub name: String,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The jobs that its ranks may connect to from the start.
    pub relatives: Vec<Relative>,
}

/// A job whose ranks may connect to those of another one, as a rank of one has spawned the other
/// (`PMIx_Spawn`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relative {
    /// The name of the job.
    pub nspace: Nspace,
    /// Its nodes.
    pub nodes: MpiNodes,
}

impl MpiNodes {
    /// Returns the number of the node of a rank, with the node.
    pub fn node_of(&self, rank: Rank) -> Option<(u32, &Node)> {
        (0..).zip(&self.nodes).find(|(_, node)| node.ranks.contains(&rank))
    }

    /// Returns the node of each rank in the form `PMI_process_mapping`: blocks of the number of the first
    /// node, the number of nodes, and the number of ranks on each of them. MPICH begins anew after the last
    /// block while ranks have no node, but Intel MPI crashes, so each rank is in a block.
    pub fn mapping(&self) -> String {
        let numbered = (0u32..).zip(&self.nodes);
        let nodes: BTreeMap<Rank, u32> =
            numbered.flat_map(|(number, node)| node.ranks.iter().map(move |rank| (*rank, number))).collect();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for node in nodes.into_values() {
            match runs.last_mut() {
                Some((last, ranks)) if *last == node => *ranks = ranks.saturating_add(1),
                _ => runs.push((node, 1)),
            }
        }
        let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
        for (node, ranks) in runs {
            match blocks.last_mut() {
                Some((first, count, each)) if *each == ranks && first.checked_add(*count) == Some(node) => {
                    *count = count.saturating_add(1);
                }
                _ => blocks.push((node, 1, ranks)),
            }
        }
        let blocks = blocks.iter().map(|(first, count, each)| format!(",({first},{count},{each})"));
        format!("(vector{})", blocks.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_of_ranks_to_nodes_is_a_list_of_blocks_with_all_ranks() {
        for (nodes, mapping) in [
            (vec![vec![0, 1, 2]], "(vector,(0,1,3))"),
            (vec![vec![0, 1], vec![2, 3]], "(vector,(0,2,2))"),
            (vec![vec![0, 1], vec![2]], "(vector,(0,1,2),(1,1,1))"),
            (vec![vec![0, 2, 4], vec![1, 3, 5]], "(vector,(0,2,1),(0,2,1),(0,2,1))"),
            (vec![vec![0, 2], vec![1], vec![3]], "(vector,(0,2,1),(0,1,1),(2,1,1))"),
            (vec![vec![2, 3], vec![0, 1]], "(vector,(1,1,2),(0,1,2))"),
        ] {
            let node =
                |ranks: Vec<u32>| Node { host: String::new(), ranks: ranks.into_iter().map(Rank).collect() };
            let nodes = MpiNodes {
                name: String::new(),
                nodes: nodes.into_iter().map(node).collect(),
                relatives: Vec::new(),
            };
            assert_eq!(nodes.mapping(), mapping);
        }
    }
}
