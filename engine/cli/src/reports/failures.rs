//! The lines of `iof run` about failed ranks: one for each of the first ranks that fail and for the
//! one that ended the job, and one for all others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use iof_engine::{EarlyEnd, EndCause, Exit, JobStatus, NodeLost, RankExit, Signal};
use iof_proto::ranges::listed;
use iof_proto::{Channel, Nspace, Rank};
use nix::libc;
use nix::unistd::gethostname;

use crate::options::values::show_duration;
use crate::reports::exits::{ExitGroups, number_of_ranks};

/// The number of failed ranks that have a line of their own, besides the one that ended the job.
pub const MAX_FAILURE_LINES: usize = 10;

/// The signals whose default action is a core dump, see signal(7).
const DUMPING: [i32; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// The failed ranks of a job, and the lines about them.
pub struct Failures {
    nspace: Nspace,
    host: String,
    /// The job's time limit.
    timeout: Option<Duration>,
    /// The number of lines about one rank so far.
    lines: usize,
    /// The rank with the first of these lines.
    pub first: Option<Rank>,
    /// The failed ranks without a line of their own.
    others: BTreeMap<Rank, RankExit>,
    /// The ranks that failed because of a signal which this command had passed on.
    signalled: ExitGroups,
    early_end: Option<EndCause>,
    /// The ranks that the engine told to end, except those that failed on their own.
    terminated: BTreeSet<Rank>,
    /// The number of these ranks that SIGKILL ended.
    killed: usize,
    /// The nodes that were lost.
    lost: Vec<NodeLost>,
}

impl Failures {
    pub fn new(nspace: Nspace, timeout: Option<Duration>) -> Failures {
        let host = gethostname().map_or_else(|_| "unknown host".into(), |name| name.to_string_lossy().into());
        Failures {
            nspace,
            host,
            timeout,
            lines: 0,
            first: None,
            others: BTreeMap::new(),
            signalled: ExitGroups::default(),
            early_end: None,
            terminated: BTreeSet::new(),
            killed: 0,
            lost: Vec::new(),
        }
    }

    /// Notes the end of a rank. Returns the line about it, if it has one.
    pub fn exited(&mut self, rank: &RankExit) -> Option<String> {
        if let Some(EndCause::Abort { rank: caller, code }) = self.early_end
            && caller == rank.rank
        {
            self.first.get_or_insert(rank.rank);
            return Some(self.abort_line(rank, code));
        }
        if rank.exit.success() {
            return None;
        }
        if rank.requested {
            if self.early_end.is_none() {
                self.signalled.insert(rank.rank, rank.exit);
            } else if rank.exit.signal() == Some(Signal::KILL.number()) {
                self.killed = self.killed.saturating_add(1);
            }
            return None;
        }
        self.terminated.remove(&rank.rank);
        if self.lines >= MAX_FAILURE_LINES {
            self.others.insert(rank.rank, rank.clone());
            return None;
        }
        self.lines = self.lines.saturating_add(1);
        self.first.get_or_insert(rank.rank);
        Some(self.line(rank))
    }

    fn line(&self, rank: &RankExit) -> String {
        format!("{} {}", self.name_of(rank), how_it_ended(rank.exit))
    }

    /// Returns the line about a rank that called `MPI_Abort` with `code`.
    fn abort_line(&self, rank: &RankExit, code: i32) -> String {
        let exit = rank.exit;
        // The call ends the process with its code, unless SIGTERM of the engine is faster.
        let is_usual = exit.code() == code || exit.signal() == Some(Signal::TERM.number());
        let ended = if is_usual { String::new() } else { format!(", and {}", how_it_ended(exit)) };
        format!("{} called MPI_Abort with code {code}{ended}", self.name_of(rank))
    }

    fn name_of(&self, rank: &RankExit) -> String {
        let RankExit { rank, pid, executable, host, .. } = rank;
        let host = host.as_ref().unwrap_or(&self.host);
        format!("job {}: rank {rank} ({executable}, pid {pid} on {host})", self.nspace)
    }

    /// Notes that the engine ends the job early. Returns the line about it, if it has one now.
    pub fn ends_early(&mut self, end: &EarlyEnd) -> Option<String> {
        self.early_end = Some(end.cause);
        self.terminated = end.left.iter().copied().collect();
        match end.cause {
            EndCause::BadExit(rank) => self.others.remove(&rank).map(|exit| self.line(&exit)),
            // The line about the rank follows its output.
            EndCause::Abort { .. } => None,
            EndCause::Uninitialized(rank) => Some(format!(
                "job {}: rank {rank} ended without MPI_Init, for which the other ranks wait (see \
                 --kill-on-bad-exit)",
                self.nspace
            )),
            EndCause::Timeout => Some(self.timeout_line()),
            // A line has told the reason.
            EndCause::Exchange(_) | EndCause::ParentEnded | EndCause::Embedder => None,
        }
    }

    /// Notes that a node is lost. Returns the line about it.
    pub fn node_lost(&mut self, lost: NodeLost) -> String {
        let NodeLost { host, reason, ranks, delivered, missing, totals } = &lost;
        let ranks = match ranks.len() {
            0 => String::new(),
            1 => format!(" with rank {}", listed(ranks)),
            _ => format!(" with ranks {}", listed(ranks)),
        };
        let totals = match totals {
            Some(time) => {
                format!("what the ranks wrote in the last {:.1} s is unknown", time.elapsed().as_secs_f64())
            }
            None => "what else the ranks wrote is unknown".into(),
        };
        let line = format!(
            "job {}: node {host} is lost{ranks}: {reason}; of its unfinished output {delivered} bytes arrived, at least \
             {missing} are missing, and {totals}",
            self.nspace
        );
        self.lost.push(lost);
        line
    }

    /// Returns the reason why the end of this rank ended the job.
    fn bad_exit(&self, rank: Rank) -> String {
        let cause = match self.lost.iter().find(|lost| lost.ranks.contains(&rank)) {
            Some(lost) => format!("node {} was lost", lost.host),
            None => format!("rank {rank} failed"),
        };
        cause + " (see --kill-on-bad-exit)"
    }

    fn timeout_line(&self) -> String {
        let what = match self.terminated.len() {
            0 => "all ranks have exited, but another process holds their output open".into(),
            1 => format!("terminating rank {}", listed(&self.terminated)),
            _ => format!("terminating ranks {}", listed(&self.terminated)),
        };
        let timeout = show_duration(self.timeout.unwrap_or_default());
        format!("job {}: not finished after {timeout} (--timeout): {what}", self.nspace)
    }

    /// Returns the lines about ranks whose output may be incomplete: one for all ranks with the
    /// same channels.
    pub fn cut_off_lines(&self, status: &JobStatus) -> Vec<String> {
        let mut channels: BTreeMap<Rank, Vec<Channel>> = BTreeMap::new();
        for (rank, channel) in &status.cut_off {
            channels.entry(*rank).or_default().push(*channel);
        }
        let mut ranks: BTreeMap<String, BTreeSet<Rank>> = BTreeMap::new();
        for (rank, channels) in channels {
            let names: Vec<String> = channels.iter().map(Channel::to_string).collect();
            ranks.entry(names.join(", ")).or_default().insert(rank);
        }
        let line = |(channels, ranks): (String, BTreeSet<Rank>)| {
            let (noun, holders) = match ranks.len() {
                1 => ("rank", "a process that outlived the rank holds it open"),
                _ => ("ranks", "processes that outlived the ranks hold it open"),
            };
            format!("job {}: {noun} {}: {channels} cut off: {holders}", self.nspace, listed(&ranks))
        };
        ranks.into_iter().map(line).collect()
    }

    /// Returns how a rank ended for the summary, if its exit status does not tell.
    pub fn cause_of(&self, rank: Rank, exit: Exit) -> Option<String> {
        match self.early_end? {
            EndCause::Abort { rank: caller, code } if caller == rank => {
                Some(format!("MPI_Abort with code {code}"))
            }
            // The ranks of a lost node have no known exit status.
            _ if exit == Exit::Unknown || exit.success() => None,
            _ => self.terminated.contains(&rank).then(|| format!("ended by iof ({exit})")),
        }
    }

    /// Returns the lines at the end of the job.
    pub fn closing_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut add = |text: String| lines.push(format!("job {}: {text}", self.nspace));
        let mut others = ExitGroups::default();
        self.others.values().for_each(|rank| others.insert(rank.rank, rank.exit));
        match others.len() {
            0 => {}
            1 => add(format!("1 more rank failed: {others}")),
            more => add(format!("{more} more ranks failed: {others}")),
        }
        let because = match self.early_end {
            Some(EndCause::BadExit(rank)) => Some(self.bad_exit(rank)),
            Some(EndCause::Abort { rank, .. }) => Some(format!("rank {rank} called MPI_Abort")),
            Some(EndCause::Uninitialized(rank)) => Some(format!("rank {rank} did not call MPI_Init")),
            Some(EndCause::Exchange(_)) => Some("its ranks can't exchange values".to_owned()),
            Some(EndCause::ParentEnded) => Some("its parent has ended".to_owned()),
            Some(EndCause::Timeout | EndCause::Embedder) | None => None,
        };
        if let Some(because) = because.filter(|_| !self.terminated.is_empty()) {
            let others = if self.terminated.len() == 1 { "rank" } else { "ranks" };
            let killed =
                if self.killed > 0 { format!(", {} by SIGKILL,", self.killed) } else { String::new() };
            add(format!(
                "terminated {} other {others} ({}){killed} because {because}",
                self.terminated.len(),
                listed(&self.terminated)
            ));
        }
        match self.signalled.len() {
            0 => {}
            ranks => {
                add(format!("terminated {} on request: {}", number_of_ranks(ranks as u64), self.signalled))
            }
        }
        lines
    }
}

