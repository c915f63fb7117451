//! The format of a line: tag, time stamp, markup. This module does no I/O.
//!
//! The parts that are the same in all lines of a stream are computed once and kept in its
//! [`Label`], so that a line costs one search for its end and two copies.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use iof_proto::{Missed, Nspace, Rank};
use iof_tool::Gap;
use jiff::tz::TimeZone;
use memchr::memchr;

use crate::batch::Batch;
use crate::format::choice::Choice;
use crate::format::filter::LineFilter;
use crate::format::label::{Label, LabelSource, Tag, local};
use crate::format::mark::StreamMark;
use crate::format::markup::Markup;
use crate::format::placeholder::PatternValues;
use crate::format::stamp::Stamp;
use crate::format::template::LabelTemplate;

/// The format of the lines of all streams of one output.
#[derive(Clone, Debug)]
pub struct Style {
    markup: Markup,
    tag: Tag,
    stamp: Option<Stamp>,
    /// Set if the channel follows the time stamp even if the tag, which also contains the channel,
    /// follows. prterun does this unless `tag` or `rank` is requested.
    channel_twice: bool,
    fragments: bool,
    /// Set if the lines of one read are one object.
    batch: bool,
    colour: bool,
    /// The end of a line: the suffix and a newline.
    closing: Vec<u8>,
    zone: TimeZone,
    /// The runs of the jobs whose pieces have tokens.
    runs: BTreeMap<Nspace, u128>,
    filter: Option<LineFilter>,
    /// The label in place of tags and time stamps.
    template: Option<LabelTemplate>,
}

/// The parts of a style that a [`Choice`] does not specify.
#[derive(Clone, Debug, Default)]
pub struct StyleExtras {
    /// Set if each fragment is tagged instead of each line. A fragment is the bytes that one read
    /// from a rank's pipe returned. Has no effect without tags.
    pub fragments: bool,
    /// The text at the end of each line, before its newline.
    pub suffix: String,
    /// Set if each rank's tags have their own colour.
    pub colour: bool,
    /// The lines that are written, if not all are. A line whose part is written without its end
    /// ([`FlushTimeout`](crate::FlushTimeout)) is selected by that part. What is not written counts as
    /// written in [reports](crate::PrintReport).
    pub filter: Option<LineFilter>,
    /// The label before each line, in place of tags and time stamps. Only text has labels.
    pub template: Option<LabelTemplate>,
}

/// Consecutive bytes of one stream.
#[derive(Clone, Copy, Debug)]
pub struct Run<'b, 't> {
    /// The bytes, at least one.
    pub bytes: &'b [u8],
    /// The number of bytes that the source had produced before them.
    pub offset: u64,
    /// Pairs of an offset and the time at which the bytes from there on were read, in nanoseconds
    /// since 1970, in ascending order.
    pub times: &'t [(u64, u64)],
}

/// The key of the stream whose last line the destination has received only in part; `None` after
/// a newline. The caller chooses keys that are unique among the streams that write to the
/// destination, and in which the highest bit is clear.
pub type OpenLine = Option<u64>;

/// Added to the key of an open line without tags that a gap has cut. The stream's own bytes
/// continue it, but before those of another stream it gets a newline.
const CUT: u64 = 1 << 63;

const COLOURS: [&str; 12] = ["36", "33", "32", "35", "34", "31", "96", "93", "92", "95", "94", "91"];

impl Style {
    /// Creates the style that `choice` and `extras` specify. Times are shown in the local zone.
    pub fn new(choice: &Choice, extras: &StyleExtras) -> Style {
        let Choice { tag, detailed, fullname, rank, .. } = *choice;
        let tag = match choice.markup {
            _ if tag => Tag::Job,
            Markup::Xml if fullname => Tag::Full,
            _ if detailed => Tag::Detailed { full: fullname },
            _ if fullname => Tag::Full,
            _ if rank => Tag::Rank,
            _ => Tag::Nothing,
        };
        let closing = [extras.suffix.as_bytes(), b"\n"].concat();
        let mut style = Style {
            markup: choice.markup,
            tag,
            stamp: choice.stamp,
            channel_twice: choice.stamp.is_some() && !choice.tag && !choice.rank,
            fragments: false,
            batch: choice.batch && choice.markup.is_complete(),
            colour: extras.colour,
            closing,
            zone: TimeZone::system(),
            runs: BTreeMap::new(),
            filter: extras.filter.clone(),
            template: extras.template.clone().filter(|_| choice.markup == Markup::Text),
        };
        // Without tags, fragments look the same as lines.
        style.fragments = extras.fragments && style.has_tags();
        style
    }

    /// Returns the same style with times shown in `zone`.
    pub fn in_zone(self, zone: TimeZone) -> Style {
        Style { zone, ..self }
    }

