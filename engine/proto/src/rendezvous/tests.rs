use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{self, Command};
use std::thread;

use tempfile::{TempDir, tempdir};

use super::directory::DirectoryPath;
use super::names::FileNames;
use super::*;
use crate::names::Nspace;

fn names() -> FileNames {
    FileNames::of_this_host().unwrap()
}

/// Returns the name of this process's session-level socket.
fn own_name() -> String {
    names().session(process::id())
}

fn nspace(name: &str) -> Nspace {
    Nspace::new(name).unwrap()
}

fn bind(level: Level, dir: &TempDir) -> Result<Listener, BindError> {
    Listener::bind(level, Some(dir.path()))
}

fn bind_session(dir: &TempDir) -> Result<Listener, BindError> {
    bind(Level::Session, dir)
}

fn bind_system(dir: &TempDir) -> Result<Listener, BindError> {
    bind(Level::System, dir)
}

/// Returns both levels with the names of this process's sockets there.
fn levels() -> [(Level, String); 2] {
    [(Level::Session, own_name()), (Level::System, names().system())]
}

/// Returns the result of the last step of a search for `target`.
fn find(dir: &Path, target: Target) -> Result<PathBuf, FindError> {
    Search { target, ..Search::default() }.within(Some(dir.to_owned())).sockets().last().unwrap()
}

fn find_any(dir: &TempDir) -> Result<PathBuf, FindError> {
    find(dir.path(), Target::Any)
}

/// Creates a socket without a listener in `dir`.
fn leave_socket(dir: &TempDir, name: &str) -> PathBuf {
    let path = dir.path().join(name);
    drop(UnixListener::bind(&path).unwrap());
    // A child that another test starts may hold a copy until it executes its program.
    while UnixStream::connect(&path).is_ok() {
        thread::yield_now();
    }
    path
}

fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

fn file_names(dir: &TempDir) -> Vec<String> {
    let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_tool_connects_to_the_one_engine_that_it_finds() {
    let dir = tempdir().unwrap();
    assert!(matches!(find_any(&dir), Err(FindError::NotFound(_))));
    let listener = bind_session(&dir).unwrap();
    let path = find_any(&dir).unwrap();
    assert_eq!(path, listener.path());
    let _tool = connect(&path).unwrap();
    let (engine, _) = listener.socket().accept().unwrap();
    assert_eq!(crate::socket::peer(&engine).unwrap().pid, process::id());
}

#[test]
fn default_directories_are_private_for_a_session_and_unchanged_for_the_system() {
    let base = tempdir().unwrap();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let default = |level| DirectoryPath::default_below(level, base.path().to_owned());
    let session = Listener::bind_in(&default(Level::Session)).unwrap();
    let system = Listener::bind_in(&default(Level::System)).unwrap();
    assert_eq!(mode(session.path().parent().unwrap()), 0o700);
    assert_eq!(mode(session.path()), 0o600);
    assert_eq!(system.path(), base.path().join(names().system()));
    assert_eq!((mode(base.path()), mode(system.path())), (0o1777, 0o666));
}

#[test]
fn the_socket_is_private_to_its_user_and_the_only_file_in_its_directory() {
    let dir = tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let listener = bind_session(&dir).unwrap();
    assert_eq!(file_names(&dir), [own_name()]);
    assert_eq!(mode(listener.path()), 0o600);
    drop(listener);
    assert!(file_names(&dir).is_empty());
}

#[test]
fn a_missing_chosen_directory_is_created_private_at_the_session_level_only() {
    let base = tempdir().unwrap();
    let dir = base.path().join("new");
    let missing = Listener::bind(Level::System, Some(&dir)).unwrap_err();
    assert!(matches!(missing, BindError::Directory(DirectoryError::Io { .. })), "{missing}");
    let _listener = Listener::bind(Level::Session, Some(&dir)).unwrap();
    assert_eq!(mode(&dir), 0o700);
}

#[test]
fn directories_longer_than_a_socket_address_work_at_both_levels_and_by_nspace() {
    let base = tempdir().unwrap();
    let dir = base.path().join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&dir).unwrap();
    for (level, target) in [(Level::Session, Target::Nspace(nspace("job"))), (Level::System, Target::System)]
    {
        let listener = Listener::bind(level, Some(&dir)).unwrap();
        let link = listener.announce(&nspace("job")).unwrap();
        connect(&find(&dir, target.clone()).unwrap()).unwrap();
        drop((listener, link));
        assert!(find(&dir, target).is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
}

#[test]
fn a_second_listener_is_refused_and_a_stale_socket_is_replaced_at_both_levels() {
    for (level, name) in levels() {
        let dir = tempdir().unwrap();
        let path = leave_socket(&dir, &name);
        let listener = bind(level, &dir).unwrap();
        connect(&path).expect("the socket has a listener");
        assert!(matches!(bind(level, &dir), Err(BindError::InUse(_))));
        connect(&path).expect("the refused listener does not affect the first");
        assert_eq!(file_names(&dir), [name]);
        drop(listener);
        assert!(file_names(&dir).is_empty());
    }
}

#[test]
fn exactly_one_of_many_starting_engines_becomes_the_system_level_engine() {
    for _ in 0..20 {
        let dir = tempdir().unwrap();
        leave_socket(&dir, &names().system());
        let bound: Vec<_> = thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| bind_system(&dir))).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        let (listening, refused): (Vec<_>, Vec<_>) = bound.into_iter().partition(Result::is_ok);
        assert_eq!(listening.len(), 1);
        assert!(refused.iter().all(|result| matches!(result, Err(BindError::InUse(_)))), "{refused:?}");
        connect(&find(dir.path(), Target::System).unwrap()).expect("one engine listens");
    }
}

