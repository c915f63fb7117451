//! The job record: a file of JSON lines that is only ever appended to.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use iof_proto::{Failure, Proc, Rank, Status};
use jiff::Timestamp;
use nix::libc;
use nix::unistd::geteuid;
use serde_json::json;

use crate::how::How;
use crate::syslog::severity;
use crate::text::Origin;

/// The largest that a record becomes, in bytes.
pub const MAX_RECORD: u64 = 64 << 20;

/// Its mode: what is logged is nobody else's business.
const MODE: u32 = 0o600;

/// A job record, in a file of mode 0600 that is made when the first message comes.
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

    /// Puts away what an earlier engine has left under this name, under one with `.old` behind it, in place of what is
    /// there.
    ///
    /// # Errors
    /// It can't be renamed, see rename(2).
    pub fn put_away(&self) -> io::Result<()> {
        let mut old = self.path.as_os_str().to_owned();
        old.push(".old");
        match fs::rename(&self.path, old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Appends a message as one line: an object with `time` (UTC, as RFC 3339 has it), `nspace` and `rank` of its source,
    /// `null` where there is none, who asked for it (`by`), `priority` (a word) and `message`. What can't be written as a
    /// whole is not written.
    ///
    /// # Errors
    /// The file can't be written, is not ours, or is full.
    pub fn append(&self, text: &str, origin: &Origin, how: &How) -> Result<(), Failure> {
        let rank = |source: &Proc| (source.rank < Rank::WILDCARD).then_some(source.rank.0);
        let line = json!({
            "time": how.time.unwrap_or_else(Timestamp::now).to_string(),
            "nspace": origin.source.as_ref().map(|source| source.nspace.as_str()),
            "rank": origin.source.as_ref().and_then(rank),
            "by": origin.by,
            "priority": severity(how.priority),
            "message": text,
        });
        let failed = |error: io::Error| Failure {
            status: Status::ERR_NOT_AVAILABLE,
            reason: format!("the job record {}: {error}", self.path.display()),
        };
        let mut file = self.open().map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        // Half a line, which could not be taken back, ends here.
        let before = if ends_within_a_line(&file, length).map_err(failed)? { "\n" } else { "" };
        let line = format!("{before}{line}\n");
        if length.saturating_add(line.len() as u64) > MAX_RECORD {
            let reason =
                format!("the job record {} has {MAX_RECORD} bytes: move it away", self.path.display());
            return Err(Failure { status: Status::ERR_OUT_OF_RESOURCE, reason });
        }
        file.write_all(line.as_bytes()).map_err(|error| {
            // A full disk may have taken a part.
            if let Err(stays) = file.set_len(length) {
                return failed(io::Error::new(
                    error.kind(),
                    format!("{error}; a part of the line stays: {stays}"),
                ));
            }
            failed(error)
        })
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // Not what somebody else has put there, nor a FIFO that nobody reads.
        options.read(true).append(true).create(true).mode(MODE);
        let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&self.path)?;
        let about = file.metadata()?;
        if !about.is_file() || about.uid() != geteuid().as_raw() || about.nlink() != 1 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it is no file of our own: remove it",
            ));
        }
        if about.mode() & 0o7777 != MODE {
            file.set_permissions(Permissions::from_mode(MODE))?;
        }
        Ok(file)
    }
}

fn ends_within_a_line(file: &File, length: u64) -> io::Result<bool> {
    let Some(last) = length.checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte != *b"\n")
}
