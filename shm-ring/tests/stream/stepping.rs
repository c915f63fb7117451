//! The step of a sleeping reader in the process of the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use iof_shm_ring::{Policy, ReaderPage, Start, Stepper, Stream, StreamConfig, doorbell, notify};

use crate::tool::{CAPACITY, Tool};

#[test]
fn a_sleeping_tool_is_woken_only_if_its_step_leaves_something() {
    let (ringer, bell) = doorbell().unwrap();
    let stepper = Stepper::default();
    let page = ReaderPage::create(ringer).unwrap().with_stepper(stepper.clone());
    let tool = Tool { page: Arc::new(page), bell };
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest };
    let mut stream = Stream::create(config, "test").unwrap();
    let mut reader = tool.attach(&mut stream, Start::Oldest, false);
    let (steps, does_all) = (Arc::<AtomicUsize>::default(), Arc::new(AtomicBool::new(true)));
    let mut push = || {
        stream.push(b"line\n", 0);
        notify([&stream]);
    };

    assert!(tool.page.arm(1));
    push();
    assert!(tool.rings(), "a tool without a step is woken");
    let wake_up = |reader: &mut iof_shm_ring::Reader| {
        tool.page.disarm();
        tool.bell.silence();
        assert_eq!(tool.ready().len(), 1);
        reader.peek();
        reader.consume(usize::MAX);
    };
    wake_up(&mut reader);

    let (page, counted, all) = (Arc::clone(&tool.page), Arc::clone(&steps), Arc::clone(&does_all));
    stepper.set(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let all = all.load(Ordering::Relaxed);
        if all {
            page.take_ready(1, |_| {});
        }
        all
    });
    push();
    assert!(!tool.rings(), "a tool that is awake is not woken");
    assert_eq!(steps.load(Ordering::Relaxed), 0, "a tool that is awake is not stepped");
    wake_up(&mut reader);

    assert!(tool.page.arm(1));
    push();
    push();
    assert_eq!((steps.load(Ordering::Relaxed), tool.rings()), (2, false));
    reader.peek();
    reader.consume(usize::MAX);

    does_all.store(false, Ordering::Relaxed);
    push();
    assert_eq!((steps.load(Ordering::Relaxed), tool.rings()), (3, true));
    wake_up(&mut reader);
}

#[test]
fn one_step_reads_all_streams_that_are_notified_together() {
    let (ringer, bell) = doorbell().unwrap();
    let stepper = Stepper::default();
    let page = ReaderPage::create(ringer).unwrap().with_stepper(stepper.clone());
    let tool = Tool { page: Arc::new(page), bell };
    let config = StreamConfig { capacity: CAPACITY, policy: Policy::DropNewest };
    let mut streams = [1, 2, 3].map(|_| Stream::create(config, "test").unwrap());
    let mut readers = streams.each_mut().map(|stream| tool.attach(stream, Start::Oldest, false));
    let (page, steps) = (Arc::clone(&tool.page), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&steps);
    stepper.set(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let mut taken = 0;
        page.take_ready(3, |_| taken += 1);
        // A step that finds a single stream leaves it to the tool.
        taken != 1
    });
    assert!(tool.page.arm(3));
    for stream in &mut streams {
        stream.push(b"line\n", 0);
    }
    notify(&streams);
    assert_eq!((steps.load(Ordering::Relaxed), tool.rings()), (1, false));
    readers.iter_mut().for_each(|reader| {
        reader.peek();
        reader.consume(usize::MAX);
    });
    streams[0].push(b"line\n", 0);
    notify(&streams);
    assert_eq!((steps.load(Ordering::Relaxed), tool.rings()), (2, true));
}
