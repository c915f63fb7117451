//! Streams of ranks on other nodes that can't have a ring here.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::SystemTime;

use iof_proto::{Missed, Node, NodeStream};

use super::*;
use crate::calls::{DeliveredEnd, NewJob};
use crate::ids::JobId;
use crate::jobs::early_end::EarlyEndPolicy;
use crate::jobs::exit::Exit;
use crate::jobs::nodes::{NodeId, NodeReport};

/// Begins a job with two ranks on another node, whose output goes directly to the embedder's printers.
fn begin_on_node(rig: &mut Rig) -> JobId {
    rig.nspace = Nspace::new("nodes").unwrap();
    let nodes = [Node { host: "a".into(), ranks: [Rank(0), Rank(1)].into() }];
    let id = rig.state.begin_job(NewJob {
        nspace: &rig.nspace,
        grace: None,
        early_end_policy: EarlyEndPolicy::never(),
        directives: &Directives::default(),
        elsewhere: false,
        is_part: false,
        launching: BTreeMap::new(),
        nodes: &nodes,
        is_direct: true,
    });
    let id = id.unwrap();
    let started = NodeReport::Started { pids: vec![1, 2], began: SystemTime::UNIX_EPOCH };
    rig.state.node_reported(&id, NodeId(0), started, Instant::now());
    id
}

/// Connects a tool that pulls the job.
fn pull(rig: &mut Rig) -> PeerId {
    let tool = rig.connect();
    rig.pull(tool);
    rig.state.registrations_changed();
    tool
}

/// Sends what is queued for a tool. Returns its reports of missed streams.
fn reports(rig: &mut Rig, tool: PeerId) -> Vec<Missed> {
    let peer = rig.state.tools.get_mut(&tool).unwrap();
    let mut reports = Vec::new();
    while let Some(frame) = peer.front().map(|out| out.frame().to_vec()) {
        if let Some(ToTool::Missed { missed, .. }) = Decoder::new().decode(&mut &*frame).unwrap() {
            reports.push(missed);
        }
        peer.sent(frame.len(), Instant::now());
    }
    reports
}

/// Sends what is queued for a tool. Returns the bytes that it misses, in the order of the reports.
fn missed(rig: &mut Rig, tool: PeerId) -> Vec<u64> {
    reports(rig, tool).into_iter().map(|missed| missed.bytes).collect()
}

#[test]
fn a_tool_that_comes_when_the_nodes_have_ended_is_told_the_ends_of_its_streams() {
    let mut rig = rig_with_memory(Box::new(NoStreams));
    let id = begin_on_node(&mut rig);
    let stream = |rank, ended| {
        let (rank, channel, produced) = (Rank(rank), Channel::Stdout, 5 + u64::from(rank));
        NodeStream { rank, channel, produced, lost: 0, ended, missing: None }
    };
    // How many bytes the other one had is not known: its node was lost.
    let streams = NodeReport::Streams(vec![stream(0, true), stream(1, false)]);
    rig.state.node_reported(&id, NodeId(0), streams, Instant::now());
    assert!(rig.state.end_job(&id.nspace, None));
    let tools = [Start::Oldest, Start::Now].map(|start| {
        let tool = rig.connect();
        rig.pull_from(tool, start);
        rig.state.registrations_changed();
        reports(&mut rig, tool)
    });
    let (nspace, rank, ended) = (rig.nspace.clone(), Rank::WILDCARD, vec![(Rank(0), 5)]);
    let missed =
        Missed { nspace, rank, channel: Channel::Stdout, streams: 2, bytes: 11, ended, offset: None };
    assert_eq!(tools, [vec![missed], Vec::new()], "from the oldest byte, and from the newest");
}

#[test]
fn a_tool_is_told_of_streams_of_a_job_whose_end_is_announced_while_it_is_attached() {
    let mut rig = rig();
    let id = begin_on_node(&mut rig);
    let stream = |rank| {
        let (rank, channel) = (Rank(rank), Channel::Stdout);
        NodeStream { rank, channel, produced: 5, lost: 0, ended: true, missing: None }
    };
    rig.state.node_reported(&id, NodeId(0), NodeReport::Streams(vec![stream(0), stream(1)]), Instant::now());
    for rank in [0, 1].map(Rank) {
        let exit = Exit::Status(ExitStatus::from_raw(0));
        let exited = NodeReport::Exited { rank, exit, requested: false, used: None };
        rig.state.node_reported(&id, NodeId(0), exited, Instant::now());
    }
    // Rank 0 has a ring, which the job's end waits for.
    let source = rig.add_stream();
    rig.state.jobs.get_mut(&id.nspace).unwrap().add_delivered(Rank(0), Channel::Stdout, source);
    assert!(rig.state.end_job(&id.nspace, Some(0)));
    let tool = pull(&mut rig);
    rig.state.jobs.get_mut(&id.nspace).unwrap().delivery_completed();
    rig.state.announce_end(&id.nspace);
    rig.settle();
    assert_eq!(missed(&mut rig, tool), [5], "of rank 1");
}

#[test]
fn a_tool_is_told_once_of_each_stream_without_a_ring_whenever_it_comes() {
    let mut rig = rig_with_memory(Box::new(NoStreams));
    let id = begin_on_node(&mut rig);
    let deliver = |rig: &mut Rig, rank: u32, offset, end| {
        let from = Proc::new(rig.nspace.clone(), Rank(rank));
        let (channel, bytes, offset) = (Channel::Stdout, b"bytes".to_vec(), Some(offset));
        let bytes = DeliveredBytes { from: &from, channel, bytes, offset, time: None, input: None, end };
        let delivered = rig.state.deliver_pulled(&id, rank + 1, bytes, Box::new(|| {}));
        assert!(delivered.unwrap().is_err(), "no ring");
    };
    let first = pull(&mut rig);
    deliver(&mut rig, 0, 0, Some(DeliveredEnd::Complete));
    deliver(&mut rig, 1, 0, None);
    assert_eq!(missed(&mut rig, first), [5]);
    // The node has reported nothing about its streams yet.
    let second = pull(&mut rig);
    assert_eq!(missed(&mut rig, second), [5]);
    deliver(&mut rig, 1, 5, Some(DeliveredEnd::Complete));
    assert_eq!([missed(&mut rig, first), missed(&mut rig, second)], [[10], [10]]);
}
