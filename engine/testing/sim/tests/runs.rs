//! Short runs of the simulator, and the seeds that have found defects.
#![allow(clippy::panic, reason = "a test may panic")]

use iof_sim::{AgentsReport, Counts, NodeSet, Outcome, Subject, Summary, run, run_agents};

/// Runs a seed. Panics if a check fails.
fn pass(subject: Subject, seed: u64, steps: usize) -> Outcome {
    run(subject, seed, steps).unwrap_or_else(|failure| panic!("{failure}"))
}

/// The events of the runs.
const COVERED: &[(&str, &str)] = &[
    ("capture", "ended"),
    ("capture", "kept"),
    ("end of a job", "merged"),
    ("end of a job", "single"),
    ("exchange", "done"),
    ("exchange", "found"),
    ("exchange", "group"),
    ("exchange", "numbered group"),
    ("exchange", "refused"),
    ("exchange", "timed out"),
    ("log", "done"),
    ("log", "failed"),
    ("parent", "ended"),
    ("parent", "failed"),
    ("pull", "denied"),
    ("pull", "granted"),
    ("push", "begun"),
    ("push", "complete"),
    ("push", "partial"),
    ("push", "refused"),
    ("query", "answered"),
    ("query", "refused"),
    ("reached", "answers_waiting"),
    ("reached", "bytes_waiting"),
    ("reached", "deferred_bytes"),
    ("reached", "forgotten"),
    ("reached", "forgotten_per_tool"),
    ("reached", "MAX_LOGS"),
    ("reached", "MAX_LOGS_PER_PROCESS"),
    ("reached", "MAX_PROCS_PER_PROCESS"),
    ("reached", "MAX_PROCS_PER_TOOL"),
    ("reached", "MAX_PROCS_PER_USER"),
    ("reached", "MAX_PUSH_BYTES"),
    ("reached", "MAX_PUSH_BYTES_PER_PROCESS"),
    ("reached", "MAX_PUSHES"),
    ("reached", "MAX_PUSHES_PER_PROCESS"),
    ("reached", "pushes_per_target"),
    ("reached", "MAX_PUSHES_PER_TOOL"),
    ("reached", "readers_per_tool"),
    ("reached", "MAX_REGISTRATIONS_PER_TOOL"),
    ("reached", "shed"),
    ("reached", "MAX_LOGS_PER_TOOL"),
    ("reached", "MAX_QUERIES_PER_TOOL"),
    ("reached", "MAX_ENDED_SPAWNED_JOBS"),
    ("refused", "MAX_AWAITED_KEYS_PER_JOB"),
    ("refused", "MAX_AWAITED_KEYS_PER_TOOL"),
    ("refused", "MAX_AWAITED_KEYS_PER_USER"),
    ("refused", "MAX_GROUPS_PER_JOB"),
    ("refused", "MAX_GROUPS_PER_USER"),
    ("refused", "MAX_LOG_BYTES"),
    ("refused", "MAX_OWED_BYTES_PER_USER"),
    ("refused", "MAX_PUBLISHED_BYTES_PER_JOB"),
    ("refused", "MAX_PUBLISHED_BYTES_PER_USER"),
    ("refused", "MAX_PUBLISHED_PER_JOB"),
    ("refused", "MAX_PUBLISHED_PER_USER"),
    ("refused", "MAX_SPAWNED_JOBS"),
    ("reached", "MAX_SPAWNED_JOBS_PER_JOB"),
    ("refused", "MAX_SPAWNED_RANKS"),
    ("reached", "MAX_SPAWNED_RANKS_PER_JOB"),
    ("signal", "refused"),
    ("signal", "sent"),
    ("slow targets", "reported"),
    ("spawn", "answered"),
    ("spawn", "failed"),
    ("spawn", "refused"),
    ("spawn", "removed"),
    ("spawn", "started"),
    ("spawn of a rank", "answered"),
    ("spawn of a rank", "refused"),
    ("spawner left", "claimed"),
    ("spawner left", "unclaimed"),
    ("streams", "missed"),
];

#[test]
fn random_runs_with_faults_pass_all_checks() {
    let mut all = Counts::default();
    const RUNS: [(Subject, u64); 5] = [
        (Subject::Streams, 60),
        (Subject::Engine, 60),
        (Subject::Embedder, 90),
        (Subject::Host, 60),
        (Subject::Clients, 120),
    ];
    for (subject, runs) in RUNS {
        let mut sum = Summary::default();
        for seed in 0..runs {
            let (summary, counts, _) = pass(subject, seed, 1000);
            sum += summary;
            all += counts;
        }
        // Otherwise the runs would check nothing.
        let Summary { delivered, lost, follows, ends } = sum;
        assert!(delivered > 100_000 && lost > 10_000 && follows > 10 && ends > 50, "{subject:?}: {sum:?}");
    }
    let missing: Vec<_> = COVERED.iter().filter(|(kind, name)| all.of(kind, name) == 0).collect();
    assert!(missing.is_empty(), "{missing:?} have not happened: {all}");
}

#[test]
fn a_seed_replays_exactly() {
    for subject in [Subject::Streams, Subject::Engine, Subject::Embedder, Subject::Host, Subject::Clients] {
        for seed in 100..105 {
            assert_eq!(pass(subject, seed, 500), pass(subject, seed, 500));
        }
    }
}

