//! Debuggers of the MPIR kind: the table of processes in the memory of `iof run`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use iof_testing::command::nodes;
use iof_testing::command::site::{Site, iof};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use nix::unistd::gethostname;

/// A running program, read as a debugger does: through the symbols that are left after strip(1).
struct Memory {
    program: Vec<u8>,
    /// The address at which the program was loaded.
    base: u64,
    memory: File,
}

impl Memory {
    fn of(pid: u32) -> Memory {
        let link = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let first = maps.lines().find(|line| line.ends_with(link.to_str().unwrap())).unwrap();
        let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        Memory { program: fs::read(link).unwrap(), base, memory }
    }

    fn number(&self, offset: u64, width: u64) -> u64 {
        let bytes = &self.program[offset as usize..(offset + width) as usize];
        bytes.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
    }

    /// Returns the address of a dynamic symbol.
    fn symbol(&self, name: &str) -> Option<u64> {
        let sections: Vec<u64> = (0..self.number(60, 2))
            .map(|section| self.number(40, 8) + section * self.number(58, 2))
            .collect();
        // SHT_DYNSYM, whose names are in the section of this number.
        let symbols = *sections.iter().find(|section| self.number(*section + 4, 4) == 11).unwrap();
        let names = self.number(sections[self.number(symbols + 40, 4) as usize] + 24, 8);
        let (start, size) = (self.number(symbols + 24, 8), self.number(symbols + 32, 8));
        let found = (start..start + size).step_by(24).find(|symbol| {
            let text = &self.program[(names + self.number(*symbol, 4)) as usize..];
            text.starts_with(name.as_bytes()) && text.get(name.len()) == Some(&0)
        })?;
        // Its section is 0 if it is not in this program.
        (self.number(found + 6, 2) != 0).then(|| self.base + self.number(found + 8, 8))
    }

    fn read<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, address).unwrap();
        bytes
    }

    fn int(&self, address: u64) -> i32 {
        i32::from_le_bytes(self.read(address))
    }

    fn text(&self, address: u64) -> String {
        let pointer = u64::from_le_bytes(self.read(address));
        let bytes = (pointer..).map(|address| self.read::<1>(address)[0]).take_while(|byte| *byte != 0);
        String::from_utf8(bytes.collect()).unwrap()
    }

    /// Returns the host, the executable and the pid of each rank, once the table is complete.
    fn table(&self) -> Vec<(String, String, i32)> {
        let address = |name| self.symbol(name).unwrap();
        wait_for("the table", || (self.int(address("MPIR_debug_state")) == 1).then_some(()));
        let rows = u64::from_le_bytes(self.read(address("MPIR_proctable")));
        let size = self.int(address("MPIR_proctable_size"));
        let row = |row| {
            let row = rows + 24 * row as u64;
            (self.text(row), self.text(row + 8), self.int(row + 16))
        };
        (0..size).map(row).collect()
    }
}

fn host() -> String {
    gethostname().unwrap().to_string_lossy().into_owned()
}

/// Returns the pids that `iof query` shows, in the order of the ranks.
fn pids(site: &Site) -> Vec<i32> {
    site.procs().unwrap().iter().map(|proc| proc["pid"].as_i64().unwrap() as i32).collect()
}

#[test]
fn a_debugger_finds_host_executable_and_pid_of_each_rank() {
    let site = Site::new();
    let program = site.install_script("#!/bin/sh\nexec cat\n", "new\nline");
    let own = ["-n", "2", "--stdin", "all", "--wdir", program.parent().unwrap().to_str().unwrap()];
    let run = site.run(&own, ["./new\nline", ":", "-n", "1", "cat"]);
    site.wait_for_ranks(3);
    let memory = Memory::of(run.pid());
    let table = memory.table();
    let cat = find("cat").unwrap().display().to_string();
    let escaped = program.parent().unwrap().join("new\\nline").display().to_string();
    let executables = [escaped.clone(), escaped, cat];
    let wanted = executables.into_iter().zip(pids(&site)).map(|(executable, pid)| (host(), executable, pid));
    assert_eq!(table, wanted.collect::<Vec<_>>());
    assert_eq!(memory.int(memory.symbol("MPIR_being_debugged").unwrap()), 0);
    assert_eq!(run.finish().code, 0);
}

#[test]
fn the_table_has_the_ranks_of_all_nodes_and_stays_when_they_have_ended() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("[ $IOF_RANK != 0 ] || (: < {}) & exit 0", gate.path());
    let run = nodes::start(&site, "a:2,b:1", &["-n", "3"], &script);
    (0..3).for_each(|rank| drop(site.wait_for_state(rank, "terminated")));
    let table = Memory::of(run.pid()).table();
    let hosts: Vec<&str> = table.iter().map(|(host, ..)| host.as_str()).collect();
    assert_eq!(hosts, ["a", "a", "b"]);
    assert_eq!(table.iter().map(|(.., pid)| *pid).collect::<Vec<i32>>(), pids(&site));
    assert!(table.iter().all(|(_, executable, pid)| executable.ends_with("/sh") && *pid > 0), "{table:?}");
    gate.open();
    assert_eq!(run.finish().code, 0);
}

