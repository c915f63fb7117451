//! What the core keeps no longer than the job, the registration or the tool that it belongs to.

use iof_proto::StdinUnavailable;

use super::*;
use crate::core::calls::NewRank;

/// Starts a job with one local rank, whose streams have a grace period.
fn rig_with_grace() -> (Rig, Instant) {
    let (mut rig, now) = (rig(), Instant::now());
    let options = rig.state.jobs.get(&rig.nspace).unwrap().options();
    rig.state.jobs.remove(&rig.nspace);
    let grace = Some(Duration::from_secs(3600));
    rig.state.jobs.get_or_add(&rig.nspace, || JobState::new(grace, options, None));
    let new = NewRank {
        rank: Rank(0),
        signals: SignalReach::Nothing,
        stdin_unavailable: Some(StdinUnavailable::NotOpen),
        own_stdin: false,
    };
    let process = rig.state.register_rank(&rig.nspace, new).ok().unwrap().process;
    rig.state.exited(process, Ok(Default::default()), now);
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
