//! What a line looks like: tag, time stamp, XML, JSON. Pure: bytes in, bytes out.
//!
//! What does not change from line to line of a stream is made once and kept in its [`Label`], so
//! that a line costs a search for its end and two copies.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use iof_proto::{Channel, Nspace, Rank};
use jiff::tz::TimeZone;
use memchr::memchr;

use crate::batch::Batch;
use crate::choice::{Choice, Markup};
use crate::stamp::Stamp;

/// Who writes a stream, as far as it shows.
#[derive(Clone, Debug)]
pub struct Source {
    /// The job.
    pub nspace: Nspace,
    /// The rank in it.
    pub rank: Rank,
    /// On what it writes.
    pub channel: Channel,
    /// It is not what the rank has written there, but what was logged there: JSON says so.
    pub logged: bool,
    /// Where it runs, if that is known.
    pub host: Option<String>,
    /// As which process, if that is known.
    pub pid: Option<u32>,
}

/// What is put before a line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
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

/// How lines look; for all streams of one output.
#[derive(Clone, Debug)]
pub struct Style {
    markup: Markup,
    tag: Tag,
    stamp: Option<Stamp>,
    /// Behind a time stamp comes the channel, as if it were all there is: prterun's way where
    /// neither `tag` nor `rank` is asked for.
    channel_twice: bool,
    fragments: bool,
    colour: bool,
    /// What ends a line: the suffix and a newline.
    closing: Vec<u8>,
    zone: TimeZone,
}

/// What a list of output words leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finish {
    /// Tag what was read together, however many lines it is, and not each line. Nothing changes
    /// without tags.
    pub fragments: bool,
    /// Ends each line, before its newline.
    pub suffix: String,
    /// A colour for each rank's tags.
    pub colour: bool,
}

/// The parts of a stream's lines that stay the same.
#[derive(Clone, Debug)]
pub struct Label {
    /// Before the time stamp, and behind it up to the text.
    before: Vec<u8>,
    after: Vec<u8>,
    /// Behind the text, where it is marked up.
    behind: Vec<u8>,
    /// Up to the text, with the stamp that shows this part of a time.
    whole: Vec<u8>,
    shown: Option<u64>,
}

/// Bytes of one stream that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Run<'b, 't> {
    /// The bytes, one at least.
    pub bytes: &'b [u8],
    /// How many bytes the source had produced before them.
    pub offset: u64,
    /// From which offset on they were read at which time, in nanoseconds since 1970; in order.
    pub times: &'t [(u64, u64)],
}

/// Whose line an output is in the middle of: the number of a stream, of all that write to it.
pub type Open = Option<u64>;

const COLOURS: [&str; 12] = ["36", "33", "32", "35", "34", "31", "96", "93", "92", "95", "94", "91"];

impl Style {
    /// What `choice` asks for.
    pub fn new(choice: &Choice, finish: &Finish) -> Style {
        let Choice { tag, detailed, fullname, rank, .. } = *choice;
        let tag = match choice.markup {
            _ if tag => Tag::Job,
            Markup::Xml if fullname => Tag::Full,
            _ if detailed => Tag::Detailed { full: fullname },
            _ if fullname => Tag::Full,
            _ if rank => Tag::Rank,
            _ => Tag::Nothing,
        };
        let closing = [finish.suffix.as_bytes(), b"\n"].concat();
        // Without tags there is nothing to say of what was read together.
        let has_tags = tag != Tag::Nothing || choice.stamp.is_some() || choice.markup != Markup::Text;
        Style {
            markup: choice.markup,
            tag,
            stamp: choice.stamp,
            channel_twice: choice.stamp.is_some() && !choice.tag && !choice.rank,
            fragments: finish.fragments && has_tags,
            colour: finish.colour,
            closing,
            zone: TimeZone::system(),
        }
    }

    /// The same with times shown in `zone`.
    pub fn in_zone(self, zone: TimeZone) -> Style {
        Style { zone, ..self }
    }

    /// Whether bytes go out as they came.
    pub fn is_plain(&self) -> bool {
        self.markup == Markup::Text
            && self.tag == Tag::Nothing
            && self.stamp.is_none()
            && self.closing.len() == 1
    }

    /// Whether it shows when bytes were read.
    pub fn shows_time(&self) -> bool {
        self.stamp.is_some() || self.markup == Markup::Json
    }

    /// Whether it shows hosts and pids.
    pub fn shows_process(&self) -> bool {
        matches!(self.tag, Tag::Detailed { .. }) || self.markup == Markup::Json
    }

    /// Whether two parts of a line that are written one after the other look as if they had been
    /// written at once.
    pub(crate) fn joins_parts(&self) -> bool {
        self.markup == Markup::Text
    }

    /// Whether what was read together stays together.
    pub fn is_by_fragment(&self) -> bool {
        self.fragments
    }

