use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{self, Command};
use std::thread;

use tempfile::{TempDir, tempdir};

use super::directory::Place;
use super::names::Names;
use super::*;
use crate::names::Nspace;

fn names() -> Names {
    Names::of_this_host().unwrap()
}

/// Our own socket's name in any directory.
fn own_name() -> String {
    names().session(process::id())
}

fn nspace(name: &str) -> Nspace {
    Nspace::new(name).unwrap()
}

fn bind(level: Level, dir: &TempDir) -> Result<Listener, BindError> {
    Listener::bind(level, Some(dir.path()))
}

fn session_in(dir: &TempDir) -> Result<Listener, BindError> {
    bind(Level::Session, dir)
}

fn system_in(dir: &TempDir) -> Result<Listener, BindError> {
    bind(Level::System, dir)
}

/// Both levels, and the names that our own sockets have there.
fn levels() -> [(Level, String); 2] {
    [(Level::Session, own_name()), (Level::System, names().system())]
}

/// What the last step finds that a search for `target` takes.
fn find(dir: &Path, target: Target) -> Result<PathBuf, FindError> {
    Search { target, directory: Some(dir.to_owned()) }.sockets().last().unwrap()
}

fn find_any(dir: &TempDir) -> Result<PathBuf, FindError> {
    find(dir.path(), Target::Any)
}

/// Leaves a socket in `dir` on which nobody listens.
fn leave_socket(dir: &TempDir, name: &str) -> PathBuf {
    let path = dir.path().join(name);
    drop(UnixListener::bind(&path).unwrap());
    path
}

fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

fn names_in(dir: &TempDir) -> Vec<String> {
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
    let listener = session_in(&dir).unwrap();
    let path = find_any(&dir).unwrap();
    assert_eq!(path, listener.path());
    let _tool = connect(&path).unwrap();
    let (engine, _) = listener.socket().accept().unwrap();
    assert_eq!(crate::socket::peer(&engine).unwrap().pid, process::id());
}

#[test]
fn the_default_directory_of_a_session_is_private_and_that_of_the_system_is_left_as_it_is() {
    let base = tempdir().unwrap();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let place = |level| Place::default_under(level, base.path().to_owned());
    let session = Listener::bind_at(&place(Level::Session)).unwrap();
    let system = Listener::bind_at(&place(Level::System)).unwrap();
    assert_eq!(mode(session.path().parent().unwrap()), 0o700);
    assert_eq!(mode(session.path()), 0o600);
    assert_eq!(system.path(), base.path().join(names().system()));
    assert_eq!((mode(base.path()), mode(system.path())), (0o1777, 0o666));
}

#[test]
fn the_socket_is_for_its_user_only_and_alone_in_its_directory() {
    let dir = tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let listener = session_in(&dir).unwrap();
    assert_eq!(names_in(&dir), [own_name()]);
    assert_eq!(mode(listener.path()), 0o600);
    drop(listener);
    assert!(names_in(&dir).is_empty());
}

#[test]
fn a_given_directory_is_made_private_if_missing_but_not_for_the_system() {
    let base = tempdir().unwrap();
    let dir = base.path().join("new");
    let missing = Listener::bind(Level::System, Some(&dir)).unwrap_err();
    assert!(matches!(missing, BindError::Directory(DirectoryError::Io { .. })), "{missing}");
    let _listener = Listener::bind(Level::Session, Some(&dir)).unwrap();
    assert_eq!(mode(&dir), 0o700);
}

#[test]
fn directories_too_long_for_a_socket_address_work_at_both_levels_and_by_nspace() {
    let base = tempdir().unwrap();
    let dir = base.path().join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&dir).unwrap();
    for (level, target) in [(Level::Session, Target::Nspace(nspace("job"))), (Level::System, Target::System)]
    {
        let listener = Listener::bind(level, Some(&dir)).unwrap();
        let entry = listener.announce(&nspace("job")).unwrap();
        connect(&find(&dir, target.clone()).unwrap()).unwrap();
        drop((listener, entry));
        assert!(find(&dir, target).is_err());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
}

#[test]
fn a_second_listener_is_refused_and_a_stale_socket_replaced_at_both_levels() {
    for (level, name) in levels() {
        let dir = tempdir().unwrap();
        let path = leave_socket(&dir, &name);
        let listener = bind(level, &dir).unwrap();
        connect(&path).expect("somebody answers now");
        assert!(matches!(bind(level, &dir), Err(BindError::InUse(_))));
        connect(&path).expect("the refused one has not harmed the first");
        assert_eq!(names_in(&dir), [name]);
        drop(listener);
        assert!(names_in(&dir).is_empty());
    }
}

