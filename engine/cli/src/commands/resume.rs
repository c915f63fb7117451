//! The file that `iof pull --resume` continues: the tokens in its objects, and the place at which it was
//! cut.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use iof_proto::query::JobInfo;
use iof_proto::{Channel, Nspace, Proc, Rank};
use iof_tool::StreamKey;
use serde::Deserialize;

use crate::error::Failure;

/// The longest line of a file that is continued, in bytes.
const LONGEST_OBJECT: u64 = 256 << 20;

/// The fields of an object that tell where to resume.
#[derive(Deserialize)]
struct Object<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    nspace: Option<Nspace>,
    rank: Option<u32>,
    channel: Option<&'a str>,
    #[serde(default)]
    logged: bool,
    token: Option<&'a str>,
    /// Set if it has the sum of streams that were missed.
    streams: Option<u64>,
}

/// A file that is continued.
pub struct Resume {
    path: PathBuf,
    /// The run of each stream, and the offset behind its last object.
    tokens: BTreeMap<StreamKey, (u128, u64)>,
    /// The length of the file's whole lines, if another one follows that was cut.
    whole: Option<u64>,
}

impl Resume {
    /// Reads the file, if it exists. Changes nothing.
    ///
    /// # Errors
    /// It can't be read, or contains something else than `iof pull --output json` writes.
    pub fn read(path: &Path) -> Result<Resume, Failure> {
        let mut resume = Resume { path: path.into(), tokens: BTreeMap::new(), whole: None };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(resume),
            file => file.map_err(|error| resume.failed(error))?,
        };
        let (mut file, mut line, mut whole) = (BufReader::new(file), Vec::new(), 0u64);
        for number in 1u64.. {
            line.clear();
            let read = file.by_ref().take(LONGEST_OBJECT).read_until(b'\n', &mut line);
            if read.map_err(|error| resume.failed(error))? == 0 {
                break;
            }
            let unknown = || {
                let path = path.display();
                Failure::Usage(format!(
                    "--resume {path}: line {number} is not from iof pull --output json, which tells where to resume: \
                     write to a new file"
                ))
            };
            let is_message = line.starts_with(b"iof: ");
            if !line.ends_with(b"}\n") {
                let is_cut = line.last() != Some(&b'\n') && line.len() as u64 != LONGEST_OBJECT;
                match is_cut && (is_message || line.starts_with(b"{")) {
                    true => resume.whole = Some(whole),
                    false if is_message && !is_cut => {}
                    false => return Err(unknown()),
                }
                whole = whole.saturating_add(line.len() as u64);
                continue;
            }
            whole = whole.saturating_add(line.len() as u64);
            // An object that was cut and another one may be one line.
            let object: Object<'_> = serde_json::from_slice(&line).map_err(|_| unknown())?;
            match (object.kind, object.token.and_then(parse)) {
                ("output" | "gap", Some(token)) => {
                    resume.tokens.insert(object.stream().ok_or_else(unknown)?, token);
                }
                ("gap", None) if object.streams.is_some() => {}
                ("rank_start" | "exit" | "end" | "message" | "job_end", _) => {}
                _ => return Err(unknown()),
            }
        }
        Ok(resume)
    }

    /// Checks that the file continues runs of `jobs`, as far as it has output of them.
    ///
    /// # Errors
    /// It has output of other jobs or runs.
    pub fn check(&self, jobs: &[JobInfo]) -> Result<(), Failure> {
        for ((Proc { nspace, .. }, ..), (run, _)) in &self.tokens {
            let has = match jobs.iter().find(|job| job.nspace == *nspace) {
                Some(job) if job.run == *run => continue,
                Some(_) => format!("another run of job {nspace}"),
                None => format!("job {nspace}, which is not pulled"),
            };
            let path = self.path.display();
            return Err(Failure::Usage(format!(
                "--resume {path}: the file has output of {has}: write to a new file"
            )));
        }
        Ok(())
    }

    /// Returns the offset behind what the file has of each stream.
    pub fn begins(&self) -> BTreeMap<StreamKey, u64> {
        self.tokens.iter().map(|(stream, (_, offset))| (stream.clone(), *offset)).collect()
    }

    /// Cuts off the line that was not written as a whole.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn cut(&self) -> Result<(), Failure> {
        let Some(whole) = self.whole else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(&self.path);
        file.and_then(|file| file.set_len(whole)).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Failure {
        Failure::Usage(format!("--resume {}: {error}", self.path.display()))
    }
}

impl Object<'_> {
    /// Returns the stream, if it has one.
    fn stream(&self) -> Option<StreamKey> {
        let rank = self.rank.map_or(Rank::UNDEF, Rank);
        let channel = Channel::OUTPUTS.into_iter().find(|known| Some(known.as_str()) == self.channel)?;
        Some((Proc::new(self.nspace.clone()?, rank), channel, self.logged))
    }
}

/// Returns the run and the offset of a token.
fn parse(token: &str) -> Option<(u128, u64)> {
    let (run, offset) = token.split_once(':')?;
    Some((u128::from_str_radix(run, 16).ok()?, offset.parse().ok()?))
}