    /// Adds a token to each piece in JSON, for jobs with these [runs](iof_proto::JobInfo::run).
    pub fn set_runs(&mut self, runs: BTreeMap<Nspace, u128>) {
        self.runs = runs;
    }

    /// Returns whether bytes are written unchanged.
    pub fn is_plain(&self) -> bool {
        self.is_untagged() && !self.is_filtered()
    }

    /// Returns whether only some lines are written.
    pub fn is_filtered(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns whether bytes are copied for each write. Of what is filtered, little may be left.
    pub(crate) fn copies(&self) -> bool {
        !self.is_plain() && !self.is_filtered()
    }

    /// Returns whether each piece has a tag, a label or markup.
    fn has_tags(&self) -> bool {
        let is_text = self.markup == Markup::Text && self.tag == Tag::Nothing;
        !is_text || self.stamp.is_some() || self.template.is_some()
    }

    /// Returns whether nothing is written besides the bytes.
    fn is_untagged(&self) -> bool {
        !self.has_tags() && self.closing.len() == 1
    }

    /// Returns whether the style shows the time at which bytes were read.
    pub fn shows_time(&self) -> bool {
        self.stamp.is_some()
            || self.markup.is_complete()
            || self.template.as_ref().is_some_and(LabelTemplate::shows_time)
    }

    /// Returns whether each piece is an object, which may have a token.
    pub fn has_objects(&self) -> bool {
        self.markup.is_complete()
    }

    /// Returns whether the style shows hosts and pids.
    pub fn shows_process(&self) -> bool {
        matches!(self.tag, Tag::Detailed { .. })
            || self.markup.is_complete()
            || self.template.as_ref().is_some_and(LabelTemplate::shows_process)
    }

    /// Returns whether two parts of a line look the same written successively as written together.
    pub fn joins_parts(&self) -> bool {
        self.markup == Markup::Text
    }

    /// Returns whether fragments are tagged instead of lines.
    pub fn is_by_fragment(&self) -> bool {
        self.fragments
    }

    /// Creates the label of the stream of `source`.
    pub fn label(&self, source: &LabelSource) -> Label {
        match self.markup.format() {
            Some(format) => {
                let mut label = (format.label)(self.tag, self.stamp.is_some(), source);
                label.run = self.runs.get(&source.nspace).copied().filter(|_| format.is_complete);
                label
            }
            None => self.text_label(source, &source.rank.to_string()),
        }
    }

    /// Creates the label of lines of text that `ranks` have written, beside what is common to them.
    pub(crate) fn text_label(&self, source: &LabelSource, ranks: &str) -> Label {
        let LabelSource { nspace, channel, .. } = source;
        let mut tag = match self.tag {
            Tag::Nothing => String::new(),
            Tag::Job => format!("[{},{ranks}]<{channel}>: ", local(nspace)),
            Tag::Detailed { full } => {
                let job = if full { nspace.as_str() } else { local(nspace) };
                let unknown = || "unknown".to_owned();
                let host = source.host.clone().unwrap_or_else(unknown);
                let pid = source.pid.map_or_else(unknown, |pid| pid.to_string());
                format!("[{job},{ranks}][{host}:{pid}]<{channel}>: ")
            }
            Tag::Full => format!("[{nspace},{ranks}]<{channel}>: "),
            Tag::Rank => format!("[{ranks}]<{channel}>: "),
        };
        let values = PatternValues {
            nspace: nspace.as_str(),
            padded: ranks,
            rank: ranks,
            host: source.host.as_deref().unwrap_or("unknown"),
            channel: channel.as_str(),
        };
        let template = self.template.as_ref().map(|template| template.of_stream(&values, source.pid));
        let template = template.filter(|template| {
            // What shows no time is the same before each line.
            let is_constant = !template.shows_time();
            if is_constant {
                let mut text = Vec::new();
                template.write(None, &self.zone, &mut text);
                tag = String::from_utf8(text).unwrap_or_default();
            }
            !is_constant
        });
        let (mut before, mut after) = match self.stamp {
            None => (String::new(), tag),
            Some(_) if self.channel_twice => ("[".into(), format!("]<{channel}>: {tag}")),
            Some(_) => ("[".into(), format!("]{tag}")),
        };
        if self.colour && (template.is_some() || !(before.is_empty() && after.is_empty())) {
            let colour =
                COLOURS.iter().cycle().nth(source.rank.0 as usize % COLOURS.len()).copied().unwrap_or("0");
            before.insert_str(0, &format!("\x1b[{colour}m"));
            after.push_str("\x1b[0m");
        }
        Label { template, ..Label::new(before.into(), after.into(), Vec::new()) }
    }

    /// Formats `run`, and appends it to `batch`. `append` appends each piece of the run's own text:
    /// [`Batch::copy`], [`Batch::lend`], or [`Batch::add`], which selects one of them by length.
    ///
    /// `key` is the key of the run's stream, and `open` the state of the destination, which is
    /// updated. If lines are tagged, the open line of another stream is ended first.
    pub fn write<'a, 'b>(
        &self,
        run: &Run<'b, '_>,
        label: &mut Label,
        (key, open): (u64, &mut OpenLine),
        batch: &mut Batch<'a>,
        append: impl Fn(&mut Batch<'a>, &'b [u8]),
    ) {
        self.select(run, label, |run, label| self.write_all(&run, label, (key, open), batch, &append));
    }

    /// Passes the lines of `run` that are shown to `each`.
    pub(crate) fn select<'b, 't>(
        &self,
        run: &Run<'b, 't>,
        label: &mut Label,
        mut each: impl FnMut(Run<'b, 't>, &mut Label),
    ) {
        let Some(filter) = &self.filter else { return each(*run, label) };
        let end = |bytes: &[u8]| memchr(b'\n', bytes).map_or(bytes.len(), |index| index.saturating_add(1));
        let rest = if label.begun.is_some() { end(run.bytes) } else { 0 };
        let (rest, lines) = run.bytes.split_at(rest);
        let mut write = |begin: usize, bytes: &'b [u8], label: &mut Label| {
            let offset = run.offset.saturating_add(begin as u64);
            each(Run { bytes, offset, times: run.times }, label);
        };
        let is_open = run.bytes.last().is_some_and(|last| *last != b'\n');
        if label.begun == Some(true) {
            write(0, rest, label);
        }
        let mut shows_last = false;
        filter.select(lines, |range| {
            shows_last = range.end == lines.len();
            let begin = rest.len().saturating_add(range.start);
            write(begin, lines.get(range).unwrap_or_default(), label);
        });
        let begun = if lines.is_empty() { label.begun } else { Some(shows_last) };
        label.begun = begun.filter(|_| is_open);
    }

