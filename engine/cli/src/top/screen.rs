//! The terminal of `iof top`: acquired, drawn to, and restored however the command ends.

use std::io::{self, IsTerminal, Stdout};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::{env, panic};

use nix::errno::Errno;
use nix::unistd::{getpgrp, tcgetpgrp};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use crate::error::Failure;
use crate::terminal::keyboard::window_size;

/// The terminal is acquired. This is global, because a panic hook or a signal must restore it.
static ACQUIRED: AtomicBool = AtomicBool::new(false);

/// The terminal on stdout. Dropping this restores the terminal.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    area: Rect,
}

impl Screen {
    /// Checks that stdout is a terminal with a movable cursor. Does not acquire it yet.
    pub fn new() -> Result<Screen, Failure> {
        let alternative = "`iof top --once` prints the same data once";
        if !io::stdout().is_terminal() {
            return Err(Failure::Usage(format!("iof top needs a terminal on stdout; {alternative}")));
        }
        let kind = env::var("TERM").unwrap_or_default();
        if matches!(kind.as_str(), "" | "dumb" | "unknown") {
            return Err(Failure::Usage(format!(
                "iof top needs a terminal with a movable cursor, but TERM is '{kind}'; {alternative}"
            )));
        }
        let area = area();
        let options = TerminalOptions { viewport: Viewport::Fixed(area) };
        let terminal =
            Terminal::with_options(CrosstermBackend::new(io::stdout()), options).map_err(Failure::running)?;
        restore_on_panic();
        Ok(Screen { terminal, area })
    }

    /// Acquires the terminal if this process is in its foreground. Returns `true` if the terminal
    /// is acquired, also by an earlier call.
    pub fn acquire_in_foreground(&mut self) -> io::Result<bool> {
        if ACQUIRED.load(SeqCst) {
            return Ok(true);
        }
        // A terminal that is not the controlling terminal has no background.
        let foreground = match tcgetpgrp(io::stdout()) {
            Ok(group) => group == getpgrp(),
            Err(Errno::ENOTTY) => true,
            Err(errno) => return Err(errno.into()),
        };
        if foreground {
            ACQUIRED.store(true, SeqCst);
            enable_raw_mode()?;
            execute!(io::stdout(), EnterAlternateScreen, Hide)?;
            self.clear()?;
        }
        Ok(foreground)
    }

    /// Restores the terminal.
    pub fn restore(&mut self) {
        restore();
    }

    /// Clears the screen, so that the next drawing is complete. Another process may have written to
    /// the terminal.
    pub fn clear(&mut self) -> io::Result<()> {
        execute!(io::stdout(), Clear(ClearType::All))?;
        // `Terminal::clear` would query the position of the cursor and steal the answer from the
        // thread that reads keys. `resize` redraws everything as well.
        self.terminal.resize(self.area)
    }

    /// Draws in the terminal's current size.
    pub fn draw(&mut self, body: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let area = area();
        if area != self.area {
            self.area = area;
            self.terminal.resize(area)?;
        }
        self.terminal.draw(body).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if it is acquired, from any thread.
pub fn restore() {
    if ACQUIRED.swap(false, SeqCst) {
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    }
}

/// Restores only the settings of the terminal. This does not block on a terminal that accepts no
/// output.
pub fn restore_settings() {
    if ACQUIRED.swap(false, SeqCst) {
        let _ = disable_raw_mode();
    }
}

/// Restores the terminal before the message of a panic, so that the message can be read.
fn restore_on_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        restore();
        before(panic);
        // Otherwise the other threads would run on and acquire the terminal again.
        std::process::exit(PANICKED);
    }));
}

/// The exit code after a panic, the same as Rust's.
const PANICKED: i32 = 101;

fn area() -> Rect {
    let size = window_size();
    Rect::new(0, 0, size.columns, size.rows)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::thread;

    use nix::pty::openpty;
    use nix::sys::termios::{LocalFlags, tcgetattr};

    use super::*;

    /// The variable that makes the test below panic, in a child process at a terminal.
    const PANIC: &str = "IOF_TEST_PANIC";

    #[test]
    fn a_panic_on_any_thread_restores_the_terminal_before_its_message() {
        if env::var_os(PANIC).is_some() {
            let mut screen = Screen::new().map_err(|_| "no screen").unwrap();
            assert!(screen.acquire_in_foreground().unwrap());
            let _ = thread::spawn(|| panic!("on purpose")).join();
            // Not reached: the other thread has ended the process.
            std::process::exit(0);
        }
        let pty = openpty(None, None).unwrap();
        // The flags and the control characters that the kernel knows: musl does not set all fields.
        let settings = || {
            let now = tcgetattr(&pty.slave).unwrap();
            let flags = (now.input_flags, now.output_flags, now.control_flags, now.local_flags);
            (flags, now.control_chars[..19].to_vec())
        };
        let before = settings();
        let file = || Stdio::from(File::from(pty.slave.try_clone().unwrap()));
        let mut this_test = Command::new(env::current_exe().unwrap());
        let name = "top::screen::tests::a_panic_on_any_thread_restores_the_terminal_before_its_message";
        this_test
            .args(["--exact", name, "--nocapture"])
            .env(PANIC, "1")
            .env("TERM", "xterm")
            .env("RUST_BACKTRACE", "0");
        let mut child = this_test.stdin(file()).stdout(file()).stderr(file()).spawn().unwrap();
        drop(this_test);
        assert_eq!(child.wait().unwrap().code(), Some(PANICKED));
        assert!(before.0.3.contains(LocalFlags::ICANON));
        assert_eq!(settings(), before);
        drop(pty.slave);
        let (mut shown, mut master) = (Vec::new(), File::from(pty.master));
        let mut chunk = [0; 4096];
        // The output fits the terminal's buffer. After it, reading fails with EIO, as no process
        // has the terminal open.
        while let Ok(count @ 1..) = master.read(&mut chunk) {
            shown.extend_from_slice(&chunk[..count]);
        }
        let shown = String::from_utf8_lossy(&shown);
        let (acquired, restored) = (shown.find("\x1b[?1049h").unwrap(), shown.find("\x1b[?1049l").unwrap());
        assert!(acquired < restored && restored < shown.find("on purpose").unwrap(), "{shown:?}");
    }
}
