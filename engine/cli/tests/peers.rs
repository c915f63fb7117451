//! Comparison with other launchers, where they are installed: `iof` writes the same bytes for the
//! same ranks. Errors and other spellings of a launcher are noted at the test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use iof_testing::command::site::Site;
use iof_testing::process::{Done, Process};

/// Another launcher.
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

/// Returns the first program that is the launcher `wanted`. If there is none, reports that the test
/// is skipped.
fn find(wanted: Peer) -> Option<&'static str> {
    let is_wanted = |program: &&str| {
        let version = Command::new(program).arg("--version").output();
        let Ok(version) = version else { return false };
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        let peer = if text.contains("HYDRA") {
            Peer::Hydra
        } else if text.contains("(Open MPI) 4") {
            Peer::Orte
        } else if text.contains("prterun") || text.contains("(Open MPI) 5") {
            Peer::Prte
        } else {
            return false;
        };
        peer == wanted
    };
    let program = PROGRAMS.into_iter().find(is_wanted);
    if program.is_none() {
        eprintln!("skipped: no program of {wanted:?} on this machine");
    }
    program
}

/// Runs `script` on `ranks` ranks with `peer`.
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

/// Returns the sorted lines, because the order of ranks is not defined.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Compares the output of a peer with the output of `iof` after `respell` has changed its spelling.
fn assert_alike(theirs: &Done, ours: &Done, respell: impl Fn(&str) -> String, what: &str) {
    assert_eq!(sorted(&respell(ours.text())), sorted(theirs.text()), "{what}: stdout");
    assert_eq!(sorted(&respell(&ours.stderr)), sorted(&theirs.stderr), "{what}: stderr");
}

/// Lines of several kinds. The last line has a newline, because the peers join a line without one
/// to a line of another rank.
const SCRIPT: &str = "echo out; echo 'a <b> & \"c\"'; echo; printf 'tab\\there\\n'; echo err >&2";

#[test]
fn tags_are_the_same_as_with_prterun() {
    let site = Site::new();
    for list in ["tag", "rank", "merge,tag"] {
        let Some(theirs) = peer(Peer::Prte, 3, &["--output", list], SCRIPT) else { return };
        assert_alike(&theirs, &ours(&site, 3, &["--output", list], SCRIPT), str::to_owned, list);
    }
    let Some(theirs) = peer(Peer::Prte, 2, &["--output", "tag-fullname"], SCRIPT) else { return };
    let name = theirs.text().strip_prefix('[').unwrap().split_once(',').unwrap().0.to_owned();
    let respell = |text: &str| text.replace("ours@1", &name);
    assert_alike(&theirs, &ours(&site, 2, &["--output", "tag-fullname"], SCRIPT), respell, "tag-fullname");
}

#[test]
fn tags_are_the_same_as_with_open_mpi_4_except_for_a_space() {
    let site = Site::new();
    let Some(theirs) = peer(Peer::Orte, 3, &["--tag-output"], SCRIPT) else { return };
    let respell = |text: &str| text.replace(">: ", ">:");
    assert_alike(&theirs, &ours(&site, 3, &["--output", "tag"], SCRIPT), respell, "tag");
    let Some(theirs) = peer(Peer::Orte, 2, &["--xml"], SCRIPT) else { return };
    // Open MPI 4 adds a root element, and writes stderr to stdout.
    let merged = theirs.text().replace("<mpirun>", "").replace("</mpirun>", "");
    let theirs = merged.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    let ours = ours(&site, 2, &["--output", "xml,merge"], SCRIPT);
    assert_eq!(sorted(ours.text()), sorted(&theirs), "xml");
}

#[test]
fn ranks_are_prepended_as_with_mpich_except_for_the_spelling() {
    let site = Site::new();
    let Some(theirs) = peer(Peer::Hydra, 3, &["-prepend-rank"], SCRIPT) else { return };
    let respell = |text: &str| text.replace("]<stdout>: ", "] ").replace("]<stderr>: ", "] ");
    assert_alike(&theirs, &ours(&site, 3, &["--output", "rank"], SCRIPT), respell, "rank");
}

/// Returns all files below `directory` with their contents. The name `job` in a path is replaced by
/// `JOB`.
fn tree(directory: &Path, job: &str) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().replacen(
            job,
            if job.is_empty() { "" } else { "JOB" },
            1,
        );
        if path.is_dir() {
            files.extend(
                tree(&path, job).into_iter().map(|(below, text)| (Path::new(&name).join(below), text)),
            );
        } else {
            files.insert(name.into(), fs::read_to_string(&path).unwrap());
        }
    }
    files
}

#[test]
fn files_are_placed_as_by_prterun() {
    let both = "echo out; [ ${PMIX_RANK:-$IOF_RANK} = 3 ] || echo err >&2";
    // If one directory has two files, prterun 5.0 loses the second file (PMIX_ERR_EXISTS).
    let one = "if [ ${PMIX_RANK:-$IOF_RANK} = 1 ]; then echo err >&2; else echo out; fi";
    for (list, ranks, script) in
        [("dir=DIR", 2, one), ("dir=DIR", 10, one), ("tag,dir=DIR", 2, one), ("file=DIR/f", 11, both)]
    {
        let (site, theirs) = (Site::new(), tempfile::tempdir().unwrap());
        let list_in = |directory: &Path| list.replace("DIR", directory.to_str().unwrap());
        let options = ["--output", &list_in(theirs.path())];
        let Some(done) = peer(Peer::Prte, ranks, &options, script) else { return };
        assert_eq!(done.text(), "", "{list}");
        let name = fs::read_dir(theirs.path()).unwrap().next().unwrap().unwrap().file_name();
        let name =
            name.to_str().unwrap().trim_start_matches("f.").split_once("@1").unwrap().0.to_owned() + "@1";
        let own = site.path().join("made");
        ours(&site, ranks, &["--output", &list_in(&own)], script);
        assert_eq!(tree(&own, "ours@1"), tree(theirs.path(), &name), "{list} of {ranks}");
    }
}

#[test]
fn files_are_placed_as_by_open_mpi_4_below_the_name_of_the_job() {
    let script = "echo out; echo err >&2";
    let (site, theirs) = (Site::new(), tempfile::tempdir().unwrap());
    let directory = theirs.path().to_str().unwrap();
    let options = ["--output-filename", directory];
    if peer(Peer::Orte, 10, &options, script).is_none() {
        return;
    }
    let own = site.path().join("made");
    ours(&site, 10, &["--output", &format!("dir={}:copy", own.display())], script);
    assert_eq!(tree(&own.join("ours@1"), ""), tree(&theirs.path().join("1"), ""));
}
