//! The output options that `iof run` and `iof pull` share, and the printers that carry them out.

use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use iof_output::{
    Choice, Destination, Files, Finish, Options, Output, Patience, PrintError, PrintReport, Printer,
    Rotation, Style,
};
use iof_proto::{Channel, Channels, Proc, Rank};
use iof_tool::{Gap, Tool};
use nix::sys::signal::Signal;

use crate::args::{ChannelList, Ranks, bytes, file_count, file_size, ranks, seconds};
use crate::message::beside_output;
use crate::{Failure, print_message};

/// The heading of these options in help.
const OUTPUT: &str = "Output options";

#[derive(Args)]
pub struct OutputArgs {
    /// Format and destination of output
    ///
    /// Words of prterun: tag, tag-detailed, tag-fullname, rank, timestamp[=ns|us|ms|rfc3339], xml,
    /// json, merge-stderr-to-stdout, dir=DIR, file=NAME, with the qualifiers :copy, :nocopy,
    /// :raw, :pattern. May be repeated.
    #[arg(long, help_heading = OUTPUT, value_name = "LIST")]
    pub output: Vec<OsString>,

    /// What to tag: line, or fragment
    ///
    /// Each line, or all bytes that were read together.
    #[arg(long, help_heading = OUTPUT, value_enum, value_name = "WHAT", default_value_t = TagBy::Line)]
    #[arg(hide_possible_values = true)]
    pub tag_by: TagBy,

    /// Text at the end of each line, before its newline
    #[arg(long, help_heading = OUTPUT, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub tag_suffix: String,

    /// Longest line written in one piece
    ///
    /// In bytes, optionally with suffix K, M or G.
    #[arg(long, help_heading = OUTPUT, value_name = "BYTES", default_value = "64K", value_parser = bytes)]
    pub max_line: u64,

    /// How long to wait for its end
    ///
    /// The line is written incomplete when its stream was quiet for this time. An incomplete line
    /// of 4 KiB or more, or one that keeps growing, waits ten times as long. Time in which iof
    /// can't write, or is stopped, does not count.
    #[arg(long, help_heading = OUTPUT, value_name = "SECS", default_value = "0.1", value_parser = seconds)]
    pub max_line_time: Duration,

    /// Show only these ranks, such as 0,3-5
    ///
    /// Messages logged for the whole job are shown, too. Files get all ranks.
    #[arg(long, help_heading = OUTPUT, value_name = "LIST|all", value_parser = ranks)]
    pub ranks: Option<Ranks>,

    /// Channels that are not shown
    ///
    /// They are not written to files either. Tools can still pull them.
    #[arg(long, help_heading = OUTPUT, value_name = "LIST", value_parser = ChannelList)]
    #[arg(hide_possible_values = true)]
    pub no_forward: Option<Channels>,

    /// Old files: truncate, or append
    #[arg(long, help_heading = OUTPUT, value_enum, value_name = "HOW", default_value_t = OpenMode::Truncate)]
    #[arg(hide_possible_values = true)]
    pub open_mode: OpenMode,

    /// Size at which a new file is begun
    ///
    /// At least 4K.
    #[arg(long, help_heading = OUTPUT, value_name = "BYTES", value_parser = file_size)]
    pub file_size: Option<u64>,

    /// How many full files to keep
    ///
    /// They are named NAME.1, NAME.2 and so on. At most 1000.
    #[arg(long, help_heading = OUTPUT, value_name = "N", default_value_t = 4, requires = "file_size",
          value_parser = file_count)]
    pub file_count: u32,
}

/// What one tag stands for.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TagBy {
    /// Each line
    Line,
    /// All bytes that were read together
    Fragment,
}

/// What to do with files that exist already.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpenMode {
    /// Empty them
    Truncate,
    /// Append to them
    Append,
}

/// What writes to one of our outputs, or to the files.
pub struct Writer {
    printer: Printer,
    /// The output to which it copies what goes to files, too.
    copies_to: Option<&'static str>,
}

