//! The macros of the header, in a program that uses all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::fs;
use std::process::Command;

use common::{compiler, environment, has, root, run, source};

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
    let names = macros.lines().filter_map(|line| line.strip_prefix("#define ")?.split('(').next());
    // These are parts of the others.
    let parts = ["IOF_FREE_ARRAY", "IOF_FREE_TEXT", "IOF_COPY_TEXT"];
    let unused: Vec<&str> =
        names.filter(|name| !parts.contains(name) && !program.contains(&format!("{name}("))).collect();
    assert!(unused.is_empty(), "{unused:?}");
}
