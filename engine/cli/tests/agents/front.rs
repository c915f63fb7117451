//! A front end that a test plays: the frames of one agent.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write, pipe};
use std::mem;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use iof_engine::{App, JobSpec, Policy, Rendezvous};
use iof_nodes::{
    Bundle, Frame, FrameDecoder, FrontEnd, FrontEvent, HEADER, LinkAddress, LinkEnd, NodeConfig, NodeStart,
    RankTotal, ToAgent, ToFrontEnd, window,
};
use iof_proto::{Channel, Nspace, Rank};

use iof_testing::command::site::{Site, iof};
use iof_testing::process::Process;

/// A time that no test waits for, in milliseconds.
pub const LONG: u64 = 1_000_000;

/// The items that arrive from an agent.
#[derive(Debug, PartialEq)]
pub enum Arrived {
    Stdout(Vec<u8>),
    End(Channel),
    Message(ToFrontEnd),
}

/// The front end of one agent.
pub struct Front {
    pub agent: Process,
    pub down: File,
    pub up: File,
    pub decoder: FrameDecoder,
    pub end: FrontEnd,
    pub link: LinkEnd,
    /// The rank whose output arrived last.
    pub writer: Rank,
}

impl Front {
    /// Starts an agent, and greets it.
    pub fn start() -> Front {
        Front::start_with(FrontEnd::new(&ranks(), window(1)))
    }

    /// Starts an agent, and greets it as `end` does.
    pub fn start_with(end: FrontEnd) -> Front {
        let mut agent = Process::start(&mut agent());
        let files = (OwnedFd::from(agent.stdin()), OwnedFd::from(agent.stdout()));
        Front::greet_with(end, agent, files, LinkEnd::default())
    }

    pub fn greet(agent: Process, files: (OwnedFd, OwnedFd), link: LinkEnd) -> Front {
        Front::greet_with(FrontEnd::new(&ranks(), window(1)), agent, files, link)
    }

    fn greet_with(end: FrontEnd, agent: Process, (down, up): (OwnedFd, OwnedFd), link: LinkEnd) -> Front {
        let decoder = FrameDecoder::of_agent();
        let greeting = end.greeting();
        let mut front =
            Front { agent, down: down.into(), up: up.into(), decoder, end, link, writer: Rank(0) };
        front.write(&greeting);
        front
    }

    /// Ends the carrier.
    pub fn cut(&mut self) {
        let null = || File::options().read(true).write(true).open("/dev/null").unwrap();
        (self.down, self.up) = (null(), null());
    }

    pub fn send(&mut self, message: &ToAgent) {
        self.write(&message.frame().unwrap());
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.link.send(bytes);
        self.link.write_to(&mut self.down).unwrap();
    }

    /// Starts rank 0, which runs this script. Parts of its lines wait for this number of
    /// milliseconds.
    pub fn run(&mut self, script: &str, max_line_time: u64) {
        self.run_as(start(script, max_line_time));
    }

    /// Starts ranks.
    pub fn run_as(&mut self, start: NodeStart) {
        self.send(&ToAgent::Start(start.into()));
        assert_eq!(self.next(), Arrived::Message(ToFrontEnd::Ready));
        self.send(&ToAgent::Go);
        assert!(matches!(self.next(), Arrived::Message(ToFrontEnd::Started { .. })));
    }

    /// Waits for the total that a rank has written this number of bytes to stdout.
    pub fn expect_total(&mut self, rank: Rank, produced: u64) {
        let is_meant = |total: &RankTotal| {
            (total.rank, total.channel, total.produced) == (rank, Channel::Stdout, produced)
        };
        loop {
            match self.next_or_total() {
                Arrived::Message(ToFrontEnd::Produced(totals)) if totals.iter().any(is_meant) => return,
                Arrived::Message(ToFrontEnd::Produced(_)) => {}
                arrived => panic!("{arrived:?}"),
            }
        }
    }

    /// Gives credit for a record of this number of bytes.
    pub fn credit(&mut self, bytes: usize) {
        let credit = self.end.taken(Bundle::Stdout, bytes, Instant::now()).unwrap();
        let mut frame = Vec::new();
        credit.append_to(&mut frame);
        self.write(&frame);
    }

    /// Returns what arrives next that is not a total.
    pub fn next(&mut self) -> Arrived {
        loop {
            match self.next_or_total() {
                Arrived::Message(ToFrontEnd::Produced(_)) => {}
                arrived => return arrived,
            }
        }
    }

    pub fn next_or_total(&mut self) -> Arrived {
        loop {
            while let Some(frame) = self.decoder.decode().unwrap() {
                match self.end.receive(&frame, Instant::now()).unwrap() {
                    FrontEvent::None | FrontEvent::Greeted => {}
                    FrontEvent::Output(Frame::Record { stream, bytes, .. }) => {
                        self.writer = stream.rank;
                        return Arrived::Stdout(bytes.to_vec());
                    }
                    FrontEvent::Output(Frame::End { stream, .. }) => return Arrived::End(stream.channel),
                    FrontEvent::Message(message) => return Arrived::Message(message),
                    FrontEvent::Output(frame) => panic!("{frame:?}"),
                }
            }
            let mut piece = [0; 4096];
            let length = self.up.read(&mut piece).unwrap();
            assert!(length > 0, "the agent has ended");
            self.link.receive(length);
            self.decoder.receive(&piece[..length]);
        }
    }
}