/// What one printer is to have.
pub struct Part<'a> {
    /// Of these channels.
    pub channels: Channels,
    /// And these ranks, if not of all.
    pub ranks: Option<&'a Ranks>,
}

/// What is pulled for `ranks` to be shown: they, and what is logged of the job as a whole, which
/// belongs to none of them.
pub fn with_job(ranks: &[Rank]) -> Vec<Rank> {
    let job = (ranks != [Rank::WILDCARD]).then_some(Rank::UNDEF);
    ranks.iter().copied().chain(job).collect()
}

/// What the options ask for.
pub struct Outputs<'a> {
    args: &'a OutputArgs,
    choice: Choice,
}

impl OutputArgs {
    /// Looks whether what is asked for can be done, for a job of `nprocs` ranks if that is known,
    /// and makes directories.
    pub fn prepare(&self, nprocs: Option<u64>) -> Result<Outputs<'_>, Failure> {
        let wrong = |error| Failure::Usage(format!("--output: {error}"));
        let outputs = Outputs { args: self, choice: Choice::of(&self.output).map_err(wrong)? };
        let last =
            self.ranks.as_ref().and_then(|ranks| ranks.0.last()).filter(|rank| **rank != Rank::WILDCARD);
        if let (Some(last), Some(nprocs)) = (last, nprocs)
            && u64::from(last.0) >= nprocs
        {
            return Err(Failure::Usage(format!("no rank {last} to show: the job has {nprocs}")));
        }
        let files = outputs.files(None);
        if files.is_none() && (self.file_size.is_some() || self.open_mode == OpenMode::Append) {
            return Err(Failure::usage(
                "--file-size and --open-mode are for files: say --output dir=DIR or file=NAME",
            ));
        }
        if self.ranks.is_some() && !outputs.choice.shows() {
            return Err(Failure::usage(
                "--ranks is for what is shown, files get all ranks: say :copy behind dir=DIR or file=NAME",
            ));
        }
        let no_directory = |error| Failure::Usage(format!("no directory for the files: {error}"));
        files.map_or(Ok(()), |files| files.prepare().map_err(no_directory))?;
        Ok(outputs)
    }
}

