//! Lines of programs with block-buffered output stay whole, and prompts, error messages and answers
//! appear nevertheless.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use iof_testing::command::site::Site;
use iof_testing::process::Process;
use iof_testing::wait_up_to;

const RANKS: usize = 4;
/// The number of lines of each rank.
const LINES: usize = 600;
/// The interval between two lines of a rank, in microseconds.
const INTERVAL: usize = 4000;
/// Less than the wait of a flushed buffer's end if a rank may be answered, and more than all others.
const SOON: Duration = Duration::from_secs(8);

/// A program that writes numbered lines, as words of a shell.
fn writers(site: &Site) -> Vec<String> {
    let (program, source) = (site.path().join("lines"), "tests/programs/lines.c");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler");
        return Vec::new();
    }
    let lines = format!("{} {LINES} {INTERVAL}", program.display());
    vec![
        format!("exec {lines} stdio"),
        format!("exec {lines} setvbuf 1000"),
        // A pipe cannot hold a buffer as a whole.
        format!("exec {lines} own 66000"),
        // The same text, flushed by grep.
        format!("{lines} setvbuf 80 | grep END"),
    ]
}

/// Checks that `text` consists of the lines of all ranks, each in order and whole.
fn assert_whole(what: &str, text: &str, unwrap: impl Fn(&str) -> String) {
    let mut numbers = BTreeMap::new();
    for line in text.lines() {
        let line = unwrap(line);
        let words: Vec<&str> = line.split(' ').collect();
        let ["rank", rank, "line", number, "µ", .., "END"] = words[..] else {
            panic!("{what}: a broken line: {line:?} after {numbers:?}");
        };
        let next: &mut usize = numbers.entry(rank.to_owned()).or_default();
        *next += 1;
        assert_eq!(number, next.to_string(), "{what}: {line:?}");
    }
    assert_eq!(numbers.into_values().collect::<Vec<_>>(), [LINES; RANKS], "{what}");
}

/// Runs all writers at the same time, and checks what `collect` returns of each.
fn check(options: &[&str], collect: fn(&Site, Process) -> String, unwrap: fn(&str) -> String) {
    let programs = Site::new();
    thread::scope(|scope| {
        for writer in writers(&programs) {
            scope.spawn(move || {
                let site = Site::new();
                let options =
                    options.iter().map(|option| option.replace("DIR", site.path().to_str().unwrap()));
                let options: Vec<String> = ["-n".into(), "4".into()].into_iter().chain(options).collect();
                let run = site.run_sh(&options.iter().map(String::as_str).collect::<Vec<_>>(), &writer);
                assert_whole(&format!("{options:?} {writer}"), &collect(&site, run), unwrap);
            });
        }
    });
}

fn stdout(_: &Site, run: Process) -> String {
    let done = run.finish();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    done.text().to_owned()
}

fn as_it_is(line: &str) -> String {
    line.to_owned()
}

#[test]
fn lines_of_block_buffered_ranks_do_not_mix_in_a_pipe() {
    check(&[], stdout, as_it_is);
}

#[test]
fn lines_of_block_buffered_ranks_do_not_mix_on_epoll() {
    check(&["--backend", "epoll"], stdout, as_it_is);
}

#[test]
fn lines_of_block_buffered_ranks_have_one_tag_each() {
    check(&["--output", "rank"], stdout, |line| line.split_once(">: ").unwrap().1.to_owned());
}

#[test]
fn lines_of_block_buffered_ranks_are_one_object_of_json_each() {
    let unwrap = |line: &str| {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        let data = object["data"].as_str().unwrap_or_else(|| panic!("no data in {line}"));
        data.strip_suffix('\n').unwrap_or_else(|| panic!("no line in {line}")).to_owned()
    };
    let outputs = |site: &Site, run| {
        let text = stdout(site, run);
        let outputs = text.split_inclusive('\n').filter(|line| line.starts_with("{\"type\":\"output\""));
        outputs.collect()
    };
    check(&["--output", "json"], outputs, unwrap);
}

