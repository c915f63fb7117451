//! The book's table of limits, compared with the constants.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, iter};

/// Where limits are defined.
const SOURCES: [&str; 7] = [
    "shm-ring/src",
    "capture/src",
    "engine/src",
    "engine/proto/src",
    "engine/log/src",
    "engine/output/src",
    "engine/c/src",
];

/// A constant's name and its value: a number, or milliseconds.
type Limit = (String, u64);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file with Rust source below `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => files(&path),
        Some(extension) if extension == "rs" => vec![path],
        _ => Vec::new(),
    };
    entries.flat_map(below).collect()
}

/// The limits that a source file defines: `MAX_...` everywhere, and all constants of `limits.rs`.
fn defined(path: &Path) -> Vec<Limit> {
    let all = path.ends_with("limits.rs");
    let text = fs::read_to_string(path).unwrap();
    let constants = constants(&text);
    let is_limit = |(name, _): &&(&str, &str)| all || name.starts_with("MAX_");
    let limit = |(name, expression): &(&str, &str)| {
        let value = evaluate(expression, &constants);
        (name.to_string(), value.unwrap_or_else(|| panic!("{}: {name} = {expression}", path.display())))
    };
    constants.iter().filter(is_limit).map(limit).collect()
}

/// The constants of a source, with the expressions of their values.
fn constants(source: &str) -> Vec<(&str, &str)> {
    let mut previous = "";
    let mut constants = Vec::new();
    for line in source.lines().map(str::trim) {
        // Loom and Miri have smaller ones.
        let is_real = !matches!(previous, "#[cfg(loom)]" | "#[cfg(miri)]");
        previous = line;
        let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
        let constant = line.strip_prefix("const ").and_then(|rest| rest.split_once(": "));
        if let Some((name, rest)) = constant.filter(|_| is_real)
            && let Some((_, expression)) = rest.trim_end_matches(';').split_once(" = ")
        {
            constants.push((name, expression));
        }
    }
    constants
}

/// The value of a constant's expression, which may name other `constants`.
fn evaluate(expression: &str, constants: &[(&str, &str)]) -> Option<u64> {
    let value = |expression: &str| evaluate(expression, constants);
    let within = |prefix: &str| expression.strip_prefix(prefix)?.strip_suffix(')');
    if let Some(seconds) = within("Duration::from_secs(") {
        return value(seconds)?.checked_mul(1000);
    }
    if let Some(milliseconds) = within("Duration::from_millis(") {
        return value(milliseconds);
    }
    if let Some((number, bits)) = expression.split_once(" << ") {
        return value(number)?.checked_shl(value(bits)?.try_into().ok()?);
    }
    // The last operator is applied last.
    if let Some(at) = expression.rfind(['*', '/']) {
        let (left, right) = (value(expression[..at].trim())?, value(expression[at + 1..].trim())?);
        return if expression[at..].starts_with('*') {
            left.checked_mul(right)
        } else {
            left.checked_div(right)
        };
    }
    let named = constants.iter().find(|(name, _)| *name == expression);
    named.map_or_else(|| expression.replace('_', "").parse().ok(), |(_, of)| value(of))
}

/// The value of a figure as the page has it: `1,024`, `64 KiB`, `5 s`.
fn read(figure: &str) -> Option<u64> {
    let (number, unit) = figure.split_once(' ').unwrap_or((figure, ""));
    let number: u64 = number.replace(',', "").parse().ok()?;
    let factor = match unit {
        "" | "ms" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "s" => 1000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// The rows of the page's tables.
fn listed() -> BTreeSet<Limit> {
    let page = fs::read_to_string(root().join("docs/src/limits.md")).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
        let [name, figure, counts, beyond, ""] = cells[..] else { panic!("not five cells: {line}") };
        assert!(!counts.is_empty() && !beyond.is_empty(), "an empty cell: {line}");
        let value = read(figure).unwrap_or_else(|| panic!("not a figure: {line}"));
        Some((name.trim_end_matches('`').to_owned(), value))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn every_limit_is_in_the_books_table_with_its_figure() {
    let listed = listed();
    let sources = SOURCES.iter().flat_map(|source| files(&root().join(source)));
    let tool = iter::once(root().join("engine/tool/src/tool.rs"));
    let defined: BTreeSet<Limit> = sources.chain(tool).flat_map(|path| defined(&path)).collect();
    let missing: Vec<&Limit> = defined.difference(&listed).collect();
    assert!(missing.is_empty(), "docs/src/limits.md does not list {missing:?}");
    assert!(defined.len() > 50, "only {} limits are found", defined.len());
    // `..._LIMIT`s are rows, too, and are defined under these names somewhere.
    let unknown = listed.difference(&defined).filter(|(name, _)| name.starts_with("MAX_"));
    let unknown: Vec<&Limit> = unknown.collect();
    assert!(unknown.is_empty(), "docs/src/limits.md lists {unknown:?}, which is not defined so");
}
