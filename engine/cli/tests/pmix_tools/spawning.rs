//! Jobs that tools of PMIx spawn.

use std::io::{BufReader, Write};
use std::path::PathBuf;
use std::sync::LazyLock;

use iof_testing::command::site::Stream;
use iof_testing::wait_for;
use nix::sys::signal::Signal;

use super::{Place, compile, for_each_place, lines, number_after, read_rest, read_until};

const MEGABYTE: u64 = 1 << 20;

/// Starts `iof run` with a job that waits for a gate, and has a tool spawn `ranks` ranks of a megabyte
/// each that it pulls when the engine has read all of it. Returns what the tool reports.
fn pull_late(place: &Place, ranks: u32, cache: &str, key: &str) -> String {
    let mut gate = place.site.gate(cache);
    let run = place.run(&[], &format!(": < {}", gate.path()));
    let script = format!("seq -f %07.0f 1 131072 | head -c {MEGABYTE}");
    let mut tool = place.tool(["spawn", &ranks.to_string(), cache, key, &script]);
    let mut output = BufReader::new(tool.stdout());
    wait_for("all output", || {
        let is_whole = |stream: &&Stream| {
            stream.number("produced") == MEGABYTE
                && stream.0["complete"] == true
                && stream.0["channel"] == "stdout"
        };
        let streams = place.site.streams()?;
        (streams.iter().filter(is_whole).count() == ranks as usize).then_some(())
    });
    tool.stdin().write_all(b"\n").unwrap();
    let text = read_rest(&mut output);
    assert_eq!(tool.wait(), 0, "{text}");
    gate.open();
    assert_eq!(run.finish().code, 0);
    text
}

#[test]
fn a_tool_that_pulls_its_job_late_receives_every_cached_byte_or_the_exact_gap() {
    for_each_place(|place| {
        let text = pull_late(place, 4, "2097152", "-pmix.fwd.stdout");
        assert!(text.contains("bytes 4194304 lost 0 streams 4\nended 0\n"), "{text}");
        let text = pull_late(place, 4, "65536", "-pmix.fwd.stdout");
        let (bytes, lost) = (number_after(&text, "bytes "), number_after(&text, "lost "));
        // The engine reads in parts, and the last one may not fit.
        assert!(bytes > 4 * 32768 && bytes <= 4 * 65536 && bytes + lost == 4 * MEGABYTE, "{text}");
    });
}

#[test]
fn output_that_a_tool_wants_to_keep_arrives_when_it_pulls_even_if_it_is_forwarded() {
    for_each_place(|place| {
        let text = pull_late(place, 1, "2097152", "pmix.fwd.stdout");
        assert!(text.contains(&format!("bytes {MEGABYTE} lost 0 streams 1\nended 0\n")), "{}", text.len());
    });
}

#[test]
fn forwarded_output_of_a_spawned_job_is_written_by_the_tool_at_once() {
    for_each_place(|place| {
        let mut gates = [place.site.gate("first"), place.site.gate("second")];
        let [first, second] = gates.each_ref().map(|gate| gate.path().to_owned());
        let run = place.run(&[], &format!(": < {second}"));
        let script = format!("echo out; echo err >&2; : < {first}; exit 3");
        let mut tool = place.tool(["spawn", "2", "0", "pmix.fwd.stdout", &script]);
        drop(tool.stdin());
        let mut output = BufReader::new(tool.stdout());
        read_until(&mut output, "out");
        read_until(&mut output, "out");
        gates[0].open();
        assert_eq!(read_rest(&mut output).lines().last(), Some("ended 3"));
        assert_eq!(tool.wait(), 0);
        gates[1].open();
        assert_eq!(run.finish().code, 0);
    });
}

#[test]
fn a_spawned_job_outlives_a_tool_that_has_not_pulled_it_and_no_other() {
    for_each_place(|place| {
        let (mut gate, mut end) = (place.site.gate("gate"), place.site.gate("end"));
        let run = place.run(&[], &format!(": < {}", gate.path()));
        let script = format!(": < {}", end.path());
        for pulls in [false, true] {
            let mut tool = place.tool(["spawn", "1", "65536", "pmix.fwd.stdout", &script]);
            let mut output = BufReader::new(tool.stdout());
            let text = read_until_start(&mut output, "spawned ");
            assert!(text.contains("spawned iof-"), "{text}");
            if pulls {
                tool.stdin().write_all(b"\n").unwrap();
                read_until(&mut output, "pulled");
            }
            tool.signal(Signal::SIGKILL);
            tool.wait();
        }
        wait_for("the end of the job that was pulled", || {
            let names = lines(&place.tool(["namespaces"]).finish()).join(" ");
            (names.matches("iof-").count() == 1).then_some(())
        });
        end.open();
        gate.open();
        let done = run.finish();
        assert_eq!(done.code, 0, "{done:?}");
    });
}

