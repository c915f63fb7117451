//! The values that functions of PMIx return to ranks and to tools: never a success without an
//! effect, and never nothing. libpmix itself reports success for some upcalls that a host does not
//! have, and leaves members of a group without an answer.

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::{Place, compile, for_each_place};
use iof_testing::process::{Done, Process};

/// The statuses of PMIx.
const SUCCESS: i32 = 0;
const NOT_FOUND: i32 = -46;
const NOT_SUPPORTED: i32 = -47;

static CALLS: LazyLock<Option<PathBuf>> = LazyLock::new(|| compile("calls"));

/// Functions that are refused to ranks and to tools.
const REFUSED: [&str; 3] = ["allocate", "credential", "validate"];

/// Spawns with what is refused to ranks and to tools.
const SPAWNS_REFUSED: [&str; 8] = [
    "spawn-elsewhere",
    "spawn-unknown",
    "spawn-stopped",
    "spawn-stopped-on-exec",
    "spawn-by-node",
    "spawn-inheriting",
    "spawn-without-variable",
    "spawn-timed",
];

/// Spawns with invalid values.
const SPAWNS_INVALID: [&str; 6] = [
    "spawn-in-number",
    "spawn-named-by-number",
    "spawn-cached-by-text",
    "spawn-below-zero",
    "spawn-changed-by-text",
    "spawn-negative-ranks",
];

fn calls() -> &'static Path {
    CALLS.as_deref().unwrap()
}

/// Returns the lines of functions with a status.
fn with<'a>(status: i32, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(|name| format!("{name} {status}")).collect()
}

/// Starts a tool that calls the functions of these lines.
fn tool(place: &Place, lines: &[String]) -> Process {
    place.start(calls(), "demo", names(lines))
}

fn names(lines: &[String]) -> impl Iterator<Item = &str> {
    lines.iter().map(|line| line.split(' ').next().unwrap())
}

/// Runs ranks that call the functions of these lines.
fn ranks(place: &Place, count: usize, lines: &[String]) -> Done {
    let mut command = place.site.iof("run");
    command.args(["--mpi", "pmix", "--nspace", "demo", "-n", &count.to_string(), "--"]);
    command.arg(calls()).arg("rank").args(names(lines));
    command.env("TMPDIR", place.site.path()).env_remove("IOF_LIBPMIX");
    command.envs(place.server.iter().map(|library| ("IOF_LIBPMIX", library)));
    let tools = place.tools.iter().map(|library| ("LD_LIBRARY_PATH", library.parent().unwrap()));
    Process::start(command.envs(tools)).finish()
}

/// Returns whether the server of ranks is of version 5. It is that of the ranks unless it is named.
fn has_new_server(place: &Place) -> bool {
    place.server.is_some() || place.tools.is_some()
}

/// Checks that each of the ranks has written these lines, and nothing else.
fn check(done: &Done, count: usize, expected: &[String]) {
    assert_eq!(done.code, 0, "{done:?}");
    let mut lines: Vec<&str> = done.text().lines().collect();
    lines.sort_unstable();
    let mut all: Vec<&str> = iter::repeat_n(expected, count).flatten().map(String::as_str).collect();
    all.sort_unstable();
    assert_eq!(lines, all, "{done:?}");
}

#[test]
fn ranks_publish_values_for_others_that_wait_for_them() {
    for_each_place(|place| {
        let mut expected = with(SUCCESS, ["publish-own", "lookup-own", "lookup-partly", "unpublish-own"]);
        // `PMIX_ERR_DUPLICATE_KEY`, and `PMIX_ERR_TIMEOUT` of a lookup that waits in vain.
        expected.insert(1, "publish-twice -53".into());
        expected.extend(with(NOT_FOUND, ["unpublish-none"]));
        expected.extend(with(-24, ["lookup-late"]));
        expected.extend(with(SUCCESS, ["exchange"]));
        check(&ranks(place, 3, &expected), 3, &expected);
    });
}

#[test]
fn ranks_that_publish_endlessly_or_log_too_much_are_refused_and_can_still_log() {
    for_each_place(|place| {
        // `PMIX_ERR_OUT_OF_RESOURCE`
        let mut expected = with(-29, ["publish-endlessly", "log-huge"]);
        expected.extend(with(SUCCESS, ["exchange", "log-stderr"]));
        let done = ranks(place, 2, &expected);
        check(&done, 2, &expected);
        for limit in ["MAX_PUBLISHED_BYTES_PER_JOB", "MAX_LOG_TEXT"] {
            assert!(done.stderr.contains(limit), "{limit}: {done:?}");
        }
        assert_eq!(done.stderr.matches("text").count(), 2, "{done:?}");
    });
}

