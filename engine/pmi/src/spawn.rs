//! Requests of ranks to spawn jobs: a block of lines for each program.

use std::collections::BTreeMap;
use std::mem;

use crate::error::{MAX_SPAWN_BYTES, ProtocolError};
use crate::space::{is_key, is_value};

/// A job that a rank wants to have started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpawnCommand {
    /// Its programs.
    pub apps: Vec<SpawnApp>,
    /// The values that its ranks are to find in their key-value space.
    pub values: BTreeMap<String, String>,
}

/// A program of such a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpawnApp {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The number of ranks that run it.
    pub ranks: u32,
    /// The keys and values of its MPI info object.
    pub infos: Vec<(String, String)>,
}

/// The part of a request that a rank has sent.
#[derive(Debug, Default)]
pub(crate) struct PartialSpawn {
    pub(crate) request: SpawnCommand,
    /// `true` while the last block has not ended.
    pub(crate) is_open: bool,
    /// `true` if a line is not understood, such as the rest of an argument with a line feed.
    pub(crate) is_garbled: bool,
    /// The number of blocks.
    total: usize,
    /// The key whose value follows.
    key: String,
    /// The sum of the lengths of the lines.
    bytes: usize,
}

impl PartialSpawn {
    /// Begins the block of a further program.
    pub(crate) fn begin(&mut self) {
        self.is_open = true;
        self.request.apps.push(SpawnApp::default());
    }

    /// Adds a line of the block. Returns whether it ends the request.
    ///
    /// # Errors
    /// The request is too long, or a number is not one.
    pub(crate) fn push(&mut self, line: &str) -> Result<bool, ProtocolError> {
        self.bytes = self.bytes.saturating_add(line.len()).saturating_add(1);
        if self.bytes > MAX_SPAWN_BYTES {
            return Err(ProtocolError::SpawnTooLong);
        }
        if line == "endcmd" {
            self.is_open = false;
            return Ok(self.request.apps.len() >= self.total);
        }
        let (Some((key, value)), Some(app)) = (line.split_once('='), self.request.apps.last_mut()) else {
            self.is_garbled = true;
            return Ok(false);
        };
        let number = |key| move |_| ProtocolError::Word { command: "spawn".into(), key };
        match key.trim_end_matches(|character: char| character.is_ascii_digit()) {
            "nprocs" => app.ranks = value.trim().parse().map_err(number("nprocs"))?,
            "execname" => app.program = value.into(),
            "arg" => app.args.push(value.into()),
            "totspawns" => self.total = value.trim().parse().map_err(number("totspawns"))?,
            "preput_key_" | "info_key_" => self.key = value.into(),
            "info_val_" => app.infos.push((mem::take(&mut self.key), value.into())),
            "preput_val_" if is_key(&self.key) && is_value(value) => {
                self.request.values.insert(mem::take(&mut self.key), value.into());
            }
            // What they count is here.
            "spawnssofar" | "argcnt" | "preput_num" | "info_num" => {}
            _ => self.is_garbled = true,
        }
        Ok(false)
    }
}
