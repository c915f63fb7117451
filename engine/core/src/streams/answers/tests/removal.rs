//! The state that the core keeps no longer than the job, the registration or the tool that it
//! belongs to.

use iof_proto::{FromTool, StdinUnavailable};

use super::*;
use crate::jobs::job::StdinAccess;

/// Starts a job with one local rank, whose streams have a grace period.
fn rig_with_grace() -> (Rig, Instant) {
    let (mut rig, now) = (rig(), Instant::now());
    let options = rig.state.jobs.get(&rig.nspace).unwrap().options();
    rig.state.jobs.remove(&rig.nspace);
    let grace = Some(Duration::from_secs(3600));
    rig.state.jobs.get_or_add(&rig.nspace, || JobState::new(grace, options, None));
    let (signals, stdin) = (SignalReach::Nothing, StdinAccess::None(StdinUnavailable::NotOpen));
    let process = rig.state.register_rank(&rig.nspace, Rank(0), signals, stdin).ok().unwrap().process;
    rig.state.exited(process, (Ok(Default::default()), None), now);
    assert!(rig.state.graces.next_end().is_some());
    (rig, now)
}

#[test]
fn a_removed_job_has_no_grace_period() {
    let (mut rig, now) = rig_with_grace();
    rig.state.all_registered(&rig.nspace.clone(), now);
    let streams = rig.state.jobs.get(&rig.nspace).unwrap().streams();
    streams.iter().for_each(|stream| rig.state.completed(*stream, &End::EndOfFile));
    assert!(rig.state.remove_job(&rig.nspace).is_some());
    assert_eq!(rig.state.graces.next_end(), None);
}

#[test]
fn a_job_that_fails_to_start_has_no_grace_period() {
    let (mut rig, _) = rig_with_grace();
    rig.state.withdraw_ranks(&rig.nspace.clone());
    assert_eq!(rig.state.graces.next_end(), None);
}

/// Starts a stream that the registration of a tool misses, because the tool has no slot left.
fn rig_with_missed_stream() -> (Rig, PeerId, SourceId) {
    let mut rig = rig();
    let tool = rig.connect();
    rig.pull(tool);
    let peer = rig.state.tools.get_mut(&tool).unwrap();
    while peer.take_slot(&rig.memory).is_ok() {}
    let source = rig.add_stream();
    (rig, tool, source)
}

/// Completes a stream. Returns the number of registrations that miss it.
fn missing(rig: &mut Rig, source: SourceId) -> usize {
    let completion = Completion { produced: 0, generation: 0 };
    rig.state.streams.get_mut(&source).unwrap().complete(completion).len()
}

#[test]
fn a_registration_that_has_ended_misses_no_stream() {
    let (mut rig, _, source) = rig_with_missed_stream();
    assert_eq!(missing(&mut rig, source), 1);
    let (mut rig, tool, source) = rig_with_missed_stream();
    let [(handler, _)] = rig.state.tools.get(&tool).unwrap().registrations().collect::<Vec<_>>()[..] else {
        panic!("one registration")
    };
    let message = FromTool::Deregister { request: 8, handler };
    assert!(
        rig.state.handle(Input::Message { from: MessageOrigin::Tool(tool), message }, Instant::now()).is_ok()
    );
    assert_eq!(missing(&mut rig, source), 0);
}

#[test]
fn a_tool_that_has_disconnected_misses_no_stream() {
    let (mut rig, tool, source) = rig_with_missed_stream();
    assert!(rig.state.disconnected(tool).is_some());
    assert_eq!(missing(&mut rig, source), 0);
}
