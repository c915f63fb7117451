//! Frames: the units on the two byte streams of an edge.
//!
//! Each frame is a header of 32 bytes and a payload. All numbers are little endian.
//!
//! | offset | size | record | gap | end | credit | control | hello | padding | ack | resume |
//! |---:|---:|---|---|---|---|---|---|---|---|---|
//! | 0 | 1 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 |
//! | 1 | 1 | channel | channel | channel | 0 | 0 | 0 | 0 | 0 | 0 |
//! | 2 | 1 | bundle | bundle | bundle | bundle | 0 | 0 | 0 | 0 | 0 |
//! | 3 | 1 | stdin: its [`Interaction`], and 4 if the bytes may be an answer | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |
//! | 4 | 4 | length of the payload | 0 | 0 | 0 | length of the payload | 0 | 0 | 0 | 0 |
//! | 8 | 4 | rank | rank | rank | 0 | 0 | version | 0 | 0 | attempt |
//! | 12 | 4 | pull | pull | pull | 0 | 0 | 0 | 0 | 0 | 0 |
//! | 16 | 8 | offset in the stream | offset of the first lost byte | bytes produced | bytes of window | 0 | 0 | 0 | bytes received | bytes received |
//! | 24 | 8 | time, in ns since 1970; 0 if unknown | bytes lost | 0 | 0 | 0 | `"iofedge\n"` | a newline in the last byte | as padding | session |
//!
//! The pull is 0 for what belongs to the output of the whole node, and otherwise the number of the pull
//! of this stream ([`ToAgent::Pull`](crate::ToAgent::Pull)).
//!
//! Acks and resumes belong to the edge, whose bytes they count ([`LinkEnd`](crate::LinkEnd)).
//!
//! Kinds from 128 are skipped, with payloads no longer than those of control messages: a later
//! version can add frames that the other end may ignore. All other unknown kinds are errors, and so
//! are numbers where the table has 0.
//!
//! Hello, padding and ack end in a newline, and so does resume, by the choice of its session.
//! Slurm's `srun` keeps what a task has written until a newline or 1,024 bytes follow; an end of an
//! edge therefore pads what it writes.

use iof_proto::{Channel, InputState, Interaction, JOB_VERSION, Rank};

use crate::limits::{MAX_CONTROL, MAX_RECORD};

/// The version of the frames. Both ends of an edge have the same. It rises with each of its parts: that of
/// the frames and of what they contain, to which each change adds 1, and that of jobs.
pub const VERSION: u32 = 20 + JOB_VERSION;

/// The length of a frame without its payload, in bytes.
pub const HEADER: usize = 32;

/// The mark of a hello, in place of a time.
const MAGIC: [u8; 8] = *b"iofedge\n";

/// The time of a padding, which ends in a newline.
const PAD: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, b'\n'];

const RECORD: u8 = 1;
const GAP: u8 = 2;
const END: u8 = 3;
const CREDIT: u8 = 4;
pub(crate) const CONTROL: u8 = 5;
pub(crate) const HELLO: u8 = 6;
const PADDING: u8 = 7;
const ACK: u8 = 8;
pub(crate) const RESUME: u8 = 9;
/// The lowest kind that is skipped if it is unknown.
const OPTIONAL: u8 = 128;

/// The streams that share one window: all that a node sends to one output of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bundle {
    /// Stdout of all ranks of the node.
    Stdout,
    /// The other output channels of all ranks of the node.
    Errors,
    /// The streams that tools of the front end pull, each once more.
    Pulls,
}

impl Bundle {
    /// All bundles.
    pub const ALL: [Bundle; 3] = [Bundle::Stdout, Bundle::Errors, Bundle::Pulls];

    /// Returns the bundle of a channel; `None` for stdin.
    pub fn of(channel: Channel) -> Option<Bundle> {
        match channel {
            Channel::Stdin => None,
            Channel::Stdout => Some(Bundle::Stdout),
            _ => Some(Bundle::Errors),
        }
    }

    /// Returns the bundle of a record of `channel` that belongs to this pull, or to none if it is 0.
    pub fn of_record(pull: u32, channel: Channel) -> Option<Bundle> {
        let bundle = Bundle::of(channel)?;
        Some(if pull == 0 { bundle } else { Bundle::Pulls })
    }

    fn number(self) -> u8 {
        match self {
            Bundle::Stdout => 1,
            Bundle::Errors => 2,
            Bundle::Pulls => 3,
        }
    }
}

