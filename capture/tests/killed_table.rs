//! Children where a filter kills those that leave the shared descriptor table. The process
//! remembers it, so this program has one test.

#![allow(clippy::unwrap_used, reason = "a test may fail this way")]

use std::fs::File;
use std::io::Read;

use iof_capture::{ProcessSpec, Spawner};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

#[test]
fn where_a_filter_kills_for_a_shared_table_children_start_with_a_copy() {
    let rules = [(libc::SYS_close_range, Vec::new())].into();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let kill = SeccompAction::KillProcess;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, kill, arch).unwrap();
    let spawner = Spawner::new();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    for _ in 0..2 {
        let spawned = spawner.spawn(ProcessSpec::new("sh", ["-c", "echo started"]), None).unwrap();
        let mut text = String::new();
        File::from(spawned.outputs.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "started\n");
    }
}
