//! Sockets that a process was given: by a service manager, or by its parent.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use shorthaul::{ClientOptions, DirectClient, Server, ServerOptions};
use shorthaul_platform::socket::stream_from_stdin;

use super::child::{self, Process, say};
use super::service::{PATIENCE, check, eventually, request, serve};

/// A server with the socket that its service manager listens on.
pub(super) fn serve_as_activated() {
    let server = Server::from_service_manager(ServerOptions::default());
    let _server = server.unwrap().start(serve).unwrap();
    let again = Server::from_service_manager(ServerOptions::default());
    say(again.unwrap_err());
    thread::sleep(PATIENCE * 10);
}

/// A server of one client: its parent.
pub(super) fn serve_inherited() {
    let server = Server::without_listener(ServerOptions::default());
    let mut server = server.start(serve).unwrap();
    server.adopt(stream_from_stdin().unwrap());
    thread::sleep(PATIENCE * 10);
}

/// A client of its parent.
pub(super) fn call_parent() {
    let stream = stream_from_stdin().unwrap();
    call_over(stream);
    say("right");
}

fn call_over(stream: UnixStream) {
    let mut client = DirectClient::from_stream(stream, &ClientOptions::default()).unwrap();
    let buffer = client.buffer(9000).unwrap();
    let asked = request(9000, 5);
    let call = client.call("map").request(&asked).into(buffer);
    check(&call.deadline(PATIENCE).send().unwrap(), 9000, 5);
}

#[test]
fn a_service_manager_passes_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let script = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command.arg(std::env::current_exe().unwrap());
    command.args(child::arguments());
    child::prepare(&mut command, "activated", &path);
    command.stdin(Stdio::from(OwnedFd::from(listener)));
    let mut server = Process::spawn(command);
    assert!(server.hear().contains("passed no socket"), "taken only once");
    call_over(UnixStream::connect(&path).unwrap());
    server.kill();
    assert!(path.exists(), "the file is the service manager's");
}

#[test]
fn without_a_service_manager_it_is_said_what_is_missing() {
    let error = Server::from_service_manager(ServerOptions::default()).unwrap_err();
    assert!(error.to_string().contains("LISTEN_FDS"), "{error}");
}

#[test]
fn a_child_serves_the_stream_that_it_inherited() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = child::command("inherited", Path::new(""));
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    let server = Process::spawn(command);
    call_over(ours);
    server.kill();
}

#[test]
fn a_child_calls_over_the_stream_that_it_inherited() {
    let server = Server::without_listener(ServerOptions::default());
    let mut server = server.start(serve).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = child::command("calling parent", Path::new(""));
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    server.adopt(ours);
    let mut client = Process::spawn(command);
    assert_eq!(client.hear(), "right");
    assert!(client.wait().success());
    eventually("the connection ends", PATIENCE, || server.stats().connections == 0);
}
