//! Defaults of options of `iof run` from the environment.

use std::env;

use clap::builder::ArgPredicate;
use clap::{Arg, Args, Command};

use crate::error::shown;
use crate::outputs::lines::LineArgs;

/// The variable with the defaults.
const VARIABLE: &str = "IOF_RUN_OPTIONS";

/// The options that may have a default: those for the taste of a user. Others would change what a
/// script does.
const OPTIONS: [&str; 2] = ["--color", "--label"];

/// Sets the defaults of `iof run`; `explain` describes an error of clap. That of the label gives way to `--output`, which may exclude it.
///
/// # Errors
/// The variable has other options, or invalid values.
pub fn with_defaults(iof: Command, explain: fn(&clap::Error) -> String) -> Result<Command, String> {
    let Some(text) = env::var_os(VARIABLE) else { return Ok(iof) };
    let named = |error: String| format!("{VARIABLE}: {error}");
    let text = text.to_str().ok_or_else(|| named("invalid text: expected UTF-8".into()))?;
    let words = words(text).map_err(named)?;
    if let Some(name) = words.iter().step_by(2).find(|name| !OPTIONS.contains(&name.as_str())) {
        let name = shown(name);
        return Err(named(format!("unexpected '{name}': expected --color WHEN and --label TEMPLATE only")));
    }
    let parser = LineArgs::augment_args(Command::new(VARIABLE).no_binary_name(true));
    let matches = parser.try_get_matches_from(&words);
    matches.map_err(|error| named(explain(&error)))?;
    let mut words = words.into_iter();
    let mut iof = iof;
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let option = name.trim_start_matches('-').to_owned();
        // clap keeps defaults as long as the process runs.
        let value: &'static str = value.leak();
        let set = |arg: Arg| match arg.get_id() == "label" {
            true => arg.default_value_if("output", ArgPredicate::IsPresent, None).default_value(value),
            false => arg.default_value(value),
        };
        iof = iof.mut_subcommand("run", |run| run.mut_arg(option, set));
    }
    Ok(iof)
}

/// Splits a text into names and values, alternately. Blanks separate words, unless they are in quotes.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in text.chars() {
        match (letter, quote) {
            (letter, Some(end)) if letter == end => quote = None,
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('=', None) if words.len() % 2 == 0 && word.is_some() => {
                words.extend(word.replace(String::new()))
            }
            (letter, None) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    quote.map_or(Ok(words), |quote| Err(format!("missing {quote} at the end")))
}
