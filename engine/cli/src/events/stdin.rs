//! The stdin of the ranks of `iof run`, and the push of the command's own stdin to them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use clap::Args;
use iof_engine::{Engine, Grant, Stdin};
use iof_proto::directive::key;
use iof_proto::{Info, Nspace, PartialCause, PartialDelivery, Proc, PushReport, Rank, SlowTargets, Status};
use iof_tool::{Push, PushError, Pusher, RequestError};

use crate::commands::push::report_wait;
use crate::error::Failure;
use crate::options::values::{Ranks, ranks};
use crate::reports::exits::no_such_rank;
use crate::terminal::message::print_message;

/// The heading of these options in help.
const STDIN: &str = "Stdin options";

/// The options that set the stdin of each rank.
#[derive(Args)]
pub struct StdinArgs {
    /// Give the stdin of iof to these ranks [default: 0]
    ///
    /// One rank inherits it; each of several ranks receives a copy of every byte. With
    /// --stdin-file, these ranks read the file instead, and the default is all ranks without
    /// --stdin-open.
    #[arg(long, help_heading = STDIN, value_name = "LIST|all|none", value_parser = ranks_or_none, allow_negative_numbers = true)]
    stdin: Option<Ranks>,

    /// Leave stdin of these ranks open for `iof push`
    ///
    /// Such a rank receives the stdin of iof only if --stdin lists it, too.
    #[arg(long, help_heading = STDIN, value_name = "LIST|all", value_parser = ranks, allow_negative_numbers = true)]
    stdin_open: Option<Ranks>,

    /// Let the ranks read this file as stdin
    ///
    /// Each rank opens the file itself. No rank gets the stdin of iof.
    #[arg(long, help_heading = STDIN, value_name = "PATH")]
    stdin_file: Option<PathBuf>,
}

fn ranks_or_none(text: &str) -> Result<Ranks, String> {
    if text == "none" { Ok(Ranks(Vec::new())) } else { ranks(text) }
}

/// The stdin of each rank, and the ranks to push the command's own stdin to.
pub struct StdinPlan {
    pub ranks: BTreeMap<Rank, Stdin>,
    /// Ranks to push the command's stdin to; `true` if its end closes the stdin of the rank.
    pushed: BTreeMap<Rank, bool>,
}

/// The fate of the push of the command's own stdin.
pub enum StdinEvent {
    /// The stdin could not be read to its end, or a rank could not be given all of it, as a message has
    /// told.
    Failed,
    /// The push is over: the stdin has ended, or no rank takes more of it.
    Over,
}

impl StdinArgs {
    /// Plans the stdin of a job with `nprocs` ranks.
    pub fn plan(&self, nprocs: u64) -> Result<StdinPlan, Failure> {
        let all: BTreeSet<Rank> = (0..).take_while(|rank| u64::from(*rank) < nprocs).map(Rank).collect();
        let checked = |ranks: &Ranks| match ranks.0.as_slice() {
            [Rank::WILDCARD] => Ok(all.clone()),
            listed => match listed.iter().find(|rank| !all.contains(rank)) {
                Some(rank) => Err(no_such_rank(*rank, "for stdin", nprocs)),
                None => Ok(listed.iter().copied().collect()),
            },
        };
        let open = self.stdin_open.as_ref().map(checked).transpose()?.unwrap_or_default();
        let targets = match (&self.stdin, &self.stdin_file) {
            (Some(ranks), _) => checked(ranks)?,
            (None, Some(_)) => all.difference(&open).copied().collect(),
            (None, None) => BTreeSet::from([Rank(0)]).difference(&open).copied().collect(),
        };
        let mut plan = StdinPlan { ranks: BTreeMap::new(), pushed: BTreeMap::new() };
        plan.ranks.extend(open.iter().map(|rank| (*rank, Stdin::Pipe)));
        let only = targets.first().filter(|_| targets.len() == 1);
        match (&self.stdin_file, only) {
            (Some(path), _) if path == Path::new("-") => {
                return Err(Failure::usage(
                    "--stdin-file takes the path of a file: for the stdin of iof, write --stdin with the ranks",
                ));
            }
            (Some(_), _) if targets.is_empty() => {
                return Err(Failure::usage("--stdin-file has no ranks to read it: name them with --stdin"));
            }
            (Some(path), _) => {
                if let Some(rank) = targets.intersection(&open).next() {
                    return Err(Failure::usage(format!(
                        "rank {rank} cannot have both --stdin-file and --stdin-open: choose one"
                    )));
                }
                plan.ranks.extend(targets.into_iter().map(|rank| (rank, Stdin::File(path.clone()))));
            }
            (None, Some(rank)) if !open.contains(rank) => {
                plan.ranks.insert(*rank, Stdin::Inherit);
            }
            (None, _) => {
                plan.ranks.extend(targets.iter().map(|rank| (*rank, Stdin::Pipe)));
                plan.pushed = targets.into_iter().map(|rank| (rank, !open.contains(&rank))).collect();
            }
        }
        Ok(plan)
    }
}

