//! The parts of a stream's lines that are the same in all of them: where its bytes come from, and
//! the tag that shows it.

use iof_proto::{Channel, Nspace, Rank};

use crate::format::template::LabelTemplate;

/// The origin of a stream, which formats can show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSource {
    /// The name of the job.
    pub nspace: Nspace,
    /// The rank in the job.
    pub rank: Rank,
    /// The channel that the rank writes to.
    pub channel: Channel,
    /// `true` if the stream contains messages logged on behalf of the rank, and not its own output.
    /// JSON marks such data with `"logged":true`.
    pub logged: bool,
    /// The host of the rank, if it is known.
    pub host: Option<String>,
    /// The pid of the rank, if it is known.
    pub pid: Option<u32>,
}

/// The tag before a line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Nothing,
    /// `[job,rank]<channel>: `
    Job,
    /// `[job,rank][host:pid]<channel>: `, with the whole name of the job if `full`.
    Detailed {
        full: bool,
    },
    /// `[nspace,rank]<channel>: `
    Full,
    /// `[rank]<channel>: `
    Rank,
}

/// The parts of a stream's lines that are the same in all of them, such as the tag.
#[derive(Clone, Debug, Default)]
pub struct Label {
    /// The bytes before the time stamp.
    pub(crate) before_stamp: Vec<u8>,
    /// The bytes between the time stamp and the text; in JSON, those before the offset.
    pub(crate) after_stamp: Vec<u8>,
    /// The bytes after the text, if it is marked up; in JSON, those between the offset and the
    /// text.
    pub(crate) suffix: Vec<u8>,
    /// Everything before the text, with the time stamp; in JSON, everything before the offset.
    pub(crate) rendered: Vec<u8>,
    /// The part of the time that `rendered` shows.
    pub(crate) rendered_time: Option<u64>,
    /// The run of the job, if each piece has a token, from which reading can be resumed behind it.
    pub(crate) run: Option<u128>,
    /// The part that shows the time in place of a stamp, if the user has composed the label.
    pub(crate) template: Option<LabelTemplate>,
    /// The decision to show the line that was written in part; `None` at the beginning of a line.
    pub(crate) begun: Option<bool>,
}

impl Label {
    /// Creates a label from the bytes before the time stamp, those between it and the text, and those
    /// after the text.
    pub(crate) fn new(before_stamp: Vec<u8>, after_stamp: Vec<u8>, suffix: Vec<u8>) -> Label {
        let mut label = Label { before_stamp, after_stamp, suffix, ..Label::default() };
        label.render(|_| {});
        label
    }

    /// Returns the field of the token of a piece that ends at an offset, if pieces have tokens.
    pub(crate) fn token(&self, end: u64) -> String {
        self.run.map(|run| format!(",\"token\":\"{run:032x}:{end}\"")).unwrap_or_default()
    }

    /// Renders everything before the text. `stamp` appends the time stamp.
    pub(crate) fn render(&mut self, stamp: impl FnOnce(&mut Vec<u8>)) {
        self.rendered.clear();
        self.rendered.extend_from_slice(&self.before_stamp);
        stamp(&mut self.rendered);
        self.rendered.extend_from_slice(&self.after_stamp);
    }
}

/// Returns the part of a job's name after the last `@`. As in PMIx, it distinguishes the job from
/// others of the same launcher.
pub(crate) fn local(nspace: &Nspace) -> &str {
    nspace.as_str().rsplit_once('@').map_or(nspace.as_str(), |(_, local)| local)
}
