//! The translation of a command line from the spellings of other launchers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::builder::PossibleValue;
use clap::error::ErrorKind;
use clap::{Arg, Command};

use super::convert::is_rank_list;
use super::{Meaning, Spelling, Values, of_command};
use crate::options::similar::closest;

/// The separator between programs.
const SEPARATOR: &str = ":";

/// The options of `iof run` and `iof pull` that take the name of a file. The long options of other
/// launchers that begin with these letters, such as `-output-proxy`, are not names of files.
const PATTERN_LETTERS: [&str; 2] = ["-o", "-e"];

/// The length of a dash and two letters, which are not a misspelled long option.
const MAX_LETTERS: usize = 3;

/// The reason why a command line cannot be translated.
pub enum Refusal {
    /// No such option exists.
    Unknown(String),
    /// An option of another launcher is refused, with what to write.
    Refused(String),
    /// The option before a refused one has an invalid value: probably its value is missing.
    Invalid(clap::Error),
}

use Refusal::{Refused, Unknown};

/// Replaces the spellings of other launchers in `words`, the arguments of `command`. Programs and
/// their arguments are not changed.
pub fn translate(words: Vec<OsString>, command: &Command) -> Result<Vec<OsString>, Refusal> {
    let (done, everywhere) = (Vec::new(), Vec::new());
    let mut translation =
        Translation { command, rest: words.into_iter(), done, everywhere, is_first: true, pair: None };
    let mut option = 0..0;
    while let Some(word) = translation.rest.next() {
        let before = translation.pair.take();
        let start = translation.done.len();
        let translated = translation.word(word);
        translated.map_err(|refusal| {
            // The value may be missing, so that the program was taken for it.
            let note = |reason| match &before {
                Some(pair) => format!("{reason}; note that '{pair}' has set a variable"),
                None => reason,
            };
            match (invalid_value(command, translation.done.get(option.clone())), refusal) {
                (Some(error), _) => Refusal::Invalid(error),
                (None, Refused(reason)) => Refused(note(reason)),
                (None, Unknown(reason)) => Unknown(note(reason)),
                (None, invalid) => invalid,
            }
        })?;
        option = start..translation.done.len();
    }
    Ok(translation.done)
}

/// Returns clap's error about the value of the option in `words`, if that is invalid.
fn invalid_value(command: &Command, words: Option<&[OsString]>) -> Option<clap::Error> {
    let name = OsString::from(command.get_name());
    let program = ["--", "PROG"].map(OsString::from);
    let words = std::iter::once(name).chain(words?.iter().cloned()).chain(program);
    let error = command.clone().try_get_matches_from(words).err()?;
    matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue).then_some(error)
}

struct Translation<'a> {
    command: &'a Command,
    rest: std::vec::IntoIter<OsString>,
    done: Vec<OsString>,
    /// Options that hold for this program and for all further ones.
    everywhere: Vec<OsString>,
    /// The options are those before the first program.
    is_first: bool,
    /// The option just before that has set a variable, with the name and the value.
    pair: Option<String>,
}

/// The options that each program of a job may have.
const APP_OPTIONS: [&str; 4] = ["-n", "--nprocs", "--wdir", "-x"];

impl<'a> Translation<'a> {
    /// Translates an option, or skips a program.
    fn word(&mut self, word: OsString) -> Result<(), Refusal> {
        let is_option = word.as_bytes().starts_with(b"-") && word.len() > 1;
        if !is_option || word == "--" {
            let starts_program = self.command.get_name() == "run" || word == "--";
            self.done.push(word);
            if starts_program {
                self.skip_program();
            }
            return Ok(());
        }
        let (name, joined) = split(&word);
        let spelled = self.with_two_dashes(name);
        let known = spelled.as_deref().unwrap_or(name);
        let has_letters = spelled.is_none() && name.len() > 2 && !name.as_bytes().starts_with(b"--");
        if has_letters && self.find(name).is_none() {
            return self.letters(&word);
        }
        self.option(known, joined, b"=")
    }