#[test]
fn of_many_engines_that_start_over_one_stale_socket_exactly_one_is_the_systems() {
    for _ in 0..20 {
        let dir = tempdir().unwrap();
        leave_socket(&dir, &names().system());
        let bound: Vec<_> = thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| system_in(&dir))).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        let (won, lost): (Vec<_>, Vec<_>) = bound.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1);
        assert!(lost.iter().all(|lost| matches!(lost, Err(BindError::InUse(_)))), "{lost:?}");
        connect(&find(dir.path(), Target::System).unwrap()).expect("the one that won listens");
    }
}

#[test]
fn what_is_not_a_socket_is_neither_replaced_nor_found() {
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
fn a_listener_removes_no_socket_but_its_own() {
    let dir = tempdir().unwrap();
    let listener = session_in(&dir).unwrap();
    fs::remove_file(listener.path()).unwrap();
    let other = leave_socket(&dir, &own_name());
    drop(listener);
    assert!(other.exists());
}

#[test]
fn of_several_engines_the_user_chooses_by_pid_or_nspace() {
    let dir = tempdir().unwrap();
    let listener = session_in(&dir).unwrap();
    let _entries = ["mine", "both"].map(|name| listener.announce(&nspace(name)).unwrap());
    let other = dir.path().join(names().session(1));
    let _answers = UnixListener::bind(&other).unwrap();
    symlink(names().session(1), dir.path().join(names().entry(1, &nspace("both")))).unwrap();

    for ambiguous in [Target::Any, Target::Session, Target::Nspace(nspace("both"))] {
        let error = find(dir.path(), ambiguous.clone()).unwrap_err();
        let text = error.to_string();
        let FindError::Several(candidates) = error else { panic!("{ambiguous:?}: {error}") };
        assert_eq!(candidates.len(), 2, "{ambiguous:?}");
        assert_eq!(candidates[0], Candidate { pid: 1, path: other.clone() });
        assert!(text.contains("--pid 1 ") && text.contains(other.to_str().unwrap()), "{text}");
    }
    assert_eq!(find(dir.path(), Target::Pid(1)).unwrap(), other);
    assert_eq!(find(dir.path(), Target::Pid(process::id())).unwrap(), listener.path());
    assert_eq!(find(dir.path(), Target::Nspace(nspace("mine"))).unwrap(), listener.path());
    let missing = find(dir.path(), Target::Nspace(nspace("min"))).unwrap_err();
    assert!(matches!(missing, FindError::NoSuchNspace { .. }), "{missing}");
}

#[test]
fn a_job_is_found_by_name_as_long_as_its_entry_lives_and_only_at_the_session_level() {
    let dir = tempdir().unwrap();
    let listener = session_in(&dir).unwrap();
    let entry = listener.announce(&nspace("job")).unwrap();
    let link = dir.path().join(names().entry(process::id(), &nspace("job")));
    assert!(fs::metadata(&link).unwrap().file_type().is_socket(), "the link leads to the socket");
    assert!(find(dir.path(), Target::Nspace(nspace("job"))).is_ok());
    drop(entry);
    assert!(find(dir.path(), Target::Nspace(nspace("job"))).is_err());

    let too_long = listener.announce(&nspace(&"n".repeat(255))).unwrap_err();
    assert!(too_long.to_string().contains("name too long"), "{too_long}");
    let system = system_in(&dir).unwrap();
    assert!(system.announce(&nspace("job")).unwrap().is_none());
    assert_eq!(names_in(&dir), [names().system(), own_name()]);
}

#[test]
fn the_systems_engine_is_found_before_the_sessions_unless_one_is_named() {
    let dir = tempdir().unwrap();
    let session = session_in(&dir).unwrap();
    let found = |target| {
        let search = Search { target, directory: Some(dir.path().to_owned()) };
        search.sockets().filter_map(Result::ok).collect::<Vec<_>>()
    };
    assert_eq!(found(Target::Any), [session.path()]);
    assert!(matches!(find(dir.path(), Target::System), Err(FindError::NoSystem(_))));
    let system = system_in(&dir).unwrap();
    for target in [Target::Any, Target::SystemFirst] {
        assert_eq!(found(target), [system.path(), session.path()]);
    }
    assert_eq!(found(Target::System), [system.path()]);
    for target in [Target::Session, Target::Pid(process::id()), Target::Server(session.path().to_owned())] {
        assert_eq!(found(target), [session.path()]);
    }
}

#[test]
fn a_socket_on_which_nobody_listens_does_not_count_although_its_pid_lives_on() {
    let dir = tempdir().unwrap();
    leave_socket(&dir, &names().session(1));
    leave_socket(&dir, &names().system());
    assert!(matches!(find_any(&dir), Err(FindError::NotFound(_))));
    assert!(matches!(find(dir.path(), Target::System), Err(FindError::NoSystem(_))));
}

#[test]
fn what_dead_processes_left_does_not_count() {
    let dir = tempdir().unwrap();
    let dead = dead_pid();
    let stale = leave_socket(&dir, &names().session(dead));
    let error = find_any(&dir).unwrap_err();
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
    assert!(matches!(error, FindError::NotFound(_)), "{error}");
    let of_pid = find(dir.path(), Target::Pid(dead));
    assert!(matches!(of_pid, Err(FindError::NoSuchPid { pid, .. }) if pid == dead));
    assert!(matches!(connect(&stale), Err(ConnectError::Refused(_))));
    assert!(stale.exists(), "tools remove nothing");
}

#[test]
fn an_engine_that_starts_removes_what_dead_ones_left_and_nothing_else() {
    let dir = tempdir().unwrap();
    let (dead, job) = (dead_pid(), nspace("job"));
    let link = |name: &str, to: &str| symlink(to, dir.path().join(name)).unwrap();
    // Ours, and dead.
    leave_socket(&dir, &names().session(dead));
    link(&names().entry(dead, &job), &names().session(dead));
    link(&names().entry(7, &job), &names().session(7));
    leave_socket(&dir, &names().unready());

    // Alive.
    let live = names().session(1);
    let _answers = UnixListener::bind(dir.path().join(&live)).unwrap();
    link(&names().entry(1, &job), &live);
    // None that an engine of this host makes.
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
    // The right names of the wrong things.
    fs::write(dir.path().join(names().session(8)), "file").unwrap();
    link(&names().session(9), "/nowhere");
    link(&names().entry(10, &job), "/nowhere");
    fs::write(dir.path().join(names().entry(11, &job)), "file").unwrap();

    let mut expected = names_in(&dir);
    for gone in [names().session(dead), names().entry(dead, &job), names().entry(7, &job), names().unready()]
    {
        expected.retain(|name| *name != gone);
    }
    let listener = session_in(&dir).unwrap();
    expected.push(own_name());
    expected.sort();
    assert_eq!(names_in(&dir), expected);
    drop(listener);
}

#[test]
fn engines_that_start_all_at_once_leave_one_that_is_alive_its_socket_and_its_entry() {
    let dir = tempdir().unwrap();
    let live = session_in(&dir).unwrap();
    let entry = live.announce(&nspace("job")).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            // Those of this pid are refused, after they have looked for what is stale.
            scope.spawn(|| (0..50).for_each(|_| assert!(session_in(&dir).is_err())));
        }
        for pid in 1..=50 {
            leave_socket(&dir, &names().session(pid));
        }
    });
    assert_eq!(find(dir.path(), Target::Nspace(nspace("job"))).unwrap(), live.path());
    drop(entry);
}

