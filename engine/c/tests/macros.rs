//! The macros of the header, in a program that uses all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

use iof_testing::compiler::{
    STANDARD_OUTPUT, compiler, environment, has, pmix_flags, root, run, run_with_launcher, source,
};

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

#[test]
fn a_program_that_uses_every_macro_works_and_leaks_nothing() {
    let Some(compiler) = compiler() else { return };
    let program = compiler.program(&source("macros.c"), &WARNINGS);
    let sockets = tempfile::tempdir().unwrap();
    let valgrind = ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full"];
    let runner = if has("valgrind") { &valgrind[..] } else { &[] };
    let mut words = runner.iter().map(|word| (*word).into()).chain([program.clone().into_os_string()]);
    let mut command = Command::new(words.next().unwrap());
    let output = run(environment(&mut command, &program, sockets.path()).args(words));
    assert_eq!(output.stdout, b"done\n");
}

#[test]
fn the_macros_compile_as_cpp_without_warnings() {
    let Some(compiler) = compiler() else { return };
    let program = fs::read_to_string(source("macros.c")).unwrap();
    run(compiler.command(&program).arg("-xc++").args(WARNINGS).arg("-fsyntax-only"));
}

#[test]
fn the_program_uses_every_macro() {
    let macros = fs::read_to_string(root().join("src/macros.h")).unwrap();
    let program = fs::read_to_string(source("macros.c")).unwrap();
    let names = macros.lines().filter_map(|line| line.strip_prefix("#define ")?.split(['(', ' ']).next());
    // These are parts of the others.
    let parts = ["IOF_FREE_ARRAY", "IOF_FREE_TEXT", "IOF_COPY_TEXT"];
    let unused: Vec<&str> = names.filter(|name| !parts.contains(name) && !has_word(&program, name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

/// Returns whether `text` has `name` as a word.
fn has_word(text: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(|letter| !is_part(letter)).any(|word| word == name)
}

/// The beginnings of the names of PMIx's macros that the header lacks.
const ABSENT: [(&str, &str); 8] = [
    (
        "COORD_ CPUSET_ TOPOLOGY_ GEOMETRY_ DEVICE_DIST_ ENDPOINT_ FABRIC_",
        "hardware, which the library ignores",
    ),
    ("PROC_STATS_ NODE_STATS_ NET_STATS_ DISK_STATS_", "statistics, which it does not have"),
    ("DATA_BUFFER_", "packed data, which it does not have"),
    ("LOOKUP_ PDATA_", "data that ranks publish"),
    ("MULTICLUSTER_", "names of jobs of several clusters"),
    ("SYSTEM_EVENT", "events of other systems"),
    ("CHECK_TRUE CHECK_BOOL", "not in all versions of PMIx; IOF_INFO_TRUE"),
    ("INFO_LIST_INSERT", "not in all versions of PMIx; IOF_INFO_LIST_XFER"),
];

#[test]
fn the_header_has_the_macros_of_pmix_for_its_structures() {
    let Some(flags) = pmix_flags() else { return };
    let directory = flags.iter().filter_map(|flag| flag.strip_prefix("-I")).map(Path::new);
    let header =
        directory.map(|directory| directory.join("pmix_common.h")).find(|path| path.exists()).unwrap();
    let theirs = fs::read_to_string(header).unwrap();
    let ours = fs::read_to_string(root().join("src/macros.h")).unwrap();
    let names = theirs.lines().filter_map(|line| {
        let name = line.strip_prefix("#define PMIX_")?.split(['(', ' ']).next()?;
        let is_macro = line.contains(&format!("{name}(")) || name.ends_with("_STATIC_INIT");
        is_macro.then_some(name)
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 100, "{names:?}");
    let is_absent = |name: &&str| {
        ABSENT.iter().any(|(names, _)| names.split(' ').any(|beginning| name.starts_with(beginning)))
    };
    let has = |name: &&str| {
        ours.lines().any(|line| {
            let rest = line.strip_prefix("#define IOF_").and_then(|line| line.strip_prefix(*name));
            rest.is_some_and(|rest| rest.starts_with(['(', ' ']))
        })
    };
    let missing: Vec<&&str> = names.iter().filter(|name| !is_absent(name) && !has(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_program_written_after_the_standard_works_after_its_prefix_is_renamed() {
    let Some(compiler) = compiler() else { return };
    let program = fs::read_to_string(source("standard.c")).unwrap();
    let renamed = compiler.directory.path().join("renamed.c");
    let program = program.replace("pmix_tool.h", "iof.h");
    let program = program.replace("PMIx_", "iof_").replace("pmix_", "iof_").replace("PMIX_", "IOF_");
    fs::write(&renamed, program).unwrap();
    let launcher = compiler.program(&source("launcher.c"), &[]);
    let output = run_with_launcher(&launcher, &compiler.program(&renamed, &["-Wpedantic"]));
    assert_eq!(output, STANDARD_OUTPUT);
}