    /// Translates one option. `joined` is the value in the same word, behind `link`.
    fn option(&mut self, name: &OsStr, joined: Option<&OsStr>, link: &[u8]) -> Result<(), Refusal> {
        let before = self.done.len();
        match (self.find(name), self.own(name)) {
            (Some(spelling), _) => self.replace(spelling, name, joined)?,
            (None, Some(own)) => self.keep(own, name, joined, link)?,
            (None, None) => return Err(self.unknown(name)),
        }
        let is_of_app =
            |option: &[u8]| APP_OPTIONS.iter().any(|of_app| option.starts_with(of_app.as_bytes()));
        let is_of_job = |option: &OsString| !is_of_app(option.as_bytes());
        if !self.is_first && self.done.get(before).is_some_and(is_of_job) {
            let name = name.display();
            return Err(Refused(format!(
                "option '{name}' is for the whole job: write it before the first program"
            )));
        }
        Ok(())
    }

    /// Keeps an option of the command's own.
    fn keep(&mut self, own: &Arg, name: &OsStr, joined: Option<&OsStr>, link: &[u8]) -> Result<(), Refusal> {
        if joined.is_some() && link == b"=" && !own.get_action().takes_values() {
            return Err(Refused(format!("option '{}' takes no value", name.display())));
        }
        let needs_equals = own.is_require_equals_set();
        if needs_equals && joined.is_none() {
            self.check_next(own, name)?;
        }
        self.done.push(match joined {
            Some(value) => [name, value].join(OsStr::from_bytes(link)),
            None => name.to_owned(),
        });
        if joined.is_none() && own.get_action().takes_values() && !needs_equals {
            self.done.extend(self.rest.next());
        }
        Ok(())
    }

    /// Refuses the value of `option`, which must follow `=`, as the next word: that would be the
    /// program.
    fn check_next(&self, option: &Arg, name: &OsStr) -> Result<(), Refusal> {
        let next = self.rest.as_slice().first().and_then(|next| next.to_str());
        let values = option.get_possible_values();
        match next.filter(|next| values.iter().any(|value| value.matches(next, false))) {
            Some(value) => {
                let name = name.display();
                Err(Refused(format!("the value of '{name}' must follow '=': write {name}={value}")))
            }
            None => Ok(()),
        }
    }

    /// Translates a word of letters behind one dash: options without values, then at most one with
    /// its value, such as `-ln4`.
    fn letters(&mut self, word: &OsStr) -> Result<(), Refusal> {
        let mut options: Vec<(OsString, Option<&OsStr>)> = Vec::new();
        let mut rest = word.as_bytes().get(1..).unwrap_or_default();
        while let [letter, later @ ..] = rest {
            let name = OsString::from(format!("-{}", char::from(*letter)));
            let is_number = !later.is_empty() && later.iter().all(u8::is_ascii_digit);
            // Such as -vv.
            let is_repeated = later.iter().all(|next| next == letter);
            let is_refused =
                self.find(&name).is_some_and(|spelling| matches!(spelling.meaning, Meaning::Refused(_)));
            rest = match self.takes_value(&name) {
                // The value of an option without effect, as in `-I5`.
                Some(false) if is_number && self.has_no_effect(&name) => &[],
                Some(false) if is_number && self.own(&name).is_some_and(Arg::is_require_equals_set) => {
                    return Err(self.no_such_value(&name, later));
                }
                Some(false) => {
                    options.push((name, None));
                    later
                }
                Some(true) if is_refused && is_repeated => {
                    options.push((name, None));
                    &[]
                }
                Some(true) if later.is_empty() || self.can_follow(&name, later, options.is_empty()) => {
                    options.push((name, (!later.is_empty()).then(|| OsStr::from_bytes(later))));
                    &[]
                }
                Some(true) if PATTERN_LETTERS.iter().any(|known| name == *known) => {
                    let (word, name) = (word.display(), name.display());
                    let hint = format!("for a file, write {name} FILE with a space");
                    return Err(Unknown(format!("there is no option '{word}': {hint}")));
                }
                _ => return Err(self.unknown(word)),
            };
        }
        let translated = options.into_iter().try_for_each(|(name, value)| self.option(&name, value, b""));
        translated.map_err(|refusal| match self.meant(word) {
            Some(_) if word.len() > MAX_LETTERS => self.unknown(word),
            _ => refusal,
        })
    }

