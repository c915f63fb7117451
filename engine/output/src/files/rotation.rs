//! The rotation of files by size.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memchr::{memchr, memrchr};

use super::entry::{FILE_MODE, FileEntry, lock};
use super::{MAX_KEPT_FILES, Rotation, with_suffix};

/// The suffix of the path of a new file before it gets the path of the full one.
pub(super) const NEW_SUFFIX: &str = "iof-new";

impl FileEntry {
    /// Writes `bytes`, and begins a new file whenever the file is full. A pipe or device is never
    /// full, and a symbolic link is renamed in place of the file that it names.
    pub fn write_rotating(
        &mut self,
        append: bool,
        (rotation, max_line): (Rotation, usize),
        mut bytes: &[u8],
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            // Another program may have truncated the file.
            let size = self.file(append)?.metadata()?.len();
            if !self.is_regular {
                return self.write(append, &mut [IoSlice::new(bytes)]);
            }
            let room = usize::try_from(rotation.size.max(1).saturating_sub(size)).unwrap_or(usize::MAX);
            let count = if bytes.len() <= room {
                bytes.len()
            } else if let Some(index) = bytes.get(..room).and_then(|fits| memrchr(b'\n', fits)) {
                index.saturating_add(1)
            } else if size > 0 && self.line.is_none() {
                0
            } else {
                // The line is too long for a file, or its beginning is in this file.
                let end = memchr(b'\n', bytes).map(|index| index.saturating_add(1));
                end.filter(|end| *end <= max_line).unwrap_or(room)
            };
            let (fits, rest) = bytes.split_at(count.min(bytes.len()));
            if !fits.is_empty() {
                self.write(append, &mut [IoSlice::new(fits)])?;
                self.line = None;
            }
            bytes = rest;
            if !bytes.is_empty() {
                self.rotate(append, rotation.keep.min(MAX_KEPT_FILES))?;
            }
        }
        Ok(())
    }

    /// Removes the full files of an earlier run, and the new one if that run was killed while it
    /// replaced a file.
    pub fn remove_full(&self) -> io::Result<()> {
        remove_if_exists(&self.new_path())?;
        for number in 1.. {
            match fs::remove_file(self.full_path(number)) {
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Returns the path of a file after `number` renames; 0 is the file itself.
    fn full_path(&self, number: u32) -> PathBuf {
        match number {
            0 => self.path.to_path_buf(),
            number => with_suffix(&self.path, &number.to_string()),
        }
    }

    /// Returns the path of a new file before it gets the path of the full one. The job that has
    /// locked that path is the only one that uses this path.
    fn new_path(&self) -> PathBuf {
        with_suffix(&self.path, NEW_SUFFIX)
    }

    /// Renames the full files and begins a new file. The path always names a file that this job has
    /// locked, so that no other job can take it.
    fn rotate(&mut self, append: bool, keep: u32) -> io::Result<()> {
        for number in (1..keep).rev() {
            rename_if_exists(&self.full_path(number), &self.full_path(number.saturating_add(1)))?;
        }
        let Ok(file) = self.create_new() else { return self.begin_again(append, keep) };
        self.replace(keep).inspect_err(|_| drop(fs::remove_file(self.new_path())))?;
        // The full file stays locked until here.
        self.file = Some(Arc::new(file));
        Ok(())
    }

    /// Creates and locks the new file.
    fn create_new(&self) -> io::Result<File> {
        let path = self.new_path();
        remove_if_exists(&path)?;
        let file = File::options().append(true).create_new(true).mode(FILE_MODE).open(&path)?;
        let locked = lock(&file).inspect_err(|_| drop(fs::remove_file(&path)));
        locked.map(|()| file)
    }

    /// Gives the new file the path of the full file, in one step. The full file gets its new name
    /// after that, or is removed without `keep`. On an error, the full file has its path again.
    fn replace(&self, keep: u32) -> io::Result<()> {
        let new = self.new_path();
        if exchange(&new, &self.path).is_err() {
            return self.replace_by_link(keep);
        }
        let renamed = if keep == 0 { Ok(()) } else { fs::rename(&new, self.full_path(1)) };
        // rename(2) leaves two names of one file as they are.
        renamed.and_then(|()| remove_if_exists(&new)).inspect_err(|_| drop(exchange(&new, &self.path)))
    }

    /// As [`FileEntry::replace`], where the kernel or the file system cannot exchange two files, or the
    /// full file was moved away. With `keep`, the full file gets its new name before. Without hard
    /// links, the path names no file for a moment.
    fn replace_by_link(&self, keep: u32) -> io::Result<()> {
        if keep > 0 {
            let full = self.full_path(1);
            remove_if_exists(&full)?;
            fs::hard_link(&self.path, &full).or_else(|_| rename_if_exists(&self.path, &full))?;
        }
        fs::rename(self.new_path(), &self.path)
    }

    /// Renames or removes the full file and opens its path again: no descriptor is left for a
    /// second file, or the directory takes no file of another name. Another job may take the path
    /// before the new file is created.
    fn begin_again(&mut self, append: bool, keep: u32) -> io::Result<()> {
        if keep == 0 {
            fs::remove_file(&self.path)?;
        } else {
            rename_if_exists(&self.path, &self.full_path(1))?;
        }
        // Otherwise the full file would be opened again and be renamed for ever.
        if let Some(full) = &self.file
            && self.is_at_path(full)?
        {
            return Err(io::Error::other("the full file cannot be renamed: remove its links"));
        }
        self.file = None;
        self.file(append).map(drop)
    }
}

/// Exchanges two files in one step.
#[cfg(target_env = "gnu")]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    Ok(renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE)?)
}

/// nix has renameat2(2) for glibc alone.
#[cfg(not(target_env = "gnu"))]
fn exchange(_one: &Path, _other: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn rename_if_exists(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;

    use iof_proto::Channel;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::files::tests::{files, source};
    use crate::files::{Files, OpenFiles};
    use crate::format::choice::FilePlace;

    #[test]
    fn a_full_file_is_renamed_between_lines_and_the_oldest_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let place = FilePlace::Name(directory.path().join("log"));
        let rotation = Some(Rotation { size: 10, keep: 2 });
        let mut open = OpenFiles::new(Files { rotation, ..files(place) });
        open.max_line = 64;
        let source = source(0, Channel::Stdout);
        let (id, _) = open.file_for(&source, || 1);
        for text in ["one\ntwo\n", "three\n", "four\nfive\n", "a line that is too long\n", "si", "x\n"] {
            let line = (!text.ends_with('\n')).then_some(1);
            open.write(id, vec![IoSlice::new(text.as_bytes())], line).unwrap();
        }
        let path = open.files.path(&source, 1);
        let read = |number: &str| {
            let path = if number.is_empty() { path.clone() } else { with_suffix(&path, number) };
            fs::read_to_string(path).ok()
        };
        let texts = ["", "1", "2", "3"].map(read);
        let wanted = ["six\n", "a line that is too long\n", "four\nfive\n"].map(|text| Some(text.to_owned()));
        assert_eq!(texts[..3], wanted);
        assert_eq!(texts[3], None, "only two full files are kept");
    }

    #[test]
    fn no_more_full_files_are_kept_than_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let old = |number: u32| with_suffix(&path, &number.to_string());
        for file in [path.clone(), old(MAX_KEPT_FILES - 1), old(MAX_KEPT_FILES)] {
            fs::write(&file, "full\n").unwrap();
        }
        let mut entry = FileEntry { begun: true, ..FileEntry::new(path.clone().into(), None) };
        let rotation = Rotation { size: 5, keep: MAX_KEPT_FILES + 1 };
        entry.write_rotating(true, (rotation, usize::MAX), b"new\n").unwrap();
        let exists = [1, MAX_KEPT_FILES, MAX_KEPT_FILES + 1].map(|number| old(number).exists());
        assert_eq!(exists, [true, true, false]);
    }

    #[test]
    fn a_line_without_an_end_is_cut_where_a_file_is_full() {
        let directory = tempfile::tempdir().unwrap();
        let rotation = Some(Rotation { size: 10, keep: 9 });
        let mut open =
            OpenFiles::new(Files { rotation, ..files(FilePlace::Name(directory.path().join("log"))) });
        open.max_line = 15;
        let source = source(0, Channel::Stdout);
        let (id, _) = open.file_for(&source, || 1);
        for text in ["10%\r20%\r", "30%\r", "40%\r50%\r", "\n", "a line that is much too long\n"] {
            let line = (!text.ends_with('\n')).then_some(1);
            open.write(id, vec![IoSlice::new(text.as_bytes())], line).unwrap();
        }
        let path = open.files.path(&source, 1);
        let full = ["4", "3", "2", "1"].map(|number| fs::read_to_string(with_suffix(&path, number)).unwrap());
        assert_eq!(full, ["10%\r20%\r30", "%\r40%\r50%\r\n", "a line tha", "t is much "]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "too long\n");
    }

    #[test]
    fn files_of_very_small_sizes_keep_every_byte() {
        for size in [0, 1, 2] {
            let directory = tempfile::tempdir().unwrap();
            let rotation = Some(Rotation { size, keep: 20 });
            let mut open =
                OpenFiles::new(Files { rotation, ..files(FilePlace::Name(directory.path().join("log"))) });
            open.max_line = 3;
            let source = source(0, Channel::Stdout);
            let (id, _) = open.file_for(&source, || 1);
            for text in ["\n\n", "ab\n", "a line\n", "no end", "", "\n"] {
                open.write(id, vec![IoSlice::new(text.as_bytes())], None).unwrap();
            }
            let path = open.files.path(&source, 1);
            let full =
                (1..=20).rev().filter_map(|number| fs::read(with_suffix(&path, &number.to_string())).ok());
            let all: Vec<u8> = full.flatten().chain(fs::read(&path).unwrap()).collect();
            assert_eq!(all, b"\n\nab\na line\nno end\n", "{size}");
        }
    }

    #[test]
    fn another_job_never_takes_the_path_of_a_file_that_rotates() {
        let directory = tempfile::tempdir().unwrap();
        for keep in [0, 1, 2] {
            let path = directory.path().join(keep.to_string());
            let rotation = Rotation { size: 1, keep };
            let mut entry = FileEntry::new(path.clone().into(), None);
            entry.file(false).unwrap();
            let ends = AtomicBool::new(false);
            thread::scope(|threads| {
                let other = threads.spawn(|| {
                    let taken = || FileEntry::new(path.clone().into(), None).file(false).is_ok();
                    while !ends.load(Relaxed) {
                        assert!(!taken(), "another job has locked the file");
                    }
                });
                (0..1000).for_each(|_| entry.write_rotating(false, (rotation, 64), b"a\n").unwrap());
                ends.store(true, Relaxed);
                other.join().unwrap();
            });
            assert_eq!(fs::read(&path).unwrap(), b"a\n", "the other process has emptied no file");
        }
        let names = fs::read_dir(directory.path()).unwrap();
        assert_eq!(names.count(), 6, "no other file is left");
    }

    /// Opens a file of `path` that goes on where an earlier run ended.
    fn appended(path: &Path) -> FileEntry {
        FileEntry { begun: true, ..FileEntry::new(path.into(), None) }
    }

    #[test]
    fn a_full_file_with_two_names_rotates_once_and_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let [full, new] = ["1", "iof-new"].map(|suffix| with_suffix(&path, suffix));
        fs::write(&path, "full\n").unwrap();
        fs::hard_link(&path, &full).unwrap();
        let rotation = Rotation { size: 5, keep: 1 };
        appended(&path).write_rotating(true, (rotation, 64), b"new\n").unwrap();
        assert_eq!([&path, &full].map(|path| fs::read(path).unwrap()), [&b"new\n"[..], b"full\n"]);
        assert!(!new.exists(), "no third file is left");
    }

    #[test]
    fn a_file_that_cannot_be_renamed_is_an_error_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "full\n").unwrap();
        fs::create_dir(with_suffix(&path, "1")).unwrap();
        let rotation = Rotation { size: 5, keep: 1 };
        appended(&path).write_rotating(true, (rotation, 64), b"new\n").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"full\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no other file is left");
    }

    #[test]
    fn a_full_file_that_keeps_its_path_is_not_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "full\n").unwrap();
        fs::hard_link(&path, with_suffix(&path, "1")).unwrap();
        // It cannot be replaced by a file, so no new file is created.
        fs::create_dir(with_suffix(&path, "iof-new")).unwrap();
        let rotation = Rotation { size: 5, keep: 1 };
        let written = appended(&path).write_rotating(true, (rotation, 64), b"new\n");
        assert!(written.unwrap_err().to_string().contains("cannot be renamed"));
        assert_eq!(fs::read(&path).unwrap(), b"full\n");
    }

    #[test]
    fn a_pipe_is_written_without_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
        let rotation = Rotation { size: 4, keep: 1 };
        FileEntry::new(path.clone().into(), None)
            .write_rotating(false, (rotation, 64), b"one\ntwo\n")
            .unwrap();
        let mut read = [0; 8];
        pipe.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"one\ntwo\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "it is not renamed");
    }
}