/// Returns the file that is executed for a name.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// Lets gdb execute these commands, with further `arguments`. Returns `None` where it is not
/// installed or may not attach.
fn gdb(commands: &[&str], arguments: &[&str]) -> Option<Done> {
    if find("gdb").is_none() {
        println!("skipped: gdb is not installed");
        return None;
    }
    let mut gdb = Command::new("gdb");
    let commands = ["set debuginfod enabled off", "set confirm off", "set language c"]
        .into_iter()
        .chain(commands.iter().copied());
    gdb.args(["-nx", "-q", "-batch"]).args(commands.flat_map(|command| ["-ex", command]));
    gdb.args(arguments);
    let done = Process::start(&mut gdb).finish();
    if done.stderr.contains("Operation not permitted") {
        println!("skipped: gdb may not attach here");
        return None;
    }
    Some(done)
}

/// The commands that print the table of three ranks, as `PID HOST`.
const PRINT: [&str; 7] = [
    "printf \"state %d of %d ranks\\n\", *(int *)&MPIR_debug_state, *(int *)&MPIR_proctable_size",
    "set $row = *(char ***)&MPIR_proctable",
    "printf \"%d %s %s\\n\", *(int *)($row + 2), *$row, *($row + 1)",
    "set $row = $row + 3",
    "printf \"%d %s %s\\n\", *(int *)($row + 2), *$row, *($row + 1)",
    "set $row = $row + 3",
    "printf \"%d %s %s\\n\", *(int *)($row + 2), *$row, *($row + 1)",
];

/// Returns the pids in a table of this many ranks that gdb has printed. Each row has this host and executable.
fn printed(done: &Done, ranks: usize, executable: &str) -> Vec<i32> {
    let rest = format!(" {} {executable}", host());
    assert!(done.text().contains(&format!("state 1 of {ranks} ranks\n")), "{done:?}");
    done.text().lines().filter_map(|line| line.strip_suffix(&rest)?.parse().ok()).collect()
}

#[test]
fn gdb_attaches_to_a_running_job_and_prints_its_ranks() {
    let site = Site::new();
    let run = site.run(&["-n", "3", "--stdin", "all"], ["cat"]);
    site.wait_for_ranks(3);
    let pid = run.pid().to_string();
    let Some(done) = gdb(&PRINT, &["-p", &pid]) else { return };
    assert_eq!(printed(&done, 3, find("cat").unwrap().to_str().unwrap()), pids(&site), "{done:?}");
    assert_eq!(run.finish().code, 0);
}

#[test]
fn gdb_prints_each_of_a_thousand_ranks() {
    const RANKS: usize = 1000;
    let site = Site::new();
    let script = site.path().join("print.gdb");
    let [state, first, row, next, ..] = PRINT;
    let lines = format!("{state}\n{first}\nset $left = {RANKS}\nwhile $left-- > 0\n{row}\n{next}\nend\n");
    fs::write(&script, lines).unwrap();
    let run = site.run(&["-n", &RANKS.to_string()], ["sleep", "1000"]);
    site.wait_for_ranks(RANKS);
    let Some(done) = gdb(&[], &["-p", &run.pid().to_string(), "-x", script.to_str().unwrap()]) else {
        return;
    };
    assert_eq!(printed(&done, RANKS, find("sleep").unwrap().to_str().unwrap()), pids(&site));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.finish().code, 143);
}

#[test]
fn a_job_that_gdb_has_started_with_a_stripped_program_stops_at_the_breakpoint_with_all_its_ranks() {
    let site = Site::new();
    let commands = ["starti", "set variable *(int *)&MPIR_being_debugged = 1", "break MPIR_Breakpoint"];
    let commands = [&commands[..], &["continue"], &PRINT, &["delete", "continue"]].concat();
    let stripped = site.path().join("stripped");
    // That of packages. The static executable loses the symbols.
    let option = if cfg!(target_env = "musl") { "--strip-debug" } else { "--strip-all" };
    let mut strip = Command::new("strip");
    if strip.arg(option).arg("-o").arg(&stripped).arg(iof().get_program()).status().is_err() {
        return println!("skipped: strip is not installed");
    }
    let (iof, directory) = (stripped.to_str().unwrap(), site.path().to_str().unwrap());
    // To a file: gdb and the job write to the same stdout, and gdb writes its lines in pieces.
    let file = site.path().join("pids");
    let script = format!("echo $$ >> {}", file.display());
    let run = ["--args", iof, "run", "--rendezvous-dir", directory, "-n", "3", "sh", "-c", &script];
    let Some(done) = gdb(&commands, &run) else { return };
    assert!(done.text().contains(" hit Breakpoint 1, "), "{done:?}");
    let mut known = printed(&done, 3, find("sh").unwrap().to_str().unwrap());
    let mut written: Vec<i32> =
        fs::read_to_string(file).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    known.sort_unstable();
    written.sort_unstable();
    assert_eq!((known.len(), known), (3, written), "{done:?}");
}
