//! The arguments of a registration. The Python part has checked their types.

use std::collections::BTreeMap;
use std::fmt::Display;

use iof::proto::{Channel, Channels, Nspace, Position, Proc, Rank};
use iof::tool::StreamKey;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Returns ValueError for an argument.
pub fn invalid(argument: &str, reason: impl Display) -> PyErr {
    PyValueError::new_err(format!("{argument}: {reason}"))
}

/// Returns the name of a job.
pub fn nspace(argument: &str, name: &str) -> PyResult<Nspace> {
    Nspace::new(name).map_err(|error| invalid(argument, error))
}

/// Returns the processes of a job with these ranks, all if there are none.
pub fn procs(job: &str, ranks: Option<Vec<u32>>) -> PyResult<Vec<Proc>> {
    let nspace = nspace("job", job)?;
    let Some(ranks) = ranks else { return Ok(vec![Proc::all(nspace.clone())]) };
    if ranks.is_empty() {
        return Err(invalid("ranks", "expected at least one rank, or None for all"));
    }
    Ok(ranks.into_iter().map(|rank| Proc::new(nspace.clone(), rank)).collect())
}

/// Returns the channels of a number of `iof.Channel`.
pub fn channels(bits: u16) -> PyResult<Channels> {
    let channels = Channels::from_bits_truncate(bits) & Channels::OUTPUTS;
    if channels.is_empty() || channels.bits() != bits {
        return Err(invalid("channels", "expected STDOUT, STDERR, STDDIAG or a combination of them"));
    }
    Ok(channels)
}

/// Returns the channel of a number of `iof.Channel`.
pub fn channel(argument: &str, bits: u16) -> PyResult<Channel> {
    let found = Channel::OUTPUTS.into_iter().find(|channel| Channels::from(*channel).bits() == bits);
    found.ok_or_else(|| invalid(argument, "expected one output channel"))
}

/// The part of the output that a registration delivers.
#[derive(FromPyObject)]
pub struct Part {
    pub channels: u16,
    /// `oldest`, `newest`, `tail`, `since` or `offset`.
    pub position: String,
    /// The number of lines, the time in nanoseconds since 1970, or the offset.
    pub value: u64,
    pub until: Option<u64>,
    pub follow: bool,
    /// The rank, the channel and the token of each stream that is continued.
    pub resume: Vec<(u32, u16, String)>,
}

impl Part {
    pub fn position(&self) -> Position {
        match self.position.as_str() {
            "newest" => Position::Newest,
            "tail" => Position::Lines(self.value),
            "since" => Position::Time(self.value),
            "offset" => Position::Offset(self.value),
            _ => Position::Oldest,
        }
    }

    /// Returns the offset at which each stream begins that is continued, of the `run` of `job`.
    pub fn begins(&self, job: &str, run: u128) -> PyResult<BTreeMap<StreamKey, u64>> {
        let job = nspace("job", job)?;
        let offset = |(rank, bits, token): &(u32, u16, String)| {
            let known = token
                .split_once(':')
                .and_then(|(run, offset)| Some((u128::from_str_radix(run, 16).ok()?, offset.parse().ok()?)));
            let (of, offset) = known.ok_or_else(|| {
                invalid("resume", format!("'{token}' is not a token: expected that of a line"))
            })?;
            if of != run {
                let reason = format!("the token of rank {rank} belongs to another run of the job");
                return Err(invalid("resume", reason));
            }
            Ok(((Proc::new(job.clone(), Rank(*rank)), channel("resume", *bits)?, false), offset))
        };
        self.resume.iter().map(offset).collect()
    }
}