#[test]
fn lines_of_block_buffered_ranks_are_one_element_of_xml_each() {
    let unwrap = |line: &str| {
        let (_, text) = line.split_once('>').unwrap();
        text.strip_suffix("&#010;</stdout>").unwrap_or(line).replace("&#194;&#181;", "µ")
    };
    check(&["--output", "xml"], stdout, unwrap);
}

#[test]
fn lines_of_block_buffered_ranks_do_not_mix_in_one_file() {
    let file = |site: &Site, run: Process| {
        let done = run.finish();
        assert_eq!((done.code, done.text()), (0, ""));
        fs::read_to_string(site.path().join("out")).unwrap()
    };
    check(&["-o", "DIR/out"], file, as_it_is);
}

#[test]
fn lines_of_block_buffered_ranks_do_not_mix_in_a_pull() {
    let pull = |site: &Site, run: Process| {
        let pulled = site.pull_when_ready().finish();
        assert_eq!(run.wait(), 0);
        pulled.text().to_owned()
    };
    check(&["-o", "none"], pull, as_it_is);
}

#[test]
fn lines_of_block_buffered_ranks_on_several_nodes_do_not_mix() {
    check(&["--rsh", "sh -c", "--hosts", "a:2,b:2"], stdout, as_it_is);
}

#[test]
fn a_character_is_not_divided_by_the_longest_line() {
    let site = Site::new();
    let text = format!("xxx{}", "\u{20ac}".repeat(70_000));
    let file = site.path().join("text");
    fs::write(&file, &text).unwrap();
    // Pieces as long as the longest line end in the middle of a character.
    let file = file.display();
    let pieces =
        format!("for i in 0 1 2 3; do tail -c +$((i * 65536 + 1)) {file} | head -c 65536; sleep .1; done");
    for options in [&["--output", "json"][..], &["--output", "json", "--rsh", "sh -c", "--hosts", "a:1"]] {
        let done = site.run_sh(options, &pieces).finish();
        let objects =
            done.text().lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let data: Vec<String> = objects
            .filter_map(|object| {
                assert!(object.get("encoding").is_none(), "{object}");
                Some(object.get("data")?.as_str().unwrap().to_owned())
            })
            .collect();
        assert_eq!(data.concat(), text);
    }
}

/// The other rank writes lines all the time.
const OTHER: &str = "[ $IOF_RANK = 1 ] && while :; do echo other; sleep .05; done;";
/// Answers each number that it reads with as many bytes, without a newline.
const ECHO: &str = "while read count; do head -c $count /dev/zero | tr '\\0' x; done; kill 0";
const SIZES: [usize; 5] = [511, 512, 1024, 4096, 5000];

/// Sends the size of each answer by `ask`, and waits for as many bytes of output.
fn assert_answers(what: &str, mut ask: impl FnMut(usize), output: impl Fn() -> usize) {
    let mut expected = 0;
    for size in SIZES {
        ask(size);
        expected += size;
        wait_up_to(SOON, &format!("{what}: the answer of {size} bytes"), || {
            (output() >= expected).then_some(())
        });
        assert_eq!(output(), expected);
    }
}

/// An output as far as a thread has read it.
#[derive(Clone)]
struct Shown(Arc<Mutex<String>>);

impl Shown {
    fn of(mut output: impl Read + Send + 'static) -> Shown {
        let shown = Shown(Arc::default());
        let buffer = Arc::clone(&shown.0);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut chunk) {
                buffer.lock().unwrap().push_str(std::str::from_utf8(&chunk[..read]).unwrap());
            }
        });
        shown
    }

    fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().matches(text).count()
    }

    fn wait_for(&self, text: &str) {
        wait_up_to(SOON, text, || (self.count(text) > 0).then_some(()));
    }
}

