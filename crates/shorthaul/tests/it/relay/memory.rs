//! Relays into registered buffers.

use std::fs::File;
use std::time::Duration;

use shorthaul::relay::{Fault, Method, Relay};
use shorthaul::{Buffer, DirectClient, InboundCall, RunningServer, Server, Status};

use super::ends::{From, Giving};
use super::{MOVING, assert_same, pattern, relay};

/// A buffer that is registered with a server; the server sums what it is sent.
fn registered(bytes: usize) -> (RunningServer, DirectClient, Buffer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = Server::bind(&path).unwrap();
    let server = server.start(|call: &mut InboundCall| -> Result<(), Status> {
        let mut bytes = vec![0; call.upload_bytes()];
        call.upload()?.copy_to(0, &mut bytes)?;
        let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
        call.reply(&sum.to_le_bytes())
    });
    let mut client = DirectClient::connect(&path).unwrap();
    let buffer = client.buffer(bytes).unwrap();
    (server.unwrap(), client, buffer, folder)
}

fn contents(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to(0, &mut bytes);
    bytes
}

#[test]
fn any_source_goes_straight_into_a_buffer_and_on_to_the_server() {
    let content = pattern(300_000, 4);
    let (_server, mut client, mut buffer, _folder) = registered(400_000);
    for from in From::ALL {
        for is_bounded in [false, true] {
            let mut relay = relay(Method::Auto, 65_536);
            if is_bounded {
                relay = relay.deadline(Duration::from_secs(60));
            }
            buffer.fill(0..400_000, 0);
            let source = Giving::new(from, &content);
            let relayed = buffer.relay_from(64, &mut relay, &source, ..300_000).unwrap();
            assert_eq!(relayed.bytes, 300_000);
            assert_same(&contents(&buffer)[64..300_064], &content, &format!("from {from:?}"));
            let reply = client.call("").payload_from(buffer, 64..300_064).send().unwrap();
            let sum: u64 = content.iter().map(|&byte| u64::from(byte)).sum();
            assert_eq!(reply.response(), sum.to_le_bytes());
            buffer = reply.into_upload_buffer().unwrap();
        }
    }
}

#[test]
fn what_does_not_fit_is_not_begun() {
    let (_server, _client, mut buffer, _folder) = registered(1000);
    let source = Giving::new(From::Memfd, &pattern(1001, 1));
    let error = buffer.relay_from(0, &mut Relay::new(), &source, ..).unwrap_err();
    assert!(matches!(error.fault, Fault::Misuse(_)), "{error}");
    assert!(error.to_string().contains("1001 bytes don't fit into the 1000"), "{error}");
    assert_eq!(contents(&buffer), [0; 1000]);
    assert_eq!(buffer.relay_from(1, &mut Relay::new(), &source, 2..).unwrap().bytes, 999);
    // Of what tells no size as much as there is room for.
    let endless = File::open("/dev/zero").unwrap();
    assert_eq!(buffer.relay_from(10, &mut Relay::new(), &endless, ..).unwrap().bytes, 990);
    assert_eq!(buffer.relay_from(1000, &mut Relay::new(), &endless, ..).unwrap().bytes, 0);
}

#[test]
fn only_reading_brings_bytes_into_memory() {
    let (_server, _client, mut buffer, _folder) = registered(1000);
    let source = Giving::new(From::Memfd, &pattern(100, 1));
    for method in MOVING.into_iter().filter(|&method| method != Method::ReadWrite) {
        let error = buffer.relay_from(0, &mut relay(method, 10), &source, ..).unwrap_err();
        assert!(matches!(error.fault, Fault::Unsupported { .. }), "{error}");
    }
    let mut rw = relay(Method::ReadWrite, 10);
    assert_eq!(buffer.relay_from(0, &mut rw, &source, ..).unwrap().calls, 10);
}

#[test]
fn a_source_that_is_too_short_is_an_error() {
    let (_server, _client, mut buffer, _folder) = registered(1000);
    for from in [From::Pipe, From::Unix, From::File] {
        let source = Giving::new(from, &pattern(100, 1));
        let error = buffer.relay_from(0, &mut Relay::new(), &source, ..101).unwrap_err();
        assert!(matches!(error.fault, Fault::SourceEnded { at: 100, end: 101 }), "{error}");
        let expected = if from == From::File { 0 } else { 100 };
        assert_eq!(error.relayed.bytes, expected, "{error}");
    }
}