    fn has_no_effect(&self, name: &OsStr) -> bool {
        self.find(name).is_some_and(|spelling| matches!(spelling.meaning, Meaning::Always(_)))
    }

    /// Returns whether the option of one letter takes a value, or `None` if it does not exist.
    fn takes_value(&self, letter: &OsStr) -> Option<bool> {
        if let Some(spelling) = self.find(letter) {
            return Some(spelling.values == Values::One || matches!(spelling.meaning, Meaning::Refused(_)));
        }
        let own = self.own(letter)?;
        Some(own.get_action().takes_values() && !own.is_require_equals_set())
    }

    /// Returns `true` if `value`, which follows its option's letter without a space, can be a value
    /// and not the rest of an unknown long option. Text behind `=` does not count: it may be the
    /// value of that option.
    fn can_follow(&self, letter: &OsStr, value: &[u8], is_first: bool) -> bool {
        let (name, joined) = split(OsStr::from_bytes(value));
        let has = |wanted: &[u8]| name.as_bytes().iter().any(|byte| wanted.contains(byte));
        if PATTERN_LETTERS.iter().any(|known| letter == *known) {
            return name == "all" || name == "none" || has(b"%./") || (name.is_empty() && joined.is_some());
        }
        let is_number = value.first().is_some_and(u8::is_ascii_digit);
        is_number || (is_first && letter != "-n") || (is_first && name.is_empty())
    }

    /// Refuses a number behind an option with listed values, such as `-K2`.
    fn no_such_value(&self, name: &OsStr, value: &[u8]) -> Refusal {
        let values = self.own(name).map(Arg::get_possible_values).unwrap_or_default();
        let values: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
        let (name, value) = (name.display(), OsStr::from_bytes(value).display());
        Refused(format!("invalid value '{value}' for '{name}': expected one of {}", values.join(", ")))
    }

    fn unknown(&self, word: &OsStr) -> Refusal {
        let hint = self.meant(word).map(|name| format!(": did you mean '{name}'?")).unwrap_or_default();
        Unknown(format!("there is no option '{}'{hint}", word.display()))
    }

    /// Returns the option that a misspelled `word` may stand for.
    fn meant(&self, word: &OsStr) -> Option<String> {
        let name = split(word).0.to_string_lossy();
        let typed = format!("--{}", name.trim_start_matches('-'));
        let own = self.command.get_arguments().filter_map(Arg::get_long).map(|long| format!("--{long}"));
        let accepted = of_command(self.command.get_name())
            .filter(|spelling| !matches!(spelling.meaning, Meaning::Refused(_)))
            .flat_map(|spelling| spelling.names)
            .map(|name| (*name).to_owned());
        closest(&typed, own.chain(accepted))
    }

    /// Copies the words of a program up to and including the next separator.
    fn skip_program(&mut self) {
        for word in self.rest.by_ref() {
            let is_separator = word == SEPARATOR;
            self.done.push(word);
            if is_separator {
                self.is_first = false;
                self.done.extend(self.everywhere.iter().cloned());
                return;
            }
        }
    }

    /// Returns `-name` as `--name` if only that exists: mpirun accepts both.
    fn with_two_dashes(&self, name: &OsStr) -> Option<OsString> {
        let is_long = name.len() > 2 && name.as_bytes().get(1) != Some(&b'-');
        let mut spelled = OsString::from("-");
        spelled.push(name);
        (is_long && (self.find(&spelled).is_some() || self.own(&spelled).is_some())).then_some(spelled)
    }