    /// Formats `run` as [`Style::write`] does, but without a filter.
    pub(crate) fn write_all<'a, 'b>(
        &self,
        run: &Run<'b, '_>,
        label: &mut Label,
        (key, open): (u64, &mut OpenLine),
        batch: &mut Batch<'a>,
        append: &impl Fn(&mut Batch<'a>, &'b [u8]),
    ) {
        if self.is_untagged() {
            if open.is_some_and(|open| open & CUT != 0 && open != key | CUT) {
                batch.copy(b"\n");
            }
            append(batch, run.bytes);
            *open = (run.bytes.last() != Some(&b'\n')).then_some(key);
            return;
        }
        let (mut times, shows_time) = (run.times, self.shows_time());
        let mut rest = run.bytes;
        let mut offset = run.offset;
        while !rest.is_empty() {
            let (line, later) = rest.split_at(self.piece(rest, offset, times).min(rest.len()));
            if shows_time {
                let reads = times.len();
                while let [_, later @ ..] = times
                    && later.first().is_some_and(|(start, _)| *start <= offset)
                {
                    times = later;
                }
                // Lines of one read have one time.
                if offset == run.offset || times.len() != reads {
                    self.update_stamp(label, times.first().map(|(_, time)| *time));
                }
            }
            match self.markup.format() {
                None => self.write_text(line, label, (key, open), batch, append),
                Some(format) => batch.make(|buffer| (format.append)(line, offset, label, buffer)),
            }
            offset = offset.saturating_add(line.len() as u64);
            rest = later;
        }
    }

    /// Returns the length of the first piece of `rest`, which begins at `offset`: a line, the lines that begin
    /// before the next read, or all.
    fn piece(&self, rest: &[u8], offset: u64, times: &[(u64, u64)]) -> usize {
        let starts = || times.iter().map(|(start, _)| start.saturating_sub(offset));
        let next = if self.batch { starts().find(|start| *start > 0) } else { None };
        let skip = match next.map(|next| usize::try_from(next).unwrap_or(usize::MAX)) {
            _ if self.fragments => rest.len(),
            // The last line has a byte before the next read.
            Some(next) => next.saturating_sub(1),
            None if self.batch => rest.len(),
            _ => 0,
        };
        let line = memchr(b'\n', rest.get(skip..).unwrap_or_default());
        line.map_or(rest.len(), |end| skip.saturating_add(end).saturating_add(1))
    }

    /// Ends the line that is open at the destination, if lines are tagged. What follows does not
    /// belong to that line.
    pub(crate) fn end_line(&self, open: &mut OpenLine, batch: &mut Batch<'_>) {
        if self.markup != Markup::Text || self.is_untagged() || open.take().is_none() {
            return;
        }
        // A fragment already has its suffix.
        batch.copy(if self.fragments { b"\n" } else { &self.closing });
    }

