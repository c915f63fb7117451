//! The figures of several rounds: their median and extremes.

use std::fmt;

/// The figures of one variant, one for each round.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<f64>);

impl Figures {
    /// Adds the figure of a round.
    pub fn add(&mut self, figure: f64) {
        self.0.push(figure);
        self.0.sort_by(f64::total_cmp);
    }

    /// Returns the median: for an even number of rounds the higher one of the middle two.
    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// Returns the smallest figure.
    pub fn least(&self) -> f64 {
        self.0[0]
    }

    /// Returns the largest figure.
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
