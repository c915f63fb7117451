//! The options of `iof run` for failed ranks and for ending a job early.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use iof_engine::KillOnBadExit;

use super::values::{duration, timeout};
use crate::reports::last_lines::MAX_ERROR_LINES;

/// The heading of these options in help.
const ENDING: &str = "Failure options";

#[derive(Args)]
pub struct EndingArgs {
    /// Set whether a failed rank ends the job
    ///
    /// With 1, or without a value, any failed rank ends it; with 0, none does. By default a rank
    /// ends the job if a signal kills it, or if it exits between MPI_Init and MPI_Finalize. The
    /// other ranks get SIGTERM, and SIGKILL after --kill-wait. MPI_Abort always ends the job, with
    /// its exit code.
    #[arg(short = 'K', long, value_name = "0|1", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1", hide_possible_values = true, help_heading = ENDING)]
    kill_on_bad_exit: Option<KillSwitch>,

    /// Wait between SIGTERM and SIGKILL
    ///
    /// When iof ends a job because of --kill-on-bad-exit or --timeout, and when the jobs that its ranks
    /// have started end with it. In seconds, with suffix ms, s, m or h, or as MINUTES:SECONDS.
    #[arg(long, value_name = "DURATION", default_value = "2", value_parser = duration, allow_hyphen_values = true, help_heading = ENDING)]
    pub kill_wait: Duration,

    /// End the job after this time
    ///
    /// In seconds, with suffix ms, s, m or h, or as MINUTES:SECONDS or HOURS:MINUTES:SECONDS. The
    /// ranks that are left are listed on stderr and get SIGTERM, and SIGKILL after --kill-wait. The
    /// exit code is 124.
    #[arg(long, value_name = "DURATION", value_parser = timeout, allow_hyphen_values = true, help_heading = ENDING)]
    pub timeout: Option<Duration>,

    /// Print nothing about failed ranks
    ///
    /// By default, each rank that fails is reported in one line on stderr, up to 10 ranks. Further
    /// ones are counted in one line at the end of the job.
    #[arg(short, long, help_heading = ENDING)]
    pub quiet: bool,

    /// Repeat the last lines of stderr on failure
    ///
    /// This many lines of the rank that failed first, at the end of the job, if the rank is on this node. By
    /// default 10, at most 1000, and 0 for none. Nothing is repeated that went to this terminal, or
    /// is all that the job wrote to stderr, without tags.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(..=MAX_ERROR_LINES), help_heading = ENDING)]
    #[arg(conflicts_with_all = ["quiet", "merge_at_source"], allow_hyphen_values = true)]
    pub error_lines: Option<u32>,
}

/// The value of `--kill-on-bad-exit`.
#[derive(Clone, Copy, ValueEnum)]
enum KillSwitch {
    /// No failure ends the job
    #[value(name = "0")]
    Off,
    /// Any failure ends the job
    #[value(name = "1")]
    On,
}

/// The number of last lines that are repeated by default.
const ERROR_LINES: u32 = 10;

impl EndingArgs {
    /// Returns how many last lines of a failed rank are repeated.
    pub fn error_lines(&self) -> u32 {
        if self.quiet { 0 } else { self.error_lines.unwrap_or(ERROR_LINES) }
    }

    /// Returns the failures that end the job.
    pub fn kill_on_bad_exit(&self) -> KillOnBadExit {
        match self.kill_on_bad_exit {
            None => KillOnBadExit::Signal,
            Some(KillSwitch::Off) => KillOnBadExit::Never,
            Some(KillSwitch::On) => KillOnBadExit::Always,
        }
    }
}
