//! A tool that is compiled against the system's pmix.h, with this library in place of PMIx's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use iof_testing::compiler::{
    STANDARD_OUTPUT, compiler, environment, has, library_directory, pmix_flags, run, run_launcher_and_tool,
    run_with_launcher, source,
};

/// Returns the compiler flags that select the system's header and suppress its warnings.
fn flags() -> Option<Vec<String>> {
    let as_system = |flag: String| flag.replacen("-I", "-isystem", 1);
    Some(["-DPMIX".to_owned()].into_iter().chain(pmix_flags()?.into_iter().map(as_system)).collect())
}

fn strs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

#[test]
fn a_tool_compiled_against_the_systems_pmix_works_when_linked_with_this_library() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let launcher = compiler.program(&source("launcher.c"), &[]);
    let tool = compiler.linked(&source("tool.c"), &strs(&flags), "-liof-pmix");
    run_launcher_and_tool(&launcher, &tool, &[], &[], &[]);
}

#[test]
fn a_tool_linked_with_the_systems_pmix_works_when_this_library_is_preloaded() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let launcher = compiler.program(&source("launcher.c"), &[]);
    let libs = Command::new("pkg-config").args(["--libs", "pmix"]).output().unwrap();
    let tool = compiler.linked(&source("tool.c"), &strs(&flags), &String::from_utf8(libs.stdout).unwrap());
    let preload = compiler.directory.path().join("libiof-pmix.so");
    run_launcher_and_tool(&launcher, &tool, &[], &[], &[("LD_PRELOAD", &preload)]);
}

#[test]
fn a_program_written_after_the_standard_works_with_this_library() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let launcher = compiler.program(&source("launcher.c"), &[]);
    let tool = compiler.linked(&source("standard.c"), &strs(&flags), "-liof-pmix");
    assert_eq!(run_with_launcher(&launcher, &tool), STANDARD_OUTPUT);
}

/// Returns the functions that PMIx's tool API declares in its headers.
fn declared(flags: &[String]) -> BTreeSet<String> {
    let mut directories = flags.iter().filter_map(|flag| flag.strip_prefix("-I")).map(Path::new);
    let directory = directories.find(|directory| directory.join("pmix_tool.h").exists()).unwrap();
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
    let output = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library_directory().join("libiof_pmix.so")));
    let listed = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<&str> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    let declared = declared(&flags);
    assert!(declared.len() > 100, "{declared:?}");
    let missing: Vec<&String> = declared.iter().filter(|name| !exported.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // All exported names belong to PMIx or have the prefix iof_.
    let unexpected: Vec<&&str> =
        exported.iter().filter(|name| !name.starts_with("iof_") && !declared.contains(**name)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
}

#[test]
fn unsupported_functions_return_not_supported_with_a_reason() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let program = "#include <iof_pmix.h>\n#include <assert.h>\n#include <stdlib.h>\n#include <string.h>\n\
        int main(void) {\n\
            pmix_proc_t self = {0};\n\
            assert(PMIx_Spawn(NULL, 0, NULL, 0, self.nspace) == PMIX_ERR_INIT);\n\
            assert(PMIx_Abort(1, NULL, NULL, 0) == PMIX_ERR_INIT);\n\
            assert(iof_server_init(NULL, NULL, 0) == IOF_SUCCESS);\n\
            assert(PMIx_Abort(1, NULL, NULL, 0) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(strstr(iof_last_error(), \"iof kill\"));\n\
            pmix_app_t app = {.cmd = \"true\", .maxprocs = 1};\n\
            assert(PMIx_Spawn(NULL, 0, &app, 1, self.nspace) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(strstr(iof_last_error(), \"does not let tools start jobs\"));\n\
            assert(PMIx_Notify_event(-1, &self, 0, NULL, 0, NULL, NULL) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(strstr(iof_last_error(), \"events\"));\n\
            assert(PMIx_Scope_string(PMIX_LOCAL) && !PMIx_Info_string(NULL));\n\
            assert(iof_progress_fd() < 0 && iof_server_finalize() == IOF_SUCCESS);\n\
            /* A server has started the process, which needs PMIx's own library. */\n\
            setenv(\"PMIX_NAMESPACE\", \"job\", 1);\n\
            assert(PMIx_Init(&self, NULL, 0) == PMIX_ERR_NOT_SUPPORTED);\n\
            assert(strstr(iof_last_error(), \"PMIx's library\"));\n\
            assert(PMIx_Fence(NULL, 0, NULL, 0) == PMIX_ERR_INIT);\n\
            return 0;\n\
        }\n";
    let source = compiler.directory.path().join("unsupported.c");
    fs::write(&source, program).unwrap();
    let program = compiler.linked(&source, &strs(&flags), "-liof-pmix");
    let sockets = tempfile::tempdir().unwrap();
    run(environment(&mut Command::new(&program), &program, sockets.path()));
}

