//! Messages that are logged to the output of ranks. One that was logged is in the right stream, once
//! and whole, and reaches every reader of that time.

use std::collections::BTreeMap;

use iof_proto::log::key;
use iof_proto::{Channel, Failure, Log, LogReport, Proc, Rank, Status};
use iof_tool::test_utils::StreamInfo;

use super::EngineWorld;
use super::configurations::Reader;
use super::jobs::Job;
use crate::driver::ConnectionId;

/// A message with a text that no other one has.
#[derive(Debug)]
struct Message {
    /// The process to whose output it belongs. [`Rank::UNDEF`] stands for the job as a whole.
    target: Proc,
    /// The run of the job, if the engine knew the target when the message was sent.
    run: Option<u64>,
    /// The registrations of that time that include the target.
    readers: Vec<Reader>,
    /// The places where it was written.
    places: BTreeMap<Channel, (StreamInfo, u64)>,
}

/// All messages.
#[derive(Debug, Default)]
pub struct Messages {
    list: Vec<Message>,
    /// The messages by their bytes in a stream.
    texts: BTreeMap<Vec<u8>, usize>,
    /// Those of the embedder that are not answered, by the numbers of their callbacks.
    of_embedder: BTreeMap<u64, usize>,
    /// The positions from which readers must receive streams that they have not opened.
    due: BTreeMap<(Reader, StreamInfo), u64>,
}

/// Returns the channel of ranks that a channel of messages leads to.
fn channel_of(key: &str) -> Option<Channel> {
    match key {
        key::PMIX_LOG_STDOUT => Some(Channel::Stdout),
        key::PMIX_LOG_STDERR => Some(Channel::Stderr),
        _ => None,
    }
}

/// Returns the channels of ranks that an answer calls logged to.
fn logged_channels(result: &Result<LogReport, Failure>) -> Vec<Channel> {
    let outcomes = result.iter().flat_map(|report| &report.outcomes).filter(|outcome| outcome.result.is_ok());
    outcomes.filter_map(|outcome| channel_of(&outcome.channel)).collect()
}

impl Messages {
    /// Returns the number of messages.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Notes that bytes were handed to the capture for a stream at a position.
    pub fn handed(&mut self, stream: &StreamInfo, position: u64, bytes: &[u8]) {
        let Some(number) = self.texts.get(bytes) else { return };
        let message = &mut self.list[*number];
        assert!(stream.logged, "{message:?} is among the output of {stream:?}");
        assert_eq!(stream.source, message.target, "the stream of {message:?}");
        let before = message.places.insert(stream.channel, (stream.clone(), position));
        assert_eq!(before, None, "{message:?} was logged twice");
    }

    /// Returns the streams that a message was logged to, as `result` tells, and the registrations of
    /// a tool that must receive it.
    pub fn received_by(
        &self,
        number: usize,
        tool: ConnectionId,
        result: &Result<LogReport, Failure>,
    ) -> Vec<(&StreamInfo, u32)> {
        let Message { readers, places, .. } = &self.list[number];
        let logged = logged_channels(result);
        let streams = places.values().map(|(stream, _)| stream);
        let streams: Vec<&StreamInfo> = streams.filter(|stream| logged.contains(&stream.channel)).collect();
        let readers = readers.iter().filter(|(id, _)| *id == tool);
        readers.flat_map(|(_, handler)| streams.iter().map(|stream| (*stream, *handler))).collect()
    }

    /// Checks that a reader receives a stream from its position `begin` on in time for what was
    /// logged before.
    pub fn check_begin(&self, reader: Reader, stream: &StreamInfo, begin: u64) {
        let due = self.due.get(&(reader, stream.clone()));
        assert!(due.is_none_or(|due| begin <= *due), "{stream:?} begins at {begin}, after {due:?}");
    }
}

impl EngineWorld {
    /// The embedder logs a message.
    pub(super) fn log_of_embedder(&mut self, source: Proc, text: &str, log: &Log) {
        let (message, number) = (self.add_message(source, text), self.host.expect_callback());
        match self.engine.log_message(log, number) {
            Ok(()) => _ = self.truth.messages.of_embedder.insert(number, message),
            Err(failure) => {
                self.host.withdraw_callback(number);
                self.check_logged(message, &Err(failure));
            }
        }
    }

