//! Who builds a web server.

use std::process::Command;

/// `cargo` as the README's first command runs it builds the crates that this lists, and no other.
#[test]
fn what_is_built_by_default_does_not_depend_on_tokio_or_axum() {
    let tree = |options: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--locked", "-e", "normal,build", "--prefix", "none", "-f", "{lib}"]);
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let done = cargo.args(options).current_dir(root).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let has = |tree: &str, name: &str| tree.lines().any(|line| line == name);
    let (default, own) = (tree(&[]), tree(&["-p", "iof-serve"]));
    for crate_name in ["iof_engine", "iof_core", "iof_tool", "iof_output", "iof_capture"] {
        assert!(has(&default, crate_name), "{crate_name} is not built by default:\n{default}");
    }
    for crate_name in ["tokio", "axum", "hyper"] {
        assert!(has(&own, crate_name), "{crate_name} is not in iof-serve:\n{own}");
        assert!(!has(&default, crate_name), "{crate_name} is built by default");
    }
}
