//! Random schedules of both ends of an edge over a simulated carrier.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use iof_nodes::limits::{MAX_ANSWERS_OF_NODE, MAX_NODES, MAX_RECORD, MAX_STREAM, MAX_WINDOW, MAX_WINDOWS};
use iof_nodes::{
    AgentEnd, AgentEvent, Bundle, EdgeError, Frame, FrameDecoder, FrontEnd, FrontEvent, HEADER, RankTotal,
    StreamKey, ToFrontEnd, window,
};
use iof_proto::{Channel, InputState, Log, Rank, StreamPull};

const FIRST: u32 = 8;
const RANKS: u32 = 3;
const WINDOW: u64 = 512 << 10;
/// The bounds of a window that does not change.
const WHOLE: RangeInclusive<u64> = MAX_WINDOW..=MAX_WINDOW;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % limit
    }
}

/// Returns the byte at a position of a stream.
fn byte(stream: StreamKey, position: u64) -> u8 {
    (position ^ (position >> 8) ^ u64::from(stream.rank.0) ^ (stream.channel as u64) << 4) as u8
}

/// The bytes that a node has read from a rank and not sent.
#[derive(Default)]
struct Source {
    produced: u64,
    sent: u64,
    ended: bool,
}

/// A node, its front end, and the bytes between them.
struct World {
    random: Random,
    agent: AgentEnd,
    front: FrontEnd,
    sources: BTreeMap<StreamKey, Source>,
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    agent_decoder: FrameDecoder,
    front_decoder: FrameDecoder,
    /// Records that arrived and are not taken.
    waiting: VecDeque<(Channel, usize)>,
    delivered: BTreeMap<StreamKey, u64>,
    lost: BTreeMap<StreamKey, u64>,
    told: BTreeMap<StreamKey, u64>,
    is_over: bool,
    now: Instant,
}

