//! The core's answers to requests to push, and its reports at the ends of pushes: found in the
//! messages to tools, which receive them much later.

use std::collections::{BTreeMap, BTreeSet};

use iof_capture::PushId;
use iof_core::{Attachment, Core, Outgoing};
use iof_proto::{Decoder, Failure, PushGranted, PushReport, ToTool};

use super::{ConnectionId, SimulatedEngine};

/// The answer to a request to push.
#[derive(Debug)]
pub struct PushAnswer {
    /// The tool.
    pub tool: ConnectionId,
    /// The tool's number for its request.
    pub request: u32,
    /// The push, if it begins.
    pub result: Result<(PushId, PushGranted), Failure>,
}

impl PushAnswer {
    /// Returns the push that begins.
    pub fn push(&self) -> Option<PushId> {
        self.result.as_ref().ok().map(|(push, _)| *push)
    }
}

/// The end of a push. It has no report if its tool has disconnected or receives nothing.
pub type PushOver = (PushId, Option<PushReport>);

/// The pushes under way, and what was found since the last call.
#[derive(Default)]
pub(super) struct PushWatch {
    /// The pushes that have not ended, each with its tool and the tool's number for it.
    pushes: BTreeMap<PushId, (ConnectionId, u32)>,
    /// The requests that were answered.
    answered: BTreeSet<(ConnectionId, u32)>,
    /// The requests that were deferred, in their order.
    deferred: Vec<(ConnectionId, u32)>,
    answers: Vec<PushAnswer>,
    over: Vec<PushOver>,
}

impl PushWatch {
    /// Looks for new answers, and for pushes that have ended.
    pub(super) fn look(&mut self, core: &Core) {
        let mut answers = Vec::new();
        for (tool, peer) in core.tools.iter() {
            for out in peer.outgoing().filter(|out| out.is_answer() && !out.is_begun()) {
                if let Some(ToTool::PushBegun { request, result }) = message(out)
                    && self.answered.insert((tool, request))
                {
                    let push = if let Attachment::Inlet(push) = out.attachment() { Some(push) } else { None };
                    let result = result.map(|granted| (push.expect("a push with an inlet"), granted));
                    answers.push(PushAnswer { tool, request, result });
                }
            }
        }
        // Deferred requests are answered in the order in which they have come.
        let place = |answer: &PushAnswer| {
            let request = (answer.tool, answer.request);
            self.deferred.iter().position(|deferred| *deferred == request).unwrap_or(usize::MAX)
        };
        answers.sort_by_key(place);
        self.answers.append(&mut answers);
        let deferred = core.pushes.deferred().map(|deferred| (deferred.peer_id, deferred.request.request));
        self.deferred = deferred.collect();
        for (id, push) in core.pushes.iter() {
            self.pushes.entry(id).or_insert_with(|| push.tool().expect("a push begins with its tool"));
        }
        let ended = self.pushes.extract_if(.., |id, _| core.pushes.get(id).is_none());
        let report = |(tool, number)| {
            let peer = core.tools.get(&tool).filter(|peer| peer.receives())?;
            let mut answers = peer.outgoing().filter(|out| out.is_answer()).filter_map(message);
            let report = answers.find_map(|message| match message {
                ToTool::Pushed { push, report } if push == number => Some(report),
                _ => None,
            });
            Some(report.expect("a report for the tool of a push"))
        };
        self.over.extend(ended.map(|(id, tool)| (id, report(tool))));
    }
}

fn message(out: &Outgoing) -> Option<ToTool> {
    Decoder::new().decode(&mut out.frame()).ok().flatten()
}

impl SimulatedEngine {
    /// Returns the answers to requests to push, and the ends of pushes, since the last call.
    pub fn take_push_record(&mut self) -> (Vec<PushAnswer>, Vec<PushOver>) {
        self.pushes.look(&self.core);
        (std::mem::take(&mut self.pushes.answers), std::mem::take(&mut self.pushes.over))
    }

    /// Returns whether files have run out at present.
    pub fn lacks_files(&self) -> bool {
        self.shortages.check_files().is_err()
    }
}
