//! The keys of the header, their types and the lists of keys that functions honour match the table
//! of attributes.
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

/// Stands for the attributes of output in the documentation of a function.
const OF_OUTPUT: &str = "and the attributes of output (iof_IOF_pull)";

/// Returns the attributes of output.
fn of_output() -> BTreeSet<String> {
    let topic = attribute::TOPICS.iter().find(|topic| topic.heading.starts_with("Output"));
    topic.unwrap().attributes.iter().map(c_name).collect()
}

/// Returns the keys that the documentation of a function lists after `label`.
fn listed(source: &str, function: &str, label: &str) -> BTreeSet<String> {
    let (before, _) = source.split_once(&format!("extern \"C\" fn {function}(")).unwrap();
    let lines: Vec<&str> = before.lines().rev().skip(1).skip_while(|line| !line.starts_with("///")).collect();
    let doc = lines.iter().take_while(|line| line.starts_with("///")).map(|line| line[3..].trim());
    let doc = doc.collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" ");
    let (_, list) = doc.split_once(label).unwrap_or_else(|| panic!("{function} lists no {label}"));
    let (list, _) = list.split_once('.').unwrap();
    let words =
        list.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_' && !letter.is_ascii_digit());
    let words = words.filter(|word| word.starts_with("IOF_")).map(str::to_owned);
    words.chain(of_output().into_iter().filter(|_| list.contains(OF_OUTPUT))).collect()
}

#[test]
fn the_documentation_of_each_function_lists_its_attributes_of_the_table() {
    let [tool, forwarding, server, jobs, spawn] = ["tool", "forwarding", "server", "jobs", "spawn"]
        .map(|name| read(&format!("src/functions/{name}.rs")));
    let cases: [(&str, &str, &str, &[Place]); 8] = [
        (&tool, "iof_tool_init", "Infos: ", &[Place::ToolInit]),
        (&forwarding, "iof_IOF_pull", "Directives: ", &[Place::Pull, Place::LibraryPull]),
        (&forwarding, "iof_IOF_push", "Directives: ", &[Place::Push]),
        (&server, "iof_server_init", "Infos: ", &[Place::Server, Place::ServerInit]),
        (&jobs, "iof_server_spawn", "Infos of the job: ", &[Place::Spawn, Place::ServerSpawn]),
        (&jobs, "iof_server_spawn", "counted within the program: ", &[Place::Program]),
        (&spawn, "iof_Spawn", "Infos of the job: ", &[Place::Spawn, Place::ToolSpawn]),
        (&server, "iof_server_IOF_deliver", "Infos: ", &[Place::Deliver]),
    ];
    for (source, function, label, places) in cases {
        let expected: BTreeSet<String> =
            places.iter().flat_map(|place| attribute::at(*place)).map(c_name).collect();
        assert_eq!(listed(source, function, label), expected, "{function}");
    }
}