    /// What the lines of `source` have in common.
    pub fn label(&self, source: &Source) -> Label {
        let (before, after, behind) = match self.markup {
            Markup::Text => self.text_label(source),
            Markup::Xml => self.xml_label(source),
            Markup::Json => self.json_label(source),
        };
        let mut label = Label { before, after, behind, whole: Vec::new(), shown: None };
        label.make(|_| {});
        label
    }

    fn text_label(&self, source: &Source) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let Source { nspace, rank, channel, .. } = source;
        let tag = match self.tag {
            Tag::Nothing => String::new(),
            Tag::Job => format!("[{},{rank}]<{channel}>: ", local(nspace)),
            Tag::Detailed { full } => {
                let job = if full { nspace.as_str() } else { local(nspace) };
                let unknown = || "unknown".to_owned();
                let host = source.host.clone().unwrap_or_else(unknown);
                let pid = source.pid.map_or_else(unknown, |pid| pid.to_string());
                format!("[{job},{rank}][{host}:{pid}]<{channel}>: ")
            }
            Tag::Full => format!("[{nspace},{rank}]<{channel}>: "),
            Tag::Rank => format!("[{rank}]<{channel}>: "),
        };
        let (mut before, mut after) = match self.stamp {
            None => (String::new(), tag),
            Some(_) if self.channel_twice => ("[".into(), format!("]<{channel}>: {tag}")),
            Some(_) => ("[".into(), format!("]{tag}")),
        };
        if self.colour && !(before.is_empty() && after.is_empty()) {
            let colour = COLOURS.iter().cycle().nth(rank.0 as usize % COLOURS.len()).copied().unwrap_or("0");
            before.insert_str(0, &format!("\x1b[{colour}m"));
            after.push_str("\x1b[0m");
        }
        (before.into(), after.into(), Vec::new())
    }

    fn xml_label(&self, source: &Source) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let Source { nspace, rank, channel, .. } = source;
        let full = attribute("nspace", nspace.as_str());
        let job = match self.tag {
            Tag::Nothing | Tag::Rank => String::new(),
            Tag::Job if local(nspace) != nspace.as_str() => attribute("jobid", local(nspace)),
            Tag::Job | Tag::Full | Tag::Detailed { .. } => full,
        };
        let mut before = format!("<{channel}{job} rank=\"{rank}\"");
        if matches!(self.tag, Tag::Detailed { .. }) {
            before.push_str(&attribute("host", source.host.as_deref().unwrap_or("unknown")));
            let pid = source.pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            before.push_str(&attribute("pid", &pid));
        }
        let after = if self.stamp.is_some() { "\">" } else { ">" };
        before.push_str(if self.stamp.is_some() { " timestamp=\"" } else { "" });
        (before.into(), after.into(), format!("</{channel}>\n").into())
    }

    fn json_label(&self, source: &Source) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let Source { nspace, rank, channel, logged, host, pid } = source;
        let nspace = serde_json::Value::from(nspace.as_str());
        // What was logged to the output of a job as a whole is of no rank.
        let rank = serde_json::Value::from((*rank < Rank::WILDCARD).then_some(rank.0));
        let (host, pid) = (serde_json::Value::from(host.clone()), serde_json::Value::from(*pid));
        let logged = if *logged { ",\"logged\":true" } else { "" };
        let before =
            format!("{{\"nspace\":{nspace},\"rank\":{rank},\"channel\":\"{channel}\"{logged},\"time\":");
        let behind = format!(",\"host\":{host},\"pid\":{pid},\"data\":");
        (before.into(), b",\"offset\":".to_vec(), behind.into())
    }

    /// Appends `run` of the stream whose number is `key` to `to`, each piece of its text by `put`.
    ///
    /// Where lines are tagged, a line that another stream has left open is ended first.
    pub fn write<'a, 'b>(
        &self,
        run: &Run<'b, '_>,
        label: &mut Label,
        (key, open): (u64, &mut Open),
        to: &mut Batch<'a>,
        put: impl Fn(&mut Batch<'a>, &'b [u8]),
    ) {
        if self.is_plain() {
            put(to, run.bytes);
            *open = (run.bytes.last() != Some(&b'\n')).then_some(key);
            return;
        }
        let mut times = run.times;
        let mut rest = run.bytes;
        let mut offset = run.offset;
        while !rest.is_empty() {
            let end = if self.fragments { None } else { memchr(b'\n', rest) };
            let (line, later) =
                rest.split_at(end.map_or(rest.len(), |end| end.saturating_add(1)).min(rest.len()));
            if self.shows_time() {
                while let [_, later @ ..] = times
                    && later.first().is_some_and(|(from, _)| *from <= offset)
                {
                    times = later;
                }
                let time = times.first().map(|(_, time)| *time);
                self.stamp(label, time);
            }
            match self.markup {
                Markup::Text => self.text(line, label, (key, open), to, &put),
                Markup::Xml => {
                    to.copy(&label.whole);
                    to.make(|to| escape(line, to));
                    to.copy(&label.behind);
                }
                Markup::Json => {
                    to.make(|to| json(line, offset, label, to));
                }
            }
            offset = offset.saturating_add(line.len() as u64);
            rest = later;
        }
    }

    /// Ends the line in whose middle an output is, if lines are tagged: what comes next is none of
    /// it.
    pub(crate) fn end_line(&self, open: &mut Open, to: &mut Batch<'_>) {
        if self.markup != Markup::Text || self.is_plain() || open.take().is_none() {
            return;
        }
        // A fragment has its suffix already.
        to.copy(if self.fragments { b"\n" } else { &self.closing });
    }

    fn text<'a, 'b>(
        &self,
        line: &'b [u8],
        label: &Label,
        (key, open): (u64, &mut Open),
        to: &mut Batch<'a>,
        put: &impl Fn(&mut Batch<'a>, &'b [u8]),
    ) {
        if *open != Some(key) {
            self.end_line(open, to);
        }
        if self.fragments || *open != Some(key) {
            to.copy(&label.whole);
        }
        let has_suffix = self.closing.len() > 1;
        match line.strip_suffix(b"\n") {
            Some(text) if has_suffix => {
                put(to, text);
                to.copy(&self.closing);
                *open = None;
            }
            Some(_) => {
                put(to, line);
                *open = None;
            }
            None => {
                put(to, line);
                *open = Some(key);
                if self.fragments && has_suffix {
                    to.copy(self.closing.strip_suffix(b"\n").unwrap_or_default());
                }
            }
        }
    }

    /// Makes `label` show `time`.
    fn stamp(&self, label: &mut Label, time: Option<u64>) {
        let in_json = self.markup == Markup::Json;
        let stamp = match self.stamp {
            Some(Stamp::Calendar) | None if in_json => Stamp::Rfc3339,
            stamp => stamp.unwrap_or(Stamp::Rfc3339),
        };
        let part = time.map(|time| stamp.part(time));
        if part.is_some() && part == label.shown {
            return;
        }
        label.shown = part;
        let quoted = in_json && !stamp.is_number();
        label.make(|to| match time {
            Some(time) => {
                to.extend_from_slice(if quoted { b"\"" } else { b"" });
                stamp.write(time, &self.zone, to);
                to.extend_from_slice(if quoted { b"\"" } else { b"" });
            }
            None => to.extend_from_slice(if in_json { b"null" } else { b"unknown" }),
        });
    }
}