fn read_until_start(output: &mut impl std::io::BufRead, start: &str) -> String {
    let mut line = String::new();
    while !line.starts_with(start) {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0);
    }
    line
}

#[test]
fn a_job_that_a_tool_spawns_with_forwarded_stdin_reads_what_tools_push() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&[], &format!(": < {}", gate.path()));
        for (key, is_open) in [("pmix.fwd.stdin", true), ("-pmix.fwd.stdin", false)] {
            let mut tool = place.tool(["spawn", "2", "65536", key, "cat"]);
            let mut output = BufReader::new(tool.stdout());
            let line = read_until_start(&mut output, "spawned ");
            let job = line.trim().rsplit(' ').next().unwrap();
            let pushed = place.tool(["push", job, "0", "text\n"]).finish();
            assert_eq!(pushed.code == 0, is_open, "{pushed:?}");
            tool.stdin().write_all(b"\n").unwrap();
            let (text, bytes) = (read_rest(&mut output), if is_open { "bytes 5 " } else { "bytes 0 " });
            assert!(text.contains(bytes), "{text}");
            assert_eq!(tool.wait(), 0);
        }
        gate.open();
        assert_eq!(run.finish().code, 0);
    });
}

static DAEMONS: LazyLock<Option<PathBuf>> = LazyLock::new(|| compile("daemons"));

#[test]
fn daemons_of_a_debugger_get_the_process_table_and_the_output_of_their_target() {
    for_each_place(|place| {
        let program = DAEMONS.as_deref().unwrap();
        for (key, daemons) in [("pmix.dbg.dpnd", 1), ("pmix.dbg.dpproc", 2)] {
            let mut gate = place.site.gate(key);
            let run = place.run(&["-n", "2"], &format!("echo early; : < {}; echo late", gate.path()));
            place.site.wait_for_ranks(2);
            let procs = place.site.procs().unwrap();
            let debugger = place.start(program, "demo", [key, "1"]);
            wait_for("the daemons", || {
                let streams = place.site.streams()?;
                let pulls =
                    streams.iter().filter(|stream| stream.0["nspace"] == "demo" && stream.is(1, "stdout"));
                (pulls.map(|stream| stream.readers("PMIx tool").len()).sum::<usize>() == daemons)
                    .then_some(())
            });
            gate.open();
            let done = debugger.finish();
            let mut expected = Vec::new();
            for daemon in 0..daemons {
                expected.push(format!("daemon {daemon} of demo"));
                for (rank, proc) in procs.iter().enumerate() {
                    expected.push(format!("proc {rank} {}", proc["pid"]));
                    expected.extend([format!("demo {rank}: early"), format!("demo {rank}: late")]);
                }
            }
            let mut found: Vec<String> = done.text().lines().map(str::to_owned).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!((found, done.code), (expected, 0), "{done:?}");
            assert_eq!(run.finish().code, 0);
        }
    });
}

#[test]
fn a_tool_learns_the_attributes_with_which_it_can_spawn_and_debug() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&[], &format!(": < {}", gate.path()));
        let answer = |key| place.tool(["query", key]).finish();
        let debug = "pmix.debugger,pmix.dbg.job,pmix.dbg.tgt,pmix.dbg.dpnd,pmix.dbg.dpproc";
        assert_eq!(lines(&answer("pmix.qry.debug")), ["attached", debug]);
        let spawn = answer("pmix.qry.spawn");
        let keys: Vec<&str> = lines(&spawn)[1].split(',').collect();
        for key in debug.split(',').chain(["pmix.wdir", "pmix.iof.csize", "pmix.fwd.stdout"]) {
            assert!(keys.contains(&key), "{key}: {spawn:?}");
        }
        assert!(!keys.contains(&"pmix.iof.inhrt"), "{spawn:?}");
        gate.open();
        assert_eq!(run.finish().code, 0);
    });
}

#[test]
fn a_tool_spawns_a_job_in_an_engine_that_has_none() {
    for_each_place(|place| {
        let mut command = place.site.iof("run");
        let engine =
            place.start_launcher(command.args(["--keep", "1h", "--mpi", "pmix", "--nspace", "demo"]));
        let mut tool = place.tool(["spawn", "2", "0", "pmix.fwd.stdout", "echo out; exit 3"]);
        drop(tool.stdin());
        let done = tool.finish();
        assert_eq!((done.code, done.text().matches("out\n").count()), (0, 2), "{done:?}");
        assert_eq!(done.text().lines().last(), Some("ended 3"), "{done:?}");
        engine.signal(Signal::SIGINT);
        assert_eq!(engine.finish().code, 0);
        place.assert_clean();
    });
}
