//! The attributes of output that the library writes itself, as the program gives them at different
//! levels: for itself, for a job and for a registration.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use iof_output::{
    Choice, FilePlace, Files, LockedFiles, Markup, Options, Pattern, Stamp, Style, StyleExtras,
};
use iof_proto::attribute::key::*;
use iof_proto::{Nspace, Status};

use crate::ffi::guard::{OrStatus, Outcome, lock};
use crate::infos::Infos;

/// The keys of flags, each with its older name.
const FLAGS: [(&str, Option<&str>); 11] = [
    (PMIX_IOF_TAG_OUTPUT, Some(PMIX_TAG_OUTPUT)),
    (PMIX_IOF_TAG_DETAILED_OUTPUT, None),
    (PMIX_IOF_TAG_FULLNAME_OUTPUT, None),
    (PMIX_IOF_RANK_OUTPUT, None),
    (PMIX_IOF_TIMESTAMP_OUTPUT, Some(PMIX_TIMESTAMP_OUTPUT)),
    (PMIX_IOF_XML_OUTPUT, None),
    (PMIX_IOF_MERGE_STDERR_STDOUT, Some(PMIX_MERGE_STDERR_STDOUT)),
    (PMIX_IOF_OUTPUT_RAW, None),
    (PMIX_IOF_FILE_PATTERN, None),
    (PMIX_IOF_FILE_ONLY, Some(PMIX_OUTPUT_NOCOPY)),
    (PMIX_IOF_LOCAL_OUTPUT, None),
];

/// The flags that concern where output goes, and not how it looks.
const DESTINATIONS: [&str; 3] = [PMIX_IOF_FILE_PATTERN, PMIX_IOF_FILE_ONLY, PMIX_IOF_LOCAL_OUTPUT];

/// The attributes of one level. Those that are absent are left to the level below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Format {
    flags: BTreeMap<&'static str, bool>,
    files: Option<Location>,
}

/// The location of per-rank files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Location {
    /// The program's working directory when it gave the path, which may be relative to it.
    base: PathBuf,
    path: PathBuf,
    is_directory: bool,
}

impl Format {
    /// Takes the attributes from `infos`.
    pub(crate) fn take(infos: &mut Infos) -> Outcome<Format> {
        let mut format = Format::default();
        for (key, old) in FLAGS {
            let older = old.map_or(Ok(None), |old| infos.flag(old))?;
            let flag = infos.flag(key)?.or(older);
            format.flags.extend(flag.map(|flag| (key, flag)));
        }
        let mut path = |key| match infos.path(key)? {
            // The reason is usually a variable that is not set.
            Some(path) if path.as_os_str().is_empty() => {
                Err(format!("{key} is empty: give a path, or leave it out")).or_status(Status::ERR_BAD_PARAM)
            }
            path => Ok(path),
        };
        let name = [path(PMIX_OUTPUT_TO_FILE)?, path(PMIX_IOF_OUTPUT_TO_FILE)?];
        let directory = [path(PMIX_OUTPUT_TO_DIRECTORY)?, path(PMIX_IOF_OUTPUT_TO_DIRECTORY)?];
        let [name, directory] = [name, directory].map(|paths| paths.into_iter().flatten().next_back());
        // Without a working directory, files are relative to the later one.
        let base = env::current_dir().unwrap_or_default();
        let location = |path, is_directory| Location { base, path, is_directory };
        format.files = match (name, directory) {
            (Some(_), Some(_)) => {
                let reason = "output goes to a file or to a directory: leave one of the attributes out";
                return Err(reason).or_status(Status::ERR_BAD_PARAM);
            }
            (Some(name), None) => Some(location(name, false)),
            (None, directory) => directory.map(|path| location(path, true)),
        };
        format.place()?;
        Ok(format)
    }

    /// Returns these attributes, and for those that are absent the ones of `below`.
    pub(crate) fn over(&self, below: &Format) -> Format {
        let mut format = below.clone();
        format.flags.extend(&self.flags);
        format.files = self.files.clone().or(format.files);
        format
    }

    /// Returns the attributes that concern how the output looks, and not where it goes.
    pub(crate) fn look(mut self) -> Format {
        self.flags.retain(|key, _| !DESTINATIONS.contains(key));
        Format { files: None, ..self }
    }

    /// Returns the attributes for the output of a job that the library writes without a
    /// registration of the program, or `None` if it writes none.
    pub(crate) fn of_own_output(mut self) -> Option<Format> {
        let has_files = self.files.is_some();
        // Where it goes to files, IOF_IOF_FILE_ONLY decides whether it is shown, too.
        let is_local = *self.flags.entry(PMIX_IOF_LOCAL_OUTPUT).or_insert(has_files);
        (has_files || is_local).then_some(self)
    }

    fn flag(&self, key: &str) -> bool {
        self.flags.get(key).copied().unwrap_or(false)
    }

    /// Returns whether output goes to the program's own stdout and stderr.
    pub(crate) fn shows(&self) -> bool {
        let is_local = self.flags.get(PMIX_IOF_LOCAL_OUTPUT) != Some(&false);
        is_local && (self.files.is_none() || self.flags.get(PMIX_IOF_FILE_ONLY) == Some(&false))
    }

