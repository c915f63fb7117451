//! Any bytes from a peer. Decoding must give messages or an error, without a panic and within the
//! memory limit.
#![no_main]

use iof_proto::{Decoder, FromTool, ToTool};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut input = bytes;
    let mut from_tool = Decoder::<FromTool>::new();
    while let Ok(Some(_)) = from_tool.decode(&mut input) {}
    let mut input = bytes;
    let mut to_tool = Decoder::<ToTool>::new();
    while let Ok(Some(_)) = to_tool.decode(&mut input) {}
});
