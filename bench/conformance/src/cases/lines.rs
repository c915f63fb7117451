//! Lines of several ranks in one output.

use crate::case::{Case, Size, Trial};
use crate::launcher::Capability::{LongLines, Ranks};
use crate::text::{self, expect_lines, expect_texts};

const EIGHT: Size = Size { ranks: 8, count: 2000 };

macro_rules! written {
    ($name:literal, $promise:literal, $size:expr, $length:literal, $how:literal) => {
        written!($name, $promise, $size, $length, $how, Ranks)
    };
    ($name:literal, $promise:literal, $size:expr, $length:literal, $how:literal, $need:ident) => {
        Case {
            name: $name,
            promise: $promise,
            needs: &[$need],
            size: $size,
            run: |trial| {
                let mut job = trial.job(&[concat!("lines:COUNT:", $length, ":", $how)]);
                job.options.push($need);
                let ended = trial.pass(job)?;
                expect_lines(&ended.stdout, trial.size.ranks, "out", trial.size.count, $length)
            },
        }
    };
}

pub const CASES: &[Case] = &[
    written!("lines-one-write", "A line that is written by one call is whole.", EIGHT, 80, "each"),
    written!(
        "lines-short",
        "Lines of 24 bytes are whole and in order.",
        Size { ranks: 8, count: 20_000 },
        24,
        "each"
    ),
    written!("lines-block-4k", "Lines of a program whose buffer has 4 KiB are whole.", EIGHT, 80, "4096"),
    written!("lines-block-8k", "Lines of a program whose buffer has 8 KiB are whole.", EIGHT, 100, "8192"),
    written!(
        "lines-block-64k",
        "Lines of a program whose buffer has 64 KiB are whole.",
        Size { ranks: 8, count: 10_000 },
        90,
        "65536"
    ),
    written!(
        "lines-block-odd",
        "Lines of a program whose buffer has 1,000 bytes are whole.",
        EIGHT,
        77,
        "1000"
    ),
    written!(
        "lines-by-bytes",
        "A line that is written byte by byte is whole.",
        Size { ranks: 4, count: 100 },
        40,
        "bytes"
    ),
    written!(
        "lines-in-halves",
        "A line that is written in two calls with a pause between is whole.",
        Size { ranks: 4, count: 16 },
        60,
        "halves"
    ),
    written!(
        "lines-4097",
        "Lines longer than PIPE_BUF (4,096 bytes) are whole.",
        Size { ranks: 8, count: 200 },
        4097,
        "each"
    ),
    written!(
        "lines-65537",
        "Lines longer than a pipe (64 KiB) are whole.",
        Size { ranks: 4, count: 32 },
        65_537,
        "each",
        LongLines
    ),
    written!(
        "lines-1m",
        "Lines of 1 MiB are whole.",
        Size { ranks: 4, count: 4 },
        1_048_576,
        "each",
        LongLines
    ),
    written!("lines-64-ranks", "Lines of 64 ranks are whole.", Size { ranks: 64, count: 200 }, 80, "4096"),
    written!("lines-one-huge", "A line of 8 MiB is whole.", Size { ranks: 1, count: 1 }, 8_388_608, "65536"),
    Case {
        name: "lines-beside-a-slow-one",
        promise: "A rank that has written half a line keeps no line of others, and loses none of its own.",
        needs: &[Ranks],
        size: Size { ranks: 4, count: 500 },
        run: beside_a_slow_one,
    },
    Case {
        name: "lines-empty",
        promise: "Empty lines are counted.",
        needs: &[],
        size: Size { ranks: 1, count: 1 },
        run: |trial| {
            let newlines = "\\n".repeat(10);
            let action = format!("text:{newlines}");
            let ended = trial.pass(trial.job(&[action.as_str(); 10]))?;
            text::expect_bytes(&ended.stdout, &[b'\n'; 100])
        },
    },
    Case {
        name: "lines-without-an-end",
        promise: "A last line without a newline is whole, and a newline at most is added.",
        needs: &[Ranks],
        size: Size { ranks: 8, count: 1 },
        run: |trial| {
            let ended = trial.pass(trial.job(&["text:the end of %."]))?;
            let shown: Vec<u8> = ended.stdout.into_iter().filter(|byte| *byte != b'\n').collect();
            expect_texts(&shown, (0..trial.size.ranks).map(|rank| format!("the end of {rank}.").into_bytes()))
        },
    },
];

/// Rank 0 writes half a line and waits until the test has seen the lines of others.
fn beside_a_slow_one(trial: &Trial<'_>) -> Result<(), String> {
    let slow = [
        "on:0:text:<half",
        "on:1,2,3:lines:COUNT:80:4096",
        "on:0:await-file:FOLDER/go",
        "on:0:text: and half>\\n",
    ];
    let running = trial.start(trial.job(&slow))?;
    let others = (1..trial.size.ranks).collect::<Vec<u32>>();
    for rank in &others {
        running.wait_for_stdout(&text::line(*rank, "out", trial.size.count - 1, 80))?;
    }
    std::fs::write(trial.folder().join("go"), "").map_err(|error| error.to_string())?;
    let ended = running.end()?.with_code(0)?;
    let mut lines: Vec<Vec<u8>> =
        ended.stdout.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.sort();
    let mut expected: Vec<Vec<u8>> = others
        .iter()
        .flat_map(|rank| (0..trial.size.count).map(|at| text::line(*rank, "out", at, 80)))
        .collect();
    expected.push(b"<half and half>\n".to_vec());
    expected.sort();
    text::expect_bytes(&lines.concat(), &expected.concat())
}
