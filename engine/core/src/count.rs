//! Counts of what the core has.

/// A count. It neither overflows nor falls below zero unless the core has a defect, which panics with debug
/// assertions.
pub trait Count {
    fn raise(&mut self, by: Self);
    fn lower(&mut self, by: Self);
}

macro_rules! counts {
    ($($number:ty),*) => { $(
        impl Count for $number {
            fn raise(&mut self, by: $number) {
                debug_assert!(self.checked_add(by).is_some(), "{by} more than {self}");
                *self = self.saturating_add(by);
            }

            fn lower(&mut self, by: $number) {
                debug_assert!(by <= *self, "{by} less than {self}");
                *self = self.saturating_sub(by);
            }
        }
    )* };
}

counts!(u32, u64, usize);
