//! The options of `iof pull`.

use std::time::Duration;

use clap::Args;
use iof_output::PrintReport;
use iof_proto::{Channels, Nspace};

use crate::error::Failure;
use crate::options::engine::EngineArgs;
use crate::options::position::PositionArgs;
use crate::options::values::{CHANNELS, Ranks, duration, ranks};
use crate::outputs::file_args::OpenMode;
use crate::outputs::output::{OutputArgs, Outputs};
use crate::reports::objects::print_job_end;

#[derive(Args)]
pub struct PullArgs {
    /// Jobs to pull, by name or pattern such as 'train-*'
    ///
    /// Of several jobs, also those are pulled that begin while others run, and each line is tagged with
    /// its job. The command ends when all have ended. * stands for any text, ? for a character.
    #[arg(value_name = "JOB", conflicts_with_all = ["nspace", "server", "system", "session"])]
    jobs: Vec<Nspace>,

    #[command(flatten)]
    pub engine: EngineArgs,

    /// Pull all jobs of this user on this node
    #[arg(long, conflicts_with_all = ["jobs", "nspace", "server", "system", "session"])]
    all: bool,

    /// After the end of a job, wait for its next run
    ///
    /// With --wait=DURATION, for this time, otherwise without limit.
    #[arg(long, conflicts_with = "no_follow")]
    pub persistent: bool,

    /// Wait for a job that begins later
    ///
    /// Without this option, a job that does not exist is an error. With a time, that is so after it. A
    /// job that ends within a few milliseconds may be missed.
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1, require_equals = true)]
    pub wait: Option<Option<Duration>>,

    /// Pull these ranks, such as 0,3-5
    ///
    /// Other ranks are neither shown nor written to files. In contrast, --ranks limits only what is
    /// shown.
    #[arg(long, value_name = "LIST|all", default_value = "all", value_parser = ranks, allow_negative_numbers = true)]
    pub rank: Ranks,

    /// Pull these channels, such as stdout,stderr
    ///
    /// Besides these there is stddiag, PMIx's channel for diagnostics. By default all are pulled.
    #[arg(long, value_name = "LIST", value_parser = CHANNELS, hide_possible_values = true)]
    pub channel: Option<Channels>,

    /// Follow the output until its end, as by default
    #[arg(short, long, conflicts_with = "no_follow")]
    follow: bool,

    /// Show when each line was read
    ///
    /// The same as --output timestamp=rfc3339.
    #[arg(short, long, conflicts_with = "label")]
    pub timestamps: bool,

    #[command(flatten)]
    pub part: PositionArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl PullArgs {
    /// Returns the names and patterns of the jobs that are selected by name.
    pub fn names(&self) -> Result<Vec<Nspace>, Failure> {
        if self.all {
            return Ok(vec![Nspace::new("*").map_err(Failure::usage)?]);
        }
        let mut names: Vec<Nspace> = self.jobs.iter().chain(&self.engine.nspace).cloned().collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() && self.persistent {
            return Err(Failure::usage("--persistent needs the name of a job, or --all"));
        }
        Ok(names)
    }

    /// Returns whether these names stand for several jobs.
    pub fn is_several(&self, names: &[Nspace]) -> bool {
        names.len() > 1 || self.engine.nspace.is_none() && names.iter().any(is_pattern)
    }

    /// Prints an object for the end of each job whose selected output is written, as `report` tells, if the output is
    /// JSON.
    pub fn print_job_ends<'n>(
        &self,
        jobs: impl Iterator<Item = &'n Nspace>,
        report: &PrintReport,
        is_whole: bool,
    ) {
        if !self.part.no_follow && self.part.until.is_none() {
            jobs.for_each(|job| print_job_end(job, report.exit_codes.get(job).copied().flatten(), is_whole));
        }
    }

    /// Refuses options that apply to one run of one job.
    pub fn check_several(&self, outputs: &Outputs<'_>) -> Result<(), Failure> {
        let PositionArgs { from, resume, .. } = &self.part;
        let one = from.map(|_| "--from").or(resume.as_ref().map(|_| "--resume"));
        if let Some(option) = one {
            return Err(Failure::Usage(format!("{option} applies to one run of one job: name it alone")));
        }
        let overwrites = self.persistent && self.output.files.open_mode == OpenMode::Truncate;
        if outputs.has_files() && (overwrites || !outputs.names_job()) {
            return Err(Failure::usage(
                "files of several jobs or runs would replace each other: give them names with the job, such as \
                 -o out.%j, and with --persistent also --open-mode append",
            ));
        }
        Ok(())
    }
}

/// Returns whether a name stands for several jobs.
pub fn is_pattern(name: &Nspace) -> bool {
    name.as_str().contains(['*', '?'])
}
