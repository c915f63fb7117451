//! The translation of a command line from the spellings of other launchers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

use super::{Meaning, SPELLINGS, Spelling, Values};

/// The separator between programs.
const SEPARATOR: &str = ":";

/// The options of `iof run` that take the name of a file. The long options of other launchers that
/// begin with these letters, such as `-ordered-output`, are not names of files.
const PATTERN_LETTERS: [&str; 2] = ["-o", "-e"];

/// Replaces the spellings of other launchers in `words`, the arguments of `run`. Programs and their
/// arguments are not changed.
///
/// # Errors
/// Returns the reason why an option is refused, with what to write.
pub fn translate(words: Vec<OsString>, run: &Command) -> Result<Vec<OsString>, String> {
    let mut translation =
        Translation { run, rest: words.into_iter(), done: Vec::new(), everywhere: Vec::new() };
    while let Some(word) = translation.rest.next() {
        translation.word(word)?;
    }
    Ok(translation.done)
}

struct Translation<'a> {
    run: &'a Command,
    rest: std::vec::IntoIter<OsString>,
    done: Vec<OsString>,
    /// Options that hold for this program and for all further ones.
    everywhere: Vec<OsString>,
}

impl Translation<'_> {
    /// Translates an option, or skips a program.
    fn word(&mut self, word: OsString) -> Result<(), String> {
        let is_option = word.as_bytes().starts_with(b"-") && word.len() > 1;
        if !is_option || word == "--" {
            self.done.push(word);
            self.skip_program();
            return Ok(());
        }
        let (name, joined) = split(&word);
        let spelled = self.with_two_dashes(name);
        let name = spelled.as_deref().unwrap_or(name);
        if let Some(spelling) = find(name) {
            return self.replace(spelling, name, joined);
        }
        if let Some((letter, value)) = letter_with_value(&word).filter(|_| spelled.is_none())
            && self.own(letter).is_none()
            && let Some(spelling) = find(letter).filter(|found| matches!(found.values, Values::One))
        {
            return self.replace(spelling, letter, Some(value));
        }
        if let Some((letter, _)) = letter_with_value(name).filter(|(letter, value)| {
            spelled.is_none() && PATTERN_LETTERS.iter().any(|known| letter == known) && !is_pattern(value)
        }) {
            return Err(format!(
                "there is no option '{}': for a file, write {} FILE with a space",
                word.display(),
                letter.display()
            ));
        }
        let takes_next = joined.is_none()
            && self
                .own(name)
                .is_some_and(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set());
        self.done.push(match (spelled.as_deref(), joined) {
            (Some(name), Some(value)) => [name, value].join(OsStr::new("=")),
            (Some(name), None) => name.to_owned(),
            (None, _) => word.clone(),
        });
        if takes_next {
            self.done.extend(self.rest.next());
        }
        Ok(())
    }

    /// Copies the words of a program up to and including the next separator.
    fn skip_program(&mut self) {
        for word in self.rest.by_ref() {
            let is_separator = word == SEPARATOR;
            self.done.push(word);
            if is_separator {
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
        (is_long && (find(&spelled).is_some() || self.own(&spelled).is_some())).then_some(spelled)
    }

    /// Returns the option of `iof run` with this name.
    fn own(&self, name: &OsStr) -> Option<&Arg> {
        let name = name.to_str()?;
        self.run.get_arguments().find(|arg| match name.strip_prefix("--") {
            Some(long) => {
                arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
            }
            None => arg.get_short().is_some_and(|short| name.strip_prefix('-') == Some(&short.to_string())),
        })
    }

    /// Appends what the option `name` means. `joined` is the value behind `=`.
    fn replace(&mut self, spelling: &Spelling, name: &OsStr, joined: Option<&OsStr>) -> Result<(), String> {
        if let Meaning::Refused(reason) = &spelling.meaning {
            return Err(format!("unsupported option '{}': {reason}", name.display()));
        }
        let values = self.values(spelling.values, name, joined)?;
        match &spelling.meaning {
            Meaning::Same(words) => self.done.extend(fill(words, &values)),
            Meaning::Everywhere(words) => {
                let words = fill(words, &values);
                self.done.extend(words.iter().cloned());
                self.everywhere.extend(words);
            }
            Meaning::Depends(_, convert) => {
                let value = values.first().map(OsString::as_os_str).unwrap_or_default();
                let refused =
                    |reason| format!("unsupported option '{} {}': {reason}", name.display(), value.display());
                self.done.extend(convert(value).map_err(refused)?);
            }
            Meaning::Always(_) | Meaning::Refused(_) => {}
        }
        Ok(())
    }

    /// Returns the values of the option `name`. `joined` is the one behind `=`.
    fn values(
        &mut self,
        wanted: Values,
        name: &OsStr,
        joined: Option<&OsStr>,
    ) -> Result<Vec<OsString>, String> {
        let joined = joined.map(OsStr::to_owned);
        let count = match wanted {
            Values::None if joined.is_some() => {
                return Err(format!("option '{}' takes no value", name.display()));
            }
            Values::None => 0,
            Values::One => 1,
            Values::NameAndValue => 2,
            Values::Optional(is_value, default) => {
                let mut next = || {
                    let has_value = self.rest.as_slice().first().is_some_and(|next| is_value(next));
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
            return Err(format!("invalid variable '{}': write -{name} NAME VALUE", variable.display()));
        }
        let is_complete = values.len() == count;
        is_complete.then_some(values).ok_or_else(|| format!("option '{}' requires a value", name.display()))
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

/// Splits `-xVALUE` into `-x` and its value.
fn letter_with_value(word: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = word.as_bytes();
    let is_letter = bytes.get(1).is_some_and(u8::is_ascii_alphabetic);
    let (letter, value) = bytes.split_at_checked(2)?;
    (is_letter && !value.is_empty()).then_some((OsStr::from_bytes(letter), OsStr::from_bytes(value)))
}

/// Returns `true` if `value`, which follows its option's letter without a space, can only be a
/// pattern. Text behind `=` does not count: it may be the value of an unknown long option.
fn is_pattern(value: &OsStr) -> bool {
    value == "all" || value == "none" || value.as_bytes().iter().any(|byte| b"%./".contains(byte))
}

fn find(name: &OsStr) -> Option<&'static Spelling> {
    SPELLINGS.iter().find(|spelling| spelling.names.iter().any(|known| *known == name))
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