/// Pushes the size of an answer to rank 0.
fn push(site: &Site, size: usize) {
    let mut push = site.iof("push");
    let mut push = push.args(["--keep-open", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    push.stdin.take().unwrap().write_all(format!("{size}\n").as_bytes()).unwrap();
    assert!(push.wait().unwrap().success());
}

#[test]
fn a_request_and_its_answer_do_not_wait_for_each_other() {
    let site = Site::new();
    for nodes in [&[][..], &["--rsh", "sh -c", "--hosts", "a:1,b:1"]] {
        let mut run =
            site.run_sh(&[&["-n", "2", "--stdin", "all"], nodes].concat(), &format!("{OTHER} {ECHO}"));
        let (mut stdin, counted) = (run.stdin(), Shown::of(run.stdout()));
        let ask = |size: usize| stdin.write_all(format!("{size}\n").as_bytes()).unwrap();
        assert_answers(&format!("--stdin {nodes:?}"), ask, || counted.count("x"));
    }
    let mut run = site.run_sh(&["-n", "2", "--stdin-open", "0"], &format!("{OTHER} {ECHO}"));
    site.wait_for_ranks(2);
    let counted = Shown::of(run.stdout());
    let ask = |size: usize| push(&site, size);
    assert_answers("iof push", ask, || counted.count("x"));
    let script = format!("{OTHER} stty -echo; printf ready; {ECHO}");
    let (terminal, _run) = site.run_at_terminal(["-n", "2", "--pty", "0", "--", "sh", "-c", &script]);
    terminal.wait_for("ready", 1);
    let ask = |size: usize| terminal.type_keys(&format!("{size}\r"));
    assert_answers("--pty", ask, || terminal.shown().matches('x').count());
}

#[test]
fn a_prompt_appears_at_a_terminal_however_much_was_written_before_it() {
    let site = Site::new();
    // One write for the text and the prompt.
    let menu = r#"[ $IOF_RANK = 0 ] || while :; do echo other; sleep .05; done
for size in 12 700 700 5000 5000 1024 1024 5120; do
    text=$(head -c $((size - 10)) /dev/zero | tr '\0' .)
    printf "%s\nnumber $size?" "$text" | dd bs=64k iflag=fullblock 2>/dev/null
    read answer
    echo "got $answer"
done
kill 0"#;
    for options in [&[][..], &["--output", "rank"]] {
        let (terminal, _run) =
            site.run_at_terminal([&["-n", "4"], options, &["--", "sh", "-c", menu]].concat());
        for (round, size) in [12, 700, 700, 5000, 5000, 1024, 1024, 5120].into_iter().enumerate() {
            let before = terminal.shown().matches("number").count();
            assert!(before <= round + 1, "{before} prompts in round {round}");
            wait_up_to(SOON, &format!("the prompt after {size} bytes"), || {
                (terminal.shown().matches("number").count() == round + 1).then_some(())
            });
            terminal.type_keys(&format!("{round}\r"));
            terminal.wait_for(&format!("got {round}\r\n"), 1);
        }
    }
}

#[test]
fn an_error_without_a_newline_appears_before_its_rank_ends() {
    let hang = "[ $IOF_RANK = 1 ] && while :; do echo other >&2; sleep .05; done; printf %5000s >&2; printf oops >&2; exec sleep 1000";
    let nodes = ["--rsh", "sh -c", "--hosts", "a:1,b:1"];
    for options in [&[][..], &["--output", "rank"], &["--output", "json"], &nodes] {
        let site = Site::new();
        let mut run = site.run_sh(&[&["-n", "2"], options].concat(), hang);
        let shown = match options.contains(&"json") {
            true => Shown::of(run.stdout()),
            false => Shown::of(run.stderr()),
        };
        shown.wait_for("oops");
    }
}

#[test]
fn one_time_replaces_all_waits_on_every_way() {
    let block =
        "[ $IOF_RANK = 1 ] && while :; do echo other; sleep .05; done; printf '%5000s?'; exec sleep 1000";
    let nodes = ["--rsh", "sh -c", "--hosts", "a:1,b:1"];
    for options in [&[][..], &["--output", "rank"], &nodes] {
        let site = Site::new();
        let mut run = site.run_sh(&[&["-n", "2", "--max-line-time", "0.2"], options].concat(), block);
        Shown::of(run.stdout()).wait_for("?");
    }
}

#[test]
fn a_line_behind_one_that_was_shown_early_stays_whole() {
    let early = "[ $IOF_RANK = 1 ] && while :; do echo other; sleep .05; done; printf early; \
                 : < GATE; printf ' end\n%4090s' next; sleep .5; echo ' END'; kill 0";
    let nodes = ["--rsh", "sh -c", "--hosts", "a:1,b:1"];
    for options in [&[][..], &["--output", "rank"], &nodes] {
        let site = Site::new();
        let mut gate = site.gate("early");
        let mut run = site.run_sh(&[&["-n", "2"], options].concat(), &early.replace("GATE", gate.path()));
        let shown = Shown::of(run.stdout());
        shown.wait_for("early");
        gate.open();
        shown.wait_for("END");
        let shown = shown.0.lock().unwrap();
        let line = shown.lines().find(|line| line.contains("next")).unwrap();
        assert!(line.ends_with("next END"), "{options:?}: {line:?}");
    }
}

#[test]
fn a_message_about_a_rank_does_not_divide_the_line_of_the_last_one() {
    let site = Site::new();
    let script = "cd $DIR; wait_for() { while [ ! -e $1 ]; do sleep 0.01; done; }
        if [ $IOF_RANK = 0 ]; then exec >&- 2>&-; wait_for begun; kill -9 $$; fi
        wait_for alone; printf begin >&2; wait_for told; echo end >&2";
    let script = script.replace("$DIR", site.path().to_str().unwrap());
    let options = ["-n", "2", "--kill-on-bad-exit=0", "--max-line-time", "1000", "--output", "rank"];
    let mut run = site.run_sh(&[&options[..], &["--no-forward", "stdout,stddiag"]].concat(), &script);
    let touch = |name: &str| fs::write(site.path().join(name), "").unwrap();
    site.wait_for_stream(0, "stderr", |stream| stream.is_complete());
    touch("alone");
    site.wait_for_stream(1, "stderr", |stream| stream.number("produced") == 5);
    touch("begun");
    let mut stderr = BufReader::new(run.stderr());
    let mut read = || {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        line
    };
    let told = read();
    touch("told");
    assert!(told.starts_with("iof: ") && told.contains(": rank 0 ("), "{told}");
    assert_eq!(read(), "[1]<stderr>: beginend\n");
    assert_eq!(run.wait(), 137);
}

#[test]
fn a_pull_answers_over_nodes_although_the_front_end_writes_nothing() {
    let site = Site::new();
    let options = ["-n", "2", "--rsh", "sh -c", "--hosts", "a:1,b:1", "--stdin-open", "0", "-o", "none"];
    let _run = site.run_sh(&options, &format!("{OTHER} {ECHO}"));
    site.wait_for_ranks(2);
    let mut pull = site.pull_when_ready();
    let counted = Shown::of(pull.stdout());
    let ask = |size: usize| push(&site, size);
    assert_answers("iof pull", ask, || counted.count("x"));
}

#[test]
fn a_character_that_arrives_in_parts_at_the_end_of_the_longest_line_stops_nothing() {
    // Each rank pauses for another time, because it matters when the bytes are read.
    let script = r"head -c 65534 /dev/zero | tr '\0' x; printf '\342'; sleep .00$IOF_RANK; printf '\202'; sleep .5; printf '\254\nmore\n'";
    let nodes = ["--rsh", "sh -c", "--hosts", "a:8"];
    for options in [&[][..], &nodes, &nodes] {
        let options = [options, &["-n", "8", "--cache-size", "128K"]].concat();
        let done = Site::new().run_sh(&options, script).finish();
        assert_eq!((done.code, done.stdout.len()), (0, 8 * (65534 + 3 + 6)), "{options:?}");
    }
}
