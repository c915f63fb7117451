//! The errors of a job.

use std::fmt;
use std::time::Duration;

/// The characters of a failed launcher's stderr that are shown.
const SHOWN: usize = 120;

/// The error of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobError {
    /// The job made no progress: the stage, and the time limit.
    Hung(&'static str, Duration),
    /// The job ended too early or with an error: how, and the end of its stderr.
    Failed(String, String),
}

impl JobError {
    /// Returns the error of a job that ended too early or with an error.
    pub fn failed(how: String) -> JobError {
        JobError::Failed(how, String::new())
    }

    /// Adds the end of the launcher's stderr, on one line. Leaves a job that hung as it is.
    pub fn with(self, stderr: &[u8]) -> JobError {
        let JobError::Failed(how, _) = self else { return self };
        let text = String::from_utf8_lossy(stderr);
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let skipped = line.chars().count().saturating_sub(SHOWN);
        JobError::Failed(how, line.chars().skip(skipped).collect())
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::Hung("", limit) => write!(f, "hung, killed after {limit:?}"),
            JobError::Hung(stage, limit) => write!(f, "hung {stage}, killed after {limit:?}"),
            JobError::Failed(how, stderr) if stderr.is_empty() => write!(f, "failed: {how}"),
            JobError::Failed(how, stderr) => write!(f, "failed: {how}: {stderr}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_end_of_stderr_on_one_line() {
        let stderr = format!("{}\nthe\tend\n", "x".repeat(1000));
        let text = JobError::failed("exit status: 1".to_owned()).with(stderr.as_bytes()).to_string();
        assert!(text.starts_with("failed: exit status: 1: xxx") && text.ends_with("xxx the end"), "{text}");
        let hung = JobError::Hung("at work", Duration::from_secs(9)).with(b"noise");
        assert_eq!(hung.to_string(), "hung at work, killed after 9s");
    }
}