#[test]
fn ranks_construct_and_destruct_groups_that_have_numbers_and_names() {
    for_each_place(|place| {
        let calls = with(SUCCESS, ["grouped", "grouped-again", "grouped", "group-context", "log-stderr"]);
        let done = ranks(place, 3, &calls);
        assert_eq!(done.stderr.lines().filter(|line| *line == "text").count(), 3, "{done:?}");
        // libpmix 4 and 5 have groups of their own each. With both, every call returns.
        if place.server.is_some() == place.tools.is_some() {
            let contexts = (1..4).map(|number| format!("context {number}"));
            check(&done, 3, &contexts.chain(calls).collect::<Vec<_>>());
        } else {
            let calls = done.text().lines().filter(|line| line.starts_with("group"));
            assert_eq!((calls.count(), done.code), (3 * 4, 0), "{done:?}");
        }
    });
}

#[test]
fn a_group_with_a_stranger_or_a_required_directive_that_iof_does_not_carry_out_is_refused() {
    for_each_place(|place| {
        let mut calls = with(NOT_SUPPORTED, ["group-notified", "group-unknown"]);
        calls.extend(with(NOT_FOUND, ["group-with-stranger", "group-with-missing-rank"]));
        calls.extend(with(SUCCESS, ["log-stderr"]));
        if place.server.is_some() == place.tools.is_some() {
            check(&ranks(place, 3, &calls), 3, &calls);
        }
    });
}

#[test]
fn a_rank_that_connects_to_a_process_that_does_not_exist_is_refused() {
    for_each_place(|place| {
        let mut calls = with(NOT_FOUND, ["connect-to-stranger", "connect-to-missing-rank"]);
        calls.extend(with(SUCCESS, ["connect", "disconnect"]));
        check(&ranks(place, 3, &calls), 3, &calls);
    });
}

#[test]
fn groups_without_end_are_refused_and_those_that_never_complete_stop_no_other_rank() {
    for_each_place(|place| {
        // libpmix 4 and 5 have groups of their own each, and 4.2.2 is too slow for so many.
        let mut calls = with(SUCCESS, ["group-alone"]);
        let has_many = place.server.is_some() && place.tools.is_some();
        if has_many {
            // `PMIX_ERR_OUT_OF_RESOURCE`
            calls.extend(with(-29, ["group-endlessly"]));
        }
        calls.extend(with(SUCCESS, ["exchange", "log-stderr"]));
        let done = ranks(place, 2, &calls);
        check(&done, 2, &calls);
        assert_eq!(done.stderr.contains("MAX_GROUPS_PER_JOB"), has_many, "{done:?}");
        assert_eq!(done.stderr.matches("text").count(), 2, "{done:?}");
    });
}

#[test]
fn a_rank_spawns_a_job_that_connects_to_it_or_learns_why_not() {
    for_each_place(|place| {
        // `PMIX_ERR_JOB_FAILED_TO_LAUNCH`
        let mut expected = with(-181, ["spawn-missing", "spawn-no-ranks"]);
        expected.extend(with(NOT_SUPPORTED, SPAWNS_REFUSED));
        expected.extend(with(SUCCESS, ["spawn-child", "spawn-with-variables"]));
        let done = ranks(place, 1, &expected);
        expected.extend(with(SUCCESS, ["parent", "parent"]));
        expected.push("red:blue:green dark-er on first:/".into());
        check(&done, 1, &expected);
        let keys = ["vendor.colour", "pmix.dbg.init", "pmix.dbg.exec", "pmix.ppr", "PMIX_IOF_INHERIT"];
        let keys = keys.map(|key| format!("{key} is not supported here: leave it out"));
        let others = [
            "invalid number of ranks 0: expected 1 to",
            "program '/missing' not found",
            "ranks on the engine's node only",
            "pmix.envar.unset is not supported here: leave it out",
            "pmix.timeout is not supported here: leave it out",
        ];
        for reason in keys.iter().map(String::as_str).chain(others) {
            assert_eq!(done.stderr.matches(reason).count(), 1, "{reason}: {done:?}");
        }
    });
}

