//! Writes to files that leave nothing in the page cache.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::CacheDrops;
use crate::output::{IOV_MAX, with_first};
use crate::watch::{CLOSELY_WATCHED_FILE, WriteWatch};

/// The least length, in bytes, of a write that leaves nothing in the page cache. A shorter one costs more
/// CPU time than it saves, as measured in docs/src/notebook/engine.md.
pub(crate) const MIN_UNCACHED: usize = 512 << 10;
const _: () = assert!(MIN_UNCACHED <= CLOSELY_WATCHED_FILE, "slow files leave the cache, too");

/// The number of bytes in shorter writes after which those that are on the disk leave the cache.
const CACHED_WRITES: usize = 1 << 20;

/// `RWF_DONTCACHE` of pwritev2(2), since Linux 6.14: the pages leave the cache once they are on the disk.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// The position of pwritev2(2) that is the end of a file which was opened for appending.
const END: u64 = u64::MAX;

/// Writes the long part of `slices` to a regular file, and removes it from them. Ends at once if the file
/// system or the kernel has refused this for the file before, and if `slices` are short.
pub(super) fn write_uncached(
    file: BorrowedFd<'_>,
    slices: &mut &mut [IoSlice<'_>],
    drops: &mut CacheDrops,
    watch: Option<&WriteWatch>,
) -> io::Result<()> {
    let busy = watch.map(|watch| watch.begin(None));
    let limit = watch.map_or(usize::MAX, |watch| watch.largest_write(true));
    while drops.refusals == 0 && length(slices) >= MIN_UNCACHED {
        match with_first(slices, limit, |first| pwritev2(file, first, END, DONTCACHE)) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(slices, written);
                busy.iter().for_each(|busy| busy.accepted(written));
                drops.bytes = drops.bytes.saturating_add(written as u64);
            }
            Err(Errno::INTR) => {}
            // The file system (tmpfs), an older kernel, a filter of system calls. An ordinary write follows.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => drops.refusals = 1,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Removes from the page cache what is on the disk of a file, and has the kernel write the rest, once
/// `cached` bytes are many. This is advice, so an error has no effect.
pub(super) fn drop_written(file: BorrowedFd<'_>, cached: &mut usize) {
    if *cached >= CACHED_WRITES {
        *cached = 0;
        _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

/// Returns the number of bytes that one call writes.
pub(super) fn length(slices: &[IoSlice<'_>]) -> usize {
    slices.iter().take(IOV_MAX).fold(0usize, |sum, slice| sum.saturating_add(slice.len()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs::{self, File};
    use std::io::{IoSliceMut, Write};
    use std::os::fd::AsFd;

    use iof_proto::Channel;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
    use rustix::io::preadv2;

    use super::*;
    use crate::files::tests::{files, source};
    use crate::files::{Files, OpenFiles, Rotation, with_suffix};
    use crate::format::choice::FilePlace;

    /// Writes long and short pieces to a file that `rotation` limits. Returns them, what its files have, and
    /// the effect.
    fn written(rotation: Option<Rotation>) -> (Vec<u8>, Vec<u8>, CacheDrops) {
        let directory = tempfile::tempdir().unwrap();
        let place = FilePlace::Name(directory.path().join("log"));
        let mut open = OpenFiles::new(Files { rotation, drops_cache: true, ..files(place) });
        let source = source(0, Channel::Stdout);
        let (id, _) = open.file_for(&source, || 1);
        let line = |length: usize, byte: u8| [vec![byte; length - 1], vec![b'\n']].concat();
        let lines = [line(MIN_UNCACHED, b'a'), line(7, b'b'), line(2 * MIN_UNCACHED, b'c'), line(9, b'd')];
        for line in &lines {
            open.write(id, vec![IoSlice::new(&line[..5]), IoSlice::new(&line[5..])], None).unwrap();
        }
        let path = open.files.path(&source, 1);
        let paths = [with_suffix(&path, "2"), with_suffix(&path, "1"), path];
        let found = paths.map(|path| fs::read(path).unwrap_or_default());
        (lines.concat(), found.concat(), open.drops())
    }

    #[test]
    fn files_have_all_bytes_and_long_writes_leave_the_cache_or_are_refused() {
        for rotation in [None, Some(Rotation { size: 2 * MIN_UNCACHED as u64, keep: 2 })] {
            let (wanted, found, drops) = written(rotation);
            assert!(wanted == found, "{rotation:?}");
            let long = CacheDrops { bytes: 3 * MIN_UNCACHED as u64, refusals: 0 };
            let refused = CacheDrops { bytes: 0, refusals: 1 };
            assert!([long, refused].contains(&drops), "{drops:?}");
        }
    }

    #[test]
    fn a_file_system_that_refuses_is_asked_once_for_each_file() {
        // A file in memory, as on tmpfs.
        let file = File::from(memfd_create("file", MFdFlags::MFD_CLOEXEC).unwrap());
        let bytes = vec![b'x'; MIN_UNCACHED];
        let mut drops = CacheDrops::default();
        for _ in 0..2 {
            let (mut own, before) = ([IoSlice::new(&bytes)], drops);
            let mut slices = &mut own[..];
            write_uncached(file.as_fd(), &mut slices, &mut drops, None).unwrap();
            assert_eq!((slices.len(), drops), (1, CacheDrops { bytes: 0, refusals: 1 }), "{before:?}");
        }
        assert_eq!(file.metadata().unwrap().len(), 0, "the bytes are left to an ordinary write");
    }

    #[test]
    fn short_writes_leave_the_cache_once_they_are_many_and_on_the_disk() {
        let mut file = tempfile::tempfile().unwrap();
        if fstatfs(&file).unwrap().filesystem_type() == TMPFS_MAGIC {
            return println!("skipped: files are in memory here");
        }
        file.write_all(&vec![b'x'; CACHED_WRITES]).unwrap();
        file.sync_all().unwrap();
        let is_cached = || {
            let mut bytes = [0; 4096];
            preadv2(&file, &mut [IoSliceMut::new(&mut bytes)], 0, ReadWriteFlags::NOWAIT).is_ok()
        };
        let mut few = CACHED_WRITES - 1;
        drop_written(file.as_fd(), &mut few);
        assert!(is_cached() && few == CACHED_WRITES - 1);
        let mut many = CACHED_WRITES;
        drop_written(file.as_fd(), &mut many);
        assert!(!is_cached() && many == 0);
    }

    #[test]
    fn a_file_that_is_watched_closely_leaves_the_cache_in_pieces() {
        let (file, watch) = (tempfile::tempfile().unwrap(), WriteWatch::default());
        watch.watch_closely();
        let bytes = vec![b'x'; 3 * MIN_UNCACHED];
        let (mut own, mut drops) = ([IoSlice::new(&bytes)], CacheDrops::default());
        let mut slices = &mut own[..];
        write_uncached(file.as_fd(), &mut slices, &mut drops, Some(&watch)).unwrap();
        let found = (drops.bytes, watch.progress().steps);
        // Three parts, and the end of the write.
        assert_eq!(found, if drops.refusals == 0 { (3 * MIN_UNCACHED as u64, 4) } else { (0, 1) });
    }
}
