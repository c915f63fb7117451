//! The account that `iof run` prints at its end: the cost and the result of forwarding.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use iof_engine::{Engine, Grant, Job, Mpi};
use iof_output::{CacheDrops, PrintReport};
use iof_proto::{Channel, ProcInfo};
use iof_remote::{AgentCosts, backend_text, cpu_time};

use crate::commands::attach::{query_procs, query_streams};
use crate::reports::exits::{ExitGroups, exit, number_of_ranks};
use crate::reports::failures::Failures;
use crate::terminal::give_up::Blocked;
use crate::terminal::message::print_message;

/// The account of one job.
pub struct JobAccount {
    /// Time since the start of the command.
    elapsed: Duration,
    backend: String,
    /// User CPU time of this process, without its children.
    user: Duration,
    /// System CPU time of this process, without its children.
    system: Duration,
    /// Bytes that were read from all ranks, by channel.
    channels: BTreeMap<Channel, u64>,
    /// The ranks by exit status, which is unknown for a rank that still runs.
    exits: ExitGroups,
    /// The bytes that are missing because nodes were lost, at least.
    missing: Option<u64>,
    forwarded: Forwarded,
}

/// The account of the bytes that the outputs have written.
pub struct Forwarded {
    /// The sum of the reports of all outputs that were written to the end.
    pub report: PrintReport,
    /// This was all outputs: none failed or was given up.
    pub is_whole: bool,
    /// Set if files are not to stay in the page cache (`--file-cache`).
    pub drops_cache: bool,
}

impl JobAccount {
    /// Queries the engine, and returns the account. Called after the end of the job, so that the
    /// account costs the job nothing.
    pub fn query(
        engine: &Engine,
        elapsed: Duration,
        forwarded: Forwarded,
        failures: &Failures,
    ) -> Result<JobAccount, Box<dyn Error>> {
        let (user, system) = cpu_time()?;
        let mut tool = engine.attach("iof run", Grant::Never)?;
        let (mut channels, mut exits, mut missing) = (BTreeMap::new(), ExitGroups::default(), None);
        for stream in query_streams(&mut tool)? {
            let read: &mut u64 = channels.entry(stream.channel).or_default();
            *read = read.saturating_add(stream.produced);
            missing = stream.missing.map(|more| more.saturating_add(missing.unwrap_or(0))).or(missing);
        }
        for ProcInfo { proc, exit_code, state, .. } in query_procs(&mut tool)? {
            let exit = exit(exit_code, state);
            match failures.cause_of(proc.rank, exit) {
                Some(cause) => exits.insert_cause(proc.rank, cause),
                None => exits.insert(proc.rank, exit),
            }
        }
        let backend = backend_text(engine);
        Ok(JobAccount { elapsed, backend, user, system, channels, exits, missing, forwarded })
    }

    /// Prints the requested parts on stderr.
    pub fn report(&self, timings: bool, summary: bool) {
        if timings {
            self.report_timings();
        }
        if summary {
            print_message(format_args!("summary: {}", self.summary()));
        }
    }

    fn report_timings(&self) {
        print_message(format_args!(
            "timings: {:.3} s, CPU of iof itself {:.3} s user and {:.3} s system",
            self.elapsed.as_secs_f64(),
            self.user.as_secs_f64(),
            self.system.as_secs_f64()
        ));
        print_message(format_args!("timings: backend {}", self.backend));
        let not_counted = self.not_counted();
        for (channel, read) in &self.channels {
            let lost = self.forwarded.report.lost.get(channel).unwrap_or(&0);
            print_message(format_args!("timings: {channel} {read} bytes read, {lost} lost{not_counted}"));
        }
    }

    fn not_counted(&self) -> &'static str {
        if self.forwarded.is_whole { "" } else { ", not counting an output that failed or was given up" }
    }

    fn summary(&self) -> String {
        let PrintReport { written, lost, drops, .. } = &self.forwarded.report;
        let dropped = if self.forwarded.drops_cache { dropped(*drops) } else { String::new() };
        let lost = lost.values().fold(0u64, |sum, lost| sum.saturating_add(*lost));
        let missing = match self.missing {
            None => String::new(),
            Some(missing) => format!(", at least {missing} missing from lost nodes"),
        };
        format!(
            "{} in {:.3} s, {}; {written} bytes forwarded, {lost} lost{missing}{}{dropped}",
            number_of_ranks(self.exits.len() as u64),
            self.elapsed.as_secs_f64(),
            self.exits,
            self.not_counted()
        )
    }
}

/// Returns a text about the effect of `--file-cache drop`.
fn dropped(CacheDrops { bytes, refusals }: CacheDrops) -> String {
    let refused = match refusals {
        0 => String::new(),
        1 => ", 1 file was on a file system without support".into(),
        count => format!(", {count} files were on file systems without support"),
    };
    format!("; {bytes} bytes of files left the page cache{refused}")
}

/// Prints what forwarding has cost the agents.
pub fn report_agents(costs: &AgentCosts) {
    let agents = |count: usize| format!("{count} agent{}", if count == 1 { "" } else { "s" });
    print_message(format_args!(
        "timings: {}, CPU of them together {:.3} s user and {:.3} s system",
        agents(costs.agents),
        costs.user.as_secs_f64(),
        costs.system.as_secs_f64()
    ));
    for (backend, count) in &costs.backends {
        print_message(format_args!("timings: backend of {}: {backend}", agents(*count)));
    }
}

/// Reports outputs that were given up, with the bytes that this command has cached for them.
pub fn report_given_up(blocked: &Blocked, engine: &Engine, unwritten: u64) {
    let unread = match unread_bytes(engine).map(|unread| unread.saturating_add(unwritten)) {
        Ok(unread) => format!("at least {} bytes of output were", unread.saturating_sub(blocked.accepted)),
        Err(_) => "the rest of the output was".into(),
    };
    print_message(format_args!("{blocked} after the end of all ranks: {unread} not written"));
}

/// Returns the bytes that are cached for the outputs of this process, and not written.
fn unread_bytes(engine: &Engine) -> Result<u64, Box<dyn Error>> {
    let mut tool = engine.attach("iof run", Grant::Never)?;
    let readers = query_streams(&mut tool)?.into_iter().flat_map(|stream| stream.readers);
    let own = readers.filter(|reader| reader.tool == "iof run" && reader.pid == std::process::id());
    Ok(own.fold(0u64, |sum, reader| sum.saturating_add(reader.lag)))
}

/// Returns a text about the protocol by which the ranks could start MPI.
pub fn mpi_protocol(mpi: Mpi, engine: &Engine, job: &Job) -> String {
    match (engine.pmix_library(job), mpi) {
        (Some(library), _) => format!("MPI by PMIx ({library})"),
        (None, Mpi::Auto | Mpi::Pmi1) => "MPI by PMI-1".into(),
        (None, _) => "no MPI".into(),
    }
}
