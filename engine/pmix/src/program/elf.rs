//! The libraries that an ELF file needs, see elf(5). A file that is not one of a little-endian
//! machine with 64 bits, or is damaged, needs none.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most bytes of a table that are read.
const TABLE_LIMIT: u64 = 4 << 20;

/// The greatest number of entries for the dynamic linker. Large programs have hundreds.
const ENTRY_LIMIT: usize = 4096;
/// The greatest number of texts among them that are read, and of bytes of each.
const TEXT_LIMIT: usize = 512;
const TEXT_BYTES: usize = 4096;

/// Parts of the segment for the dynamic linker.
#[derive(Debug, Default)]
pub(crate) struct Dynamic {
    /// The names of the libraries that the file needs.
    pub needed: Vec<OsString>,
    /// The lists of directories in which they are looked up, separated by colons.
    pub paths: Vec<OsString>,
    /// The name of the file itself, if it is a library.
    pub name: Option<OsString>,
}

/// The types of segments.
const LOAD: u64 = 1;
const DYNAMIC: u64 = 2;
/// The tags of entries for the dynamic linker.
const NEEDED: u64 = 1;
const STRING_TABLE: u64 = 5;
const STRING_TABLE_SIZE: u64 = 10;
const NAME: u64 = 14;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;
/// The size of a program header and of an entry for the dynamic linker.
const HEADER_BYTES: usize = 56;
const ENTRY_BYTES: usize = 16;

/// A program header: its type, and the place of the segment in the file and in memory.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

impl Dynamic {
    /// Reads the parts of a file. Returns `None` if it cannot be read or has no such segment.
    pub(crate) fn read(path: &Path) -> Option<Dynamic> {
        // A program may be a FIFO or a device only by mistake, and opening it could block.
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        let file = File::open(path).ok()?;
        let segments = segments(&file)?;
        let dynamic = segments.iter().find(|segment| segment.kind == DYNAMIC)?;
        let entries = table(&file, dynamic.offset, dynamic.size)?;
        let entries: Vec<(u64, u64)> = entries
            .chunks_exact(ENTRY_BYTES)
            .filter_map(|entry| Some((number(entry, 0, 8)?, number(entry, 8, 8)?)))
            .take_while(|(tag, _)| *tag != 0)
            .take(ENTRY_LIMIT)
            .collect();
        let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let address = value(STRING_TABLE)?;
        let inside = |segment: &&Segment| {
            segment.kind == LOAD
                && address.checked_sub(segment.address).is_some_and(|offset| offset < segment.size)
        };
        let loaded = segments.iter().find(inside)?;
        let offset = address.checked_sub(loaded.address)?.checked_add(loaded.offset)?;
        let texts = table(&file, offset, value(STRING_TABLE_SIZE)?)?;
        let text = |index: u64| {
            let bytes = texts.get(usize::try_from(index).ok()?..)?;
            let text = bytes.iter().take(TEXT_BYTES).position(|byte| *byte == 0)?;
            let text = bytes.get(..text)?;
            Some(OsString::from_vec(text.to_vec()))
        };
        let texts_of = |tags: [u64; 2]| {
            entries
                .iter()
                .filter(|(tag, _)| tags.contains(tag))
                .take(TEXT_LIMIT)
                .filter_map(|(_, index)| text(*index))
                .collect()
        };
        let name = value(NAME).and_then(text);
        Some(Dynamic { needed: texts_of([NEEDED; 2]), paths: texts_of([RPATH, RUNPATH]), name })
    }
}

/// Returns the segments of a file.
fn segments(file: &File) -> Option<Vec<Segment>> {
    let header = table(file, 0, 64)?;
    // 64 bits, little-endian, version 1.
    if !header.starts_with(b"\x7fELF\x02\x01\x01") || number(&header, 54, 2)? != HEADER_BYTES as u64 {
        return None;
    }
    let size = number(&header, 56, 2)?.checked_mul(HEADER_BYTES as u64)?;
    let headers = table(file, number(&header, 32, 8)?, size)?;
    let segment = |header: &[u8]| {
        Some(Segment {
            kind: number(header, 0, 4)?,
            offset: number(header, 8, 8)?,
            address: number(header, 16, 8)?,
            size: number(header, 32, 8)?,
        })
    };
    Some(headers.chunks_exact(HEADER_BYTES).filter_map(segment).collect())
}

/// Reads a part of a file.
fn table(file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
    if size > TABLE_LIMIT {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

/// Returns a number of `width` bytes, at most 8.
fn number(bytes: &[u8], start: usize, width: usize) -> Option<u64> {
    let field = bytes.get(start..start.checked_add(width)?)?;
    Some(field.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Returns an ELF file that needs a library of this name as many times.
    fn file(name: &[u8], times: usize) -> Vec<u8> {
        let word = |number: usize| (number as u64).to_le_bytes();
        let entries = 64 + 2 * HEADER_BYTES;
        let strings = entries + (times + 3) * ENTRY_BYTES;
        let end = strings + name.len() + 1;
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(32, 0);
        bytes.extend(word(64));
        bytes.resize(54, 0);
        bytes.extend((HEADER_BYTES as u16).to_le_bytes());
        bytes.extend(2u16.to_le_bytes());
        bytes.resize(64, 0);
        for (kind, offset, size) in [(LOAD, 0, end), (DYNAMIC, entries, strings - entries)] {
            bytes.extend(kind.to_le_bytes());
            bytes
                .extend([word(offset), word(offset), word(offset), word(size), word(size), word(0)].concat());
        }
        for _ in 0..times {
            bytes.extend([NEEDED.to_le_bytes(), word(0)].concat());
        }
        bytes.extend([STRING_TABLE.to_le_bytes(), word(strings)].concat());
        bytes.extend([STRING_TABLE_SIZE.to_le_bytes(), word(name.len() + 1)].concat());
        bytes.extend([word(0), word(0)].concat());
        bytes.extend_from_slice(name);
        bytes.push(0);
        bytes
    }

    #[test]
    fn the_texts_of_a_file_are_bounded() {
        let path = std::env::temp_dir().join(format!("iof-elf-{}", std::process::id()));
        let needed = |name: &[u8], times| {
            std::fs::write(&path, file(name, times)).unwrap();
            let dynamic = Dynamic::read(&path).unwrap();
            dynamic.needed.iter().map(|name| name.len()).collect::<Vec<usize>>()
        };
        assert_eq!(needed(b"libmpi.so.40", 3), [12; 3]);
        assert_eq!(needed(&[b'x'; TEXT_BYTES - 1], 2), [TEXT_BYTES - 1; 2]);
        assert_eq!(needed(&[b'x'; TEXT_BYTES], 2), [0usize; 0]);
        assert_eq!(needed(b"lib", 2000), [3; TEXT_LIMIT]);
        std::fs::remove_file(&path).unwrap();
    }
}
