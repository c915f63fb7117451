//! A line in which the user types.

use ratatui::crossterm::event::KeyCode;

use super::filter::RowFilter;

/// The longest text that can be typed, in bytes. A filter with the longest name of a job fits.
const MAX_TYPED: usize = 512;

/// A text that the user types: a filter, or a text to search for.
#[derive(Default)]
pub struct Prompt {
    pub text: String,
    /// The reason why the text that was typed before is invalid.
    pub error: Option<String>,
}

impl Prompt {
    /// Returns a prompt that shows the present filter, ready for the next word.
    pub fn of(filter: &RowFilter) -> Prompt {
        let mut text = filter.to_string();
        if !text.is_empty() {
            text.push(' ');
        }
        Prompt { text, error: None }
    }

    /// Handles a key. Esc and Enter close the prompt. Returns the text after Enter.
    pub fn pressed(prompt: &mut Option<Prompt>, key: KeyCode) -> Option<String> {
        let Prompt { text, error } = prompt.as_mut()?;
        *error = None;
        match key {
            KeyCode::Esc => *prompt = None,
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Enter => return prompt.take().map(|prompt| prompt.text),
            KeyCode::Char(letter) if text.len() < MAX_TYPED => text.push(letter),
            _ => {}
        }
        None
    }
}
