//! Beside the launchers whose output users know, where they are installed: the same bytes for the
//! same ranks. What the peer gets wrong, or spells in another way, is named here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::process::{Done, Process};
use common::site::Site;

/// Who starts ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// prterun, or mpirun of Open MPI from 5 on.
    Prte,
    /// mpirun of Open MPI 4.
    Orte,
    /// mpiexec of MPICH.
    Hydra,
}

const PROGRAMS: [&str; 6] =
    ["prterun", "mpirun", "mpirun.openmpi", "mpiexec", "mpiexec.mpich", "mpiexec.hydra"];

/// The first program that is `wanted`; says so if there is none.
fn find(wanted: Peer) -> Option<&'static str> {
    let is = |program: &&str| {
        let version = Command::new(program).arg("--version").output();
        let Ok(version) = version else { return false };
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        let found = if text.contains("HYDRA") {
            Peer::Hydra
        } else if text.contains("(Open MPI) 4") {
            Peer::Orte
        } else if text.contains("prterun") || text.contains("(Open MPI) 5") {
            Peer::Prte
        } else {
            return false;
        };
        found == wanted
    };
    let found = PROGRAMS.into_iter().find(is);
    if found.is_none() {
        eprintln!("skipped: no program of {wanted:?} here");
    }
    found
}

/// Has `peer` run `script` on so many ranks.
fn peer(peer: Peer, ranks: u32, options: &[&str], script: &str) -> Option<Done> {
    let mut command = Command::new(find(peer)?);
    match peer {
        Peer::Prte => command.args(["--map-by", ":OVERSUBSCRIBE"]),
        Peer::Orte => command.arg("--oversubscribe"),
        Peer::Hydra => &mut command,
    };
    if peer != Peer::Hydra && nix::unistd::getuid().is_root() {
        command.arg("--allow-run-as-root");
    }
    // What PMIx keeps in the temporary directory is its own.
    let done =
        Process::start(command.arg("-np").arg(ranks.to_string()).args(options).args(["sh", "-c", script]));
    let done = done.finish();
    assert_eq!(done.code, 0, "{peer:?}: {done:?}");
    Some(done)
}

fn ours(site: &Site, ranks: u32, options: &[&str], script: &str) -> Done {
    let ranks = ranks.to_string();
    let options = [&["-n", &ranks, "--nspace", "ours@1"], options].concat();
    let done = site.run_sh(&options, script).finish();
    assert_eq!(done.code, 0, "{done:?}");
    done
}

/// The lines in an order of their own: which rank is first is nobody's promise.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn assert_alike(theirs: &Done, ours: &Done, spelt: impl Fn(&str) -> String, what: &str) {
    assert_eq!(sorted(&spelt(ours.text())), sorted(theirs.text()), "{what}: stdout");
    assert_eq!(sorted(&spelt(&ours.stderr)), sorted(&theirs.stderr), "{what}: stderr");
}

/// Lines of several kinds, and a last one that ends: where it does not, the peers glue two ranks
/// together.
const SCRIPT: &str = "echo out; echo 'a <b> & \"c\"'; echo; printf 'tab\\there\\n'; echo err >&2";

#[test]
fn tags_are_prteruns() {
    let site = Site::new();
    for list in ["tag", "rank", "merge,tag"] {
        let Some(theirs) = peer(Peer::Prte, 3, &["--output", list], SCRIPT) else { return };
        assert_alike(&theirs, &ours(&site, 3, &["--output", list], SCRIPT), str::to_owned, list);
    }
    let Some(theirs) = peer(Peer::Prte, 2, &["--output", "tag-fullname"], SCRIPT) else { return };
    let name = theirs.text().strip_prefix('[').unwrap().split_once(',').unwrap().0.to_owned();
    let spelt = |text: &str| text.replace("ours@1", &name);
    assert_alike(&theirs, &ours(&site, 2, &["--output", "tag-fullname"], SCRIPT), spelt, "tag-fullname");
}

