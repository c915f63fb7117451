//! Tools that break the protocol: any message in any order, garbage, floods, wrong sizes, any
//! values in the reader page. They read nothing, or take messages and ignore them. Others have shut
//! their receiving sides, and send requests.

use iof_proto::directive::key;
use iof_proto::{
    App, Channel, Channels, Decoder, FromTool, Info, JobSpec, Log, Position, Proc, Query, Rank, Spawn,
    ToTool, encode,
};
use iof_shm_ring::ReaderId;

use super::jobs::name;
use super::tool::{Manner, Tool};
use crate::driver::SimulatedEngine;
use crate::rng::Rng;

/// Returns any process.
fn proc(rng: &mut Rng) -> Proc {
    let rank = rng.pick(&[Rank(0), Rank(1), Rank(2), Rank(77), Rank::WILDCARD, Rank::UNDEF]);
    Proc::new(name(rng.index(4)), rank)
}

/// Returns any message.
fn message(tool: &Tool, rng: &mut Rng) -> FromTool {
    // Requests that a tool has sent before it has shut its receiving side are known by their numbers.
    let first = if tool.manner == Manner::HalfClosed { 1 << 20 } else { 0 };
    let request = first + rng.below(4) as u32;
    let procs = |rng: &mut Rng| (0..rng.below(4)).map(|_| proc(rng)).collect();
    let slot = match tool.claimed.as_slice() {
        [] => rng.below(8) as u32,
        claimed => rng.pick(claimed).into(),
    };
    let number = 1 + rng.below(3) as u32;
    match rng.below(16) {
        0 => FromTool::Hello { version: rng.below(9) as u32, pid: 0, name: "again".into() },
        1 | 2 => FromTool::Pull {
            request,
            procs: procs(rng),
            channels: rng.pick(&[Channels::ALL, Channels::STDOUT, Channels::STDIN, Channel::Stddiag.into()]),
            from: rng.pick(&[Position::Oldest, Position::Newest, Position::Offset(7), Position::Lines(1)]),
            persistent: rng.chance(128),
            reports_ranks: true,
            directives: vec![Info::new(key::PMIX_IOF_CACHE_SIZE, rng.below(1 << 20) as u32)],
        },
        3 | 4 => FromTool::Follow { slot },
        5 => FromTool::Drained { slots: vec![slot, rng.below(8) as u32, slot] },
        6 | 7 => FromTool::Deregister { request, handler: number },
        8 => FromTool::Query {
            request,
            queries: vec![Query::new(["iof.qry.stats"]), Query::new(["unknown", "pmix.qry.ns"])],
        },
        9 => FromTool::Push {
            request,
            targets: procs(rng),
            size: Some(rng.size(1 << 40)),
            directives: Vec::new(),
        },
        10 => FromTool::Fill { push: number, bytes: rng.word() >> rng.below(64), last: rng.chance(64) },
        11 => FromTool::SlowTargets { request, push: number, cut_off: Some(rng.size(1 << 20)) },
        12 => FromTool::Log {
            request,
            log: Log::to(["pmix.log.stdout", "pmix.log.lsys", "theirs"], "hostile\n"),
        },
        13 => {
            let spec =
                JobSpec::new(name(rng.index(4)), vec![App::new(format!("hostile 0 {}", tool.id), [""; 0])]);
            FromTool::Spawn { request, spawn: Box::new(Spawn::new(spec)) }
        }
        14 => FromTool::Barrier { request },
        _ => FromTool::Signal { request, procs: procs(rng), signal: rng.below(70) as i32 },
    }
}

impl Tool {
    /// Does what a hostile tool does.
    pub fn attack(&mut self, engine: &mut SimulatedEngine, rng: &mut Rng) {
        if rng.chance(128) {
            while let Some(packet) = engine.receive(self.id) {
                self.take_unread(packet);
            }
        }
        match rng.below(40) {
            0 => {
                // Garbage.
                let bytes: Vec<u8> = (0..rng.size(300)).map(|_| rng.word() as u8).collect();
                engine.send(self.id, &bytes);
            }
            1 => {
                let message = message(self, rng);
                let mut frame = encode(&message).expect("a message within the limits");
                let (index, bit) = (rng.index(frame.len()), 1 << rng.below(8));
                // The words of a spawn tell the simulator whose it is.
                frame[index] ^= if matches!(message, FromTool::Spawn { .. }) { 0 } else { bit };
                engine.send(self.id, &frame);
            }
            2 => {
                let frame = encode(&message(self, rng)).expect("a message within the limits");
                engine.send(self.id, &frame[..rng.index(frame.len())]);
                engine.close(self.id);
                self.closed = true;
            }
            3..5 => {
                // A flood.
                let message = message(self, rng);
                (0..rng.size(200)).for_each(|_| self.send(engine, &message));
            }
            5..20 => self.send(engine, &message(self, rng)),
            _ => self.lie(rng),
        }
    }

    /// Sends a message that neither breaks the protocol nor changes a push.
    pub fn send_on(&self, engine: &mut SimulatedEngine, rng: &mut Rng) {
        let message = message(self, rng);
        let is_left_out =
            matches!(message, FromTool::Hello { .. } | FromTool::Fill { .. } | FromTool::SlowTargets { .. });
        if !is_left_out {
            self.send(engine, &message);
        }
    }

    fn take_unread(&mut self, packet: crate::driver::Packet) {
        use crate::driver::{Packet, Shared};
        let Packet { frame, shared } = packet;
        if let Shared::Welcome { page, .. } = shared {
            self.page = Some(page);
        } else if let Ok(Some(ToTool::Ring { slot, .. })) = Decoder::new().decode(&mut frame.as_slice()) {
            self.claimed.push(slot.into());
        }
    }

    /// Writes anything to its reader page.
    fn lie(&mut self, rng: &mut Rng) {
        let Some(page) = &self.page else { return };
        let any = ReaderId::from(rng.below(8) as u32);
        let id = if self.claimed.is_empty() || rng.chance(32) { any } else { rng.pick(&self.claimed) };
        let values = [0, u64::MAX, rng.word(), rng.size(1 << 40), rng.below(1 << 15)];
        page.overwrite(id, rng.below(6) as u32, rng.pick(&values));
        page.overwrite_ready(id, rng.chance(128));
    }
}
