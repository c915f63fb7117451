//! The shape of a tree: which nodes are behind which edge.

use std::ops::Range;

/// Divides nodes among at most `radix` edges. Each part is the subtree behind one edge, and its
/// first node is the one at the end of that edge. The numbers of nodes of the parts differ by at
/// most one.
///
/// ```
/// use iof_nodes::subtrees;
/// assert_eq!(subtrees(0..7, 3), [0..3, 3..5, 5..7]);
/// // The edges of node 0, which relays for nodes 1 and 2.
/// assert_eq!(subtrees(1..3, 3), [1..2, 2..3]);
/// ```
pub fn subtrees(nodes: Range<u32>, radix: u32) -> Vec<Range<u32>> {
    let count = nodes.end.saturating_sub(nodes.start);
    let parts = radix.max(1).min(count);
    let (Some(least), Some(larger)) = (count.checked_div(parts), count.checked_rem(parts)) else {
        return Vec::new();
    };
    let mut start = nodes.start;
    let part = |number: u32| {
        let end = start.saturating_add(least).saturating_add(u32::from(number < larger));
        std::mem::replace(&mut start, end)..end
    };
    (0..parts).map(part).collect()
}