/// As a real PMIx server leaves them: regular files that hold a URI.
#[test]
fn files_of_a_real_pmix_server_are_neither_found_nor_touched() {
    let dir = tempdir().unwrap();
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let pid = process::id();
    let theirs = ["tool".to_owned(), format!("tool.{pid}"), "tool.job".to_owned()];
    let theirs = theirs.map(|rest| format!("pmix.{host}.{rest}")).into_iter().chain([
        format!("pmix.sys.{host}"),
        format!("pmix.sched.{host}"),
        format!("pmix.sysctrlr.{host}"),
    ]);
    let text = format!("pmix-server.{pid};tcp4://127.0.0.1:1\n4.2.2\n{pid}\n0:0\n");
    let mut left: Vec<_> = theirs.inspect(|name| fs::write(dir.path().join(name), &text).unwrap()).collect();
    left.sort();
    for target in [Target::Any, Target::System, Target::Pid(pid), Target::Nspace(nspace("job"))] {
        assert!(find(dir.path(), target.clone()).is_err(), "{target:?}");
    }
    let engines = (session_in(&dir).unwrap(), system_in(&dir).unwrap());
    assert_eq!(find_any(&dir).unwrap(), engines.0.path());
    assert_eq!(find(dir.path(), Target::System).unwrap(), engines.1.path());
    drop(engines);
    assert_eq!(names_in(&dir), left);
    assert!(left.iter().all(|name| fs::read_to_string(dir.path().join(name)).unwrap() == text));
}

#[test]
fn whose_queue_is_full_is_waited_for_no_longer_than_the_limit() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let short = Duration::from_millis(20);
    let mut waiting: Vec<_> = (0..100_000).map_while(|_| connect_within(&path, short).ok()).collect();
    let full = connect_within(&path, short).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
    listener.accept().unwrap();
    waiting.push(connect_within(&path, Duration::from_secs(60)).unwrap());
}
