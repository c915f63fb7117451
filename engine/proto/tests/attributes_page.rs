//! Generates the attribute tables of the book from the documentation of the keys.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The tables: the heading, and the source file whose `mod key` the table lists.
const TABLES: [(&str, &str); 3] = [
    ("I/O forwarding (RFC0025)", "engine/proto/src/directive.rs"),
    ("Queries (RFC0001, RFC0010)", "engine/proto/src/query.rs"),
    ("Logs (RFC0032)", "engine/proto/src/log.rs"),
];

const HEAD: &str = "\
# Attributes

<!-- Generated: IOF_BLESS=1 cargo test -p iof-proto --test attributes_page -->

An attribute is a key with a value. The type of the value is given in brackets. Keys that begin with
`pmix.` are defined by PMIx; keys that begin with `iof.` are extensions. `iof query
ATTRIBUTE_SUPPORT` lists the keys that an engine and its host support.

In C, the name of a key begins with `IOF_` instead of `PMIX_`, and the type of its value is an
`IOF_` constant: text is `IOF_STRING`, number any integer type, bool `IOF_BOOL`, process `IOF_PROC`.
The C names of `IOF_TIME` and `IOF_STATS` are `IOF_READ_TIME` and `IOF_QUERY_STATS`.
[`iof.h`](../../engine/c/include/iof.h) lists the types in C of answers to queries, which are given
as Rust types here, and the keys that only the C library has, such as those of `iof_tool_init`.

In queries, a *qualifier* limits the answer, and the other keys name the requested values. In logs,
a *data* key names a channel and has the message as its value, a *directive* controls how the
request is served, and an *email* key is a field of an email.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the constants of a file's `mod key`: name, key and documentation.
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

/// Replaces rustdoc links by their text.
fn without_links(doc: &str) -> String {
    let mut text = String::new();
    let mut rest = doc;
    while let Some((before, link)) = rest.split_once('[') {
        let (label, after) = link.split_once(']').unwrap_or((link, ""));
        text += before;
        text += label;
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
        assert!(keys.len() >= 10, "too few keys found in {file}: {keys:?}");
        for (name, key, doc) in keys {
            page += &format!("| `{name}` | `{key}` | {doc} |\n");
        }
    }
    page
}

#[test]
fn the_attribute_page_matches_the_keys() {
    let file = root().join("docs/src/attributes.md");
    let expected = page();
    if env::var_os("IOF_BLESS").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    let actual = fs::read_to_string(&file).unwrap_or_default();
    let command = "IOF_BLESS=1 cargo test -p iof-proto --test attributes_page";
    assert!(actual == expected, "docs/src/attributes.md is outdated: run {command}");
}
