//! `iof pull` begins and ends where its options specify, here and on other nodes, and continues a file
//! exactly.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use iof_testing::command::site::{Site, Stream, lines};
use iof_testing::process::{Done, Process};
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use serde_json::Value;

/// The options of a job on this node, and of one on two others.
const PLACES: [&[&str]; 2] = [&["-n", "2"], &["-n", "2", "--hosts", "a,b", "--rsh", "sh -c"]];

/// Starts a job of two ranks which each write three lines, pause, write a line, and wait for a gate.
/// Returns it once the first lines, and the time between them and the others, are over.
fn job(site: &Site, place: &[&str], gate: &str) -> Process {
    let script = format!("printf 'one\\ntwo\\nthree\\n'; sleep 0.3; echo four; : < {gate}; echo five");
    let run = site.run_sh(place, &script);
    let all = |rank| {
        let options = ["--no-follow", "--rank", rank];
        lines(site.pull(&options).finish().text()).contains("four")
    };
    wait_for("the lines", || (all("0") && all("1")).then_some(()));
    run
}

fn pull(site: &Site, options: &[&str]) -> Done {
    site.pull(options).finish()
}

#[test]
fn a_pull_shows_the_part_that_is_selected_here_and_of_other_nodes() {
    for place in PLACES {
        let site = Site::new();
        let mut gates = [site.gate("0"), site.gate("1")];
        let gate = format!("{}/$IOF_RANK", Path::new(gates[0].path()).parent().unwrap().display());
        let run = job(&site, place, &gate);
        for (options, wanted) in [
            (&["--no-follow", "--rank", "1"][..], "one\ntwo\nthree\nfour\n"),
            (&["--no-follow", "--rank", "0", "--tail", "2"], "three\nfour\n"),
            (&["--no-follow", "--rank", "0", "--tail", "9"], "one\ntwo\nthree\nfour\n"),
            (&["--no-follow", "--tail", "1"], "four\nfour\n"),
            (&["--no-follow", "--tail", "2:all"], "four\nfour\n"),
            (&["--no-follow", "--tail", "0"], ""),
            (&["--no-follow", "--since", "1h", "--rank", "0"], "one\ntwo\nthree\nfour\n"),
            (&["--no-follow", "--since", "2999-01-01T00:00:00Z"], ""),
            (&["--no-follow", "--from", "8", "--rank", "0", "--channel", "stdout"], "three\nfour\n"),
            (&["--until", "1999-01-01T00:00:00Z"], ""),
            (&["--until", "2001-01-01T00:00:00", "--tail", "1"], ""),
        ] {
            let done = pull(&site, options);
            assert_eq!((done.code, done.text(), &*done.stderr), (0, wanted, ""), "{place:?} {options:?}");
        }
        // The time of the last line lies between.
        let stamped = pull(&site, &["--no-follow", "--rank", "0", "--output", "json"]);
        let last: Value = serde_json::from_str(stamped.text().lines().last().unwrap()).unwrap();
        let time = last["time"].as_str().unwrap();
        let since = pull(&site, &["--no-follow", "--rank", "0", "--since", time]);
        assert_eq!(since.text(), "four\n", "{since:?}");
        let until = pull(&site, &["--rank", "0", "--until", time]);
        assert_eq!(until.text(), "one\ntwo\nthree\n", "{until:?}");
        // Followed to the end.
        let followed = site.pull(&["--rank", "1", "--tail", "1"]);
        let skipped = site.pull(&["--rank", "1", "--tail", "0"]);
        site.wait_for_pulls(1, "stdout", 2);
        gates.iter_mut().for_each(|gate| gate.open());
        assert_eq!(followed.finish().text(), "four\nfive\n");
        assert_eq!(skipped.finish().text(), "five\n");
        assert_eq!(run.wait(), 0);
    }
}

#[test]
fn a_pull_from_behind_the_end_of_a_stream_fails_and_one_from_its_end_is_empty() {
    for place in PLACES {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let run = site.run_sh(place, &format!("printf 1234567; exec >&-; : < {}", gate.path()));
        wait_for("the end", || site.stream(0, "stdout").filter(Stream::is_complete).map(drop));
        for (from, code, told) in [
            ("7", 0, ""),
            (
                "8",
                1,
                "iof: the stream has ended at byte 7: it has no byte 8, at which its output was to begin\n",
            ),
        ] {
            for extra in [&[][..], &["--no-follow"]] {
                let options = ["--rank", "0", "--channel", "stdout", "--from", from];
                let done = pull(&site, &[&options[..], extra].concat());
                assert_eq!((done.code, done.text(), &*done.stderr), (code, "", told), "{place:?} {extra:?}");
            }
        }
        gate.open();
        assert_eq!(run.wait(), 0);
    }
}

