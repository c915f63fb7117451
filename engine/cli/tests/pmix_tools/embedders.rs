//! Tools of PMIx that attach to the jobs of programs that embed the engine.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};

use super::{TOOL, for_each_place, lines, read_rest, read_until, sorted};
use iof_testing::command::site::program;
use iof_testing::process::Process;

/// The command that serves tools.
pub const IOF: &str = env!("CARGO_BIN_EXE_iof");

/// The embedder in C.
static C_EMBEDDER: LazyLock<PathBuf> = LazyLock::new(|| compile_embedder("embedder"));

/// Compiles a program of this directory that is linked with the C library.
pub fn compile_embedder(name: &str) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let embedder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pmix-{name}"));
    // Another run of the tests may execute the last one.
    let linked = embedder.with_extension(std::process::id().to_string());
    // Beside the tests.
    let library = env::current_exe().unwrap().with_file_name("libiof_c.a");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu17", "-Wall", "-Wextra", "-Werror", "-pthread", "-s", "-o"]).arg(&linked);
    compiler.arg(manifest.join(format!("tests/pmix_tools/{name}.c"))).arg(library);
    compiler.arg("-I").arg(manifest.join("../c/include")).args(["-lm", "-ldl"]);
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(linked, &embedder).unwrap();
    embedder
}

/// Returns the programs that embed the engine, with their numbers.
pub fn embedders() -> impl Iterator<Item = (usize, PathBuf)> {
    [program("embedder").into(), C_EMBEDDER.clone()].into_iter().enumerate()
}

#[test]
fn tools_attach_to_the_jobs_of_embedders_in_rust_and_c() {
    for_each_place(|place| {
        for (index, embedder) in embedders() {
            println!("{embedder:?}");
            let mut gate = place.site.gate(&format!("gate-{index}"));
            let script = format!(": < {}; echo out $IOF_RANK; echo err $IOF_RANK >&2; exit 3", gate.path());
            let mut command = Command::new(embedder);
            command.args([IOF, "sh", "-c", &script]).env("PMIX_SERVER_TMPDIR", place.site.path());
            let run = place.start_launcher(&mut command);
            for server in
                [format!("pid:{}", run.pid()), format!("nspace:iof-{}", run.pid()), "nspace:demo".into()]
            {
                let tool = place.start(TOOL.as_ref().unwrap(), &server, ["namespaces"]);
                assert_eq!(lines(&tool.finish()), ["attached", "demo"]);
            }
            let mut tool = place.tool(["pull", "demo", "all", "6", "print"]);
            let mut output = BufReader::new(tool.stdout());
            read_until(&mut output, "pulled");
            gate.open();
            let text = read_rest(&mut output);
            assert_eq!(
                sorted(&text),
                [
                    "0 2: out 0",
                    "0 4: err 0",
                    "1 2: out 1",
                    "1 4: err 1",
                    "bytes 24 lost 0 streams 4",
                    "ended 3"
                ]
            );
            assert_eq!((tool.wait(), run.finish().code), (0, 3));
            place.assert_clean();
        }
    });
}

#[test]
fn a_job_is_refused_if_the_command_that_is_to_serve_tools_cannot_be_executed() {
    for_each_place(|_| {
        for (_, embedder) in embedders() {
            let mut command = Command::new(embedder);
            command.args(["/nonexistent/iof", "sh", "-c", "echo started"]);
            let done = Process::start(&mut command).finish();
            assert!(done.code != 0 && done.text().is_empty(), "{done:?}");
            assert!(done.stderr.contains("/nonexistent/iof"), "{done:?}");
        }
    });
}
