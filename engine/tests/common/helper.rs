//! A part of a test that runs in a process of its own: an ignored test of the same file.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::unistd::geteuid;

/// The user that nobody is.
pub const NOBODY: u32 = 65534;

/// Who runs it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum As {
    Me,
    /// Another user, which takes root.
    Nobody,
}

/// A helper that runs until it is dropped.
pub struct Helper(Child);

impl Helper {
    /// Runs the ignored test `name` with `argument`, and waits until it is [ready](ready). `None`
    /// if it can't run as that user.
    pub fn start(name: &str, argument: &str, user: As) -> Option<Helper> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--ignored", "--nocapture", name]).env("IOF_TEST_ARGUMENT", argument);
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        if user == As::Nobody {
            if !geteuid().is_root() {
                eprintln!("skipped: only root can run a process as user {NOBODY}");
                return None;
            }
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.spawn().map_err(|error| eprintln!("skipped: {error}")).ok()?;
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !said.ends_with(READY) {
            let count = child.stdout.as_mut().unwrap().read(&mut byte).unwrap();
            assert!(count > 0, "the helper has ended: {}", String::from_utf8_lossy(&said));
            said.extend_from_slice(&byte);
        }
        Some(Helper(child))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Its end, even if it is stopped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const READY: &[u8] = b"the helper is ready\n";

/// What the helper was started with.
pub fn argument() -> String {
    std::env::var("IOF_TEST_ARGUMENT").expect("a helper is started by its test")
}

/// In the helper: tells the test that it is ready, and waits for its end.
pub fn ready() {
    print!("{}", String::from_utf8_lossy(READY));
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}
