//! Completion of the value of `--output`: a list of words with qualifiers, and the paths in it.

use std::fs;
use std::path::Path;

use iof_output::{OUTPUT_QUALIFIERS, output_words};

/// The words whose value is a path, and whether it is that of a directory.
const WITH_PATH: [(&str, bool); 2] = [("dir=", true), ("file=", false)];

/// Returns the values of `--output` that begin with `typed`: the last word of the list is
/// completed.
pub fn complete(typed: &str) -> Vec<String> {
    let (before, word) = split_behind(typed, ',');
    let (named, _) = split_behind(word, ':');
    let path =
        WITH_PATH.iter().find_map(|(name, is_directory)| Some((word.strip_prefix(name)?, is_directory)));
    let ends: Vec<String> = match path {
        _ if !named.is_empty() => {
            let qualifiers = OUTPUT_QUALIFIERS.iter().find(|(start, _)| named.starts_with(start));
            let qualifiers = qualifiers.into_iter().flat_map(|(_, qualifiers)| qualifiers.iter());
            qualifiers.map(|qualifier| format!("{named}{qualifier}")).collect()
        }
        Some((path, is_directory)) => {
            let name = word.strip_suffix(path).unwrap_or_default();
            paths(path, *is_directory).into_iter().map(|path| format!("{name}{path}")).collect()
        }
        None => output_words().collect(),
    };
    let values = ends.into_iter().map(|end| format!("{before}{end}"));
    values.filter(|value| value.starts_with(typed)).collect()
}

/// Splits `text` behind the last `separator`; the first part is empty if it contains none.
fn split_behind(text: &str, separator: char) -> (&str, &str) {
    let end = text.rfind(separator).map_or(0, |index| index.saturating_add(separator.len_utf8()));
    text.split_at_checked(end).unwrap_or(("", text))
}

/// Returns the files and directories whose paths begin with `typed`, sorted. Directories end in
/// `/`.
fn paths(typed: &str, only_directories: bool) -> Vec<String> {
    let (directory, start) = split_behind(typed, '/');
    let entries = fs::read_dir(if directory.is_empty() { "." } else { directory });
    let mut paths = Vec::new();
    for entry in entries.into_iter().flatten().flatten() {
        // A comma and a colon end the path in the list.
        let Some(name) =
            entry.file_name().to_str().filter(|name| !name.contains([',', ':', '\n'])).map(str::to_owned)
        else {
            continue;
        };
        let path = format!("{directory}{name}");
        let is_directory = Path::new(&path).is_dir();
        let is_shown = name.starts_with(start) && (!name.starts_with('.') || start.starts_with('.'));
        if is_shown && (is_directory || !only_directories) {
            paths.push(if is_directory { format!("{path}/") } else { path });
        }
    }
    paths.sort_unstable();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_its_qualifier_or_its_path_is_completed() {
        assert_eq!(complete("tag-"), ["tag-detailed", "tag-fullname"]);
        assert_eq!(complete("tag,js"), ["tag,json", "tag,json=batch"]);
        assert_eq!(complete("tag:"), ["tag:raw"]);
        assert_eq!(
            complete("xml,dir=x:"),
            ["xml,dir=x:copy", "xml,dir=x:nocopy", "xml,dir=x:node", "xml,dir=x:raw"]
        );
        assert_eq!(complete("file=a:copy:p"), ["file=a:copy:pattern"]);
        assert_eq!(complete("dir=x:copy,f"), ["dir=x:copy,file="]);
        assert_eq!(complete("nonsense"), [""; 0]);
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("made")).unwrap();
        fs::write(directory.path().join("main"), "").unwrap();
        fs::write(directory.path().join("a,b"), "").unwrap();
        let at = directory.path().display();
        assert_eq!(complete(&format!("tag,dir={at}/")), [format!("tag,dir={at}/made/")]);
        let both = ["made/", "main"].map(|name| format!("file={at}/{name}"));
        let mut found = complete(&format!("file={at}/ma"));
        found.sort_unstable();
        assert_eq!(found, both);
        assert_eq!(complete(&format!("file={at}/a")), [""; 0], "a path with a comma");
        assert_eq!(complete("dir=/no/such/"), [""; 0]);
    }
}