/// One output stream of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamKey {
    /// The rank.
    pub rank: Rank,
    /// The channel, which is not stdin.
    pub channel: Channel,
}

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Bytes of a stream.
    Record {
        /// The pull; 0 for none.
        pull: u32,
        /// The stream.
        stream: StreamKey,
        /// The position of the first byte in the stream.
        offset: u64,
        /// When the bytes were read from the rank, in nanoseconds since 1970; 0 if unknown.
        time: u64,
        /// The stdin of the rank then. It is unbuffered if the node has waited for the ends of lines.
        input: InputState,
        /// The bytes, at most [`MAX_RECORD`].
        bytes: &'a [u8],
    },
    /// Bytes of a stream that were lost at the node.
    Gap {
        /// The pull; 0 for none.
        pull: u32,
        /// The stream.
        stream: StreamKey,
        /// The position of the first lost byte.
        offset: u64,
        /// The number of lost bytes. In a pull, 0 marks the end of what was cached when it began.
        lost: u64,
    },
    /// The end of a stream.
    End {
        /// The pull; 0 for none.
        pull: u32,
        /// The stream.
        stream: StreamKey,
        /// The number of bytes that the rank has produced, lost ones included.
        produced: u64,
    },
    /// Further bytes of a bundle that the peer may send.
    Credit {
        /// The bundle.
        bundle: Bundle,
        /// The number of bytes, headers of records included.
        bytes: u64,
    },
    /// A control message, encoded.
    Control(&'a [u8]),
    /// The first frame of each end.
    Hello {
        /// The version of the frames that the peer uses.
        version: u32,
    },
    /// Nothing. Ends in a newline.
    Padding,
    /// The number of bytes of the edge that have arrived. Ends in a newline.
    Ack {
        /// The bytes, from the first one on.
        received: u64,
    },
    /// The first frame over a carrier that replaces another one, which is not part of the bytes of
    /// the edge.
    Resume {
        /// The session that goes on. Its last byte is a newline.
        session: u64,
        /// The number of the attempt to bring this carrier. That of a later attempt is larger.
        attempt: u32,
        /// The bytes of the edge that have arrived.
        received: u64,
    },
}

/// The reason why bytes are not frames. The edge is to be cut off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The kind of a frame is unknown.
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    /// A field of a frame has an invalid value.
    #[error("invalid {field} in a frame of kind {kind}")]
    Field {
        /// The kind of the frame.
        kind: u8,
        /// The field.
        field: &'static str,
    },
    /// A payload is longer than the limit of its kind and sender.
    #[error("a frame of kind {kind} announces {length} bytes, which exceeds the limit of {limit}")]
    TooLong {
        /// The kind of the frame.
        kind: u8,
        /// The announced length, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
}

/// The fields of a header.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    kind: u8,
    channel: u8,
    bundle: u8,
    input: u8,
    length: u32,
    rank: u32,
    pull: u32,
    offset: u64,
    time: [u8; 8],
}

impl Header {
    const EMPTY: Header = Header {
        kind: 0,
        channel: 0,
        bundle: 0,
        input: 0,
        length: 0,
        rank: 0,
        pull: 0,
        offset: 0,
        time: [0; 8],
    };

    fn of_stream(kind: u8, pull: u32, StreamKey { rank, channel }: StreamKey) -> Header {
        let bundle = Bundle::of_record(pull, channel).map_or(0, Bundle::number);
        Header { kind, channel: channel as u8, bundle, rank: rank.0, pull, ..Header::EMPTY }
    }

    fn encode(self) -> [u8; HEADER] {
        let Header { kind, channel, bundle, input, .. } = self;
        let [l0, l1, l2, l3] = self.length.to_le_bytes();
        let [r0, r1, r2, r3] = self.rank.to_le_bytes();
        let [p0, p1, p2, p3] = self.pull.to_le_bytes();
        let [o0, o1, o2, o3, o4, o5, o6, o7] = self.offset.to_le_bytes();
        let [t0, t1, t2, t3, t4, t5, t6, t7] = self.time;
        [
            kind, channel, bundle, input, l0, l1, l2, l3, r0, r1, r2, r3, p0, p1, p2, p3, o0, o1, o2, o3, o4,
            o5, o6, o7, t0, t1, t2, t3, t4, t5, t6, t7,
        ]
    }

    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Header {
        let [kind, channel, bundle, input, l0, l1, l2, l3, r0, r1, r2, r3, p0, p1, p2, p3, rest @ ..] =
            *bytes;
        let [o0, o1, o2, o3, o4, o5, o6, o7, time @ ..] = rest;
        Header {
            kind,
            channel,
            bundle,
            input,
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            rank: u32::from_le_bytes([r0, r1, r2, r3]),
            pull: u32::from_le_bytes([p0, p1, p2, p3]),
            offset: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            time,
        }
    }

    /// Returns the length of the payload, which is at most the limit of the kind.
    pub(crate) fn payload(&self, max_control: usize) -> Result<usize, FrameError> {
        let limit = match self.kind {
            RECORD => MAX_RECORD,
            CONTROL | OPTIONAL.. => max_control,
            GAP | END | CREDIT | HELLO | PADDING | ACK | RESUME => 0,
            kind => return Err(FrameError::Kind(kind)),
        };
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        if length > limit { Err(FrameError::TooLong { kind: self.kind, length, limit }) } else { Ok(length) }
    }

    /// Returns the same header for an empty payload.
    pub(crate) fn without_payload(self) -> Header {
        Header { length: 0, ..self }
    }

