//! The file that `iof pull --resume` continues: the tokens in its objects, and the place at which it was
//! cut.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use iof_proto::query::JobInfo;
use iof_proto::{Channel, Nspace, Rank};
use iof_tool::Tool;
use memchr::memmem::{find, find_iter};
use serde_json::Value;

use crate::error::Failure;

/// The longest line of a file that is continued, in bytes.
const LONGEST_OBJECT: u64 = 256 << 20;
/// Texts of objects that do not occur in a string in JSON, where quotation marks are escaped: their
/// begin, and what precedes the time, the data and the token.
const BEGIN: &[u8] = b"{\"type\":\"";
const TIME: &[u8] = b",\"time\":";
const DATA: &[u8] = b",\"data\":";
const TOKEN: &[u8] = b",\"token\":\"";

/// The types of objects without tokens.
const OTHERS: [&[u8]; 3] = [b"end\"", b"message\"", b"job_end\""];

/// A stream: job, rank, channel, and whether it was logged.
type StreamName = (Nspace, Rank, Channel, bool);

/// A file that is continued.
pub struct Resume {
    path: PathBuf,
    /// The run of each stream, and the offset behind its last object.
    tokens: BTreeMap<StreamName, (u128, u64)>,
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
        // The streams by what their objects begin with.
        let mut names: BTreeMap<Vec<u8>, StreamName> = BTreeMap::new();
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
            let Some(object) = line.strip_suffix(b"}\n") else {
                let is_cut = line.last() != Some(&b'\n') && line.len() as u64 != LONGEST_OBJECT;
                match is_cut && (is_message || line.starts_with(b"{")) {
                    true => resume.whole = Some(whole),
                    false if is_message && !is_cut => {}
                    false => return Err(unknown()),
                }
                whole = whole.saturating_add(line.len() as u64);
                continue;
            };
            whole = whole.saturating_add(line.len() as u64);
            // An object that was cut and another one may be one line.
            let objects = find_iter(object, BEGIN).take(2).count();
            let (head, rest) = split(object, TIME).filter(|_| objects == 1).ok_or_else(unknown)?;
            let kind = head.strip_prefix(BEGIN).ok_or_else(unknown)?;
            if OTHERS.iter().any(|other| kind.starts_with(other)) {
                continue;
            }
            let name = match names.get(head) {
                Some(name) => name.clone(),
                None => {
                    let name = stream_name(head).ok_or_else(unknown)?;
                    names.entry(head.to_vec()).or_insert(name).clone()
                }
            };
            match split(rest, TOKEN) {
                Some((_, token)) => drop(resume.tokens.insert(name, parse(token).ok_or_else(unknown)?)),
                // Streams that were missed.
                None if find(rest, DATA).is_none() => {}
                None => return Err(unknown()),
            }
        }
        Ok(resume)
    }

    /// Checks that the file continues runs of `jobs`, as far as it has output of them.
    ///
    /// # Errors
    /// It has output of other jobs or runs.
    pub fn check(&self, jobs: &[JobInfo]) -> Result<(), Failure> {
        for ((nspace, ..), (run, _)) in &self.tokens {
            let path = self.path.display();
            match jobs.iter().find(|job| job.nspace == *nspace) {
                Some(job) if job.run == *run => {}
                Some(_) => {
                    return Err(Failure::Usage(format!(
                        "--resume {path}: the file has output of another run of job {nspace}: write to a new file"
                    )));
                }
                None => {
                    return Err(Failure::Usage(format!(
                        "--resume {path}: the file has output of job {nspace}, which is not pulled: write to a new file"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Cuts off the line that was not written as a whole, and makes the streams of `tools` begin behind
    /// what the file has.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn apply(&self, tools: &mut [Tool]) -> Result<(), Failure> {
        if let Some(whole) = self.whole {
            let file = OpenOptions::new().write(true).open(&self.path);
            file.and_then(|file| file.set_len(whole)).map_err(|error| self.failed(error))?;
        }
        for tool in tools {
            for stream in tool.streams().collect::<Vec<_>>() {
                let name = tool.origin(stream).map(|origin| {
                    (origin.source.nspace.clone(), origin.source.rank, origin.channel, origin.logged)
                });
                if let Some((_, offset)) = name.and_then(|name| self.tokens.get(&name)) {
                    tool.begin_at(stream, *offset);
                }
            }
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> Failure {
        Failure::Usage(format!("--resume {}: {error}", self.path.display()))
    }
}

/// Divides bytes before and behind a text.
fn split<'a>(bytes: &'a [u8], text: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let index = find(bytes, text)?;
    Some((bytes.get(..index)?, bytes.get(index.saturating_add(text.len())..)?))
}

/// Returns the stream of an object that begins with `head`.
fn stream_name(head: &[u8]) -> Option<StreamName> {
    let object: Value = serde_json::from_slice(&[head, b"}"].concat()).ok()?;
    let rank = match object.get("rank")? {
        Value::Null => Rank::UNDEF,
        rank => Rank(u32::try_from(rank.as_u64()?).ok()?),
    };
    let nspace = object.get("nspace")?.as_str()?.parse().ok()?;
    let channel = object.get("channel")?.as_str()?;
    let channel = Channel::OUTPUTS.into_iter().find(|known| known.as_str() == channel)?;
    Some((nspace, rank, channel, object.get("logged").is_some()))
}

/// Returns the run and the offset of a token.
fn parse(token: &[u8]) -> Option<(u128, u64)> {
    let token = std::str::from_utf8(token).ok()?.strip_suffix('"')?;
    let (run, offset) = token.split_once(':')?;
    Some((u128::from_str_radix(run, 16).ok()?, offset.parse().ok()?))
}
