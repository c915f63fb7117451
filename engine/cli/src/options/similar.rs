//! The name that a misspelled one may stand for.

use strsim::{jaro, osa_distance};

/// The least similarity of two names that counts, from 0 to 1.
const LEAST_SIMILARITY: f64 = 0.85;

/// Returns the name that is most similar to `typed`, if one is similar enough.
pub fn closest<N: AsRef<str>>(typed: &str, names: impl IntoIterator<Item = N>) -> Option<N> {
    let compared = names.into_iter().map(|name| (jaro(typed, name.as_ref()), name));
    let similar = compared.filter(|(similarity, _)| *similarity > LEAST_SIMILARITY);
    similar.max_by(|(left, _), (right, _)| left.total_cmp(right)).map(|(_, name)| name)
}

/// Returns the name that differs from `typed` in one letter: one more, one less, another one, or
/// two that are swapped.
pub fn mistyped<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names.into_iter().find(|name| osa_distance(typed, name) == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_found_and_a_distant_one_is_not() {
        let names = ["--output", "--output-filename", "--drop"];
        assert_eq!(closest("--outptu", names), Some("--output"));
        assert_eq!(closest("--dorp", names), Some("--drop"));
        assert_eq!(closest("--frobnicate", names), None);
        assert_eq!(closest("--np", ["--nspace"]), None);
    }

    #[test]
    fn a_name_with_one_wrong_letter_is_found() {
        let names = ["run", "top", "kill"];
        for (typed, meant) in
            [("rnu", "run"), ("tpo", "top"), ("rn", "run"), ("kil", "kill"), ("killl", "kill")]
        {
            assert_eq!(mistyped(typed, names), Some(meant));
        }
        assert_eq!([mistyped("ls", names), mistyped("run", ["run"])], [None, None]);
    }
}
