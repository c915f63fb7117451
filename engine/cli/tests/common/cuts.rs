//! Nodes whose carriers can be cut.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ChildStdout;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::nodes::has_thread;
use super::process::Process;
use super::site::Site;
use super::wait_for;

/// A node whose carriers can be cut, and can be kept from being replaced. `sh -c` starts the agents
/// on this node, with two processes between each of them and its front end.
pub struct Node {
    pub site: Site,
}

impl Node {
    pub fn new() -> Node {
        let site = Site::new();
        site.install(Path::new("/bin/cat"), "wire");
        // The shell keeps neither end, so that the end of a wire is the end of the carrier's output
        // or input. While the file `down` exists, no carrier starts; with `held` the one of node a
        // waits. The file `replaced` has the node of each carrier that replaces another one.
        let script = "cd ${0%/*}; if [ -e down ]; then : > tried; exit 1; fi\n\
                      case $2 in *' link '*) echo $1 >> replaced ;; esac\n\
                      while [ $1 = a ] && [ -e held ]; do sleep 0.01; done\n\
                      exec 3>&1 4<&0 >/dev/null </dev/null\n\
                      export NODE=$1\n\
                      WAY=down ./wire <&4 3>&- | sh -c \"$2\" 3>&- 4<&- | ./wire >&3 4<&- &\n\
                      exec 3>&- 4<&-\n\
                      wait\n";
        fs::write(site.path().join("carrier"), script).unwrap();
        Node { site }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.site.path().join(name)
    }

    /// Starts a job named demo, whose ranks run `script` on the nodes a and b.
    pub fn start(&self, options: &[&str], script: &str) -> Process {
        self.start_on("a,b", options, script)
    }

    /// Starts such a job with a rank on each of these hosts.
    pub fn start_on(&self, hosts: &str, options: &[&str], script: &str) -> Process {
        let rsh = format!("sh {} %h", self.file("carrier").display());
        let ranks = hosts.split(',').count().to_string();
        let nodes = ["--nspace", "demo", "--hosts", hosts, "-n", &ranks, "--rsh", &rsh];
        self.site.run_sh(&[&nodes, options].concat(), script)
    }

    /// Starts a job on a and b whose ranks write `ready` first, and waits until they have.
    pub fn start_ready(&self, options: &[&str], script: &str) -> (Process, BufReader<ChildStdout>) {
        self.start_ready_on("a,b", options, script)
    }

    /// Starts such a job with a rank on each of these hosts.
    pub fn start_ready_on(
        &self,
        hosts: &str,
        options: &[&str],
        script: &str,
    ) -> (Process, BufReader<ChildStdout>) {
        let mut run = self.start_on(hosts, options, &format!("echo ready; {script}"));
        let (mut stdout, mut lines) = (BufReader::new(run.stdout()), String::new());
        let ranks = hosts.split(',').count();
        for _ in 0..ranks {
            stdout.read_line(&mut lines).unwrap();
        }
        assert_eq!(lines, "ready\n".repeat(ranks));
        wait_for("the end of the start", || has_thread(run.pid(), "iof-nodes").then_some(()));
        (run, stdout)
    }

    /// Lets no carrier start, or lets them start again.
    pub fn set_down(&self, is_down: bool) {
        if is_down {
            fs::write(self.file("down"), "").unwrap();
        } else {
            fs::remove_file(self.file("down")).unwrap();
        }
    }

    /// Returns the node of each carrier that was started to replace another one.
    pub fn replaced(&self) -> Vec<String> {
        let replaced = fs::read_to_string(self.file("replaced")).unwrap_or_default();
        replaced.lines().map(str::to_owned).collect()
    }

    /// Cuts the carriers of both nodes, and waits until the front end has tried to replace one.
    pub fn cut_for_long(&self, run: &Process) {
        self.set_down(true);
        let wires = run.running("wire");
        assert!(!wires.is_empty());
        wires.into_iter().for_each(cut);
        wait_for("an attempt to replace a carrier", || self.file("tried").exists().then_some(()));
    }
}

/// Ends one direction of a carrier, if it has not ended.
pub fn cut(wire: u32) {
    let _ = kill(Pid::from_raw(wire.try_into().unwrap()), Signal::SIGKILL);
}

/// Cuts one direction of one carrier; another one with each number. Waits for a carrier if all have
/// just been cut.
pub fn cut_any(run: &Process, number: usize) {
    wait_for("a carrier to cut", || {
        let wires = run.running("wire");
        let wire = *wires.get(number * 7 % wires.len().max(1))?;
        kill(Pid::from_raw(wire.try_into().unwrap()), Signal::SIGKILL).ok()
    });
}
