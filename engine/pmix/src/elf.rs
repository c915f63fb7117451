//! The libraries that an ELF file needs, see elf(5). A file that is not one of a little-endian
//! machine with 64 bits, or is damaged, needs none.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most bytes of a table that are read.
const TABLE_LIMIT: u64 = 4 << 20;

/// Parts of the segment for the dynamic linker.
#[derive(Debug, Default)]
pub(crate) struct Dynamic {
    /// The names of the libraries that the file needs.
    pub needed: Vec<OsString>,
    /// The lists of directories in which they are looked up, separated by colons.
    pub paths: Vec<OsString>,
}

/// The types of segments.
const LOAD: u64 = 1;
const DYNAMIC: u64 = 2;
/// The tags of entries for the dynamic linker.
const NEEDED: u64 = 1;
const STRING_TABLE: u64 = 5;
const STRING_TABLE_SIZE: u64 = 10;
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
            let text = bytes.split(|byte| *byte == 0).next()?;
            Some(OsString::from_vec(text.to_vec()))
        };
        let texts_of = |tags: [u64; 2]| {
            entries
                .iter()
                .filter(|(tag, _)| tags.contains(tag))
                .filter_map(|(_, index)| text(*index))
                .collect()
        };
        Some(Dynamic { needed: texts_of([NEEDED; 2]), paths: texts_of([RPATH, RUNPATH]) })
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