#[test]
fn a_file_that_is_not_a_socket_is_neither_replaced_nor_found() {
    let dir = tempdir().unwrap();
    for (level, name) in levels() {
        let path = dir.path().join(name);
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(level, &dir), Err(BindError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
    assert!(matches!(find_any(&dir), Err(FindError::NotFound(_))));
    assert!(matches!(find(dir.path(), Target::System), Err(FindError::NoSystem(_))));
}

#[test]
fn a_listener_removes_only_its_own_socket() {
    let dir = tempdir().unwrap();
    let listener = bind_session(&dir).unwrap();
    fs::remove_file(listener.path()).unwrap();
    let other = leave_socket(&dir, &own_name());
    drop(listener);
    assert!(other.exists());
}

#[test]
fn a_user_selects_one_of_several_engines_by_pid_or_nspace() {
    let dir = tempdir().unwrap();
    let listener = bind_session(&dir).unwrap();
    let _links = ["mine", "both"].map(|name| listener.announce(&nspace(name)).unwrap());
    let other = dir.path().join(names().session(1));
    let _answers = UnixListener::bind(&other).unwrap();
    symlink(names().session(1), dir.path().join(names().job_link(1, &nspace("both")))).unwrap();

    for ambiguous in [Target::Any, Target::Session, Target::Nspace(nspace("both"))] {
        let error = find(dir.path(), ambiguous.clone()).unwrap_err();
        let names = SearchNames { pid: "by-pid", nspace: "by-job", server: "at", directory: "in" };
        let (neutral, text) = (error.to_string(), error.message(&names));
        assert!(!neutral.contains("--") && text.starts_with(&format!("{neutral} with by-pid")), "{text}");
        let candidates = match error {
            FindError::Several(candidates) => candidates,
            FindError::SameName { nspace, engines } => {
                assert_eq!(ambiguous, Target::Nspace(nspace));
                engines
            }
            error => panic!("{ambiguous:?}: {error}"),
        };
        assert_eq!(candidates.len(), 2, "{ambiguous:?}");
        let first =
            Candidate { pid: 1, level: Level::Session, path: other.clone(), jobs: vec![nspace("both")] };
        assert_eq!(candidates[0], first);
        assert_eq!(candidates[1].jobs, [nspace("both"), nspace("mine")]);
        assert!(text.contains(&format!("\n  by-pid 1  (by-job both, {})", other.display())), "{text}");
    }
    assert_eq!(find(dir.path(), Target::Pid(1)).unwrap(), other);
    assert_eq!(find(dir.path(), Target::Pid(process::id())).unwrap(), listener.path());
    assert_eq!(find(dir.path(), Target::Nspace(nspace("mine"))).unwrap(), listener.path());
    let missing = find(dir.path(), Target::Nspace(nspace("min"))).unwrap_err();
    assert!(matches!(missing, FindError::NoSuchNspace { .. }), "{missing}");
}

#[test]
fn a_reserved_name_is_the_first_that_no_live_engine_has() {
    let dir = tempdir().unwrap();
    let listener = bind_session(&dir).unwrap();
    let link = |pid: u32, name: &str| {
        symlink(names().session(pid), dir.path().join(names().job_link(pid, &nspace(name)))).unwrap();
    };
    let reserved = |name: &str| {
        let (name, link) = listener.reserve(&nspace(name)).unwrap();
        (name.as_str().to_owned(), link)
    };
    link(dead_pid(), "a.out");
    let (name, kept) = reserved("a.out");
    assert_eq!(name, "a.out", "a dead engine has no jobs");
    let announced = listener.announce(&nspace("a.out")).unwrap();
    assert!(announced.is_some(), "the engine may use the name that it has reserved");
    let second = reserved("a.out");
    assert_eq!(second.0, "a.out-2", "a name is reserved only once");
    drop((announced, kept, second));

    let _answers = UnixListener::bind(dir.path().join(names().session(1))).unwrap();
    ["a.out", "a.out-2"].iter().for_each(|name| link(1, name));
    assert_eq!(reserved("a.out").0, "a.out-3");
    assert_eq!(reserved("b.out").0, "b.out");
    let long = "n".repeat(255);
    link(1, &long[..200]);
    assert_eq!(reserved(&long[..200]).0, format!("{}-2", &long[..200]));
}

#[test]
fn a_link_exists_until_both_the_reservation_and_the_job_have_dropped_it() {
    let dir = tempdir().unwrap();
    let listener = bind_session(&dir).unwrap();
    for reservation_first in [true, false] {
        let (name, reservation) = listener.reserve(&nspace("job")).unwrap();
        assert_eq!(name, nspace("job"));
        let job = listener.announce(&name).unwrap();
        let (first, last) = if reservation_first { (reservation, job) } else { (job, reservation) };
        drop(first);
        assert!(find(dir.path(), Target::Nspace(name.clone())).is_ok());
        drop(last);
        assert!(find(dir.path(), Target::Nspace(name)).is_err());
    }
}

#[test]
fn a_job_is_found_by_name_while_its_link_exists_at_the_session_level() {
    let dir = tempdir().unwrap();
    let listener = bind_session(&dir).unwrap();
    let link = listener.announce(&nspace("job")).unwrap();
    let link_path = dir.path().join(names().job_link(process::id(), &nspace("job")));
    assert!(fs::metadata(&link_path).unwrap().file_type().is_socket(), "the link points to the socket");
    assert!(find(dir.path(), Target::Nspace(nspace("job"))).is_ok());
    drop(link);
    assert!(find(dir.path(), Target::Nspace(nspace("job"))).is_err());

    let too_long = listener.announce(&nspace(&"n".repeat(255))).unwrap_err();
    let excess = names().job_link(process::id(), &nspace(&"n".repeat(255))).len() - 255;
    let excess = format!("is {excess} bytes too long");
    assert!(too_long.to_string().contains(&excess), "{too_long}");
    let system = bind_system(&dir).unwrap();
    assert!(system.announce(&nspace("job")).unwrap().is_none());
    assert_eq!(file_names(&dir), [names().system(), own_name()]);
}

#[test]
fn the_system_level_engine_is_found_first_unless_an_engine_is_selected() {
    let dir = tempdir().unwrap();
    let session = bind_session(&dir).unwrap();
    let found = |target| {
        let search = Search { target, ..Search::default() }.within(Some(dir.path().to_owned()));
        search.sockets().filter_map(Result::ok).collect::<Vec<_>>()
    };
    assert_eq!(found(Target::Any), [session.path()]);
    // Each level has a directory of its own.
    let here = || Some(dir.path().to_owned());
    let (elsewhere, target) = (tempdir().unwrap(), Target::Session);
    let system_here = Search { system_directory: here(), target, ..Search::default() };
    let session_elsewhere = Search { session_directory: Some(elsewhere.path().to_owned()), ..system_here };
    assert_eq!(session_elsewhere.sockets().filter_map(Result::ok).count(), 0);
    let session_here = Search { session_directory: here(), ..session_elsewhere };
    assert_eq!(session_here.sockets().filter_map(Result::ok).collect::<Vec<_>>(), [session.path()]);
    assert!(matches!(find(dir.path(), Target::System), Err(FindError::NoSystem(_))));
    let system = bind_system(&dir).unwrap();
    for target in [Target::Any, Target::SystemFirst] {
        assert_eq!(found(target), [system.path(), session.path()]);
    }
    assert_eq!(found(Target::System), [system.path()]);
    for target in [Target::Session, Target::Pid(process::id()), Target::Server(session.path().to_owned())] {
        assert_eq!(found(target), [session.path()]);
    }
}

#[test]
fn a_socket_without_a_listener_is_not_found_although_its_pid_exists() {
    let dir = tempdir().unwrap();
    leave_socket(&dir, &names().session(1));
    leave_socket(&dir, &names().system());
    assert!(matches!(find_any(&dir), Err(FindError::NotFound(_))));
    assert!(matches!(find(dir.path(), Target::System), Err(FindError::NoSystem(_))));
}

#[test]
fn sockets_of_dead_processes_are_not_found() {
    let dir = tempdir().unwrap();
    let dead = dead_pid();
    let stale = leave_socket(&dir, &names().session(dead));
    let error = find_any(&dir).unwrap_err();
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
    assert!(matches!(error, FindError::NotFound(_)), "{error}");
    let by_pid = find(dir.path(), Target::Pid(dead));
    assert!(matches!(by_pid, Err(FindError::NoSuchPid { pid, .. }) if pid == dead));
    assert!(matches!(connect(&stale), Err(ConnectError::Refused(_))));
    assert!(stale.exists(), "a tool removes no file");
}

#[test]
fn a_starting_engine_removes_files_of_dead_engines_and_no_others() {
    let dir = tempdir().unwrap();
    let (dead, job) = (dead_pid(), nspace("job"));
    let link = |name: &str, target: &str| symlink(target, dir.path().join(name)).unwrap();
    // Files of dead engines of this user.
    leave_socket(&dir, &names().session(dead));
    link(&names().job_link(dead, &job), &names().session(dead));
    link(&names().job_link(7, &job), &names().session(7));
    leave_socket(&dir, &names().temporary());

    // Files of a live engine.
    let live = names().session(1);
    let _answers = UnixListener::bind(dir.path().join(&live)).unwrap();
    link(&names().job_link(1, &job), &live);
    // Names that no engine of this host creates.
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let others = [
        format!("iof.{host}.tool.+1"),
        format!("iof.{host}.tool.01"),
        format!("iof.{host}.tool.1.old"),
        format!("pmix.{host}.tool.{dead}"),
        format!("pmix.sys.{host}"),
        "iof.elsewhere.tool.1".to_owned(),
        names().system(),
    ];
    others.iter().for_each(|name| drop(leave_socket(&dir, name)));
    // Names of engine files with other contents.
    fs::write(dir.path().join(names().session(8)), "file").unwrap();
    link(&names().session(9), "/nowhere");
    link(&names().job_link(10, &job), "/nowhere");
    fs::write(dir.path().join(names().job_link(11, &job)), "file").unwrap();

    let mut expected = file_names(&dir);
    for removed in
        [names().session(dead), names().job_link(dead, &job), names().job_link(7, &job), names().temporary()]
    {
        expected.retain(|name| *name != removed);
    }
    let listener = bind_session(&dir).unwrap();
    expected.push(own_name());
    expected.sort();
    assert_eq!(file_names(&dir), expected);
    drop(listener);
}

#[test]
fn concurrently_starting_engines_keep_the_socket_and_links_of_a_live_engine() {
    let dir = tempdir().unwrap();
    let live = bind_session(&dir).unwrap();
    let link = live.announce(&nspace("job")).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            // An engine with this pid is refused after it has removed stale files.
            scope.spawn(|| (0..50).for_each(|_| assert!(bind_session(&dir).is_err())));
        }
        for pid in 1..=50 {
            leave_socket(&dir, &names().session(pid));
        }
    });
    assert_eq!(find(dir.path(), Target::Nspace(nspace("job"))).unwrap(), live.path());
    drop(link);
}