#[test]
fn a_pull_that_does_not_follow_prints_as_many_lines_as_it_is_to_while_ranks_write() {
    for place in PLACES {
        let site = Site::new();
        let run = site.run_sh(place, "while :; do echo x; done");
        let has_written =
            |rank| !pull(&site, &["--no-follow", "--tail", "1", "--rank", rank]).text().is_empty();
        wait_for("output of both ranks", || (has_written("0") && has_written("1")).then_some(()));
        for _ in 0..5 {
            let done = pull(&site, &["--no-follow", "--tail", "0"]);
            assert_eq!((done.code, done.text(), &*done.stderr), (0, "", ""), "{place:?}");
            for (tail, lines) in [("5", 10), ("5:all", 5)] {
                let done = pull(&site, &["--no-follow", "--tail", tail]);
                let count = done.text().lines().count();
                assert_eq!((done.code, count, &*done.stderr), (0, lines, ""), "{place:?} {tail}");
            }
        }
        run.signal(Signal::SIGTERM);
        run.finish();
    }
}

/// Starts a pull that continues a file.
fn resume(site: &Site, path: &Path, word: &str) -> Child {
    let file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    let mut command = site.iof("pull");
    command.args(["--output", word, "--resume"]).arg(path);
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap()
}

/// A piece of a stream: its offset, and its bytes or the number of missing ones.
type Piece = (u64, Result<Vec<u8>, u64>);

fn last_line(pieces: &[Piece]) -> String {
    String::from_utf8(pieces.last().unwrap().1.clone().unwrap()).unwrap()
}

/// Returns the pieces of each stream in a file, by rank and channel.
fn pieces(path: &Path) -> BTreeMap<(u64, String), Vec<Piece>> {
    let mut streams: BTreeMap<_, Vec<Piece>> = BTreeMap::new();
    let text = fs::read_to_string(path).unwrap();
    for line in text.lines().filter(|line| !line.starts_with("iof: ")) {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        if !["output", "gap"].contains(&object["type"].as_str().unwrap()) {
            continue;
        }
        let stream = (object["rank"].as_u64().unwrap(), object["channel"].as_str().unwrap().to_owned());
        let piece = match (object["data"].as_str(), object["encoding"].is_null()) {
            (Some(data), true) => Ok(data.as_bytes().to_vec()),
            (Some(data), false) => Ok(BASE64.decode(data).unwrap()),
            (None, _) => Err(object["lost"].as_u64().unwrap()),
        };
        streams.entry(stream).or_default().push((object["offset"].as_u64().unwrap(), piece));
    }
    streams
}

/// Kills pulls at random moments, and checks that what they have written is each stream, with gaps only
/// if `loses`.
fn kill_pulls(place: &[&str], pause: &str, loses: bool) {
    let site = Site::new();
    let stop = site.path().join("stop");
    let script = format!(
        "i=0; until [ -e {} ]; do echo line $i; [ $((i % 7)) != 0 ] || echo error $i >&2; i=$((i + 1)); \
         [ $((i % 20)) != 0 ] || sleep {pause}; done; echo $i end",
        stop.display()
    );
    let mut run =
        site.run_sh(&[place, &["--cache-size", if loses { "16K" } else { "8M" }]].concat(), &script);
    let _output = run.collect();
    site.wait_for_ranks(2);
    let path = site.path().join("out.json");
    for kill in 0u64..100 {
        let mut pull = resume(&site, &path, ["json", "json=batch"][kill as usize % 2]);
        // Spread over the start, the cached output and what follows.
        thread::sleep(Duration::from_micros(kill * 7919 % 40_000));
        pull.kill().unwrap();
        pull.wait().unwrap();
    }
    let size = || fs::metadata(&path).unwrap().len();
    let before = size();
    let mut last = resume(&site, &path, "json");
    // Other nodes keep nothing of ranks that have ended before they are pulled.
    wait_for("the last pull", || (size() > before).then_some(()));
    File::create(&stop).unwrap();
    assert!(last.wait().unwrap().success(), "{}", fs::read_to_string(&path).unwrap());
    let streams = pieces(&path);
    assert_eq!(streams.len(), 4);
    let mut lost = 0;
    for (rank, end) in [0, 1].map(|rank| (rank, last_line(&streams[&(rank, "stdout".to_owned())]))) {
        let count: u64 = end.strip_suffix(" end\n").unwrap().parse().unwrap();
        let lines = (0..count).map(|i| format!("line {i}\n")).chain([end]);
        let errors = (0..count).step_by(7).map(|i| format!("error {i}\n"));
        for (channel, whole) in [("stdout", lines.collect::<String>()), ("stderr", errors.collect())] {
            let mut offset = 0;
            for (start, piece) in &streams[&(rank, channel.to_owned())] {
                assert_eq!(*start, offset, "{channel} of rank {rank}");
                match piece {
                    Ok(data) => {
                        let wanted = whole.as_bytes()[offset as usize..].get(..data.len());
                        assert_eq!(Some(&data[..]), wanted, "{channel} of rank {rank} at {offset}");
                        offset += data.len() as u64;
                    }
                    Err(gap) => {
                        offset += gap;
                        lost += gap;
                    }
                }
            }
            assert_eq!(offset, whole.len() as u64, "{channel} of rank {rank}");
        }
    }
    assert_eq!(lost > 0, loses, "{lost} bytes are missing");
    assert_eq!(run.wait(), 0);
}

