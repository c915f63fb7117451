//! The places of a stream without bytes.

use iof_tool::{Gap, Peeked};

/// A place of a stream without bytes that has an object in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamMark {
    /// A gap, behind which the stream goes on.
    Gap(Gap),
    /// The end of a stream. The source of a broken one has produced at least `missing` further bytes.
    End { offset: u64, missing: Option<u64> },
}

impl StreamMark {
    /// Returns the mark that a stream has where it was peeked at. Complete ends have one only if `has_objects`.
    pub(crate) fn of(peeked: &Peeked, has_objects: bool) -> Option<StreamMark> {
        match *peeked {
            Peeked::Gap(gap) => Some(StreamMark::Gap(gap)),
            Peeked::Broken { counts, missing } => {
                Some(StreamMark::End { offset: counts.produced, missing: Some(missing) })
            }
            Peeked::Complete(counts) if has_objects => {
                Some(StreamMark::End { offset: counts.produced, missing: None })
            }
            _ => None,
        }
    }
}
