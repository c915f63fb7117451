//! The header is what the sources say, and says what PMIx's header does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::Path;

use common::{compiler, pmix_flags, run};

/// The keys as C has them, for which cbindgen has no way.
fn keys(source: &str) -> String {
    let mut keys = String::new();
    for line in source.lines() {
        if let Some(says) = line.strip_prefix("/// ") {
            keys += &format!("\n// {says}\n");
        } else if let Some((name, text)) =
            line.strip_prefix("pub const ").and_then(|of| of.split_once(": &str = "))
        {
            keys += &format!("#define {name} {}\n", text.trim_end_matches(';'));
        }
    }
    keys
}

#[test]
fn the_header_is_what_cbindgen_makes_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = |name: &str| root.join("src").join(name).with_extension("rs");
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    config.after_includes = Some(keys(&fs::read_to_string(source("keys")).unwrap()));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in ["constants", "types", "callbacks", "tool", "progress", "helpers", "strings", "server"] {
        builder = builder.with_src(source(name));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let header = root.join("include/iof.h");
    if std::env::var_os("IOF_BLESS").is_some() {
        fs::write(&header, &made).unwrap();
    }
    let made = String::from_utf8(made).unwrap();
    assert!(
        made == fs::read_to_string(&header).unwrap_or_default(),
        "include/iof.h is not what the sources say: IOF_BLESS=1 cargo test -p iof-c --test header"
    );
}

#[test]
fn the_header_is_c_and_cpp_without_a_warning() {
    let Some(cc) = compiler() else { return };
    let program = "#include <iof.h>\nint main(void) { return IOF_SUCCESS; }\n";
    let flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
    for language in ["-std=c99", "-std=c17", "-xc++"] {
        run(cc.syntax(program).arg(language).args(flags));
    }
}

/// Every structure, field and constant that both have.
#[test]
fn layouts_and_values_are_those_of_the_systems_pmix() {
    let (Some(cc), Some(flags)) = (compiler(), pmix_flags()) else { return };
    let header = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/iof.h")).unwrap();
    let mut checks = String::from(
        "#include <pmix_tool.h>\n#include <pmix_server.h>\n#include <iof.h>\n#include <string.h>\n",
    );
    let mut constants = 0;
    for line in header.lines().filter_map(|line| line.strip_prefix("#define IOF_")) {
        let Some((name, value)) = line.split_once(' ') else { continue };
        constants += 1;
        // Those that PMIx has not are ours.
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
    run(cc.syntax(&checks).args(flags).args(["-std=gnu17", "-fsyntax-only"]));
}
