//! The bytes that a rank sends on its PMI socket, at any boundaries, affect only this rank: other
//! ranks are served, and the memory for it stays bounded.

#![no_main]

use iof_pmi::{MAX_LINE, Server};
use libfuzzer_sys::fuzz_target;

/// The longest reply to one request.
const MAX_REPLY: usize = 1024;

/// Parts of requests, which random bytes hardly ever contain.
const WORDS: [&str; 12] = [
    "cmd=init pmi_version=1 pmi_subversion=1\n",
    "cmd=get_maxes\n",
    "cmd=get_my_kvsname\n",
    "cmd=put kvsname=s key=",
    " value=",
    "cmd=get kvsname=s key=",
    "cmd=barrier_in\n",
    "cmd=abort exitcode=",
    "mcmd=spawn\n",
    "totspawns=2\nspawnssofar=2\n",
    "endcmd\n",
    "cmd=finalize\n",
];

fuzz_target!(|pieces: Vec<(u8, &[u8])>| {
    let mut server = Server::new("s", &[1, 1]);
    let mut events = Vec::new();
    for (word, bytes) in pieces {
        let word = WORDS.get(usize::from(word)).map_or(bytes, |word| word.as_bytes());
        if word.len() > MAX_LINE || server.receive(0, word, &mut events).is_err() {
            break;
        }
        assert!(server.unsent(0).len() <= MAX_REPLY);
        // Now and then a reply is sent only in part.
        server.sent(0, if bytes.len() % 7 == 6 { 1 } else { MAX_REPLY });
    }
    assert!(server.receive(1, b"cmd=init pmi_version=1 pmi_subversion=1\n", &mut events).is_ok());
    assert!(!server.unsent(1).is_empty());
});