impl World {
    fn new(seed: u64) -> World {
        let streams = (FIRST..FIRST + RANKS)
            .flat_map(|rank| Channel::OUTPUTS.map(|channel| StreamKey { rank: Rank(rank), channel }));
        let mut world = World {
            random: Random(seed),
            agent: AgentEnd::default(),
            front: FrontEnd::new(&(FIRST..FIRST + RANKS).map(Rank).collect(), WINDOW..=MAX_WINDOW),
            sources: streams.map(|stream| (stream, Source::default())).collect(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            agent_decoder: FrameDecoder::of_front_end(),
            front_decoder: FrameDecoder::of_agent(),
            waiting: VecDeque::new(),
            delivered: BTreeMap::new(),
            lost: BTreeMap::new(),
            told: BTreeMap::new(),
            is_over: false,
            now: Instant::now(),
        };
        world.down.extend(world.front.greeting());
        world.up.extend(Frame::HELLO.header().unwrap());
        world.tell(&ToFrontEnd::Ready);
        world.tell(&ToFrontEnd::Started { pids: vec![7; RANKS as usize] });
        world
    }

    fn tell(&mut self, message: &ToFrontEnd) {
        self.up.extend(message.frame().unwrap());
    }

    fn send(&mut self, frame: &Frame<'_>) {
        self.up.extend(frame.header().unwrap());
        self.up.extend(frame.payload());
    }

    fn step(&mut self) {
        let index = self.random.below(self.sources.len() as u64) as usize;
        let stream = *self.sources.keys().nth(index).unwrap();
        self.now += Duration::from_micros(self.random.below(2000));
        match self.random.below(16) {
            0..5 => self.produce(stream),
            5 => self.lose(stream),
            6 => self.finish(stream),
            7 => self.tell_totals(),
            8 => self.send(&Frame::Padding),
            9..13 => self.carry_up(),
            13 => self.carry_down(),
            _ => self.take(),
        }
    }

    fn produce(&mut self, stream: StreamKey) {
        let more = self.random.below(200_000);
        let source = self.sources.get_mut(&stream).unwrap();
        if !source.ended {
            // A ring of a megabyte.
            source.produced = (source.produced + more).min(source.sent + (1 << 20));
        }
        self.transmit(stream);
    }

    fn transmit(&mut self, stream: StreamKey) {
        let source = self.sources.get_mut(&stream).unwrap();
        let waiting = (source.produced - source.sent) as usize;
        let length = waiting.min(MAX_RECORD);
        if self.agent.take_window(Bundle::of(stream.channel).unwrap(), length) {
            let offset = source.sent;
            source.sent += length as u64;
            let bytes: Vec<u8> = (offset..).take(length).map(|position| byte(stream, position)).collect();
            self.send(&Frame::Record {
                pull: 0,
                stream,
                offset,
                time: 1,
                input: InputState::UNBUFFERED,
                bytes: &bytes,
            });
        }
    }

    fn lose(&mut self, stream: StreamKey) {
        let source = self.sources.get_mut(&stream).unwrap();
        if !source.ended && source.sent == source.produced {
            let (offset, lost) = (source.sent, 1 + self.random.below(5000));
            source.produced += lost;
            source.sent += lost;
            self.send(&Frame::Gap { pull: 0, stream, offset, lost });
        }
    }

    fn finish(&mut self, stream: StreamKey) {
        let source = self.sources.get_mut(&stream).unwrap();
        if !source.ended && source.sent == source.produced {
            source.ended = true;
            let produced = source.produced;
            self.send(&Frame::End { pull: 0, stream, produced });
        }
    }

    fn tell_totals(&mut self) {
        let total = |(key, source): (&StreamKey, &Source)| RankTotal {
            rank: key.rank,
            channel: key.channel,
            produced: source.produced,
        };
        let totals = self.sources.iter().map(total).collect();
        self.tell(&ToFrontEnd::Produced(totals));
    }

    /// Carries some bytes to the front end.
    fn carry_up(&mut self) {
        let length = (1 + self.random.below(100_000) as usize).min(self.up.len());
        self.arrive(length);
    }

    fn arrive(&mut self, length: usize) {
        let bytes: Vec<u8> = self.up.drain(..length).collect();
        self.front_decoder.receive(&bytes);
        while let Some(frame) = self.front_decoder.decode().unwrap() {
            match self.front.receive(&frame, self.now).unwrap() {
                FrontEvent::Output(Frame::Record { stream, bytes, .. }) => {
                    let delivered = self.delivered.entry(stream).or_default();
                    let position = *delivered + self.lost.get(&stream).unwrap_or(&0);
                    assert!(
                        bytes
                            .iter()
                            .zip(position..)
                            .all(|(byte_, position)| *byte_ == byte(stream, position))
                    );
                    *delivered += bytes.len() as u64;
                    self.waiting.push_back((stream.channel, bytes.len()));
                }
                FrontEvent::Output(Frame::Gap { stream, lost, .. }) => {
                    *self.lost.entry(stream).or_default() += lost
                }
                FrontEvent::Message(ToFrontEnd::Over { .. }) => self.is_over = true,
                FrontEvent::Message(ToFrontEnd::Produced(totals)) => {
                    for RankTotal { rank, channel, produced } in totals {
                        self.told.insert(StreamKey { rank, channel }, produced);
                    }
                }
                FrontEvent::None | FrontEvent::Greeted | FrontEvent::Output(_) | FrontEvent::Message(_) => {}
            }
        }
        for bundle in Bundle::ALL {
            let waiting = self.waiting.iter().filter(|(channel, _)| Bundle::of(*channel) == Some(bundle));
            let waiting: usize = waiting.map(|(_, length)| length + HEADER).sum();
            assert!(waiting as u64 <= MAX_WINDOW);
        }
        assert!(self.front_decoder.held() <= HEADER + MAX_RECORD + 100_000);
    }

    /// Takes the record that has waited longest.
    fn take(&mut self) {
        let Some((channel, length)) = self.waiting.pop_front() else { return };
        if let Some(credit) = self.front.taken(Bundle::of(channel).unwrap(), length, self.now) {
            self.down.extend(credit.header().unwrap());
        }
    }

    fn carry_down(&mut self) {
        let length = (1 + self.random.below(100) as usize).min(self.down.len());
        let bytes: Vec<u8> = self.down.drain(..length).collect();
        self.agent_decoder.receive(&bytes);
        while let Some(frame) = self.agent_decoder.decode().unwrap() {
            let event = self.agent.receive(&frame).unwrap();
            assert!(matches!(event, AgentEvent::None | AgentEvent::Credit));
        }
    }

    /// Lets everything arrive, and checks that nothing is missing.
    fn settle(mut self) {
        while !self.is_over {
            for stream in self.sources.keys().copied().collect::<Vec<_>>() {
                self.transmit(stream);
                self.finish(stream);
            }
            if self.sources.values().all(|source| source.ended) && !self.front.is_over() {
                for rank in FIRST..FIRST + RANKS {
                    let (rank, status) = (Rank(rank), Some(0));
                    self.tell(&ToFrontEnd::Exited { rank, status, requested: false, used: None });
                }
                self.tell(&ToFrontEnd::Over { cut_off: Vec::new() });
            }
            self.arrive(self.up.len());
            while !self.waiting.is_empty() {
                self.take();
            }
            while !self.down.is_empty() {
                self.carry_down();
            }
        }
        for (stream, source) in &self.sources {
            let sum = |map: &BTreeMap<StreamKey, u64>| map.get(stream).copied().unwrap_or(0);
            assert_eq!(sum(&self.delivered) + sum(&self.lost), source.produced);
        }
        assert!(self.front.broken().streams.is_empty() && self.front.broken().ranks.is_empty());
    }

    /// Loses the carrier after some of the bytes under way, and checks the figures.
    fn cut(mut self) {
        let length = self.random.below(self.up.len() as u64 + 1) as usize;
        self.arrive(length);
        let broken = self.front.broken();
        for stream in &broken.streams {
            let key = stream.stream;
            let sum = |map: &BTreeMap<StreamKey, u64>| map.get(&key).copied().unwrap_or(0);
            assert_eq!((stream.delivered, stream.lost), (sum(&self.delivered), sum(&self.lost)));
            let arrived = stream.delivered + stream.lost;
            assert_eq!(stream.missing, sum(&self.told).saturating_sub(arrived));
            assert!(arrived + stream.missing <= self.sources[&key].produced);
        }
        for (key, source) in &self.sources {
            if !broken.streams.iter().any(|stream| stream.stream == *key) {
                let sum = |map: &BTreeMap<StreamKey, u64>| map.get(key).copied().unwrap_or(0);
                assert_eq!(sum(&self.delivered) + sum(&self.lost), source.produced);
            }
        }
        assert_eq!(broken.ranks.len(), RANKS as usize);
    }
}

#[test]
fn whatever_the_schedule_delivered_and_lost_bytes_add_up_to_those_produced() {
    for seed in 0..8 {
        let mut world = World::new(seed);
        (0..300).for_each(|_| world.step());
        world.settle();
    }
}

#[test]
fn an_edge_cut_at_any_byte_has_a_broken_end_with_true_figures() {
    for seed in 1000..1100 {
        let mut world = World::new(seed);
        (0..seed % 97).for_each(|_| world.step());
        world.cut();
    }
}

#[test]
fn without_credit_a_bundle_stops_within_its_window_and_the_other_goes_on() {
    let (mut agent, mut sent) = (AgentEnd::default(), 0);
    assert!(!agent.take_window(Bundle::Stdout, 1));
    let (mut decoder, front) = (FrameDecoder::of_front_end(), FrontEnd::new(&BTreeSet::new(), WHOLE));
    decoder.receive(&front.greeting());
    while let Some(frame) = decoder.decode().unwrap() {
        agent.receive(&frame).unwrap();
    }
    // Neither is a record.
    assert!(!agent.take_window(Bundle::Stdout, 0) && !agent.take_window(Bundle::Stdout, MAX_RECORD + 1));
    let mut take = |bytes, count: u64| {
        (0..count).for_each(|_| assert!(agent.take_window(Bundle::Stdout, bytes)));
        sent += count * (bytes + HEADER) as u64;
    };
    take(MAX_RECORD, 63);
    take(MAX_RECORD - 64 * HEADER, 1);
    assert_eq!(sent, MAX_WINDOW);
    assert!(!agent.take_window(Bundle::Stdout, 1));
    assert!(agent.take_window(Bundle::Errors, 10));
    let credit = |bytes| Frame::Credit { bundle: Bundle::Stdout, bytes };
    assert_eq!(agent.receive(&credit(5000)), Ok(AgentEvent::Credit));
    assert!(!agent.take_window(Bundle::Stdout, 5000));
    assert!(agent.take_window(Bundle::Stdout, 100));
    let used = sent - 5000 + 256;
    assert_eq!(agent.receive(&credit(used + 1)), Err(EdgeError::Window { bytes: used + 1, left: used }));
}

/// A front end to which the ranks of a node have started.
fn started() -> FrontEnd {
    started_with(WHOLE)
}

fn started_with(window: RangeInclusive<u64>) -> FrontEnd {
    let mut front = FrontEnd::new(&(FIRST..FIRST + 1).map(Rank).collect(), window);
    let now = Instant::now();
    front.receive(&Frame::HELLO, now).unwrap();
    for message in [ToFrontEnd::Ready, ToFrontEnd::Started { pids: vec![1] }] {
        front.receive(&Frame::Control(&message.frame().unwrap()[HEADER..]), now).unwrap();
    }
    front
}

#[test]
fn an_agent_that_breaks_a_rule_is_refused() {
    let stream = StreamKey { rank: Rank(FIRST), channel: Channel::Stdout };
    let other = StreamKey { rank: Rank(FIRST + 1), ..stream };
    let record = |stream, offset, bytes| Frame::Record {
        pull: 0,
        stream,
        offset,
        time: 0,
        input: InputState::UNBUFFERED,
        bytes,
    };
    let exit = |rank| ToFrontEnd::Exited { rank, status: None, requested: false, used: None };
    let control = |message: ToFrontEnd| message.frame().unwrap()[HEADER..].to_vec();
    let over = control(ToFrontEnd::Over { cut_off: Vec::new() });
    let stranger = control(exit(Rank(FIRST + 1)));
    let again = control(ToFrontEnd::Started { pids: vec![1] });
    let total = |produced| vec![RankTotal { rank: stream.rank, channel: stream.channel, produced }];
    let untrue = control(ToFrontEnd::Produced(total(MAX_STREAM + 1)));
    for frame in [
        record(stream, 1, b"x"),
        record(stream, 0, b""),
        record(other, 0, b"x"),
        Frame::Gap { pull: 0, stream, offset: 0, lost: 0 },
        Frame::Gap { pull: 0, stream, offset: 0, lost: u64::MAX },
        Frame::Gap { pull: 0, stream, offset: 0, lost: MAX_STREAM + 1 },
        Frame::End { pull: 0, stream, produced: 1 },
        Frame::Credit { bundle: Bundle::Stdout, bytes: 1 },
        Frame::HELLO,
        Frame::Control(b"\xff\xff"),
        Frame::Control(&over),
        Frame::Control(&stranger),
        Frame::Control(&again),
        Frame::Control(&untrue),
    ] {
        let mut front = started();
        // The gap of all numbers overflows behind a first byte.
        if matches!(frame, Frame::Gap { lost: u64::MAX, .. }) {
            front.receive(&record(stream, 0, b"x"), Instant::now()).unwrap();
        }
        let result = front.receive(&frame, Instant::now());
        assert!(result.is_err(), "{frame:?}: {result:?}");
    }
    let mut front = started();
    front.receive(&Frame::End { pull: 0, stream, produced: 0 }, Instant::now()).unwrap();
    assert!(front.receive(&record(stream, 0, b"x"), Instant::now()).is_err());
    let mut stranger = FrontEnd::new(&(0..1).map(Rank).collect(), WHOLE);
    let Frame::Hello { version: ours } = Frame::HELLO else { panic!("not a hello") };
    let theirs = ours + 1;
    let error = stranger.receive(&Frame::Hello { version: theirs }, Instant::now());
    assert_eq!(error, Err(EdgeError::Version { theirs, ours }));
    assert_eq!(
        FrontEnd::new(&(0..1).map(Rank).collect(), WHOLE).receive(&Frame::Padding, Instant::now()),
        Err(EdgeError::NoHello)
    );
}

#[test]
fn answers_and_totals_may_follow_the_end_of_a_node() {
    let mut front = started();
    let receive = |front: &mut FrontEnd, frame: Frame<'_>| front.receive(&frame, Instant::now()).map(drop);
    let send = |front: &mut FrontEnd, message: ToFrontEnd| {
        let frame = message.frame().unwrap();
        receive(front, Frame::Control(&frame[HEADER..]))
    };
    for rank in [Rank(FIRST)] {
        for channel in Channel::OUTPUTS {
            receive(&mut front, Frame::End { pull: 0, stream: StreamKey { rank, channel }, produced: 0 })
                .unwrap();
        }
        let exited = ToFrontEnd::Exited { rank, status: Some(0), requested: false, used: None };
        send(&mut front, exited).unwrap();
    }
    let cost = || ToFrontEnd::Cost { user: 1, system: 1, backend: "epoll".into() };
    send(&mut front, cost()).unwrap();
    assert_eq!(send(&mut front, cost()), Err(EdgeError::Unexpected("control message")), "told twice");
    let files =
        || ToFrontEnd::FilesWritten { written: 1, lost: Vec::new(), dropped: 0, refusals: 0, failure: None };
    send(&mut front, files()).unwrap();
    assert_eq!(send(&mut front, files()), Err(EdgeError::Unexpected("control message")), "told twice");
    // A stream of another node can't have been cut off here.
    let stranger = ToFrontEnd::Over { cut_off: vec![(Rank(FIRST + 1), Channel::Stdout)] };
    assert_eq!(send(&mut front, stranger), Err(EdgeError::Rank(Rank(FIRST + 1))));
    send(&mut front, ToFrontEnd::Over { cut_off: vec![(Rank(FIRST), Channel::Stdout)] }).unwrap();
    assert!(front.is_over());
    let taken = || ToFrontEnd::StdinTaken { call: 7, answer: Ok(Vec::new()) };
    assert_eq!(send(&mut front, taken()), Err(EdgeError::Call(7)), "not sent");
    front.note_call(7);
    send(&mut front, taken()).unwrap();
    assert_eq!(send(&mut front, taken()), Err(EdgeError::Call(7)), "answered twice");
    send(&mut front, ToFrontEnd::Produced(Vec::new())).unwrap();
    assert_eq!(send(&mut front, ToFrontEnd::Ready), Err(EdgeError::Unexpected("control message")));
}

#[test]
fn a_stream_that_was_pulled_begins_anywhere_and_goes_on_and_others_are_refused() {
    let stream = StreamKey { rank: Rank(FIRST), channel: Channel::Stderr };
    let other = StreamKey { channel: Channel::Stdout, ..stream };
    let pull = |number| StreamPull { number, rank: stream.rank, channel: stream.channel };
    let begun = || {
        let mut front = started();
        front.begin_pulls(&[pull(1), pull(3)]);
        front
    };
    let record = |pull, stream, offset| Frame::Record {
        pull,
        stream,
        offset,
        time: 0,
        input: InputState::UNBUFFERED,
        bytes: b"some",
    };
    let end = |pull, produced| Frame::End { pull, stream, produced };
    let now = Instant::now();
    for frames in [
        vec![record(4, stream, 0)],
        vec![record(1, other, 0)],
        vec![record(1, StreamKey { rank: Rank(FIRST + 1), ..stream }, 0)],
        vec![record(1, stream, 7), record(1, stream, 7)],
        vec![record(1, stream, 7), record(1, stream, 12)],
        vec![record(1, stream, 7), end(1, 12)],
        vec![end(1, 0), record(1, stream, 0)],
        vec![record(1, stream, MAX_STREAM)],
        vec![Frame::Gap { pull: 1, stream, offset: 0, lost: MAX_STREAM + 1 }],
        vec![Frame::Record {
            pull: 1,
            stream,
            offset: 0,
            time: 0,
            input: InputState::UNBUFFERED,
            bytes: b"",
        }],
    ] {
        let (mut front, mut frames) = (begun(), frames);
        let last = frames.pop().unwrap();
        frames.iter().for_each(|frame| drop(front.receive(frame, now).unwrap()));
        assert!(front.receive(&last, now).is_err(), "{last:?} after {frames:?}");
    }
    let mut front = begun();
    for frame in [record(1, stream, 7), record(3, stream, 0), record(1, stream, 11), end(1, 15)] {
        front.receive(&frame, now).unwrap();
    }
    let open: Vec<_> = front.open_pulls().map(|open| (open.pull, open.position)).collect();
    assert_eq!(open, [(3, 4)]);
    // What was sent before the end of a pull may arrive after it, and takes window.
    front.end_pulls(&[3]);
    let late = Frame::Record {
        pull: 3,
        stream,
        offset: 4,
        time: 0,
        input: InputState::UNBUFFERED,
        bytes: &[0; MAX_RECORD],
    };
    let mut received = 0u64;
    while front.receive(&late, now).is_ok() {
        received += 1;
    }
    assert!((1..=MAX_WINDOW / MAX_RECORD as u64).contains(&received), "{received}");
    assert!(front.open_pulls().next().is_none());
    // The output of the node is another matter.
    front
        .receive(
            &Frame::Record {
                pull: 0,
                stream,
                offset: 0,
                time: 0,
                input: InputState::UNBUFFERED,
                bytes: b"x",
            },
            now,
        )
        .unwrap();
}

#[test]
fn the_windows_of_all_nodes_are_bounded_together() {
    assert_eq!((window(8), window(16)), (2 << 20..=MAX_WINDOW, 1 << 20..=MAX_WINDOW));
    assert_eq!(window(32), 1 << 20..=MAX_WINDOW);
    assert_eq!(window(128), 1 << 20..=1 << 20);
    for nodes in 1..=MAX_NODES {
        let (least, most) = window(nodes).into_inner();
        assert!(2 * nodes as u64 * most <= MAX_WINDOWS, "{nodes}");
        assert!(least <= most && least > 2 * MAX_RECORD as u64 - 1, "{nodes}");
    }
}

/// Sends records for some seconds over a carrier with this round trip and rate, in milliseconds and in
/// bytes a millisecond, to a reader that takes so much, in a job on this number of nodes. Returns the rate in the last half, and the
/// most that was under way.
fn flow(nodes: usize, round_trip: u64, rate: u64, reader: u64) -> (u64, u64) {
    let (mut agent, mut front) = (AgentEnd::default(), started_with(window(nodes)));
    let stream = StreamKey { rank: Rank(FIRST), channel: Channel::Stdout };
    let (bytes, epoch) = (vec![0; MAX_RECORD / 4], Instant::now());
    let cost = (bytes.len() + HEADER) as u64;
    agent.receive(&Frame::HELLO).unwrap();
    let (mut down, mut up) = (VecDeque::new(), VecDeque::<u64>::new());
    down.push_back((0, Frame::Credit { bundle: Bundle::Stdout, bytes: *window(nodes).start() }));
    let (mut sent, mut waiting, mut taken, mut most) = (0u64, 0u64, 0, 0);
    let (mut may_take, mut half, mut link_free) = (0, 0, 0u64);
    for now in 0..2000 {
        let time = epoch + Duration::from_millis(now);
        let arrived = down.partition_point(|(arrives, _)| *arrives <= now);
        for (_, credit) in down.drain(..arrived) {
            agent.receive(&credit).unwrap();
        }
        while agent.take_window(Bundle::Stdout, bytes.len()) {
            link_free = link_free.max(now * rate) + cost;
            up.push_back(link_free / rate + round_trip / 2);
        }
        most = most.max((up.len() as u64 + waiting) * cost);
        for _ in up.drain(..up.partition_point(|arrives| *arrives <= now)) {
            let offset = sent * bytes.len() as u64;
            front
                .receive(
                    &Frame::Record {
                        pull: 0,
                        stream,
                        offset,
                        time: 0,
                        input: InputState::UNBUFFERED,
                        bytes: &bytes,
                    },
                    time,
                )
                .unwrap();
            (sent, waiting) = (sent + 1, waiting + 1);
        }
        may_take = (may_take + reader).min(reader.max(waiting * cost));
        while waiting > 0 && may_take >= cost {
            (waiting, may_take, taken) = (waiting - 1, may_take - cost, taken + cost);
            let credit = front.taken(Bundle::Stdout, bytes.len(), time);
            down.extend(credit.map(|credit| (now + round_trip / 2, credit)));
        }
        if now == 1000 {
            half = taken;
        }
    }
    ((taken - half) / 1000, most)
}

#[test]
fn a_window_follows_the_product_of_rate_and_round_trip_up_to_its_limit() {
    // 100 ms at the 20 MB/s that a window of 2 MiB allows, and more than the limit allows.
    let (rate, most) = flow(16, 100, 21_000, 1 << 20);
    assert!(rate > 20_000 && most <= MAX_WINDOW, "{rate} {most}");
    let (rate, most) = flow(16, 100, 1 << 20, 1 << 20);
    assert!(rate > 30_000 && (MAX_WINDOW / 2..=MAX_WINDOW).contains(&most), "{rate} {most}");
}

#[test]
fn a_window_does_not_grow_for_a_short_round_trip_a_slow_carrier_or_a_slow_reader() {
    for (round_trip, rate, reader) in
        [(0, 1 << 20, 1 << 20), (2, 100_000, 1 << 20), (2, 10_000, 1 << 20), (100, 1 << 20, 3000)]
    {
        let (achieved, most) = flow(16, round_trip, rate, reader);
        let bound = rate.min(reader);
        assert!(achieved >= bound * 9 / 10 || round_trip == 0, "{round_trip} {rate} {reader}: {achieved}");
        assert!(most <= 3 << 20, "{round_trip} {rate} {reader}: {most}");
    }
}

#[test]
fn an_agent_that_does_not_read_its_answers_is_refused() {
    let mut front = started();
    let message = ToFrontEnd::Log { call: 1, log: Log::to(["x"], "") }.frame().unwrap();
    let stream = StreamKey { rank: Rank(FIRST), channel: Channel::Stdout };
    let log = Frame::Control(&message[HEADER..]);
    let record =
        Frame::Record { pull: 0, stream, offset: 0, time: 0, input: InputState::UNBUFFERED, bytes: b"x" };
    let mut answers = Vec::new();
    for _ in 0..MAX_ANSWERS_OF_NODE {
        front.receive(&log, Instant::now()).unwrap();
        answers.push(front.answer());
    }
    for frame in [log, record] {
        assert_eq!(front.receive(&frame, Instant::now()), Err(EdgeError::Answers(MAX_ANSWERS_OF_NODE)));
    }
    answers.pop();
    for frame in [log, record] {
        front.receive(&frame, Instant::now()).unwrap();
    }
}

#[test]
fn a_node_that_is_cut_off_is_broken_once_and_its_frames_mean_nothing_from_then_on() {
    let mut front = started();
    let stream = StreamKey { rank: Rank(FIRST), channel: Channel::Stdout };
    let record =
        Frame::Record { pull: 0, stream, offset: 0, time: 0, input: InputState::UNBUFFERED, bytes: b"some" };
    front.receive(&record, Instant::now()).unwrap();
    let broken = front.cut().unwrap();
    assert_eq!((broken.streams.len(), broken.streams[0].delivered), (Channel::OUTPUTS.len(), 4));
    for frame in [record, Frame::HELLO] {
        assert_eq!(front.receive(&frame, Instant::now()), Ok(FrontEvent::None));
    }
    assert_eq!(front.cut(), None);
}

#[test]
fn an_agent_that_ignores_its_window_is_refused() {
    let mut front = started();
    let stream = StreamKey { rank: Rank(FIRST), channel: Channel::Stdout };
    let bytes = vec![0; MAX_RECORD];
    let sent = (0u64..).map_while(|number| {
        let offset = number * MAX_RECORD as u64;
        front
            .receive(
                &Frame::Record {
                    pull: 0,
                    stream,
                    offset,
                    time: 0,
                    input: InputState::UNBUFFERED,
                    bytes: &bytes,
                },
                Instant::now(),
            )
            .ok()
            .map(drop)
    });
    assert_eq!(sent.count() as u64, MAX_WINDOW / (MAX_RECORD + HEADER) as u64);
}
