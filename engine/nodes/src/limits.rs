//! The limits of an edge.

/// The largest number of nodes of one job.
pub const MAX_NODES: usize = 1024;

/// The largest number of bytes of output in one record.
pub const MAX_RECORD: usize = 64 << 10;

/// The largest number of bytes that a carrier may deliver before the first frame. As many of its text,
/// there and on stderr, are shown.
pub const MAX_GREETING: usize = 64 << 10;

/// The largest control message, in bytes. The largest one starts ranks, with their arguments and
/// variables.
pub const MAX_CONTROL: usize = 4 << 20;

/// The largest control message of an agent, in bytes.
pub const MAX_ANSWER: usize = 256 << 10;

/// The largest piece of stdin in one control message, in bytes.
pub const MAX_STDIN: usize = 64 << 10;

/// The largest piece of values of ranks in one control message, in bytes.
pub const MAX_PIECE: usize = 64 << 10;

/// The largest size of the values that the ranks of a node exchange in one fence, in bytes. A fence of all
/// nodes has at most `MAX_FENCE_BYTES_PER_JOB`.
pub const MAX_EXCHANGE: usize = 16 << 20;

/// The largest window of one bundle in bytes: records and their headers that the receiver has not
/// credited. It begins with 1 or 2 MiB, and follows the product of the rate and the round trip. One stream
/// may have all of it, so it is at most what the engine accepts of one.
pub const MAX_WINDOW: u64 = 4 << 20;

/// The sum of the windows of all nodes of a job for output, in bytes. With more than 32 nodes each window is
/// smaller than [`MAX_WINDOW`], and with more than 128 smaller than the 1 MiB with which it begins.
pub const MAX_WINDOWS: u64 = 256 << 20;

/// The sum of the windows with which the nodes of a job begin, in bytes, as long as these are larger than 1 MiB.
/// With up to 8 nodes each has 2 MiB, and with 16 or more 1 MiB.
pub const MAX_FIRST_WINDOWS: u64 = 32 << 20;

/// The largest number of bytes that a node may report of one stream, produced or lost. What exceeds
/// it is not true.
pub const MAX_STREAM: u64 = 1 << 56;

/// The number of bytes of an edge that are kept until the peer has acknowledged them, and at which
/// nothing more is sent. One write comes on top, and acks up to twice as many bytes. Only an edge
/// that outlives its carriers keeps what it sends.
pub const MAX_KEPT: usize = 8 << 20;

/// The largest number of links of one agent that have not shown the session of the edge yet.
pub const MAX_LINKS: usize = 32;

/// The largest number of connections to a front end at once whose agents have not proved anything yet.
pub const MAX_DIALS: usize = 64;

/// The longest text that invites agents, in bytes: 1,024 for each node.
pub const MAX_INVITATION: u64 = 1 << 20;

/// The largest number of ranks of one node.
pub const MAX_RANKS_OF_NODE: u32 = 4096;

/// The largest number of answers that a node may wait for: those to its log requests, and credit.
pub const MAX_ANSWERS_OF_NODE: usize = 8192;

/// The largest number of totals in one control message.
pub const MAX_TOTALS: usize = 4096;

/// The longest text of a carrier in the reason for which a node is lost, in bytes. Only the end of a longer
/// text is shown.
pub const MAX_CARRIER_TEXT: usize = 1024;

/// The longest reason or name that a control message contains, in bytes. A longer text is cut.
pub const MAX_TEXT: usize = 4096;
