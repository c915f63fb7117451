//! Compares the tables of limits in the book with the constants, and generates the rows of quotas.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs, iter};

use iof_proto::Quota;

/// The directories whose files define limits.
const SOURCES: [&str; 12] = [
    "shm-ring/src",
    "capture/src",
    "engine/core/src",
    "engine/server/src",
    "engine/proto/src",
    "engine/log/src",
    "engine/output/src",
    "engine/nodes/src",
    "engine/remote/src",
    "engine/pmi/src",
    "engine/pmix/src",
    "engine/c/src",
];

/// A constant's name and its value: a number, or milliseconds.
type Limit = (String, u64);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns all Rust source files below `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => files(&path),
        Some(extension) if extension == "rs" => vec![path],
        _ => Vec::new(),
    };
    entries.flat_map(below).collect()
}

/// Returns the limits that a source file defines: all constants `MAX_...`, and in `limits.rs` all
/// constants.
fn defined(path: &Path) -> Vec<Limit> {
    let lists_all = path.ends_with("limits.rs");
    let text = fs::read_to_string(path).unwrap();
    let constants = constants(&text);
    let is_limit = |(name, _): &&(&str, &str)| lists_all || name.starts_with("MAX_");
    let limit = |(name, expression): &(&str, &str)| {
        let value = evaluate(expression, &constants);
        (name.to_string(), value.unwrap_or_else(|| panic!("{}: {name} = {expression}", path.display())))
    };
    constants.iter().filter(is_limit).map(limit).collect()
}

/// Returns the constants of a source text with the expressions of their values.
fn constants(source: &str) -> Vec<(&str, &str)> {
    let mut previous = "";
    let mut constants = Vec::new();
    for line in source.lines().map(str::trim) {
        // Loom and Miri use smaller limits.
        let is_regular = !matches!(previous, "#[cfg(loom)]" | "#[cfg(miri)]");
        previous = line;
        let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
        let constant = line.strip_prefix("const ").and_then(|rest| rest.split_once(": "));
        if let Some((name, rest)) = constant.filter(|_| is_regular)
            && let Some((_, expression)) = rest.trim_end_matches(';').split_once(" = ")
        {
            constants.push((name, expression));
        }
    }
    constants
}

/// Returns the value of a constant's expression, which may name other `constants`.
fn evaluate(expression: &str, constants: &[(&str, &str)]) -> Option<u64> {
    let value = |expression: &str| evaluate(expression, constants);
    let argument = |prefix: &str| expression.strip_prefix(prefix)?.strip_suffix(')');
    if let Some(seconds) = argument("Duration::from_secs(") {
        return value(seconds)?.checked_mul(1000);
    }
    if let Some(milliseconds) = argument("Duration::from_millis(") {
        return value(milliseconds);
    }
    if let Some((number, bits)) = expression.split_once(" << ") {
        return value(number)?.checked_shl(value(bits)?.try_into().ok()?);
    }
    // Both operators associate to the left, so the last one is evaluated last.
    if let Some(index) = expression.rfind(['*', '/']) {
        let (left, right) = (value(expression[..index].trim())?, value(expression[index + 1..].trim())?);
        return if expression[index..].starts_with('*') {
            left.checked_mul(right)
        } else {
            left.checked_div(right)
        };
    }
    let named = constants.iter().find(|(name, _)| *name == expression);
    named.map_or_else(|| expression.replace('_', "").parse().ok(), |(_, expression)| value(expression))
}

/// Returns the value of a figure of the page, such as `1,024`, `64 KiB` or `5 s`.
fn parse_figure(figure: &str) -> Option<u64> {
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

/// Returns the rows of the page's tables.
fn listed() -> BTreeSet<Limit> {
    let page = fs::read_to_string(root().join("docs/src/limits.md")).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
        let [name, figure, counted, effect, ""] = cells[..] else { panic!("not five cells: {line}") };
        assert!(!counted.is_empty() && !effect.is_empty(), "an empty cell: {line}");
        let value = parse_figure(figure).unwrap_or_else(|| panic!("not a figure: {line}"));
        Some((name.trim_end_matches('`').to_owned(), value))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn the_limits_page_lists_every_limit_with_its_value() {
    let listed = listed();
    let sources = SOURCES.iter().flat_map(|source| files(&root().join(source)));
    let tool = iter::once(root().join("engine/tool/src/tool.rs"));
    let quotas = Quota::ALL.iter().flat_map(|quota| quota.limits());
    let quotas = quotas.map(|limit| (limit.name.to_owned(), limit.value as u64));
    let defined: BTreeSet<Limit> =
        sources.chain(tool).flat_map(|path| defined(&path)).chain(quotas).collect();
    let missing: Vec<&Limit> = defined.difference(&listed).collect();
    assert!(missing.is_empty(), "docs/src/limits.md does not list {missing:?}");
    assert!(defined.len() > 50, "found only {} limits", defined.len());
    // Rows with other names, such as `..._LIMIT`, are not checked for a definition.
    let unknown = listed.difference(&defined).filter(|(name, _)| name.starts_with("MAX_"));
    let unknown: Vec<&Limit> = unknown.collect();
    assert!(
        unknown.is_empty(),
        "docs/src/limits.md lists {unknown:?}, but no constant has this name and value"
    );
}

#[test]
fn the_rows_of_quotas_on_the_limits_page_match_the_table() {
    let file = root().join("docs/src/limits.md");
    let page = fs::read_to_string(&file).unwrap();
    let rows: Vec<String> = Quota::ALL.iter().flat_map(|quota| quota.rows()).collect();
    let begin = |row: &str| row.split('|').nth(1).map(str::to_owned);
    // Other limits have other values and the same name.
    let is_of = |line: &str, row: &str| begin(line) == begin(row) && !line.contains("of PMIx");
    let row_of = |line: &str| rows.iter().find(|row| is_of(line, row)).cloned();
    let expected = page.lines().map(|line| row_of(line).unwrap_or_else(|| line.to_owned()) + "\n");
    let expected: String = expected.collect();
    if env::var_os("IOF_BLESS").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    let command = "IOF_BLESS=1 cargo test -p iof-proto --test limits_page";
    assert!(fs::read_to_string(&file).unwrap() == expected, "docs/src/limits.md is outdated: run {command}");
    rows.iter().for_each(|row| assert!(page.contains(row), "add this row to docs/src/limits.md: {row}"));
}
