//! The stdin of the ranks of `iof run`, and our own stdin on its way to them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::thread;

use clap::Args;
use iof_engine::{Engine, Grant, Stdin};
use iof_proto::directive::{Info, key};
use iof_proto::{Nspace, PartialCause, PartialDelivery, Proc, PushReport, Rank, SlowTargets};
use iof_tool::{Push, PushError, Pusher};

use crate::args::{Ranks, ranks};
use crate::push::report_wait;
use crate::{Failure, print_message};

/// The heading of these options in help.
const STDIN: &str = "Stdin options";

/// The options that set what each rank reads.
#[derive(Args)]
pub struct StdinArgs {
    /// Ranks that get our stdin [default: 0]
    ///
    /// With --stdin-file, the default is all.
    #[arg(long, help_heading = STDIN, value_name = "LIST|all|none", value_parser = ranks_or_none)]
    stdin: Option<Ranks>,

    /// Ranks whose stdin is left open for `iof push`
    #[arg(long, help_heading = STDIN, value_name = "LIST|all", value_parser = ranks)]
    stdin_open: Option<Ranks>,

    /// A file that ranks read as stdin instead of ours
    ///
    /// Each rank opens it itself.
    #[arg(long, help_heading = STDIN, value_name = "PATH")]
    stdin_file: Option<PathBuf>,
}

fn ranks_or_none(text: &str) -> Result<Ranks, String> {
    if text == "none" { Ok(Ranks(Vec::new())) } else { ranks(text) }
}

/// What becomes of the ranks' stdin, and of ours.
pub struct Plan {
    pub ranks: BTreeMap<Rank, Stdin>,
    /// Ranks that our stdin is to be pushed to, and whether they are at their end with it.
    pushed: BTreeMap<Rank, bool>,
}

impl StdinArgs {
    /// Decides for a job of `nprocs` ranks.
    pub fn plan(&self, nprocs: u64) -> Result<Plan, Failure> {
        let all: BTreeSet<Rank> = (0..).take_while(|rank| u64::from(*rank) < nprocs).map(Rank).collect();
        let known = |ranks: &Ranks| match ranks.0.as_slice() {
            [Rank::WILDCARD] => Ok(all.clone()),
            named => match named.iter().find(|rank| !all.contains(rank)) {
                Some(rank) => Err(Failure::usage(format!(
                    "there is no rank {rank} to give stdin: the job has {nprocs} ranks, from 0 on"
                ))),
                None => Ok(named.iter().copied().collect()),
            },
        };
        let open = self.stdin_open.as_ref().map(known).transpose()?.unwrap_or_default();
        let ours = match (&self.stdin, &self.stdin_file) {
            (Some(ranks), _) => known(ranks)?,
            (None, Some(_)) => all.difference(&open).copied().collect(),
            (None, None) => BTreeSet::from([Rank(0)]).difference(&open).copied().collect(),
        };
        let mut plan = Plan { ranks: BTreeMap::new(), pushed: BTreeMap::new() };
        plan.ranks.extend(open.iter().map(|rank| (*rank, Stdin::Pipe)));
        let only = ours.first().filter(|_| ours.len() == 1);
        match (&self.stdin_file, only) {
            (Some(_), _) if ours.is_empty() => {
                return Err(Failure::usage("--stdin-file is for nobody: name ranks with --stdin"));
            }
            (Some(path), _) => {
                if let Some(rank) = ours.intersection(&open).next() {
                    let wrong =
                        format!("rank {rank} can't have --stdin-file as stdin and --stdin-open: choose one");
                    return Err(Failure::usage(wrong));
                }
                plan.ranks.extend(ours.into_iter().map(|rank| (rank, Stdin::File(path.clone()))));
            }
            (None, Some(rank)) if !open.contains(rank) => {
                plan.ranks.insert(*rank, Stdin::Inherit);
            }
            (None, _) => {
                plan.ranks.extend(ours.iter().map(|rank| (*rank, Stdin::Pipe)));
                plan.pushed = ours.into_iter().map(|rank| (rank, !open.contains(&rank))).collect();
            }
        }
        Ok(plan)
    }
}

impl Plan {
    /// The rank that has our stdin itself.
    pub fn inherits(&self) -> Option<Rank> {
        self.ranks.iter().find(|(_, stdin)| **stdin == Stdin::Inherit).map(|(rank, _)| *rank)
    }

    /// The ranks that have our stdin by a pipe, and are not open for others.
    pub fn own(&self) -> BTreeSet<Rank> {
        self.pushed.iter().filter(|(_, ends)| **ends).map(|(rank, _)| *rank).collect()
    }

