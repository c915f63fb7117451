//! `iof top`: a live screen of an engine's streams.
//!
//! Three threads wait for keys, for signals and for the engine's answers, and send events. The main
//! thread handles the events and draws.

mod board;
mod draw;
mod filter;
mod once;
mod row;
mod screen;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use iof_proto::limits::MAX_NSPACE;
use iof_proto::{Proc, StreamStats};
use iof_tool::{LostError, RequestError, Tool};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

#[cfg(test)]
pub use self::board::tests::stream;
use self::board::{Board, Prompt, Scroll};
use self::filter::RowFilter;
use self::row::Sort;
use self::screen::Screen;
use crate::args::TopArgs;
use crate::commands::attach::{attach, query_procs, query_streams};
use crate::commands::query::check_ranks;
use crate::error::Failure;
use crate::processes::signals::{self, Signals};
use crate::terminal::message::print_message;

/// The capacity of the event queue. Senders block when it is full, so that a slow terminal costs no
/// memory.
const MAX_EVENTS: usize = 16;

/// How long a terminal that accepts no output may delay the end by a signal.
const GRACE: Duration = Duration::from_secs(2);

/// An event that the screen waits for.
enum ScreenEvent {
    /// The engine's streams, with the time of the answer.
    Sample(Instant, Vec<StreamStats>),
    /// The hosts of all ranks, because a rank was not known before.
    Hosts(BTreeMap<Proc, String>),
    /// A query of the engine failed.
    Lost(RequestError),
    Input(Input),
    /// Reading from the terminal failed.
    NoInput(std::io::Error),
    Signal(Signal),
}

/// The reaction to an event.
enum Reaction {
    Continue,
    Redraw,
    Suspend,
    /// Ends the command, as the user demands.
    Quit,
    /// Ends the command, because the engine has ended.
    EngineEnded,
}

/// Shows the streams until the user quits or the engine ends.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let screen = if args.once { None } else { Some(Screen::new()?) };
    let selected = args.engine.select();
    let mut tool = attach(&selected, "iof top")?;
    let filter = RowFilter { ranks: args.rank.clone(), channels: args.channel, job: selected.nspace };
    check_ranks(&mut tool, filter.ranks.as_ref(), filter.job.as_ref())?;
    let engine = tool.engine_pid();
    let mut board = Board::new(engine, args.interval);
    (board.filter, board.by_rank) = (filter, args.by_rank);
    let Some(mut screen) = screen else { return once::print_once(args, &mut tool, &mut board) };
    let signals = Signals::take_ending().map_err(Failure::running)?;
    let (events, event_queue) = bounded(MAX_EVENTS);
    let interval = args.interval;
    watch("iof-signals", events.clone(), move |events| watch_signals(&signals, events))?;
    watch("iof-engine", events.clone(), move |events| watch_engine(tool, interval, events))?;
    watch("iof-keys", events, watch_keys)?;
    let engine_ended = show(&mut screen, &mut board, &event_queue);
    // Restores the terminal before any message.
    drop(screen);
    if engine_ended? {
        print_message(format_args!("the engine (pid {engine}) has ended"));
    }
    Ok(())
}

/// Draws the screen and handles events. Returns `true` if the engine has ended, `false` if the user
/// quits.
fn show(screen: &mut Screen, board: &mut Board, events: &Receiver<ScreenEvent>) -> Result<bool, Failure> {
    loop {
        // In the background nothing is drawn: the terminal belongs to another process group.
        if screen.acquire_in_foreground().map_err(no_terminal)? {
            screen.draw(|frame| draw::draw(frame, board)).map_err(no_terminal)?;
        }
        let event = match events.recv_timeout(board.interval) {
            Ok(event) => event,
            // Redraws, so that the screen shows an engine that does not answer.
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        };
        match handle(board, event)? {
            Reaction::Continue => {}
            Reaction::Redraw => screen.clear().map_err(no_terminal)?,
            Reaction::Suspend => {
                screen.restore();
                signals::stop_by(Signal::SIGTSTP);
            }
            Reaction::Quit => return Ok(false),
            Reaction::EngineEnded => return Ok(true),
        }
    }
}

fn no_terminal(error: std::io::Error) -> Failure {
    Failure::running(format!("cannot use the terminal: {error}"))
}

fn handle(board: &mut Board, event: ScreenEvent) -> Result<Reaction, Failure> {
    match event {
        ScreenEvent::Sample(time, streams) => board.update(time, streams),
        ScreenEvent::Hosts(hosts) => board.hosts = hosts,
        ScreenEvent::Lost(RequestError::Lost(LostError::Closed)) => return Ok(Reaction::EngineEnded),
        ScreenEvent::Lost(error) => return Err(Failure::running(error)),
        ScreenEvent::Input(Input::Key(key)) if key.kind != KeyEventKind::Release => {
            return Ok(pressed(board, key));
        }
        // The next drawing reads the new size.
        ScreenEvent::Input(_) | ScreenEvent::Signal(Signal::SIGCONT) => {}
        ScreenEvent::NoInput(error) => return Err(no_terminal(error)),
        ScreenEvent::Signal(Signal::SIGTSTP) => return Ok(Reaction::Suspend),
        ScreenEvent::Signal(signal) => return Err(Failure::Signal(signal)),
    }
    Ok(Reaction::Continue)
}

