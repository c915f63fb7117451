//! Programs that fill the terminal, such as editors: they draw on its alternate screen, where a
//! message of this command would be in their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use iof_engine::{Engine, Grant};
use iof_proto::{Channels, Nspace, Proc, Rank};
use iof_tool::{Delivery, Pull};

use crate::error::Failure;
use crate::processes::threads::start_thread;

/// The longest control sequence that is considered. Those that switch screens are shorter.
const MAX_SEQUENCE: usize = 32;

/// A flag that is set if a rank draws on the alternate screen of the terminal, according to its
/// output.
#[derive(Clone, Default)]
pub struct FullScreen(Arc<AtomicBool>);

impl FullScreen {
    /// Starts a thread that reads the output of `rank` as one more tool, and calls `on_close` when
    /// the rank leaves the alternate screen, and at the end of its output.
    pub fn watch(
        engine: &Engine,
        nspace: &Nspace,
        rank: Rank,
        on_close: impl Fn() + Send + 'static,
    ) -> Result<FullScreen, Failure> {
        let mut tool = engine.attach("iof screen", Grant::Never).map_err(Failure::running)?;
        let source = Proc { nspace: nspace.clone(), rank };
        tool.pull(&Pull::new(vec![source], Channels::STDOUT)).map_err(Failure::running)?;
        let full_screen = FullScreen::default();
        let is_on = full_screen.clone();
        start_thread("iof-screen", move || {
            let mut screens = Screens::default();
            while let Ok(Some(delivery)) = tool.recv() {
                let Delivery::Bytes(bytes) = delivery else { continue };
                screens.read(&bytes);
                // SeqCst: the flag and the event that `on_close` sends are not reordered.
                if is_on.0.swap(screens.is_alternate, SeqCst) && !screens.is_alternate {
                    on_close();
                }
            }
            is_on.0.store(false, SeqCst);
            on_close();
        })?;
        Ok(full_screen)
    }

    pub fn is_on(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// A reader of control sequences, see console_codes(4) and xterm's documentation.
#[derive(Default)]
struct Screens {
    /// The alternate screen is shown.
    is_alternate: bool,
    /// The control sequence that has begun, from its escape character on.
    sequence: Vec<u8>,
}

impl Screens {
    fn read(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == 0x1b {
                self.sequence.clear();
            } else if self.sequence.is_empty() || self.sequence.len() >= MAX_SEQUENCE {
                self.sequence.clear();
                continue;
            }
            self.sequence.push(byte);
            let is_final = self.sequence.len() > 2 && (0x40..=0x7e).contains(&byte);
            if is_final {
                self.end_sequence(byte);
                self.sequence.clear();
            }
        }
    }

    /// Notes a switch between the screens: `ESC [ ? MODES h` and `ESC [ ? MODES l`.
    fn end_sequence(&mut self, last: u8) {
        let Some([modes @ .., _]) = self.sequence.strip_prefix(b"\x1b[?") else { return };
        let switches =
            modes.split(|byte| *byte == b';').any(|mode| matches!(mode, b"47" | b"1047" | b"1049"));
        if switches && matches!(last, b'h' | b'l') {
            self.is_alternate = last == b'h';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_of_screens_is_found_even_if_it_is_split() {
        let alternate = |pieces: &[&str]| {
            let mut screens = Screens::default();
            pieces.iter().for_each(|piece| screens.read(piece.as_bytes()));
            screens.is_alternate
        };
        assert!(
            alternate(&["a\x1b[?1049hb"]) && alternate(&["\x1b[?10", "49h"]) && alternate(&["\x1b[?25;47h"])
        );
        assert!(
            !alternate(&["\x1b[?1049h\x1b[1;31mred\x1b[?1049l"]) && !alternate(&["\x1b[?25h", "\x1b[47h"])
        );
        assert!(alternate(&["\x1b[?\x1b[?1047h"]) && alternate(&["\x1b(B\x1b[?1049h"]));
        assert!(alternate(&[&format!("\x1b[{}", "1".repeat(99)), "\x1b[?1049h"]));
    }
}