    /// Ends the open line, which a gap has cut: at once if lines are tagged, otherwise when another
    /// stream writes.
    pub(crate) fn cut_line(&self, open: &mut OpenLine, batch: &mut Batch<'_>) {
        if self.is_untagged() {
            *open = open.map(|key| key | CUT);
        } else {
            self.end_line(open, batch);
        }
    }

    /// Adds the object of a mark to the batch, in JSON. Other formats do not show marks.
    pub(crate) fn write_mark(&self, mark: StreamMark, label: &mut Label, batch: &mut Batch<'_>) {
        match mark {
            StreamMark::Gap(Gap { offset, lost }) => {
                let token = label.token(offset.saturating_add(lost));
                self.write_fields(offset, ("gap", &format!(",\"lost\":{lost}{token}")), label, batch);
            }
            StreamMark::End { offset, missing } => {
                let missing = missing.map(|missing| format!(",\"missing\":{missing}")).unwrap_or_default();
                self.write_fields(offset, ("end", &missing), label, batch);
            }
        }
    }

    /// Adds the object of streams that are not delivered at all to the batch, in JSON.
    pub(crate) fn write_missed(&self, missed: &Missed, batch: &mut Batch<'_>) {
        let Missed { nspace, rank, channel, streams, bytes: lost, offset, .. } = missed.clone();
        let rank = if offset.is_some() { rank } else { Rank::WILDCARD };
        let source = LabelSource { nspace, rank, channel, logged: false, host: None, pid: None };
        let (mut label, fields) = (self.label(&source), format!(",\"lost\":{lost},\"streams\":{streams}"));
        match offset {
            Some(offset) => self.write_mark(StreamMark::Gap(Gap { offset, lost }), &mut label, batch),
            None => self.write_fields(0, ("gap", &fields), &mut label, batch),
        }
    }

    /// Returns an object of this type in JSON: its time, and `fields`, each with a comma before it.
    pub fn event(&self, kind: &str, time: SystemTime, fields: &str) -> String {
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut label = Label::default();
        self.update_stamp(&mut label, u64::try_from(time.as_nanos()).ok());
        let time = String::from_utf8_lossy(&label.rendered);
        format!("{{\"type\":\"{kind}\",\"time\":{time}{fields}}}\n")
    }

    /// Adds a piece with a type and fields in place of a text to the batch, if the format has such pieces.
    fn write_fields(&self, offset: u64, fields: (&str, &str), label: &mut Label, batch: &mut Batch<'_>) {
        if let Some(format) = self.markup.format().filter(|format| format.is_complete) {
            self.update_stamp(label, None);
            batch.make(|buffer| (format.append_fields)(fields, offset, label, buffer));
        }
    }

    fn write_text<'a, 'b>(
        &self,
        line: &'b [u8],
        label: &Label,
        (key, open): (u64, &mut OpenLine),
        batch: &mut Batch<'a>,
        append: &impl Fn(&mut Batch<'a>, &'b [u8]),
    ) {
        if *open != Some(key) {
            self.end_line(open, batch);
        }
        if self.fragments || *open != Some(key) {
            batch.copy(&label.rendered);
        }
        let has_suffix = self.closing.len() > 1;
        match line.strip_suffix(b"\n") {
            Some(text) if has_suffix => {
                append(batch, text);
                batch.copy(&self.closing);
                *open = None;
            }
            Some(_) => {
                append(batch, line);
                *open = None;
            }
            None => {
                append(batch, line);
                *open = Some(key);
                if self.fragments && has_suffix {
                    batch.copy(self.closing.strip_suffix(b"\n").unwrap_or_default());
                }
            }
        }
    }

    /// Renders the head of `label` with `time`, unless it shows that time already.
    fn update_stamp(&self, label: &mut Label, time: Option<u64>) {
        if let Some(template) = label.template.take() {
            let part = time.map(|time| template.part(time));
            if part.is_none() || part != label.rendered_time {
                label.rendered_time = part;
                label.render(|buffer| template.write(time, &self.zone, buffer));
            }
            label.template = Some(template);
            return;
        }
        let in_json = self.markup.is_complete();
        let stamp = match self.stamp {
            Some(Stamp::Calendar) | None if in_json => Stamp::Rfc3339,
            stamp => stamp.unwrap_or(Stamp::Rfc3339),
        };
        let part = time.map(|time| stamp.part(time));
        if part.is_some() && part == label.rendered_time {
            return;
        }
        label.rendered_time = part;
        let quoted = in_json && !stamp.is_number();
        label.render(|buffer| match time {
            Some(time) => {
                buffer.extend_from_slice(if quoted { b"\"" } else { b"" });
                stamp.write(time, &self.zone, buffer);
                buffer.extend_from_slice(if quoted { b"\"" } else { b"" });
            }
            None => buffer.extend_from_slice(if in_json { b"null" } else { b"unknown" }),
        });
    }
}
