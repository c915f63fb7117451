//! The requests that the capture thread has not answered, and how each continues when it has.
//!
//! Nothing waits for an answer. Meanwhile the tool may disconnect, the registration or the job may
//! end, and a stream may complete, so each continuation looks up again what it is about.

use std::collections::BTreeMap;

use iof_capture::{PushId, RequestId, SourceId, StreamRequest, StreamStep, TargetId};
use iof_shm_ring::ReaderId;

use crate::Core;
use crate::count::Count;
use crate::effects::Command;
use crate::ids::{LogStep, PageId, PeerId};
use crate::pushes::push::PushRequest;
use crate::queries::query::CountedStream;
use crate::tools::pull::RegisteredPull;

/// The step that continues with the answers to a request.
pub(crate) enum Awaited {
    /// Readers are attached or move to the newest generation. `pull` has caused it, and is answered
    /// before the rings are sent.
    Join { pull: Option<(PeerId, RegisteredPull)>, readers: Vec<JoiningReader> },
    /// A push begins, if its targets can be fed.
    Push { peer_id: PeerId, request: PushRequest, targets: Vec<TargetId> },
    /// A tool has asked for the slow targets of a push.
    SlowTargets(SlowTargetsRequest),
    /// Queries wait for counters.
    Counters(Vec<CountedStream>),
    /// A message was handed to `stream`, whose ring was announced before.
    LogStep { step: LogStep, stream: SourceId },
}

/// A reader that is attached or moved.
#[derive(Clone, Copy)]
pub(crate) struct JoiningReader {
    pub peer_id: PeerId,
    pub handler: u32,
    /// Its id so far.
    pub id: ReaderId,
}

/// A tool's request for the slow targets of a push.
#[derive(Clone, Copy)]
pub(crate) struct SlowTargetsRequest {
    pub peer_id: PeerId,
    pub request: u32,
    pub push: PushId,
    /// The targets that are still at this position are cut off.
    pub cut_off: Option<u64>,
}

/// The requests without an answer.
#[derive(Default)]
pub struct AwaitedAnswers {
    waiting: BTreeMap<RequestId, Awaited>,
    last: u64,
}

impl AwaitedAnswers {
    /// Returns the id of the next request.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.last.raise(1);
        RequestId(self.last)
    }

    /// Returns the ids of all requests.
    pub(crate) fn ids(&self) -> Vec<RequestId> {
        self.waiting.keys().copied().collect()
    }

    /// Takes the pulls that are not answered. Their requests remain.
    pub(crate) fn take_pulls(&mut self) -> Vec<(PeerId, RegisteredPull)> {
        let pull = |awaited: &mut Awaited| match awaited {
            Awaited::Join { pull, .. } => pull.take(),
            _ => None,
        };
        self.waiting.values_mut().filter_map(pull).collect()
    }

    /// Returns the readers that the request `id` attaches or moves.
    pub(crate) fn joining(&self, id: RequestId) -> &[JoiningReader] {
        if let Some(Awaited::Join { readers, .. }) = self.waiting.get(&id) { readers } else { &[] }
    }

    /// Removes and returns what continues with the answers to the request `id`.
    pub(crate) fn take(&mut self, id: RequestId) -> Option<Awaited> {
        self.waiting.remove(&id)
    }

    /// Returns the tools whose requests wait, once for each request.
    pub fn tools(&self) -> impl Iterator<Item = PeerId> {
        self.waiting.values().filter_map(|awaited| match awaited {
            Awaited::Join { pull, .. } => pull.as_ref().map(|(peer_id, _)| *peer_id),
            Awaited::Push { peer_id, .. } => Some(*peer_id),
            Awaited::SlowTargets(request) => Some(request.peer_id),
            Awaited::Counters(_) | Awaited::LogStep { .. } => None,
        })
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Notes that `awaited` continues with the answers to the request `id`.
    pub(crate) fn add(&mut self, id: RequestId, awaited: Awaited) {
        self.waiting.insert(id, awaited);
    }
}

impl Core {
    /// Queues a request to the capture thread. `awaited` continues with its answers.
    pub(crate) fn request(&mut self, awaited: Awaited, steps: Vec<StreamStep<PageId>>) -> RequestId {
        let id = self.awaited.next_id();
        self.awaited.add(id, awaited);
        self.queue_request(id, steps);
        id
    }

    /// Queues the request `id`, whose continuation was [added](AwaitedAnswers::add).
    pub(crate) fn queue_request(&mut self, id: RequestId, steps: Vec<StreamStep<PageId>>) {
        self.effects.commands.push(Command::Request(StreamRequest { id: Some(id), steps }));
    }

    /// Queues a request to the capture thread that has no answer.
    pub(crate) fn request_unanswered(&mut self, steps: Vec<StreamStep<PageId>>) {
        if !steps.is_empty() {
            self.effects.commands.push(Command::Request(StreamRequest { id: None, steps }));
        }
    }

    /// Defers further requests of a tool until the one that waits for the capture thread is
    /// [done](Core::request_done). So a tool's requests take effect one after the other.
    pub(crate) fn request_begun(&mut self, peer_id: PeerId) {
        if let Some(peer) = self.tools.get_mut(&peer_id) {
            peer.request_begun();
        }
    }

    /// Continues to serve a tool whose request was waiting for the capture thread.
    pub(crate) fn request_done(&mut self, peer_id: PeerId) {
        if let Some(peer) = self.tools.get_mut(&peer_id) {
            peer.request_done();
        }
    }
}
