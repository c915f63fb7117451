//! Fences of the ranks of several nodes, and what these have put.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use iof_engine::{EndCause, Ending, Exit, JobSpec, KillOnBadExit, NodeId, NodeLost, NodeReport};
use iof_proto::limits::MAX_FENCE_BYTES_PER_JOB;
use iof_proto::{
    Exchange, Failure, FencePurpose, JobRanks, Mpi, MpiEvent, Nspace, Proc, Rank, Status, ToTool,
};
use iof_testing::TIMEOUT;
use iof_testing::engine::{changed, nspace};

use crate::on_nodes::{A, B, Fixture, Request, job_spec, start};

type Answer = Result<Arc<[u8]>, Failure>;

impl Fixture {
    fn request(&self, rank: u32, exchange: Exchange) -> Receiver<Answer> {
        let (sender, answers) = channel();
        let reply = move |answer| {
            let ToTool::Fenced(answer) = answer else { panic!("{answer:?}") };
            sender.send(answer).unwrap();
        };
        self.job.exchange(Rank(rank), exchange, Box::new(reply));
        answers
    }

    /// Lets the node of a rank enter a fence of these ranks; none for all.
    fn fence(&self, rank: u32, ranks: &[u32], data: &[u8]) -> Receiver<Answer> {
        let all = JobRanks { nspace: nspace(), ranks: ranks.iter().copied().map(Rank).collect() };
        let members = if ranks.is_empty() { Vec::new() } else { vec![all] };
        self.request(rank, fence(Mpi::Pmi1, members, data))
    }

    /// Waits until the requests so far are served.
    fn settle(&self) {
        let values = get(&self.fence(0, &[0, 1], b""));
        assert_eq!(values.as_deref(), Ok(&b""[..]));
    }

    fn cause(&self) -> Option<EndCause> {
        self.find(|ending| if let Ending::Early(end) = ending { Some(end.cause) } else { None })
    }

    fn exit_of(&self, rank: u32) -> Option<Exit> {
        self.find(|ending| match ending {
            Ending::Rank(exit) if exit.rank == Rank(rank) => Some(exit.exit),
            _ => None,
        })
    }

    fn find<T>(&self, find: impl Fn(Ending) -> Option<T>) -> Option<T> {
        let mut endings = self.job.endings();
        while let Some(ending) = endings.try_next() {
            if let Some(found) = find(ending) {
                return Some(found);
            }
        }
        None
    }
}

fn fence(mpi: Mpi, members: Vec<JobRanks>, data: &[u8]) -> Exchange {
    Exchange::Fence { mpi, purpose: FencePurpose::Values, members, data: data.to_vec() }
}

fn modex(rank: Rank) -> Exchange {
    Exchange::Modex(Proc::new(nspace(), rank))
}

fn get(answers: &Receiver<Answer>) -> Answer {
    answers.recv_timeout(TIMEOUT).expect("an answer")
}

fn is_waiting(answers: &Receiver<Answer>) -> bool {
    answers.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout)
}

fn lost(ranks: &[u32]) -> NodeReport {
    let ranks: BTreeSet<Rank> = ranks.iter().copied().map(Rank).collect();
    let host = "b".to_owned();
    NodeReport::Lost(NodeLost { host, reason: "gone".into(), ranks, delivered: 0, missing: 0, totals: None })
}

fn with(kill_on_bad_exit: KillOnBadExit) -> JobSpec {
    changed(job_spec(), |spec| spec.kill_on_bad_exit = kill_on_bad_exit)
}

#[test]
fn a_fence_ends_with_the_values_of_all_nodes_when_the_last_one_has_entered() {
    let fixture = start(&job_spec());
    for round in 0..2 {
        let second = fixture.fence(3, &[], b"of b");
        let other = fixture.fence(2, &[1, 2], b"b2");
        fixture.settle();
        assert!(is_waiting(&second) && is_waiting(&other));
        let first = fixture.fence(round, &[], b"of a, ");
        assert_eq!([&first, &second].map(get), [(); 2].map(|()| Ok(Arc::from(&b"of a, of b"[..]))));
        assert!(is_waiting(&other));
        let values = [fixture.fence(1, &[1, 2], b"a1 "), other].map(|answers| get(&answers));
        assert_eq!(values, [(); 2].map(|()| Ok(Arc::from(&b"a1 b2"[..]))));
    }
    assert_eq!(fixture.cause(), None);
}

