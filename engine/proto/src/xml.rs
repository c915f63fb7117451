//! Bytes in XML, as PMIx's library writes them.

/// The first of the 32 characters that depict control characters (U+2400, `\u{2400}`). XML 1.0 has
/// no way to contain most control characters, not even as references.
pub const CONTROL_PICTURES: u32 = 0x2400;

/// Returns the number of the character reference that stands for a byte which is not printable
/// ASCII: the byte's value. Unlike PMIx's, the reference for a control character that XML cannot
/// contain is that of the character that depicts it. All other references are below 256, so no byte
/// is lost.
///
/// ```
/// use iof_proto::xml::reference;
///
/// assert_eq!([reference(b'\n'), reference(0xc3), reference(0x1b)], [10, 195, 0x241b]);
/// ```
pub fn reference(byte: u8) -> u32 {
    match byte {
        b'\t' | b'\n' | b'\r' | 0x20.. => byte.into(),
        _ => CONTROL_PICTURES.saturating_add(byte.into()),
    }
}
