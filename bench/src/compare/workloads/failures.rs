//! What some launchers are known to fail at, and all are tried with.

use std::time::Duration;

use super::{Outcome, Work, boxed};
use crate::compare::job::{self, Site, Whole};
use crate::compare::line::Found;
use crate::compare::output::{Consumer, Out, Taken};
use crate::compare::sample::{Sample, Verdict};
use crate::compare::scale::Scale;
use crate::compare::systems::{Launch, System};
use crate::compare::trouble::Trouble;

/// What takes longer has stood still; in a quick run as well, as some take two seconds for what they do in the end.
const LIMIT: Duration = Duration::from_secs(8);
/// What is tried in a round where it does not fail each time.
const TRIES: u64 = 4;
/// Bytes of a long line, number of short ones.
const LONG: usize = 10_000_000;
const SHORT: usize = 100_000;
/// Bytes that a rank writes before it is killed.
const BEFORE: usize = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Ranks that end while others are being started.
    EndingAtOnce,
    /// Many tagged lines of one character.
    ShortLines,
    /// A tagged line that is larger than any buffer.
    LongLine,
    /// A child of a rank writes when its rank has ended.
    Grandchild,
    /// A rank's last line has no newline.
    Unended,
    /// A rank writes and is killed.
    Killed,
}

/// One of them, and how it is tried.
struct Trial {
    failure: Failure,
    scale: Scale,
}

/// All that there are.
pub fn all(scale: Scale) -> Vec<Box<dyn Work>> {
    use Failure::{EndingAtOnce, Grandchild, Killed, LongLine, ShortLines, Unended};
    [EndingAtOnce, ShortLines, LongLine, Grandchild, Unended, Killed]
        .map(|failure| boxed(Trial { failure, scale }))
        .into()
}

impl Work for Trial {
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

    fn run(&self, system: &dyn System, site: &Site) -> Option<Outcome> {
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
        let launch = Launch { tagged, ..Launch::new(site.path(), ranks, &command) };
        let tries = if self.failure == Failure::EndingAtOnce { self.scale.part(TRIES) } else { 1 };
        let mut verdict = Verdict::default();
        for _ in 0..tries {
            let launcher = system.launch(&launch)?;
            match job::whole(site, launcher, keeping(), LIMIT) {
                Ok(whole) if !whole.status.success() && self.failure != Failure::Killed => {
                    verdict.note(&Trouble::failed(whole.status.to_string()).to_string());
                }
                Ok(Whole { taken: Taken { kept: bytes, .. }, .. }) => {
                    let tags = if tagged { [system.tag(0), system.tag(1)] } else { Default::default() };
                    self.failure.judge(&bytes, &tags, &mut verdict);
                }
                Err(trouble) => verdict.note(&trouble.to_string()),
            }
        }
        Some(Ok(Sample { figures: Vec::new(), verdict }))
    }
}

/// Read as fast as it comes, and kept.
fn keeping() -> Out {
    Out::Pipe(Box::new(Consumer { keep: true, ..Consumer::default() }))
}

impl Failure {
    /// Notes what is wrong with these bytes of one rank that has one of these tags.
    fn judge(self, bytes: &[u8], tags: &[String; 2], verdict: &mut Verdict) {
        let is = |line: &[u8], text: &[u8]| {
            tags.iter().any(|tag| line.strip_prefix(tag.as_bytes()).is_some_and(|rest| rest == text))
        };
        match self {
            Failure::EndingAtOnce => {}
            Failure::ShortLines => {
                let lines = || bytes.split_inclusive(|byte| *byte == b'\n');
                let whole = lines().filter(|line| is(line, b"a\n")).count();
                let found = Found { written: SHORT as u64, whole: whole as u64, ..Found::default() };
                verdict.lines.add(&Found { cut: (lines().count() - whole) as u64, ..found });
            }
            Failure::LongLine => {
                let line = [&vec![b'x'; LONG][..], b"\n"].concat();
                if !is(bytes, &line) {
                    let more = bytes.len() as i64 - line.len() as i64 - tags[0].len() as i64;
                    verdict.note(&format!("the line is another, by {more} bytes"));
                }
            }
            Failure::Killed => {
                let came = bytes.iter().zip(b"y\n".iter().cycle()).take_while(|(is, was)| is == was).count();
                if came < BEFORE {
                    verdict.note(&format!("{} bytes lost", BEFORE - came));
                }
                if bytes.len() > came {
                    verdict.note(&format!("{} bytes more", bytes.len() - came));
                }
            }
            Failure::Grandchild => expect(bytes, b"early\nlate\n", verdict),
            Failure::Unended => expect(bytes, b"early\nlast", verdict),
        }
    }
}

/// Notes what came if it is anything else.
fn expect(bytes: &[u8], all: &[u8], verdict: &mut Verdict) {
    if bytes != all {
        verdict.note(&format!("only {:?}", String::from_utf8_lossy(bytes)));
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
    fn short_lines_are_right_when_each_has_its_tag() {
        let right = "[0] a\n".repeat(SHORT);
        assert_eq!(judged(Failure::ShortLines, right.as_bytes()), "all of 100000 lines whole");
        let wrong = right.replacen("[0] a\n[0] a\n", "[0] a\na\n", 1);
        assert_eq!(
            judged(Failure::ShortLines, wrong.as_bytes()),
            "of 100000 lines 1 not whole, 1 pieces cut"
        );
    }

    #[test]
    fn a_long_line_is_right_when_it_has_one_tag() {
        let right = format!("[0] {}\n", "x".repeat(LONG));
        assert_eq!(judged(Failure::LongLine, right.as_bytes()), "nothing wrong");
        let wrong = right.replacen("xx", "x[0] x", 1);
        assert_eq!(judged(Failure::LongLine, wrong.as_bytes()), "the line is another, by 4 bytes");
    }

    #[test]
    fn what_a_killed_rank_wrote_must_come_and_nothing_else() {
        let right = "y\n".repeat(BEFORE / 2);
        assert_eq!(judged(Failure::Killed, right.as_bytes()), "nothing wrong");
        assert_eq!(judged(Failure::Killed, &right.as_bytes()[4..]), "4 bytes lost");
        assert_eq!(judged(Failure::Killed, format!("{right}killed").as_bytes()), "6 bytes more");
    }

    #[test]
    fn a_late_line_and_an_unended_one_must_come() {
        assert_eq!(judged(Failure::Unended, b"early\n"), "only \"early\\n\"");
        assert_eq!(judged(Failure::Unended, b"early\nlast"), "nothing wrong");
        assert_eq!(judged(Failure::Grandchild, b"early\n"), "only \"early\\n\"");
        assert_eq!(judged(Failure::Grandchild, b"early\nlate\n"), "nothing wrong");
    }
}
