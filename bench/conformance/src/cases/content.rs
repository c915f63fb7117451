//! Bytes of one rank that a launcher must not change.

use crate::case::{Case, Size};
use crate::text::{expect_bytes, noise};

const ONE: Size = Size { ranks: 1, count: 1 };

macro_rules! unchanged {
    ($name:literal, $promise:literal, $text:literal, $bytes:expr) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[],
            size: ONE,
            run: |trial| expect_bytes(&trial.pass(trial.job(&[concat!("text:", $text)]))?.stdout, $bytes),
        }
    };
}

macro_rules! noisy {
    ($name:literal, $promise:literal, $count:literal, $first:literal) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[],
            size: Size { ranks: 1, count: $count },
            run: |trial| {
                let ended = trial.pass(trial.job(&[$first, "noise:COUNT"]))?;
                expect_bytes(&ended.stdout, &noise(0, trial.size.count as usize))
            },
        }
    };
}

pub const CASES: &[Case] = &[
    unchanged!("content-nul", "NUL bytes are bytes.", "a\\0b\\0\\0c\\n", b"a\0b\0\0c\n"),
    unchanged!(
        "content-cr",
        "Carriage returns are neither changed nor line ends.",
        "1%\\r 50%\\r 100%\\n",
        b"10\r 500\r 1000\n"
    ),
    unchanged!("content-crlf", "CR LF stays CR LF.", "one\\r\\ntwo\\r\\n", b"one\r\ntwo\r\n"),
    unchanged!(
        "content-escapes",
        "Escape sequences are not changed.",
        "\\e[31mred\\e[0m\\e[2K\\n",
        b"\x1b[31mred\x1b[0m\x1b[2K\n"
    ),
    unchanged!(
        "content-utf8",
        "Characters of several bytes are whole.",
        "größer 🚀 日本\\n",
        "größer 🚀 日本\n".as_bytes()
    ),
    unchanged!(
        "content-no-utf8",
        "Bytes that are not UTF-8 are not replaced.",
        "\\xff\\xfe \\xc3(\\n",
        b"\xff\xfe \xc3(\n"
    ),
    unchanged!("content-one-byte", "One byte without a newline arrives.", "x", b"x"),
    unchanged!(
        "content-form-feed",
        "Control characters are not changed.",
        "\\x07\\x08\\x0b\\x0c\\x7f\\n",
        b"\x07\x08\x0b\x0c\x7f\n"
    ),
    noisy!("content-noise-16m", "16 MiB of all byte values arrive as written.", 16_777_216, "pause:0"),
    noisy!(
        "content-noise-into-small-pipe",
        "A rank that makes its pipe small loses nothing.",
        1_048_576,
        "pipe-size:4096"
    ),
    Case {
        name: "content-nothing",
        promise: "A rank that writes nothing has no output.",
        needs: &[],
        size: ONE,
        run: |trial| {
            let ended = trial.pass(trial.job(&["touch:FOLDER/ran"]))?;
            expect_bytes(&ended.stdout, b"")?;
            expect_bytes(&ended.stderr, b"")?;
            trial.wait_for_files("ran")
        },
    },
    Case {
        name: "content-split-characters",
        promise: "A character that is written byte by byte, with pauses, is whole.",
        needs: &[],
        size: ONE,
        run: |trial| {
            let parts = ["text:\\xf0\\x9f", "pause:30", "text:\\x9a", "pause:30", "text:\\x80\\n"];
            expect_bytes(&trial.pass(trial.job(&parts))?.stdout, "🚀\n".as_bytes())
        },
    },
];
