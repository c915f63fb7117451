//! The table of the ranks' processes for debuggers such as TotalView: the symbols of "The MPIR
//! Process Acquisition Interface", which a debugger finds in this program and reads in its memory.
//! `build.rs` has the linker export them, so that they are left in a stripped program.
#![allow(non_upper_case_globals, non_snake_case, reason = "the interface determines the names")]

use std::ffi::{CString, c_char, c_int};
use std::hint::black_box;
use std::path::absolute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering::Relaxed, Ordering::Release};

use iof_capture::find_program;
use iof_engine::{App, Job, Node};
use iof_proto::Rank;
use iof_proto::names::escape;
use nix::unistd::gethostname;

/// A row of the table, as debuggers know it (`MPIR_PROCDESC`).
#[repr(C)]
struct ProcessDescriptor {
    host_name: *const c_char,
    executable_name: *const c_char,
    pid: c_int,
}

/// The value of [`MPIR_debug_state`] for a table that is complete (`MPIR_DEBUG_SPAWNED`).
const SPAWNED: c_int = 1;

// SAFETY (of all symbols here): No library of this program has a symbol of such a name, so none is
// replaced. The atomics have the layout of a C pointer or int in memory that can be written.

/// The rows, in the order of the ranks.
#[used]
#[unsafe(no_mangle)]
static MPIR_proctable: AtomicPtr<ProcessDescriptor> = AtomicPtr::new(null_mut());
/// The number of rows.
#[used]
#[unsafe(no_mangle)]
static MPIR_proctable_size: AtomicI32 = AtomicI32::new(0);
#[used]
#[unsafe(no_mangle)]
static MPIR_debug_state: AtomicI32 = AtomicI32::new(0);
/// Set by a debugger that has started this program and waits at [`MPIR_Breakpoint`].
#[used]
#[unsafe(no_mangle)]
static MPIR_being_debugged: AtomicI32 = AtomicI32::new(0);
/// Its presence tells that this process is not a rank itself.
#[used]
#[unsafe(no_mangle)]
static MPIR_i_am_starter: AtomicI32 = AtomicI32::new(0);
/// Its presence tells that ranks do not wait for a debugger, so that it need not attach to all.
#[used]
#[unsafe(no_mangle)]
static MPIR_partial_attach_ok: AtomicI32 = AtomicI32::new(0);

/// Does nothing: debuggers set a breakpoint here.
// SAFETY: As above.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn MPIR_Breakpoint() {
    black_box(());
}

/// Fills the table with the ranks of the command's job, which are all started, and stops at
/// [`MPIR_Breakpoint`] if a debugger waits there. The table stays until the process ends. A rank
/// that is not on one of `nodes` runs on this node.
pub fn publish_processes(job: &Job, apps: &[App], nodes: &[Node]) {
    let here = leak(&gethostname().unwrap_or_default().to_string_lossy());
    let mut rows: Vec<ProcessDescriptor> = Vec::new();
    let executables = apps.iter().flat_map(|app| {
        let path = find_program(app).and_then(absolute);
        let name = leak(&path.unwrap_or_else(|_| (&app.program).into()).to_string_lossy());
        (0..app.nprocs).map(move |_| name)
    });
    for (pid, executable_name) in job.pids().into_iter().zip(executables) {
        let pid = c_int::try_from(pid).unwrap_or_default();
        rows.push(ProcessDescriptor { host_name: here, executable_name, pid });
    }
    for node in nodes {
        let host_name = leak(&node.host);
        for Rank(rank) in &node.ranks {
            let row = usize::try_from(*rank).ok().and_then(|rank| rows.get_mut(rank));
            row.into_iter().for_each(|row| row.host_name = host_name);
        }
    }
    MPIR_proctable_size.store(c_int::try_from(rows.len()).unwrap_or(c_int::MAX), Relaxed);
    MPIR_proctable.store(rows.leak().as_mut_ptr(), Relaxed);
    // A debugger that reads `SPAWNED` then reads the whole table.
    MPIR_debug_state.store(SPAWNED, Release);
    // Written before the ranks started, while this process was stopped.
    if MPIR_being_debugged.load(Relaxed) != 0 {
        MPIR_Breakpoint();
    }
}

/// Returns a C string that is never freed, with control characters escaped.
fn leak(text: &str) -> *const c_char {
    CString::new(escape(text)).unwrap_or_default().into_raw()
}