#[test]
fn a_program_without_a_server_is_a_job_of_one_rank_as_with_the_systems_library() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let sockets = tempfile::tempdir().unwrap();
    let [theirs, ours] = ["-lpmix", "-liof-pmix"].map(|library| {
        let program = compiler.linked(&source("singleton.c"), &strs(&flags), library);
        let output = run(environment(&mut Command::new(&program), &program, sockets.path()));
        String::from_utf8(output.stdout).unwrap()
    });
    assert!(ours.lines().count() > 25, "{ours}");
    assert_eq!(ours, theirs);
}

/// The number of calls in tests/c/nulls.c.
const NULL_CALLS: u32 = 120;

/// The calls of tests/c/nulls.c whose results differ on purpose, each with the reason, which
/// docs/src/decisions-interfaces.md explains.
const DIFFERENT: [(&str, &str); 20] = [
    ("PMIx_IOF_push(NULL, 0, &bo,", "PMIx accepts bytes for no process, and drops them"),
    ("PMIx_IOF_push(&all, 1, &bo,", "PMIx accepts bytes without a connection, and drops them"),
    ("PMIx_IOF_push(&all, 1, &empty,", "as above"),
    ("PMIx_Query_info(NULL, 0,", "PMIx accepts a query of nothing before initialization only"),
    ("PMIx_Register_event_handler(NULL, 0, NULL, 0, NULL,", "PMIx accepts a handler that is NULL"),
    ("PMIx_tool_init(NULL,", "the name of the tool may be NULL"),
    ("PMIx_tool_finalize()", "PMIx accepts it in a process that is no tool"),
    ("PMIx_Process_monitor(", "not supported"),
    ("PMIx_Get_credential(", "not supported"),
    ("PMIx_Validate_credential(", "not supported"),
    ("PMIx_Store_internal(", "not supported"),
    ("PMIx_Data_copy(", "not supported"),
    ("PMIx_Data_pack(", "not supported"),
    ("PMIx_Error_string(", "the names of constants, as in later versions"),
    ("PMIx_Proc_state_string(", "the names of constants"),
    ("PMIx_Data_type_string(12345)", "the name of a constant"),
    ("PMIx_Alloc_directive_string(", "not supported"),
    ("PMIx_Job_state_string(", "not supported"),
    ("PMIx_Link_state_string(", "not supported"),
    ("PMIx_Device_type_string(", "not supported"),
];

/// Runs call `number` of tests/c/nulls.c in a tool, or in a process that is none. Returns its
/// output; `None` if the program was killed.
fn null_call(program: &Path, sockets: &Path, number: u32, is_tool: bool) -> Option<String> {
    let mut command = Command::new(program);
    environment(&mut command, program, sockets).arg(number.to_string());
    let output = iof_testing::compiler::output(command.args((!is_tool).then_some("bare")));
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
}

#[test]
fn null_and_zero_arguments_return_what_the_systems_library_returns() {
    let (Some(compiler), Some(flags)) = (compiler(), flags()) else { return };
    let version = run(Command::new("pkg-config").args(["--modversion", "pmix"])).stdout;
    if !version.starts_with(b"4.2") {
        eprintln!("skipped: other versions of PMIx than 4.2 return other statuses");
        return;
    }
    let (source, flags) = (source("nulls.c"), strs(&flags));
    let theirs = compiler.directory.path().join("theirs");
    fs::rename(compiler.linked(&source, &flags, "-lpmix"), &theirs).unwrap();
    let ours = compiler.linked(&source, &flags, "-liof-pmix");
    let sockets = tempfile::tempdir().unwrap();
    let (mut compared, mut found) = (0, BTreeSet::new());
    for (number, is_tool) in (0..NULL_CALLS).flat_map(|number| [(number, true), (number, false)]) {
        let call = |program| null_call(program, sockets.path(), number, is_tool);
        let got = call(&ours).unwrap_or_else(|| panic!("call {number} crashes"));
        // A call that crashes the system's library need not be compared.
        let Some(expected) = call(&theirs) else { continue };
        compared += 1;
        if got != expected {
            let different = DIFFERENT.iter().find(|(call, _)| got.starts_with(call));
            let (call, _) = different.unwrap_or_else(|| panic!("{got}, but PMIx: {expected}"));
            found.insert(*call);
        }
    }
    assert!(compared > 180, "{compared}");
    let equal: Vec<_> = DIFFERENT.iter().filter(|(call, _)| !found.contains(call)).collect();
    assert!(equal.is_empty(), "they do not differ any more: {equal:?}");
}
