//! The output options of `iof run` and `iof pull`, and the outputs that they describe.

use std::cell::OnceCell;
use std::env;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use iof_nodes::NodeFiles;
use iof_output::{
    Audience, Choice, FilePlace, Files, FlushTimeout, Fold, LaterOutput, Markup, Options, Output, Rotation,
    Stamp, Style, StyleExtras, WriteWatch, format_words,
};
use iof_proto::{Channels, Rank};
use iof_tool::Tool;
use nix::unistd::gethostname;

use crate::error::{Failure, no_directory};
use crate::options::values::{CHANNELS, Ranks, bytes, duration, ranks};
use crate::outputs::file_args::{FileArgs, OpenMode};
use crate::outputs::lines::LineArgs;
use crate::outputs::printers::{AttachedOutputs, LONE_RANK_WAIT, OutputTarget, print_ranks_beside_files};
use crate::outputs::redirect::{RedirectArgs, check_rotation, invalid};
use crate::reports::exits::no_such_rank;
use crate::reports::objects::rank_object;
use crate::terminal::give_up::WatchedOutput;
use crate::terminal::message::{beside_output, print_message};

/// The heading of these options in help.
const OUTPUT: &str = "Output options";

#[derive(Args)]
#[command(mut_args(|arg| match arg.get_long_help().map(ToString::to_string) {
    Some(help) if arg.get_id() == "output" => arg.long_help(help.replace("FORMATS", &format_words())),
    _ => arg,
}))]
pub struct OutputArgs {
    /// Set format and destination of output
    ///
    /// Mostly as in `mpirun --output` of Open MPI 5 (prterun). tag, tag-detailed, tag-fullname,
    /// rank and timestamp[=ns|us|ms|rfc3339|local] put the source or the time before each line. A format
    /// marks up each line: FORMATS; json=batch all lines of a read together. merge-stderr-to-stdout,
    /// dir=DIR and file=NAME select the destination; dir and file write separate files for each rank.
    /// The qualifiers are :copy, :nocopy, :raw, :pattern, :node. May be repeated.
    #[arg(long, help_heading = OUTPUT, value_name = "LIST")]
    pub output: Vec<OsString>,

    #[command(flatten)]
    pub redirect: RedirectArgs,

    #[command(flatten)]
    pub lines: LineArgs,

    /// Tag each line or each fragment
    ///
    /// A fragment is all bytes that were read from the rank at once.
    #[arg(long, help_heading = OUTPUT, value_enum, value_name = "WHAT", default_value_t = TagBy::Line)]
    #[arg(hide_possible_values = true)]
    pub tag_by: TagBy,

    /// Append a text to each line, before its newline
    #[arg(long, help_heading = OUTPUT, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub tag_suffix: String,

    /// Keep lines up to this size whole
    ///
    /// A longer line is written in parts, between which lines of other ranks may appear. In bytes,
    /// optionally with a unit such as K, M or KiB (powers of 1024).
    #[arg(long, help_heading = OUTPUT, value_name = "BYTES", default_value = "64K", value_parser = bytes, allow_hyphen_values = true)]
    pub max_line: u64,

    /// Wait this long for a line's end
    ///
    /// An incomplete line, such as a prompt, is written when its rank has added nothing to it for
    /// this time. By default, this is 1 second, or 0.1 seconds if the rank reads the terminal to
    /// which iof writes, or is the only one. But the end of a buffer that a program has flushed (512
    /// bytes or more at a time on stdout) waits for its newline, or for 10 seconds if the rank reads
    /// stdin from a pipe. Time during which iof is stopped or cannot write does not count.
    #[arg(long, help_heading = OUTPUT, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub max_line_time: Option<Duration>,

    /// Show only these ranks, such as 0,3-5
    ///
    /// Messages logged for the whole job are shown, too. Files contain all ranks.
    #[arg(long, help_heading = OUTPUT, value_name = "LIST|all", value_parser = ranks, allow_negative_numbers = true)]
    pub ranks: Option<Ranks>,

