//! Writes the output of registrations without a callback to the program's own stdout and stderr, or
//! to files, in the formats that the program requests.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use iof_output::{Files, LinePrinter, Output, PrintError, Processes, Run};
use iof_proto::{Channel, Channels, Found, Nspace, Proc};
use iof_tool::{Bytes, Gap, LastRead, Origin};

use crate::infos::format::{Formats, Print};
use crate::session::stdio::program_file;

/// The printers of all registrations.
pub(crate) struct Printers {
    formats: Arc<Formats>,
    registrations: BTreeMap<u32, Print>,
    /// The printers of each registration for each of its jobs.
    jobs: BTreeMap<(u32, Nspace), Vec<Printer>>,
    /// The program's stdout and stderr, unless they are closed. Opened when they are first needed.
    outputs: Option<[Option<Output>; 2]>,
    processes: Processes,
    /// Bytes of a process for which the engine has to be queried first.
    held: Option<Held>,
}

/// A printer, and the channels that it writes.
struct Printer {
    channels: Channels,
    lines: LinePrinter,
}

/// A copy of a delivery, which waits.
pub(crate) struct Held {
    handler: u32,
    source: Proc,
    channel: Channel,
    logged: bool,
    content: Content,
}

/// The content of a delivery to a printer.
pub(crate) enum Content {
    Bytes {
        bytes: Vec<u8>,
        offset: u64,
        times: Vec<(u64, u64)>,
        last: Option<LastRead>,
    },
    /// The stream has ended.
    End,
    Gap(Gap),
    /// The stream has ended before its output.
    Broken {
        produced: u64,
        missing: u64,
    },
}

impl Held {
    pub(crate) fn new(origin: &Origin<'_>, content: Content) -> Held {
        let Origin { handler, channel, logged, .. } = *origin;
        Held { handler, source: origin.source.clone(), channel, logged, content }
    }

    pub(crate) fn bytes(bytes: &Bytes<'_>) -> Held {
        let mut times = Vec::new();
        bytes.times(&mut times);
        let (offset, last) = (bytes.offset(), bytes.last_read());
        let content = Content::Bytes { bytes: bytes.to_vec(), offset, times, last };
        Held::new(&bytes.origin(), content)
    }

    fn origin(&self) -> Origin<'_> {
        let Held { handler, channel, logged, .. } = *self;
        Origin { handler, source: &self.source, channel, logged }
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        if let Content::Bytes { bytes, .. } = &self.content { bytes.len() } else { 0 }
    }
}

impl Printers {
    pub(crate) fn new(formats: Arc<Formats>) -> Printers {
        Printers {
            formats,
            registrations: BTreeMap::new(),
            jobs: BTreeMap::new(),
            outputs: None,
            processes: Processes::default(),
            held: None,
        }
    }

    /// Begins to write the output of a registration.
    pub(crate) fn register(&mut self, handler: u32, print: Print) {
        self.registrations.insert(handler, print);
    }

    /// Returns whether the output of a registration is written here.
    pub(crate) fn has(&self, handler: u32) -> bool {
        self.registrations.contains_key(&handler)
    }

    /// Writes the rest of a registration's output, and ends it.
    pub(crate) fn deregister(&mut self, handler: u32) {
        self.registrations.remove(&handler);
        let is_ended = |(of, _): &(u32, Nspace), _: &mut Vec<Printer>| *of == handler;
        let ended: Vec<_> = self.jobs.extract_if(.., is_ended).map(|(_, printers)| printers).collect();
        ended.into_iter().for_each(|printers| self.end(printers));
    }

    /// Writes the rest of a job's output for a registration, after the ends of all its streams.
    pub(crate) fn end_job(&mut self, handler: u32, nspace: &Nspace) {
        if let Some(printers) = self.jobs.remove(&(handler, nspace.clone())) {
            self.end(printers);
        }
    }

    /// Writes the rests of all output.
    pub(crate) fn end_all(&mut self) {
        for printers in std::mem::take(&mut self.jobs).into_values() {
            self.end(printers);
        }
    }

