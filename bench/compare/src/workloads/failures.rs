//! Cases that some launchers are known to fail. All subjects run them.

use std::time::Duration;

use super::{Outcome, Workload, boxed};
use crate::error::JobError;
use crate::job::{self, Sandbox, WholeRun};
use crate::line::LineCounts;
use crate::output::{ReaderOptions, Received, Sink};
use crate::sample::{Sample, Verdict};
use crate::scale::Scale;
use crate::subjects::{Launch, Subject};

/// The time limit of a case, after which it counts as hung. A quick run has the same limit, because
/// some launchers take two seconds to end.
const LIMIT: Duration = Duration::from_secs(8);
/// The number of tries in a round for a case that does not fail every time.
const TRIES: u64 = 4;
/// The length of the long line, in bytes.
const LONG: usize = 10_000_000;
/// The number of short lines.
const SHORT: usize = 100_000;
/// The bytes that a rank writes before it is killed.
const BEFORE: usize = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Ranks end while others are being started.
    EndingAtOnce,
    /// A rank writes many tagged lines of one character.
    ShortLines,
    /// A rank writes a tagged line that is longer than any buffer.
    LongLine,
    /// A child of a rank writes after the rank has ended.
    Grandchild,
    /// The last line of a rank has no newline.
    Unended,
    /// A rank writes and is killed.
    Killed,
}

/// A case, and the scale at which it runs.
struct Trial {
    failure: Failure,
    scale: Scale,
}

/// Returns the workloads of this family.
pub fn all(scale: Scale) -> Vec<Box<dyn Workload>> {
    use Failure::{EndingAtOnce, Grandchild, Killed, LongLine, ShortLines, Unended};
    [EndingAtOnce, ShortLines, LongLine, Grandchild, Unended, Killed]
        .map(|failure| boxed(Trial { failure, scale }))
        .into()
}

impl Workload for Trial {
    fn family(&self) -> String {
        match self.failure {
            Failure::EndingAtOnce => "ranks that end at once".to_owned(),
            Failure::ShortLines => format!("{SHORT} tagged lines of one character"),
            Failure::LongLine => format!("a tagged line of {} MB", LONG / 1_000_000),
            Failure::Grandchild => "a line of a rank's child after the rank's end".to_owned(),
            Failure::Unended => "a last line without a newline".to_owned(),
            Failure::Killed => format!("{} MB of a rank that is killed then", BEFORE / 1_000_000),
        }
    }

    fn size(&self) -> (u32, &'static str) {
        (if self.failure == Failure::EndingAtOnce { 64 } else { 1 }, "rank")
    }

    fn run(&self, subject: &dyn Subject, sandbox: &Sandbox) -> Option<Outcome> {
        let script = match self.failure {
            Failure::EndingAtOnce => "exit 0".to_owned(),
            Failure::ShortLines => format!("yes a | head -n {SHORT}"),
            Failure::LongLine => format!("head -c {LONG} /dev/zero | tr '\\0' x; echo"),
            Failure::Grandchild => "(sleep 1; echo late) & echo early".to_owned(),
            Failure::Unended => "echo early; printf last".to_owned(),
            Failure::Killed => format!("yes | head -c {BEFORE}; kill -KILL $$"),
        };
        let command = ["sh", "-c", &script].map(str::to_owned);
        let tagged = matches!(self.failure, Failure::ShortLines | Failure::LongLine);
        let ranks = self.size().0;
        let launch = Launch { tagged, ..Launch::new(sandbox.path(), ranks, &command) };
        let tries = if self.failure == Failure::EndingAtOnce { self.scale.part(TRIES) } else { 1 };
        let mut verdict = Verdict::default();
        for _ in 0..tries {
            let launcher = subject.launch(&launch)?;
            match job::run_whole(sandbox, launcher, keeping(), LIMIT) {
                Ok(whole) if !whole.status.success() && self.failure != Failure::Killed => {
                    verdict.add_problem(&JobError::failed(whole.status.to_string()).to_string());
                }
                Ok(WholeRun { received: Received { kept: bytes, .. }, .. }) => {
                    let tags = if tagged { [subject.tag(0), subject.tag(1)] } else { Default::default() };
                    self.failure.judge(&bytes, &tags, &mut verdict);
                }
                Err(error) => verdict.add_problem(&error.to_string()),
            }
        }
        Some(Ok(Sample { figures: Vec::new(), verdict }))
    }
}

