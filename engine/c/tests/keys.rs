//! The keys of the header and their types match the table of attributes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use iof_proto::attribute::{self, Attribute, Place, ValueType};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns the name of an attribute in C.
fn c_name(attribute: &Attribute) -> String {
    let name = attribute.name;
    format!("IOF_{}", name.strip_prefix("PMIX_").or_else(|| name.strip_prefix("IOF_")).unwrap())
}

/// Returns the types of C that suit an attribute, as its description begins with them.
fn c_types(types: &[ValueType]) -> &'static [&'static str] {
    match types {
        [ValueType::Bool] => &["bool"],
        [ValueType::Bool, ValueType::Process] => &["bool or proc"],
        [ValueType::Number] => &["uint16", "uint32", "uint64", "int", "int32", "pid", "rank", "time"],
        [ValueType::Number, ValueType::Process] => &["rank or proc"],
        [ValueType::Text | ValueType::Names] => &["string", "byte object or string"],
        [ValueType::Process] => &["proc"],
        [ValueType::Status] | [ValueType::Status, ValueType::Jobs] => &["status"],
        [ValueType::Channel] => &["channel"],
        [ValueType::Processes] => &["array of proc_info", "array of proc"],
        [ValueType::Jobs | ValueType::Streams | ValueType::Attributes] => &["array of infos"],
        [ValueType::Email] => &["array of infos with the keys IOF_LOG_EMAIL_ADDR and following"],
        _ => &[],
    }
}

#[test]
fn the_keys_of_the_header_are_those_of_the_table_with_their_types() {
    let mut described = BTreeMap::new();
    let mut doc = Vec::new();
    let header = read("include/iof.h").replacen(&read("src/standard.h"), "", 1);
    assert!(!header.contains("IOF_TIMEOUT "), "without the constants that the library ignores");
    for line in header.lines() {
        let key = line.strip_prefix("#define ").and_then(|rest| rest.split_once(" \""));
        let key = key.filter(|(name, _)| !name.contains('('));
        if let Some(text) = line.strip_prefix("// ") {
            doc.push(text);
        } else if let Some((name, key)) = key {
            described.insert((name.to_owned(), key.trim_end_matches('"')), doc.join(" "));
            doc.clear();
        } else {
            doc.clear();
        }
    }
    let in_c = || attribute::all().filter(|attribute| attribute.places != [Place::PmixSpawn]);
    let table = in_c().map(|attribute| (c_name(attribute), attribute.key));
    assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), table.collect());
    for attribute in in_c() {
        let doc = &described[&(c_name(attribute), attribute.key)];
        let (head, _) = doc.split_once(": ").unwrap_or_else(|| panic!("no colon: {doc}"));
        let types = c_types(attribute.types);
        let fits = types.iter().any(|name| head.ends_with(&format!("({name})")));
        assert!(fits || types.is_empty(), "{}: expected one of {types:?}: {doc}", attribute.name);
    }
}
