//! The modules of the engine import each other without a circle.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the source files below `directory`, those of tests excluded.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    let of_tests = |path: &PathBuf| path.ends_with("tests.rs") || path.ends_with("tests");
    entries.filter(|path| !of_tests(path)).flat_map(files).collect()
}

/// Returns the names of modules that follow `path` in a source file.
fn imports(source: &str, path: &str) -> BTreeSet<String> {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: Vec<&str> = code.take_while(|line| *line != "#[cfg(test)]").collect();
    let code = code.join("\n");
    assert!(!code.contains(&format!("{path}{{")), "imports in a list are not read here");
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    code.split(path).skip(1).map(name).collect()
}

/// Returns the modules below `root` that import each other in a circle, with those that import
/// them. Imports of their items begin with `path`.
fn circles(root: &Path, path: &str) -> BTreeSet<String> {
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in sources(root) {
        let inside = file.strip_prefix(root).unwrap().with_extension("");
        let module = inside.iter().next().unwrap().to_str().unwrap().to_owned();
        // The root declares all modules.
        if module != "lib" {
            modules.entry(module).or_default().extend(imports(&fs::read_to_string(file).unwrap(), path));
        }
    }
    assert!(modules.len() > 30, "{modules:?}");
    // Removes the modules that import no others, again and again.
    loop {
        let known: BTreeSet<String> = modules.keys().cloned().collect();
        let before = modules.len();
        modules.retain(|module, imports| imports.iter().any(|name| name != module && known.contains(name)));
        if modules.len() == before {
            return known;
        }
    }
}

#[test]
fn imports_between_the_modules_of_the_engine_form_no_circle() {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&engine) {
        // Items that the root exports would hide the modules that have them.
        let names = imports(&fs::read_to_string(&file).unwrap(), "crate::");
        let is_item = |name: &&String| name.starts_with(char::is_uppercase);
        assert_eq!(names.iter().find(is_item), None, "{}", file.display());
    }
    assert_eq!(circles(&engine, "crate::"), BTreeSet::new());
}
