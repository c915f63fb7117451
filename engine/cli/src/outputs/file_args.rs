//! The options of output files: how they are opened, when a new one begins, and what of them stays in memory.

use clap::{Args, ValueEnum};

use crate::options::values::{file_count, file_size};

/// The heading of these options in help.
const OUTPUT: &str = "Output options";

#[derive(Args)]
pub struct FileArgs {
    /// Truncate or append to files
    ///
    /// With truncate, files of an earlier run are emptied, and its full files (--file-size) are
    /// removed. With append, they are kept.
    #[arg(long, help_heading = OUTPUT, value_enum, value_name = "HOW", default_value_t = OpenMode::Truncate)]
    #[arg(hide_possible_values = true)]
    pub open_mode: OpenMode,

    /// Start a new file at this size
    ///
    /// The full file is renamed to NAME.1, an older NAME.1 to NAME.2, and so on. In bytes,
    /// optionally with a unit such as K, M or KiB (powers of 1024). At least 4K.
    #[arg(long, help_heading = OUTPUT, value_name = "BYTES", value_parser = file_size, allow_hyphen_values = true)]
    pub file_size: Option<u64>,

    /// Keep this many full files
    ///
    /// They are named NAME.1 (the newest), NAME.2 and so on. At most 1000.
    #[arg(long, help_heading = OUTPUT, value_name = "N", default_value_t = 4, requires = "file_size",
          value_parser = file_count, allow_hyphen_values = true)]
    pub file_count: u32,

    /// Keep files in memory or not
    ///
    /// With drop, large files do not displace what other programs have in the page cache: their bytes
    /// leave it once they are on the disk. This takes effect for writes of 512K or more, for which a
    /// file waits up to a second, and needs Linux 6.14 and a file system that supports it, such as
    /// ext4 or XFS. iof run --summary says what was dropped.
    #[arg(long, help_heading = OUTPUT, value_enum, value_name = "HOW", default_value_t = FileCache::Keep)]
    #[arg(hide_possible_values = true)]
    pub file_cache: FileCache,
}

/// The way to open files that exist already.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpenMode {
    /// Empty them
    Truncate,
    /// Append to them
    Append,
}

/// The contents of files that stay in memory after they are written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileCache {
    /// As much as the kernel keeps
    Keep,
    /// Nothing of large writes
    Drop,
}

impl FileArgs {
    /// Returns an option that was given and applies to files only.
    pub fn option(&self) -> Option<&'static str> {
        let given = [
            ("--file-size", self.file_size.is_some()),
            ("--open-mode append", self.open_mode == OpenMode::Append),
            ("--file-cache drop", self.drops_cache()),
        ];
        given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// Returns whether large writes to files leave nothing in the page cache.
    pub fn drops_cache(&self) -> bool {
        self.file_cache == FileCache::Drop
    }
}
