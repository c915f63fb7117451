//! The key-value space of a job, in which ranks leave their addresses for each other.

use std::collections::BTreeMap;

/// The longest name of a key-value space that clients must accept, in bytes with the final zero of
/// a C string.
pub(crate) const MAX_NAME: usize = 256;
/// The longest key, in bytes with the final zero of a C string.
pub const MAX_KEY: usize = 64;
/// The longest value, in bytes with the final zero of a C string. A reply with such a value fits
/// the 1,024 bytes for which clients have room.
pub const MAX_VALUE: usize = 960;
/// The most bytes that one rank may store in the space of its job, with 64 bytes more for each
/// entry.
pub const MAX_SPACE_OF_RANK: usize = 256 << 10;
/// The most bytes that the ranks of a node may store between two barriers, if other nodes have ranks.
pub const MAX_NEWS: usize = 16 << 20;
/// The bytes that an entry counts in addition to its key and value.
pub(crate) const ENTRY_BYTES: usize = 64;

/// A key-value space.
#[derive(Debug, Default)]
pub(crate) struct Space {
    entries: BTreeMap<String, Entry>,
    /// The bytes that each rank has stored.
    stored: BTreeMap<u32, usize>,
}

#[derive(Debug)]
struct Entry {
    value: String,
    /// `None` for an entry of the launcher.
    owner: Option<u32>,
}

/// The reason why a value is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutError {
    /// The key or the value is too long or has characters that the protocol cannot carry.
    Invalid,
    /// The key belongs to another rank or to the launcher.
    Taken,
    /// The rank has stored [`MAX_SPACE_OF_RANK`].
    Full,
}

impl PutError {
    /// Returns the word that the reply contains.
    pub(crate) fn word(self) -> &'static str {
        match self {
            PutError::Invalid => "invalid_key_or_value",
            PutError::Taken => "duplicate_key",
            PutError::Full => "space_is_full",
        }
    }
}

impl Space {
    /// Stores a value of the launcher.
    pub(crate) fn preset(&mut self, key: &str, value: String) {
        self.entries.insert(key.into(), Entry { value, owner: None });
    }

    /// Removes a value.
    pub(crate) fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Stores a value of a rank. The rank may replace its own values.
    ///
    /// # Errors
    /// [`PutError`]. Nothing has changed then.
    pub(crate) fn put(&mut self, rank: u32, key: &str, value: &str) -> Result<(), PutError> {
        if !is_key(key) || !is_value(value) {
            return Err(PutError::Invalid);
        }
        let size = |value: &str| ENTRY_BYTES.saturating_add(key.len()).saturating_add(value.len());
        let old = match self.entries.get(key) {
            Some(entry) if entry.owner != Some(rank) => return Err(PutError::Taken),
            Some(entry) => size(&entry.value),
            None => 0,
        };
        let stored = self.stored.entry(rank).or_default();
        let sum = stored.saturating_sub(old).saturating_add(size(value));
        if sum > MAX_SPACE_OF_RANK {
            return Err(PutError::Full);
        }
        *stored = sum;
        self.entries.insert(key.into(), Entry { value: value.into(), owner: Some(rank) });
        Ok(())
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.entries.get(key).map(|entry| entry.value.as_str())
    }
}

/// Returns whether the protocol can carry a key.
pub(crate) fn is_key(key: &str) -> bool {
    !key.is_empty() && key.len() < MAX_KEY && visible(key)
}

/// Returns whether the protocol can carry a value.
pub(crate) fn is_value(value: &str) -> bool {
    value.len() < MAX_VALUE && visible(value)
}

fn visible(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_replaces_only_its_own_values() {
        let mut space = Space::default();
        space.preset("PMI_process_mapping", "x".into());
        assert_eq!(space.put(0, "PMI_process_mapping", "y"), Err(PutError::Taken));
        assert_eq!(space.put(0, "a", "1"), Ok(()));
        assert_eq!(space.put(1, "a", "2"), Err(PutError::Taken));
        assert_eq!(space.put(0, "a", "a value"), Ok(()));
        assert_eq!((space.get("a"), space.get("b")), (Some("a value"), None));
    }

    #[test]
    fn keys_and_values_that_do_not_fit_are_refused() {
        let mut space = Space::default();
        let (key, value) = ("k".repeat(MAX_KEY - 1), "v".repeat(MAX_VALUE - 1));
        assert_eq!(space.put(0, &key, &value), Ok(()));
        let (long_key, long_value) = ("k".repeat(MAX_KEY), "v".repeat(MAX_VALUE));
        for (key, value) in [("", "x"), (&long_key, "x"), ("k", &long_value), ("k", "\u{1}"), ("\u{e4}", "x")]
        {
            assert_eq!(space.put(0, key, value), Err(PutError::Invalid), "{key} {value}");
        }
    }

    #[test]
    fn a_rank_that_has_filled_its_share_leaves_room_for_others() {
        let mut space = Space::default();
        let value = "v".repeat(MAX_VALUE - 1);
        let stored = (0u32..).take_while(|key| space.put(0, &key.to_string(), &value).is_ok()).count();
        assert!((200..300).contains(&stored), "{stored}");
        assert_eq!(space.put(0, "more", &value), Err(PutError::Full));
        // What it has stored already can be replaced, as the sum does not grow.
        assert_eq!(space.put(0, "0", &value), Ok(()));
        assert_eq!(space.put(1, "more", &value), Ok(()));
    }
}