#[test]
fn ten_thousand_times_two_hundred_bytes_pass_a_fence() {
    let fixture = start(&job_spec());
    let values = vec![7; 10_000 * 200 / 2];
    let answers = [0, 2].map(|rank| fixture.fence(rank, &[], &values));
    for answer in answers {
        assert_eq!(get(&answer).unwrap().len(), 10_000 * 200);
    }
}

#[test]
fn a_fence_fails_when_a_node_has_ended_that_takes_part() {
    let ends: [fn(&Fixture); 2] = [
        |fixture| fixture.job.report_node(B, lost(&[2, 3])),
        |fixture| {
            (2..4).for_each(|rank| fixture.exit(rank, 0, false));
            fixture.job.report_node(B, NodeReport::Over { cut_off: Vec::new() });
        },
    ];
    for end in ends {
        let fixture = start(&with(KillOnBadExit::Never));
        let before = fixture.fence(0, &[], b"a");
        let (waiting, own) = (fixture.request(0, modex(Rank(3))), fixture.fence(1, &[1], b"1"));
        assert_eq!(get(&own).as_deref(), Ok(&b"1"[..]));
        end(&fixture);
        let after = fixture.fence(0, &[], b"a");
        for answers in [before, waiting, after] {
            let failure = get(&answers).unwrap_err();
            assert_eq!(
                (failure.status, failure.reason.as_str()),
                (Status::ERR_LOST_CONNECTION, "node b has ended")
            );
        }
        assert_eq!(get(&fixture.request(0, modex(Rank(2)))).unwrap_err().status, Status::ERR_NOT_FOUND);
        assert_eq!(fixture.cause(), None);
    }
}

#[test]
fn a_node_that_breaks_the_rules_of_fences_ends_the_job() {
    type Break = fn(&Fixture);
    let breaks: [(u32, Break); 6] = [
        // A node enters twice.
        (1, |fixture| drop([fixture.fence(0, &[], b""), fixture.fence(1, &[], b"")])),
        // None of its ranks takes part.
        (2, |fixture| drop(fixture.fence(2, &[0, 1], b""))),
        // A rank does not exist; ranks occur twice.
        (3, |fixture| drop(fixture.fence(3, &[3, 4], b""))),
        (3, |fixture| drop(fixture.fence(3, &[3, 3], b""))),
        // Nodes differ in the protocol.
        (2, |fixture| {
            drop(fixture.fence(0, &[], b""));
            drop(fixture.request(2, fence(Mpi::Pmix, Vec::new(), b"")));
        }),
        // More than a job may hold.
        (0, |fixture| drop(fixture.fence(0, &[], &vec![0; MAX_FENCE_BYTES_PER_JOB]))),
    ];
    for (rank, broken) in breaks {
        let fixture = start(&with(KillOnBadExit::Never));
        broken(&fixture);
        let (node, request) = fixture.next();
        assert!(matches!(request, Request::Signal(_)) && [A, B].contains(&node), "{request:?}");
        assert_eq!(fixture.cause(), Some(EndCause::Exchange(Rank(rank))));
        (0..4).for_each(|rank| fixture.exit(rank, 0, true));
        fixture.end(&[A, B]);
        assert_eq!(fixture.job.wait().code(), 1);
    }
}

