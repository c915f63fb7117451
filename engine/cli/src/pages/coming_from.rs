//! The book's page for users of other launchers, rendered from the table of spellings.

use std::fmt::Write;
use std::{env, fs};

use crate::args::spellings::{GROUPS, Group, Meaning, Spelling, Values};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/coming-from.md");

const HEAD: &str = "\
# Coming from mpirun, srun, mpiexec

<!-- Generated: IOF_BLESS=1 cargo test -p iof-cli coming_from -->

`iof run` takes the options that users of `mpirun` (Open MPI 4 and 5), `srun` (Slurm) and `mpiexec`
(MPICH) type, and replaces them by its own. An option that it cannot honour is refused in one line
that names what to write, with exit code 2, before anything starts. What follows the program is never
changed. `iof pull` takes those for output.

| another launcher | iof |
|---|---|
| `mpirun -np 4 prog`, `srun -n 4 prog`, `mpiexec -n 4 prog` | `iof run -n 4 prog` |
| `mpirun --hostfile FILE -np 8 prog`, `mpiexec -f FILE -n 8 prog` | `iof run --hostfile FILE -n 8 prog` |
| `mpirun -n 2 a : -n 4 b` | `iof run -n 2 a : -n 4 b` |
| `mpirun --output tag` (Open MPI 5) | `iof run --output tag` |
| `mpirun --tag-output`, `srun -l`, `mpiexec -prepend-rank` | `iof run --output tag`, `iof run --output rank` |
| `mpirun --output-filename DIR` | `iof run --output dir=DIR:copy` |
| `srun -o 'out.%t' -e 'err.%t' prog` | `iof run -o 'out.%t' -e 'err.%t' prog` |
| `mpirun -x V=1`, `mpiexec -genv V 1` | `iof run -x V=1` |
| `mpirun --timeout 60`, `srun -K` | `iof run --timeout 60`, `iof run -K` |
| `srun --pty bash` | `iof run --pty bash` |
| `srun --input=all`, `mpirun --stdin all` | `iof run --stdin all` |
| `sattach JOB.STEP` | `iof pull JOB`, `iof top JOB`, `iof push --nspace JOB` |
| `kubectl logs -f POD`, `docker logs -f NAME` | `iof pull JOB` |
| `stern 'train-.*'`, `docker compose logs -f` | `iof pull 'train-*'`, `iof pull --all` |
| `clush -b CMD` | `iof run --fold CMD`, `iof pull --no-follow --fold` |
| `stern -i ERROR -e DEBUG` | `iof pull --match ERROR --exclude DEBUG` |
| `squeue`, `orte-ps` | `iof ps` |
| `scancel -s USR1 JOB` | `iof kill JOB USR1` |

## What differs

* Ranks run on this node, unless `--hosts`, `--hostfile` or an allocation has others
  ([Several nodes](several-nodes.md)). By default there is one rank, also in an allocation. iof
  binds them to processors only with `--bind-to core`. It starts MPI programs of MPICH and its
  relatives and of Open MPI 5 ([MPI](mpi.md)).
* Rank 0 has the stdin of `iof run`, as with mpirun. With srun, all ranks have it: `--stdin all`.
* Ranks inherit the whole environment of `iof run`. `-x` sets a variable, as with mpirun; srun's
  `-x` excludes nodes.
* `--exclude` and `--match` select lines of the output. srun's `--exclude` excludes nodes.
* `-l` tags lines as `[0]<stdout>: text`. srun writes `0: text`, mpiexec `[0] text`.
* `-o` without `-e` writes stderr to the same files, as with srun. mpirun's `--output-filename`
  writes files and shows the output, too.
* Options of the whole job go before the first program.

## Names of files

The PATTERN of `-o` and `-e` has the placeholders of srun that have a meaning here, and those of
[`--output file=NAME:pattern`](output.md). Streams whose names are the same share a file.

| placeholder | replaced by |
|---|---|
| `%t`, `%R` | the rank |
| `%4t` | the rank with leading zeros, here 4 digits; at most 10 |
| `%r` | the rank with as many digits as the number of ranks |
| `%n`, `%j`, `%x` | the name of the job (srun: `%n` is the number of the node, `%j` that of the job) |
| `%h` | the name of the host |
| `%N` | the name of the host up to its first dot |
| `%%` | a percent sign |

`-o none` discards stdout and stderr, `-o all` shows them.

## All spellings

Names of several letters may have one dash or two, and an underscore in them counts as a dash. Values
may follow `=` or a blank, those of single
letters also the letter itself. Single letters may share a dash, as in `-ln4`. Some letters mean
different things in different launchers. Directly behind `-o` and `-e`, a PATTERN must contain `%`, `.`
or `/`, or be `all` or `none`: anything else is refused as an unknown option, such as `-output-proxy`.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for group in GROUPS {
        write_group(&mut page, group).expect("a String takes all");
    }
    page
}

fn write_group(page: &mut String, Group { title, spellings, .. }: &Group) -> std::fmt::Result {
    writeln!(page, "\n### {title}\n\n| typed | `iof run` |\n|---|---|")?;
    for Spelling { names, values, meaning } in *spellings {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        writeln!(page, "| {} | {} |", names.join(", "), explain(*values, meaning))?;
    }
    Ok(())
}

fn explain(values: Values, meaning: &Meaning) -> String {
    let shown = |words: &[&str]| {
        let words = words.join(" ");
        match values {
            Values::NameAndValue => words.replacen("{}", "NAME", 1).replace("{}", "VALUE"),
            Values::OptionalRanks(default) => {
                words.replace("{}", &format!("VALUE` (default `{default}")) + "`)"
            }
            Values::None | Values::One => words.replace("{}", "VALUE"),
        }
    };
    match meaning {
        Meaning::Same(words) if matches!(values, Values::OptionalRanks(_)) => format!("`{}", shown(words)),
        Meaning::Same(words) => format!("`{}`", shown(words)),
        Meaning::Everywhere(words) => format!("`{}`, also for all further programs", shown(words)),
        Meaning::Depends(text, _) => (*text).to_owned(),
        Meaning::Always(reason) => format!("no effect: {reason}"),
        Meaning::Refused(reason) => format!("refused: {reason}"),
    }
}

#[test]
fn the_page_for_users_of_other_launchers_is_up_to_date() {
    let rendered = page();
    if env::var_os("IOF_BLESS").is_some() {
        fs::write(PAGE, &rendered).unwrap();
    }
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        page == rendered,
        "docs/src/coming-from.md is stale: run IOF_BLESS=1 cargo test -p iof-cli coming_from"
    );
}

#[test]
fn each_spelling_occurs_once_and_is_not_an_option_of_iof_run() {
    use clap::CommandFactory;

    let mut iof = crate::args::Iof::command();
    iof.build();
    let run = iof.find_subcommand("run").unwrap();
    let spellings = GROUPS.iter().flat_map(|group| group.spellings);
    let mut names: Vec<&str> = spellings.flat_map(|spelling| spelling.names).copied().collect();
    for name in &names {
        let is_own = run.get_arguments().any(|arg| {
            let long = arg.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long));
            // The spelling `--pty` adds a default, and `--map-by` has more values.
            long && !["--pty", "--map-by"].contains(name)
                || arg.get_short().is_some_and(|short| **name == format!("-{short}"))
        });
        assert!(!is_own, "{name}");
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
