//! The CPU time of the front end for a fence of the ranks of several nodes: agents that this process plays enter
//! it, and no rank is a process.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use iof_bench::cpu;
use iof_bench::table::Figures;
use iof_engine::{App, Config, Engine, JobSpec, Mpi, Node, Rendezvous};
use iof_nodes::limits::MAX_PIECE;
use iof_nodes::{AgentEnd, AgentEvent, Frame, FrameDecoder, ToAgent, ToFrontEnd};
use iof_proto::{Exchange, FencePurpose, Nspace, Rank};
use iof_remote::{Carriers, Launch, NodeConnection};

#[derive(clap::Args)]
pub struct Args {
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Number of fences in a round
    #[arg(long, default_value_t = 20)]
    fences: u32,
    /// Number of nodes
    #[arg(long, default_value_t = 20)]
    nodes: u32,
    /// Numbers of ranks to compare
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    ranks: Vec<u32>,
    /// Bytes of values of each rank
    #[arg(long, default_value_t = 200)]
    bytes: usize,
}

/// The threads that serve nodes.
const FRONT_END: [&str; 2] = ["iof-edges", "iof-control"];

/// Measures fences and prints their cost.
pub fn run(args: &Args) {
    let mut figures = vec![Figures::default(); args.ranks.len()];
    let mut ratios = figures.clone();
    for _ in 0..args.rounds {
        let times: Vec<f64> = args.ranks.iter().map(|ranks| measure(args, *ranks)).collect();
        for (index, time) in times.iter().enumerate() {
            figures[index].add(*time);
            ratios[index].add(time / times[0]);
        }
    }
    println!("CPU milliseconds of the front end for a fence of {} nodes", args.nodes);
    for ((ranks, time), ratio) in args.ranks.iter().zip(figures).zip(ratios) {
        println!("  {ranks} ranks with {} bytes each: {time}, of the first {ratio}", args.bytes);
    }
}

/// Returns the CPU milliseconds of a fence.
fn measure(args: &Args, ranks: u32) -> f64 {
    let each = ranks / args.nodes;
    let nodes: Vec<Node> = (0..args.nodes)
        .map(|node| Node {
            host: node.to_string(),
            ranks: (node * each..(node + 1) * each).map(Rank).collect(),
        })
        .collect();
    let (fences, values) = (args.fences, each as usize * args.bytes);
    // The agents and this thread.
    let gate = Arc::new(Barrier::new(nodes.len() + 1));
    let played = Arc::clone(&gate);
    let carriers = Carriers::connections(move |host| {
        let (ours, theirs) = UnixStream::pair()?;
        let (first, gate) = (host.parse::<u32>().unwrap() * each, Arc::clone(&played));
        thread::spawn(move || play(theirs, (first, each), values, fences, &gate));
        NodeConnection::of_socket(ours)
    });
    let engine = Arc::new(Engine::start(Config::new(Rendezvous::None)).unwrap());
    let app = App::new("true", [""; 0]).ranks(each * args.nodes);
    let mut spec = JobSpec::new(Nspace::new("bench").unwrap(), vec![app]);
    spec.mpi = Mpi::Pmi1;
    let mut launch = Launch::new(&spec, &carriers);
    (launch.config.rendezvous, launch.printers) = (Rendezvous::None, Some(Vec::new()));
    let job = launch.start(&engine, &nodes, &mut |_| false, |_, _| {}).unwrap();
    let before = cpu::threads(FRONT_END);
    gate.wait();
    gate.wait();
    let spent = cpu::threads(FRONT_END) - before;
    gate.wait();
    drop(launch);
    drop((job, carriers, engine));
    // The threads of the next measurement are the only ones with these names.
    while cpu::threads(FRONT_END) > Duration::ZERO {
        thread::sleep(Duration::from_millis(1));
    }
    spent.as_secs_f64() * 1e3 / f64::from(fences)
}

/// Plays an agent with `each` ranks, which enters fences with this number of bytes.
fn play(mut socket: UnixStream, (first, each): (u32, u32), values: usize, fences: u32, gate: &Barrier) {
    let (mut decoder, mut end) = (FrameDecoder::of_front_end(), AgentEnd::default());
    let mut wait_for = |socket: &mut UnixStream, is_meant: fn(&ToAgent) -> bool| {
        while !has_arrived(&mut decoder, &mut end, is_meant) {
            assert_ne!(decoder.read_from(socket).unwrap(), 0);
        }
    };
    socket.write_all(&Frame::HELLO.header().unwrap()).unwrap();
    socket.write_all(&ToFrontEnd::Ready.frame().unwrap()).unwrap();
    wait_for(&mut socket, |message| matches!(message, ToAgent::Go));
    let pids = (1..=each).collect();
    socket.write_all(&ToFrontEnd::Started { pids }.frame().unwrap()).unwrap();
    let data = vec![b'x'; values];
    gate.wait();
    for call in 0..u64::from(fences) {
        let (mpi, purpose, members) = (Mpi::Pmi1, FencePurpose::Values, Vec::new());
        let exchange = Exchange::Fence { mpi, purpose, members, data: Vec::new() };
        let pieces = data.chunks(MAX_PIECE).map(|piece| ToFrontEnd::Piece(piece.to_vec()));
        let enter = ToFrontEnd::Exchange { call, rank: Rank(first), exchange };
        let frames: Vec<u8> = pieces.chain([enter]).flat_map(|message| message.frame().unwrap()).collect();
        socket.write_all(&frames).unwrap();
        wait_for(&mut socket, |message| matches!(message, ToAgent::Exchanged { .. }));
    }
    gate.wait();
    gate.wait();
}

/// Returns whether a message is among the frames that have arrived.
fn has_arrived(decoder: &mut FrameDecoder, end: &mut AgentEnd, is_meant: fn(&ToAgent) -> bool) -> bool {
    while let Some(frame) = decoder.decode().unwrap() {
        if let AgentEvent::Message(message) = end.receive(&frame).unwrap()
            && is_meant(&message)
        {
            return true;
        }
    }
    false
}
