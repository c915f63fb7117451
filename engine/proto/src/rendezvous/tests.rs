use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::{self, Command};

use tempfile::{TempDir, tempdir};

use super::*;

fn host() -> String {
    host_name().unwrap()
}

/// Leaves a socket for `pid` in `dir` on which nobody listens.
fn leave_socket(dir: &Path, pid: u32) -> PathBuf {
    let path = dir.join(socket_name(&host(), pid));
    drop(UnixListener::bind(&path).unwrap());
    path
}

fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

fn names_in(dir: &TempDir) -> Vec<String> {
    fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_tool_finds_the_one_engine_in_the_default_directory() {
    let base = tempdir().unwrap();
    let place = || Place::default_under(base.path());
    assert!(matches!(find_at(place(), None), Err(FindError::NotFound(_))));
    let listener = Listener::bind_at(&place()).unwrap();
    let path = find_at(place(), None).unwrap();
    assert_eq!(path, listener.path());
    let _tool = connect(&path).unwrap();
    let (engine, _) = listener.socket().accept().unwrap();
    assert_eq!(crate::socket::peer(&engine).unwrap().pid, process::id());
}

#[test]
fn the_socket_is_for_its_user_only_and_alone_in_its_directory() {
    let dir = tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let listener = Listener::bind(Some(dir.path())).unwrap();
    assert_eq!(names_in(&dir), [socket_name(&host(), process::id())]);
    assert_eq!(fs::metadata(listener.path()).unwrap().mode() & 0o7777, 0o600);
    drop(listener);
    assert!(names_in(&dir).is_empty());
}

#[test]
fn a_given_directory_is_made_private_if_missing() {
    let base = tempdir().unwrap();
    let dir = base.path().join("new");
    let _listener = Listener::bind(Some(&dir)).unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn directories_too_long_for_a_socket_address_work() {
    let base = tempdir().unwrap();
    let dir = base.path().join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&dir).unwrap();
    let listener = Listener::bind(Some(&dir)).unwrap();
    connect(&find(Some(&dir), None).unwrap()).unwrap();
    drop(listener);
    assert!(matches!(find(Some(&dir), None), Err(FindError::NotFound(_))));
}

#[test]
fn a_second_listener_is_refused_and_a_stale_socket_replaced() {
    let dir = tempdir().unwrap();
    let path = leave_socket(dir.path(), process::id());
    let listener = Listener::bind(Some(dir.path())).unwrap();
    connect(&path).expect("somebody answers now");
    assert!(matches!(Listener::bind(Some(dir.path())), Err(BindError::InUse(_))));
    connect(&path).expect("the refused one has not harmed the first");
    drop(listener);
}

#[test]
fn what_is_not_a_socket_is_neither_replaced_nor_found() {
    let dir = tempdir().unwrap();
    let path = dir.path().join(socket_name(&host(), process::id()));
    fs::write(&path, "precious").unwrap();
    assert!(matches!(Listener::bind(Some(dir.path())), Err(BindError::NotASocket(_))));
    assert!(matches!(find(Some(dir.path()), None), Err(FindError::NotFound(_))));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_listener_removes_no_socket_but_its_own() {
    let dir = tempdir().unwrap();
    let listener = Listener::bind(Some(dir.path())).unwrap();
    fs::remove_file(listener.path()).unwrap();
    let other = leave_socket(dir.path(), process::id());
    drop(listener);
    assert!(other.exists());
}

#[test]
fn of_several_engines_the_user_chooses_by_pid() {
    let dir = tempdir().unwrap();
    let listener = Listener::bind(Some(dir.path())).unwrap();
    let other = dir.path().join(socket_name(&host(), 1));
    let _answers = UnixListener::bind(&other).unwrap();
    let error = find(Some(dir.path()), None).unwrap_err();
    let text = error.to_string();
    let FindError::Several(candidates) = error else { panic!("{error}") };
    assert_eq!(candidates.len(), 2);
    assert_eq!(candidates[0], Candidate { pid: 1, path: other.clone() });
    assert!(text.contains("--pid 1 ") && text.contains(other.to_str().unwrap()), "{text}");
    assert_eq!(find(Some(dir.path()), Some(1)).unwrap(), other);
    assert_eq!(find(Some(dir.path()), Some(process::id())).unwrap(), listener.path());
}

#[test]
fn a_socket_on_which_nobody_listens_does_not_count_although_its_pid_lives_on() {
    let dir = tempdir().unwrap();
    leave_socket(dir.path(), 1);
    assert!(matches!(find(Some(dir.path()), None), Err(FindError::NotFound(_))));
}

#[test]
fn what_dead_processes_and_other_hosts_left_does_not_count() {
    let dir = tempdir().unwrap();
    let dead = dead_pid();
    let stale = leave_socket(dir.path(), dead);
    for name in ["pmix.elsewhere.tool.1", "pmix.tool.1"].map(str::to_owned).into_iter().chain([
        format!("pmix.{}.tool.+1", host()),
        format!("pmix.{}.tool.01", host()),
        format!("pmix.{}.tool.0", host()),
        format!("pmix.{}.tool.{}", host(), u32::MAX),
    ]) {
        drop(UnixListener::bind(dir.path().join(name)).unwrap());
    }
    let error = find(Some(dir.path()), None).unwrap_err();
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
    assert!(matches!(error, FindError::NotFound(_)), "{error}");
    assert!(
        matches!(find(Some(dir.path()), Some(dead)), Err(FindError::NoSuchPid { pid, .. }) if pid == dead)
    );
    assert!(matches!(connect(&stale), Err(ConnectError::Refused(_))));

    let listener = Listener::bind(Some(dir.path())).unwrap();
    assert_eq!(find(Some(dir.path()), None).unwrap(), listener.path());
}
