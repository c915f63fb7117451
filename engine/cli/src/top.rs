//! `iof top`: a live screen of the streams of one engine, or of all engines of the user.
//!
//! Threads wait for keys, for signals, and for the answers of each engine, and send events. The main
//! thread handles the events and draws.

mod board;
mod draw;
mod engine;
mod engines;
mod filter;
mod once;
mod prompt;
mod rank;
mod row;
mod screen;
mod view;

use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded, never};
use crossbeam::select;
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::board::Board;
#[cfg(test)]
pub use self::board::tests::stream;
use self::engines::Engines;
use self::filter::RowFilter;
use self::prompt::Prompt;
use self::row::Sort;
use self::screen::Screen;
use self::view::StreamView;
use crate::args::{TOP_HELP, TopArgs};
use crate::commands::attach::attach;
use crate::commands::query::check_ranks;
use crate::error::Failure;
use crate::options::engine::EngineArgs;
use crate::processes::signals::{self, Signals};
use crate::processes::threads::start_thread;
use crate::terminal::message::print_message;

/// The capacity of the event queue. Senders block when it is full, so that a slow terminal costs no
/// memory.
const MAX_EVENTS: usize = 16;

/// The time for which a terminal that accepts no output may delay the end by a signal.
const GRACE: Duration = Duration::from_secs(2);

/// The shortest time between two drawings that an engine causes.
const FRAME: Duration = Duration::from_millis(40);

/// An event that the screen waits for.
enum ScreenEvent {
    Input(std::io::Result<Input>),
    Signal(Signal),
}

/// The reaction to an event.
enum Reaction {
    Continue,
    Redraw,
    Suspend,
    /// Ends the command, as the user demands.
    Quit,
}

/// Shows the streams until the user quits or the engine ends.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let screen = if args.once { None } else { Some(Screen::new()?) };
    let selected = args.engine.select();
    let filter = RowFilter { ranks: args.rank.clone(), channels: args.channel, job: selected.nspace.clone() };
    let mut board = Board::new(args.interval, filter, args.by_rank);
    let is_any = EngineArgs { rendezvous_dir: None, ..selected.clone() }.is_any();
    let tool = (!is_any).then(|| attach(&selected, "iof top")).transpose()?;
    // All threads have the mask of signals.
    let signals = screen.is_some().then(Signals::take_ending).transpose().map_err(Failure::running)?;
    let engines = match tool {
        Some(mut tool) => {
            check_ranks(&mut tool, board.filter.ranks.as_ref(), board.filter.job.as_ref())?;
            Engines::one(tool, selected.search(), &mut board)?
        }
        None => Engines::all(selected.rendezvous_dir.as_deref(), &mut board)?,
    };
    let Some(mut screen) = screen else { return once::print_once(args, &mut board, &engines) };
    let (sender, event_queue) = bounded(MAX_EVENTS);
    let input = sender.clone();
    if let Some(signals) = signals {
        start_thread("iof-signals", move || watch_signals(&signals, &sender))?;
    }
    start_thread("iof-keys", move || watch_keys(&input))?;
    let engine = board.engines.values().find_map(|engine| engine.pid).unwrap_or(0);
    let engine_ended = show(&mut screen, &mut board, &engines, &event_queue);
    // Restores the terminal before any message.
    drop(screen);
    if engine_ended? {
        print_message(format_args!("the engine (pid {engine}) has ended"));
    }
    Ok(())
}