#[test]
fn a_fence_of_two_jobs_waits_for_the_nodes_of_both_and_fails_with_either() {
    let other = Nspace::new("other").unwrap();
    for ends in [None, Some(true), Some(false)] {
        let first = start(&with(KillOnBadExit::Never));
        let second = first.another(&changed(with(KillOnBadExit::Never), |spec| spec.nspace = other.clone()));
        let members = |ranks: &[u32]| {
            let of =
                |nspace, ranks: &[u32]| JobRanks { nspace, ranks: ranks.iter().copied().map(Rank).collect() };
            vec![of(nspace(), &[]), of(other.clone(), ranks)]
        };
        let enter = |fixture: &Fixture, rank, data: &[u8]| {
            fixture.request(rank, fence(Mpi::Pmix, members(&[2, 3]), data))
        };
        let entered = [enter(&first, 0, b"a "), enter(&second, 2, b"d")];
        first.settle();
        assert!(entered.iter().all(is_waiting));
        match ends {
            None => {
                let last = enter(&first, 3, b"b ");
                let all = entered.iter().chain([&last]).map(get);
                all.for_each(|values| assert_eq!(values.as_deref(), Ok(&b"a b d"[..])));
            }
            Some(is_first) => {
                let ended = if is_first { &first } else { &second };
                (0..4).for_each(|rank| ended.exit(rank, 0, false));
                for node in [A, B] {
                    ended.job.report_node(node, NodeReport::Over { cut_off: Vec::new() });
                }
                ended.engine.end_job(ended.job.nspace(), None);
                if is_first {
                    let failed = entered.map(|answers| get(&answers).unwrap_err().status);
                    assert_eq!(failed, [Status::ERR_LOST_CONNECTION; 2]);
                } else {
                    // Its node has entered before.
                    let values =
                        [enter(&first, 3, b"b ")].iter().chain(&entered).map(get).collect::<Vec<_>>();
                    assert!(values.iter().all(Result::is_ok), "{values:?}");
                }
            }
        }
        let gone = [JobRanks { nspace: Nspace::new("gone").unwrap(), ranks: Vec::new() }];
        let gone = fence(Mpi::Pmix, [members(&[2]), gone.into()].concat(), b"");
        if ends != Some(true) {
            let refused = get(&first.request(0, gone)).unwrap_err();
            assert_eq!(
                (refused.status, refused.reason.as_str()),
                (Status::ERR_NOT_FOUND, "job gone has ended")
            );
        }
        assert_eq!([first.cause(), second.cause()], [None, None]);
    }
}

#[test]
fn the_group_of_a_job_that_has_ended_is_refused_as_other_groups_are() {
    let fixture = start(&job_spec());
    let members = vec![JobRanks { nspace: Nspace::new("gone").unwrap(), ranks: Vec::new() }];
    let group = Exchange::Group { name: "group".into(), members, constructs: true, with_context: true };
    let (sender, answers) = channel();
    fixture.job.exchange(Rank(0), group, Box::new(move |answer| sender.send(answer).unwrap()));
    let ToTool::Answer { result, .. } = answers.recv_timeout(TIMEOUT).unwrap() else {
        panic!("not a group's")
    };
    assert_eq!(result.map_err(|failure| failure.reason), Err("job gone has ended".to_owned()));
}

#[test]
fn a_node_that_enters_a_fence_of_another_job_ends_its_own_job_only() {
    let first = start(&with(KillOnBadExit::Never));
    let other = changed(with(KillOnBadExit::Never), |spec| spec.nspace = Nspace::new("other").unwrap());
    let second = first.another(&other);
    let members = vec![JobRanks { nspace: nspace(), ranks: Vec::new() }];
    drop(second.request(0, fence(Mpi::Pmix, members, b"")));
    let (_, request) = second.next();
    assert!(matches!(request, Request::Signal(_)), "{request:?}");
    assert_eq!(second.cause(), Some(EndCause::Exchange(Rank(0))));
    // It has not opened the fence, by another protocol.
    let values = [first.fence(0, &[], b"a"), first.fence(2, &[], b"b")].map(|answers| get(&answers));
    assert_eq!(values, [(); 2].map(|()| Ok(Arc::from(&b"ab"[..]))));
}

#[test]
fn a_job_whose_fences_hold_all_that_they_may_leaves_those_of_another_unharmed_and_ends_alone() {
    let hostile = start(&with(KillOnBadExit::Never));
    let other = changed(with(KillOnBadExit::Never), |spec| spec.nspace = Nspace::new("other").unwrap());
    let other = hostile.another(&other);
    let held = hostile.fence(0, &[], &vec![0; MAX_FENCE_BYTES_PER_JOB - 4096]);
    hostile.settle();
    let values = vec![1; MAX_FENCE_BYTES_PER_JOB / 4];
    let exchange = || {
        let request = |rank| other.request(rank, fence(Mpi::Pmi1, Vec::new(), &values));
        [request(0), request(3)].map(|answers| get(&answers).map(|all| all.len()))
    };
    assert_eq!(exchange(), [(); 2].map(|()| Ok(2 * values.len())));
    assert!(is_waiting(&held));
    drop(hostile.fence(0, &[1, 2], &[0; 4096]));
    let (_, request) = hostile.next();
    assert!(matches!(request, Request::Signal(_)), "{request:?}");
    assert_eq!(hostile.cause(), Some(EndCause::Exchange(Rank(0))));
    assert_eq!((exchange(), other.cause()), ([(); 2].map(|()| Ok(2 * values.len())), None));
}

