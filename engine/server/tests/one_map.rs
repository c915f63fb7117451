//! A reader in the engine's process uses the engine's maps, and a stream without bytes has none. A
//! file of its own, because the test counts the maps of its process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;

use iof_engine::{App, Config, Engine, Grant, JobSpec, Rendezvous};
use iof_proto::{Channel, Channels, Nspace, Proc};
use iof_tool::{Delivery, Pull};

/// Maps of one ring: the file, and its data once more behind it.
const MAPS_PER_RING: usize = 2;

fn maps_of_rings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("iof-ring")).count()
}

#[test]
fn only_streams_with_bytes_have_maps_and_readers_in_the_engines_process_add_none() {
    let engine = Engine::start(Config::new(Rendezvous::None)).unwrap();
    let mut tools = [Grant::Block, Grant::Never].map(|grant| engine.attach("reader", grant).unwrap());
    let all = Proc::all(Nspace::new("job").unwrap());
    for tool in &mut tools {
        tool.pull(&Pull::new(vec![all.clone()], Channels::ALL)).unwrap();
    }
    let job = engine.spawn(&JobSpec::new(all.nspace, vec![App::new("echo", ["hello"])])).unwrap();
    for tool in &mut tools {
        let (mut bytes, mut complete) = (0, 0);
        while let Some(delivery) = tool.recv().unwrap() {
            match delivery {
                Delivery::Bytes(delivered) => {
                    bytes += delivered.len();
                    assert_eq!(maps_of_rings(), MAPS_PER_RING);
                }
                Delivery::Complete { .. } => complete += 1,
                _ => {}
            }
        }
        assert_eq!((bytes, complete), (6, Channel::OUTPUTS.len()));
    }
    drop(job);
}
