#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use iof_proto::Channel;
use proptest::prelude::*;

use super::*;
use crate::format::choice::Choice;
use crate::format::style::StyleExtras;

const LIVE: Fold = Fold { whole: false, on_full: |_| {} };
const WHOLE: Fold = Fold { whole: true, ..LIVE };

/// A folder of some ranks' stdout, and what it has written.
struct Rig {
    folder: Folder,
    style: Style,
    open: OpenLine,
    written: String,
}

impl Rig {
    fn new(fold: Fold, limit: usize, ranks: u32) -> Rig {
        let mut folder = Folder::new(fold, limit);
        (0..ranks).for_each(|rank| folder.begin(rank.into(), &source(rank, Channel::Stdout)));
        let style = Style::new(&"rank".parse::<Choice>().unwrap(), &StyleExtras::default());
        Rig { folder, style, open: None, written: String::new() }
    }

    fn add(&mut self, key: u64, text: &str) {
        self.folder.add(key, &Run { bytes: text.as_bytes(), offset: 0, times: &[] });
    }

    /// Writes what is due after some quarters of the window.
    fn wait(&mut self, quarters: u32) {
        let time = FOLD_WINDOW * quarters / 4;
        self.folder.lines.iter_mut().for_each(|line| line.since = line.since.checked_sub(time).unwrap());
        self.release();
    }

    fn release(&mut self) {
        loop {
            let lines = self.folder.take_due();
            if lines.is_empty() {
                return;
            }
            let mut batch = Batch::default();
            lines.iter().for_each(|line| self.folder.write(line, &self.style, &mut self.open, &mut batch));
            self.written += std::str::from_utf8(&batch.to_vec()).unwrap();
        }
    }

    /// Returns what is written in all.
    fn finish(mut self) -> String {
        self.folder
            .streams
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|key| self.folder.end(key));
        self.folder.flush_all();
        self.release();
        self.written
    }
}

fn source(rank: u32, channel: Channel) -> LabelSource {
    let nspace = "job".parse().unwrap();
    LabelSource { nspace, rank: Rank(rank), channel, logged: false, host: None, pid: None }
}

#[test]
fn equal_lines_within_the_window_are_one_line_with_the_ranks() {
    let mut rig = Rig::new(LIVE, MAX_FOLDED, 5);
    assert_eq!(rig.folder.next_due(), None, "an idle folder waits for nothing");
    for rank in [3, 0, 1] {
        rig.add(rank, "begin\nstep 1\n");
    }
    rig.add(4, "other\n");
    assert!(rig.folder.next_due().is_some());
    rig.wait(2);
    assert_eq!(rig.written, "");
    rig.add(2, "begin\n");
    rig.wait(2);
    assert_eq!(rig.written, "[0-3]<stdout>: begin\n[0-1,3]<stdout>: step 1\n[4]<stdout>: other\n");
    rig.add(2, "step 1\n");
    rig.wait(4);
    assert!(rig.written.ends_with("other\n[2]<stdout>: step 1\n"));
    assert_eq!((rig.folder.next_due(), rig.folder.held), (None, 0));
}

#[test]
fn lines_of_a_rank_keep_their_order_and_repeated_ones_their_number() {
    let mut rig = Rig::new(LIVE, MAX_FOLDED, 3);
    rig.add(0, "a\nb\na\na\n");
    rig.add(1, "b\na\nb\n");
    rig.add(2, "a\na\na\n");
    let expected = "[0,2]<stdout>: a\n[0-1]<stdout>: b\n[0-2]<stdout>: a\n[0,2]<stdout>: a\n[1]<stdout>: b\n";
    assert_eq!(rig.finish(), expected);
}

#[test]
fn channels_jobs_and_messages_for_the_whole_job_are_not_folded_with_others() {
    let mut rig = Rig::new(LIVE, MAX_FOLDED, 2);
    rig.folder.begin(10, &source(1, Channel::Stderr));
    rig.folder.begin(11, &LabelSource { nspace: "other".parse().unwrap(), ..source(0, Channel::Stdout) });
    rig.folder.begin(12, &source(Rank::UNDEF.0, Channel::Stdout));
    for key in [0, 10, 11, 12, 1] {
        rig.add(key, "x\n");
    }
    let expected = "[0-1]<stdout>: x\n[1]<stderr>: x\n[0]<stdout>: x\n[-]<stdout>: x\n";
    assert_eq!(rig.finish(), expected);
}

#[test]
fn what_precedes_a_gap_is_written_and_a_cut_line_gets_a_newline() {
    let mut rig = Rig::new(LIVE, MAX_FOLDED, 3);
    (0..2).for_each(|rank| rig.add(rank, "a\ncut"));
    rig.add(2, "later\n");
    rig.folder.flush(1);
    rig.release();
    assert_eq!(rig.written, "[0-1]<stdout>: a\n[0-1]<stdout>: cut\n");
    rig.add(1, "behind\n");
    assert!(rig.finish().ends_with("cut\n[2]<stdout>: later\n[1]<stdout>: behind\n"));
}

