//! Shell completions and manual pages, generated from clap's description of the command line.

mod complete;
mod output_words;
pub mod sections;

use std::fs::File;
use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use self::sections::Sections;
use crate::args::{CompletionsArgs, Iof, ManArgs};
use crate::error::Failure;
use crate::terminal::print::write;

/// Prints the completion script of a shell, or the candidates for the value of an option.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let text = match (args.shell, args.list) {
        (_, Some(list)) => complete::candidates(list, &args.typed, args.rendezvous_dir.as_deref()),
        (Some(shell), None) => complete::script(shell),
        (None, None) => String::new(),
    };
    write(io::stdout(), text.as_bytes())
}

/// Writes a manual page for `iof`, for each of its commands, and for those that `iof run` uses.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let directory = &args.directory;
    if !directory.is_dir() {
        return Err(Failure::Usage(format!("no directory {}: create it first", directory.display())));
    }
    let failed =
        |error| Failure::Running(format!("cannot write manual pages to {}: {error}", directory.display()));
    for page in pages() {
        let file = File::create(directory.join(page.man.get_filename()));
        file.and_then(|mut file| page.render(&mut file)).map_err(failed)?;
    }
    Ok(())
}

/// A manual page.
struct Page {
    man: Man,
    /// The text behind the options in clap's help.
    notes: Option<String>,
    sections: Option<&'static Sections>,
}

fn pages() -> Vec<Page> {
    // `iof help COMMAND` prints the same as `iof COMMAND --help`, so it needs no page.
    let mut iof = Iof::command().disable_help_subcommand(true);
    iof.build();
    let source = concat!("iof ", env!("CARGO_PKG_VERSION"));
    let page = |command: &Command| Page {
        man: Man::new(command.clone()).source(source).manual("iof"),
        notes: command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string),
        sections: sections::of_command(command.get_name()),
    };
    std::iter::once(&iof).chain(with_pages(&iof)).map(page).collect()
}

/// Returns the commands that have pages: those that users run, and hidden ones that users meet in
/// ps(1).
fn with_pages(iof: &Command) -> impl Iterator<Item = &Command> {
    iof.get_subcommands().filter(|command| sections::of_command(command.get_name()).is_some())
}

impl Page {
    /// Writes the page, with its sections in the order of man-pages(7).
    fn render(&self, output: &mut dyn Write) -> io::Result<()> {
        let Page { man, notes, sections } = self;
        man.render_title(output)?;
        man.render_name_section(output)?;
        man.render_synopsis_section(output)?;
        man.render_description_section(output)?;
        man.render_options_section(output)?;
        if man.get_filename() == "iof.1" {
            man.render_subcommands_section(output)?;
        }
        let mut roff = Roff::new();
        if let Some(sections) = sections {
            entries(&mut roff, "EXIT STATUS", sections.exit_status);
            entries(&mut roff, "ENVIRONMENT", sections.environment);
            entries(&mut roff, "FILES", sections.files);
        }
        if let Some(notes) = notes {
            roff.control("SH", ["NOTES"]);
            for paragraph in notes.split("\n\n") {
                roff.control("PP", []).text([roman(paragraph)]);
            }
        }
        if let Some(sections) = sections {
            entries(&mut roff, "EXAMPLES", sections.examples);
            roff.control("SH", ["SEE ALSO"]);
            let is_main = man.get_filename() == "iof.1";
            let names = sections.see_also.iter().map(|name| format!("iof-{name}(1)"));
            let names: Vec<String> =
                (!is_main).then(|| "iof(1)".to_owned()).into_iter().chain(names).collect();
            roff.text([roman(names.join(", "))]);
        }
        roff.to_writer(output)
    }
}

/// Appends a section of terms and their explanations.
fn entries(roff: &mut Roff, title: &str, entries: &[(&str, &str)]) {
    roff.control("SH", [title]);
    if entries.is_empty() {
        roff.text([roman("None.")]);
    }
    for (term, text) in entries {
        roff.control("TP", []).text([bold(*term)]).text([roman(*text)]);
    }
}

#[cfg(test)]
mod coming_from;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