    /// Returns the spelling of this name, in which an underscore counts as a dash.
    fn find(&self, name: &OsStr) -> Option<&'static Spelling> {
        let is_name = |known: &&str| {
            let dashed = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
            known.bytes().eq(name.as_bytes().iter().map(dashed))
        };
        of_command(self.command.get_name()).find(|spelling| spelling.names.iter().any(is_name))
    }

    /// Returns the command's own option with this name.
    fn own(&self, name: &OsStr) -> Option<&'a Arg> {
        let name = name.to_str()?;
        self.command.get_arguments().find(|arg| match name.strip_prefix("--") {
            Some(long) => {
                arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
            }
            None => arg.get_short().is_some_and(|short| name.strip_prefix('-') == Some(&short.to_string())),
        })
    }

    /// Appends what the option `name` means. `joined` is the value in the same word.
    fn replace(&mut self, spelling: &Spelling, name: &OsStr, joined: Option<&OsStr>) -> Result<(), Refusal> {
        let unsupported = |value: Option<&OsStr>, reason: &str| {
            let value = value.map(|value| format!(" {}", value.display())).unwrap_or_default();
            Refused(format!("unsupported option '{}{value}': {reason}", name.display()))
        };
        match &spelling.meaning {
            Meaning::Refused(reason) => return Err(unsupported(joined, reason)),
            Meaning::Always(_) => {}
            Meaning::Same(words) => {
                let values = self.values(spelling.values, name, joined)?;
                self.done.extend(fill(words, &values));
            }
            Meaning::Everywhere(words) => {
                let words = fill(words, &self.values(spelling.values, name, joined)?);
                self.done.extend(words.iter().cloned());
                self.everywhere.extend(words);
            }
            Meaning::Depends(_, convert) => {
                let values = self.values(spelling.values, name, joined)?;
                let value = values.first().map(OsString::as_os_str).unwrap_or_default();
                self.done.extend(convert(value).map_err(|reason| unsupported(Some(value), &reason))?);
            }
        }
        Ok(())
    }

    /// Returns the values of the option `name`. `joined` is the one in the same word.
    fn values(
        &mut self,
        wanted: Values,
        name: &OsStr,
        joined: Option<&OsStr>,
    ) -> Result<Vec<OsString>, Refusal> {
        let joined = joined.map(OsStr::to_owned);
        let count = match wanted {
            Values::None if joined.is_some() => {
                return Err(Refused(format!("option '{}' takes no value", name.display())));
            }
            Values::None => 0,
            Values::One => 1,
            Values::NameAndValue => 2,
            Values::OptionalRanks(default) => {
                let mut next = || {
                    let has_value = self.rest.as_slice().first().is_some_and(|next| is_rank_list(next));
                    if has_value { self.rest.next() } else { None }
                };
                return Ok(vec![joined.or_else(&mut next).unwrap_or_else(|| default.into())]);
            }
        };
        let values: Vec<OsString> = joined.into_iter().chain(self.rest.by_ref()).take(count).collect();
        if let Values::NameAndValue = wanted
            && let Some(variable) = values.first().filter(|variable| variable.as_bytes().contains(&b'='))
        {
            let name = name.to_string_lossy();
            let name = name.trim_start_matches('-');
            let variable = variable.display();
            return Err(Refused(format!("invalid variable '{variable}': write -{name} NAME VALUE")));
        }
        if let (Values::NameAndValue, [variable, value]) = (wanted, values.as_slice()) {
            let name = name.to_string_lossy();
            let name = name.trim_start_matches('-');
            self.pair = Some(format!("-{name} {} {}", variable.display(), value.display()));
        }
        let missing = || Refused(format!("option '{}' requires a value", name.display()));
        (values.len() == count).then_some(values).ok_or_else(missing)
    }
}

/// Splits `--name=value` into its name and value.
fn split(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(index) => {
            let (name, value) = bytes.split_at(index);
            (OsStr::from_bytes(name), value.get(1..).map(OsStr::from_bytes))
        }
        None => (word, None),
    }
}

/// Replaces each `{}` in `words` by the next value.
fn fill(words: &[&str], values: &[OsString]) -> Vec<OsString> {
    let mut values = values.iter();
    let filled = words.iter().map(|word| {
        let mut parts = word.split("{}");
        let mut filled = OsString::from(parts.next().unwrap_or_default());
        for part in parts {
            filled.push(values.next().map(OsString::as_os_str).unwrap_or_default());
            filled.push(part);
        }
        filled
    });
    filled.collect()
}
