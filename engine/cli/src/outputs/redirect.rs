//! `-o` and `-e`: where stdout and stderr of the ranks go, in the way of srun.

use std::ffi::OsStr;
use std::path::Path;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use iof_output::{ChoiceError, Files, Pattern, find_clash};
use iof_proto::{Channels, Nspace};

use crate::error::Failure;

/// The heading of these options in help.
const OUTPUT: &str = "Output options";

#[derive(Args, Default)]
pub struct RedirectArgs {
    /// Write output to these files
    ///
    /// stderr goes there, too, unless -e is given. In PATTERN, %t is the rank, %4t the rank with 4
    /// digits, %r the rank with as many digits as the number of ranks, %n or %j the job, %h the
    /// host, %N the host without its domain, %% a percent sign. Streams whose names are the same
    /// share a file. Missing directories are created. `none` discards output, `all` or `-` shows
    /// it.
    #[arg(short, long, help_heading = OUTPUT, value_name = "PATTERN", value_parser = parser())]
    output_file: Option<Target>,

    /// Write stderr to these files
    ///
    /// As -o. stddiag goes where stderr goes. With -e all, stderr is shown although stdout goes to
    /// files.
    #[arg(short, long, help_heading = OUTPUT, value_name = "PATTERN", value_parser = parser())]
    error_file: Option<Target>,
}

/// The target of stdout or stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Shown,
    Discarded,
    Files(Pattern),
}

impl RedirectArgs {
    /// Returns the option that was given, if any.
    pub fn option(&self) -> Option<&'static str> {
        self.error_option().or(self.output_file.as_ref().map(|_| "-o"))
    }

    /// Returns `-e` if it was given.
    pub fn error_option(&self) -> Option<&'static str> {
        self.error_file.as_ref().map(|_| "-e")
    }

    /// Returns the targets of stdout and stderr.
    fn targets(&self) -> [(Channels, &Target); 2] {
        let output = self.output_file.as_ref().unwrap_or(&Target::Shown);
        [(Channels::STDOUT, output), (Channels::ERRORS, self.error_file.as_ref().unwrap_or(output))]
    }

    /// Returns the channels that are shown.
    pub fn shown(&self) -> Channels {
        let shown = self.targets().into_iter().filter(|(_, target)| **target == Target::Shown);
        shown.fold(Channels::empty(), |all, (channels, _)| all | channels)
    }

    /// Returns the channels that go to files, with the names of these files.
    pub fn files(&self) -> Vec<(Channels, Pattern)> {
        let mut files: Vec<(Channels, Pattern)> = Vec::new();
        for (channels, target) in self.targets() {
            let Target::Files(pattern) = target else { continue };
            match files.iter_mut().find(|(_, other)| other == pattern) {
                Some((shared, _)) => *shared |= channels,
                None => files.push((channels, pattern.clone())),
            }
        }
        files
    }
}

fn parser() -> impl TypedValueParser<Value = Target> {
    OsStringValueParser::new().try_map(|text| parse(&text))
}

fn parse(text: &OsStr) -> Result<Target, String> {
    match text.to_str() {
        Some("all" | "-") => return Ok(Target::Shown),
        Some("none") => return Ok(Target::Discarded),
        Some("") => return Err("expected the name of a file".into()),
        Some(rank) if rank.bytes().all(|byte| byte.is_ascii_digit()) => {
            return Err(format!("--ranks {rank} shows one rank; for a file of this name write ./{rank}"));
        }
        _ => {}
    }
    Pattern::new(Path::new(text)).map(Target::Files).map_err(|error| error.to_string())
}

/// Checks that no file has the name of a full file of another one.
pub fn check_rotation(files: &[(Channels, Files)]) -> Result<(), Failure> {
    let nspace = Nspace::new("job").map_err(Failure::running)?;
    match find_clash(files, &nspace) {
        Some((path, other)) => Err(Failure::Usage(format!(
            "{} is a name of a full file of {} (--file-size): give one of them another name",
            other.display(),
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Returns the failure for an invalid list of --output.
pub(super) fn invalid(error: ChoiceError) -> Failure {
    let hint = match &error {
        ChoiceError::Unknown(_) => ", or -o PATTERN for a file as in srun",
        _ => "",
    };
    Failure::Usage(format!("--output: {error}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(output: Option<&str>, error: Option<&str>) -> RedirectArgs {
        let target = |text: &str| parse(OsStr::new(text)).unwrap();
        RedirectArgs { output_file: output.map(target), error_file: error.map(target) }
    }

    fn pattern(text: &str) -> Pattern {
        Pattern::new(Path::new(text)).unwrap()
    }

    #[test]
    fn stderr_goes_where_stdout_goes_unless_it_has_its_own_target() {
        let both = Channels::OUTPUTS;
        let places = |output, error| {
            let args = args(output, error);
            (args.shown(), args.files())
        };
        assert_eq!(places(None, None), (both, vec![]));
        assert_eq!(places(Some("a"), None), (Channels::empty(), vec![(both, pattern("a"))]));
        assert_eq!(places(Some("a"), Some("a")), places(Some("a"), None), "one file");
        let two = vec![(Channels::STDOUT, pattern("a")), (Channels::ERRORS, pattern("b"))];
        assert_eq!(places(Some("a"), Some("b")), (Channels::empty(), two));
        for shown in ["all", "-"] {
            assert_eq!(
                places(Some("a"), Some(shown)),
                (Channels::ERRORS, vec![(Channels::STDOUT, pattern("a"))])
            );
        }
        assert_eq!(places(None, Some("a")), (Channels::STDOUT, vec![(Channels::ERRORS, pattern("a"))]));
        assert_eq!(places(Some("none"), None), (Channels::empty(), vec![]));
        assert_eq!(places(Some("none"), Some("all")), (Channels::ERRORS, vec![]));
    }

    #[test]
    fn a_rank_and_an_unknown_placeholder_are_refused_with_a_remedy() {
        for (text, remedy) in [("3", "--ranks 3"), ("out.%q", "%q"), ("", "a file")] {
            assert!(parse(OsStr::new(text)).is_err_and(|error| error.contains(remedy)), "{text}");
        }
    }
}