    /// Do not write these channels
    ///
    /// They go neither to stdout and stderr nor to files. Tools can still pull them.
    #[arg(long, help_heading = OUTPUT, value_name = "LIST", value_parser = CHANNELS)]
    #[arg(hide_possible_values = true)]
    pub no_forward: Option<Channels>,

    #[command(flatten)]
    pub files: FileArgs,
}

/// The unit that gets a tag.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TagBy {
    /// Each line
    Line,
    /// Each fragment: all bytes that were read together
    Fragment,
}

/// The outputs that a process writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WrittenOutputs {
    /// All of them.
    All,
    /// All but files on other nodes: the ranks run there.
    FrontEnd,
    /// The files of this node.
    Agent,
}

/// Returns `ranks` and, unless they are all ranks, the undefined rank. Messages that are logged for
/// the whole job belong to that rank.
pub fn with_job(ranks: &[Rank]) -> Vec<Rank> {
    let job = (ranks != [Rank::WILDCARD]).then_some(Rank::UNDEF);
    ranks.iter().copied().chain(job).collect()
}

/// The outputs that the options describe.
pub struct Outputs<'a> {
    pub(super) args: &'a OutputArgs,
    pub(super) choice: Choice,
    writes: WrittenOutputs,
    /// The number of ranks, if it is known.
    pub(super) nprocs: Option<u32>,
    /// The folding of what is shown, if it is folded.
    pub(super) fold: Option<Fold>,
    /// The outputs to stdout and stderr, once the first job has them.
    shared: Rc<OnceCell<(LaterOutput, LaterOutput)>>,
}

impl OutputArgs {
    /// Checks the options, for a job of `nprocs` ranks if the number is known.
    pub fn prepare(&self, nprocs: Option<u64>, writes: WrittenOutputs) -> Result<Outputs<'_>, Failure> {
        let choice = Choice::from_lists(&self.output).map_err(invalid)?;
        self.check_combinations(&choice)?;
        if self.tag_by == TagBy::Fragment
            && choice.markup == Markup::Text
            && choice.stamp.is_none()
            && choice.tags().next().is_none()
            && self.lines.label.is_none()
        {
            return Err(Failure::usage(
                "--tag-by fragment has no effect without tags: add --output tag, or leave it out",
            ));
        }
        let ranks = nprocs.and_then(|nprocs| u32::try_from(nprocs).ok());
        let fold = self.lines.fold();
        let outputs = Outputs { args: self, choice, writes, nprocs: ranks, fold, shared: Rc::default() };
        let last =
            self.ranks.as_ref().and_then(|ranks| ranks.0.last()).filter(|rank| **rank != Rank::WILDCARD);
        if let (Some(last), Some(nprocs)) = (last, nprocs)
            && u64::from(last.0) >= nprocs
        {
            return Err(no_such_rank(*last, "in --ranks", nprocs));
        }
        let files = outputs.files();
        if let Some(option) = self.files.option().filter(|_| files.is_empty()) {
            return Err(Failure::Usage(format!(
                "{option} applies to files: add --output dir=DIR, --output file=NAME or -o PATTERN"
            )));
        }
        let lines = self.lines.filter_option().or(self.lines.fold_option()).zip(Some("lines"));
        let shows = self.ranks.as_ref().map(|_| ("--ranks", "ranks")).or(lines);
        if let Some((shows, what)) = shows.filter(|_| outputs.shown().is_empty()) {
            let remedy = match self.redirect.option() {
                Some(option) => {
                    format!("write --output file=PATTERN:pattern:copy in place of {option} PATTERN")
                }
                None => "append :copy to dir=DIR or file=NAME".into(),
            };
            return Err(Failure::Usage(format!(
                "{shows} does not apply to files, which get all {what}: to show these {what} as well, {remedy}"
            )));
        }
        outputs.warn();
        outputs.check_files(&files)?;
        Ok(outputs)
    }

    /// Returns the files of a node whose ranks another process has started, which has checked the
    /// options.
    pub fn prepare_agent(&self, nprocs: u32, directory: &Path) -> Result<Outputs<'_>, Failure> {
        let choice = Choice::from_lists(&self.output).map_err(invalid)?;
        let (writes, nprocs) = (WrittenOutputs::Agent, Some(nprocs));
        let outputs = Outputs { args: self, choice, writes, nprocs, fold: None, shared: Rc::default() };
        let files = outputs.files();
        if let Err(error) = env::set_current_dir(directory)
            && !files.iter().all(|(_, files)| files.is_absolute())
        {
            let directory = directory.display();
            return Err(Failure::Usage(format!("files cannot be written below {directory}: {error}")));
        }
        outputs.check_files(&files)?;
        Ok(outputs)
    }
}