/// A real PMIx server leaves regular files that hold a URI.
#[test]
fn files_of_a_real_pmix_server_are_neither_found_nor_touched() {
    let dir = tempdir().unwrap();
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let pid = process::id();
    let names = ["tool".to_owned(), format!("tool.{pid}"), "tool.job".to_owned()];
    let names = names.map(|rest| format!("pmix.{host}.{rest}")).into_iter().chain([
        format!("pmix.sys.{host}"),
        format!("pmix.sched.{host}"),
        format!("pmix.sysctrlr.{host}"),
    ]);
    let text = format!("pmix-server.{pid};tcp4://127.0.0.1:1\n4.2.2\n{pid}\n0:0\n");
    let mut created: Vec<_> =
        names.inspect(|name| fs::write(dir.path().join(name), &text).unwrap()).collect();
    created.sort();
    for target in [Target::Any, Target::System, Target::Pid(pid), Target::Nspace(nspace("job"))] {
        assert!(find(dir.path(), target.clone()).is_err(), "{target:?}");
    }
    let engines = (bind_session(&dir).unwrap(), bind_system(&dir).unwrap());
    assert_eq!(find_any(&dir).unwrap(), engines.0.path());
    assert_eq!(find(dir.path(), Target::System).unwrap(), engines.1.path());
    drop(engines);
    assert_eq!(file_names(&dir), created);
    assert!(created.iter().all(|name| fs::read_to_string(dir.path().join(name)).unwrap() == text));
}