fn pressed(board: &mut Board, key: KeyEvent) -> Reaction {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Reaction::Quit,
            KeyCode::Char('z') => Reaction::Suspend,
            KeyCode::Char('l') => Reaction::Redraw,
            KeyCode::Char('u') => {
                if let Some(prompt) = &mut board.prompt {
                    *prompt = Prompt::default();
                }
                Reaction::Continue
            }
            _ => Reaction::Continue,
        };
    }
    if board.prompt.is_some() {
        answer(board, key.code);
        return Reaction::Continue;
    }
    match key.code {
        KeyCode::Char('q') => return Reaction::Quit,
        KeyCode::Char('f') => board.prompt = Some(Prompt::of(&board.filter)),
        KeyCode::Char('i') => board.toggle_idle(),
        KeyCode::Char('s') => board.toggle_sums(),
        KeyCode::Char(letter) => {
            if let Some(sort) = Sort::of_key(letter) {
                board.sort_by(sort);
            }
        }
        KeyCode::Up => board.scroll(Scroll::Up),
        KeyCode::Down => board.scroll(Scroll::Down),
        KeyCode::PageUp => board.scroll(Scroll::PageUp),
        KeyCode::PageDown => board.scroll(Scroll::PageDown),
        KeyCode::Home => board.scroll(Scroll::First),
        KeyCode::End => board.scroll(Scroll::Last),
        _ => {}
    }
    Reaction::Continue
}

/// Handles a key that is typed at the prompt for a filter.
fn answer(board: &mut Board, key: KeyCode) {
    let Some(prompt) = &mut board.prompt else { return };
    prompt.error = None;
    match key {
        KeyCode::Esc => board.prompt = None,
        KeyCode::Backspace => drop(prompt.text.pop()),
        KeyCode::Enter => match RowFilter::parse(&prompt.text) {
            Ok(filter) => {
                board.prompt = None;
                board.select(filter);
            }
            Err(error) => prompt.error = Some(error),
        },
        KeyCode::Char(letter) if prompt.text.len() < MAX_NSPACE => prompt.text.push(letter),
        _ => {}
    }
}

/// Starts a thread that sends events. It ends with the process, or when the queue has no receiver.
fn watch(
    name: &str,
    events: Sender<ScreenEvent>,
    body: impl FnOnce(&Sender<ScreenEvent>) + Send + 'static,
) -> Result<(), Failure> {
    let thread = thread::Builder::new().name(name.into());
    thread.spawn(move || body(&events)).map(drop).map_err(|error| {
        Failure::running(format!("cannot start a thread: {error}; raise RLIMIT_NPROC (`ulimit -u`)"))
    })
}

fn watch_signals(signals: &Signals, events: &Sender<ScreenEvent>) {
    while let Some(received) = signals.wait() {
        let signal = received.signal;
        let sent = events.send_timeout(ScreenEvent::Signal(signal), GRACE);
        if matches!(signal, Signal::SIGTSTP | Signal::SIGCONT) {
            continue;
        }
        if sent.is_ok() {
            thread::sleep(GRACE);
        }
        // The main thread is blocked on a terminal that accepts no output, and holds the lock of
        // stdout.
        screen::restore_settings();
        signals::end_by(signal);
    }
}

fn watch_keys(events: &Sender<ScreenEvent>) {
    loop {
        let event = match event::read() {
            Ok(input) => ScreenEvent::Input(input),
            Err(error) => {
                let _ = events.send(ScreenEvent::NoInput(error));
                return;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Queries the engine. The interval starts at an answer, not at the query before it, so that a slow
/// engine is queried less often.
fn watch_engine(mut tool: Tool, interval: Duration, events: &Sender<ScreenEvent>) {
    let wait = PollTimeout::try_from(interval).unwrap_or(PollTimeout::MAX);
    let mut hosts = BTreeMap::new();
    loop {
        let event = match query_streams(&mut tool) {
            Ok(streams) => {
                let time = Instant::now();
                if streams.iter().any(|stream| !hosts.contains_key(&stream.source)) {
                    // A failure of this query is one of the next query, too.
                    let procs = query_procs(&mut tool).unwrap_or_default();
                    hosts = procs.into_iter().map(|info| (info.proc, info.host)).collect();
                    // What belongs to a job as a whole has no host.
                    for stream in &streams {
                        hosts.entry(stream.source.clone()).or_default();
                    }
                    if events.send(ScreenEvent::Hosts(hosts.clone())).is_err() {
                        return;
                    }
                }
                ScreenEvent::Sample(time, streams)
            }
            Err(error) => ScreenEvent::Lost(error),
        };
        let over = matches!(event, ScreenEvent::Lost(_));
        if events.send(event).is_err() || over {
            return;
        }
        // A tool without a registration becomes readable only when its engine is gone, which ends
        // the wait at once.
        let _ = poll(&mut [PollFd::new(tool.as_fd(), PollFlags::POLLIN)], wait);
    }
}
