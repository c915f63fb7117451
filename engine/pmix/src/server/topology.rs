//! The topology of the node in a file, which spares each rank of MPICH its own search for it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use std::{ptr, thread};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nix::sys::signal::SigSet;

use crate::error::StartError;
use crate::server::directory::PrivateDirectory;

/// The longest wait for libhwloc, whose search depends on the devices of the node.
pub const MAX_TOPOLOGY_WAIT: Duration = Duration::from_secs(2);

/// The library, version 2.
const LIBRARY: &str = "libhwloc.so.15";
/// Its versions whose functions are those of `Hwloc`: at least the first, and less than the second.
const VERSIONS: [c_uint; 2] = [0x2_01_00, 0x3_00_00];
/// `HWLOC_TYPE_FILTER_KEEP_ALL`: also devices, as MPICH's own search.
const KEEP_ALL: c_int = 0;
/// `HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST`.
const BLACKLIST: c_ulong = 1;
/// The parts of libhwloc that would start drivers of other devices.
const LEFT_OUT: [&CStr; 6] = [c"cuda", c"gl", c"levelzero", c"nvml", c"opencl", c"rsmi"];
/// The name of the file in its directory.
const FILE: &str = "topology.xml";

/// The reason why the topology is not in a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// libhwloc cannot be opened, or lacks a function.
    #[error("cannot open libhwloc: {0}")]
    Open(#[source] libloading::Error),
    /// libhwloc has another version.
    #[error("libhwloc has version {0:x}")]
    Version(u32),
    /// libhwloc has returned an error.
    #[error("libhwloc cannot {0}")]
    Search(&'static str),
    /// The directory of the file cannot be created.
    #[error(transparent)]
    Directory(StartError),
    /// libhwloc has not ended its search within [`MAX_TOPOLOGY_WAIT`].
    #[error("libhwloc does not answer")]
    Stalled,
    /// The thread that calls libhwloc cannot be started.
    #[error("cannot start a thread for libhwloc: {0}")]
    Thread(#[source] std::io::Error),
}

/// A file with the topology of this node in hwloc's XML. It is removed when this is dropped.
#[derive(Debug)]
pub struct TopologyFile {
    directory: PrivateDirectory,
}

impl TopologyFile {
    /// Opens the system's libhwloc, finds out the topology of the node, and writes it to a file.
    /// Blocks for at most [`MAX_TOPOLOGY_WAIT`].
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn create() -> Result<TopologyFile, TopologyError> {
        let directory = PrivateDirectory::create().map_err(TopologyError::Directory)?;
        let file = TopologyFile { directory };
        let path = file.path();
        let (sender, result) = mpsc::sync_channel(1);
        let search = move || {
            // Handlers of the embedder are not for this thread. It fails only for invalid masks.
            let _ = SigSet::all().thread_block();
            drop(sender.send(write(&path)));
        };
        thread::Builder::new().name("iof-topology".into()).spawn(search).map_err(TopologyError::Thread)?;
        result.recv_timeout(MAX_TOPOLOGY_WAIT).map_err(|_| TopologyError::Stalled)??;
        Ok(file)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(FILE)
    }
}

/// The functions of libhwloc.
struct Hwloc {
    version: unsafe extern "C" fn() -> c_uint,
    init: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    filter_devices: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    set_components: unsafe extern "C" fn(*mut c_void, c_ulong, *const c_char) -> c_int,
    load: unsafe extern "C" fn(*mut c_void) -> c_int,
    export: unsafe extern "C" fn(*mut c_void, *const c_char, c_ulong) -> c_int,
    destroy: unsafe extern "C" fn(*mut c_void),
    /// Closed at the end: libpmix may need another libhwloc of the same name.
    _library: Library,
}

/// Looks up a function of the library.
macro_rules! function {
    ($library:expr, $name:literal) => {
        // SAFETY: `Hwloc` declares the function as hwloc.h does, from version 2.1 on.
        *unsafe { $library.get($name) }.map_err(TopologyError::Open)?
    };
}

impl Hwloc {
    fn open() -> Result<Hwloc, TopologyError> {
        // SAFETY: the constructors of libhwloc and of the libraries that it needs only set up their
        // own data.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(TopologyError::Open)?;
        let hwloc = Hwloc {
            version: function!(library, b"hwloc_get_api_version"),
            init: function!(library, b"hwloc_topology_init"),
            filter_devices: function!(library, b"hwloc_topology_set_io_types_filter"),
            set_components: function!(library, b"hwloc_topology_set_components"),
            load: function!(library, b"hwloc_topology_load"),
            export: function!(library, b"hwloc_topology_export_xml"),
            destroy: function!(library, b"hwloc_topology_destroy"),
            _library: library,
        };
        // SAFETY: the function needs no initialization.
        let version = unsafe { (hwloc.version)() };
        let [first, end] = VERSIONS;
        if (first..end).contains(&version) { Ok(hwloc) } else { Err(TopologyError::Version(version)) }
    }
}

/// Writes the topology of this node to a file.
fn write(path: &Path) -> Result<(), TopologyError> {
    let hwloc = Hwloc::open()?;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| TopologyError::Search("write"))?;
    let mut topology = ptr::null_mut();
    // SAFETY: libhwloc stores a topology on success.
    if unsafe { (hwloc.init)(&raw mut topology) } != 0 {
        return Err(TopologyError::Search("start"));
    }
    // SAFETY: the topology is that of above, and is destroyed once, after all other calls.
    unsafe {
        // Without these two settings the file has less or the search takes longer.
        (hwloc.filter_devices)(topology, KEEP_ALL);
        for component in LEFT_OUT {
            (hwloc.set_components)(topology, BLACKLIST, component.as_ptr());
        }
        let loaded = (hwloc.load)(topology) == 0;
        let written = loaded && (hwloc.export)(topology, path.as_ptr(), 0) == 0;
        (hwloc.destroy)(topology);
        match (loaded, written) {
            (true, true) => Ok(()),
            (true, false) => Err(TopologyError::Search("write the topology")),
            (false, _) => Err(TopologyError::Search("find out the topology")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_topology_is_in_a_file_as_long_as_needed() {
        let file = match TopologyFile::create() {
            Err(TopologyError::Open(error)) => return eprintln!("skipped: no libhwloc: {error}"),
            created => created.unwrap(),
        };
        let path = file.path();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("<topology version=\"2.0\">") && text.contains("type=\"PU\""), "{text}");
        drop(file);
        assert!(!path.exists());
    }
}
