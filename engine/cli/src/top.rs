//! `iof top`: a live screen of an engine's streams.
//!
//! Three threads wait (for keys, for signals, for the engine's answers) and say what they heard;
//! this one draws.

mod board;
mod draw;
mod screen;

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use iof_proto::query::key;
use iof_proto::{Found, StreamStats, Value};
use iof_tool::{LostError, RequestError, Tool};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::board::{Board, Move, Sort};
use self::screen::Screen;
use crate::args::TopArgs;
use crate::attach::{Name, attach};
use crate::signals::{self, Signals};
use crate::{Failure, print_message};

/// Events that wait to be handled: who has more to say waits, too, so that a slow terminal costs no
/// memory.
const MAX_EVENTS: usize = 16;

/// How long a terminal that takes nothing may keep a signal from ending us.
const GRACE: Duration = Duration::from_secs(2);

/// What the screen waits for.
enum Event {
    /// The engine's streams, and when they were so.
    Sample(Instant, Vec<StreamStats>),
    /// The engine gives no more.
    Lost(RequestError),
    Input(Input),
    /// The terminal gives no more.
    NoInput(std::io::Error),
    Signal(Signal),
}

/// What is to be done after an event.
enum Then {
    GoOn,
    Redraw,
    Suspend,
    /// The user has seen enough.
    Quit,
    EngineEnded,
}

/// Shows the streams until the user or the engine ends it.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let mut screen = Screen::new()?;
    let tool = attach(&args.engine, &Name::Top)?;
    let engine = tool.engine_pid();
    let signals = Signals::take_ending().map_err(Failure::running)?;
    let (events, received) = bounded(MAX_EVENTS);
    let interval = args.interval;
    watch("iof-signals", events.clone(), move |events| watch_signals(&signals, events))?;
    watch("iof-engine", events.clone(), move |events| watch_engine(tool, interval, events))?;
    watch("iof-keys", events, watch_keys)?;
    let ended = show(&mut screen, &mut Board::new(engine, interval), &received);
    // Before anything is said.
    drop(screen);
    if ended? {
        print_message(format_args!("the engine {engine} has ended"));
    }
    Ok(())
}

/// Draws what comes; whether it is the engine that has ended it.
fn show(screen: &mut Screen, board: &mut Board, events: &Receiver<Event>) -> Result<bool, Failure> {
    loop {
        // In the background nothing is shown, as the terminal is somebody else's.
        if screen.take_in_foreground().map_err(no_terminal)? {
            screen.draw(|frame| draw::draw(frame, board)).map_err(no_terminal)?;
        }
        let event = match events.recv_timeout(board.interval) {
            Ok(event) => event,
            // An engine that is silent is to be seen as such.
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        };
        match handle(board, event)? {
            Then::GoOn => {}
            Then::Redraw => screen.forget_shown().map_err(no_terminal)?,
            Then::Suspend => {
                screen.give_back();
                signals::stop_by(Signal::SIGTSTP);
            }
            Then::Quit => return Ok(false),
            Then::EngineEnded => return Ok(true),
        }
    }
}

fn no_terminal(error: std::io::Error) -> Failure {
    Failure::running(format!("the terminal can't be used: {error}"))
}

fn handle(board: &mut Board, event: Event) -> Result<Then, Failure> {
    match event {
        Event::Sample(at, streams) => board.update(at, streams),
        Event::Lost(RequestError::Lost(LostError::Closed)) => return Ok(Then::EngineEnded),
        Event::Lost(error) => return Err(Failure::running(error)),
        Event::Input(Input::Key(key)) if key.kind != KeyEventKind::Release => return Ok(pressed(board, key)),
        // The next drawing looks at the size.
        Event::Input(_) | Event::Signal(Signal::SIGCONT) => {}
        Event::NoInput(error) => return Err(no_terminal(error)),
        Event::Signal(Signal::SIGTSTP) => return Ok(Then::Suspend),
        Event::Signal(signal) => return Err(Failure::Signal(signal)),
    }
    Ok(Then::GoOn)
}

fn pressed(board: &mut Board, key: KeyEvent) -> Then {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Then::Quit,
            KeyCode::Char('z') => Then::Suspend,
            KeyCode::Char('l') => Then::Redraw,
            _ => Then::GoOn,
        };
    }
    match key.code {
        KeyCode::Char('q') => return Then::Quit,
        KeyCode::Char(letter) => {
            if let Some(sort) = Sort::of_key(letter) {
                board.sort_by(sort);
            }
        }
        KeyCode::Up => board.scroll(Move::Up),
        KeyCode::Down => board.scroll(Move::Down),
        KeyCode::PageUp => board.scroll(Move::PageUp),
        KeyCode::PageDown => board.scroll(Move::PageDown),
        KeyCode::Home => board.scroll(Move::First),
        KeyCode::End => board.scroll(Move::Last),
        _ => {}
    }
    Then::GoOn
}

/// The thread ends with the process, or when nobody listens any more.
fn watch(
    name: &str,
    events: Sender<Event>,
    body: impl FnOnce(&Sender<Event>) + Send + 'static,
) -> Result<(), Failure> {
    let thread = thread::Builder::new().name(name.into());
    thread.spawn(move || body(&events)).map(drop).map_err(|error| {
        Failure::running(format!("no thread for the command: {error}; raise RLIMIT_NPROC (`ulimit -u`)"))
    })
}

fn watch_signals(signals: &Signals, events: &Sender<Event>) {
    while let Some(received) = signals.wait() {
        let signal = received.signal;
        let sent = events.send_timeout(Event::Signal(signal), GRACE);
        if matches!(signal, Signal::SIGTSTP | Signal::SIGCONT) {
            continue;
        }
        if sent.is_ok() {
            thread::sleep(GRACE);
        }
        // Who draws is stuck in a terminal that takes nothing, and has the lock on stdout.
        screen::restore_settings();
        signals::die_of(signal);
    }
}

fn watch_keys(events: &Sender<Event>) {
    loop {
        let event = match event::read() {
            Ok(input) => Event::Input(input),
            Err(error) => {
                let _ = events.send(Event::NoInput(error));
                return;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Asks again when the time is over since the last answer, not since the last question: so an
/// engine that is slow to answer is asked less often.
fn watch_engine(mut tool: Tool, interval: Duration, events: &Sender<Event>) {
    let wait = PollTimeout::try_from(interval).unwrap_or(PollTimeout::MAX);
    loop {
        let event = match tool.query(&[key::IOF_STATS]) {
            Ok(found) => Event::Sample(Instant::now(), found.into_iter().flat_map(streams).collect()),
            Err(error) => Event::Lost(error),
        };
        let over = matches!(event, Event::Lost(_));
        if events.send(event).is_err() || over {
            return;
        }
        // A tool without a registration hears only that its engine is gone, so that this needs no time to
        // be seen.
        let _ = poll(&mut [PollFd::new(tool.as_fd(), PollFlags::POLLIN)], wait);
    }
}

fn streams(found: Found) -> Vec<StreamStats> {
    match found.value {
        Value::Streams(streams) => streams,
        _ => Vec::new(),
    }
}
