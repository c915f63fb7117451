//! The entries of a session-level directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use super::Level;
use super::directory::Directory;
use super::names::FileNames;
use crate::names::Nspace;

/// The engines of a session-level directory by the names of their files. An engine that was killed
/// leaves its files behind.
pub(super) struct SessionEntries {
    /// The levels of the engines that have a file for a socket, by pid.
    pub(super) levels: BTreeMap<u32, Level>,
    /// The names of the jobs that have a link, by the pids of their engines.
    pub(super) jobs: BTreeMap<u32, BTreeSet<Nspace>>,
}

impl SessionEntries {
    pub(super) fn read(directory: &Directory, names: &FileNames) -> io::Result<SessionEntries> {
        let mut entries = SessionEntries { levels: BTreeMap::new(), jobs: BTreeMap::new() };
        for file in fs::read_dir(directory.short_path(Path::new(".")))? {
            let name = file?.file_name();
            // A link is not the socket of an engine.
            entries.levels.extend(names.socket_parts(&name).filter(|(_, level)| *level != Level::Link));
            if let Some((pid, nspace)) = names.job_link_parts(&name) {
                entries.jobs.entry(pid).or_default().insert(nspace);
            }
        }
        Ok(entries)
    }
}
