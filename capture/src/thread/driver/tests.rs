//! The driver on a simulated kernel. A random script decides when and how each request is answered.

mod kernel;
mod order;
mod pipe;
mod script;
mod simulation;
mod target;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm};

use self::script::{Action, Breakdown, BreakdownKind, Outcome, outcome, script};
use self::simulation::{InjectedPanic, Simulation};
use super::*;

/// Runs the driver until it ends. Returns the final state of the simulation.
fn run_script(
    actions: Vec<Action>,
    discards: Vec<Outcome>,
    breakdown: Option<Breakdown>,
    panic_after: Option<usize>,
) -> Rc<RefCell<Simulation>> {
    let (simulation, driver) = Simulation::new(actions, discards, breakdown, panic_after);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| driver.run()))
        && !panic.is::<InjectedPanic>()
    {
        resume_unwind(panic);
    }
    simulation.borrow_mut().check_events();
    simulation
}

proptest! {
    #![proptest_config(Config {
        cases: 500,
        failure_persistence: None,
        // Without optimization, the default generator takes more than half of the time.
        rng_algorithm: RngAlgorithm::XorShift,
        ..Config::default()
    })]

    #[test]
    fn sources_and_targets_end_once_and_every_byte_is_delivered_or_counted(
        actions in script(),
        discards in prop::collection::vec(outcome(), 0..20),
    ) {
        let simulation = run_script(actions, discards, None, None);
        let mut simulation = simulation.borrow_mut();
        let files: Vec<Token> = simulation.files.keys().map(|word| Token::from(*word)).collect();
        prop_assert_eq!(files, [Token::Bell]);
        for (number, pipe) in simulation.pipes.iter_mut().enumerate() {
            prop_assert!(pipe.check(number), "pipe {number} has not ended");
        }
        prop_assert!(simulation.targets.iter().all(|target| target.ended));
        prop_assert!(simulation.pushes.iter().all(|push| push.ended));
    }

    #[test]
    fn after_a_kernel_failure_everything_ends_once_or_stays_mapped(
        actions in script(),
        after in 0usize..300,
        kind in prop_oneof![
            Just(BreakdownKind::OneTurn),
            Just(BreakdownKind::AllTurns),
            Just(BreakdownKind::Bell),
        ],
    ) {
        let simulation = run_script(actions, Vec::new(), Some(Breakdown { after, kind }), None);
        let mut simulation = simulation.borrow_mut();
        for (number, pipe) in simulation.pipes.iter_mut().enumerate() {
            pipe.check(number);
        }
        if simulation.broken && kind == BreakdownKind::AllTurns {
            simulation.use_lent_memory();
        } else {
            prop_assert!(simulation.requests.is_empty());
            let mut left = simulation.files.keys().map(|word| Token::from(*word));
            prop_assert!(!left.any(|token| matches!(token, Token::Source(_) | Token::Target(_))));
            // This includes targets and pushes that were still queued as commands at the failure.
            prop_assert!(simulation.targets.iter().all(|target| target.ended));
            prop_assert!(simulation.pushes.iter().all(|push| push.ended));
        }
    }

    #[test]
    fn when_on_event_panics_no_memory_is_released_while_a_request_uses_it(
        actions in script(),
        panic_after in 1usize..6,
        breakdown in prop::option::of(0usize..300),
    ) {
        let breakdown = breakdown.map(|after| Breakdown { after, kind: BreakdownKind::AllTurns });
        let simulation = run_script(actions, Vec::new(), breakdown, Some(panic_after));
        let mut simulation = simulation.borrow_mut();
        prop_assert!(simulation.broken || simulation.requests.is_empty());
        simulation.use_lent_memory();
    }
}
