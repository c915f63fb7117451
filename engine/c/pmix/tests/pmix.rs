//! A tool that knows nothing but the system's pmix.h, with our library in place of PMIx's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use common::{built, compiler, environment, has, pmix_flags, run, source, together};

/// How the system's header is found, without its warnings.
fn flags() -> Option<Vec<String>> {
    let quietly = |flag: String| flag.replacen("-I", "-isystem", 1);
    Some(["-DPMIX".to_owned()].into_iter().chain(pmix_flags()?.into_iter().map(quietly)).collect())
}

fn strs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

#[test]
fn a_tool_that_is_compiled_against_the_systems_pmix_works_when_it_is_linked_with_ours() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let launcher = compiler.program(&source("launcher.c"), &[]);
    let tool = compiler.linked(&source("tool.c"), &strs(&flags), "-liof-pmix");
    together(&launcher, &tool, &[], &[], &[]);
}

#[test]
fn a_tool_that_is_linked_with_the_systems_pmix_works_when_ours_is_preloaded() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let launcher = compiler.program(&source("launcher.c"), &[]);
    let libs = Command::new("pkg-config").args(["--libs", "pmix"]).output().unwrap();
    let tool = compiler.linked(&source("tool.c"), &strs(&flags), &String::from_utf8(libs.stdout).unwrap());
    let preload = compiler.directory.path().join("libiof-pmix.so");
    together(&launcher, &tool, &[], &[], &[("LD_PRELOAD", &preload)]);
}

/// What the tool API declares, in pmix.h and what it brings and pmix_tool.h.
fn declared(flags: &[String]) -> BTreeSet<String> {
    let directories = flags.iter().filter_map(|flag| flag.strip_prefix("-I"));
    let directory = directories.map(Path::new).find(|at| at.join("pmix_tool.h").exists()).unwrap();
    let mut names = BTreeSet::new();
    for header in ["pmix.h", "pmix_tool.h", "pmix_deprecated.h"] {
        let text = fs::read_to_string(directory.join(header)).unwrap();
        for declaration in text.split("PMIX_EXPORT ").skip(1) {
            let (before, _) = declaration.split_once('(').unwrap();
            names.insert(before.rsplit([' ', '*']).next().unwrap().to_owned());
        }
    }
    names
}

#[test]
fn no_function_of_the_tool_api_is_missing() {
    let Some(flags) = pmix_flags() else { return };
    if !has("nm") {
        return;
    }
    let output = run(Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libiof_pmix.so")));
    let listed = String::from_utf8(output.stdout).unwrap();
    let ours: BTreeSet<&str> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    let declared = declared(&flags);
    assert!(declared.len() > 100, "{declared:?}");
    let missing: Vec<&String> = declared.iter().filter(|name| !ours.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // And nothing else is exported than PMIx's names and our own.
    let strange: Vec<&&str> =
        ours.iter().filter(|name| !name.starts_with("iof_") && !declared.contains(**name)).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn what_is_not_offered_says_so_by_its_own_name() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let program = "#include <iof_pmix.h>\n#include <assert.h>\n\
        int main(void) {\n\
            pmix_proc_t self; pmix_value_t *value; char *regex = NULL;\n\
            assert(PMIx_Init(&self, NULL, 0) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(PMIx_Get(&self, \"key\", NULL, 0, &value) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(PMIx_Fence(&self, 1, NULL, 0) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(PMIx_Spawn(NULL, 0, NULL, 0, self.nspace) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(PMIx_tool_attach_to_server(&self, NULL, NULL, 0) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(PMIx_Scope_string(PMIX_LOCAL) && !PMIx_Info_string(NULL) && !regex);\n\
            assert(iof_progress_fd() < 0 && *iof_last_error() == 0);\n\
            return 0;\n\
        }\n";
    let source = compiler.directory.path().join("unsupported.c");
    fs::write(&source, program).unwrap();
    let made = compiler.linked(&source, &strs(&flags), "-liof-pmix");
    let sockets = tempfile::tempdir().unwrap();
    run(environment(&mut Command::new(&made), &made, sockets.path()));
}
