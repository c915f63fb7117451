//! Pushes that wait: for the ranks of a job that is starting, or for a push before them.

use iof_proto::{Quota, QuotaScope};

use super::*;

/// Returns a core with a job that is starting and has remote ranks, and a tool that the limits
/// apply to.
fn starting_rig() -> (Rig, PeerId) {
    let mut rig = rig();
    rig.state.settings.host_stdin = true;
    let options = rig.state.settings.options;
    rig.state.jobs.remove(&rig.nspace);
    rig.state.jobs.get_or_add(&rig.nspace, || JobState::new(None, options, None).with_remote_ranks());
    rig.add_stream();
    let tool = rig.connect_tool(false);
    (rig, tool)
}

impl Rig {
    /// Requests a push to the job with an inlet of `size` bytes. Returns the messages to the tool.
    fn push(&mut self, tool: PeerId, size: u64) -> Vec<String> {
        self.push_to(tool, vec![Proc::all(self.nspace.clone())], size)
    }

    fn push_to(&mut self, tool: PeerId, targets: Vec<Proc>, size: u64) -> Vec<String> {
        self.state.push(tool, PushRequest { request: 1, targets, size: Some(size), infos: Vec::new() });
        self.messages(tool)
    }

    fn limit(&mut self, quota: Quota, scope: QuotaScope, value: u64) {
        self.state.quotas.limits.set(quota, scope, value);
    }
}

#[test]
fn a_push_to_a_starting_job_counts_towards_the_number_of_pushes() {
    let (mut rig, tool) = starting_rig();
    rig.limit(Quota::Pushes, QuotaScope::Engine, 2);
    let others = [rig.connect_tool(false), rig.connect_tool(false)];
    assert!(rig.push(tool, 1).is_empty() && rig.push(others[0], 1).is_empty());
    assert_eq!(rig.push(others[1], 1), ["push refused"]);
    // The pushes of a tool that has disconnected count no more.
    assert!(rig.state.disconnected(others[0]).is_some());
    assert!(rig.push(others[1], 1).is_empty());
}

#[test]
fn a_push_to_a_starting_job_counts_towards_the_pushes_of_its_process() {
    let (mut rig, tool) = starting_rig();
    rig.limit(Quota::Pushes, QuotaScope::Process, 1);
    let (same, own) = (rig.connect_tool(false), rig.connect());
    assert!(rig.push(tool, 1).is_empty());
    assert_eq!(rig.push(same, 1), ["push refused"]);
    assert!(rig.push(own, 1).is_empty(), "the limit does not apply to the embedder");
}

#[test]
fn a_push_to_a_starting_job_counts_towards_the_bytes_of_inlets() {
    let (mut rig, tool) = starting_rig();
    rig.limit(Quota::PushBytes, QuotaScope::Engine, 10);
    assert!(rig.push(tool, 6).is_empty());
    assert_eq!(rig.push(tool, 5), ["push refused"]);
    assert!(rig.push(tool, 4).is_empty());
    let (mut rig, tool) = starting_rig();
    rig.limit(Quota::PushBytes, QuotaScope::Process, 10);
    assert!(rig.push(tool, 10).is_empty());
    assert_eq!(rig.push(tool, 1), ["push refused"]);
}

#[test]
fn deferred_pushes_within_the_limits_begin_when_their_job_has_started() {
    let (mut rig, tool) = starting_rig();
    rig.limit(Quota::Pushes, QuotaScope::Engine, 2);
    assert!(rig.push(tool, 1).is_empty() && rig.push(tool, 1).is_empty());
    assert_eq!(rig.push(tool, 1), ["push refused"]);
    rig.state.all_registered(&rig.nspace.clone(), Instant::now());
    assert_eq!(rig.messages(tool), ["push begun", "push begun"]);
    assert_eq!(rig.push(tool, 1), ["push refused"]);
}

/// Returns a core with a push that waits at the host for the push of a tool that has disconnected,
/// and its tool. The host does not answer. The tool has filled 10 bytes into the inlet.
fn rig_behind_an_orphan() -> (Rig, PeerId) {
    let (mut rig, orphan) = starting_rig();
    rig.state.all_registered(&rig.nspace.clone(), Instant::now());
    let tool = rig.connect_tool(false);
    for tool in [orphan, tool] {
        assert_eq!(rig.push(tool, 10), ["push begun"]);
        assert!(rig.state.fill(tool, 1, 10, true).is_ok());
    }
    (rig, orphan)
}

/// Asks to cut off what has taken no byte of the tool's push. Returns the messages to the tool.
fn cut_off(rig: &mut Rig, tool: PeerId) -> Vec<String> {
    rig.state.report_slow_targets(tool, 2, 1, Some(0));
    rig.settle();
    rig.messages(tool)
}