#[test]
fn whole_outputs_that_are_equal_are_one_block() {
    let mut rig = Rig::new(WHOLE, MAX_FOLDED, 6);
    for text in ["one\n", "two\n"] {
        [5, 4, 2, 0].iter().for_each(|rank| rig.add(*rank, text));
    }
    rig.add(2, "three");
    rig.add(1, "one\ntwo\n");
    assert_eq!(rig.folder.next_due(), None);
    rig.wait(100);
    assert_eq!(rig.written, "", "whole outputs wait without limit");
    rig.folder.flush(5);
    rig.release();
    let rule = "---------------\n";
    let block = |list, count, text| format!("{rule}[{list}]<stdout>: ({count})\n{rule}{text}");
    assert_eq!(rig.written, block("5", 1, "one\ntwo\n"), "before its gap");
    rig.add(5, "behind\n");
    let expected = [
        block("5", 1, "one\ntwo\n"),
        block("0-1,4", 3, "one\ntwo\n"),
        block("2", 1, "one\ntwo\nthree\n"),
        block("5", 1, "behind\n"),
    ];
    assert_eq!(rig.finish(), expected.concat());
}

#[test]
fn beyond_the_limit_the_oldest_lines_are_written_and_whole_outputs_line_by_line() {
    let line = "x".repeat(99) + "\n";
    let cost = line.len() + LINE_COST + RANK_COST;
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let fold = Fold { on_full: |_| _ = TOLD.fetch_add(1, Relaxed), ..LIVE };
    let mut rig = Rig::new(fold, 3 * cost, 2);
    for number in 0..3 {
        rig.add(0, &format!("{number}{}", &line[1..]));
    }
    rig.release();
    assert_eq!((&*rig.written, TOLD.load(Relaxed)), ("", 0));
    rig.add(1, &line);
    rig.release();
    assert!(rig.written.starts_with("[0]<stdout>: 0x") && rig.written.lines().count() == 1);
    assert!(rig.folder.held <= rig.folder.limit && TOLD.load(Relaxed) == 1);

    let mut rig = Rig::new(WHOLE, 1000, 3);
    [0, 1].iter().for_each(|rank| rig.add(*rank, "one\ntwo\n"));
    rig.add(2, "one\n");
    rig.release();
    assert_eq!(rig.written, "");
    rig.add(2, &"y\n".repeat(1000));
    rig.release();
    let expected = "[0-1]<stdout>: one\n[0-1]<stdout>: two\n[2]<stdout>: one\n[2]<stdout>: y\n";
    assert!(rig.written.starts_with(expected) && rig.folder.held == 0);
    // From now on, lines are folded.
    (0..2).for_each(|rank| rig.add(rank, "end\n"));
    let written = rig.finish();
    assert!(written.ends_with("[2]<stdout>: y\n[0-1]<stdout>: end\n") && written.lines().count() == 1004);
}

#[derive(Clone, Debug)]
enum Step {
    Add(u64, String),
    Wait(u32),
    Flush(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let text = proptest::collection::vec(
        prop_oneof![Just("a\n"), Just("b\n"), Just("e\n"), Just("cc"), Just("d\n")],
        1..5,
    );
    let step = prop_oneof![
        8 => (0u64..5, text).prop_map(|(key, text)| Step::Add(key, text.concat())),
        2 => (0u32..4).prop_map(Step::Wait),
        1 => (0u64..5).prop_map(Step::Flush),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn the_output_of_each_rank_is_had_back_from_what_is_written(steps in steps(), limit in 300usize..3000) {
        let mut rig = Rig::new(LIVE, limit, 5);
        let mut inputs: BTreeMap<u64, String> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(key, text) => {
                    rig.add(key, &text);
                    inputs.entry(key).or_default().push_str(&text);
                }
                Step::Wait(quarters) => rig.wait(quarters),
                Step::Flush(key) => rig.folder.flush(key),
            }
            rig.release();
            prop_assert!(rig.folder.held <= limit);
        }
        let mut outputs: BTreeMap<u64, String> = BTreeMap::new();
        for line in rig.finish().lines() {
            let (ranks, text) = line.strip_prefix('[').unwrap().split_once("]<stdout>: ").unwrap();
            for range in ranks.split(',') {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                for rank in first.parse::<u64>().unwrap()..=last.parse().unwrap() {
                    outputs.entry(rank).or_default().push_str(text);
                }
            }
        }
        // A part of a line gets a newline.
        for (key, input) in inputs {
            prop_assert_eq!(outputs.remove(&key).unwrap_or_default(), input.replace('\n', ""));
        }
    }
}
