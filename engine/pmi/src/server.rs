//! The ranks of a job, and the replies to their requests.

use std::collections::BTreeMap;
use std::mem;

use crate::error::ProtocolError;
use crate::lines::LineBuffer;
use crate::request::{PmiRequest, ServiceAction};
use crate::space::{MAX_KEY, MAX_NAME, MAX_NEWS, MAX_VALUE, PutError, Space, is_key, is_value};
use crate::spawn::{PartialSpawn, SpawnCommand};

/// The version of the protocol that is served.
const VERSION: u32 = 1;
/// The key of the node of each rank.
const MAPPING: &str = "PMI_process_mapping";

/// The meaning of a request for the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank has begun (`MPI_Init`). If it exits before it ends, it has failed.
    Initialized {
        /// The rank.
        rank: u32,
    },
    /// A rank has ended (`MPI_Finalize`).
    Finalized {
        /// The rank.
        rank: u32,
    },
    /// A rank requests the end of the job (`MPI_Abort`).
    Aborted {
        /// The rank.
        rank: u32,
        /// The exit code for the job.
        code: i32,
    },
    /// A rank requests something of a service, and waits for [`Server::answer`].
    Service {
        /// The rank.
        rank: u32,
        /// The name of the service.
        service: String,
        /// The request.
        action: ServiceAction,
    },
    /// A rank wants to have a job started, and waits for [`Server::answer`].
    Spawn {
        /// The rank.
        rank: u32,
        /// The job.
        request: SpawnCommand,
    },
}

/// The server of the ranks of one job on this node. All memory that it uses for a rank is bounded.
#[derive(Debug)]
pub struct Server {
    name: String,
    /// The number of ranks of the job.
    size: u32,
    ranks: BTreeMap<u32, Rank>,
    space: Space,
    /// If other nodes have ranks: what those here have put since the last barrier, as lines.
    news: Option<Vec<u8>>,
    /// All ranks here are in the barrier, and other nodes were not told yet.
    is_fence_due: bool,
    /// The number of ranks in the barrier.
    waiting: usize,
    /// Ranks with replies that [`Server::take_answered`] has not returned.
    answered: Vec<u32>,
}

/// The state of a rank.
#[derive(Debug, Default)]
struct Rank {
    appnum: usize,
    phase: Phase,
    aborted: bool,
    lines: LineBuffer,
    in_barrier: bool,
    /// The name of the reply to a request that the launcher answers.
    awaits: Option<&'static str>,
    spawn: PartialSpawn,
    /// The part of the reply that is not sent yet.
    unsent: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    New,
    Initialized,
    Finalized,
}

impl Server {
    /// Creates the server of a job. `name` distinguishes its key-value space from those of other
    /// jobs on this machine. `apps` has the number of ranks of each program; ranks are numbered in
    /// this order. All ranks are on one node.
    pub fn new(name: &str, apps: &[u32]) -> Server {
        let appnums = apps.iter().enumerate().flat_map(|(appnum, ranks)| (0..*ranks).map(move |_| appnum));
        let rank = |appnum| Rank { appnum, ..Rank::default() };
        let ranks: BTreeMap<u32, Rank> = (0..).zip(appnums.map(rank)).collect();
        let (size, mut space) = (u32::try_from(ranks.len()).unwrap_or(u32::MAX), Space::default());
        // One block of nodes: it begins with node 0 and has one node, with all ranks.
        space.preset(MAPPING, format!("(vector,(0,1,{size}))"));
        let name = name.chars().filter(char::is_ascii_graphic).take(MAX_NAME.saturating_sub(1)).collect();
        let (news, is_fence_due, answered) = (None, false, Vec::new());
        Server { name, size, ranks, space, news, is_fence_due, waiting: 0, answered }
    }