#[test]
fn nodes_whose_carriers_are_replaced_lose_no_byte() {
    let (nodes, ranks, bytes, faults, lines) = (6, 2, 1 << 19, 20, 5);
    let set = NodeSet { nodes, ranks, bytes, faults, lines, is_linked: true };
    let reports = (0..24).map(|seed| run_agents(seed, Some(set)));
    let sum = |sum: (u64, u64, u64), run: AgentsReport| {
        (sum.0 + run.replaced, sum.1 + run.pushes, sum.2 + run.fences)
    };
    let (replaced, pushes, fences) = reports.fold((0, 0, 0), sum);
    // Otherwise the runs would check nothing.
    assert!(
        replaced > 20 && pushes > 20 && fences > 50,
        "{replaced} carriers replaced, {pushes} pushes, {fences} fences"
    );
}

#[test]
fn the_silence_of_a_node_is_reported_once_and_ends_it_at_the_limit() {
    let silences: u64 = (200..400).map(|seed| run_agents(seed, None).silences).sum();
    // Otherwise the runs would check nothing.
    assert!(silences > 2, "{silences} silences");
}

/// Each seed with the number of its steps, and the defect that it shows without the mend.
const FOUND: &[(Subject, u64, usize, &str)] = &[
    (
        Subject::Streams,
        3,
        2000,
        "a delivery told times of bytes that it did not contain, while its registration ended",
    ),
    (
        Subject::Engine,
        5277,
        2000,
        "a stream that the capture had not taken before it ended was reported as missed after the end of its job",
    ),
    (
        Subject::Engine,
        52,
        2000,
        "a reader whose job was removed while the capture ended missed its last generation",
    ),
    (
        Subject::Embedder,
        2024,
        2000,
        "a callback of a delivery was dropped with a job that was removed while the capture ended",
    ),
    (Subject::Engine, 1_170_001_095, 2000, "the simulator served a tool that it had forgotten"),
    (
        Subject::Engine,
        27_801_763,
        2000,
        "a stream that was missed while the capture ended was reported before the pull was answered",
    ),
    (Subject::Engine, 160, 2000, "a job without ranks that had logged messages ended with an exit code"),
    (
        Subject::Embedder,
        590,
        2000,
        "a rank that had begun MPI while it was being started waited for one that had exited",
    ),
    (
        Subject::Embedder,
        5_010_000_659,
        2000,
        "a registration was over before the end of a job whose name an earlier job had that failed to start",
    ),
    (
        Subject::Embedder,
        88_000_071_776,
        2000,
        "a reader that asked for its last generation while a move of it failed was not moved",
    ),
    (Subject::Embedder, 22, 2000, "the report of dropped rings preceded the answer to their pull"),
    (Subject::Embedder, 3, 2000, "the last of several unknown exits on request counted as the first failure"),
    (
        Subject::Host,
        7,
        2000,
        "a rank that started after the release of its job's backlog was held for a reader",
    ),
    (
        Subject::Embedder,
        1614,
        2000,
        "a push was refused while the job was being started that had replaced one of the same name",
    ),
    (Subject::Engine, 1, 2000, "the grace periods of a removed job went on"),
    (Subject::Embedder, 15, 2000, "a stream kept registrations that had ended and missed it"),
    (Subject::Host, 17, 2000, "pushes to a job that was being started exceeded the limits"),
    (Subject::Engine, 31, 2000, "a push waited forever at the host for that of a tool that had left"),
    (Subject::Host, 7319, 2000, "a push waited forever for that of a tool that had left, behind another"),
    (
        Subject::Engine,
        31_255,
        2000,
        "a push to several remote ranks was refused as if one of them had as many as its limit",
    ),
    (
        Subject::Clients,
        30_080,
        2000,
        "a tool whose pull was refused for lack of readers counted as registered for a job that it had spawned",
    ),
    (Subject::Clients, 125, 2000, "a run ended while the host had not answered the spawn of a rank"),
    (Subject::Clients, 2252, 2000, "a run ended while the host had not answered the spawn of a hostile tool"),
    (Subject::Embedder, 31_227, 2000, "the simulator judged a close by ends that the engine did not know"),
    (
        Subject::Embedder,
        17_007,
        2000,
        "a registration that ended with a job whose start had failed still missed streams of its ranks",
    ),
    (
        Subject::Streams,
        56,
        2000,
        "a registration that was ended twice ended where it was when the first end came",
    ),
    (
        Subject::Engine,
        830_567_881,
        2000,
        "the refusal of a push whose begin met the end of the capture thread was taken for a defect",
    ),
    (
        Subject::Host,
        3_000_016_925,
        2000,
        "the simulator expected a ring before the answer to a message although it had been shed",
    ),
    (
        Subject::Clients,
        4_000_004_487,
        2000,
        "the simulator did not wait for a job that began once pushes to a silent host were cut off",
    ),
    (
        Subject::Clients,
        5_000_014_095,
        2000,
        "the simulator did not know whose spawn it was of which a hostile tool had changed a bit",
    ),
    (
        Subject::Clients,
        6_000_025_351,
        2000,
        "the simulator took the messages of a spawned job that had failed to start for released",
    ),
];

#[test]
fn the_seeds_that_found_defects_pass() {
    for (subject, seed, steps, defect) in FOUND {
        assert!(run(*subject, *seed, *steps).is_ok(), "{defect}");
    }
}
