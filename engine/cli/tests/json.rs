//! Everything of `iof run` and `iof pull` in JSON comes on stdout, as objects that the published schema
//! describes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

use iof_testing::command::nodes::{agent_of, send, start};
use iof_testing::command::site::{Site, Stream};
use iof_testing::process::Process;
use iof_testing::wait_for;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::top::tells_silence;

/// The published schema.
fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/json-schema.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns whether a value has a type of JSON Schema.
fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    }
}

/// Returns whether a value is as `schema` specifies. Panics if that has a keyword that is not known here.
fn is_valid(value: &Value, schema: &Value, root: &Value) -> bool {
    schema.as_object().unwrap().iter().all(|(keyword, wanted)| match keyword.as_str() {
        "$schema" | "title" | "description" | "$defs" => true,
        "$ref" => {
            is_valid(value, root.pointer(wanted.as_str().unwrap().strip_prefix('#').unwrap()).unwrap(), root)
        }
        "oneOf" => wanted.as_array().unwrap().iter().filter(|one| is_valid(value, one, root)).count() == 1,
        "const" => value == wanted,
        "enum" => wanted.as_array().unwrap().contains(value),
        "minimum" => value.as_i64().is_none_or(|value| value >= wanted.as_i64().unwrap()),
        "type" => match wanted {
            Value::String(name) => is_of(value, name),
            names => names.as_array().unwrap().iter().any(|name| is_of(value, name.as_str().unwrap())),
        },
        "required" => {
            let has = |key: &Value| value.get(key.as_str().unwrap()).is_some();
            !value.is_object() || wanted.as_array().unwrap().iter().all(has)
        }
        "properties" => wanted
            .as_object()
            .unwrap()
            .iter()
            .all(|(key, schema)| value.get(key).is_none_or(|value| is_valid(value, schema, root))),
        "additionalProperties" => {
            let known = schema["properties"].as_object().unwrap();
            value.as_object().is_some_and(|object| object.keys().all(|key| known.contains_key(key)))
        }
        other => panic!("unknown keyword {other}"),
    })
}

/// Returns the objects that a command has written to stdout. Each must be as the schema
/// specifies. Stderr must be empty.
fn objects(process: Process, code: i32) -> Vec<Value> {
    let done = process.finish();
    assert_eq!((done.code, &*done.stderr), (code, ""), "{done:?}");
    let schema = schema();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let objects: Vec<Value> = done.text().lines().map(parse).collect();
    for object in &objects {
        assert!(is_valid(object, &schema, &schema), "{object}");
    }
    objects
}

fn of_type<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["type"] == kind).collect()
}

