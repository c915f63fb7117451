//! The header matches the sources, and its layouts and values match PMIx's header.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fmt::Display;
use std::fs;
use std::path::Path;

use iof_c::{NUMBERS, iof_Data_type_string, iof_Error_string, iof_Proc_state_string, iof_Scope_string};
use iof_proto::attribute::{self, Attribute, Place};
use iof_proto::status::STATUSES;
use iof_testing::compiler::{compiler, pmix_flags, run};

/// Returns the name in C of a constant whose name in Rust is `name`.
fn c_name(name: &str) -> String {
    let name = name.strip_prefix("PMIX_").or_else(|| name.strip_prefix("IOF_")).unwrap_or(name);
    format!("IOF_{name}")
}

/// Returns the constant whose name in Rust is `name`.
fn define(name: &str, value: impl Display) -> String {
    format!("#define {} {value}\n", c_name(name))
}

/// Returns a text as a comment, in lines of at most 99 columns.
fn comment(text: &str) -> String {
    let mut lines = vec!["//".to_owned()];
    for word in text.split_whitespace() {
        if lines.last().unwrap().len() + 1 + word.len() > 99 {
            lines.push("//".to_owned());
        }
        *lines.last_mut().unwrap() += &format!(" {word}");
    }
    lines.join("\n")
}

/// Returns a constant with its comment.
fn documented(text: &str, define: &str) -> String {
    format!("\n{}\n{define}", comment(text))
}

/// The places of the table whose attributes functions honour.
const HONOURED: [&str; 11] = [
    "Deliver",
    "LibraryPull",
    "Program",
    "Pull",
    "Push",
    "Server",
    "ServerInit",
    "ServerSpawn",
    "Spawn",
    "ToolInit",
    "ToolSpawn",
];

/// The words before the place of attributes, in the documentation of a function.
const PLACE: &str = "`Place::";

/// Returns the attributes of places. Those of output follow the others; unless they are to be listed,
/// and if they are all there, they are named together.
fn attributes(places: &[&str], lists_output: bool) -> String {
    let is_here = |attribute: &Attribute| {
        attribute.places.iter().any(|place| places.contains(&format!("{place:?}").as_str()))
    };
    let output = attribute::TOPICS.iter().find(|topic| topic.heading.starts_with("Output")).unwrap();
    let names = |attributes: Vec<&'static Attribute>| -> Vec<String> {
        let define = |attribute: &Attribute| c_name(attribute.name);
        attributes.into_iter().filter(|attribute| is_here(attribute)).map(define).collect()
    };
    let is_output = |attribute: &&Attribute| output.attributes.contains(attribute);
    let mut all = names(attribute::all().filter(|attribute| !is_output(attribute)).collect());
    let of_output = names(output.attributes.iter().collect());
    if of_output.len() == output.attributes.len() && !lists_output {
        all.push("and the attributes of output (iof_IOF_pull)".into());
    } else {
        all.extend(of_output);
    }
    all.join(", ")
}

/// Replaces "those of `Place::A` and `Place::B`" in comments by the attributes of these places. Panics
/// unless all places whose attributes functions honour are named.
fn with_attributes(header: &str) -> String {
    let mut named = BTreeSet::new();
    let mut text = String::new();
    let is_text = |line: &str| line.starts_with("// ");
    for paragraph in
        header.split_inclusive('\n').collect::<Vec<_>>().chunk_by(|a, b| is_text(a) == is_text(b))
    {
        let joined = paragraph.iter().map(|line| line.trim_start_matches("// ").trim_end());
        let joined = joined.collect::<Vec<_>>().join(" ");
        let Some((before, rest)) = joined.split_once(&format!("those of {PLACE}")) else {
            text.extend(paragraph.iter().copied());
            continue;
        };
        let mut rest = format!("{PLACE}{rest}");
        let mut places = Vec::new();
        while let Some((place, after)) =
            rest.trim_start_matches(" and ").strip_prefix(PLACE).and_then(|rest| rest.split_once('`'))
        {
            places.push(place.to_owned());
            rest = after.to_owned();
        }
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let all = attributes(&places, places.contains(&"LibraryPull"));
        assert!(!rest.contains(PLACE), "{joined}");
        text += &format!("{}\n", comment(&format!("{before}{all}{rest}")));
        named.extend(places.into_iter().map(str::to_owned));
    }
    assert_eq!(named, HONOURED.map(str::to_owned).into(), "the places that comments name");
    text
}

/// Returns the constants of the tables of statuses, numbers and attributes, which cbindgen does not
/// see. Those that only have a name follow `standard`, which tells that they are PMIx's.
fn constants(standard: &str) -> String {
    let (mut described, mut named) = (String::new(), String::new());
    for row in STATUSES.iter().chain(NUMBERS.into_iter().flatten()) {
        let unsigned = if row.value > i32::MAX.into() { "u" } else { "" };
        let define = define(row.name, format!("{}{unsigned}", row.value));
        match row.doc {
            Some("") => named += &define,
            Some(doc) => described += &documented(doc, &define),
            None => {}
        }
    }
    for attribute in attribute::all().filter(|attribute| attribute.places != [Place::PmixSpawn]) {
        // Markdown has examples with brackets as code.
        let text = attribute.c_text().replace('`', "\"");
        described += &documented(&text, &define(attribute.name, format!("\"{}\"", attribute.key)));
    }
    format!("{described}{standard}\n{named}")
}

