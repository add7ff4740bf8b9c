//! The socket's file: taken over from the dead only, never without its mode.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::Mode;
use rustix::process::umask;
use shorthaul::{DirectClient, Error, Server, ServerOptions};

use super::child::{Process, say};
use super::service::{PATIENCE, check, request, serve};

/// Binds under the umask that the environment tells, and says the mode of the file.
pub(super) fn bind_and_tell(path: &Path) {
    let mask = std::env::var(MASK).unwrap();
    umask(Mode::from_raw_mode(u32::from_str_radix(&mask, 8).unwrap()));
    let _server = Server::bind(path).unwrap();
    let mode = fs::metadata(path).unwrap().permissions().mode();
    say(format_args!("{:o}", mode & 0o7777));
    let wide = path.with_extension("wide");
    let options = ServerOptions { socket_mode: 0o666, ..ServerOptions::default() };
    let _server = Server::bind_with(&wide, options).unwrap();
    let mode = fs::metadata(wide).unwrap().permissions().mode();
    say(format_args!("{:o}", mode & 0o7777));
}

fn assert_in_use(path: &Path) {
    let error = Server::bind(path).unwrap_err();
    let Error::Io { cause, .. } = &error else { panic!("{error}") };
    assert_eq!(cause.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

fn call_once(path: &Path) {
    let mut client = DirectClient::connect(path).unwrap();
    let asked = request(1000, 3);
    let call = client.call("map").request(&asked).inline(1000);
    check(&call.deadline(PATIENCE).send().unwrap(), 1000, 3);
}

#[test]
fn a_socket_of_the_dead_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut killed = Process::start("server", &path);
    assert_eq!(killed.hear(), "serving");
    killed.kill();
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    let nobody = DirectClient::connect(&path).unwrap_err();
    assert!(nobody.to_string().contains("start the server"), "{nobody}");
    let _server = Server::bind(&path).unwrap().start(serve).unwrap();
    call_once(&path);
}

#[test]
fn a_socket_of_the_living_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut other = Process::start("server", &path);
    assert_eq!(other.hear(), "serving");
    assert_in_use(&path);
    call_once(&path);
    drop(other);

    // Nor one of somebody who knows nothing of lock files.
    let path = folder.path().join("foreign");
    let _foreign = UnixListener::bind(&path).unwrap();
    assert_in_use(&path);
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, "data").unwrap();
    let error = Server::bind(&path).unwrap_err();
    assert!(matches!(error, Error::Misuse(_)), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "data");
}

#[test]
fn a_server_that_ends_takes_its_file_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    for _ in 0..2 {
        let server = Server::bind(&path).unwrap().start(serve).unwrap();
        call_once(&path);
        assert!(server.stop(PATIENCE));
        assert!(!path.exists());
    }
}

#[test]
fn the_mode_is_as_asked_under_any_umask() {
    for mask in ["000", "022", "077"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut command = super::child::command("umask", &path);
        command.env(MASK, mask);
        let mut child = Process::spawn(command);
        assert_eq!((child.hear(), child.hear()), ("600".into(), "666".into()));
        assert!(child.wait().success());
    }
}

const MASK: &str = "SHORTHAUL_TEST_UMASK";
