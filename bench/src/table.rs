//! Figures of several rounds: medians beside their extremes.

use std::fmt;

/// What one kind of run took, round by round.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<f64>);

impl Figures {
    /// Notes a round.
    pub fn add(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    /// The one in the middle; of an even number, the higher of the two.
    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// The smallest.
    pub fn least(&self) -> f64 {
        self.0[0]
    }

    /// The largest.
    pub fn most(&self) -> f64 {
        self.0[self.0.len() - 1]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.median(), self.least(), self.most())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_the_order_of_the_rounds() {
        let mut figures = Figures::default();
        [5.0, 1.0, 3.0].into_iter().for_each(|figure| figures.add(figure));
        assert_eq!((figures.least(), figures.median(), figures.most()), (1.0, 3.0, 5.0));
        assert_eq!(figures.to_string(), "3.000 (1.000 to 5.000)");
    }
}
