//! The terminal while it is ours: taken, drawn to, and given back however we end.

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

use crate::Failure;
use crate::keyboard::window_size;

/// The terminal is ours. There is only one in a process, and a panic or a signal must find it.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal on stdout. Dropping it gives the terminal back.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    area: Rect,
}

impl Screen {
    /// Looks whether stdout is a terminal that can be drawn to; takes nothing yet.
    pub fn new() -> Result<Screen, Failure> {
        let otherwise = "`iof query stats` prints the same once";
        if !io::stdout().is_terminal() {
            return Err(Failure::Usage(format!("iof top needs a terminal on stdout; {otherwise}")));
        }
        let kind = env::var("TERM").unwrap_or_default();
        if matches!(kind.as_str(), "" | "dumb" | "unknown") {
            return Err(Failure::Usage(format!(
                "iof top needs a terminal whose cursor can be moved, and TERM is '{kind}'; {otherwise}"
            )));
        }
        let area = area();
        let options = TerminalOptions { viewport: Viewport::Fixed(area) };
        let terminal =
            Terminal::with_options(CrosstermBackend::new(io::stdout()), options).map_err(Failure::running)?;
        restore_on_panic();
        Ok(Screen { terminal, area })
    }

    /// Makes the terminal ours if it is not yet and we are in its foreground; whether it is ours.
    pub fn take_in_foreground(&mut self) -> io::Result<bool> {
        if TAKEN.load(SeqCst) {
            return Ok(true);
        }
        // A terminal that controls nobody has no background.
        let foreground = match tcgetpgrp(io::stdout()) {
            Ok(group) => group == getpgrp(),
            Err(Errno::ENOTTY) => true,
            Err(errno) => return Err(errno.into()),
        };
        if foreground {
            TAKEN.store(true, SeqCst);
            enable_raw_mode()?;
            execute!(io::stdout(), EnterAlternateScreen, Hide)?;
            self.forget_shown()?;
        }
        Ok(foreground)
    }

    /// The terminal is as it was before.
    pub fn give_back(&mut self) {
        restore();
    }

    /// The next drawing is drawn whole: somebody else may have written to the terminal.
    pub fn forget_shown(&mut self) -> io::Result<()> {
        execute!(io::stdout(), Clear(ClearType::All))?;
        // Not by its `clear`, which asks the terminal for the cursor and takes the answer from who waits
        // for keys.
        self.terminal.resize(self.area)
    }

    /// Draws, in the size that the terminal has now.
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

/// Gives the terminal back if it is ours, from any thread.
pub fn restore() {
    if TAKEN.swap(false, SeqCst) {
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    }
}

/// Only its settings, which no terminal can keep waiting: for one that takes nothing.
pub fn restore_settings() {
    if TAKEN.swap(false, SeqCst) {
        let _ = disable_raw_mode();
    }
}

/// What a panic says is to be read on the terminal as it was.
fn restore_on_panic() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        restore();
        before(panic);
        // The others would go on, and take the terminal again.
        std::process::exit(PANICKED);
    }));
}

/// The exit code after a panic, as Rust has it.
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

    /// The variable that makes the test below panic at the terminal that it was given.
    const PANIC: &str = "IOF_TEST_PANIC";

    #[test]
    fn a_panic_on_any_thread_gives_the_terminal_back_and_is_read_on_it() {
        if env::var_os(PANIC).is_some() {
            let mut screen = Screen::new().map_err(|_| "no screen").unwrap();
            assert!(screen.take_in_foreground().unwrap());
            let _ = thread::spawn(|| panic!("on purpose")).join();
            // Not reached: the other thread has ended the process.
            std::process::exit(0);
        }
        let pty = openpty(None, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let file = || Stdio::from(File::from(pty.slave.try_clone().unwrap()));
        let mut myself = Command::new(env::current_exe().unwrap());
        let name = "top::screen::tests::a_panic_on_any_thread_gives_the_terminal_back_and_is_read_on_it";
        myself
            .args(["--exact", name, "--nocapture"])
            .env(PANIC, "1")
            .env("TERM", "xterm")
            .env("RUST_BACKTRACE", "0");
        let mut child = myself.stdin(file()).stdout(file()).stderr(file()).spawn().unwrap();
        drop(myself);
        assert_eq!(child.wait().unwrap().code(), Some(PANICKED));
        let after = tcgetattr(&pty.slave).unwrap();
        assert!(before.local_flags.contains(LocalFlags::ICANON));
        assert_eq!(after, before);
        drop(pty.slave);
        let (mut shown, mut master) = (Vec::new(), File::from(pty.master));
        let mut chunk = [0; 4096];
        // All of it fits the terminal's buffer; then EIO, as nobody has it open.
        while let Ok(count @ 1..) = master.read(&mut chunk) {
            shown.extend_from_slice(&chunk[..count]);
        }
        let shown = String::from_utf8_lossy(&shown);
        let (taken, back) = (shown.find("\x1b[?1049h").unwrap(), shown.find("\x1b[?1049l").unwrap());
        assert!(taken < back && back < shown.find("on purpose").unwrap(), "{shown:?}");
    }
}