impl StdinPlan {
    /// Returns the same plan for ranks on other nodes. The rank that would inherit the command's
    /// stdin receives what is pushed, through a pipe unless it has the terminal `typed`.
    pub fn over_nodes(mut self, typed: Option<Rank>) -> StdinPlan {
        if let Some(rank) = self.inherits() {
            self.pushed.insert(rank, true);
            if typed.is_none() {
                self.ranks.insert(rank, Stdin::Pipe);
            }
        }
        self
    }

    /// Returns the rank that inherits the command's stdin.
    pub fn inherits(&self) -> Option<Rank> {
        self.ranks.iter().find(|(_, stdin)| **stdin == Stdin::Inherit).map(|(rank, _)| *rank)
    }

    /// Returns the ranks that receive the command's stdin through a pipe and are not open for other
    /// pushes.
    pub fn own(&self) -> BTreeSet<Rank> {
        self.pushed.iter().filter(|(_, ends)| **ends).map(|(rank, _)| *rank).collect()
    }

    /// Starts to push the command's stdin to its ranks, until the end of the input, and calls
    /// `on_event` at the end. If the push fails, this is also called before the ranks can end
    /// because of that.
    pub fn push(
        &self,
        engine: &Engine,
        nspace: &Nspace,
        on_event: impl Fn(StdinEvent) + Send + 'static,
    ) -> Result<(), Failure> {
        if self.pushed.is_empty() {
            return Ok(());
        }
        let proc = |rank: &Rank| Proc { nspace: nspace.clone(), rank: *rank };
        let targets: Vec<Proc> = self.pushed.keys().map(proc).collect();
        let closed: Vec<Proc> = self.own().iter().map(proc).collect();
        let closes_all = closed.len() == targets.len();
        // Some ranks may have ended by the time of a push.
        let partial = vec![Info::new(key::IOF_PARTIAL, true)];
        let complete = [vec![Info::new(key::PMIX_IOF_COMPLETE, true)], partial.clone()].concat();
        let directives = if closes_all { complete.clone() } else { partial };
        let attach = || engine.attach("iof run", Grant::Never).map_err(Failure::running);
        // Attaches before a rank can end.
        let mut closer = (!closes_all && !closed.is_empty()).then(attach).transpose()?;
        let push = Push { targets, directives };
        let pusher = match Pusher::start(attach()?, &push, io::stdin(), report_wait) {
            Ok(pusher) => pusher,
            // All ranks have already ended or closed their stdin.
            Err(PushError::Request(RequestError::Denied(failure)))
                if failure.status != Status::ERR_OUT_OF_RESOURCE =>
            {
                on_event(StdinEvent::Over);
                return Ok(());
            }
            Err(error) => return Err(Failure::Running(format!("cannot push stdin: {error}"))),
        };
        let end = move || {
            let result = pusher.join_with(|error| match error {
                // A rank or a job that has ended is not an error.
                PushError::Request(_) => {}
                error => {
                    print_message(format_args!("stdin: {error}"));
                    on_event(StdinEvent::Failed);
                }
            });
            if result.is_ok_and(|report| report_failed(&report)) {
                on_event(StdinEvent::Failed);
            }
            on_event(StdinEvent::Over);
            if let Some(tool) = &mut closer {
                // Fails if the ranks have ended.
                let _ = tool.push(&Push { targets: closed, directives: complete }, &[], |_: &SlowTargets| {});
            }
        };
        // The thread ends with the process at the latest.
        let thread = thread::Builder::new().name("iof-stdin".into()).spawn(end);
        thread.map(drop).map_err(|error| Failure::running(PushError::Thread(error)))
    }
}

