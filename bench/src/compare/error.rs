//! What can go wrong with a job.

use std::fmt;
use std::time::Duration;

/// Characters of a launcher's stderr that are shown when it failed.
const SHOWN: usize = 120;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It did not come further within a limit: where, which.
    Hung(&'static str, Duration),
    /// It ended too early or badly: how, and what it said.
    Failed(String, String),
}

impl Trouble {
    /// It ended too early or badly.
    pub fn failed(how: String) -> Trouble {
        Trouble::Failed(how, String::new())
    }

    /// The same with the end of what the launcher said, on one line.
    pub fn with(self, said: &[u8]) -> Trouble {
        let Trouble::Failed(how, _) = self else { return self };
        let text = String::from_utf8_lossy(said);
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let skipped = line.chars().count().saturating_sub(SHOWN);
        Trouble::Failed(how, line.chars().skip(skipped).collect())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Hung("", limit) => write!(f, "hung, killed after {limit:?}"),
            Trouble::Hung(stage, limit) => write!(f, "hung {stage}, killed after {limit:?}"),
            Trouble::Failed(how, said) if said.is_empty() => write!(f, "failed: {how}"),
            Trouble::Failed(how, said) => write!(f, "failed: {how}: {said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_last_words_on_one_line() {
        let said = format!("{}\nthe\tend\n", "x".repeat(1000));
        let text = Trouble::failed("exit status: 1".to_owned()).with(said.as_bytes()).to_string();
        assert!(text.starts_with("failed: exit status: 1: xxx") && text.ends_with("xxx the end"), "{text}");
        let hung = Trouble::Hung("at work", Duration::from_secs(9)).with(b"noise");
        assert_eq!(hung.to_string(), "hung at work, killed after 9s");
    }
}
