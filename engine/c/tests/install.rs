//! pkg-config finds the installed library, and programs can be built with its flags.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use iof_testing::compiler::{compiler, environment, has, library_directory, output, root, run};

#[test]
fn a_program_can_be_built_with_pkg_config_flags_both_shared_and_static() {
    let Some(compiler) = compiler() else { return };
    if !has("pkg-config") || !has("bash") {
        return;
    }
    let files = compiler.directory.path();
    // This package's tests build only libiof_c. It stands in for libiof_pmix, too.
    let libraries = files.join("built");
    std::fs::create_dir(&libraries).unwrap();
    for (name, built) in
        [("libiof_c.so", "libiof_c.so"), ("libiof_c.a", "libiof_c.a"), ("libiof_pmix.so", "libiof_c.so")]
    {
        symlink(library_directory().join(built), libraries.join(name)).unwrap();
    }
    let prefix = files.join("prefix");
    run(Command::new(root().join("install")).arg(&prefix).arg(&libraries));

    let pkg_config = |options: &[&str]| {
        let mut command = Command::new("pkg-config");
        let path = prefix.join("lib/pkgconfig");
        let stdout = run(command.env("PKG_CONFIG_PATH", path).args(options).arg("iof")).stdout;
        String::from_utf8(stdout).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let example = root().join("../server/examples/launcher.c");
    let launch = |program: &Path| {
        let mut command = Command::new(program);
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
    run(Command::new("cc").arg(&example).arg("-o").arg(&shared).args(pkg_config(&["--cflags", "--libs"])));
    launch(&shared);

    std::fs::remove_file(prefix.join("lib/libiof.so")).unwrap();
    std::fs::remove_file(prefix.join("lib/libiof.so.0")).unwrap();
    let linked = files.join("linked");
    let libs = pkg_config(&["--cflags", "--libs", "--static"]);
    run(Command::new("cc").arg(&example).arg("-o").arg(&linked).args(libs));
    launch(&linked);
}
