//! Per-rank files: their options and their paths.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use iof_proto::{Channel, Rank};

use crate::format::choice::FilePlace;
use crate::format::label::LabelSource;
use crate::format::placeholder::PatternValues;
use crate::watch::WriteWatch;

mod check;
mod entry;
mod locked;
mod new;
mod open;
mod pool;
mod rotation;
mod uncached;

pub use check::find_clash;
pub use locked::LockedFiles;
pub use new::NewFiles;
pub(crate) use open::OpenFiles;
pub(crate) use pool::Pool;
pub(crate) use uncached::MIN_UNCACHED;

/// The largest number of files that one printer keeps open. When it is reached, or
/// [`Files::max_open`], all files are closed, and each is opened again for its next write.
pub const MAX_OPEN_FILES: usize = 1024;

/// The largest number of full files that are kept for one output file, see [`Rotation::keep`]. Each
/// of them is renamed whenever the output file is full.
pub const MAX_KEPT_FILES: u32 = 1000;

/// The name that stands for the rank in paths of data that belongs to a whole job.
const JOB_NAME: &str = "job";

/// The mode of created directories, which the umask may narrow. prterun's value.
const DIRECTORY_MODE: u32 = 0o750;

/// The options of per-rank files.
#[derive(Clone, Debug)]
pub struct Files {
    /// The location of the files.
    pub place: FilePlace,
    /// Set if stderr and stddiag go to the file of stdout.
    pub merge: bool,
    /// Set if existing contents of a file are kept. Otherwise a file is emptied when its stream
    /// begins, and with `rotation` the full files of an earlier run are removed.
    pub append: bool,
    /// The size at which a file is full, and the number of full files kept; `None` for no limit.
    pub rotation: Option<Rotation>,
    /// Set if what is written to regular files is not to stay in the page cache (`RWF_DONTCACHE`, since
    /// Linux 6.14). Applies to writes of 512 KiB or more, for which the printer waits, see
    /// [`PrintReport::drops`](crate::PrintReport::drops).
    pub drops_cache: bool,
    /// The number of ranks of the job, which determines the number of digits of a rank in names.
    /// With `None`, the printer queries the engine.
    pub nprocs: Option<u32>,
    /// The largest number of files that the printer keeps open, from 2 to [`MAX_OPEN_FILES`]. A
    /// number outside this range counts as the nearest inside.
    pub max_open: usize,
    /// Shows the progress of the writes, by which a program can notice a file that accepts nothing,
    /// such as a FIFO whose reader reads nothing.
    pub watch: Option<WriteWatch>,
}

/// The rotation of files by size: a full file is renamed and a new one begun. This happens between
/// two lines, provided the lines are written in one piece and are not longer than
/// [`FlushTimeout::max_line`](crate::FlushTimeout); other lines are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The largest size of a file in bytes, which only a single longer line may exceed. 0 counts as
    /// 1. Each full file costs a rename of every file that is kept, so small sizes are expensive.
    pub size: u64,
    /// The number of full files that are kept, at most [`MAX_KEPT_FILES`]. `NAME.1` is the newest.
    pub keep: u32,
}

/// The effect of [`Files::drops_cache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheDrops {
    /// The number of bytes that were written without staying in the page cache.
    pub bytes: u64,
    /// The number of files whose file system refused that, or the kernel. They are written as other files.
    pub refusals: u64,
}

impl CacheDrops {
    /// Adds the effect on other files.
    pub fn add(&mut self, other: CacheDrops) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.refusals = self.refusals.saturating_add(other.refusals);
    }
}

/// The id of one of the [`OpenFiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(usize);

/// The reason why a file can't be opened or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct FileError {
    /// The path of the file.
    pub path: PathBuf,
    /// The reason.
    pub error: io::Error,
}

impl Files {
    /// Returns files at `place`: they are emptied, grow without limit and stay in the page cache.
    pub fn at(place: FilePlace) -> Files {
        Files {
            place,
            merge: false,
            append: false,
            rotation: None,
            drops_cache: false,
            nprocs: None,
            max_open: MAX_OPEN_FILES,
            watch: None,
        }
    }

    /// Returns the path of the file for `source`, which belongs to a job of `nprocs` ranks.
    pub fn path(&self, source: &LabelSource, nprocs: u32) -> PathBuf {
        let LabelSource { nspace, rank, channel, host, .. } = source;
        let width = nprocs.max(1).ilog10() as usize + 1;
        // Data without a rank belongs to the job as a whole.
        let is_of_job = *rank == Rank::UNDEF;
        let (padded, number) = match rank.0 {
            _ if is_of_job => (JOB_NAME.to_owned(), JOB_NAME.to_owned()),
            number => (format!("{number:0width$}"), number.to_string()),
        };
        let is_out = self.is_out(*channel);
        let name = match &self.place {
            FilePlace::Tree(dir) => {
                let rank = if is_of_job { padded } else { format!("rank.{padded}") };
                let rank = dir.join(nspace.as_str()).join(rank);
                return rank.join(if is_out { "stdout" } else { "stderr" });
            }
            FilePlace::Name(name) => {
                let mut name = name.clone().into_os_string();
                name.push(format!(".{nspace}.{padded}"));
                name
            }
            FilePlace::Pattern(pattern) | FilePlace::Exact(pattern) => {
                let host = host.as_deref().unwrap_or("unknown");
                let (nspace, channel) = (nspace.as_str(), if is_out { "stdout" } else { "stderr" });
                let values = PatternValues { nspace, padded: &padded, rank: &number, host, channel };
                let name = pattern.expand(values);
                if pattern.has_placeholder() || matches!(self.place, FilePlace::Exact(_)) {
                    return name;
                }
                name.into_os_string()
            }
        };
        with_suffix(Path::new(&name), if is_out { "out" } else { "err" })
    }

