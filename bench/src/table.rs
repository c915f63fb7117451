//! Figures of several rounds: medians beside their extremes.

use std::fmt;

/// What one kind of run took, round by round.
#[derive(Default)]
pub struct Figures(Vec<f64>);

impl Figures {
    /// Notes a round.
    pub fn add(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    /// The one in the middle.
    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.0[0], self.0[self.0.len() - 1]);
        write!(f, "{:.3} ({least:.3} to {most:.3})", self.median())
    }
}