#[test]
fn the_header_is_what_cbindgen_generates_from_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = |name: &str| root.join("src").join(name).with_extension("rs");
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let text = |name: &str| fs::read_to_string(root.join("src").join(name)).unwrap();
    config.after_includes = Some(constants(&text("standard.h")) + &text("macros.h"));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in [
        "ffi/types",
        "ffi/callbacks",
        "functions/tool",
        "functions/forwarding",
        "functions/servers",
        "functions/progress",
        "functions/helpers",
        "functions/argv",
        "ffi/strings",
        "ffi/pretty",
        "functions/server",
        "functions/jobs",
        "functions/spawn",
    ] {
        builder = builder.with_src(source(name));
    }
    let mut generated = Vec::new();
    builder.generate().unwrap().write(&mut generated);
    let header = root.join("include/iof.h");
    let generated = with_attributes(&String::from_utf8(generated).unwrap());
    if std::env::var_os("IOF_BLESS").is_some() {
        fs::write(&header, &generated).unwrap();
    }
    assert!(
        generated == fs::read_to_string(&header).unwrap_or_default(),
        "include/iof.h is stale: run IOF_BLESS=1 cargo test -p iof-c --test suite header"
    );
}

#[test]
fn each_number_has_one_row_with_a_name_and_a_text() {
    for table in [STATUSES].into_iter().chain(NUMBERS) {
        let (mut names, mut values) = (BTreeSet::new(), BTreeSet::new());
        for row in table {
            assert!(names.insert(row.name) && values.insert(row.value), "{row:?}");
            assert!(!row.text.is_empty(), "{row:?}");
        }
    }
    let names =
        [iof_Error_string(-7), iof_Proc_state_string(5), iof_Data_type_string(39), iof_Scope_string(3)];
    // SAFETY: the library returns texts that are valid for ever.
    let names = names.map(|name| unsafe { CStr::from_ptr(name) }.to_str().unwrap());
    assert_eq!(
        names,
        ["PMIX_ERR_PROC_ABORTED", "PROC_STATE_RUNNING", "PMIX_DATA_ARRAY", "SHARE ACROSS ALL NODES"]
    );
}

#[test]
fn the_header_compiles_as_c_and_as_cpp_without_warnings() {
    let Some(cc) = compiler() else { return };
    let program = "#include <iof.h>\nint main(void) { return IOF_SUCCESS; }\n";
    let flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
    for language in ["-std=c99", "-std=c17", "-xc++"] {
        run(cc.command(program).arg(language).args(flags));
    }
}

#[test]
fn the_example_of_the_page_compiles() {
    let Some(cc) = compiler() else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/c-api.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("```c\n").unwrap();
    let (program, _) = rest.split_once("```").unwrap();
    let flags = ["-std=gnu17", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-fsyntax-only"];
    run(cc.command(program).args(flags));
}

/// Compares every structure, field and constant that both headers have.
#[test]
fn layouts_and_values_are_those_of_the_systems_pmix() {
    let (Some(cc), Some(flags)) = (compiler(), pmix_flags()) else { return };
    let header = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/iof.h")).unwrap();
    let mut checks = String::from(
        "#include <pmix_tool.h>\n#include <pmix_server.h>\n#include <iof.h>\n#include <string.h>\n",
    );
    let mut constants = 0;
    for line in header.lines().filter_map(|line| line.strip_prefix("#define IOF_")) {
        let Some((name, value)) =
            line.split_once(' ').filter(|(name, _)| !name.contains('(') && !name.ends_with("_STATIC_INIT"))
        else {
            continue;
        };
        constants += 1;
        // Constants that PMIx lacks are extensions of iof.
        checks += &format!("#ifdef PMIX_{name}\n");
        checks += &match value.starts_with('"') {
            true => format!("_Static_assert(!__builtin_strcmp(IOF_{name}, PMIX_{name}), \"{name}\");\n"),
            false => {
                format!("_Static_assert((long long)(IOF_{name}) == (long long)(PMIX_{name}), \"{name}\");\n")
            }
        };
        checks += "#endif\n";
    }
    assert!(constants > 150, "{constants}");
    let mut fields = 0;
    for part in header.split("typedef struct iof_").skip(1).chain(header.split("typedef union iof_").skip(1))
    {
        let (name, rest) = part.split_once(" {").unwrap();
        let (body, _) = rest.split_once("\n}").unwrap();
        if name == "adopted_t" || name == "value_data_t" {
            continue;
        }
        checks += &format!("_Static_assert(sizeof(iof_{name}) == sizeof(pmix_{name}), \"{name}\");\n");
        let declared = body.lines().map(str::trim).filter(|line| line.ends_with(';'));
        for field in declared {
            let field = field.trim_end_matches(';').rsplit([' ', '*']).next().unwrap();
            fields += 1;
            checks += &format!(
                "_Static_assert(offsetof(iof_{name}, {field}) == offsetof(pmix_{name}, {field}), \"{name}.{field}\");\n"
            );
        }
    }
    assert!(fields > 50, "{fields}");
    run(cc.command(&checks).args(flags).args(["-std=gnu17", "-fsyntax-only"]));
}
