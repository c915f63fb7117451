//! Output options that exclude each other, or make others needless.

use std::io::{self, IsTerminal};

use iof_output::{Choice, Fold, LabelTemplate};
use iof_proto::{Channels, Rank};

use crate::error::Failure;
use crate::outputs::output::{OutputArgs, Outputs, TagBy};

/// A label that does not suit several ranks.
const LABEL_OF_ONE: &str = "a --label without {rank}, or with {host} or {pid}";

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
        let (filter, fold) = (self.lines.filter_option(), self.lines.fold_option());
        let fragment = Some("--tag-by fragment").filter(|_| self.tag_by == TagBy::Fragment);
        let suffix = Some("--tag-suffix").filter(|_| !self.tag_suffix.is_empty());
        let excluded = excluded
            .or(suffix.zip(choice.markup.word()))
            .or(fragment.zip(choice.batch.then_some("--output json=batch")))
            .or(filter.or(fold).zip(choice.raw.then_some("--output :raw")))
            .or(filter.or(fold).zip(fragment))
            .or(fold.zip(choice.markup.word()))
            .or(fold.zip(choice.detailed.then_some("tag-detailed")))
            .or(fold
                .zip(self.lines.label.as_ref().filter(|label| !label.suits_several()).map(|_| LABEL_OF_ONE)));
        let label = self.lines.label.as_ref().map(|_| "--label");
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
    /// Folds whole outputs in place of lines, if --fold was given.
    pub fn fold_whole(&mut self) -> Result<(), Failure> {
        let Some(fold) = &mut self.fold else { return Ok(()) };
        fold.whole = true;
        if self.choice.stamp.is_some()
            || self.args.lines.label.as_ref().is_some_and(LabelTemplate::shows_time)
        {
            return Err(Failure::usage(
                "--fold with --no-follow shows whole outputs, which have no time: leave out the time, or --no-follow",
            ));
        }
        Ok(())
    }

    /// Returns the format of lines, which shows the ranks if lines are folded.
    pub(super) fn choice_of(&self, fold: Option<Fold>) -> Choice {
        let Outputs { args, choice, .. } = self;
        let is_tagged = args.lines.label.is_some() || choice.tags().next().is_some();
        Choice { rank: choice.rank || fold.is_some() && !is_tagged, ..choice.clone() }
    }

    /// Returns whether the stderr of `rank` is shown as it is beside messages: on a terminal, or without that
    /// of other ranks.
    pub fn shows_errors_plainly(&self, rank: Rank) -> bool {
        let Outputs { args, choice, .. } = self;
        let is_shown = args.ranks.as_ref().is_none_or(|ranks| ranks.contain(rank));
        let shown = self.shown() - args.no_forward.unwrap_or(Channels::empty());
        let changed = excludes_label(choice).or(args.lines.filter_option()).or(args.lines.fold_option());
        let is_beside = !choice.merge && (self.nprocs == Some(1) || io::stderr().is_terminal());
        let is_plain = changed.is_none() && args.lines.label.is_none() && is_beside;
        is_plain && is_shown && shown.contains(Channels::STDERR)
    }
}
