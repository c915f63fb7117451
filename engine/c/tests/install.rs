//! What is installed is found by pkg-config, and programs are built with it as they are elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use common::{built, compiler, environment, has, output, root, run};

#[test]
fn a_program_is_built_by_what_pkg_config_says_as_shared_and_as_static() {
    let Some(compiler) = compiler() else { return };
    if !has("pkg-config") || !has("bash") {
        return;
    }
    let files = compiler.directory.path();
    // Of the two libraries this package's tests have built one, which stands for both here.
    let libraries = files.join("built");
    std::fs::create_dir(&libraries).unwrap();
    for (name, of) in [("libiof.so", "libiof.so"), ("libiof.a", "libiof.a"), ("libiof_pmix.so", "libiof.so")]
    {
        symlink(built().join(of), libraries.join(name)).unwrap();
    }
    let prefix = files.join("prefix");
    run(Command::new(root().join("install")).arg(&prefix).arg(&libraries));

    let says = |what: &[&str]| {
        let mut command = Command::new("pkg-config");
        let path = prefix.join("lib/pkgconfig");
        let said = run(command.env("PKG_CONFIG_PATH", path).args(what).arg("iof")).stdout;
        String::from_utf8(said).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(says(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let example = root().join("../examples/launcher.c");
    let launch = |made: &Path| {
        let mut command = Command::new(made);
        environment(&mut command, &prefix.join("lib/any"), files).args([
            "2",
            "sh",
            "-c",
            "echo hello; exit 3",
        ]);
        let output = output(&mut command);
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(3), &b"hello\nhello\n"[..]),
            "{output:?}"
        );
    };
    let shared = files.join("shared");
    run(Command::new("cc").arg(&example).arg("-o").arg(&shared).args(says(&["--cflags", "--libs"])));
    launch(&shared);

    std::fs::remove_file(prefix.join("lib/libiof.so")).unwrap();
    std::fs::remove_file(prefix.join("lib/libiof.so.0")).unwrap();
    let linked = files.join("linked");
    let libs = says(&["--cflags", "--libs", "--static"]);
    run(Command::new("cc").arg(&example).arg("-o").arg(&linked).args(libs));
    launch(&linked);
}
