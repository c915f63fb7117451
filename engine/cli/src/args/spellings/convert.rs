//! Spellings whose meaning depends on their value.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::reasons::NO_MAP;
use crate::options::values::{is_clock_time, ranks};

type Converted = Result<Vec<OsString>, String>;

fn words<const N: usize>(words: [&OsStr; N]) -> Vec<OsString> {
    words.map(OsStr::to_owned).into()
}

fn prefixed(prefix: &str, value: &OsStr, suffix: &str) -> OsString {
    let mut word = OsString::from(prefix);
    word.push(value);
    word.push(suffix);
    word
}

/// `srun -N NODES` and `mpirun -N RANKS_PER_NODE`.
pub fn nodes(value: &OsStr) -> Converted {
    if value == "1" {
        return Ok(Vec::new());
    }
    Err("it asks for nodes (srun) or for ranks on each node (mpirun): write -n with the number of all ranks, and \
         --hosts with the slots of each node, such as --hosts a:4,b:4"
        .into())
}

/// mpirun's `--output-filename DIR[:nocopy][:nojobid]`.
pub fn output_filename(value: &OsStr) -> Converted {
    let bytes = value.as_bytes();
    let mut parts = bytes.split(|byte| *byte == b':');
    let directory = OsStr::from_bytes(parts.next().unwrap_or_default());
    let mut copy = ":copy";
    for qualifiers in parts {
        for qualifier in qualifiers.split(|byte| *byte == b',') {
            match qualifier {
                b"nocopy" => copy = "",
                b"copy" => copy = ":copy",
                b"nojobid" => {
                    return Err(
                        "write -o DIR/rank.%r/stdout -e DIR/rank.%r/stderr for files without the job".into(),
                    );
                }
                _ => return Err("expected DIR or DIR:nocopy".into()),
            }
        }
    }
    if directory.is_empty() || directory.as_bytes().contains(&b',') {
        return Err("expected a directory without a comma: write -o PATTERN for other names".into());
    }
    Ok(words(["--output".as_ref(), &prefixed("dir=", directory, copy)]))
}

/// Returns `true` for `all` and a list of ranks.
pub fn is_rank_list(value: &OsStr) -> bool {
    value.to_str().is_some_and(|text| ranks(text).is_ok())
}

/// srun's `--input all|none|RANK|FILE`.
pub fn input(value: &OsStr) -> Converted {
    if value == "-" {
        return Ok(words(["--stdin", "0"].map(OsStr::new)));
    }
    if value == "none" || is_rank_list(value) {
        return Ok(words(["--stdin".as_ref(), value]));
    }
    if value.as_bytes().contains(&b'%') {
        return Err("each rank would read a file of its own: write sh -c 'exec PROG < in.$IOF_RANK'".into());
    }
    Ok(words(["--stdin-file".as_ref(), value]))
}

/// srun's `--wait SECONDS`, the time between the end of the first rank and that of the job.
pub fn wait(value: &OsStr) -> Converted {
    if value == "0" {
        return Ok(Vec::new());
    }
    Err("iof waits for all ranks: write --timeout DURATION for the time of the job, or --kill-on-bad-exit=1"
        .into())
}

/// srun's `--time MINUTES[:SECONDS]`.
pub fn time(value: &OsStr) -> Converted {
    if value.to_str().is_some_and(is_clock_time) {
        return Ok(words(["--timeout".as_ref(), value]));
    }
    let text = value.to_str().unwrap_or_default();
    if text.parse() == Ok(0) {
        return Err("a job has no limit: leave it out".into());
    }
    // srun's DAYS-HOURS.
    let fallback = if text.contains('-') { "24h" } else { "5m" };
    let minutes = text.parse::<u32>().map(|minutes| format!("{minutes}m"));
    let time = minutes.unwrap_or(fallback.into());
    Err(format!("write --timeout with seconds, or with suffix s, m or h, such as --timeout {time}"))
}

/// srun's `--export ALL|NONE|[ALL,]NAME[=VALUE],...`.
pub fn export(value: &OsStr) -> Converted {
    let mut items = value.as_bytes().split(|byte| *byte == b',');
    if items.next() != Some(b"ALL".as_slice()) {
        return Err(
            "ranks inherit the environment of iof: write --export=ALL,NAME=VALUE, or env -i NAME=VALUE... \
                    before iof run"
                .into(),
        );
    }
    Ok(items.flat_map(|item| words(["-x".as_ref(), OsStr::from_bytes(item)])).collect())
}

/// `--map-by POLICY`.
pub fn map_by(value: &OsStr) -> Converted {
    let is = |policy| value.eq_ignore_ascii_case(policy);
    match value {
        _ if is(":oversubscribe") => Ok(words(["--oversubscribe"].map(OsStr::new))),
        _ if is("slot") || is("node") => Ok(words(["--map-by".as_ref(), &value.to_ascii_lowercase()])),
        _ => Err(NO_MAP.into()),
    }
}

/// srun's `--distribution block|cyclic`.
pub fn distribution(value: &OsStr) -> Converted {
    match value.to_str() {
        Some("block") => Ok(words(["--map-by", "slot"].map(OsStr::new))),
        Some("cyclic") => Ok(words(["--map-by", "node"].map(OsStr::new))),
        _ => Err(NO_MAP.into()),
    }
}