    /// Creates the directory of the files, so that an unusable path is an error before the job
    /// starts. Does nothing for patterns, whose directories depend on the rank. Adds to `new` what
    /// this creates.
    ///
    /// # Errors
    /// Returns [`FileError`] if the directory can't be created.
    pub fn prepare(&self, new: &mut NewFiles) -> Result<(), FileError> {
        let directory = match &self.place {
            FilePlace::Tree(directory) => Some(directory.as_path()),
            FilePlace::Name(name) => name.parent().filter(|parent| !parent.as_os_str().is_empty()),
            FilePlace::Pattern(_) | FilePlace::Exact(_) => None,
        };
        let mut make = |path: &Path| {
            new.make_directory(path).map_err(|error| FileError { path: path.to_owned(), error })
        };
        directory.map_or(Ok(()), &mut make)
    }

    /// Returns whether the paths begin at the root, not in the directory of the process.
    pub fn is_absolute(&self) -> bool {
        match &self.place {
            FilePlace::Tree(path) | FilePlace::Name(path) => path.is_absolute(),
            FilePlace::Pattern(pattern) | FilePlace::Exact(pattern) => pattern.is_absolute(),
        }
    }

    /// Returns whether the paths contain the name of the job.
    pub fn names_job(&self) -> bool {
        match &self.place {
            FilePlace::Tree(_) | FilePlace::Name(_) => true,
            FilePlace::Pattern(pattern) | FilePlace::Exact(pattern) => pattern.names_job(),
        }
    }

    /// Returns whether the paths contain the name of the host.
    pub fn names_host(&self) -> bool {
        match &self.place {
            FilePlace::Tree(_) | FilePlace::Name(_) => false,
            FilePlace::Pattern(pattern) | FilePlace::Exact(pattern) => pattern.names_host(),
        }
    }

    fn is_out(&self, channel: Channel) -> bool {
        self.merge || channel == Channel::Stdout
    }

    /// Returns whether each rank has a file of its own for `channel`.
    pub(crate) fn has_own_file(&self, channel: Channel) -> bool {
        let is_separate = match &self.place {
            FilePlace::Tree(_) | FilePlace::Name(_) => true,
            FilePlace::Pattern(pattern) | FilePlace::Exact(pattern) => pattern.names_stream(),
        };
        is_separate && !self.merge && channel == Channel::Stdout
    }

    /// Returns whether paths may contain the host, which only the engine knows.
    pub(crate) fn shows_host(&self) -> bool {
        matches!(self.place, FilePlace::Pattern(_) | FilePlace::Exact(_))
    }
}

fn with_suffix(name: &Path, suffix: &str) -> PathBuf {
    let mut name = name.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}
fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub(crate) mod tests {
    use iof_proto::Nspace;

    use super::*;

    pub(crate) fn files(place: FilePlace) -> Files {
        Files::at(place)
    }

    pub(super) fn source(rank: u32, channel: Channel) -> LabelSource {
        let nspace = Nspace::new("prterun-node1-77@1").unwrap();
        LabelSource {
            nspace,
            rank: Rank(rank),
            channel,
            logged: false,
            host: Some("node1".into()),
            pid: None,
        }
    }

    #[test]
    fn paths_are_those_of_prterun() {
        let tree = files(FilePlace::Tree("d".into()));
        let path = |files: &Files, rank, channel, nprocs| files.path(&source(rank, channel), nprocs);
        let wanted = |text: &str| PathBuf::from(text);
        assert_eq!(path(&tree, 7, Channel::Stdout, 9), wanted("d/prterun-node1-77@1/rank.7/stdout"));
        assert_eq!(path(&tree, 7, Channel::Stdout, 10), wanted("d/prterun-node1-77@1/rank.07/stdout"));
        assert_eq!(path(&tree, 7, Channel::Stddiag, 1000), wanted("d/prterun-node1-77@1/rank.0007/stderr"));
        let merged = Files { merge: true, ..tree };
        assert_eq!(path(&merged, 0, Channel::Stderr, 1), wanted("d/prterun-node1-77@1/rank.0/stdout"));
        let name = files(FilePlace::Name("x/f".into()));
        assert_eq!(path(&name, 3, Channel::Stderr, 12), wanted("x/f.prterun-node1-77@1.03.err"));
        let pattern = FilePlace::Pattern(crate::Pattern::new(Path::new("%h/%n-%r-%R")).unwrap());
        assert_eq!(path(&files(pattern), 3, Channel::Stdout, 12), wanted("node1/prterun-node1-77@1-03-3"));
        let plain = FilePlace::Pattern(crate::Pattern::new(Path::new("log")).unwrap());
        assert_eq!(path(&files(plain), 3, Channel::Stderr, 12), wanted("log.err"));
    }

    #[test]
    fn data_of_a_whole_job_goes_to_files_of_the_job() {
        let source = source(Rank::UNDEF.0, Channel::Stderr);
        let path = |place| files(place).path(&source, 12).to_str().unwrap().to_owned();
        assert_eq!(path(FilePlace::Tree("d".into())), "d/prterun-node1-77@1/job/stderr");
        assert_eq!(path(FilePlace::Name("x/f".into())), "x/f.prterun-node1-77@1.job.err");
        let pattern = FilePlace::Pattern(crate::Pattern::new(Path::new("%n-%r-%R.%c")).unwrap());
        assert_eq!(path(pattern), "prterun-node1-77@1-job-job.stderr");
    }
}