/// Reports the ranks that did not receive all bytes, except those that have ended. Returns whether there
/// are any.
fn report_failed(report: &PushReport) -> bool {
    let failed = |partial: &&PartialDelivery| {
        matches!(partial.cause, PartialCause::Failed(_) | PartialCause::Refused(_))
    };
    let failed = report.partial.iter().filter(failed);
    for PartialDelivery { target, delivered, cause } in failed.clone() {
        print_message(format_args!("rank {} got {delivered} bytes of stdin: it {cause}", target.rank));
    }
    failed.count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(stdin: Option<&str>, open: Option<&str>, file: bool, nprocs: u64) -> Result<StdinPlan, String> {
        let args = StdinArgs {
            stdin: stdin.map(|text| ranks_or_none(text).unwrap()),
            stdin_open: open.map(|text| ranks(text).unwrap()),
            stdin_file: file.then(|| "data".into()),
        };
        args.plan(nprocs).map_err(|failure| match failure {
            Failure::Usage(message) => message,
            _ => panic!("expected a usage error"),
        })
    }

    /// The kind of stdin of each rank, and the ranks to push to, with `true` if the push closes
    /// them.
    type Planned = (Vec<(u32, char)>, Vec<(u32, bool)>);

    fn planned(stdin: Option<&str>, open: Option<&str>, file: bool) -> Planned {
        let StdinPlan { ranks, pushed } = plan(stdin, open, file, 3).unwrap();
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
    fn rank_0_inherits_stdin_unless_it_is_left_open() {
        assert_eq!(planned(None, None, false), (vec![(0, 'i')], vec![]));
        assert_eq!(planned(None, Some("1"), false), (vec![(0, 'i'), (1, 'p')], vec![]));
        assert_eq!(planned(None, Some("0"), false), (vec![(0, 'p')], vec![]));
        assert_eq!(planned(Some("none"), None, false), (vec![], vec![]));
        assert_eq!(planned(Some("2"), None, false), (vec![(2, 'i')], vec![]));
    }

    #[test]
    fn stdin_is_pushed_to_several_ranks_and_closes_those_not_left_open() {
        assert_eq!(planned(Some("0,2"), None, false), (vec![(0, 'p'), (2, 'p')], vec![(0, true), (2, true)]));
        assert_eq!(planned(Some("0"), Some("0"), false), (vec![(0, 'p')], vec![(0, false)]));
        let (_, pushed) = planned(Some("all"), Some("1"), false);
        assert_eq!(pushed, [(0, true), (1, false), (2, true)]);
        assert_eq!(plan(Some("all"), None, false, 1).unwrap().inherits(), Some(Rank(0)));
    }

    #[test]
    fn a_stdin_file_is_for_all_or_listed_ranks_but_not_for_open_ones() {
        assert_eq!(planned(None, None, true).0, [(0, 'f'), (1, 'f'), (2, 'f')]);
        assert_eq!(planned(Some("1"), None, true).0, [(1, 'f')]);
        assert_eq!(planned(None, Some("1"), true).0, [(0, 'f'), (1, 'p'), (2, 'f')]);
        assert!(plan(Some("none"), None, true, 3).is_err());
        assert!(plan(Some("1"), Some("1"), true, 3).is_err());
    }

    #[test]
    fn ranks_that_the_job_does_not_have_are_rejected() {
        assert!(plan(Some("3"), None, false, 3).is_err_and(|message| message.contains("invalid rank 3")));
        assert!(plan(None, Some("0,7"), false, 3).is_err_and(|message| message.contains("invalid rank 7")));
    }
}