impl Label {
    /// Puts together what comes before the text, with what `stamp` appends as its stamp.
    fn make(&mut self, stamp: impl FnOnce(&mut Vec<u8>)) {
        self.whole.clear();
        self.whole.extend_from_slice(&self.before);
        stamp(&mut self.whole);
        self.whole.extend_from_slice(&self.after);
    }
}

/// The part of a job's name that tells it from others of the same launcher, as PMIx has it: what is
/// behind the last `@`.
fn local(nspace: &Nspace) -> &str {
    nspace.as_str().rsplit_once('@').map_or(nspace.as_str(), |(_, local)| local)
}

fn attribute(name: &str, value: &str) -> String {
    let value = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    format!(" {name}=\"{value}\"")
}

/// Appends `text` as PMIx writes it into XML: what is not printable ASCII as its number.
fn escape(text: &[u8], to: &mut Vec<u8>) {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'&' | b'<' | b'>');
    let mut rest = text;
    while let [first, ..] = rest {
        let plain = rest.iter().position(|byte| !is_plain(*byte)).unwrap_or(rest.len());
        let (as_it_is, later) = rest.split_at(plain);
        to.extend_from_slice(as_it_is);
        rest = later;
        if plain > 0 {
            continue;
        }
        match first {
            b'&' => to.extend_from_slice(b"&amp;"),
            b'<' => to.extend_from_slice(b"&lt;"),
            b'>' => to.extend_from_slice(b"&gt;"),
            // Writing to memory does not fail.
            byte => drop(write!(to, "&#{byte:03};")),
        }
        rest = rest.get(1..).unwrap_or_default();
    }
}

/// Appends one object with a newline behind it. Bytes that are no UTF-8 are in base64.
fn json(data: &[u8], offset: u64, label: &Label, to: &mut Vec<u8>) {
    to.extend_from_slice(&label.whole);
    // Writing to memory does not fail, nor does a string.
    let _ = write!(to, "{offset}");
    to.extend_from_slice(&label.behind);
    match std::str::from_utf8(data) {
        Ok(text) => {
            let _ = serde_json::to_writer(&mut *to, text);
            to.extend_from_slice(b"}\n");
        }
        Err(_) => {
            let _ = writeln!(to, "\"{}\",\"encoding\":\"base64\"}}", BASE64.encode(data));
        }
    }
}