    /// Returns the server of a part of the ranks of the job, which are on several nodes. `mapping` tells the node
    /// of each rank, if the protocol can carry it: otherwise ranks find out which of them share a node.
    pub fn part(mut self, is_here: impl Fn(u32) -> bool, mapping: &str) -> Server {
        self.ranks.retain(|rank, _| is_here(*rank));
        self.space.remove(MAPPING);
        if is_value(mapping) {
            self.space.preset(MAPPING, mapping.into());
        }
        self.news = Some(Vec::new());
        self
    }

    /// Tells the ranks of a file with the topology of the node in the XML of hwloc, which spares
    /// them their own search. Does nothing if the protocol cannot carry its name. MPICH takes the
    /// name up to the first blank.
    pub fn set_topology(&mut self, file: &str) {
        if is_value(file) && !file.contains([' ', '\t']) {
            self.space.preset("PMI_hwloc_xmlfile", file.into());
        }
    }

    /// Adds values that the ranks find in their space. Those of the launcher itself remain.
    pub fn preset(&mut self, values: &BTreeMap<String, String>) {
        for (key, value) in values {
            if is_key(key) && is_value(value) && self.space.get(key).is_none() {
                self.space.preset(key, value.clone());
            }
        }
    }

    /// Handles bytes that `rank` has sent, at any boundaries. Appends the events for the job to
    /// `events`, also those of the requests before an error. [`Server::unsent`] of this rank, and
    /// of those that [`Server::take_answered`] returns, contains the replies.
    ///
    /// # Errors
    /// The rank breaks the protocol. The caller closes its socket and passes no more of its bytes.
    /// Other ranks are not affected, but wait in vain if this rank does not enter the barrier.
    pub fn receive(&mut self, rank: u32, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        self.rank_mut(rank)?.lines.push(bytes);
        while let Some(line) = self.rank_mut(rank)?.lines.next()? {
            events.extend(self.handle(rank, &line)?);
        }
        Ok(())
    }

    /// Returns what the ranks of this node have put since their last barrier, once all of them are in one
    /// that waits for [`Server::fenced`].
    pub fn take_fence(&mut self) -> Option<Vec<u8>> {
        mem::take(&mut self.is_fence_due).then(|| self.news.as_mut().map(mem::take))?
    }

    /// Ends the barrier, in which ranks of all nodes have put `values`, or for a reason.
    ///
    /// # Errors
    /// The values are not valid. The barrier has failed.
    pub fn fenced(&mut self, values: Result<&[u8], String>) -> Result<(), String> {
        let added = values.and_then(|values| self.add_values(values));
        let words = if added.is_ok() { "rc=0" } else { "rc=1 msg=values_not_exchanged" };
        self.end_barrier(words);
        added
    }

