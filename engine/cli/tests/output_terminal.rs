//! Output at a terminal: colours, prompts, progress bars.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use iof_testing::command::site::Site;
use iof_testing::command::terminal::Terminal;

#[test]
fn at_a_terminal_the_tags_of_each_rank_have_a_colour() {
    let site = Site::new();
    let args = ["-n", "2", "--output", "rank", "--", "sh", "-c", "echo out; echo err >&2"];
    let (terminal, run) = site.run_at_terminal(args);
    assert_eq!(run.wait(), 0);
    for (rank, colour) in [(0, 36), (1, 33)] {
        for (channel, text) in [("stdout", "out"), ("stderr", "err")] {
            terminal.wait_for(&format!("\x1b[{colour}m[{rank}]<{channel}>: \x1b[0m{text}\r\n"), 1);
        }
    }
}

#[test]
fn there_are_no_colours_without_tags_or_with_no_color_or_on_a_dumb_terminal() {
    for (variable, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let site = Site::new();
        let mut iof = site.iof("run");
        iof.env(variable, value).args(["--output", "rank", "--", "echo", "out"]);
        let (terminal, run) = Terminal::start(&mut iof, 24, 80);
        assert_eq!(run.wait(), 0);
        terminal.wait_for("[0]<stdout>: out\r\n", 1);
        assert!(!terminal.shown().contains('\x1b'), "{variable}: {:?}", terminal.shown());
    }
    let site = Site::new();
    let (terminal, run) = site.run_at_terminal(["--", "echo", "out"]);
    assert_eq!(run.wait(), 0);
    terminal.wait_for("out\r\n", 1);
    assert!(!terminal.shown().contains('\x1b'), "{:?}", terminal.shown());
    let done = site.run(&["--output", "rank"], ["echo", "out"]).finish();
    assert_eq!(done.text(), "[0]<stdout>: out\n", "a pipe is not a terminal");
}

#[test]
fn a_progress_bar_moves_without_a_newline() {
    for options in [&["-n", "2"][..], &["-n", "2", "--output", "rank"]] {
        let site = Site::new();
        let mut gates = ["first", "second", "third"].map(|name| site.gate(name));
        let steps: String = (1..)
            .zip(&gates)
            .map(|(step, gate)| format!("printf '{step}0%%\\r'; : < {}; ", gate.path()))
            .collect();
        let script = format!("[ $IOF_RANK = 1 ] || {{ {steps} echo done; }}");
        let (terminal, run) = site.run_at_terminal([options, &["--", "sh", "-c", &script]].concat());
        for (step, gate) in ["10%\r", "20%\r", "30%\r"].into_iter().zip(&mut gates) {
            terminal.wait_for(step, 1);
            gate.open();
        }
        assert_eq!(run.wait(), 0);
        terminal.wait_for("10%\r20%\r30%\rdone\r\n", 1);
        let tags = terminal.shown().matches("<stdout>: ").count();
        assert_eq!(tags, usize::from(options.len() > 2), "one tag for one line: {:?}", terminal.shown());
    }
}

#[test]
fn keys_typed_at_the_terminal_of_a_rank_are_echoed_before_the_newline() {
    let site = Site::new();
    let script = "[ $IOF_RANK = 1 ] && exec sleep 1000; printf '$ '; read line; echo \"got $line\"; kill 0";
    // With this time, an echo that waits for the end of the line would be too late.
    let args = ["-n", "2", "--pty", "0", "--max-line-time", "0.2", "--", "sh", "-c", script];
    let (terminal, _run) = site.run_at_terminal(args);
    terminal.wait_for("$ ", 1);
    for key in ["o", "n", "e"] {
        terminal.type_keys(key);
    }
    terminal.wait_for("$ one", 1);
    terminal.type_keys("\r");
    terminal.wait_for("got one", 1);
}