    fn end(&mut self, mut printers: Vec<Printer>) {
        for printer in &mut printers {
            let ended = printer.lines.end_all();
            self.is_usable(ended);
        }
    }

    /// Writes bytes, or holds them if [`Printers::lacks_process`] returns `true` afterwards.
    pub(crate) fn print(&mut self, bytes: &Bytes<'_>) {
        let origin = bytes.origin();
        if self.lacks(&origin) {
            self.held = Some(Held::bytes(bytes));
        } else {
            let mut times = Vec::new();
            bytes.times(&mut times);
            let run = Run { bytes, offset: bytes.offset(), times: &times };
            self.write(&origin, &run, bytes.last_read());
        }
    }

    /// Performs a delivery, or holds it if [`Printers::lacks_process`] returns `true` afterwards.
    pub(crate) fn perform(&mut self, held: Held) {
        if matches!(held.content, Content::Gap(_)) || !self.lacks(&held.origin()) {
            self.write_held(&held);
        } else {
            self.held = Some(held);
        }
    }

    fn write_held(&mut self, held: &Held) {
        let origin = held.origin();
        match &held.content {
            Content::Bytes { bytes, offset, times, last } => {
                self.write(&origin, &Run { bytes, offset: *offset, times }, *last);
            }
            Content::End => self.end_stream(&origin),
            Content::Gap(gap) => self.missing(&origin, gap),
            Content::Broken { produced, missing } => self.broken(&origin, *produced, *missing),
        }
    }

    /// Returns whether the engine has to be queried for the process whose bytes are held.
    pub(crate) fn lacks_process(&self) -> bool {
        self.held.is_some()
    }

    /// Adds the engine's answer, which may lack the process, and writes the bytes that are held.
    pub(crate) fn learn(&mut self, answer: Vec<Found>) {
        let Some(held) = self.held.take() else { return };
        self.processes.learn(&held.source, answer);
        self.write_held(&held);
    }

    /// Adds an answer that has arrived after its process was written without it.
    pub(crate) fn learn_late(&mut self, answer: Vec<Found>) {
        self.processes.add(answer);
    }

    /// Returns whether the engine has to be queried for the process of a stream.
    fn lacks(&mut self, origin: &Origin<'_>) -> bool {
        let processes = std::mem::take(&mut self.processes);
        let lacks = self.printers(origin).iter().any(|printer| printer.lines.lacks(origin, &processes));
        self.processes = processes;
        lacks
    }

    /// Writes bytes of a stream.
    fn write(&mut self, origin: &Origin<'_>, run: &Run<'_, '_>, last: Option<LastRead>) {
        let processes = std::mem::take(&mut self.processes);
        self.each(origin, |lines| lines.print(origin, run, last, &processes));
        self.processes = processes;
    }

    /// Writes the rest of a stream that has ended.
    fn end_stream(&mut self, origin: &Origin<'_>) {
        let processes = std::mem::take(&mut self.processes);
        self.each(origin, |lines| lines.end(origin, &processes));
        self.processes = processes;
    }

    /// Reports on stderr that bytes are missing, because stdout does not show it.
    fn missing(&mut self, origin: &Origin<'_>, gap: &Gap) {
        // Output from before the gap is written first.
        self.each(origin, |lines| lines.cut(origin));
        let (rank, channel, Gap { offset, lost }) = (origin.source.rank, origin.channel, gap);
        self.note(&format!("rank {rank} {channel}: {lost} bytes are missing at offset {offset}"));
    }

    /// Reports on stderr that a stream has ended, with `produced` bytes, before its output.
    fn broken(&mut self, origin: &Origin<'_>, produced: u64, missing: u64) {
        self.end_stream(origin);
        let (rank, channel) = (origin.source.rank, origin.channel);
        self.note(&format!(
            "rank {rank} {channel}: at least {missing} bytes are missing at offset {produced}: its output was not \
             read to its end"
        ));
    }

