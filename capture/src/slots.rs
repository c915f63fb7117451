//! A container whose items keep a small index while they live. A free index is used again.

/// A vector with holes.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Inserts `item` and returns its index.
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

    /// Removes and returns the item at `index`, which becomes free.
    pub(crate) fn remove(&mut self, index: usize) -> Option<T> {
        let item = self.items.get_mut(index)?.take()?;
        self.free.push(index);
        Some(item)
    }

    /// Returns the indices in use.
    pub(crate) fn indices(&self) -> Vec<usize> {
        let used = |(index, item): (usize, &Option<T>)| item.is_some().then_some(index);
        self.items.iter().enumerate().filter_map(used).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_stays_while_its_item_lives_and_is_used_again_after() {
        let mut slots = Slab::default();
        let (a, b) = (slots.insert('a'), slots.insert('b'));
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.get(b), Some(&'b'));
        assert_eq!(slots.indices(), [b]);
        assert_eq!(slots.insert('c'), a);
        assert_eq!(slots.get_mut(a), Some(&mut 'c'));
    }
}
