//! The turns of the threads that write to one pipe.

use std::collections::VecDeque;
use std::mem;

/// The turns of those who write to one pipe: first come, first served. So a lone line waits for at
/// most one turn of each other writer, whatever they have to write.
#[derive(Debug)]
pub struct Turns<T> {
    waiting: VecDeque<T>,
    is_taken: bool,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns { waiting: VecDeque::new(), is_taken: false }
    }
}

impl<T> Turns<T> {
    /// Begins a turn if the pipe is free. Returns whether it was.
    pub fn begin(&mut self) -> bool {
        !mem::replace(&mut self.is_taken, true)
    }

    /// Lets a writer wait until [`Turns::end`] returns it.
    pub fn wait(&mut self, writer: T) {
        self.waiting.push_back(writer);
    }

    /// Ends the turn. Returns the writer whose turn begins.
    pub fn end(&mut self) -> Option<T> {
        let next = self.waiting.pop_front();
        self.is_taken = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn writers_take_turns_in_the_order_of_their_requests() {
        let mut turns = Turns::default();
        assert!(turns.begin() && !turns.begin());
        turns.wait(2);
        turns.wait(3);
        assert_eq!(turns.end(), Some(2));
        // One that has more to write waits for all others.
        assert!(!turns.begin());
        turns.wait(1);
        assert_eq!((turns.end(), turns.end(), turns.end()), (Some(3), Some(1), None));
        assert!(turns.begin());
    }
}