    /// Returns whether stderr and stddiag go to stdout.
    pub(crate) fn merges(&self) -> bool {
        self.flag(PMIX_IOF_MERGE_STDERR_STDOUT)
    }

    /// Returns the options of a printer.
    pub(crate) fn options(&self) -> Options {
        let choice = Choice {
            tag: self.flag(PMIX_IOF_TAG_OUTPUT),
            detailed: self.flag(PMIX_IOF_TAG_DETAILED_OUTPUT),
            fullname: self.flag(PMIX_IOF_TAG_FULLNAME_OUTPUT),
            rank: self.flag(PMIX_IOF_RANK_OUTPUT),
            stamp: self.flag(PMIX_IOF_TIMESTAMP_OUTPUT).then_some(Stamp::Calendar),
            markup: if self.flag(PMIX_IOF_XML_OUTPUT) { Markup::Xml } else { Markup::Text },
            ..Choice::default()
        };
        let style = Style::new(&choice, &StyleExtras::default());
        Options { style, raw: self.flag(PMIX_IOF_OUTPUT_RAW), ..Options::default() }
    }

    /// Returns the files to which output goes, of a job with this number of ranks.
    pub(crate) fn files(&self, nprocs: Option<u32>) -> Outcome<Option<Files>> {
        let files = |place| Files { merge: self.merges(), nprocs, ..Files::at(place) };
        Ok(self.place()?.map(files))
    }

    fn place(&self) -> Outcome<Option<FilePlace>> {
        let Some(Location { base, path, is_directory }) = &self.files else { return Ok(None) };
        Ok(Some(match is_directory {
            true => FilePlace::Tree(base.join(path)),
            false if self.flag(PMIX_IOF_FILE_PATTERN) => {
                let pattern = Pattern::new(&literal(base).join(path));
                FilePlace::Pattern(pattern.or_status(Status::ERR_BAD_PARAM)?)
            }
            false => FilePlace::Name(base.join(path)),
        }))
    }
}

/// Returns the pattern for exactly this path.
fn literal(path: &Path) -> PathBuf {
    let parts: Vec<&[u8]> = path.as_os_str().as_bytes().split(|byte| *byte == b'%').collect();
    OsString::from_vec(parts.join(&b"%%"[..])).into()
}

/// The form in which the output of a registration is written.
#[derive(Default)]
pub(crate) struct Print {
    /// Its own attributes. Those of its job apply for the others.
    pub format: Format,
    /// The files, if they were locked before the job started.
    pub files: Option<LockedFiles>,
    /// The jobs whose files have been written. A later job of the same name adds to them.
    pub begun: BTreeSet<Nspace>,
}

/// The formats of output that registrations without a callback receive, as far as they do not
/// specify them: those of the process and of each job.
#[derive(Debug, Default)]
pub(crate) struct Formats {
    default: Format,
    jobs: Mutex<BTreeMap<Nspace, Format>>,
}

impl Formats {
    pub(crate) fn new(default: Format) -> Formats {
        Formats { default, jobs: Mutex::default() }
    }

    /// Returns the format for the output of a job.
    pub(crate) fn of_job(&self, nspace: &Nspace) -> Format {
        lock(&self.jobs).get(nspace).map_or_else(|| self.default.clone(), |job| job.over(&self.default))
    }

    /// Checks the attributes of a registration together with those of the process, and returns how
    /// its output is written.
    pub(crate) fn registration(&self, format: Format) -> Outcome<Print> {
        format.over(&self.default).place()?;
        Ok(Print { format, ..Print::default() })
    }

    /// Sets the format of a job, until [`Formats::forget`].
    pub(crate) fn set(&self, nspace: &Nspace, format: Format) {
        if format != Format::default() {
            lock(&self.jobs).insert(nspace.clone(), format);
        }
    }

    /// Returns whether a job has a format of its own.
    pub(crate) fn has(&self, nspace: &Nspace) -> bool {
        lock(&self.jobs).contains_key(nspace)
    }

