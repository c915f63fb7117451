//! What is made from the command line's own description: completions for shells, manual pages.

use std::io;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::Failure;
use crate::args::{CompletionsArgs, Iof, ManArgs};
use crate::print::write;

/// Prints what a shell is to read.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Iof::command(), "iof", &mut text);
    write(io::stdout(), &text)
}

/// Writes a page for `iof` and for each of its commands.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let directory = &args.directory;
    let failed = |error| Failure::Running(format!("manual pages in {}: {error}", directory.display()));
    for page in pages() {
        page.generate_to(directory).map_err(failed)?;
    }
    Ok(())
}

fn pages() -> Vec<Man> {
    // `iof help COMMAND` says what `iof COMMAND --help` says; it needs no page.
    let mut iof = Iof::command().disable_help_subcommand(true);
    iof.build();
    let source = concat!("iof ", env!("CARGO_PKG_VERSION"));
    let page = |command: &Command| Man::new(command.clone()).source(source).manual("iof");
    std::iter::once(&iof).chain(iof.get_subcommands()).map(page).collect()
}