#[test]
fn connecting_to_a_full_queue_blocks_no_longer_than_the_limit() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let short = Duration::from_millis(20);
    let mut queued: Vec<_> = (0..100_000).map_while(|_| connect_within(&path, short).ok()).collect();
    let full = connect_within(&path, short).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
    listener.accept().unwrap();
    queued.push(connect_within(&path, Duration::from_secs(60)).unwrap());
}

#[test]
fn an_agent_is_found_by_its_pid_and_otherwise_only_without_a_session() {
    let dir = tempdir().unwrap();
    let (one, two) = (dead_pid(), dead_pid());
    let agents = [one, two].map(|pid| UnixListener::bind(dir.path().join(names().agent(pid))).unwrap());
    for pid in [one, two] {
        symlink(names().agent(pid), dir.path().join(names().job_link(pid, &nspace("job")))).unwrap();
    }
    let path = |pid| dir.path().join(names().agent(pid));
    let find = |target| find(dir.path(), target);
    assert_eq!(find(Target::Pid(two)).unwrap(), path(two));
    for target in [Target::Session, Target::Any] {
        assert!(matches!(find(target), Err(FindError::Several(engines)) if engines.len() == 2));
    }
    let same_name = find(Target::Nspace(nspace("job")));
    assert!(matches!(same_name, Err(FindError::SameName { engines, .. }) if engines.len() == 2));
    // The job has the session as its front end, which has removed nothing of the agents.
    let session = bind_session(&dir).unwrap();
    let _link = session.announce(&nspace("job")).unwrap();
    assert_eq!(find(Target::Session).unwrap(), session.path());
    assert_eq!(find(Target::Nspace(nspace("job"))).unwrap(), session.path());
    assert_eq!(find(Target::Pid(one)).unwrap(), path(one));
    drop((session, agents));
    // The next engine removes what killed agents have left.
    let _agent = bind(Level::Agent, &dir).unwrap();
    assert_eq!(file_names(&dir), [names().agent(process::id())]);
}

#[test]
fn tools_do_not_find_the_link_of_an_agent_and_the_next_engine_removes_a_dead_one() {
    let dir = tempfile::tempdir().unwrap();
    let link = bind(Level::Link, &dir).unwrap();
    assert_eq!(file_names(&dir), [names().link(process::id())]);
    assert!(find(dir.path(), Target::Any).is_err());
    assert!(find(dir.path(), Target::Pid(process::id())).is_err());
    assert_eq!(list(Some(dir.path())).unwrap(), []);
    let _agent = bind(Level::Agent, &dir).unwrap();
    assert_eq!(link.path(), dir.path().join(names().link(process::id())));
    assert_eq!(file_names(&dir).len(), 2);
    drop(link);
    // No process has this pid.
    drop(UnixListener::bind(dir.path().join(names().link(4_000_000))).unwrap());
    let _session = bind_session(&dir).unwrap();
    assert!(!dir.path().join(names().link(4_000_000)).exists());
}
