//! Output options that exclude each other, or make others needless.

use std::io::{self, IsTerminal};

use iof_output::Choice;
use iof_proto::{Channels, Rank};

use crate::error::Failure;
use crate::outputs::output::{OutputArgs, Outputs, TagBy};

impl OutputArgs {
    /// Checks that `--output` and -o or -e do not both choose the place of the same output, and that no
    /// format leaves out --tag-suffix.
    pub(super) fn check_combinations(&self, choice: &Choice) -> Result<(), Failure> {
        let excluded = match (self.redirect.option(), self.redirect.error_option()) {
            (Some(option), _) if choice.files.is_some() => {
                Some((option, "--output dir=DIR and --output file=NAME"))
            }
            (_, Some(option)) if choice.merge => Some((option, "--output merge-stderr-to-stdout")),
            _ => None,
        };
        let filter = self.lines.filter_option();
        let fragment = Some("--tag-by fragment").filter(|_| self.tag_by == TagBy::Fragment);
        let suffix = Some("--tag-suffix").filter(|_| !self.tag_suffix.is_empty());
        let excluded = excluded
            .or(suffix.zip(choice.markup.word()))
            .or(fragment.zip(choice.batch.then_some("--output json=batch")))
            .or(filter.zip(choice.raw.then_some("--output :raw")))
            .or(filter.zip(fragment));
        let label = self.lines.label().map(|_| "--label");
        if let Some((label, word)) = label.zip(excludes_label(choice)).filter(|_| excluded.is_none()) {
            return Err(Failure::Usage(format!(
                "{label} cannot be combined with --output {word}: leave one out"
            )));
        }
        excluded.map_or(Ok(()), |(option, other)| {
            Err(Failure::Usage(format!("{option} cannot be combined with {other}: leave one out")))
        })
    }
}

/// Returns the word of `--output` that excludes a label, if any.
fn excludes_label(choice: &Choice) -> Option<&'static str> {
    let stamp = choice.stamp.map(|_| "timestamp").or(choice.node.then_some(":node"));
    choice.tags().next().or(stamp).or(choice.markup.word())
}

impl Outputs<'_> {
    /// Returns whether the stderr of `rank` is shown as it is beside messages: on a terminal, or without that
    /// of other ranks.
    pub fn shows_errors_plainly(&self, rank: Rank) -> bool {
        let Outputs { args, choice, .. } = self;
        let is_shown = args.ranks.as_ref().is_none_or(|ranks| ranks.contain(rank));
        let shown = self.shown() - args.no_forward.unwrap_or(Channels::empty());
        let changed = excludes_label(choice).or(args.lines.filter_option());
        let is_beside = !choice.merge && (self.nprocs == Some(1) || io::stderr().is_terminal());
        let is_plain = changed.is_none() && args.lines.label().is_none() && is_beside;
        is_plain && is_shown && shown.contains(Channels::STDERR)
    }
}
