//! The attribute tables of the book, made from the keys' own documentation.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::{env, fs};

/// A table: its heading, and the source file whose `mod key` it lists.
const TABLES: [(&str, &str); 3] = [
    ("I/O forwarding (RFC0025)", "engine/proto/src/directive.rs"),
    ("Queries (RFC0001, RFC0010)", "engine/proto/src/query.rs"),
    ("Logs (RFC0032)", "engine/proto/src/log.rs"),
];

const HEAD: &str = "\
# Attributes

<!-- Generated: IOF_BLESS=1 cargo test -p iof-proto --test attributes_page -->

An attribute is a key with a value. The type of the value stands in brackets. Keys that begin with
`pmix.` are PMIx's; keys that begin with `iof.` are extensions. `iof query ATTRIBUTE_SUPPORT` lists
the keys that an engine understands, with those of its host.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The constants of a file's `mod key`: name, key and documentation.
fn keys(source: &str) -> Vec<(String, String, String)> {
    let mut keys = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    let body = source.split_once("pub mod key {").map_or("", |(_, body)| body);
    for line in body.lines().take_while(|line| *line != "}").map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text.trim());
        } else if let Some((name, key)) =
            line.strip_prefix("pub const ").and_then(|rest| rest.split_once(": &str = "))
        {
            let key = key.trim_matches(['"', ';']);
            keys.push((name.to_owned(), key.to_owned(), without_links(&doc.join(" "))));
            doc.clear();
        } else {
            doc.clear();
        }
    }
    keys
}

/// Replaces rustdoc's links by their text.
fn without_links(doc: &str) -> String {
    let mut text = String::new();
    let mut rest = doc;
    while let Some((before, link)) = rest.split_once('[') {
        let (shown, after) = link.split_once(']').unwrap_or((link, ""));
        text += before;
        text += shown;
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    text + rest
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (heading, file) in TABLES {
        page += &format!("\n## {heading}\n\n| name | key | meaning |\n|---|---|---|\n");
        let source = fs::read_to_string(root().join(file)).unwrap();
        let keys = keys(&source);
        assert!(keys.len() >= 10, "the keys of {file} are not found: {keys:?}");
        for (name, key, doc) in keys {
            page += &format!("| `{name}` | `{key}` | {doc} |\n");
        }
    }
    page
}

#[test]
fn the_books_attribute_tables_are_those_of_the_keys() {
    let file = root().join("docs/src/attributes.md");
    let made = page();
    if env::var_os("IOF_BLESS").is_some() {
        fs::write(&file, &made).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let how = "IOF_BLESS=1 cargo test -p iof-proto --test attributes_page";
    assert!(kept == made, "docs/src/attributes.md is stale: run {how}");
}
