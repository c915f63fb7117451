//! The file of `iof run --job-log`: a row for each rank.

use std::error::Error;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use iof_engine::{Engine, Exit, Grant, Job, JobSpec, Stdin};
use iof_proto::names::sanitize;
use iof_proto::{ProcInfo, ProcState};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::commands::attach::{query_procs, query_streams};
use crate::error::Failure;
use crate::outputs::printers::{AttachedOutputs, file_of};
use crate::reports::exits::exit;
use crate::reports::objects::cpu_and_peak;
use crate::terminal::message::print_message;
use crate::terminal::print::json_lines;

/// The columns, in their order, which are the keys of JSON.
const COLUMNS: [&str; 10] =
    ["rank", "host", "pid", "start", "end", "exit_code", "signal", "bytes", "cpu_seconds", "peak_bytes"];

/// A file that gets the rows of a job.
pub struct JobLog {
    path: PathBuf,
    /// The name under which it is written.
    draft: PathBuf,
}

impl JobLog {
    /// Checks that `path` can be written, and keeps its content.
    pub fn new(path: &Path) -> Result<JobLog, Failure> {
        let failed = |error| Failure::Usage(format!("--job-log {}: {error}", path.display()));
        let path = match fs::metadata(path) {
            Ok(file) if file.is_file() => fs::canonicalize(path).map_err(failed)?,
            Ok(_) => return Err(failed(io::Error::other("it exists, and is not a regular file"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut path = path.to_owned();
                // The file of a link need not exist. The links end, because this error is not ELOOP.
                while let Ok(target) = fs::read_link(&path) {
                    path = path.with_file_name(target);
                }
                path
            }
            Err(error) => return Err(failed(error)),
        };
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        let draft = path.with_file_name(format!(".{}.{}", name.display(), std::process::id()));
        File::create_new(&draft).and_then(|_| fs::remove_file(&draft)).map_err(failed)?;
        Ok(JobLog { path, draft })
    }

    /// Checks that the job does not use the file itself: as a program, as stdin, stdout or stderr, or as one of
    /// the files of `outputs`, which exist by now. Its contents would be lost.
    pub fn check(&self, spec: &JobSpec, outputs: &AttachedOutputs<'_>) -> Result<(), Failure> {
        let Ok(file) = fs::metadata(&self.path) else { return Ok(()) };
        let is_same = |used: Metadata| (used.dev(), used.ino()) == (file.dev(), file.ino());
        let own = (0..3).filter_map(|fd| fs::metadata(format!("/proc/self/fd/{fd}")).ok());
        let inputs = spec.stdin.values().filter_map(|stdin| match stdin {
            Stdin::File(path) => fs::metadata(path).ok(),
            _ => None,
        });
        let mut used = own.chain(inputs).chain(spec.apps.iter().filter_map(file_of));
        if used.any(is_same) || outputs.find(&file).is_some() {
            let path = self.path.display();
            return Err(Failure::Usage(format!(
                "--job-log {path}: the job uses this file: name another file"
            )));
        }
        Ok(())
    }

    /// Writes the rows of a job that has ended. Prints an error. Returns whether the file is complete.
    pub fn write(&self, engine: &Engine, job: &Job) -> bool {
        let is_json = self.path.extension().is_some_and(|extension| extension == "json");
        let written = rows(engine, job).and_then(|rows| Ok(self.replace(&text(&rows, is_json))?));
        if let Err(error) = &written {
            print_message(format_args!("cannot write the job log {}: {error}", self.path.display()));
        }
        written.is_ok()
    }

    /// Replaces the file by one that is complete.
    fn replace(&self, text: &str) -> io::Result<()> {
        let mut file = File::create_new(&self.draft)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.and_then(|()| fs::rename(&self.draft, &self.path)).inspect_err(|_| {
            // The first error is reported.
            let _ = fs::remove_file(&self.draft);
        })
    }
}

fn text(rows: &[Value], is_json: bool) -> String {
    if is_json {
        return json_lines(&json!(rows));
    }
    let cell = |row: &Value, column: &str| match row.get(column) {
        Some(Value::String(text)) => sanitize(text),
        None | Some(Value::Null) => "-".into(),
        Some(number) => number.to_string(),
    };
    let line = |row: &Value| COLUMNS.map(|column| cell(row, column)).join("\t") + "\n";
    COLUMNS.join("\t") + "\n" + &rows.iter().map(line).collect::<String>()
}

/// Returns an object for each rank. Unknown values are null.
fn rows(engine: &Engine, job: &Job) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut tool = engine.attach("iof run", Grant::Never)?;
    let streams = query_streams(&mut tool)?;
    let mut procs = query_procs(&mut tool)?;
    procs.retain(|info| info.proc.nspace == *job.nspace());
    procs.sort_unstable_by_key(|info| info.proc.rank);
    let time = |time: SystemTime| Timestamp::try_from(time).ok().map(|time| format!("{time:.6}"));
    let row = |ProcInfo { proc, pid, host, exit_code, state, began, used, .. }: ProcInfo| {
        let of_rank = streams.iter().filter(|stream| stream.source == proc && !stream.logged);
        let bytes = of_rank.fold(0u64, |sum, stream| sum.saturating_add(stream.produced));
        let exit = exit(exit_code, state);
        let signal = exit.signal().map(|_| exit.to_string());
        let is_known = signal.is_none() && exit != Exit::Unknown && state != ProcState::Running;
        let (cpu, peak) = used.map(cpu_and_peak).unzip();
        json!({
            "rank": proc.rank.0, "host": host, "pid": pid, "start": began.and_then(time),
            "end": used.and_then(|used| time(used.ended)), "exit_code": is_known.then(|| exit.code()),
            "signal": signal, "bytes": bytes, "cpu_seconds": cpu, "peak_bytes": peak,
        })
    };
    Ok(procs.into_iter().map(row).collect())
}