    /// Pushes our stdin to those who are to have it, for as long as there is some.
    pub fn push(&self, engine: &Engine, nspace: &Nspace) -> Result<(), Failure> {
        if self.pushed.is_empty() {
            return Ok(());
        }
        let procs = |ranks: &mut dyn Iterator<Item = &Rank>| -> Vec<Proc> {
            ranks.map(|rank| Proc { nspace: nspace.clone(), rank: *rank }).collect()
        };
        let ends: Vec<Proc> = procs(&mut self.pushed.iter().filter(|(_, ends)| **ends).map(|(rank, _)| rank));
        let complete = |targets| Push {
            // Some may have ended by then.
            directives: vec![Info::new(key::PMIX_IOF_COMPLETE, true), Info::new(key::IOF_PARTIAL, true)],
            ..Push::new(targets)
        };
        let attach = || engine.attach("iof run", Grant::Never).map_err(Failure::running);
        let everybody = procs(&mut self.pushed.keys());
        let at_once = ends.len() == everybody.len();
        let push = if at_once {
            complete(everybody)
        } else {
            Push { directives: vec![Info::new(key::IOF_PARTIAL, true)], ..Push::new(everybody) }
        };
        // Before a rank can have ended.
        let mut then = (!at_once && !ends.is_empty()).then(attach).transpose()?;
        let pusher = match Pusher::start(attach()?, &push, io::stdin(), report_wait) {
            Ok(pusher) => pusher,
            // All have ended, or closed their stdin, already.
            Err(PushError::Request(_)) => return Ok(()),
            Err(error) => return Err(Failure::running(error)),
        };
        let end = move || {
            report(pusher.join());
            if let Some(tool) = &mut then {
                report(tool.push(&complete(ends), &[], |_: &SlowTargets| {}));
            }
        };
        // Ends with the process at the latest.
        let thread = thread::Builder::new().name("iof-stdin".into()).spawn(end);
        thread.map(drop).map_err(|error| Failure::running(PushError::Thread(error)))
    }
}

/// Says what a user should know of our stdin: not that ranks have ended, which is no news, nor that
/// the job has.
fn report(pushed: Result<PushReport, PushError>) {
    match pushed {
        Ok(report) => {
            for PartialDelivery { target, delivered, cause } in report.partial {
                if let PartialCause::Failed(_) = cause {
                    print_message(format_args!(
                        "rank {} got {delivered} bytes of stdin: it {cause}",
                        target.rank
                    ));
                }
            }
        }
        Err(PushError::Request(_)) => {}
        Err(error) => print_message(format_args!("stdin: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(stdin: Option<&str>, open: Option<&str>, file: bool, nprocs: u64) -> Result<Plan, String> {
        let args = StdinArgs {
            stdin: stdin.map(|text| ranks_or_none(text).unwrap()),
            stdin_open: open.map(|text| ranks(text).unwrap()),
            stdin_file: file.then(|| "data".into()),
        };
        args.plan(nprocs).map_err(|failure| match failure {
            Failure::Usage(message) => message,
            _ => panic!("not the user's fault"),
        })
    }

    /// What the ranks have, and which of them are pushed our stdin, with its end.
    type Planned = (Vec<(u32, char)>, Vec<(u32, bool)>);

    fn planned(stdin: Option<&str>, open: Option<&str>, file: bool) -> Planned {
        let Plan { ranks, pushed } = plan(stdin, open, file, 3).unwrap();
        let letter = |stdin: &Stdin| match stdin {
            Stdin::Inherit => 'i',
            Stdin::Null => 'n',
            Stdin::Pipe => 'p',
            Stdin::File(_) => 'f',
        };
        let ranks = ranks.iter().map(|(rank, stdin)| (rank.0, letter(stdin))).collect();
        (ranks, pushed.into_iter().map(|(rank, ends)| (rank.0, ends)).collect())
    }

    #[test]
    fn rank_0_has_our_own_stdin_unless_it_is_left_open() {
        assert_eq!(planned(None, None, false), (vec![(0, 'i')], vec![]));
        assert_eq!(planned(None, Some("1"), false), (vec![(0, 'i'), (1, 'p')], vec![]));
        assert_eq!(planned(None, Some("0"), false), (vec![(0, 'p')], vec![]));
        assert_eq!(planned(Some("none"), None, false), (vec![], vec![]));
        assert_eq!(planned(Some("2"), None, false), (vec![(2, 'i')], vec![]));
    }

    #[test]
    fn several_ranks_are_pushed_our_stdin_and_end_with_it_unless_they_are_left_open() {
        assert_eq!(planned(Some("0,2"), None, false), (vec![(0, 'p'), (2, 'p')], vec![(0, true), (2, true)]));
        assert_eq!(planned(Some("0"), Some("0"), false), (vec![(0, 'p')], vec![(0, false)]));
        let (_, pushed) = planned(Some("all"), Some("1"), false);
        assert_eq!(pushed, [(0, true), (1, false), (2, true)]);
        assert_eq!(plan(Some("all"), None, false, 1).unwrap().inherits(), Some(Rank(0)));
    }

    #[test]
    fn a_file_is_for_all_or_those_who_are_named_and_not_for_open_ones() {
        assert_eq!(planned(None, None, true).0, [(0, 'f'), (1, 'f'), (2, 'f')]);
        assert_eq!(planned(Some("1"), None, true).0, [(1, 'f')]);
        assert_eq!(planned(None, Some("1"), true).0, [(0, 'f'), (1, 'p'), (2, 'f')]);
        assert!(plan(Some("none"), None, true, 3).is_err());
        assert!(plan(Some("1"), Some("1"), true, 3).is_err());
    }

    #[test]
    fn ranks_that_the_job_does_not_have_are_refused() {
        assert!(plan(Some("3"), None, false, 3).is_err_and(|message| message.contains("no rank 3")));
        assert!(plan(None, Some("0,7"), false, 3).is_err_and(|message| message.contains("no rank 7")));
    }
}
