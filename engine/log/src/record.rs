//! The job record: an append-only file of JSON lines.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use iof_proto::{Failure, Proc, Rank, Status};
use jiff::Timestamp;
use nix::libc;
use nix::unistd::geteuid;
use serde_json::json;

use crate::options::LogOptions;
use crate::syslog::severity;
use crate::text::LogOrigin;

/// The largest size of a job record, in bytes.
pub const MAX_RECORD: u64 = 64 << 20;

/// The file's mode: only its owner may read what was logged.
const MODE: u32 = 0o600;

/// A job record: a file of mode 0600, created with the first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    path: PathBuf,
}

impl JobRecord {
    /// Returns the job record in the file `path`. Does not create the file.
    pub fn at(path: impl Into<PathBuf>) -> JobRecord {
        JobRecord { path: path.into() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames a file that an earlier engine left under this name: appends `.old` to its name, and
    /// replaces a file that has that name already. Does nothing if there is no file.
    ///
    /// # Errors
    /// The file can't be renamed, see rename(2).
    pub fn rotate(&self) -> io::Result<()> {
        let mut old = self.path.as_os_str().to_owned();
        old.push(".old");
        match fs::rename(&self.path, old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Appends a message as one line: a JSON object with `time` (UTC, RFC 3339), `nspace` and
    /// `rank` of the source (`null` if unknown), the requester `by`, `priority` (a word) and
    /// `message`. A line that can't be written completely is removed again.
    ///
    /// # Errors
    /// - `ERR_NOT_AVAILABLE`: the file can't be written, or is not a regular file of this user with
    ///   one link.
    /// - `ERR_OUT_OF_RESOURCE`: the file would exceed [`MAX_RECORD`].
    pub fn append(&self, text: &str, origin: &LogOrigin, options: &LogOptions) -> Result<(), Failure> {
        let rank = |source: &Proc| (source.rank < Rank::WILDCARD).then_some(source.rank.0);
        let line = json!({
            "time": options.time.unwrap_or_else(Timestamp::now).to_string(),
            "nspace": origin.source.as_ref().map(|source| source.nspace.as_str()),
            "rank": origin.source.as_ref().and_then(rank),
            "by": origin.requester,
            "priority": severity(options.priority),
            "message": text,
        });
        let failed = |error: io::Error| Failure {
            status: Status::ERR_NOT_AVAILABLE,
            reason: format!("the job record {}: {error}", self.path.display()),
        };
        let mut file = self.open().map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        // Ends a partial line that an earlier failure could not remove.
        let before = if ends_within_a_line(&file, length).map_err(failed)? { "\n" } else { "" };
        let line = format!("{before}{line}\n");
        if length.saturating_add(line.len() as u64) > MAX_RECORD {
            let reason =
                format!("the job record {} is full ({MAX_RECORD} bytes): move it away", self.path.display());
            return Err(Failure::new(Status::ERR_OUT_OF_RESOURCE, reason));
        }
        file.write_all(line.as_bytes()).map_err(|error| {
            // A full disk may have accepted a part of the line.
            if let Err(truncation) = file.set_len(length) {
                return failed(io::Error::new(
                    error.kind(),
                    format!("{error}; a partial line could not be removed: {truncation}"),
                ));
            }
            failed(error)
        })
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // Do not follow a symbolic link, and do not block on a FIFO without a reader.
        options.read(true).append(true).create(true).mode(MODE);
        let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&self.path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() || metadata.nlink() != 1 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "not a regular file of this user with one link: remove it",
            ));
        }
        if metadata.mode() & 0o7777 != MODE {
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
