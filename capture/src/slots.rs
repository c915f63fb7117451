//! Items under small numbers that stay the same while an item lives, and are used again after.

/// A vector with holes.
pub(crate) struct Slots<T> {
    items: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, item: T) -> usize {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.items.get_mut(index)
        {
            *slot = Some(item);
            return index;
        }
        self.items.push(Some(item));
        self.items.len().saturating_sub(1)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.items.get(index)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.items.get_mut(index)?.as_mut()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<T> {
        let item = self.items.get_mut(index)?.take()?;
        self.free.push(index);
        Some(item)
    }

    /// The numbers in use.
    pub(crate) fn indices(&self) -> Vec<usize> {
        let used = |(index, item): (usize, &Option<T>)| item.is_some().then_some(index);
        self.items.iter().enumerate().filter_map(used).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_used_again() {
        let mut slots = Slots::default();
        let (a, b) = (slots.insert('a'), slots.insert('b'));
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.get(b), Some(&'b'));
        assert_eq!(slots.indices(), [b]);
        assert_eq!(slots.insert('c'), a);
        assert_eq!(slots.get_mut(a), Some(&mut 'c'));
    }
}