    /// Adds a message that is about to be sent. Returns its number.
    pub(super) fn add_message(&mut self, source: Proc, text: &str) -> usize {
        let whole = source.rank == Rank::WILDCARD;
        let target = if whole { Proc { rank: Rank::UNDEF, ..source } } else { source };
        let job = self.jobs.list.iter().find(|job| job.nspace == target.nspace);
        let job = job.filter(|job| target.rank == Rank::UNDEF || self.knows(job, target.rank));
        let run = job.map(|job| job.run);
        let mut readers = Vec::new();
        for tool in self.tools.iter().filter(|tool| tool.is_honest()) {
            let includes = tool
                .registrations
                .iter()
                .filter(|(_, registration)| registration.is_open() && registration.pull.names(&target));
            readers.extend(includes.map(|(handler, _)| (tool.id, *handler)));
        }
        let messages = &mut self.truth.messages;
        let number = messages.list.len();
        messages.list.push(Message { target, run, readers, places: BTreeMap::new() });
        messages.texts.insert(format!("{}\n", text.trim_end_matches('\n')).into_bytes(), number);
        number
    }

    /// Checks the messages that were answered.
    pub(super) fn check_logs(&mut self) {
        for (number, report) in self.engine.take_log_reports() {
            if let Some(message) = self.truth.messages.of_embedder.remove(&number) {
                self.check_logged(message, &Ok(report));
            }
        }
        let reports: Vec<_> = self.tools.iter_mut().flat_map(|tool| tool.log_reports.drain(..)).collect();
        reports.iter().for_each(|(message, result)| self.check_logged(*message, result));
    }

    /// Checks the answer to a message: what it tells of each channel is true, and no channel has
    /// refused a message without a reason.
    fn check_logged(&mut self, number: usize, result: &Result<LogReport, Failure>) {
        let message = &self.truth.messages.list[number];
        let logged = logged_channels(result);
        for outcome in result.iter().flat_map(|report| &report.outcomes) {
            if let (Some(_), Err(failure)) = (channel_of(&outcome.channel), &outcome.result) {
                self.check_refusal(message, failure);
            }
        }
        result.as_ref().err().into_iter().for_each(|failure| self.check_refusal(message, failure));
        for channel in &logged {
            assert!(message.places.contains_key(channel), "{message:?} is not in {channel}: {result:?}");
        }
        let are_told = message.places.keys().all(|channel| logged.contains(channel));
        assert!(are_told || self.truth.is_cut, "{message:?} is logged, despite {result:?}");
        self.note_due(number);
    }

    /// Checks that a message may be refused. It may not if the engine knew its target and the job of
    /// that can still be logged to.
    fn check_refusal(&self, message: &Message, failure: &Failure) {
        let is_short = [Status::ERR_RESOURCE_BUSY, Status::ERR_OUT_OF_RESOURCE].contains(&failure.status);
        let is_target = |job: &&Job| job.nspace == message.target.nspace && Some(job.run) == message.run;
        let job = self.jobs.list.iter().find(is_target);
        let is_open = job.is_some_and(|job| {
            (job.may_have_more() || !job.ends.are_known())
                && (message.target.rank == Rank::UNDEF || self.knows(job, message.target.rank))
        });
        assert!(!is_open || is_short || self.truth.is_cut, "{message:?} was refused: {failure}");
    }

    /// Notes from which position its readers must receive the streams of a message, and checks those
    /// that have opened them.
    fn note_due(&mut self, number: usize) {
        let Message { readers, places, .. } = &self.truth.messages.list[number];
        let mut due = Vec::new();
        for (stream, position) in places.values() {
            for (tool_id, handler) in readers {
                let tool = self.tools.iter().find(|tool| tool.id == *tool_id);
                let feeds = tool.and_then(|tool| tool.registrations.get(handler));
                match feeds.and_then(|registration| registration.feeds.get(stream)) {
                    Some(feed) => assert!(feed.begin <= *position, "{stream:?} lacks a message: {feed:?}"),
                    None => due.push((((*tool_id, *handler), stream.clone()), *position)),
                }
            }
        }
        for (reader, position) in due {
            let first = self.truth.messages.due.entry(reader).or_insert(position);
            *first = position.min(*first);
        }
    }
}
