//! The tool of a launcher, which reads the output of a running job.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::job::{Collected, Reader};

/// A tool that runs. It is killed in the end, with what it has started.
#[derive(Debug)]
pub struct Tool {
    child: Child,
    stdout: Arc<Collected>,
}

/// A piece of a stream, as a tool reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Data(u64, Vec<u8>),
    Gap(u64, u64),
    End(u64),
}

impl Tool {
    /// Starts a tool in a process group of its own.
    pub fn start(mut command: Command, request: &str) -> Result<Tool, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
        let mut child = child.map_err(|error| format!("{request}: {error}"))?;
        let stdout = Arc::new(Collected::default());
        let pipe = child.stdout.take().ok_or("no stdout")?;
        stdout.read(pipe.into(), Reader::Fast);
        Ok(Tool { child, stdout })
    }

    /// Waits until the tool has shown a text.
    pub fn wait_for(&self, text: &[u8]) -> Result<(), String> {
        self.stdout.wait_for(text, "the tool's stdout")
    }

    pub fn kill(&self) {
        // The group has at least the shell, which is not waited for before the drop.
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
    }

    pub fn stop(&self) {
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGSTOP);
    }

    /// Returns all that the tool has written, after its end.
    pub fn output(&self) -> Result<Vec<u8>, String> {
        self.stdout.whole("the tool's stdout")
    }

    /// Returns the records that the tool has written, after its end.
    pub fn records(&self) -> Result<Vec<Record>, String> {
        let output = self.output()?;
        let text = String::from_utf8_lossy(&output);
        text.lines().map(|line| record(line).ok_or_else(|| format!("no record: {line}"))).collect()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

fn record(line: &str) -> Option<Record> {
    let mut fields = line.split(' ');
    let (kind, offset, value) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
    match kind {
        "data" => {
            let digits = value
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
            Some(Record::Data(offset, digits.collect::<Option<_>>()?))
        }
        "gap" => Some(Record::Gap(offset, value.parse().ok()?)),
        "end" => Some(Record::End(offset)),
        _ => None,
    }
}

/// Compares the records of a stream with its bytes: each byte is delivered as written or in a gap, once, in order, and the
/// end is the number of bytes. Returns the number of lost ones.
pub fn account(records: &[Record], stream: &[u8]) -> Result<u64, String> {
    let (mut at, mut lost, mut has_ended) = (0_u64, 0, false);
    for record in records {
        if has_ended {
            return Err(format!("{record:?} after the end"));
        }
        let (offset, count) = match record {
            Record::Data(offset, data) => (*offset, data.len() as u64),
            Record::Gap(offset, count) => (*offset, *count),
            Record::End(offset) => (*offset, 0),
        };
        if offset != at {
            return Err(format!("offset {offset} after byte {at}"));
        }
        match record {
            Record::Data(_, data) if stream.get(at as usize..).is_none_or(|rest| !rest.starts_with(data)) => {
                return Err(format!("other bytes than written at {at}: {}", crate::text::show(data)));
            }
            Record::Gap(..) => lost += count,
            Record::Data(..) => {}
            Record::End(_) => has_ended = true,
        }
        at += count;
    }
    if !has_ended {
        return Err(format!("no end, after byte {at}"));
    }
    if at == stream.len() as u64 {
        Ok(lost)
    } else {
        Err(format!("the end is at {at} of {} bytes", stream.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(lines: &str) -> Result<u64, String> {
        account(&lines.split(", ").map(|line| record(line).unwrap()).collect::<Vec<_>>(), b"abcdef")
    }

    #[test]
    fn each_byte_is_delivered_or_lost_once_before_the_end() {
        assert_eq!(judge("data 0 6162, data 2 63646566, end 6 0"), Ok(0));
        assert_eq!(judge("gap 0 4, data 4 6566, end 6 0"), Ok(4));
        assert!(judge("data 0 6162, data 3 646566, end 6 0").unwrap_err().contains("offset 3 after byte 2"));
        assert!(judge("data 0 6163, gap 2 4, end 6 0").unwrap_err().contains("other bytes"));
        assert!(judge("data 0 6162, end 2 0").unwrap_err().contains("the end is at 2 of 6"));
        assert!(judge("gap 0 6").unwrap_err().contains("no end"));
        assert!(judge("gap 0 6, end 6 0, gap 6 1").unwrap_err().contains("after the end"));
    }
}