impl<'a> Outputs<'a> {
    /// Tells about placeholders that are not expanded.
    fn warn(&self) {
        match self.choice.unused_placeholder() {
            Some(FilePlace::Name(name)) => {
                let name = name.display();
                print_message(format_args!(
                    "'%' in file={name} is not a placeholder, because :pattern is missing: write \
                     file={name}:pattern, or ignore this message"
                ));
            }
            Some(FilePlace::Tree(directory)) => {
                let directory = directory.display();
                print_message(format_args!(
                    "'%' in the directory {directory} is not a placeholder: write --output \
                     file={directory}/%c:pattern, or ignore this message"
                ));
            }
            _ => {}
        }
    }

    /// Checks that these files can be written, if this process writes them.
    fn check_files(&self, files: &[(Channels, Files)]) -> Result<(), Failure> {
        check_rotation(files)?;
        if !self.writes_files() {
            return Ok(());
        }
        let not_writable = |error| Failure::Usage(format!("cannot write the output file: {error}"));
        files.iter().try_for_each(|(_, files)| files.check().map_err(not_writable))
    }

    /// Returns whether this process writes the files.
    fn writes_files(&self) -> bool {
        self.writes != WrittenOutputs::FrontEnd || !self.choice.node
    }

    /// Returns the files that the agents of this front end write, if any.
    pub fn node_files(&self, give_up: Option<Duration>) -> Result<Option<NodeFiles>, Failure> {
        if self.writes_files() {
            return Ok(None);
        }
        let args = self.args;
        Ok(Some(NodeFiles {
            directory: env::current_dir().map_err(no_directory)?.into(),
            output: args.output.clone(),
            nprocs: self.nprocs.unwrap_or(u32::MAX),
            fragments: args.tag_by == TagBy::Fragment,
            suffix: args.tag_suffix.clone(),
            hidden: args.no_forward.unwrap_or(Channels::empty()),
            append: args.files.open_mode == OpenMode::Append,
            rotation: args.files.file_size.map(|size| (size, args.files.file_count)),
            drops_cache: args.files.drops_cache(),
            give_up,
        }))
    }

    /// Returns `true` if output goes to files whose paths contain the name of the job.
    pub fn names_job(&self) -> bool {
        self.files().iter().any(|(_, files)| files.names_job())
    }

    /// Returns `true` if this process writes files whose paths contain the name of the host.
    pub fn names_host(&self) -> bool {
        self.writes_files() && self.files().iter().any(|(_, files)| files.names_host())
    }

    /// Tags each line with the whole name of its job, unless the format or the names of files contain it.
    pub fn tag_jobs(&mut self) {
        if self.shown().is_empty() {
            return;
        }
        self.choice.fullname |= !self.is_json() && self.args.lines.label.is_none();
    }

    /// Shows the time of each line, if --output does not.
    pub fn show_times(&mut self) {
        self.choice.stamp.get_or_insert(Stamp::Rfc3339);
    }

    /// Returns whether output goes to files.
    pub fn has_files(&self) -> bool {
        !self.files().is_empty()
    }