#[test]
fn a_push_to_remote_ranks_that_waits_for_a_disconnected_tools_push_can_be_cut_off() {
    let (mut rig, orphan) = rig_behind_an_orphan();
    let tool = rig.state.tools.ids()[1];
    assert_eq!(cut_off(&mut rig, tool), ["slow targets: waiting"], "the other tool could cut its push off");
    assert!(rig.state.disconnected(orphan).is_some());
    assert_eq!(cut_off(&mut rig, tool), ["slow targets: waiting"], "the host may go on taking bytes");
    assert_eq!(cut_off(&mut rig, tool), ["slow targets: stalled"], "the push has its turn");
    assert_eq!(cut_off(&mut rig, tool), ["pushed", "slow targets: none"]);
    assert!(rig.state.pushes.values().next().is_none());
}

#[test]
fn a_push_of_a_disconnected_tool_that_waits_for_another_is_not_cut_off() {
    let (mut rig, first) = rig_behind_an_orphan();
    let orphan = rig.state.tools.ids()[1];
    let tool = rig.connect_tool(false);
    assert_eq!(rig.push(tool, 10), ["push begun"]);
    assert!(rig.state.disconnected(orphan).is_some());
    assert_eq!(cut_off(&mut rig, tool), ["slow targets: none"], "nothing was filled in");
    assert!(rig.state.fill(tool, 1, 10, true).is_ok());
    assert_eq!(cut_off(&mut rig, tool), ["slow targets: waiting"]);
    assert_eq!(cut_off(&mut rig, first), ["pushed", "slow targets: none"]);
    assert_eq!(rig.state.pushes.values().count(), 2);
}

#[test]
fn a_push_that_waits_for_an_orphan_behind_another_orphan_can_be_cut_off() {
    let (mut rig, first) = starting_rig();
    rig.state.all_registered(&rig.nspace.clone(), Instant::now());
    let (second, tool) = (rig.connect_tool(false), rig.connect_tool(false));
    // The first and the last push have no target in common.
    for (tool, ranks) in [(first, &[8][..]), (second, &[8, 9]), (tool, &[9])] {
        let targets = ranks.iter().map(|rank| Proc::new(rig.nspace.clone(), Rank(*rank))).collect();
        assert_eq!(rig.push_to(tool, targets, 10), ["push begun"]);
        assert!(rig.state.fill(tool, 1, 10, true).is_ok());
    }
    assert!(rig.state.disconnected(first).is_some() && rig.state.disconnected(second).is_some());
    // First the push that the host has, then the one behind it.
    for _ in 0..3 {
        assert_eq!(cut_off(&mut rig, tool), ["slow targets: waiting"]);
    }
    assert_eq!(cut_off(&mut rig, tool), ["slow targets: stalled"]);
    assert_eq!(cut_off(&mut rig, tool), ["pushed", "slow targets: none"]);
}

#[test]
fn pushes_to_remote_ranks_are_limited_at_each_of_them() {
    let mut rig = rig();
    rig.state.settings.host_stdin = true;
    rig.state.settings.limits.pushes_per_target = 2;
    let tool = rig.connect();
    let mut push = |ranks: &[Rank]| {
        let targets = ranks.iter().map(|rank| Proc::new(rig.nspace.clone(), *rank)).collect();
        let mut messages = rig.push_to(tool, targets, 1);
        rig.settle();
        messages.append(&mut rig.messages(tool));
        messages
    };
    let (begun, refused) = (["push begun"], ["push refused"]);
    assert_eq!(push(&[Rank(1), Rank(2)]), begun);
    assert_eq!(push(&[Rank(2), Rank(3)]), begun);
    // Two pushes share a rank with this one, but no rank has two.
    assert_eq!(push(&[Rank(1), Rank(3)]), begun);
    assert_eq!(push(&[Rank(2)]), refused);
    assert_eq!(push(&[Rank::WILDCARD]), refused);
    assert_eq!(push(&[Rank(4)]), begun);
}

#[test]
fn a_push_of_a_disconnected_tool_that_the_host_keeps_taking_is_not_cut_off() {
    const BYTES: u64 = 1 << 18;
    let (mut rig, orphan) = starting_rig();
    rig.state.all_registered(&rig.nspace.clone(), Instant::now());
    let tool = rig.connect_tool(false);
    assert_eq!(rig.push(orphan, BYTES), ["push begun"]);
    assert!(rig.state.fill(orphan, 1, BYTES, true).is_ok());
    let id = rig.state.pushes.iter().next().unwrap().0;
    assert!(rig.state.disconnected(orphan).is_some());
    assert_eq!(rig.push(tool, 10), ["push begun"]);
    assert!(rig.state.fill(tool, 1, 10, true).is_ok());
    for _ in 0..BYTES / (64 * 1024) {
        assert_eq!(cut_off(&mut rig, tool), ["slow targets: waiting"]);
        rig.state.stdin_answered(id, None, Ok(Vec::new()));
    }
    assert!(rig.state.pushes.get(&id).is_none(), "the host has all of its bytes");
}