#[test]
fn a_file_of_pulls_that_are_killed_at_100_moments_is_each_stream_as_a_whole() {
    kill_pulls(PLACES[0], "0.005", false);
}

#[test]
fn a_file_of_killed_pulls_has_a_gap_of_exactly_what_is_no_longer_cached() {
    kill_pulls(PLACES[0], "0", true);
}

#[test]
fn a_file_of_killed_pulls_of_other_nodes_is_each_stream_as_a_whole() {
    kill_pulls(PLACES[1], "0.005", false);
}

#[test]
fn a_file_that_is_continued_when_nodes_have_ended_has_a_gap_of_exactly_what_it_lacks_once() {
    let site = Site::new();
    let go = site.path().join("go");
    // More than a pipe holds, so that the job lasts until its output is read.
    let script = format!(
        "echo one; until [ -e {} ]; do sleep 0.01; done; head -c 60000 /dev/zero | tr '\\0' x",
        go.display()
    );
    let run = site.run_sh(PLACES[1], &script);
    site.wait_for_ranks(2);
    let path = site.path().join("out.json");
    let mut first = resume(&site, &path, "json");
    wait_for("the first lines", || {
        (fs::read_to_string(&path).unwrap().matches(":4\"").count() == 2).then_some(())
    });
    first.kill().unwrap();
    first.wait().unwrap();
    File::create(&go).unwrap();
    (0..2).for_each(|rank| drop(site.wait_for_state(rank, "terminated")));
    for _ in 0..2 {
        assert!(resume(&site, &path, "json").wait().unwrap().success());
        let streams = pieces(&path);
        for rank in 0..2 {
            let found = &streams[&(rank, "stdout".to_owned())];
            assert_eq!(*found, [(0, Ok(b"one\n".to_vec())), (4, Err(60_000))], "rank {rank}");
        }
    }
    assert_eq!(run.finish().code, 0);
}

#[test]
fn a_file_that_can_not_be_continued_is_refused_and_not_changed() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let job = |name: &str, gate: &str| site.run_sh(&["--nspace", name], &format!("echo one; : < {gate}"));
    let path = site.path().join("out.json");
    let text = path.to_str().unwrap();
    let run = job("job", gate.path());
    site.wait_for_bytes(0, "stdout", 4);
    let refused = |options: &[&str], message: &str| {
        let before = fs::read(&path).ok();
        let done = pull(&site, options);
        assert!(done.code == 2 && done.text().is_empty(), "{done:?}");
        assert!(done.stderr.lines().count() == 1 && done.stderr.contains(message), "{message}: {done:?}");
        assert_eq!(fs::read(&path).ok(), before);
    };
    let needs = "--resume needs --output json without files: only objects tell where to resume";
    refused(&["--resume", text], needs);
    refused(&["--resume", text, "--output", "xml"], needs);
    refused(&["--resume", text, "--output", "json,dir=d"], needs);
    let resume_json = ["--no-follow", "--output", "json", "--resume", text];
    for (found, line) in [
        ("one\n", "line 1"),
        ("one", "line 1"),
        (
            "{\"type\":\"output\",\"nspace\":\"job\",\"rank\":0,\"channel\":\"stdout\",\"time\":0,\"offset\":0,\"data\":\"\"}\n",
            "line 1",
        ),
        ("iof: a message\n{}\n", "line 2"),
    ] {
        fs::write(&path, found).unwrap();
        refused(&resume_json, &format!("{line} is not from iof pull --output json"));
    }
    refused(&[&resume_json[..], &["--tail", "1"]].concat(), "cannot be used with");
    fs::remove_file(&path).unwrap();
    let done = pull(&site, &resume_json);
    // The start of the rank, and its line.
    assert_eq!((done.code, done.text().lines().count()), (0, 2), "{done:?}");
    fs::write(&path, format!("{}{{\"type\":\"output\",\"nspace\":\"jo", done.text())).unwrap();
    let again = pull(&site, &resume_json);
    assert!(
        again.text().lines().all(|line| line.contains("rank_start")),
        "no output is written twice: {again:?}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), done.text(), "the incomplete line is cut off");
    gate.open();
    assert_eq!(run.wait(), 0);

    let mut gate = site.gate("again");
    let run = job("job", gate.path());
    site.wait_for_bytes(0, "stdout", 4);
    refused(&resume_json, "the file has output of another run of job job: write to a new file");
    gate.open();
    assert_eq!(run.wait(), 0);
    let mut gate = site.gate("other");
    let run = job("other", gate.path());
    site.wait_for_bytes(0, "stdout", 4);
    refused(&resume_json, "the file has output of job job, which is not pulled: write to a new file");
    gate.open();
    assert_eq!(run.wait(), 0);
}
