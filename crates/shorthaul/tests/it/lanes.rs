//! Each lane moves the bytes it should, whatever their number.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use shorthaul::{
    Client, Code, DirectClient, Error, FillMethod, FillPolicy, InboundCall, Lane, Reply,
    RunningServer, Server, ServerOptions, Status,
};
use tempfile::TempDir;

/// Sizes around everything that is cut into pieces somewhere.
const SIZES: [usize; 9] = [0, 1, 63, 4095, 4096, 65_535, 65_537, (2 << 20) + 1, 8 << 20];

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed).collect()
}

/// Answers `size` bytes of a pattern: the request is the size and the seed.
fn serve(call: &mut InboundCall) -> Result<(), Status> {
    let request = call.request();
    let bytes = u64::from_le_bytes(request[..8].try_into().unwrap()) as usize;
    let seed = request[8];
    let method = match call.method() {
        "write" => FillMethod::Write,
        _ => FillMethod::Map,
    };
    let policy = FillPolicy { method, ..FillPolicy::default() };
    let mut out = call.payload_with(bytes, policy)?;
    out.copy_from(&pattern(bytes, seed))?;
    call.reply(&[seed])
}

fn start(inline_handlers: bool) -> (TempDir, RunningServer, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let options = ServerOptions { inline_handlers, ..ServerOptions::default() };
    let server = Server::bind_with(&path, options).unwrap().start(serve).unwrap();
    (folder, server, path)
}

fn request(bytes: usize, seed: u8) -> Vec<u8> {
    let mut request = (bytes as u64).to_le_bytes().to_vec();
    request.push(seed);
    request
}

fn check(reply: &Reply, bytes: usize, seed: u8, lane: Lane) {
    assert_eq!(reply.response(), [seed]);
    assert_eq!((reply.len(), reply.lane()), (bytes, lane));
    assert!(reply.to_vec() == pattern(bytes, seed), "{bytes} bytes by {lane}");
}

/// Room for no bytes is no offer.
fn inline_lane(bytes: usize) -> Lane {
    if bytes == 0 { Lane::None } else { Lane::Inline }
}

#[test]
fn direct_every_lane_every_size() {
    for inline_handlers in [false, true] {
        let (_folder, server, path) = start(inline_handlers);
        let mut client = DirectClient::connect(&path).unwrap();
        let mut buffer = client.buffer(8 << 20).unwrap();
        for (round, bytes) in SIZES.into_iter().enumerate() {
            let seed = round as u8;
            let request = request(bytes, seed);
            let inline = client.call("map").request(&request).inline(bytes).send().unwrap();
            check(&inline, bytes, seed, inline_lane(bytes));
            for (method, lane) in [("map", Lane::FillMap), ("write", Lane::FillWrite)] {
                let reply = client.call(method).request(&request).into(buffer).send().unwrap();
                check(&reply, bytes, seed, lane);
                buffer = reply.into_buffer().unwrap();
                let fresh = client.call(method).request(&request).into_fresh(bytes).send().unwrap();
                check(&fresh, bytes, seed, lane);
            }
        }
        assert_eq!(server.stats().mappings_reused, SIZES.len() as u64 - 1);
        assert!(server.stop(Duration::from_secs(5)));
    }
}

#[test]
fn threads_share_a_client() {
    let (_folder, server, path) = start(false);
    let client = Client::connect(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let client = &client;
            scope.spawn(move || {
                let mut buffer = client.buffer(70_000).unwrap();
                for round in 0..50_u8 {
                    let bytes = usize::from(round) * 1_300;
                    let request = request(bytes, round ^ thread);
                    let reply = client.call("map").request(&request).into(buffer).send().unwrap();
                    check(&reply, bytes, round ^ thread, Lane::FillMap);
                    buffer = reply.into_buffer().unwrap();
                    let inline = client.call("").request(&request).inline(bytes).send().unwrap();
                    check(&inline, bytes, round ^ thread, inline_lane(bytes));
                }
            });
        }
    });
    drop(client);
    assert!(server.stop(Duration::from_secs(5)));
}

#[test]
fn mappings_pushed_out_are_made_anew_unseen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let options = ServerOptions { kept_mappings_max: 2, reactors: 2, ..ServerOptions::default() };
    let server = Server::bind_with(&path, options).unwrap().start(serve).unwrap();
    let clients = [Client::connect(&path).unwrap(), Client::connect(&path).unwrap()];
    let mut buffers: Vec<_> =
        clients.iter().flat_map(|c| (0..4).map(|_| Some(c.buffer(5000).unwrap()))).collect();
    for round in 0..20_u8 {
        for (index, slot) in buffers.iter_mut().enumerate() {
            let seed = round.wrapping_mul(16) + index as u8;
            let (client, request) = (&clients[index / 4], request(5000, seed));
            let call = client.call("map").request(&request).into(slot.take().unwrap());
            let reply = call.send().unwrap();
            check(&reply, 5000, seed, Lane::FillMap);
            *slot = reply.into_buffer();
        }
    }
    let stats = server.stats();
    assert!(stats.mappings_made > 8, "{stats:?}");
}

#[test]
fn a_buffer_too_small_names_the_size_needed() {
    let (_folder, _server, path) = start(false);
    let mut client = DirectClient::connect(&path).unwrap();
    let buffer = client.buffer(4096).unwrap();
    let request = request(5000, 1);
    let failed = client.call("map").request(&request).into(buffer).send().unwrap_err();
    let Error::Status(status) = failed.error() else { panic!("{failed}") };
    assert_eq!((status.code, status.bytes_needed), (Code::OutOfRange, Some(5000)));
    assert!(status.message.contains("5000"), "{status}");
    let buffer = failed.into_buffer().expect("the server has let go");
    assert_eq!(buffer.len(), 4096);
}