/// Draws the screen and handles events. Returns `true` if the only engine has ended, `false` if the user
/// quits.
fn show(
    screen: &mut Screen,
    board: &mut Board,
    engines: &Engines,
    events: &Receiver<ScreenEvent>,
) -> Result<bool, Failure> {
    let (mut looked, mut drawn, mut wait) = (Instant::now(), Instant::now(), Duration::ZERO);
    loop {
        if drawn.elapsed() >= wait {
            if looked.elapsed() >= board.interval {
                engines.find(board)?;
                looked = Instant::now();
            }
            // In the background nothing is drawn: the terminal belongs to another process group.
            if screen.acquire_in_foreground().map_err(no_terminal)? {
                screen.draw(|frame| draw::draw(frame, board)).map_err(no_terminal)?;
            }
            // Without answers, the next drawing shows an engine that has begun, or is silent.
            (drawn, wait) = (Instant::now(), board.interval.saturating_add(FRAME));
        }
        let pieces = board.view.as_ref().and_then(StreamView::pieces).unwrap_or_else(never);
        let event = select! {
            recv(events) -> event => {
                let Ok(event) = event else { return Ok(false) };
                event
            }
            recv(pieces) -> piece => {
                if let Some(view) = &mut board.view {
                    view.receive(piece.ok());
                }
                wait = wait.min(FRAME);
                continue;
            }
            recv(engines.events) -> event => {
                if let Ok(event) = event && engines.handle(board, event)? {
                    return Ok(true);
                }
                wait = wait.min(FRAME);
                continue;
            }
            default(wait.saturating_sub(drawn.elapsed())) => continue,
        };
        wait = Duration::ZERO;
        match handle(board, event)? {
            Reaction::Continue => {}
            Reaction::Redraw => screen.clear().map_err(no_terminal)?,
            Reaction::Suspend => {
                screen.restore();
                signals::stop_by(Signal::SIGTSTP);
            }
            Reaction::Quit => return Ok(false),
        }
    }
}

/// Opens the output of the row under the cursor.
fn open(board: &Board) -> Result<StreamView, String> {
    let row = board.at_cursor().ok_or("there is no stream")?;
    let engine = board.engines.get(&row.engine).filter(|engine| !engine.is_silent);
    StreamView::open(&board.viewers, row, &engine.ok_or("the engine does not answer")?.search)
}

fn no_terminal(error: std::io::Error) -> Failure {
    Failure::running(format!("cannot use the terminal: {error}"))
}

fn handle(board: &mut Board, event: ScreenEvent) -> Result<Reaction, Failure> {
    match event {
        ScreenEvent::Input(input) => match input.map_err(no_terminal)? {
            Input::Key(key) if key.kind != KeyEventKind::Release => return Ok(pressed(board, key)),
            // The next drawing reads the new size.
            _ => {}
        },
        ScreenEvent::Signal(Signal::SIGCONT) => {}
        ScreenEvent::Signal(Signal::SIGTSTP) => return Ok(Reaction::Suspend),
        ScreenEvent::Signal(signal) => return Err(Failure::Signal(signal)),
    }
    Ok(Reaction::Continue)
}

fn pressed(board: &mut Board, key: KeyEvent) -> Reaction {
    board.notice = None;
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        match key.code {
            KeyCode::Char('c') => return Reaction::Quit,
            KeyCode::Char('z') => return Reaction::Suspend,
            KeyCode::Char('l') => return Reaction::Redraw,
            KeyCode::Char('u') => board.typed().into_iter().for_each(|prompt| *prompt = Prompt::default()),
            _ => {}
        }
        return Reaction::Continue;
    }
    if key.code == KeyCode::Char('?') && board.typed().is_none() && board.help.is_none() {
        board.help = Some(StreamView::of_text("keys of iof top", TOP_HELP));
        return Reaction::Continue;
    }
    let shown = if board.help.is_some() { &mut board.help } else { &mut board.view };
    if let Some(view) = shown {
        if view.pressed(key.code) {
            *shown = None;
        }
        return Reaction::Continue;
    }
    if board.prompt.is_some() {
        if let Some(text) = Prompt::pressed(&mut board.prompt, key.code) {
            match RowFilter::parse(&text) {
                Ok(filter) => board.filter = filter,
                Err(error) => board.prompt = Some(Prompt { text, error: Some(error) }),
            }
        }
        return Reaction::Continue;
    }
    match key.code {
        KeyCode::Char('q') => return Reaction::Quit,
        KeyCode::Char('f') => board.prompt = Some(Prompt::of(&board.filter)),
        KeyCode::Char('i') => board.toggle_idle(),
        KeyCode::Char('s') => board.by_rank = !board.by_rank,
        KeyCode::Char(' ') => board.toggle_fold(),
        KeyCode::Enter if board.is_folded_at_cursor() => board.toggle_fold(),
        KeyCode::Enter => match open(board) {
            Ok(view) => board.view = Some(view),
            Err(reason) => board.notice = Some(reason),
        },
        key => match key.as_char().and_then(Sort::of_key) {
            Some(sort) => board.sort_by(sort),
            None => board.scroll(key),
        },
    }
    Reaction::Continue
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
    while events.send(ScreenEvent::Input(event::read())).is_ok() {}
}
