//! Standard output and standard error that are closed when the command starts, as by `>&-`.
//!
//! The runtime of Rust opens `/dev/null` in their place before `main`, so output would vanish
//! without an error. This module is earlier: it puts a descriptor there to which each write fails
//! with EBADF, as to the closed one.

use nix::libc;

/// Runs before the runtime of Rust is initialized.
#[used]
// SAFETY: The C library calls each pointer of this section once, as a function without a result,
// before `main`, in the only thread. The function ignores the arguments that some C libraries pass.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = make_closed_outputs_fail;

extern "C" fn make_closed_outputs_fail() {
    for descriptor in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: The calls take numbers and a string that ends in NUL. `opened` belongs to this
        // function, and `descriptor` is closed, so it belongs to no part of the program.
        unsafe {
            if libc::fcntl(descriptor, libc::F_GETFD) != -1 {
                continue;
            }
            let opened = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
            if opened != descriptor && opened != -1 {
                libc::dup2(opened, descriptor);
                libc::close(opened);
            }
        }
    }
}