    /// Writes unfinished lines whose time has passed. Returns the time of the next such line.
    pub(crate) fn flush(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        let mut failed = Vec::new();
        for printers in self.jobs.values_mut() {
            printers.retain_mut(|printer| match printer.lines.flush(now) {
                Ok(due) => {
                    next = next.into_iter().chain(due).min();
                    true
                }
                Err(PrintError::Write(_)) => true,
                Err(error) => {
                    failed.push(error);
                    false
                }
            });
        }
        failed.iter().for_each(|error| self.note(&error.to_string()));
        next
    }

    /// Calls `write` with each printer of a stream. Ends those of files that cannot be written.
    fn each(
        &mut self,
        origin: &Origin<'_>,
        mut write: impl FnMut(&mut LinePrinter) -> Result<(), PrintError>,
    ) {
        let mut printers = std::mem::take(self.printers(origin));
        let channel = Channels::from(origin.channel);
        printers.retain_mut(|printer| {
            let is_meant = printer.channels.contains(channel);
            !is_meant || {
                let written = write(&mut printer.lines);
                self.is_usable(written)
            }
        });
        *self.printers(origin) = printers;
    }

    /// Returns whether a printer can be used further. Reports an error of a file. Errors of stdout
    /// and stderr are ignored: the program itself notices that the reader of its output has gone.
    fn is_usable(&mut self, written: Result<(), PrintError>) -> bool {
        match written {
            Ok(()) | Err(PrintError::Write(_)) => true,
            Err(error) => {
                self.note(&error.to_string());
                false
            }
        }
    }

    /// Writes a message to the program's stderr.
    fn note(&mut self, message: &str) {
        if let [_, Some(err)] = self.outputs() {
            // The message has no other place.
            let _ = err.notes().write_all(format!("iof: {message}\n").as_bytes());
        }
    }

    fn outputs(&mut self) -> &[Option<Output>; 2] {
        self.outputs.get_or_insert_with(|| {
            let (stdout, stderr) = (io::stdout(), io::stderr());
            let out = program_file(&stdout).and_then(|out| Output::new(out).ok());
            let beside_out = |err| out.as_ref().map_or_else(|| Output::new(err), |out| out.beside(err));
            let err = program_file(&stderr).and_then(|err| beside_out(err).ok());
            [out, err]
        })
    }

    /// Returns the printers of a registration for the job of a stream. Begins them if necessary.
    fn printers(&mut self, origin: &Origin<'_>) -> &mut Vec<Printer> {
        let key = (origin.handler, origin.source.nspace.clone());
        if !self.jobs.contains_key(&key) {
            let begun = self.begin(origin.handler, &key.1);
            self.jobs.insert(key.clone(), begun);
        }
        self.jobs.entry(key).or_default()
    }

    fn begin(&mut self, handler: u32, nspace: &Nspace) -> Vec<Printer> {
        let of_job = self.formats.of_job(nspace);
        let Some(Print { format, files, begun }) = self.registrations.get_mut(&handler) else {
            return Vec::new();
        };
        let (format, locked) = (format.over(&of_job), files.take());
        let append = !begun.insert(nspace.clone());
        let mut printers = Vec::new();
        let mut add = |channels, lines| printers.push(Printer { channels, lines });
        if format.shows() {
            let out_channels = if format.merges() { Channels::ALL } else { Channels::STDOUT };
            let [out, err] = self.outputs().clone();
            out.into_iter().for_each(|out| add(out_channels, LinePrinter::new(out, format.options())));
            let err_channels = Channels::ALL - out_channels;
            err.into_iter().for_each(|err| add(err_channels, LinePrinter::new(err, format.options())));
        }
        let lines = match (locked, format.files(None)) {
            (Some(files), _) => Some(LinePrinter::new(files, format.options())),
            (None, Ok(files)) => {
                files.map(|files| LinePrinter::new(Files { append, ..files }, format.options()))
            }
            // The attributes of several levels do not fit together.
            (None, Err(_)) => None,
        };
        lines.into_iter().for_each(|lines| add(Channels::ALL, lines));
        printers
    }
}