#[test]
fn a_spawn_with_an_invalid_value_has_a_line_that_names_it_and_what_it_needs() {
    for_each_place(|place| {
        // `PMIX_ERR_BAD_PARAM`
        let expected = with(-27, SPAWNS_INVALID);
        let done = ranks(place, 1, &expected);
        check(&done, 1, &expected);
        let invalid =
            |key, needed| format!("invalid value for attribute \"{key}\": expected a {needed}, found ");
        for reason in [
            &invalid("pmix.wdir", "text"),
            &invalid("pmix.nspace", "text"),
            &invalid("pmix.iof.csize", "number from 1 to 4294967295"),
            "PMIX_JOB_TIMEOUT needs a number from 0 to 2147483647",
            "pmix.envar.set needs a PMIX_ENVAR with the name of a variable and a value",
            "maxprocs of \"true\" is -1: give at least 1",
        ] {
            assert_eq!(done.stderr.matches(reason).count(), 1, "{reason}: {done:?}");
        }
    });
}

#[test]
fn refusals_of_spawns_have_ten_lines() {
    for_each_place(|place| {
        let expected = with(NOT_SUPPORTED, iter::repeat_n("spawn-unknown", 12));
        let done = ranks(place, 1, &expected);
        check(&done, 1, &expected);
        assert_eq!(done.stderr.matches("vendor.colour is not supported here").count(), 10, "{done:?}");
    });
}

#[test]
fn a_rank_signals_and_terminates_its_own_job_and_no_other() {
    for_each_place(|place| {
        let mut expected = with(SUCCESS, ["signal-own"]);
        // `PMIX_ERR_NO_PERMISSIONS`
        expected.extend(with(-23, ["terminate-none"]));
        check(&ranks(place, 3, &expected), 3, &expected);
        let done = ranks(place, 3, &with(SUCCESS, ["fence", "terminate"]));
        assert_eq!(done.code, 128 + 15, "{done:?}");
    });
}

#[test]
fn ranks_get_the_keys_that_launchers_have_for_all() {
    for_each_place(|place| {
        let mut expected = with(SUCCESS, ["get-local-procs", "get-mapby", "get-bindto", "get-reincarnation"]);
        // A server of version 4 takes no data of ranks once their job is known.
        expected.extend(with(if has_new_server(place) { SUCCESS } else { NOT_FOUND }, ["get-pids"]));
        check(&ranks(place, 16, &expected), 16, &expected);
    });
}

#[test]
fn an_event_of_a_rank_reaches_the_ranks_of_its_range() {
    for_each_place(|place| {
        let expected = with(SUCCESS, ["notify-job", "notify-local", "notify-global", "notify-custom"]);
        check(&ranks(place, 3, &expected), 3, &expected);
    });
}

#[test]
fn functions_that_ranks_do_not_have_are_refused_to_each_of_them() {
    for_each_place(|place| {
        let mut expected = with(NOT_SUPPORTED, REFUSED.into_iter().chain(["checkpoint"]));
        // A value that no channel takes (`PMIX_ERR_BAD_PARAM`).
        expected.extend(with(-27, ["log-number"]));
        // `PMIX_ERR_OPERATION_FAILED` of iof.
        expected.extend(with(-3331, ["log-unknown"]));
        expected.extend(with(SUCCESS, ["connect", "disconnect", "fence", "get"]));
        check(&ranks(place, 3, &expected), 3, &expected);
    });
}

#[test]
fn ranks_log_and_query_as_tools_do() {
    for_each_place(|place| {
        let expected =
            with(SUCCESS, ["log-stdout", "log-stderr", "log-once", "log-tagged", "query", "query-own"]);
        let done = ranks(place, 2, &expected);
        assert_eq!(done.code, 0, "{done:?}");
        let lines = |text: &str, wanted: &str| text.lines().filter(|line| *line == wanted).count();
        let (stdout, stderr) = (done.text(), done.stderr.as_str());
        expected.iter().for_each(|line| assert_eq!(lines(stdout, line), 2, "{line}: {done:?}"));
        assert_eq!((lines(stdout, "text"), lines(stderr, "text")), (2, 2), "{done:?}");
        assert_eq!((lines(stdout, "once"), lines(stderr, "once")), (2, 0), "{done:?}");
        for rank in 0..2 {
            let tag = |channel| format!("[demo,{rank}]<{channel}>: tagged");
            assert_eq!((lines(stdout, &tag("stdout")), lines(stderr, &tag("stderr"))), (1, 1), "{done:?}");
        }
    });
}

