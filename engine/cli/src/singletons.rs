//! The line about ranks of Open MPI that are alone, as their job has no PMIx. The file of a script
//! does not show which MPI library it uses; the memory of the running process does.

use std::fs;
use std::thread;
use std::time::Duration;

use iof_engine::Job;

use crate::error::Failure;
use crate::message::print_message;
use crate::threads::start_thread;

/// The times between the looks at a rank. A script may import its MPI library late.
const LOOKS: [Duration; 5] = [
    Duration::from_millis(250),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// The largest number of processes that are looked at: a rank with its children, of which a shell
/// has some.
const PROCESSES: usize = 8;

/// Starts a thread that looks a few times at the libraries of a rank of `job`, which has several
/// ranks and no PMIx. The thread ends after that.
pub fn watch_for_singletons(job: &Job) -> Result<(), Failure> {
    let job = job.clone();
    start_thread("iof-singletons", move || {
        for pause in LOOKS {
            thread::sleep(pause);
            let Some(rank) = children("self").into_iter().find(|pid| is_rank(&job, pid)) else { return };
            if let Some(library) = library_of_open_mpi(rank) {
                print_message(format_args!(
                    "job {}: each rank is alone, because Open MPI needs PMIx: {}",
                    job.nspace(),
                    library.map_or_else(
                        || "choose --mpi pmix".into(),
                        |library| format!("set IOF_LIBPMIX={library}")
                    )
                ));
                return;
            }
        }
    })
}

fn is_rank(job: &Job, pid: &str) -> bool {
    pid.parse().is_ok_and(|pid| job.rank_of_process(pid).is_some())
}

/// Returns the libpmix of a process or of its children if they use Open MPI; `None` in it if it has
/// another name.
fn library_of_open_mpi(rank: String) -> Option<Option<String>> {
    let mut processes = vec![rank];
    let mut index = 0usize;
    while let Some(pid) = processes.get(index).filter(|_| index < PROCESSES) {
        // It may have ended.
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        if maps.contains("/libmpi.so.40") && !maps.contains("/libopen-rte.so.") {
            let libpmix = maps.lines().find(|line| line.contains("/libpmix.so."));
            return Some(libpmix.and_then(|line| Some(line.get(line.find('/')?..)?.to_owned())));
        }
        let below = children(pid);
        processes.extend(below);
        index = index.saturating_add(1);
    }
    None
}

/// Returns the pids of the children of a process.
pub fn children(pid: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().map(str::to_owned).collect::<Vec<String>>()).collect()
}