/// Returns the command of an agent. A test that waits in vain ends.
pub fn agent() -> Command {
    let iof = iof();
    let mut agent = Command::new("timeout");
    for (name, _) in iof.get_envs().filter(|(_, value)| value.is_none()) {
        agent.env_remove(name);
    }
    agent.arg("60").arg(iof.get_program()).arg("agent");
    agent
}

/// A front end whose carriers are sockets, and are replaced.
pub struct LinkedFront {
    pub front: Front,
    pub address: LinkAddress,
}

impl LinkedFront {
    /// Starts an agent, and greets it.
    pub fn greet() -> Front {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut agent = agent();
        let agent = Process::start_with_its_files(with_files(agent.args(["--reattach", "1000"]), theirs));
        let mut link = LinkEnd::default();
        link.outlive_carriers(Duration::from_secs(1000));
        Front::greet(agent, both(ours), link)
    }

    /// Starts an agent, which is then ready to start rank 0 with this script.
    pub fn start(site: &Site, script: &str) -> LinkedFront {
        let mut front = LinkedFront::greet();
        let mut start = start(script, 0);
        start.config.rendezvous = Rendezvous::Agent(Some(site.path().into()));
        front.send(&ToAgent::Start(start.into()));
        let Arrived::Message(ToFrontEnd::Link(address)) = front.next() else { panic!("no address") };
        assert_eq!(front.next(), Arrived::Message(ToFrontEnd::Ready));
        LinkedFront { front, address }
    }

    /// Starts an agent, and rank 0, which runs this script.
    pub fn run(site: &Site, script: &str) -> LinkedFront {
        let mut linked = LinkedFront::start(site, script);
        linked.front.send(&ToAgent::Go);
        linked.expect_start();
        linked
    }

    pub fn expect_start(&mut self) {
        assert!(matches!(self.front.next(), Arrived::Message(ToFrontEnd::Started { .. })));
    }

    /// Begins an attempt to bring another carrier. Returns what that one begins with.
    pub fn attempt(&mut self) -> [u8; HEADER] {
        let link = &mut self.front.link;
        link.begin_attempt();
        link.resume_frame(self.address.session).header().unwrap()
    }

    /// Starts a carrier, which begins with these bytes. Returns its process and its two files: sockets,
    /// or pipes.
    pub fn start_link(&self, first: [u8; HEADER], is_pipe: bool) -> (Process, (File, File)) {
        let mut link = iof();
        link.arg("link").arg(&self.address.path);
        let (mut down, up): (File, File) = if is_pipe {
            let ((stdin, down), (up, stdout)) = (pipe().unwrap(), pipe().unwrap());
            link.stdin(stdin).stdout(stdout);
            (OwnedFd::from(down).into(), OwnedFd::from(up).into())
        } else {
            let (ours, theirs) = UnixStream::pair().unwrap();
            with_files(&mut link, theirs);
            let (down, up) = both(ours);
            (down.into(), up.into())
        };
        down.write_all(&first).unwrap();
        (Process::start_with_its_files(&mut link), (down, up))
    }

    /// Goes on over another carrier, which begins with these bytes. Returns its process, and the files
    /// of the one before.
    pub fn resume(&mut self, first: [u8; HEADER], is_pipe: bool) -> (Process, (File, File)) {
        let (process, (down, mut up)) = self.start_link(first, is_pipe);
        let (mut header, mut decoder) = ([0; HEADER], FrameDecoder::of_agent());
        up.read_exact(&mut header).unwrap();
        decoder.receive(&header);
        let frame = decoder.decode().unwrap().unwrap();
        assert!(matches!(frame, Frame::Resume { .. }), "{frame:?}");
        let front = &mut self.front;
        front.link.resume(self.address.session, &frame).unwrap();
        let before = (mem::replace(&mut front.down, down), mem::replace(&mut front.up, up));
        front.write(&[]);
        (process, before)
    }
}

/// Returns a command with a socket as its stdin and stdout.
pub fn with_files(command: &mut Command, socket: UnixStream) -> &mut Command {
    let (stdin, stdout) = both(socket);
    command.stdin(stdin).stdout(stdout)
}

/// Returns a socket as the two files of a carrier.
pub fn both(socket: UnixStream) -> (OwnedFd, OwnedFd) {
    (socket.try_clone().unwrap().into(), socket.into())
}

pub fn ranks() -> BTreeSet<Rank> {
    [Rank(0)].into()
}

pub fn start(script: &str, max_line_time: u64) -> NodeStart {
    let mut app = App::new("sh", ["-c", script]);
    app.cwd = Some("/".into());
    let mut spec = JobSpec::new(Nspace::new("demo").unwrap(), vec![app]);
    spec.local = Some(ranks());
    spec.kill_wait = Duration::from_secs(1);
    spec.hide_launcher = true;
    let config = NodeConfig {
        env: Vec::new(),
        cache_size: None,
        cache_total: 64 << 20,
        policy: Policy::Block,
        max_line: 64 << 10,
        max_line_time: Some(Duration::from_millis(max_line_time)),
        backend: None,
        rendezvous: Rendezvous::None,
        files: None,
    };
    NodeStart { spec, config }
}