fn how_it_ended(exit: Exit) -> String {
    match exit.signal() {
        Some(_) => format!("was killed by {exit}{}", core(exit)),
        None => format!("ended with {exit}"),
    }
}

/// Returns whether the core was dumped, for a signal that dumps it by default.
fn core(exit: Exit) -> &'static str {
    use std::os::unix::process::ExitStatusExt;
    match exit {
        Exit::Status(status) if status.core_dumped() => " (core dumped)",
        _ if exit.signal().is_some_and(|signal| DUMPING.contains(&signal)) => " (no core dump)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn failures() -> Failures {
        let nspace = Nspace::new("demo").unwrap();
        Failures { host: "node1".into(), ..Failures::new(nspace, Some(Duration::from_secs(90))) }
    }

    /// Returns the end of a rank with a status as wait(2) returns it.
    fn ended(rank: u32, status: i32, requested: bool) -> RankExit {
        let exit = Exit::Status(ExitStatus::from_raw(status));
        RankExit {
            rank: Rank(rank),
            exit,
            pid: 77,
            executable: "./solver".into(),
            host: None,
            requested,
            used: None,
        }
    }

    #[test]
    fn a_line_names_the_rank_and_the_cause() {
        let mut failures = failures();
        let mut cause = |status| {
            let line = failures.exited(&ended(3, status, false)).unwrap();
            line.strip_prefix("job demo: rank 3 (./solver, pid 77 on node1) ").unwrap().to_owned()
        };
        assert_eq!(cause(7 << 8), "ended with exit code 7");
        assert_eq!(cause(libc::SIGSEGV | 0x80), "was killed by SIGSEGV (core dumped)");
        assert_eq!(cause(libc::SIGABRT), "was killed by SIGABRT (no core dump)");
        assert_eq!(cause(libc::SIGKILL), "was killed by SIGKILL");
        assert_eq!(failures.exited(&ended(3, 0, false)), None);
        assert!(failures.closing_lines().is_empty());
    }

    #[test]
    fn ten_thousand_failed_ranks_have_a_bounded_number_of_lines() {
        let mut failures = failures();
        let status = |rank| if rank % 1000 == 999 { 1 << 8 } else { libc::SIGSEGV };
        let lines = (0..10_000).filter_map(|rank| failures.exited(&ended(rank, status(rank), false)));
        assert_eq!(lines.count(), MAX_FAILURE_LINES);
        assert_eq!(
            failures.closing_lines(),
            [
                "job demo: 9990 more ranks failed: exit code 1: 10 ranks (999,1999,2999,3999,4999,5999,6999,7999,...), \
              SIGSEGV: 9980 ranks (10-998,1000-1998,2000-2998,3000-3998,4000-4998,5000-5998,6000-6998,7000-7998,...)"
            ]
        );
    }

    #[test]
    fn the_rank_that_ended_the_job_has_a_line_after_ten_others() {
        let mut failures = failures();
        let codes = (0..15).filter_map(|rank| failures.exited(&ended(rank, 1 << 8, false)));
        assert_eq!(codes.count(), MAX_FAILURE_LINES);
        assert_eq!(failures.exited(&ended(15, libc::SIGSEGV | 0x80, false)), None);
        let end = EarlyEnd { cause: EndCause::BadExit(Rank(15)), left: vec![Rank(16)] };
        let line = "job demo: rank 15 (./solver, pid 77 on node1) was killed by SIGSEGV (core dumped)";
        assert_eq!(failures.ends_early(&end), Some(line.into()));
        let others = "job demo: 5 more ranks failed: exit code 1: 5 ranks (10-14)";
        assert_eq!(failures.closing_lines()[0], others);
    }

    #[test]
    fn ranks_that_were_terminated_after_a_failure_have_one_line_together() {
        let mut failures = failures();
        assert!(failures.exited(&ended(1, libc::SIGSEGV, false)).is_some());
        let left = [0, 2, 3, 4].map(Rank).to_vec();
        assert_eq!(failures.ends_early(&EarlyEnd { cause: EndCause::BadExit(Rank(1)), left }), None);
        assert_eq!(failures.exited(&ended(0, libc::SIGTERM, true)), None);
        assert_eq!(failures.exited(&ended(2, libc::SIGKILL, true)), None);
        assert_eq!(failures.exited(&ended(4, 0, false)), None);
        // This one failed on its own.
        assert!(failures.exited(&ended(3, libc::SIGBUS, false)).is_some());
        assert_eq!(
            failures.closing_lines(),
            [
                "job demo: terminated 3 other ranks (0,2,4), 1 by SIGKILL, because rank 1 failed (see --kill-on-bad-exit)"
            ]
        );
    }

    #[test]
    fn an_abort_has_a_line_when_its_caller_has_ended_and_one_about_the_others() {
        let abort = |code| EarlyEnd {
            cause: EndCause::Abort { rank: Rank(1), code },
            left: [0, 2].map(Rank).to_vec(),
        };
        for (code, status, rest) in [
            (7, 7 << 8, "called MPI_Abort with code 7"),
            (0, 0, "called MPI_Abort with code 0"),
            (7, libc::SIGTERM, "called MPI_Abort with code 7"),
            (7, libc::SIGKILL, "called MPI_Abort with code 7, and was killed by SIGKILL"),
        ] {
            let mut failures = failures();
            assert_eq!(failures.ends_early(&abort(code)), None);
            assert_eq!(failures.exited(&ended(0, libc::SIGTERM, true)), None);
            let line = failures.exited(&ended(1, status, false)).unwrap();
            assert_eq!(line, format!("job demo: rank 1 (./solver, pid 77 on node1) {rest}"));
            let others = "job demo: terminated 2 other ranks (0,2) because rank 1 called MPI_Abort";
            assert_eq!(failures.closing_lines(), [others]);
            let cause = |rank| {
                let exit = Exit::Status(ExitStatus::from_raw(libc::SIGTERM));
                failures.cause_of(Rank(rank), exit)
            };
            assert_eq!(cause(1), Some(format!("MPI_Abort with code {code}")));
            assert_eq!([cause(0), cause(3)], [Some("ended by iof (SIGTERM)".into()), None]);
        }
    }

    #[test]
    fn ranks_that_a_passed_on_signal_ended_have_one_line_together() {
        let mut failures = failures();
        for (rank, status) in [(0, libc::SIGINT), (1, libc::SIGINT), (2, 9 << 8)] {
            assert_eq!(failures.exited(&ended(rank, status, true)), None);
        }
        let line = "job demo: terminated 3 ranks on request: exit code 9: 1 rank (2), SIGINT: 2 ranks (0-1)";
        assert_eq!(failures.closing_lines(), [line]);
    }

    #[test]
    fn a_time_limit_is_told_at_once_with_the_ranks_left() {
        let left = |ranks: &[u32]| EarlyEnd {
            cause: EndCause::Timeout,
            left: ranks.iter().copied().map(Rank).collect(),
        };
        let mut failures = failures();
        let mut told = |ranks| {
            let line = failures.ends_early(&left(ranks)).unwrap();
            line.strip_prefix("job demo: not finished after 90s (--timeout): ").unwrap().to_owned()
        };
        assert_eq!(told(&[0, 3, 4, 5]), "terminating ranks 0,3-5");
        assert_eq!(told(&[]), "all ranks have exited, but another process holds their output open");
        assert_eq!(told(&[8]), "terminating rank 8");
        assert_eq!(failures.exited(&ended(8, libc::SIGTERM, true)), None);
        assert!(failures.closing_lines().is_empty());
    }
}
