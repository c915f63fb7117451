//! The messages of hostile tools. Their numbers are small enough to name what exists.

use arbitrary::Arbitrary;
use iof_proto::query::key::IOF_QUERY_STATS;
use iof_proto::{Channels, FromTool, Info, InfoValue, Log, Nspace, Position, Proc, Query, Rank};

use crate::world::nspace;

#[derive(Clone, Debug, Arbitrary)]
pub enum Message {
    Hello {
        version: u32,
    },
    Pull {
        request: u32,
        ranks: Vec<u32>,
        channels: u16,
        from: (u8, u64),
        directives: Vec<Directive>,
    },
    /// A pull from processes of jobs that do not exist.
    PullUnknown {
        request: u32,
        procs: u16,
    },
    Drained {
        slots: Vec<u32>,
    },
    Follow {
        slot: u32,
    },
    Deregister {
        request: u32,
        handler: u32,
    },
    Barrier {
        request: u32,
    },
    Query {
        request: u32,
        stats: bool,
        key: String,
    },
    Push {
        request: u32,
        ranks: Vec<u32>,
        size: Option<u16>,
        directives: Vec<Directive>,
    },
    Fill {
        push: u32,
        bytes: u32,
        over: bool,
    },
    SlowTargets {
        request: u32,
        push: u32,
        cut_off: Option<u32>,
    },
    Log {
        request: u32,
        channels: Vec<u8>,
        text: String,
        directives: Vec<Directive>,
    },
    Signal {
        request: u32,
        ranks: Vec<u32>,
        signal: i32,
    },
}

#[derive(Clone, Debug, Arbitrary)]
pub struct Directive {
    known: u8,
    number: Option<u64>,
    truth: bool,
    required: bool,
}

impl Message {
    pub fn wire(self) -> FromTool {
        match self {
            Message::Hello { version } => FromTool::Hello { version, pid: 1, name: "hostile".into() },
            Message::Pull { request, ranks, channels, from, directives } => FromTool::Pull {
                request,
                procs: procs(ranks),
                channels: Channels::from_bits_truncate(channels),
                from: position(from),
                persistent: request % 2 == 0,
                reports_ranks: request % 3 == 0,
                directives: directives.into_iter().map(Directive::wire).collect(),
            },
            Message::PullUnknown { request, procs } => FromTool::Pull {
                request,
                procs: (0..u32::from(procs % 4096))
                    .map(|rank| Proc {
                        nspace: Nspace::new(format!("later-{}", rank % 7)).unwrap(),
                        rank: Rank(rank),
                    })
                    .collect(),
                channels: Channels::STDOUT,
                from: Position::Oldest,
                persistent: request % 2 == 0,
                reports_ranks: request % 3 == 0,
                directives: Vec::new(),
            },
            Message::Drained { slots } => {
                FromTool::Drained { slots: slots.into_iter().map(|slot| slot % 8).collect() }
            }
            Message::Follow { slot } => FromTool::Follow { slot: slot % 8 },
            Message::Deregister { request, handler } => {
                FromTool::Deregister { request, handler: handler % 8 }
            }
            Message::Barrier { request } => FromTool::Barrier { request },
            Message::Query { request, stats, key } => {
                let key = if stats { IOF_QUERY_STATS.into() } else { key };
                FromTool::Query { request, queries: vec![Query::new([key])] }
            }
            Message::Push { request, ranks, size, directives } => FromTool::Push {
                request,
                targets: procs(ranks),
                size: size.map(u64::from),
                directives: directives.into_iter().map(Directive::wire).collect(),
            },
            Message::Fill { push, bytes, over } => {
                FromTool::Fill { push: push % 4, bytes: u64::from(bytes % 32_768), last: over }
            }
            Message::SlowTargets { request, push, cut_off } => {
                FromTool::SlowTargets { request, push: push % 4, cut_off: cut_off.map(u64::from) }
            }
            Message::Log { request, channels, text, directives } => {
                const CHANNELS: [&str; 5] =
                    ["pmix.log.stderr", "pmix.log.jrec", "pmix.log.email", "pmix.log.gstore", "x"];
                let channel = |known: u8| CHANNELS[usize::from(known) % CHANNELS.len()];
                let directives = directives.into_iter().map(Directive::wire).collect();
                FromTool::Log {
                    request,
                    log: Log { directives, ..Log::to(channels.into_iter().map(channel), &text) },
                }
            }
            Message::Signal { request, ranks, signal } => {
                FromTool::Signal { request, procs: procs(ranks), signal }
            }
        }
    }
}

impl Directive {
    fn wire(self) -> Info {
        const KEYS: [&str; 11] = [
            "pmix.iof.csize",
            "pmix.iof.old",
            "pmix.iof.new",
            "pmix.iof.bsize",
            "pmix.iof.btime",
            "pmix.iof.cmp",
            "iof.push.partial",
            "pmix.log.once",
            "pmix.log.tag",
            "pmix.log.syspri",
            "x",
        ];
        let value = self.number.map_or(InfoValue::Bool(self.truth), InfoValue::Number);
        Info { key: KEYS[usize::from(self.known) % KEYS.len()].into(), value, required: self.required }
    }
}

/// Returns processes that exist, and one that does not.
fn procs(ranks: Vec<u32>) -> Vec<Proc> {
    ranks.into_iter().map(|rank| Proc::new(nspace(), Rank(rank % 3))).collect()
}

fn position((kind, value): (u8, u64)) -> Position {
    match kind % 5 {
        0 => Position::Oldest,
        1 => Position::Newest,
        2 => Position::Offset(value),
        3 => Position::Time(value),
        _ => Position::Lines(value),
    }
}