    pub(crate) fn forget(&self, nspace: &Nspace) {
        lock(&self.jobs).remove(nspace);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use iof_proto::InfoValue;

    use super::*;
    use crate::infos::infos;

    fn format(entries: &[(&str, InfoValue)]) -> Format {
        Format::take(&mut Infos(infos(entries))).unwrap()
    }

    #[test]
    fn the_newer_name_of_an_attribute_prevails_over_the_older_one() {
        let both = format(&[(PMIX_IOF_TAG_OUTPUT, false.into()), (PMIX_TAG_OUTPUT, true.into())]);
        assert!(!both.flag(PMIX_IOF_TAG_OUTPUT));
        assert!(format(&[(PMIX_TAG_OUTPUT, true.into())]).flag(PMIX_IOF_TAG_OUTPUT));
        let file = format(&[(PMIX_IOF_OUTPUT_TO_FILE, "/new".into()), (PMIX_OUTPUT_TO_FILE, "/old".into())]);
        assert_eq!(file.place().unwrap(), Some(FilePlace::Name("/new".into())));
    }

    #[test]
    fn a_relative_path_is_below_the_directory_in_which_it_was_given_and_no_pattern() {
        let base = env::current_dir().unwrap();
        let [mut file, mut tree, mut pattern] = [
            format(&[(PMIX_IOF_OUTPUT_TO_FILE, "x".into())]),
            format(&[(PMIX_IOF_OUTPUT_TO_DIRECTORY, "x".into())]),
            format(&[(PMIX_IOF_OUTPUT_TO_FILE, "%r%%".into()), (PMIX_IOF_FILE_PATTERN, true.into())]),
        ];
        assert_eq!(file.place().unwrap(), Some(FilePlace::Name(base.join("x"))));
        for format in [&mut file, &mut tree, &mut pattern] {
            format.files.as_mut().unwrap().base = "/a%n%".into();
        }
        assert_eq!(file.place().unwrap(), Some(FilePlace::Name("/a%n%/x".into())));
        assert_eq!(tree.place().unwrap(), Some(FilePlace::Tree("/a%n%/x".into())));
        let expected = Pattern::new(Path::new("/a%%n%%/%r%%")).unwrap();
        assert_eq!(pattern.place().unwrap(), Some(FilePlace::Pattern(expected)));
    }

    #[test]
    fn a_level_overrides_only_what_it_sets() {
        let below = format(&[(PMIX_IOF_RANK_OUTPUT, true.into()), (PMIX_IOF_OUTPUT_TO_FILE, "below".into())]);
        let above =
            format(&[(PMIX_IOF_XML_OUTPUT, true.into()), (PMIX_IOF_OUTPUT_TO_DIRECTORY, "/above".into())]);
        let both = above.over(&below);
        assert!(both.flag(PMIX_IOF_RANK_OUTPUT) && both.flag(PMIX_IOF_XML_OUTPUT));
        assert_eq!(both.place().unwrap(), Some(FilePlace::Tree("/above".into())));
        assert_eq!(Format::default().over(&both), both);
        let no_rank = format(&[(PMIX_IOF_RANK_OUTPUT, false.into())]);
        assert!(!no_rank.over(&both).flag(PMIX_IOF_RANK_OUTPUT));
    }

    #[test]
    fn output_goes_to_the_files_alone_unless_they_are_to_be_copies() {
        let (file, only, local) = (PMIX_IOF_OUTPUT_TO_FILE, PMIX_IOF_FILE_ONLY, PMIX_IOF_LOCAL_OUTPUT);
        let shows = |entries: &[_]| format(entries).shows();
        assert!(shows(&[]) && shows(&[(only, true.into())]) && !shows(&[(local, false.into())]));
        assert!(!shows(&[(file, "x".into())]) && shows(&[(file, "x".into()), (only, false.into())]));
        // The output of a job goes nowhere by default.
        let own = |entries: &[_]| format(entries).of_own_output().map(|format| format.shows());
        assert_eq!(own(&[]), None);
        assert_eq!(own(&[(PMIX_IOF_TAG_OUTPUT, true.into())]), None);
        assert_eq!(own(&[(local, true.into())]), Some(true));
        assert_eq!(own(&[(file, "x".into())]), Some(false));
        assert_eq!(own(&[(file, "x".into()), (only, false.into())]), Some(true));
        assert_eq!(own(&[(file, "x".into()), (only, false.into()), (local, false.into())]), Some(false));
    }

    #[test]
    fn two_or_empty_paths_an_unknown_placeholder_and_a_wrong_type_are_refused() {
        let refused = |entries: &[_]| Format::take(&mut Infos(infos(entries))).unwrap_err();
        let both = [(PMIX_IOF_OUTPUT_TO_FILE, "x".into()), (PMIX_IOF_OUTPUT_TO_DIRECTORY, "y".into())];
        assert_eq!(refused(&both), Status::ERR_BAD_PARAM);
        for key in [PMIX_IOF_OUTPUT_TO_FILE, PMIX_OUTPUT_TO_DIRECTORY] {
            assert_eq!(refused(&[(key, "".into())]), Status::ERR_BAD_PARAM);
        }
        let pattern = [(PMIX_IOF_OUTPUT_TO_FILE, "x%y".into()), (PMIX_IOF_FILE_PATTERN, true.into())];
        assert_eq!(refused(&pattern), Status::ERR_BAD_PARAM);
        assert_eq!(refused(&[(PMIX_IOF_TAG_OUTPUT, "x".into())]), Status::ERR_TYPE_MISMATCH);
    }

    #[test]
    fn a_job_has_its_format_until_it_is_forgotten() {
        let job = Nspace::new("job").unwrap();
        let formats = Formats::new(format(&[(PMIX_IOF_TAG_OUTPUT, true.into())]));
        formats.set(&job, format(&[(PMIX_IOF_XML_OUTPUT, true.into())]));
        let of_job = formats.of_job(&job);
        assert!(of_job.flag(PMIX_IOF_TAG_OUTPUT) && of_job.flag(PMIX_IOF_XML_OUTPUT));
        formats.forget(&job);
        assert_eq!(formats.of_job(&job), formats.default);
    }
}
