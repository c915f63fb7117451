//! The engine's side of the rendezvous: the listening socket and the links of jobs.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io, path, process};

use nix::sys::socket::{self, Backlog, UnixAddr};
use nix::sys::stat::{Mode, fchmod};

use super::Level;
use super::directory::{Directory, DirectoryError, DirectoryPath};
use super::names::FileNames;
use super::probe::{has_listener, is_live_socket, metadata_if_exists, unix_socket};
use super::stale::remove_stale;
use crate::names::Nspace;

/// The longest name of a file, see pathname(7).
const NAME_MAX: usize = 255;

/// The reason why an engine cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The directory is unusable.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// An engine of this process, or the node's system-level engine, already listens on this
    /// socket.
    #[error("an engine already listens on {}: end it, or choose another directory", .0.display())]
    InUse(PathBuf),
    /// The path of the socket exists but is not a socket.
    #[error("cannot listen on {}: the file exists and is not a socket: remove it", .0.display())]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("cannot listen on {}: cannot {step}: {source}", path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The step that failed, as a verb phrase.
        step: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// The reason why tools cannot find a job by its name. They still find the engine by its pid.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.reason())]
pub struct AnnounceError {
    /// The name of the job.
    pub nspace: Nspace,
    /// The path of the link.
    pub path: PathBuf,
    /// The error. `ENAMETOOLONG` means that the host name, the pid and the job's name together
    /// exceed the 255 bytes of a file name.
    pub source: io::Error,
}

impl AnnounceError {
    fn reason(&self) -> String {
        let AnnounceError { nspace, path, source } = self;
        let length = path.file_name().map_or(0, |name| name.len());
        match length.checked_sub(NAME_MAX) {
            Some(excess @ 1..) => format!(
                "tools cannot find a job by a name of {} bytes: with the host and the pid it is {excess} bytes too long \
                 for the name of a file: shorten it",
                nspace.as_str().len()
            ),
            _ => format!(
                "cannot create the link by which tools find job {nspace}: {}: {source}",
                path.display()
            ),
        }
    }
}

/// Returns a function that adds the path and the failed step to an I/O error.
fn failed(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> BindError {
    move |source| BindError::Io { path: path.to_owned(), step, source }
}

/// The listening socket of an engine. Dropping it removes the socket's file.
///
/// The socket is non-blocking and close-on-exec. Only the engine's own user can connect to a
/// session-level socket, or those of an agent (mode 0600). All users can connect to a system-level
/// socket (mode 0666): the engine gets their credentials from the kernel
/// ([`socket::peer`](crate::socket::peer)) and decides whether to accept them.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    links: Arc<Links>,
    level: Level,
    names: FileNames,
    /// The name of the socket's file.
    name: String,
    /// The absolute path of the socket's file.
    path: PathBuf,
    /// The device and inode of the socket's file. They are not reused while `socket` is open.
    inode: (u64, u64),
}

