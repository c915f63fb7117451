//! Generates the page of attributes from the table.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::path::Path;
use std::{env, fs};

use iof_proto::attribute::{Attribute, TOPICS};

const HEAD: &str = "\
# Attributes

<!-- Generated: IOF_BLESS=1 cargo test -p iof-proto --test attributes_page -->

An attribute is a key with a value. Keys that begin with `pmix.` are defined by PMIx; keys that
begin with `iof.` are extensions. `iof query ATTRIBUTE_SUPPORT` lists the keys that an engine and
its host support. In Rust, the table is the module `iof_proto::attribute`.

In C, the name of a key begins with `IOF_` instead of `PMIX_`, and the type of its value is an
`IOF_` constant: text is `IOF_STRING`, number any integer type, bool `IOF_BOOL`, process `IOF_PROC`.
[`iof.h`](../../engine/c/include/iof.h) lists the types in C of answers to queries.

The third column names the places where an attribute is honoured:

| place | meaning |
|---|---|
| server | the start of an engine: `Config::apply_directives`, `iof_server_init` |
| spawn | the start or adoption of a job: `Directives::read`, `iof_server_spawn`, `iof_server_adopt` |
| pull | a registration of a tool: `Pull`, `iof_IOF_pull` |
| push | a push of stdin: `Push`, `iof_IOF_push` |
| deliver | a delivery of output from another node: `Engine::deliver`, `iof_server_IOF_deliver` |
| query, qualifier | a key of a query; a qualifier, which limits the answer |
| log channel, log directive | a channel of a log request, which has the message as its value; a directive, which controls how the request is served |
| email | a field of an email |
| `iof_` and a name | this function of the C library |
| callback, output, answer, event | given in C: to a callback of the launcher, with output, as a field of an answer, with an event |
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for topic in &TOPICS {
        page += &format!(
            "\n## {}\n\n| name | key | where | type | meaning |\n|---|---|---|---|---|\n",
            topic.heading
        );
        for attribute in topic.attributes {
            let (Attribute { name, key, .. }, text) = (attribute, attribute.text());
            let places: Vec<String> = attribute.places.iter().map(ToString::to_string).collect();
            let (places, values) = (places.join(", "), attribute.values());
            page += &format!("| `{name}` | `{key}` | {places} | {values} | {text} |\n");
        }
    }
    page
}

#[test]
fn the_attribute_page_matches_the_table() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/attributes.md");
    let expected = page();
    if env::var_os("IOF_BLESS").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    let actual = fs::read_to_string(&file).unwrap_or_default();
    let command = "IOF_BLESS=1 cargo test -p iof-proto --test attributes_page";
    assert!(actual == expected, "docs/src/attributes.md is outdated: run {command}");
}