#[test]
fn everything_of_a_run_in_json_is_an_object_on_stdout_as_the_schema_describes_it() {
    let site = Site::new();
    let script = r"echo out $IOF_RANK; printf '\377\n' >&2; [ $IOF_RANK != 1 ] || exit 3; [ $IOF_RANK != 2 ] || { sleep 0.5; kill -9 $$; }";
    let options = ["-n", "3", "--nspace", "job", "--kill-on-bad-exit=0", "--summary", "--output"];
    let places = [
        &["json"][..],
        &["json,timestamp=ns"],
        &["json=batch"],
        &["json", "--rsh", "sh -c", "--hosts", "a:3"],
    ];
    for place in places {
        let objects = objects(site.run_sh(&[&options[..], place].concat(), script), 3);
        let kinds: BTreeSet<&str> = objects.iter().map(|object| object["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["end", "exit", "job_end", "message", "output", "rank_start"].into(), "{place:?}");
        let mut exits: Vec<_> = of_type(&objects, "exit")
            .iter()
            .map(|exit| (exit["rank"].as_u64(), exit["code"].clone(), exit["signal"].clone()))
            .collect();
        exits.sort_by_key(|(rank, ..)| *rank);
        let wanted = [(0, json!(0), json!(null)), (1, json!(3), json!(null)), (2, json!(null), json!(9))];
        assert_eq!(exits, wanted.map(|(rank, code, signal)| (Some(rank), code, signal)), "{place:?}");
        for exit in of_type(&objects, "exit") {
            let (cpu, peak) = (exit["cpu_seconds"].as_f64().unwrap(), exit["peak_bytes"].as_u64().unwrap());
            assert!(cpu > 0.0 && cpu < 60.0 && peak > 100_000, "{exit}");
        }
        let mut ends: Vec<_> = of_type(&objects, "end")
            .iter()
            .map(|end| {
                (
                    end["rank"].as_u64().unwrap(),
                    end["channel"].as_str().unwrap(),
                    end["offset"].as_u64().unwrap(),
                )
            })
            .collect();
        ends.sort_unstable();
        let wanted = (0..3).flat_map(|rank| {
            [("stddiag", 0), ("stderr", 2), ("stdout", 6)].map(|(channel, end)| (rank, channel, end))
        });
        assert_eq!(ends, wanted.collect::<Vec<_>>(), "{place:?}");
        assert_eq!(of_type(&objects, "rank_start").len(), 3);
        let [end] = of_type(&objects, "job_end")[..] else { panic!("{objects:?}") };
        assert_eq!((&end["code"], &end["complete"]), (&json!(3), &json!(true)));
    }
}

#[test]
fn with_files_in_json_stdout_has_the_objects_that_belong_to_no_stream() {
    let site = Site::new();
    let (directory, path) = (site.path().join("logs"), site.path().join("logs/all"));
    let list = format!("json,dir={}", directory.display());
    for options in [&["--output", &list][..], &["--output", "json", "-o", path.to_str().unwrap()]] {
        let objects = objects(site.run_sh(options, "echo one; exit 1"), 1);
        let kinds: Vec<&Value> = objects.iter().map(|object| &object["type"]).collect();
        assert_eq!(kinds, ["rank_start", "exit", "message", "job_end"], "{objects:?}");
    }
    let file = fs::read_to_string(&path).unwrap();
    let schema = schema();
    let parse = |line| serde_json::from_str::<Value>(line).unwrap();
    assert!(
        file.lines().count() == 4 && file.lines().all(|line| is_valid(&parse(line), &schema, &schema)),
        "{file}"
    );
}

#[test]
fn everything_of_a_pull_in_json_is_an_object_on_stdout_as_the_schema_describes_it() {
    let site = Site::new();
    let mut gate = site.gate("gate");
    let script = format!("seq 20000; : < {}; exit 3", gate.path());
    let mut run = site.run_sh(&["--nspace", "job", "--cache-size", "16K", "--output", "json"], &script);
    let (output, _) = run.collect();
    site.wait_for_ranks(1);
    site.wait_for_bytes(0, "stdout", 108_894);
    let pulls = ["json", "json=batch"].map(|word| site.pull(&["--output", word, "job"]));
    site.wait_for_pulls(0, "stdout", 2);
    gate.open();
    for pull in pulls {
        let objects = objects(pull, 0);
        let (outputs, gaps) = (of_type(&objects, "output"), of_type(&objects, "gap"));
        assert!(!outputs.is_empty() && outputs.iter().chain(&gaps).all(|object| object["token"].is_string()));
        assert!(gaps[0]["lost"].as_u64().unwrap() > 0 && !of_type(&objects, "message").is_empty());
        assert_eq!(of_type(&objects, "end").len(), 3);
        let end = objects.last().unwrap();
        assert_eq!(
            (&end["type"], &end["code"], &end["complete"]),
            (&json!("job_end"), &json!(3), &json!(true))
        );
    }
    assert_eq!(run.wait(), 3);
    drop(output);
}

#[test]
fn the_end_of_a_job_in_a_pull_comes_after_the_job_with_its_exit_code() {
    for nodes in [&[][..], &["--rsh", "sh -c", "--hosts", "a:1"]] {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let script =
            format!("exec > /dev/null 2>&1; eval \"exec $IOF_STDDIAG_FD>&-\"; : < {}; exit 3", gate.path());
        let run = site.run_sh(&[&["--nspace", "job"], nodes].concat(), &script);
        site.wait_for_ranks(1);
        let pulls = [&["job"][..], &["j*"]].map(|jobs| {
            let mut pull = site.pull(&[&["--output", "json"], jobs].concat());
            let mut lines = BufReader::new(pull.stdout()).lines();
            // The start of the rank, and the ends of its streams.
            lines.by_ref().take(4).for_each(|line| {
                let line = line.unwrap();
                assert!(
                    ["end", "rank_start"].iter().any(|kind| line.contains(&format!(r#""type":"{kind}""#)))
                );
            });
            (pull, lines)
        });
        gate.open();
        for (pull, lines) in pulls {
            let rest: Vec<Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
            assert_eq!(pull.wait(), 0);
            let [exit, end] = &rest[..] else { panic!("{rest:?}") };
            assert_eq!((&exit["type"], &exit["code"]), (&json!("exit"), &json!(3)), "{nodes:?}");
            let end = (&end["type"], &end["code"], &end["complete"]);
            assert_eq!(end, (&json!("job_end"), &json!(3), &json!(true)), "{nodes:?}");
        }
        assert_eq!(run.wait(), 3);
    }
}

#[test]
fn a_pull_in_json_has_the_start_and_the_end_of_each_rank_once() {
    let about = |objects: &[Value], kind: &str| -> Vec<(u64, Value, Value)> {
        let of = |object: &&Value| {
            (object["rank"].as_u64().unwrap(), object["code"].clone(), object["signal"].clone())
        };
        let mut found: Vec<_> = of_type(objects, kind).iter().map(of).collect();
        found.sort_by_key(|(rank, ..)| *rank);
        found
    };
    let exits = [(0, json!(0), json!(null)), (1, json!(3), json!(null)), (2, json!(null), json!(9))];
    for place in [&["--keep", "1h"][..], &["--rsh", "sh -c", "--hosts", "a:1,b:2"]] {
        let site = Site::new();
        let mut gate = site.gate("gate");
        let script = format!(
            "echo $IOF_RANK; [ $IOF_RANK != 1 ] || exit 3; : < {}; [ $IOF_RANK != 2 ] || kill -9 $$",
            gate.path()
        );
        let options = ["--nspace", "job", "-n", "3", "--kill-on-bad-exit=0", "--quiet"];
        let run = site.run_sh(&[&options[..], place].concat(), &script);
        site.wait_for_stream(1, "stdout", Stream::is_complete);
        // One rank has ended before, and the others end later.
        let pulls = [&["job"][..], &["j*"], &["--rank", "1,2", "job"]]
            .map(|args| site.pull(&[&["--output", "json"], args].concat()));
        site.wait_for_pulls(2, "stdout", 3);
        gate.open();
        for (pull, of_pull) in pulls.into_iter().zip([&exits[..], &exits, &exits[1..]]) {
            let objects = objects(pull, 0);
            assert_eq!(about(&objects, "exit"), of_pull, "{place:?}");
            let ranks = |kind| about(&objects, kind).into_iter().map(|(rank, ..)| rank).collect::<Vec<_>>();
            assert_eq!(ranks("rank_start"), ranks("exit"), "{place:?}");
            for object in of_type(&objects, "exit") {
                assert!(object["cpu_seconds"].is_number() && object["peak_bytes"].is_number(), "{object}");
            }
            let position = |kind, rank: u64| {
                objects.iter().position(|object| object["type"] == kind && object["rank"] == json!(rank))
            };
            assert!(position("rank_start", 2) < position("exit", 2), "{objects:?}");
        }
        if place.contains(&"--keep") {
            let file = format!("{}/out.%t", site.path().display());
            for part in [&["job"][..], &["--no-follow", "job"], &["-o", &file, "-e", "none", "job"]] {
                let objects = objects(site.pull(&[&["--output", "json"], part].concat()), 0);
                assert_eq!(about(&objects, "exit"), exits, "{part:?}");
                assert_eq!(of_type(&objects, "rank_start").len(), 3, "{part:?}");
            }
            run.signal(Signal::SIGINT);
        }
        assert_eq!(run.wait(), 3);
    }
}

#[test]
fn lines_of_20_bytes_in_reads_of_4_kib_cost_at_most_1_6_bytes_of_json_each() {
    let site = Site::new();
    let script = "i=0; while [ $i -lt 50 ]; do yes 'a line of 20 bytes.' | dd bs=4096 count=1 iflag=fullblock status=none; \
                  sleep 0.01; i=$((i + 1)); done";
    let cost = |word: &str| {
        let mut run = site.run_sh(&["--output", word], script);
        let (output, _) = run.collect();
        assert_eq!(run.wait(), 0);
        let text = String::from_utf8(output.get()).unwrap();
        let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let data: String =
            of_type(&objects, "output").iter().map(|object| object["data"].as_str().unwrap()).collect();
        assert_eq!(data.len(), 50 * 4096);
        text.len() as f64 / data.len() as f64
    };
    let (lines, batch) = (cost("json"), cost("json=batch"));
    println!("{lines:.2} bytes of JSON a byte in lines, {batch:.2} in batches");
    assert!(batch <= 1.6, "{batch}");
}

#[test]
fn each_row_of_top_in_json_is_as_the_schema_describes_it() {
    let site = Site::new();
    let script = "echo text; [ $IOF_RANK != 1 ] || exit 3; [ $IOF_RANK != 2 ] || kill -9 $$; exec sleep 1000";
    let run = site.run_sh(&["-n", "3", "--nspace", "job", "--kill-on-bad-exit=0"], script);
    (1..3).for_each(|rank| drop(site.wait_for_stream(rank, "stdout", Stream::is_complete)));
    let silent = site.run(&["--nspace", "silent"], ["cat"]);
    let ps = || Process::start(&mut site.iof("ps")).finish().text().contains("silent  running");
    wait_for("the second job", || ps().then_some(()));
    silent.stop();
    for args in [&[][..], &["--by-rank"]] {
        let options = ["--once", "--json", "--interval", "0.1"];
        let done = Process::start(site.iof("top").args(options).args(args)).finish();
        let rows: Vec<Value> = serde_json::from_str(done.text()).unwrap();
        assert_eq!((done.code, rows.len()), (1, if args.is_empty() { 10 } else { 4 }), "{done:?}");
        assert!(tells_silence(&done, silent.pid()), "{done:?}");
        let schema = schema();
        for row in rows {
            assert!(is_valid(&row, &schema["$defs"]["top"], &schema), "{row}");
        }
    }
    silent.signal(Signal::SIGKILL);
    run.signal(Signal::SIGTERM);
}

#[test]
fn a_job_with_broken_streams_is_not_complete_in_json() {
    let site = Site::new();
    let mut run = start(&site, "a,b", &["-n", "2", "--output", "json"], "echo $IOF_RANK; exec sleep 1000");
    let mut lines = BufReader::new(run.stdout()).lines().map(Result::unwrap);
    for _ in 0..2 {
        lines.find(|line| line.contains(r#""type":"output""#)).unwrap();
    }
    send(agent_of(&run, "b"), Signal::SIGKILL);
    let objects: Vec<Value> = lines.map(|line| serde_json::from_str(&line).unwrap()).collect();
    assert_eq!(run.wait(), 1);
    let broken = of_type(&objects, "end").iter().filter(|end| !end["missing"].is_null()).count();
    let [end] = of_type(&objects, "job_end")[..] else { panic!("{objects:?}") };
    assert_eq!((broken, &end["code"], &end["complete"]), (3, &json!(1), &json!(false)), "{objects:?}");
}
