//! Payloads that are relayed: into descriptors that clients hand over, and into everything else
//! that a call can offer.

mod ends;
mod failures;
mod policies;
mod relays;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use shorthaul::{
    CallError, Code, Descriptors, InboundCall, Reply, SealedObject, ServerOptions, Status,
};

pub(super) use self::failures::relay_to_nobody;
use super::service::{AnyClient, Running, pattern, payload_bytes, start};

/// Where a relay's bytes come from.
const SOURCES: [&str; 5] = ["file", "memfd", "proc", "sys", "pipe"];

/// A server that takes descriptors of some kinds.
fn start_with(descriptors: Descriptors) -> Running {
    start(ServerOptions { descriptors, ..ServerOptions::default() }, serve)
}

/// "relay SOURCE" relays a pattern out of one; others write it in one of the ways that payloads are
/// written. The request is its length and its seed.
fn serve(call: &mut InboundCall) -> Result<(), Status> {
    let (bytes, seed) = (payload_bytes(call), call.request()[8]);
    let payload = pattern(bytes, seed);
    match call.method().to_owned().as_str() {
        "relay file" => {
            let file = file_of(&[&payload[..], b"behind"].concat());
            assert_eq!(call.relay(&file, 0..bytes as u64)?, bytes as u64);
        }
        "relay memfd" => {
            let file = memory_file(&[&b"before"[..], &payload[..]].concat());
            assert_eq!(call.relay(&file, 6..)?, bytes as u64);
        }
        "relay proc" => {
            let relayed = call.relay(&File::open(PROC)?, ..)?;
            assert_eq!(relayed, bytes_of(PROC).len() as u64);
        }
        "relay sys" => {
            let relayed = call.relay(&File::open(SYS)?, ..)?;
            assert_eq!(relayed, bytes_of(SYS).len() as u64);
        }
        "relay pipe" => {
            let (reader, mut writer) = io::pipe()?;
            // Fails where its reader has gone.
            let writing = std::thread::spawn(move || writer.write_all(&payload).ok());
            let relayed = call.relay(&reader, ..);
            drop(reader);
            writing.join().unwrap();
            assert_eq!(relayed?, bytes as u64);
        }
        "copy" => call.payload(bytes)?.copy_from(&payload)?,
        "fill" => call.payload(bytes)?.fill(seed, bytes)?,
        "file" => call.payload(bytes)?.copy_from_file(file_of(&payload), 0, bytes)?,
        "slice" => call.payload(bytes)?.write_with(bytes, |slice| -> Result<(), Status> {
            slice.copy_from_slice(&payload);
            Ok(())
        })?,
        "object" => {
            let object = SealedObject::copy_of(&payload).unwrap();
            call.payload_object(&object, 0..bytes)?;
        }
        "twice" => {
            call.relay(file_of(&payload), ..)?;
            call.payload(1)?.fill(0, 1)?;
        }
        "fail" => {
            call.relay(file_of(&payload), ..)?;
            return Err(Status::new(Code::ResourceExhausted, "no more of it"));
        }
        other => unreachable!("{other}"),
    }
    call.reply(&[seed])
}

/// What a method's payload is.
fn expected(method: &str, bytes: usize, seed: u8) -> Vec<u8> {
    match method {
        "relay proc" => bytes_of(PROC),
        "relay sys" => bytes_of(SYS),
        "fill" => vec![seed; bytes],
        _ => pattern(bytes, seed),
    }
}

/// A file of /proc that holds still: it tells no size.
const PROC: &str = "/proc/version";
/// One of /sys: it tells a whole page.
const SYS: &str = "/sys/devices/system/cpu/possible";

fn bytes_of(path: &str) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn memory_file(bytes: &[u8]) -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("test", flags).unwrap());
    file.write_all(bytes).unwrap();
    file
}

/// A call of `method` whose payload goes into `sink`.
fn send_into(
    client: &mut AnyClient,
    method: &str,
    request: &[u8],
    sink: &impl AsFd,
    timeout: Duration,
) -> Result<Reply, CallError> {
    send_at_most(client, (method, request), sink, u64::MAX, timeout)
}

fn send_at_most(
    client: &mut AnyClient,
    (method, request): (&str, &[u8]),
    sink: &impl AsFd,
    bytes_max: u64,
    timeout: Duration,
) -> Result<Reply, CallError> {
    match client {
        AnyClient::Direct(client) => {
            let call = client.call(method).request(request).deadline(timeout);
            call.into_descriptor_at_most(sink, bytes_max).send()
        }
        AnyClient::Threaded(client) => {
            let call = client.call(method).request(request).deadline(timeout);
            call.into_descriptor_at_most(sink, bytes_max).send()
        }
    }
}

/// The same open file once more.
fn again(descriptor: &impl AsFd) -> OwnedFd {
    descriptor.as_fd().try_clone_to_owned().unwrap()
}
