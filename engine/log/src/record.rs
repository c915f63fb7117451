//! The job record: a file of JSON lines that is only ever appended to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use iof_proto::{Failure, Status};
use jiff::Timestamp;
use nix::libc;
use nix::unistd::geteuid;
use serde_json::json;

use crate::how::How;
use crate::syslog::PRIORITIES;
use crate::text::Origin;

/// The largest that a record becomes, in bytes.
pub const MAX_RECORD: u64 = 64 << 20;

/// A job record, in a file that is made when the first message comes, with mode 0600.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    path: PathBuf,
}

impl JobRecord {
    /// In this file.
    pub fn at(path: impl Into<PathBuf>) -> JobRecord {
        JobRecord { path: path.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a message as one line: an object with `time` (UTC, as RFC 3339 has it), `nspace` and `rank` of its source,
    /// if that was said, who asked for it (`by`), `priority` (a word) and `message`.
    ///
    /// # Errors
    /// The file can't be written, is not ours, or is full.
    pub fn append(&self, text: &str, origin: &Origin, how: &How) -> Result<(), Failure> {
        let line = json!({
            "time": how.time.unwrap_or_else(Timestamp::now).to_string(),
            "nspace": origin.source.as_ref().map(|source| source.nspace.as_str()),
            "rank": origin.source.as_ref().map(|source| source.rank.to_string()),
            "by": origin.by,
            "priority": PRIORITIES.get(usize::from(how.priority)),
            "message": text,
        });
        let failed = |error: io::Error| Failure {
            status: Status::ERR_NOT_AVAILABLE,
            reason: format!("the job record {}: {error}", self.path.display()),
        };
        let mut file = self.open().map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let line = format!("{line}\n");
        if length.saturating_add(line.len() as u64) > MAX_RECORD {
            let reason =
                format!("the job record {} has {MAX_RECORD} bytes: move it away", self.path.display());
            return Err(Failure { status: Status::ERR_OUT_OF_RESOURCE, reason });
        }
        file.write_all(line.as_bytes()).map_err(failed)
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // Not what somebody else has put there, nor a FIFO that nobody reads.
        options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(&self.path)?;
        let about = file.metadata()?;
        if about.is_file() && about.uid() == geteuid().as_raw() && about.nlink() == 1 {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is no file of our own: remove it"))
    }
}
