//! The files by which PMIx tools find a server.

use std::net::SocketAddr;
use std::path::Path;
use std::time::SystemTime;

use crate::directory::PrivateDirectory;
use crate::error::StartError;

/// The files by which PMIx tools find a server, each under a name. They are removed when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct RendezvousFiles {
    directory: PrivateDirectory,
    /// The content of each.
    text: String,
}

impl RendezvousFiles {
    /// Creates a directory for the files of a server. It is named `nspace`, listens at `address`,
    /// and has `version` (as [`PmixServer::version`](crate::PmixServer::version) returns it).
    pub(crate) fn create(
        nspace: &str,
        address: SocketAddr,
        version: &str,
    ) -> Result<RendezvousFiles, StartError> {
        let directory = PrivateDirectory::create()?;
        let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let version = number(version);
        let pid = std::process::id();
        let family = if address.is_ipv4() { "tcp4" } else { "tcp6" };
        // libpmix reads the first two lines.
        let text = format!("{nspace}.0;{family}://{address}\n{version}\n{pid}\n{uid}:{gid}\n{since}\n");
        Ok(RendezvousFiles { directory, text })
    }

    /// Lets tools find the server under a name, which it has not yet. Leaves no file on an error.
    pub(crate) fn add(&self, name: &str) -> Result<(), StartError> {
        self.add_files(files_of(name))
    }

    fn add_files(&self, files: impl Iterator<Item = String>) -> Result<(), StartError> {
        let mut written = Vec::new();
        for file in files {
            if let Err(error) = self.directory.write(&file, &self.text) {
                written.iter().for_each(|file: &String| self.directory.remove_file(file));
                return Err(error);
            }
            written.push(file);
        }
        Ok(())
    }

    /// Removes a name.
    pub(crate) fn remove(&self, name: &str) {
        files_of(name).for_each(|file| self.directory.remove_file(&file));
    }

    /// Returns the directory of the files. What other processes create in it is removed with it.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Returns the names of the files under a name; none if files cannot have it.
fn files_of(name: &str) -> impl Iterator<Item = String> {
    let hosts = host_names().into_iter().filter(|_| !name.contains('/'));
    hosts.map(move |host| format!("pmix.{host}.tool.{name}"))
}

/// Returns the number of a version, such as `4.2.2` of `OpenPMIx 4.2.2 (PMIx Standard: ...)`.
fn number(version: &str) -> &str {
    let is_number = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_digit());
    version.split([' ', ',']).find(is_number).unwrap_or(version)
}

/// Returns the name of this host, and the name without its domain. libpmix uses one of them.
fn host_names() -> Vec<String> {
    let name = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let short = name.split('.').next().unwrap_or_default().to_owned();
    if short == name { vec![name] } else { vec![short, name] }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_added_leaves_nothing_and_may_be_added_later() {
        let files = RendezvousFiles::create("iof-1", "127.0.0.1:1".parse().unwrap(), "4.2.2").unwrap();
        let names = || ["one", "two"].map(str::to_owned).into_iter();
        let exist = || ["one", "two"].map(|name| files.directory().join(name).exists());
        files.directory.write("two", "of another name").unwrap();
        assert!(files.add_files(names()).is_err());
        assert_eq!(exist(), [false, true]);
        files.directory.remove_file("two");
        files.add_files(names()).unwrap();
        assert!(files.add_files(names()).is_err());
        assert_eq!(exist(), [true, true]);
    }

    #[test]
    fn the_number_of_a_version_is_found_in_its_text() {
        assert_eq!(number("OpenPMIx 4.2.2 (PMIx Standard: 4.1)"), "4.2.2");
        assert_eq!(number("OpenPMIx 5.0.11rc1, repo rev: v5"), "5.0.11rc1");
    }
}
