//! Compares the page on conformance with the tests and with the table of attributes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use iof_proto::attribute;

fn page_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src")
}

fn page() -> String {
    ["conformance.md", "conformance-rfcs.md", "conformance-pmix.md"].map(read_page).concat()
}

fn read_page(name: &str) -> String {
    fs::read_to_string(page_directory().join(name)).unwrap()
}

/// Requires that a test exists, for a statement.
fn require_test(name: &str, path: &str, statement: &str) {
    let source =
        fs::read_to_string(page_directory().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert!(has_test(&source, name), "{path} has no test {name}: {statement}");
}

/// Returns the cells of each row, without the heads of the tables.
fn rows(page: &str) -> Vec<[&str; 3]> {
    let rows = page.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let cells = |line| {
        let cells: Vec<&str> = str::split(line, '|').map(str::trim).collect();
        let ["", specified, place, tests, ""] = cells[..] else { panic!("expected three cells: {line}") };
        assert!([specified, place, tests].iter().all(|cell| !cell.is_empty()), "an empty cell: {line}");
        [specified, place, tests]
    };
    rows.map(cells).filter(|row| *row != ["specified", "in iof", "shown by"]).collect()
}

/// Returns the tests that a cell names, each with the path of its file as the link specifies it.
fn named_tests(cell: &str) -> Vec<(&str, &str)> {
    cell.split(", ")
        .map(|test| {
            let link = test.strip_prefix("[`").and_then(|rest| rest.strip_suffix(')'));
            link.and_then(|link| link.split_once("`]("))
                .unwrap_or_else(|| panic!("not a link to a test: {test}"))
        })
        .collect()
}

/// Returns whether a source text has a test function of this name.
fn has_test(source: &str, name: &str) -> bool {
    let mut is_test = false;
    source.lines().map(str::trim).any(|line| {
        if let Some((_, rest)) = line.split_once("fn ") {
            return std::mem::take(&mut is_test) && rest.starts_with(&format!("{name}("));
        }
        is_test |= line == "#[test]";
        false
    })
}

#[test]
fn each_row_of_the_conformance_page_names_existing_tests_or_a_reason() {
    let page = page();
    let rows = rows(&page);
    assert!(rows.len() > 100, "found only {} rows", rows.len());
    for [specified, place, tests] in rows {
        match tests {
            "–" => assert!(place.contains("**Not built"), "no reason: {specified}"),
            "no test" => {}
            _ => {
                for (name, path) in named_tests(tests) {
                    require_test(name, path, specified);
                }
            }
        }
    }
}

#[test]
fn each_promise_of_the_specification_names_existing_tests_or_a_page() {
    let page = read_page("specification.md");
    let mut named = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise")) {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for test in tests.split(", ") {
            assert!(test.starts_with('[') && test.ends_with(')'), "no link: {row}");
            if let Some((name, path)) = test.trim_matches(['[', '`', ')']).split_once("`](") {
                require_test(name, path, row);
                named += 1;
            }
        }
    }
    assert!(named > 20, "found only {named} tests");
}

#[test]
fn the_conformance_page_has_a_row_for_each_attribute_of_pmix() {
    let page = page();
    let specified: Vec<&str> = rows(&page).into_iter().map(|[specified, ..]| specified).collect();
    let has_row = |name: &str| specified.iter().any(|cell| cell.contains(&format!("`{name}`")));
    let pmix = attribute::all().map(|row| row.name).filter(|name| name.starts_with("PMIX_"));
    let missing: Vec<&str> = pmix.filter(|name| !has_row(name)).collect();
    assert!(missing.is_empty(), "docs/src/conformance.md has no row for {missing:?}: add one");
}