impl Listener {
    /// Listens in `directory`, or in the default directory of this level (see the [module](super)).
    ///
    /// A missing session-level directory is created with mode 0700. The default session-level
    /// directory must be private to this user; a given directory is not checked. This removes the
    /// files that killed engines left in the directory: a session-level engine or an agent removes
    /// all such sockets and links of this user, a system-level engine removes its predecessor's
    /// socket.
    ///
    /// Blocks for a few seconds at most while other engines start in the same directory.
    ///
    /// # Errors
    /// [`BindError`]
    ///
    /// ```
    /// use iof_proto::rendezvous::{Level, Listener, Search, connect};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = Some(dir.path());
    /// let listener = Listener::bind(Level::Session, dir)?;
    /// let search = Search::default().within(dir.map(Into::into));
    /// let path = search.sockets().find_map(Result::ok).ok_or("no engine")?;
    /// let tool = connect(&path)?;
    /// let (engine, _) = listener.socket().accept()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind(level: Level, directory: Option<&Path>) -> Result<Listener, BindError> {
        Listener::bind_in(&DirectoryPath::new(level, directory))
    }

    pub(super) fn bind_in(path: &DirectoryPath) -> Result<Listener, BindError> {
        path.create()?;
        let directory = path.open()?;
        let level = path.level;
        let names = FileNames::of_this_host().map_err(failed(&path.path, "get the host name"))?;
        let mode = match level {
            Level::Session | Level::Agent | Level::Link => Mode::from_bits_truncate(0o600),
            Level::System => Mode::from_bits_truncate(0o666),
        };
        let name = names.socket(level, process::id());
        let (short, path) = (directory.short_path(&name), directory.full_path(&name));
        // The embedder may change its working directory, and the ranks start in other directories.
        let absolute = path::absolute(&path).map_err(failed(&path, "make the path absolute"))?;

        let lock = directory.lock().map_err(failed(&path, "lock the directory"))?;
        if level != Level::System {
            remove_stale(&directory, &names).map_err(failed(&path, "list the directory"))?;
        }
        remove_stale_socket(&short, &path)?;
        // The socket listens before it gets its name, so that a process that sees the name can
        // connect.
        let temporary = directory.short_path(names.temporary());
        remove_if_exists(&temporary).map_err(failed(
            &directory.full_path(names.temporary()),
            "remove the temporary socket of a killed engine",
        ))?;
        let socket = listen_on(&temporary, mode).map_err(failed(&path, "bind the socket"))?;
        // link(2), unlike rename(2), fails if a process that does not use the lock has taken the
        // name.
        let linked = fs::hard_link(&temporary, &short);
        let removed = fs::remove_file(&temporary);
        linked.and(removed).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => BindError::InUse(path.clone()),
            _ => failed(&path, "link the socket")(error),
        })?;
        let inode = inode(&short).map_err(failed(&path, "read the inode of the socket"))?;
        drop(lock);

        let links = Arc::new(Links { directory, counts: Mutex::default(), reserving: Mutex::default() });
        Ok(Listener { socket: socket.into(), links, level, names, name, path: absolute, inode })
    }

    /// Returns the socket, which accepts the connections.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// Returns the absolute path at which tools connect.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the link by which tools find this engine by the name of its job `nspace`. If the
    /// link exists, for example because [`Listener::reserve`] has created it, the returned value
    /// shares it. Dropping the last value of a name removes the link. Returns `None` at the system
    /// level, where tools do not search by job: any user could claim to have the job.
    ///
    /// # Errors
    /// [`AnnounceError`], usually because the name is too long for a file name.
    pub fn announce(&self, nspace: &Nspace) -> Result<Option<JobLink>, AnnounceError> {
        if self.level == Level::System {
            return Ok(None);
        }
        self.link(&mut self.links.counts(), nspace).map(Some)
    }

    fn link(&self, counts: &mut LinkCounts, nspace: &Nspace) -> Result<JobLink, AnnounceError> {
        let name = self.names.job_link(process::id(), nspace);
        let directory = &self.links.directory;
        if !counts.contains_key(&name) {
            let path = directory.short_path(&name);
            match symlink(&self.name, &path) {
                // An earlier listener of this process has left it.
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists
                        && fs::read_link(&path).is_ok_and(|target| target == Path::new(&self.name)) => {}
                Err(source) => {
                    let path = directory.full_path(name);
                    return Err(AnnounceError { nspace: nspace.clone(), path, source });
                }
                Ok(()) => {}
            }
        }
        let count = counts.entry(name.clone()).or_default();
        *count = count.saturating_add(1);
        Ok(JobLink { links: Arc::clone(&self.links), name })
    }

    /// Returns the first of the names `base`, `base-2`, `base-3` and so on that no job of an engine
    /// in this directory has, with its link. This engine's own jobs and reservations count. Until
    /// the returned link is dropped, the name is not reserved again. At the system level the result
    /// is `base`, without a link.
    ///
    /// Blocks for a few seconds at most while other engines start in the same directory.
    ///
    /// # Errors
    /// Fails if the directory can't be locked or listed, or if the link can't be created.
    pub fn reserve(&self, base: &Nspace) -> io::Result<(Nspace, Option<JobLink>)> {
        if self.level == Level::System {
            return Ok((base.clone(), None));
        }
        let directory = &self.links.directory;
        let _reserving = self.links.reserving.lock().unwrap_or_else(PoisonError::into_inner);
        let _lock = directory.lock()?;
        let is_live = |pid: u32| {
            let names = [self.names.session(pid), self.names.agent(pid)];
            names.into_iter().any(|name| is_live_socket(&directory.short_path(name)))
        };
        let mut taken = Vec::new();
        for file in fs::read_dir(directory.short_path("."))? {
            let parts = self.names.job_link_parts(&file?.file_name());
            taken.extend(parts.filter(|(pid, name)| {
                *pid != process::id() && name.as_str().starts_with(base.as_str()) && is_live(*pid)
            }));
        }
        // Held until the link is created, so that no other thread announces the name in between.
        let mut counts = self.links.counts();
        let is_taken = |name: &Nspace| {
            counts.contains_key(&self.names.job_link(process::id(), name))
                || taken.iter().any(|(_, taken)| taken == name)
        };
        let numbered = (2u32..).map_while(|number| Nspace::new(format!("{base}-{number}")).ok());
        let mut names = std::iter::once(base.clone()).chain(numbered);
        let name = names.find(|name| !is_taken(name)).unwrap_or_else(|| base.clone());
        let link = self.link(&mut counts, &name).map_err(|error| error.source)?;
        Ok((name, Some(link)))
    }
}

