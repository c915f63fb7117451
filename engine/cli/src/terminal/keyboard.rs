//! The keyboard of a rank with a pseudo-terminal: the command's stdin, typed at that terminal. Also
//! the size of the command's own terminal.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iof_engine::{InputKeys, PtyMaster, WindowSize};
use iof_proto::Rank;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, Termios};
use nix::sys::termios::{tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, read, tcgetpgrp};

use crate::error::Failure;
use crate::processes::threads::start_thread;

/// The largest number of bytes that are read from stdin ahead of the rank's terminal.
const CHUNK: usize = 4096;

/// Returns the size of the terminal that this command writes to or reads from. Returns the default
/// size if there is no terminal or its size is unknown.
pub fn window_size() -> WindowSize {
    let (out, err, stdin) = (io::stdout(), io::stderr(), io::stdin());
    let known = |size: &WindowSize| size.rows > 0 && size.columns > 0;
    [out.as_fd(), err.as_fd(), stdin.as_fd()]
        .into_iter()
        .find_map(|file| WindowSize::of(file).ok().filter(known))
        .unwrap_or_default()
}

/// The command's stdin while it belongs to a rank. If it is a terminal, every key goes to the
/// rank's terminal, also Ctrl-C. Dropping this restores the settings of the terminal.
pub struct Keyboard {
    settings: Arc<Mutex<Settings>>,
    /// The rank on another node whose exit ends its use of the keyboard.
    elsewhere: Option<Rank>,
}

/// The settings of the command's terminal.
struct Settings {
    /// The settings before the rank had the keyboard; `None` if stdin is not a terminal.
    before: Option<Termios>,
    /// The rank has the keyboard.
    given: bool,
}

impl Keyboard {
    /// Starts a thread that types stdin at `master`, until no process has that terminal open. Calls `fail` if stdin can't
    /// be read to its end.
    pub fn give_to(
        master: PtyMaster,
        mut fail: impl FnMut(io::Error) + Send + 'static,
    ) -> Result<Keyboard, Failure> {
        Keyboard::give(None, move |settings| {
            lock(settings).give();
            let is_terminal = lock(settings).before.is_some();
            // That of a terminal that hangs up is its end.
            let mut fail = |error| {
                if !is_terminal {
                    fail(error)
                }
            };
            // After an error, too, nothing can be typed to the rank any more.
            let _ = type_stdin(&master, &mut fail);
            lock(settings).take_back();
        })
    }

    /// Passes every key of the command's terminal to its stdin unchanged, from which they are sent
    /// to `rank` on another node. A thread waits until this process is in the foreground.
    pub fn give_elsewhere(rank: Rank) -> Result<Keyboard, Failure> {
        Keyboard::give(Some(rank), |settings| lock(settings).give())
    }

    fn give(
        elsewhere: Option<Rank>,
        use_it: impl FnOnce(&Mutex<Settings>) + Send + 'static,
    ) -> Result<Keyboard, Failure> {
        let settings = Settings { before: tcgetattr(io::stdin()).ok(), given: true };
        let keyboard = Keyboard { settings: Arc::new(Mutex::new(settings)), elsewhere };
        let settings = Arc::clone(&keyboard.settings);
        start_thread("iof-keyboard", move || use_it(&settings))?;
        Ok(keyboard)
    }

    /// Returns the rank on another node to which the keys are sent.
    pub fn elsewhere(&self) -> Option<Rank> {
        self.elsewhere
    }

    /// Restores the original settings of the terminal, before this process stops.
    pub fn restore_settings(&self) {
        lock(&self.settings).restore();
    }

    /// Sets the terminal again to pass every key unchanged, if the rank still has the keyboard.
    pub fn set_raw(&self) {
        lock(&self.settings).give();
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        lock(&self.settings).take_back();
    }
}

/// Locks the settings. A thread that panicked with the lock left them valid.
fn lock(settings: &Mutex<Settings>) -> MutexGuard<'_, Settings> {
    settings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Settings {
    /// Sets the terminal to pass every key unchanged, if the rank still has the keyboard. The
    /// settings for output do not change. In the background, SIGTTOU stops this process here until
    /// it is in the foreground.
    fn give(&self) {
        if let Some(before) = self.before.as_ref().filter(|_| self.given) {
            let mut raw = before.clone();
            raw.input_flags.remove(InputFlags::IGNBRK | InputFlags::BRKINT | InputFlags::PARMRK);
            raw.input_flags.remove(InputFlags::INLCR | InputFlags::IGNCR | InputFlags::ICRNL);
            raw.input_flags.remove(InputFlags::ISTRIP | InputFlags::IXON);
            raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ISIG | LocalFlags::IEXTEN);
            raw.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHONL);
            raw.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
            raw.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &raw);
        }
    }

    /// Ends the rank's use of the keyboard.
    fn take_back(&mut self) {
        if mem::replace(&mut self.given, false) {
            self.restore();
        }
    }

    fn restore(&self) {
        // In the background, the terminal belongs to another process group.
        if let Some(before) = &self.before
            && tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground == getpgrp())
        {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, before);
        }
    }
}

/// Types stdin at `master`, and the end key at the end of stdin. Returns when no process has the
/// terminal open. Calls `fail` if stdin can't be read to its end, which is typed as well then.
fn type_stdin(master: &PtyMaster, fail: &mut impl FnMut(io::Error)) -> io::Result<()> {
    let stdin = io::stdin();
    let mut open = true;
    let mut typed = InputKeys::default();
    let mut keys: Vec<u8> = Vec::new();
    loop {
        let (wants_out, wants_in) = (!keys.is_empty(), open && keys.is_empty());
        let out = if wants_out { PollFlags::POLLOUT } else { PollFlags::empty() };
        let (terminal, input) =
            (PollFd::new(master.as_fd(), out), PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        let mut files = if wants_in { vec![terminal, input] } else { vec![terminal] };
        match poll(&mut files, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = files.iter().map(|file| file.revents().unwrap_or(PollFlags::empty()));
        let (terminal, input) = (ready.next().unwrap_or(PollFlags::empty()), ready.next());
        if terminal.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
            return Ok(());
        }
        if terminal.contains(PollFlags::POLLOUT) {
            match master.type_keys(&keys) {
                Ok(taken) => drop(keys.drain(..taken.min(keys.len()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if input.is_some_and(|input| !input.is_empty()) {
            let mut chunk = [0; CHUNK];
            match read(&stdin, &mut chunk) {
                Ok(count @ 1..) => keys = typed.of(chunk.get(..count).unwrap_or_default(), master)?,
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                end => {
                    end.map_or_else(|error| fail(error.into()), drop);
                    open = false;
                    keys = typed.end(master)?;
                }
            }
        }
    }
}
