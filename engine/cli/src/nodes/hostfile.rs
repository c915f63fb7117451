//! Files of hosts, in the forms of Open MPI and MPICH.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use iof_remote::hosts::{Hosts, name_and_slots, slots};

use crate::error::shown;

/// The longest file of hosts, in bytes.
const MAX_HOSTFILE: u64 = 1 << 20;

/// Reads a file of hosts. `source` is what names the file.
///
/// # Errors
/// The file can't be read, is too long, or has an invalid line.
pub fn read(path: &Path, source: &'static str) -> Result<Hosts, String> {
    let mut bytes = Vec::new();
    let file = File::open(path);
    let length = file.and_then(|file| file.take(MAX_HOSTFILE.saturating_add(1)).read_to_end(&mut bytes));
    let told = |error: String| format!("{source} {}: {error}", path.display());
    let length = length.map_err(|error| told(error.to_string()))?;
    if length as u64 > MAX_HOSTFILE {
        return Err(told(format!("more than {MAX_HOSTFILE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| told("not UTF-8".into()))?;
    parse(&text, source).map_err(told)
}

/// Parses lines such as `a`, `a:4` and `a slots=4`. A host has the sum of its lines.
fn parse(text: &str, source: &'static str) -> Result<Hosts, String> {
    let mut hosts = Hosts::new(source);
    for (number, line) in (1usize..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        add(&mut hosts, line).map_err(|error| format!("line {number}: {error}"))?;
    }
    if hosts.len() == 0 { Err("no hosts".into()) } else { Ok(hosts) }
}

fn add(hosts: &mut Hosts, line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let Some(first) = words.next() else { return Ok(()) };
    let (name, mut number) = name_and_slots(first)?;
    for word in words {
        let setting = word.split_once('=').and_then(|(key, value)| Some((key, slots(value)?)));
        match setting {
            Some(("slots", slots)) if number.is_none() => number = Some(slots),
            // A host never has more ranks than slots.
            Some(("max_slots" | "max-slots", _)) => {}
            _ => {
                let word = shown(word);
                return Err(format!("unexpected '{word}': expected NAME, NAME:SLOTS or NAME slots=SLOTS"));
            }
        }
    }
    hosts.add(&name, number.unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_open_mpi_and_mpich_are_understood() {
        let text = "# the nodes\n a slots=2 max_slots=4 # first\n\nb:3\r\nuser@c.site\na\n";
        let hosts: Hosts = "a:3,b:3,user@c.site".parse().unwrap();
        let slots = |hosts: &Hosts| hosts.place(7, iof_remote::hosts::MapBy::Slot).unwrap();
        assert_eq!(slots(&parse(text, "--hostfile").unwrap()), slots(&hosts));
    }

    #[test]
    fn an_invalid_line_is_named_by_its_number() {
        for (line, reason) in [
            ("b slots=0", "unexpected 'slots=0'"),
            ("b slots=-1", "unexpected 'slots=-1'"),
            ("b slots=99999999999", "unexpected 'slots=99999999999'"),
            ("b:2 slots=2", "unexpected 'slots=2'"),
            ("b slots=2 slots=2", "unexpected 'slots=2'"),
            ("b slots=5000", "at most 4096 slots"),
            ("b cpu=4", "unexpected 'cpu=4'"),
            ("^b", "invalid host '^b'"),
            ("-oProxyCommand=x", "invalid host"),
            ("b c", "unexpected 'c'"),
            ("b:", "invalid host 'b:'"),
        ] {
            let error = parse(&format!("a\n\n{line}\n"), "--hostfile").unwrap_err();
            assert!(error.starts_with("line 3: ") && error.contains(reason), "{line}: {error}");
        }
        assert_eq!(parse("# none\n", "--hostfile"), Err("no hosts".into()));
    }

    #[test]
    fn a_long_file_is_refused() {
        let error = read(Path::new("/dev/zero"), "--hostfile").unwrap_err();
        assert_eq!(error, "--hostfile /dev/zero: more than 1048576 bytes");
    }
}
