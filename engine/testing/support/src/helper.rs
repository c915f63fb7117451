//! Helper processes of tests. Each runs an ignored test of the same file.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::unistd::geteuid;

/// The user ID of `nobody`.
pub const NOBODY: u32 = 65534;

/// The user that a helper process runs as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HelperUser {
    /// The user of the test.
    Current,
    /// The user `nobody`, which requires root.
    Nobody,
}

/// A helper process that runs until it is dropped.
pub struct Helper(Child);

impl Helper {
    /// Runs the ignored test `name` with `argument`, and blocks until it is [`ready`]. Returns
    /// `None` if it cannot run as `user`.
    pub fn start(name: &str, argument: &str, user: HelperUser) -> Option<Helper> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--ignored", "--nocapture", name]).env("IOF_TEST_ARGUMENT", argument);
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        if user == HelperUser::Nobody {
            if !geteuid().is_root() {
                eprintln!("skipped: only root can run a process as user {NOBODY}");
                return None;
            }
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.spawn().map_err(|error| eprintln!("skipped: {error}")).ok()?;
        let (mut output, mut byte) = (Vec::new(), [0]);
        while !output.ends_with(READY) {
            let count = child.stdout.as_mut().unwrap().read(&mut byte).unwrap();
            assert!(count > 0, "the helper has ended: {}", String::from_utf8_lossy(&output));
            output.extend_from_slice(&byte);
        }
        Some(Helper(child))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // SIGKILL ends the helper even if it is stopped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const READY: &[u8] = b"the helper is ready\n";

/// Returns the argument that the helper was started with.
pub fn argument() -> String {
    std::env::var("IOF_TEST_ARGUMENT").expect("the helper needs an argument from its test")
}

/// Called by the helper: reports that it is ready, and blocks until the test ends it.
pub fn ready() {
    print!("{}", String::from_utf8_lossy(READY));
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}