/// Returns a destination that is read without delay and keeps the bytes.
fn keeping() -> Sink {
    Sink::Pipe(Box::new(ReaderOptions { keep: true, ..ReaderOptions::default() }))
}

impl Failure {
    /// Records in `verdict` what is wrong with the output of one rank, which has one of these tags.
    fn judge(self, bytes: &[u8], tags: &[String; 2], verdict: &mut Verdict) {
        let is = |line: &[u8], text: &[u8]| {
            tags.iter().any(|tag| line.strip_prefix(tag.as_bytes()).is_some_and(|rest| rest == text))
        };
        match self {
            Failure::EndingAtOnce => {}
            Failure::ShortLines => {
                let lines = || bytes.split_inclusive(|byte| *byte == b'\n');
                let whole = lines().filter(|line| is(line, b"a\n")).count();
                let found =
                    LineCounts { written: SHORT as u64, whole: whole as u64, ..LineCounts::default() };
                verdict.lines.add(&LineCounts { cut: (lines().count() - whole) as u64, ..found });
            }
            Failure::LongLine => {
                let line = [&vec![b'x'; LONG][..], b"\n"].concat();
                if !is(bytes, &line) {
                    let more = bytes.len() as i64 - line.len() as i64 - tags[0].len() as i64;
                    verdict.add_problem(&format!("the line is another, by {more} bytes"));
                }
            }
            Failure::Killed => {
                let came = bytes.iter().zip(b"y\n".iter().cycle()).take_while(|(is, was)| is == was).count();
                if came < BEFORE {
                    verdict.add_problem(&format!("{} bytes lost", BEFORE - came));
                }
                if bytes.len() > came {
                    verdict.add_problem(&format!("{} bytes more", bytes.len() - came));
                }
            }
            Failure::Grandchild => expect(bytes, b"early\nlate\n", verdict),
            Failure::Unended => expect(bytes, b"early\nlast", verdict),
        }
    }
}

/// Records the bytes in `verdict` if they differ from the expected ones.
fn expect(bytes: &[u8], all: &[u8], verdict: &mut Verdict) {
    if bytes != all {
        verdict.add_problem(&format!("only {:?}", String::from_utf8_lossy(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(failure: Failure, bytes: &[u8]) -> String {
        let mut verdict = Verdict::default();
        failure.judge(bytes, &["[0] ".to_owned(), "[1] ".to_owned()], &mut verdict);
        verdict.to_string()
    }

    #[test]
    fn short_lines_are_correct_if_each_has_its_tag() {
        let right = "[0] a\n".repeat(SHORT);
        assert_eq!(judged(Failure::ShortLines, right.as_bytes()), "all of 100000 lines whole");
        let wrong = right.replacen("[0] a\n[0] a\n", "[0] a\na\n", 1);
        assert_eq!(
            judged(Failure::ShortLines, wrong.as_bytes()),
            "of 100000 lines 1 not whole, 1 pieces cut"
        );
    }

    #[test]
    fn a_long_line_is_correct_if_it_has_exactly_one_tag() {
        let right = format!("[0] {}\n", "x".repeat(LONG));
        assert_eq!(judged(Failure::LongLine, right.as_bytes()), "nothing wrong");
        let wrong = right.replacen("xx", "x[0] x", 1);
        assert_eq!(judged(Failure::LongLine, wrong.as_bytes()), "the line is another, by 4 bytes");
    }

    #[test]
    fn the_output_of_a_killed_rank_must_arrive_and_nothing_else() {
        let right = "y\n".repeat(BEFORE / 2);
        assert_eq!(judged(Failure::Killed, right.as_bytes()), "nothing wrong");
        assert_eq!(judged(Failure::Killed, &right.as_bytes()[4..]), "4 bytes lost");
        assert_eq!(judged(Failure::Killed, format!("{right}killed").as_bytes()), "6 bytes more");
    }

    #[test]
    fn a_late_line_and_a_line_without_newline_must_arrive() {
        assert_eq!(judged(Failure::Unended, b"early\n"), "only \"early\\n\"");
        assert_eq!(judged(Failure::Unended, b"early\nlast"), "nothing wrong");
        assert_eq!(judged(Failure::Grandchild, b"early\n"), "only \"early\\n\"");
        assert_eq!(judged(Failure::Grandchild, b"early\nlate\n"), "nothing wrong");
    }
}