/// The number of [`JobLink`]s of each link that a listener has created, by the name of the link.
type LinkCounts = BTreeMap<String, usize>;

/// The links of the jobs of one listener.
#[derive(Debug)]
struct Links {
    directory: Directory,
    /// Links are created and removed under this lock, so that a link exists while it is counted.
    counts: Mutex<LinkCounts>,
    /// Held by a thread that locks the directory: that lock does not exclude threads of one engine.
    reserving: Mutex<()>,
}

impl Links {
    fn counts(&self) -> MutexGuard<'_, LinkCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The link by which tools find the engine of a job. A reservation and the job share one link:
/// dropping the last value of a name removes the link.
#[derive(Debug)]
pub struct JobLink {
    links: Arc<Links>,
    name: String,
}

impl Drop for JobLink {
    fn drop(&mut self) {
        let mut counts = self.links.counts();
        if let Some(count) = counts.get_mut(&self.name).filter(|count| **count > 1) {
            *count = count.saturating_sub(1);
            return;
        }
        counts.remove(&self.name);
        // If this fails, the link points nowhere once the engine has ended, and the next engine
        // removes it.
        let _ = fs::remove_file(self.links.directory.short_path(&self.name));
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    /// Removes the socket's file, unless another file has replaced it. No engine replaces the file
    /// between the check and the removal, because the socket still accepts connections.
    fn drop(&mut self) {
        let path = self.links.directory.short_path(&self.name);
        if inode(&path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes a socket without a listener. Any other file is an error. `short` and `path` are two
/// paths of the same file; errors name `path`. The caller holds the directory's lock, so that only
/// one of several starting engines does this at a time.
fn remove_stale_socket(short: &Path, path: &Path) -> Result<(), BindError> {
    match metadata_if_exists(short).map_err(failed(path, "inspect the existing file"))? {
        None => return Ok(()),
        Some(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket(path.to_owned()));
        }
        Some(_) => {}
    }
    if has_listener(short).map_err(failed(path, "connect to the existing socket"))? {
        return Err(BindError::InUse(path.to_owned()));
    }
    remove_if_exists(short).map_err(failed(path, "remove the socket of an engine that has ended"))
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns a new socket that listens at `path`. The file never has more permissions than `mode`:
/// Linux creates it with the mode that the socket has when it is bound, less the umask.
fn listen_on(path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let socket = unix_socket()?;
    fchmod(&socket, mode)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode.bits()))?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket)
}
