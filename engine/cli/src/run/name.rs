//! The name of a job that the user has not named: that of its program.

use std::path::Path;

use iof_proto::Nspace;

/// The largest number of bytes of the program's name that the job's name contains.
const MAX_DEFAULT_NAME: usize = 64;

/// Returns the job name for `program`: its file name, in which characters that a job name cannot
/// contain are replaced by `_`.
pub fn of_program(program: &Path) -> Option<Nspace> {
    let file = program.file_name()?.to_string_lossy();
    let valid = |letter: char| if letter == ',' || letter.is_control() { '_' } else { letter };
    let mut name = String::new();
    for letter in file.chars().map(valid) {
        if name.len().saturating_add(letter.len_utf8()) > MAX_DEFAULT_NAME {
            break;
        }
        name.push(letter);
    }
    Nspace::new(name).ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_job_is_named_after_the_file_name_of_its_program() {
        let name = |program: &[u8]| of_program(Path::new(OsStr::from_bytes(program)));
        let text = |program: &[u8]| name(program).unwrap().as_str().to_owned();
        assert_eq!(text(b"./a.out"), "a.out");
        assert_eq!(text(b"/usr/bin/python3"), "python3");
        assert_eq!(text(b"a,b\x1b\n"), "a_b__");
        assert_eq!(text(b"\xff"), "\u{fffd}");
        assert_eq!(text("ä".repeat(100).as_bytes()), "ä".repeat(32));
        assert_eq!([name(b".."), name(b"/"), name(b"")], [None, None, None]);
    }
}