impl Outputs<'_> {
    /// Starts what writes output: to our stdout and stderr, to files, or both. `open` gives a tool
    /// for each part, in their order, that has pulled what the part is to have, if there is
    /// such a thing.
    pub fn start(
        &self,
        nprocs: Option<u32>,
        open: impl FnOnce(&[Part<'_>]) -> Result<Vec<Option<Tool>>, Failure>,
    ) -> Result<Vec<Writer>, Failure> {
        let (parts, destinations): (Vec<Part<'_>>, Vec<To>) = self.parts(nprocs)?.into_iter().unzip();
        let tools = open(&parts)?;
        let pulled = tools.into_iter().zip(destinations).filter_map(|(tool, to)| Some((tool?, to)));
        pulled.map(|(tool, to)| self.write(tool, to)).collect()
    }

    /// What there is to be written, and where to.
    fn parts(&self, nprocs: Option<u32>) -> Result<Vec<(Part<'_>, To)>, Failure> {
        let Outputs { args, choice } = self;
        let errors = Channels::STDERR | Channels::STDDIAG;
        let mut parts = Vec::new();
        if choice.shows() {
            let out = Output::new(io::stdout()).map_err(Failure::running)?;
            let err = out.beside(io::stderr()).map_err(Failure::running)?;
            beside_output(err.notes());
            let to = |output: Output, name, colour| To {
                destination: output.into(),
                copies_to: choice.copy.then_some(name),
                colour,
            };
            let out = to(out, "stdout", has_colours(io::stdout()));
            // One printer for each of our outputs, so that a slow one does not hold up the other.
            if choice.merge {
                drop(err);
                parts.push((Channels::STDOUT | errors, args.ranks.as_ref(), out));
            } else {
                parts.push((Channels::STDOUT, args.ranks.as_ref(), out));
                let err = to(err, "stderr", has_colours(io::stderr()));
                parts.push((errors, args.ranks.as_ref(), err));
            }
        }
        if let Some(files) = self.files(nprocs) {
            let to = To { destination: files.into(), copies_to: None, colour: false };
            parts.push((Channels::STDOUT | errors, None, to));
        }
        let wanted = Channels::ALL - args.no_forward.unwrap_or(Channels::empty());
        let parts = parts.into_iter().map(|(of, ranks, to)| (Part { channels: of & wanted, ranks }, to));
        Ok(parts.filter(|(part, _)| !part.channels.is_empty()).collect())
    }

    /// Starts to write what `tool` pulls.
    fn write(&self, tool: Tool, to: To) -> Result<Writer, Failure> {
        let To { destination, copies_to, colour } = to;
        let place = match copies_to {
            Some(output) => format!(" on {output}"),
            None if self.choice.copy => " in its file".into(),
            None => String::new(),
        };
        let on_gap = move |source: &Proc, channel, gap| report_gap(source, channel, gap, &place);
        let printer = Printer::start(tool, destination, self.options(colour), on_gap);
        Ok(Writer { printer: printer.map_err(no_thread)?, copies_to })
    }

    fn options(&self, colour: bool) -> Options {
        let Outputs { args, choice } = self;
        let finish =
            Finish { fragments: args.tag_by == TagBy::Fragment, suffix: args.tag_suffix.clone(), colour };
        let max_line = usize::try_from(args.max_line).unwrap_or(usize::MAX);
        Options {
            style: Style::new(choice, &finish),
            patience: Patience { max_line, max_time: args.max_line_time },
            raw: choice.raw,
        }
    }

    fn files(&self, nprocs: Option<u32>) -> Option<Files> {
        let Outputs { args, choice } = self;
        Some(Files {
            place: choice.files.clone()?,
            merge: choice.merge,
            append: args.open_mode == OpenMode::Append,
            rotation: args.file_size.map(|size| Rotation { size, keep: args.file_count }),
            nprocs,
        })
    }
}

/// Whether it is a terminal that shows colours, and nobody wants none (<https://no-color.org>).
fn has_colours(file: impl AsFd + IsTerminal) -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    file.is_terminal() && !refused && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Says on stderr where how many bytes are missing. `place` is where, if there is more than one.
fn report_gap(source: &Proc, channel: Channel, gap: Gap, place: &str) {
    let Gap { offset, lost } = gap;
    print_message(format_args!(
        "rank {} {channel}: {lost} bytes are missing at offset {offset}{place}",
        source.rank
    ));
}

/// Where a printer writes to.
struct To {
    destination: Destination,
    copies_to: Option<&'static str>,
    colour: bool,
}

impl Writer {
    /// Has a thread wait for its end and hand over what it did.
    ///
    /// What is only a copy of what goes to files counts for nothing, and if it can't be written
    /// nothing else ends.
    pub fn watch(
        self,
        done: impl FnOnce(Result<PrintReport, Failure>) + Send + 'static,
    ) -> Result<(), Failure> {
        let wait = move || done(self.finish());
        thread::Builder::new().name("iof-output".into()).spawn(wait).map(drop).map_err(no_thread)
    }

    fn finish(self) -> Result<PrintReport, Failure> {
        match (self.printer.join(), self.copies_to) {
            (Ok(report), None) => Ok(report),
            (Ok(_), Some(_)) => Ok(PrintReport::default()),
            (Err(PrintError::Write(error)), Some(name)) => {
                print_message(format_args!(
                    "{name}: {error}; no more is shown there, but the files become complete"
                ));
                Ok(PrintReport::default())
            }
            (Err(PrintError::Write(error)), None) if error.kind() == ErrorKind::BrokenPipe => {
                Err(Failure::Signal(Signal::SIGPIPE))
            }
            (Err(error), _) => Err(Failure::running(error)),
        }
    }
}

/// There is no thread for what the command has to do.
pub fn no_thread(error: io::Error) -> Failure {
    Failure::running(format!(
        "no thread for the command: {error}; raise RLIMIT_NPROC (`ulimit -u`), the cgroup's pids.max or RLIMIT_AS \
         (`ulimit -v`)"
    ))
}
