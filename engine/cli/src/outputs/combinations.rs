//! Output options that exclude each other.

use iof_output::Choice;

use crate::error::Failure;
use crate::outputs::output::{OutputArgs, TagBy};

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
        let suffix = Some("--tag-suffix").filter(|_| !self.tag_suffix.is_empty());
        let excluded = excluded
            .or(suffix.zip(choice.markup.word()))
            .or(filter.zip(choice.raw.then_some("--output :raw")))
            .or(filter.zip((self.tag_by == TagBy::Fragment).then_some("--tag-by fragment")));
        let label = self.lines.label().map(|_| "--label");
        let stamp = choice.stamp.map(|_| "timestamp").or(choice.node.then_some(":node"));
        let word = choice.tags().next().or(stamp).or(choice.markup.word());
        if let Some((label, word)) = label.zip(word).filter(|_| excluded.is_none()) {
            return Err(Failure::Usage(format!(
                "{label} cannot be combined with --output {word}: leave one out"
            )));
        }
        excluded.map_or(Ok(()), |(option, other)| {
            Err(Failure::Usage(format!("{option} cannot be combined with {other}: leave one out")))
        })
    }
}