#[test]
fn each_of_two_jobs_in_a_fence_has_half_of_the_values_that_a_node_receives() {
    let other = Nspace::new("other").unwrap();
    let all = |nspace| JobRanks { nspace, ranks: Vec::new() };
    let members = vec![all(nspace()), all(other.clone())];
    for (size, ends) in [(MAX_FENCE_BYTES_PER_JOB / 2 - 4096, false), (MAX_FENCE_BYTES_PER_JOB / 2, true)] {
        let first = start(&with(KillOnBadExit::Never));
        let _second = first.another(&changed(with(KillOnBadExit::Never), |spec| spec.nspace = other.clone()));
        drop(first.request(0, fence(Mpi::Pmix, members.clone(), &vec![0; size])));
        first.settle();
        assert_eq!(first.cause().is_some(), ends);
    }
}

#[test]
fn the_values_of_a_rank_are_requested_of_its_node() {
    let fixture = start(&job_spec());
    let answers = [0, 1].map(|rank| fixture.request(rank, modex(Rank(3))));
    let values = [Ok(vec![1, 2]), Err(Status::ERR_NOT_FOUND)];
    for value in values.clone() {
        let (B, Request::Modex(call, Rank(3))) = fixture.next() else { panic!("another request") };
        // Only the node of the rank can answer.
        fixture.job.report_node(A, NodeReport::Modex { call, values: Ok(vec![9]) });
        fixture.job.report_node(B, NodeReport::Modex { call, values: value });
    }
    let [first, second] = answers.map(|answers| get(&answers).map_err(|failure| failure.status));
    assert_eq!((first.as_deref(), second), (Ok(&[1, 2][..]), Err(Status::ERR_NOT_FOUND)));
    let unknown = get(&fixture.request(0, modex(Rank(4)))).unwrap_err();
    assert_eq!(unknown.status, Status::ERR_NOT_FOUND);
}

#[test]
fn ranks_of_other_nodes_end_mpi_by_the_rules_of_those_of_one() {
    let mpi = |fixture: &Fixture, node: NodeId, rank, event| {
        fixture.job.report_node(node, NodeReport::Mpi { rank: Rank(rank), event });
    };
    // An exit before MPI_Finalize.
    let fixture = start(&with(KillOnBadExit::Signal));
    mpi(&fixture, A, 0, MpiEvent::Initialized);
    mpi(&fixture, B, 2, MpiEvent::Initialized);
    mpi(&fixture, B, 2, MpiEvent::Finalized);
    fixture.exit(2, 0, false);
    assert_eq!(fixture.cause(), None);
    fixture.exit(0, 0, false);
    fixture.next();
    assert_eq!(fixture.cause(), Some(EndCause::BadExit(Rank(0))));
    assert_eq!(fixture.exit_of(0), Some(Exit::Unfinalized));
    // An exit without MPI_Init, for which a rank of another node waits.
    for waits_first in [false, true] {
        let fixture = start(&with(KillOnBadExit::Signal));
        let begin = || mpi(&fixture, A, 0, MpiEvent::Initialized);
        if waits_first {
            begin();
        }
        fixture.exit(3, 0, false);
        if !waits_first {
            begin();
        }
        fixture.next();
        assert_eq!(fixture.cause(), Some(EndCause::Uninitialized(Rank(3))));
    }
    // An abort, after which its rank exits as the node ends it.
    let fixture = start(&with(KillOnBadExit::Never));
    mpi(&fixture, B, 3, MpiEvent::Aborted { code: 7 });
    assert_eq!(fixture.cause(), Some(EndCause::Abort { rank: Rank(3), code: 7 }));
    fixture.exit(3, 15, true);
    assert_eq!(fixture.exit_of(3), Some(Exit::Status(ExitStatus::from_raw(15))));
}