    /// Adds what ranks of other nodes have put.
    fn add_values(&mut self, values: &[u8]) -> Result<(), String> {
        for line in values.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let words = std::str::from_utf8(line).ok().and_then(|line| {
                let (rank, words) = line.split_once(' ')?;
                let (key, value) = words.split_once(' ')?;
                Some((rank.parse().ok().filter(|rank| *rank < self.size)?, key, value))
            });
            let (rank, key, value) = words.ok_or("a value of another node is not one")?;
            if self.ranks.contains_key(&rank) {
                continue;
            }
            match self.space.put(rank, key, value) {
                Err(PutError::Taken) if self.space.get(key) == Some(value) => {}
                Err(error) => return Err(format!("the value of key {key} of rank {rank}: {}", error.word())),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Returns the bytes to send to a rank; empty if it has received all replies.
    pub fn unsent(&self, rank: u32) -> &[u8] {
        self.rank(rank).map(|rank| rank.unsent.as_slice()).unwrap_or_default()
    }

    /// Notes that the first `count` of the unsent bytes were sent to a rank.
    pub fn sent(&mut self, rank: u32, count: usize) {
        if let Ok(rank) = self.rank_mut(rank) {
            rank.unsent.drain(..count.min(rank.unsent.len()));
        }
    }

    /// Returns the ranks that have got replies since the last call.
    pub fn take_answered(&mut self) -> Vec<u32> {
        mem::take(&mut self.answered)
    }

    /// Answers the request of a rank about a service or to spawn a job, with the port that was found
    /// if it asks for one, or the reason of a refusal. Does nothing if the rank does not wait.
    pub fn answer(&mut self, rank: u32, answer: Result<Option<String>, String>) {
        let Some(name) = self.rank_mut(rank).ok().and_then(|rank| rank.awaits.take()) else { return };
        let answer = match answer {
            Ok(None) => Ok("info=ok rc=0".into()),
            Ok(Some(port)) if is_value(&port) => Ok(format!("info=ok rc=0 port={port}")),
            Ok(Some(_)) => Err("published by PMIx, but not as a port".into()),
            Err(reason) => Err(reason),
        };
        let words = answer.unwrap_or_else(|reason: String| {
            let reason: String = reason.chars().filter(char::is_ascii).take(MAX_NAME).collect();
            format!("info=error rc=1 msg={}", reason.replace(|c: char| !c.is_ascii_graphic(), "_"))
        });
        self.reply(rank, name, &words);
    }

    fn rank(&self, rank: u32) -> Option<&Rank> {
        self.ranks.get(&rank)
    }

    fn rank_mut(&mut self, rank: u32) -> Result<&mut Rank, ProtocolError> {
        self.ranks.get_mut(&rank).ok_or(ProtocolError::Rank { rank, size: self.size })
    }

    fn handle(&mut self, number: u32, line: &str) -> Result<Option<Event>, ProtocolError> {
        let rank = self.rank_mut(number)?;
        if rank.aborted {
            return Err(ProtocolError::Aborted);
        }
        if rank.spawn.is_open {
            return self.continue_spawn(number, line);
        }
        let request = PmiRequest::parse(line)?;
        if request != PmiRequest::Spawn {
            // Blocks of one request follow each other.
            rank.spawn = PartialSpawn::default();
        }
        if let PmiRequest::Abort { code } = request {
            // Another thread of the rank may abort while it waits for a reply.
            rank.aborted = true;
            return Ok(Some(Event::Aborted { rank: number, code }));
        }
        if rank.in_barrier || rank.awaits.is_some() || !rank.unsent.is_empty() {
            return Err(ProtocolError::NotInStep);
        }
        // A rank may begin again after its end.
        if matches!(request, PmiRequest::Init { .. }) == (rank.phase == Phase::Initialized) {
            return Err(ProtocolError::NotInitialized);
        }
        let appnum = rank.appnum;
        match request {
            PmiRequest::Init { version: VERSION } => {
                rank.phase = Phase::Initialized;
                self.reply(number, "response_to_init", "rc=0 pmi_version=1 pmi_subversion=1");
                return Ok(Some(Event::Initialized { rank: number }));
            }
            PmiRequest::Init { .. } => {
                self.reply(number, "response_to_init", "rc=1 pmi_version=1 pmi_subversion=1");
            }
            PmiRequest::Finalize => {
                rank.phase = Phase::Finalized;
                self.reply(number, "finalize_ack", "rc=0");
                return Ok(Some(Event::Finalized { rank: number }));
            }
            PmiRequest::Maxes => {
                let words =
                    format!("rc=0 kvsname_max={MAX_NAME} keylen_max={MAX_KEY} vallen_max={MAX_VALUE}");
                self.reply(number, "maxes", &words);
            }
            PmiRequest::AppNumber => self.reply(number, "appnum", &format!("rc=0 appnum={appnum}")),
            PmiRequest::UniverseSize => {
                self.reply(number, "universe_size", &format!("rc=0 size={}", self.size))
            }
            PmiRequest::SpaceName => self.reply(number, "my_kvsname", &format!("rc=0 kvsname={}", self.name)),
            PmiRequest::Put { space, key, value } => {
                let stored = if space == self.name { self.put(number, key, value) } else { Ok(()) };
                let words = match stored {
                    _ if space != self.name => "rc=1 msg=unknown_kvsname".into(),
                    Ok(()) => "rc=0".into(),
                    Err(error) => format!("rc=1 msg={}", error.word()),
                };
                self.reply(number, "put_result", &words);
            }
            PmiRequest::Get { space, key } => {
                let value = self.space.get(key).filter(|_| space == self.name);
                let words = value
                    .map_or_else(|| "rc=1 msg=key_not_found".into(), |value| format!("rc=0 value={value}"));
                self.reply(number, "get_result", &words);
            }
            PmiRequest::Barrier => self.enter_barrier(number),
            PmiRequest::Service { action, service } => {
                rank.awaits = Some(match action {
                    ServiceAction::Publish(_) => "publish_result",
                    ServiceAction::Unpublish => "unpublish_result",
                    ServiceAction::Lookup => "lookup_result",
                });
                return Ok(Some(Event::Service { rank: number, service: service.into(), action }));
            }
            PmiRequest::Spawn => rank.spawn.begin(),
            // Handled above.
            PmiRequest::Abort { .. } => {}
        }
        Ok(None)
    }

    /// Handles a further line of a request to spawn a job.
    fn continue_spawn(&mut self, number: u32, line: &str) -> Result<Option<Event>, ProtocolError> {
        let rank = self.rank_mut(number)?;
        if !rank.spawn.push(line)? {
            return Ok(None);
        }
        let PartialSpawn { request, is_garbled, .. } = mem::take(&mut rank.spawn);
        rank.awaits = Some("spawn_result");
        if is_garbled {
            self.answer(number, Err("line not understood".into()));
            return Ok(None);
        }
        Ok(Some(Event::Spawn { rank: number, request }))
    }

    /// Stores a value of a rank, for other nodes, too.
    fn put(&mut self, rank: u32, key: &str, value: &str) -> Result<(), PutError> {
        let Some(news) = &mut self.news else { return self.space.put(rank, key, value) };
        let line = format!("{rank} {key} {value}\n");
        if news.len().saturating_add(line.len()) > MAX_NEWS {
            return Err(PutError::Full);
        }
        self.space.put(rank, key, value)?;
        news.extend_from_slice(line.as_bytes());
        Ok(())
    }

    /// Adds a rank to the barrier. Answers all ranks once all are in it, on all nodes.
    fn enter_barrier(&mut self, number: u32) {
        if let Ok(rank) = self.rank_mut(number) {
            rank.in_barrier = true;
        }
        self.waiting = self.waiting.saturating_add(1);
        if self.waiting < self.ranks.len() {
            return;
        }
        if self.news.is_some() {
            self.is_fence_due = true;
        } else {
            self.end_barrier("rc=0");
        }
    }

    fn end_barrier(&mut self, words: &str) {
        self.waiting = 0;
        for number in self.ranks.keys().copied().collect::<Vec<u32>>() {
            if let Ok(rank) = self.rank_mut(number)
                && mem::take(&mut rank.in_barrier)
            {
                self.reply(number, "barrier_out", words);
            }
        }
    }

    fn reply(&mut self, number: u32, name: &str, words: &str) {
        if let Ok(rank) = self.rank_mut(number) {
            rank.unsent.extend_from_slice(format!("cmd={name} {words}\n").as_bytes());
            self.answered.push(number);
        }
    }
}

/// Returns the variables that a rank needs besides `PMI_FD`, the number of its socket.
/// The rank is number `local` of `count` on its node.
pub fn variables(rank: u32, size: u32, (local, count): (u32, u32)) -> [(&'static str, String); 4] {
    [
        ("PMI_RANK", rank.to_string()),
        ("PMI_SIZE", size.to_string()),
        ("MPI_LOCALRANKID", local.to_string()),
        ("MPI_LOCALNRANKS", count.to_string()),
    ]
}