    fn stream(&self) -> Result<StreamKey, FrameError> {
        let channel = output_channel(self.channel).ok_or(self.invalid("channel"))?;
        if Bundle::of_record(self.pull, channel).map(Bundle::number) != Some(self.bundle) {
            return Err(self.invalid("bundle"));
        }
        Ok(StreamKey { rank: Rank(self.rank), channel })
    }

    fn invalid(&self, field: &'static str) -> FrameError {
        FrameError::Field { kind: self.kind, field }
    }

    /// Returns the frame, or `None` for a kind that is skipped.
    pub(crate) fn frame(self, payload: &[u8]) -> Result<Option<Frame<'_>>, FrameError> {
        let (time, pull) = (u64::from_le_bytes(self.time), self.pull);
        let frame = match self.kind {
            RECORD => {
                let (stream, interaction) = (self.stream()?, Interaction::from_bits(self.input.into()));
                let input = InputState { interaction, is_answer: self.input & IS_ANSWER != 0 };
                Frame::Record { pull, stream, offset: self.offset, time, input, bytes: payload }
            }
            GAP => Frame::Gap { pull, stream: self.stream()?, offset: self.offset, lost: time },
            END => Frame::End { pull, stream: self.stream()?, produced: self.offset },
            CREDIT => {
                let bundle = Bundle::ALL.into_iter().find(|bundle| bundle.number() == self.bundle);
                Frame::Credit { bundle: bundle.ok_or(self.invalid("bundle"))?, bytes: self.offset }
            }
            CONTROL => Frame::Control(payload),
            HELLO if self.time != MAGIC => return Err(self.invalid("magic")),
            HELLO => Frame::Hello { version: self.rank },
            PADDING => Frame::Padding,
            ACK => Frame::Ack { received: self.offset },
            RESUME => Frame::Resume { session: time, attempt: self.rank, received: self.offset },
            OPTIONAL.. => return Ok(None),
            kind => return Err(FrameError::Kind(kind)),
        };
        // Fields that a kind of frame does not use are 0, so that each frame has one encoding.
        if frame.header().is_some_and(|header| header != self.encode()) {
            return Err(self.invalid("field without a meaning"));
        }
        Ok(Some(frame))
    }
}

fn output_channel(number: u8) -> Option<Channel> {
    Channel::OUTPUTS.into_iter().find(|channel| *channel as u8 == number)
}

/// The flag of a record that may be an answer, beside the number of the interaction.
const IS_ANSWER: u8 = 4;

/// Returns the header of a frame; `None` if its payload is too long.
fn header_of(frame: &Frame<'_>) -> Option<Header> {
    let length =
        |payload: &[u8], limit: usize| u32::try_from(payload.len()).ok().filter(|_| payload.len() <= limit);
    Some(match *frame {
        Frame::Record { pull, stream, offset, time, input, bytes } => Header {
            length: length(bytes, MAX_RECORD)?,
            offset,
            time: time.to_le_bytes(),
            input: input.interaction as u8 | if input.is_answer { IS_ANSWER } else { 0 },
            ..Header::of_stream(RECORD, pull, stream)
        },
        Frame::Gap { pull, stream, offset, lost } => {
            Header { offset, time: lost.to_le_bytes(), ..Header::of_stream(GAP, pull, stream) }
        }
        Frame::End { pull, stream, produced } => {
            Header { offset: produced, ..Header::of_stream(END, pull, stream) }
        }
        Frame::Credit { bundle, bytes } => {
            Header { kind: CREDIT, bundle: bundle.number(), offset: bytes, ..Header::EMPTY }
        }
        Frame::Control(message) => {
            Header { kind: CONTROL, length: length(message, MAX_CONTROL)?, ..Header::EMPTY }
        }
        Frame::Hello { version } => Header { kind: HELLO, rank: version, time: MAGIC, ..Header::EMPTY },
        Frame::Padding => Header { kind: PADDING, time: PAD, ..Header::EMPTY },
        Frame::Ack { received } => Header { kind: ACK, offset: received, time: PAD, ..Header::EMPTY },
        Frame::Resume { session, attempt, received } => Header {
            kind: RESUME,
            rank: attempt,
            offset: received,
            time: session.to_le_bytes(),
            ..Header::EMPTY
        },
    })
}

impl Frame<'_> {
    /// The first frame that each end sends.
    pub const HELLO: Frame<'static> = Frame::Hello { version: VERSION };

    /// Returns the header, after which the payload follows; `None` if the payload exceeds its
    /// limit.
    pub fn header(&self) -> Option<[u8; HEADER]> {
        header_of(self).map(Header::encode)
    }

    /// Appends the whole frame, unless the payload exceeds its limit.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        if let Some(header) = self.header() {
            bytes.extend_from_slice(&header);
            bytes.extend_from_slice(self.payload());
        }
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        match self {
            Frame::Record { bytes, .. } | Frame::Control(bytes) => bytes,
            _ => &[],
        }
    }
}
