//! A server that is killed in the middle of a call: its clients are told, at once and honestly.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shorthaul::{Error, InboundCall, Server, Status};

use super::super::child::{Process, say};
use super::super::service::{
    AnyClient, PATIENCE, Way, check, payload_bytes, request, serve, write_payload,
};
use super::super::workload::{Caller, start_server};

/// Serves patterns; a method that ends in "half" writes half of its payload and no more.
pub(crate) fn serve_for_ever(path: &Path) {
    let server = Server::bind(path).unwrap().start(serve_or_stop_half_way);
    say("serving");
    // Ended by its parent, or with it.
    thread::sleep(PATIENCE * 10);
    drop(server);
}

fn serve_or_stop_half_way(call: &mut InboundCall) -> Result<(), Status> {
    if !call.method().ends_with("half") {
        return serve(call);
    }
    let half = vec![0x55; payload_bytes(call) / 2];
    write_payload(call, &half)?;
    say("half-way");
    thread::sleep(PATIENCE * 10);
    Ok(())
}

fn kill_server(is_direct: bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    for way in Way::ALL {
        // Each takes over the socket that the one before has left.
        let mut server = Process::start("server", &path);
        assert_eq!(server.hear(), "serving");
        let mut client = AnyClient::connect(&path, is_direct).unwrap();
        let asked = request(BYTES, 9);
        let reply = client.send(way, "", &asked, BYTES, PATIENCE).unwrap();
        check(&reply, BYTES, 9);
        let (failed, ended_at) = thread::scope(|scope| {
            let client = &mut client;
            let caller = scope.spawn(move || {
                let asked = request(BYTES, 1);
                let outcome = client.send(way, " half", &asked, BYTES, PATIENCE * 6);
                (outcome.unwrap_err(), Instant::now())
            });
            assert_eq!(server.hear(), "half-way");
            let killed_at = Instant::now();
            server.kill();
            let (failed, ended_at) = caller.join().unwrap();
            (failed, ended_at - killed_at)
        });
        assert!(ended_at < Duration::from_secs(1), "{way:?}: {ended_at:?}");
        let error = failed.error();
        assert!(matches!(error, Error::ConnectionLost(_)), "{way:?}: {error}");
        assert!(error.to_string().contains("outcome unknown"), "{error}");
        assert!(!error.is_retryable() && error.closes_connection());
        assert!(failed.into_buffer().is_none(), "half-filled");
        let next = match &mut client {
            AnyClient::Direct(client) => client.call("map").send().unwrap_err(),
            AnyClient::Threaded(client) => client.call("map").send().unwrap_err(),
        };
        assert!(matches!(next.error(), Error::ConnectionLost(_)), "{next}");
    }
}

#[test]
fn a_direct_client_outlives_its_server() {
    kill_server(true);
}

#[test]
fn a_client_outlives_its_server() {
    kill_server(false);
}

#[test]
fn a_client_whose_server_is_dead_keeps_no_descriptor_of_its_callers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    for is_direct in [true, false] {
        let server = start_server(&path, 1);
        let mut client = AnyClient::connect(&path, is_direct).unwrap();
        server.kill();
        let (reader, writer) = std::io::pipe().unwrap();
        let outcome = match client.caller() {
            Caller::Direct(client) => client.call("map").into_descriptor(&writer).send(),
            Caller::Threaded(client) => client.call("map").into_descriptor(&writer).send(),
        };
        assert!(matches!(outcome.unwrap_err().error(), Error::ConnectionLost(_)));
        drop(writer);
        let mut waiting = [PollFd::new(&reader, PollFlags::IN)];
        let timeout = Timespec::try_from(PATIENCE).unwrap();
        assert_eq!(poll(&mut waiting, Some(&timeout)), Ok(1), "its reader never finds the end");
        assert!(waiting[0].revents().contains(PollFlags::HUP));
        drop(client);
    }
}

const BYTES: usize = 200_000;
