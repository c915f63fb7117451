//! The cases, by what they are about.

mod channels;
mod content;
mod ends;
mod exits;
mod lines;
mod outputs;
mod pipes;
mod readers;
mod signals;
mod stdin;
mod terminals;
mod tools;

use crate::case::Case;

/// Returns all cases.
pub fn all() -> Vec<&'static Case> {
    let groups = [
        lines::CASES,
        content::CASES,
        channels::CASES,
        pipes::CASES,
        ends::CASES,
        exits::CASES,
        stdin::CASES,
        signals::CASES,
        readers::CASES,
        outputs::CASES,
        terminals::CASES,
        tools::CASES,
    ];
    groups.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn cases_have_different_names_and_a_sentence_each() {
        let all = super::all();
        assert!(all.len() >= 80, "{}", all.len());
        let mut names: Vec<_> = all.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|case| case.promise.ends_with('.') && !case.promise.contains("  ")));
    }
}