#[test]
fn tags_are_those_of_open_mpi_4_with_prteruns_space() {
    let site = Site::new();
    let Some(theirs) = peer(Peer::Orte, 3, &["--tag-output"], SCRIPT) else { return };
    let spelt = |text: &str| text.replace(">: ", ">:");
    assert_alike(&theirs, &ours(&site, 3, &["--output", "tag"], SCRIPT), spelt, "tag");
    let Some(theirs) = peer(Peer::Orte, 2, &["--xml"], SCRIPT) else { return };
    // It has a root element, and prterun's and our stderr is our stderr.
    let merged = theirs.text().replace("<mpirun>", "").replace("</mpirun>", "");
    let theirs = merged.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    let ours = ours(&site, 2, &["--output", "xml,merge"], SCRIPT);
    assert_eq!(sorted(ours.text()), sorted(&theirs), "xml");
}

#[test]
fn ranks_are_prepended_as_mpich_does_but_for_the_spelling() {
    let site = Site::new();
    let Some(theirs) = peer(Peer::Hydra, 3, &["-prepend-rank"], SCRIPT) else { return };
    let spelt = |text: &str| text.replace("]<stdout>: ", "] ").replace("]<stderr>: ", "] ");
    assert_alike(&theirs, &ours(&site, 3, &["--output", "rank"], SCRIPT), spelt, "rank");
}

/// All files below `directory` with what is in them; `job` in their names is the name of the job.
fn tree(directory: &Path, job: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().replacen(
            job,
            if job.is_empty() { "" } else { "JOB" },
            1,
        );
        if path.is_dir() {
            found.extend(
                tree(&path, job).into_iter().map(|(below, text)| (Path::new(&name).join(below), text)),
            );
        } else {
            found.insert(name.into(), fs::read_to_string(&path).unwrap());
        }
    }
    found
}

#[test]
fn files_lie_where_prterun_puts_them() {
    let both = "echo out; [ ${PMIX_RANK:-$IOF_RANK} = 3 ] || echo err >&2";
    // Of two files in one directory, prterun 5.0 loses what comes second: PMIX_ERR_EXISTS.
    let one = "if [ ${PMIX_RANK:-$IOF_RANK} = 1 ]; then echo err >&2; else echo out; fi";
    for (list, ranks, script) in
        [("dir=DIR", 2, one), ("dir=DIR", 10, one), ("tag,dir=DIR", 2, one), ("file=DIR/f", 11, both)]
    {
        let (site, theirs) = (Site::new(), tempfile::tempdir().unwrap());
        let at = |directory: &Path| list.replace("DIR", directory.to_str().unwrap());
        let options = ["--output", &at(theirs.path())];
        let Some(done) = peer(Peer::Prte, ranks, &options, script) else { return };
        assert_eq!(done.text(), "", "{list}");
        let name = fs::read_dir(theirs.path()).unwrap().next().unwrap().unwrap().file_name();
        let name =
            name.to_str().unwrap().trim_start_matches("f.").split_once("@1").unwrap().0.to_owned() + "@1";
        let mine = site.path().join("made");
        ours(&site, ranks, &["--output", &at(&mine)], script);
        assert_eq!(tree(&mine, "ours@1"), tree(theirs.path(), &name), "{list} of {ranks}");
    }
}

#[test]
fn files_lie_as_with_open_mpi_4_below_the_name_of_the_job() {
    let script = "echo out; echo err >&2";
    let (site, theirs) = (Site::new(), tempfile::tempdir().unwrap());
    let directory = theirs.path().to_str().unwrap();
    let options = ["--output-filename", directory];
    if peer(Peer::Orte, 10, &options, script).is_none() {
        return;
    }
    let mine = site.path().join("made");
    ours(&site, 10, &["--output", &format!("dir={}:copy", mine.display())], script);
    assert_eq!(tree(&mine.join("ours@1"), ""), tree(&theirs.path().join("1"), ""));
}
