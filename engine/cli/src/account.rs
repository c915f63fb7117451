//! What `iof run` says at its end: what forwarding has cost, and how it went.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use iof_engine::{Engine, Grant};
use iof_output::PrintReport;
use iof_proto::query::key;
use iof_proto::{Channel, Found, ProcInfo, Rank, Value};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::print_message;

/// The most ranks that are named of those with one exit code.
const MAX_NAMED: usize = 8;

/// The account of one job.
pub struct Account {
    /// From the start of the command on.
    elapsed: Duration,
    /// CPU time of this process: of its threads, but of none of its children.
    user: Duration,
    system: Duration,
    /// Bytes that were read from all ranks.
    channels: BTreeMap<Channel, u64>,
    /// The ranks by their exit codes; `None` if nobody knows how they ended, or they have not.
    exits: BTreeMap<Option<i32>, Vec<Rank>>,
    forwarded: PrintReport,
    /// All outputs were written to their ends.
    whole: bool,
}

impl Account {
    /// Asks the engine, which is asked nothing before a job's end, so that counting costs the job
    /// nothing.
    pub fn of(
        engine: &Engine,
        elapsed: Duration,
        forwarded: PrintReport,
        whole: bool,
    ) -> Result<Account, Box<dyn Error>> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let mut tool = engine.attach("iof run", Grant::Never)?;
        let found = tool.query(&[key::IOF_STATS, key::PMIX_QUERY_PROC_TABLE])?;
        let (user, system) = (duration(usage.user_time()), duration(usage.system_time()));
        let (channels, exits) = (BTreeMap::new(), BTreeMap::new());
        let mut account = Account { elapsed, user, system, channels, exits, forwarded, whole };
        for Found { value, .. } in found {
            account.add(value);
        }
        Ok(account)
    }

    fn add(&mut self, value: Value) {
        match value {
            Value::Streams(streams) => {
                for stream in streams {
                    let read = self.channels.entry(stream.channel).or_default();
                    *read = read.saturating_add(stream.produced);
                }
            }
            Value::Procs(procs) => {
                for ProcInfo { proc, exit_code, .. } in procs {
                    self.exits.entry(exit_code).or_default().push(proc.rank);
                }
            }
            // Was not asked for.
            _ => {}
        }
    }

    /// Says what was asked for on stderr.
    pub fn report(&self, timings: bool, summary: bool) {
        if timings {
            self.say_timings();
        }
        if summary {
            print_message(format_args!("summary: {}", self.summary()));
        }
    }

    fn say_timings(&self) {
        print_message(format_args!(
            "timings: {:.3} s, CPU of iof itself {:.3} s user and {:.3} s system",
            self.elapsed.as_secs_f64(),
            self.user.as_secs_f64(),
            self.system.as_secs_f64()
        ));
        let not_counted = self.not_counted();
        for (channel, read) in &self.channels {
            let lost = self.forwarded.lost.get(channel).unwrap_or(&0);
            print_message(format_args!("timings: {channel} {read} bytes read, {lost} lost{not_counted}"));
        }
    }

    fn not_counted(&self) -> &'static str {
        if self.whole { "" } else { ", not counting an output that failed" }
    }

    fn summary(&self) -> String {
        let ranks = self.exits.values().map(Vec::len).sum::<usize>();
        let exits: Vec<String> = self.exits.iter().map(|(code, ranks)| exit(*code, ranks)).collect();
        let PrintReport { written, lost, .. } = &self.forwarded;
        let lost = lost.values().fold(0u64, |sum, lost| sum.saturating_add(*lost));
        format!(
            "{} in {:.3} s, {}; {written} bytes forwarded, {lost} lost{}",
            number_of_ranks(ranks),
            self.elapsed.as_secs_f64(),
            exits.join(", "),
            self.not_counted()
        )
    }
}

fn number_of_ranks(ranks: usize) -> String {
    if ranks == 1 { "1 rank".into() } else { format!("{ranks} ranks") }
}

/// Those that did well are counted, the others named, too.
fn exit(code: Option<i32>, ranks: &[Rank]) -> String {
    let code_of = code.map_or_else(|| "unknown".into(), |code| code.to_string());
    let number = number_of_ranks(ranks.len());
    if code == Some(0) {
        return format!("exit code 0: {number}");
    }
    let named: Vec<String> = ranks.iter().take(MAX_NAMED).map(Rank::to_string).collect();
    let more = if ranks.len() > MAX_NAMED { ",..." } else { "" };
    format!("exit code {code_of}: {number} ({}{more})", named.join(","))
}

fn duration(time: TimeVal) -> Duration {
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec())).saturating_add(Duration::from_micros(part(time.tv_usec())))
}