#[test]
fn functions_that_tools_do_not_have_are_refused() {
    for_each_place(|place| {
        let mut gate = place.site.gate("gate");
        let run = place.run(&["-n", "2"], &format!(": < {}", gate.path()));
        // A fence of ranks, which the tool is not one of, and what libpmix itself would accept.
        let own = [
            "publish",
            "lookup",
            "unpublish",
            "group",
            "group-context",
            "connect",
            "disconnect",
            "monitor",
            "fence",
            "cleanup",
            "notify-refused",
            "event-node",
        ];
        let mut expected = with(NOT_SUPPORTED, REFUSED.into_iter().chain(own).chain(["checkpoint"]));
        expected
            .extend(with(SUCCESS, ["query", "query-signed", "log-stderr", "fence-own", "get", "event-job"]));
        // A value that no channel takes (`PMIX_ERR_BAD_PARAM`).
        expected.extend(with(-27, ["log-number"]));
        // About a job that does not exist. Its name in a request must not let the next one wait.
        expected.extend(with(NOT_FOUND, ["terminate-none", "get-none"]));
        let done = tool(place, &expected).finish();
        assert_eq!(done.text().lines().collect::<Vec<_>>(), expected, "{done:?}");
        assert_eq!(done.code, 0, "{done:?}");
        gate.open();
        assert_eq!(run.finish().code, 0);
    });
}

#[test]
fn a_tool_spawns_a_job_or_learns_why_not() {
    for_each_place(|place| {
        let (mut gate, mut other) = (place.site.gate("gate"), place.site.gate("other"));
        let run = place.run(&[], &format!(": < {}", gate.path()));
        // `PMIX_ERR_JOB_FAILED_TO_LAUNCH`
        let mut expected = vec!["spawn-missing -181".to_owned()];
        expected.extend(with(NOT_SUPPORTED, SPAWNS_REFUSED));
        expected.extend(with(-27, SPAWNS_INVALID));
        expected.extend(with(NOT_FOUND, ["spawn-daemons-of-none"]));
        let started = ["spawn", "spawn-with-variables", "spawn-daemons", "get", "fence-own"];
        expected.extend(with(SUCCESS, started));
        let done = tool(place, &expected).finish();
        assert_eq!(
            (done.text().lines().collect::<Vec<_>>(), done.code),
            (expected.iter().map(String::as_str).collect(), 0),
            "{done:?}"
        );
        gate.open();
        assert_eq!(run.finish().code, 0);
        let run = place.run(&["--spawn", "none"], &format!(": < {}", other.path()));
        // `PMIX_ERR_NO_PERMISSIONS`
        assert_eq!(tool(place, &with(-23, ["spawn"])).finish().text(), "spawn -23\n");
        other.open();
        assert_eq!(run.finish().code, 0);
    });
}

#[test]
fn a_tool_signals_the_processes_of_a_job_and_terminates_them() {
    for_each_place(|place| {
        let script = "trap 'echo signal' USR1; trap 'exit 9' TERM; echo; while :; do sleep 0.1; done";
        let run = place.run(&["-n", "2"], script);
        for (name, bytes) in [("signal", 1), ("terminate", "\nsignal\n".len())] {
            for rank in 0..2 {
                place.site.wait_for_bytes(rank, "stdout", bytes as u64);
            }
            let done = tool(place, &with(SUCCESS, [name])).finish();
            assert_eq!(done.text(), format!("{name} 0\n"), "{done:?}");
        }
        assert_eq!(run.finish().code, 9);
    });
}

#[test]
fn a_tool_that_aborts_a_job_ends_it() {
    for_each_place(|place| {
        let run = place.run(&["-n", "2"], "trap '' TERM; echo; while :; do sleep 0.1; done");
        for rank in 0..2 {
            place.site.wait_for_bytes(rank, "stdout", 1);
        }
        let done = tool(place, &with(SUCCESS, ["abort"])).finish();
        assert_eq!(done.text(), "abort 0\n", "{done:?}");
        assert_eq!(run.finish().code, 128 + 9);
    });
}