    /// Returns the same outputs for another job, of `nprocs` ranks on this node or on others.
    pub fn of_job(&self, nprocs: u64, is_on_nodes: bool) -> Outputs<'a> {
        let (choice, nprocs) = (self.choice.clone(), u32::try_from(nprocs).ok());
        let writes = if is_on_nodes { self.writes } else { WrittenOutputs::All };
        Outputs { choice, writes, nprocs, shared: Rc::clone(&self.shared), ..*self }
    }

    /// Returns the outputs to stdout and stderr.
    fn standard_outputs(&self) -> Result<(Output, Output), Failure> {
        if let Some((out, err)) = self.shared.get() {
            return Ok((out.open(), err.open()));
        }
        let mut out = Output::new(io::stdout()).map_err(Failure::running)?;
        out.watch_writes();
        let mut err = out.beside(io::stderr()).map_err(Failure::running)?;
        let objects = self.is_json().then(|| Style::new(&self.choice, &StyleExtras::default()));
        // Messages are written even if no output is.
        let (name, told) = if objects.is_some() { ("stdout", &mut out) } else { ("stderr", &mut err) };
        let watch = told.watch_writes();
        beside_output(told.notes(), WatchedOutput { name, watch }, objects);
        let _ = self.shared.set((out.later(), err.later()));
        Ok((out, err))
    }

    /// Attaches the printers: to stdout and stderr, to files, or to both. `open` returns a tool for
    /// each target, in the same order, which has pulled the streams of the target; `None` for a
    /// target without streams.
    pub fn attach(
        &self,
        open: impl FnOnce(&[OutputTarget<'_>]) -> Result<Vec<Option<Tool>>, Failure>,
    ) -> Result<AttachedOutputs<'a>, Failure> {
        let targets = self.targets()?;
        let tools = open(&targets)?;
        let attached = tools.into_iter().zip(targets).filter_map(|(tool, target)| Some((tool?, target)));
        Ok(AttachedOutputs(attached.collect()))
    }

    /// Returns the targets that have streams.
    fn targets(&self) -> Result<Vec<OutputTarget<'a>>, Failure> {
        let (args, choice, errors) = (self.args, &self.choice, Channels::ERRORS);
        let mut targets = Vec::new();
        if self.is_json() && self.writes != WrittenOutputs::Agent {
            // Messages and the ends of ranks go to stdout even if all output goes to files.
            self.standard_outputs()?;
        }
        if choice.shows() && self.writes != WrittenOutputs::Agent {
            let (mut out, mut err) = self.standard_outputs()?;
            let watched = |output: &mut Output, name| WatchedOutput { name, watch: output.watch_writes() };
            let (watched_out, watched_err) = (watched(&mut out, "stdout"), watched(&mut err, "stderr"));
            let is_one = choice.merge || self.is_json() || out.is_same_file(&err);
            let target = |channels: Channels, output: Output, watched: WatchedOutput, colour| OutputTarget {
                channels: channels & self.shown(),
                ranks: args.ranks.as_ref(),
                destination: output.into(),
                options: self.options(colour, true),
                place: if choice.copy { format!(" on {}", watched.name) } else { String::new() },
                copies_to: choice.copy.then_some(watched.name),
                watched,
            };
            // Each output has its own printer, so that a slow output does not delay the other. If
            // both are one file, one printer keeps the order in which stdout and stderr were read.
            let channels = if is_one { Channels::STDOUT | errors } else { Channels::STDOUT };
            targets.push(target(channels, out, watched_out, args.lines.has_colours(io::stdout())));
            if !is_one {
                targets.push(target(errors, err, watched_err, args.lines.has_colours(io::stderr())));
            }
        }
        let files = if self.writes_files() { self.files() } else { Vec::new() };
        for (channels, mut files) in files {
            let watch = WriteWatch::default();
            files.watch = Some(watch.clone());
            targets.push(OutputTarget {
                channels,
                ranks: None,
                destination: files.into(),
                options: self.options(false, false),
                place: self.place_of_files(),
                watched: WatchedOutput { name: "an output file", watch },
                copies_to: None,
            });
        }
        let hidden = args.no_forward.unwrap_or(Channels::empty());
        targets.iter_mut().for_each(|target| target.channels -= hidden);
        targets.retain(|target| !target.channels.is_empty());
        print_ranks_beside_files(&mut targets);
        Ok(targets)
    }

    fn is_json(&self) -> bool {
        self.choice.markup == Markup::Json
    }

    /// Returns the words for the files in messages about gaps.
    fn place_of_files(&self) -> String {
        match self.writes {
            WrittenOutputs::Agent => {
                format!(" in its file on {}", gethostname().unwrap_or_default().display())
            }
            _ if self.choice.copy => " in its file".into(),
            _ => String::new(),
        }
    }

    fn options(&self, colour: bool, is_shown: bool) -> Options {
        let Outputs { args, .. } = self;
        let (filter, fold) = (args.lines.filter().filter(|_| is_shown), self.fold.filter(|_| is_shown));
        let choice = &self.choice_of(fold);
        let max_time = match &filter {
            // A part does not tell whether its line is shown.
            Some(_) => Some(Duration::MAX),
            // Parts from other nodes have waited there.
            None if self.writes == WrittenOutputs::FrontEnd => None,
            None => self.max_line_time(),
        };
        let extras = StyleExtras {
            fragments: args.tag_by == TagBy::Fragment,
            suffix: args.tag_suffix.clone(),
            colour,
            filter,
            template: args.lines.label.clone(),
        };
        Options {
            style: Style::new(choice, &extras),
            flush_timeout: FlushTimeout { max_time, ..self.flush_timeout() },
            raw: choice.raw,
            fold,
            rank_object: is_shown.then_some(rank_object),
        }
    }

    /// Returns how long parts of lines wait, if that does not depend on the part.
    fn max_line_time(&self) -> Option<Duration> {
        // The lines of one rank cannot mix with those of others.
        let alone = self.nprocs == Some(1) && self.choice.markup == Markup::Text;
        self.args.max_line_time.or_else(|| alone.then_some(LONE_RANK_WAIT))
    }

    /// Returns the reader of the output that this process shows.
    pub fn audience(&self) -> Audience {
        if self.choice.shows() { Audience::of(io::stdout()) } else { Audience::Nobody }
    }

    /// Returns how long parts of lines wait on their way here: not at all if they are written at
    /// once.
    pub fn flush_timeout(&self) -> FlushTimeout {
        let Outputs { args, choice, .. } = self;
        let may_write_parts = choice.raw || args.tag_by == TagBy::Fragment;
        FlushTimeout {
            max_line: usize::try_from(args.max_line).unwrap_or(usize::MAX),
            max_time: if may_write_parts { Some(Duration::ZERO) } else { self.max_line_time() },
        }
    }

    /// Returns the channels that go to stdout and stderr.
    pub(super) fn shown(&self) -> Channels {
        if self.choice.shows() { self.args.redirect.shown() } else { Channels::empty() }
    }

    /// Returns the channels that go to files, with these files.
    fn files(&self) -> Vec<(Channels, Files)> {
        let Outputs { args, choice, .. } = self;
        let files = |place, merge| Files {
            merge,
            append: args.files.open_mode == OpenMode::Append,
            rotation: args.files.file_size.map(|size| Rotation { size, keep: args.files.file_count }),
            drops_cache: args.files.drops_cache(),
            nprocs: self.nprocs,
            ..Files::at(place)
        };
        let all = Channels::OUTPUTS;
        let chosen = choice.files.iter().map(|place| (all, files(place.clone(), choice.merge)));
        let redirected = args.redirect.files().into_iter();
        chosen
            .chain(
                redirected
                    .map(|(channels, pattern)| (channels, files(FilePlace::Exact(pattern), choice.merge))),
            )
            .collect()
    }
}
