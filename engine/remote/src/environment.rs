//! The variables of this process that ranks on other nodes have.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use iof_engine::is_launcher_variable;

/// Variables of the host, of the terminal, or of the shell.
const OF_HOST: [&str; 8] =
    ["_", "DISPLAY", "HOST", "HOSTNAME", "OLDPWD", "SHLVL", "WAYLAND_DISPLAY", "XAUTHORITY"];

/// The first letters of those of the session.
const OF_SESSION: [&str; 4] = ["DBUS_", "LSB_", "SSH_", "XDG_"];

/// Returns the variables that ranks on other nodes have, without those named `left_out`.
pub fn of_ranks(left_out: &[OsString]) -> Vec<(OsString, OsString)> {
    env::vars_os().filter(|(name, _)| is_passed(name) && !left_out.contains(name)).collect()
}

fn is_passed(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    // Slurm sets variables for the job, and others for each step, node and task.
    let is_of_step = bytes.starts_with(b"SLURM") && !bytes.starts_with(b"SLURM_JOB_");
    let is_of_session = OF_SESSION.iter().any(|prefix| bytes.starts_with(prefix.as_bytes()));
    let is_of_host = OF_HOST.iter().any(|known| name == *known);
    !(is_of_step || is_of_session || is_of_host || is_launcher_variable(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_host_session_step_or_launcher_stay_where_they_are() {
        for name in
            ["SSH_AUTH_SOCK", "HOSTNAME", "SLURM_PROCID", "SLURMD_NODENAME", "PMI_FD", "XDG_RUNTIME_DIR"]
        {
            assert!(!is_passed(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "SLURM_JOB_ID", "TMPDIR", "HOSTS"] {
            assert!(is_passed(OsStr::new(name)), "{name}");
        }
    }
}
