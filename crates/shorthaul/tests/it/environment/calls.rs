//! One call on each lane.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use shorthaul::{
    Call, CallError, Client, ClientOptions, Code, DirectClient, Error, InboundCall, Reply, Result,
    SealedObject, Status, Transport,
};

use crate::service::{AnyClient, PATIENCE, pattern, payload_bytes, request};

/// Calls, and the lane that each takes where nothing is missing.
pub(super) const LANES: [(&str, &str); 13] = [
    ("inline", "inline"),
    ("map", "fill(map)"),
    ("write", "fill(write)"),
    ("fresh", "fill(map)"),
    ("sealed", "sealed"),
    ("object", "sealed"),
    ("slice", "sealed"),
    ("upload inline", "inline"),
    ("upload copied", "copy-out"),
    ("upload sealed", "sealed"),
    ("auto", "inline, fill(map), fill(map)"),
    ("upload auto", "inline, copy-out, copy-out"),
    ("descriptor", "descriptor"),
];

/// The calls that need a memory file of the client's.
pub(super) const CLIENT_MEMORY: [&str; 5] =
    ["map", "write", "fresh", "upload copied", "upload sealed"];
/// The calls that need a memory file of the server's.
pub(super) const SERVER_MEMORY: [&str; 4] = ["sealed", "object", "slice", "descriptor"];

/// What all servers of these tests answer with.
pub(super) fn answer(call: &mut InboundCall) -> Result<(), Status> {
    let (bytes, seed) = (payload_bytes(call), call.request()[8]);
    ensure_deadline_is_right(call)?;
    match call.method().to_owned().as_str() {
        "object" => {
            let object = SealedObject::write(bytes, |slice| {
                write_content(slice, seed);
                Ok(())
            });
            let object = object.map_err(|e| Status::new(Code::ResourceExhausted, e.to_string()))?;
            call.payload_object(&object, 0..bytes)?;
        }
        // Writes none of its bytes, which must be there all the same.
        "slice" => call.payload(bytes)?.write_with(bytes, |_| Ok::<_, Status>(()))?,
        method if method.starts_with("upload") => {
            let upload = call.upload()?.into_slice()?;
            if !is_content(upload, seed) {
                return Err(Status::new(Code::DataLoss, "other bytes came"));
            }
        }
        _ if bytes > LARGE => {
            call.payload(bytes)?.fill(seed, bytes)?;
        }
        _ => crate::service::write_payload(call, &content(bytes, seed))?,
    }
    call.reply(&[seed])
}

/// Each side has its own clock, and none needs to know the other's.
fn ensure_deadline_is_right(call: &InboundCall) -> Result<(), Status> {
    let deadline = call.deadline().ok_or_else(|| Status::new(Code::Internal, "no deadline"))?;
    let left = deadline.saturating_duration_since(Instant::now());
    if (DEADLINE / 2..=DEADLINE).contains(&left) {
        return Ok(());
    }
    Err(Status::new(Code::Internal, format!("{left:?} are left of {DEADLINE:?}")))
}

fn write_content(target: &mut [u8], seed: u8) {
    match target.len() {
        bytes if bytes > LARGE => target.fill(seed),
        bytes => target.copy_from_slice(&content(bytes, seed)),
    }
}

fn is_content(found: &[u8], seed: u8) -> bool {
    match found.len() {
        bytes if bytes > LARGE => found.iter().all(|&byte| byte == seed),
        bytes => found == content(bytes, seed),
    }
}

fn content(bytes: usize, seed: u8) -> Vec<u8> {
    if bytes > LARGE { vec![seed; bytes] } else { pattern(bytes, seed) }
}

/// What an error is called, and what it says.
pub(super) fn short(error: &Error) -> String {
    let name = format!("{error:?}");
    let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap();
    format!("{name}, {error}").replace('\n', " ")
}

/// Makes a call over a connection of its own, checks its bytes, and says the lane that it took.
pub(super) fn attempt(path: &Path, is_direct: bool, what: &str) -> Result<String, String> {
    let bytes = bytes();
    let mut client = connect(path, is_direct).map_err(|error| short(&error))?;
    let rounds = if what.ends_with("auto") { 3 } else { 1 };
    let mut taken = Vec::new();
    for round in 0..rounds {
        taken.push(attempt_once(&mut client, what, bytes, round + 7)?);
    }
    Ok(taken.join(", "))
}

fn connect(path: &Path, is_direct: bool) -> Result<AnyClient> {
    let mut options = ClientOptions::default();
    if let Ok(bytes) = std::env::var(INLINE_BYTES_MAX) {
        options.limits.inline_bytes_max = bytes.parse().unwrap();
    }
    Ok(match is_direct {
        true => AnyClient::Direct(Box::new(DirectClient::connect_with(path, &options)?)),
        false => AnyClient::Threaded(Client::connect_with(path, &options)?),
    })
}

/// What a call may need.
struct Things {
    payload: Vec<u8>,
    object: Option<SealedObject>,
    sink: Option<Sink>,
}

/// Something to be relayed into, and whoever reads it.
struct Sink {
    writer: UnixStream,
    reader: JoinHandle<Vec<u8>>,
}

impl Sink {
    fn new() -> std::result::Result<Self, String> {
        let (writer, mut reader) = UnixStream::pair().map_err(|error| error.to_string())?;
        let reader = thread::spawn(move || {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).unwrap();
            got
        });
        Ok(Self { writer, reader })
    }

    fn finish(self) -> Vec<u8> {
        drop(self.writer);
        self.reader.join().unwrap()
    }
}

fn attempt_once(
    client: &mut AnyClient,
    what: &str,
    bytes: usize,
    seed: u8,
) -> Result<String, String> {
    let asked = request(bytes, seed);
    let is_upload = what.starts_with("upload");
    let payload = if is_upload { content(bytes, seed) } else { vec![] };
    let object = (what == "upload sealed").then(|| SealedObject::copy_of(&payload));
    let object = object.transpose().map_err(|error| short(&error))?;
    let sink = (what == "descriptor").then(Sink::new).transpose()?;
    let things = Things { payload, object, sink };
    let buffer = match (what, &mut *client) {
        ("map" | "write" | "upload copied", AnyClient::Direct(client)) => {
            Some(client.buffer(bytes))
        }
        ("map" | "write" | "upload copied", AnyClient::Threaded(c)) => Some(c.buffer(bytes)),
        _ => None,
    };
    let buffer = buffer.transpose().map_err(|error| short(&error))?;
    let sent = match client {
        AnyClient::Direct(client) => {
            let call = client.call(what).request(&asked).deadline(DEADLINE);
            send(call, what, bytes, buffer, &things)
        }
        AnyClient::Threaded(client) => {
            let call = client.call(what).request(&asked).deadline(DEADLINE);
            send(call, what, bytes, buffer, &things)
        }
    };
    let reply = sent.map_err(|failed| short(failed.error()))?;
    assert_eq!(reply.response(), [seed]);
    if is_upload {
        return Ok(reply.upload_lane().to_string());
    }
    check(&reply, what, bytes, seed, things.sink);
    Ok(reply.lane().to_string())
}

fn send<T: Transport>(
    call: Call<'_, T>,
    what: &str,
    bytes: usize,
    buffer: Option<shorthaul::Buffer>,
    things: &Things,
) -> Result<Reply, CallError> {
    // Outlives the call, which borrows what it brings.
    let payload = things.payload.as_slice();
    match what {
        "inline" => call.inline(bytes).send(),
        "map" | "write" => call.into(buffer.unwrap()).send(),
        "fresh" => call.into_fresh(bytes).send(),
        "sealed" | "object" | "slice" => call.sealed(bytes).send(),
        "upload inline" => call.payload_inline(payload).send(),
        "upload copied" => {
            let mut buffer = buffer.unwrap();
            buffer.copy_from(0, payload);
            call.payload_from(buffer, 0..bytes).send()
        }
        "upload sealed" => call.payload_sealed(things.object.as_ref().unwrap(), 0..bytes).send(),
        "upload auto" => call.payload(payload).send(),
        "auto" => call.auto(1 << 30).send(),
        "descriptor" => call.into_descriptor(&things.sink.as_ref().unwrap().writer).send(),
        other => unreachable!("{other}"),
    }
}

fn check(reply: &Reply, what: &str, bytes: usize, seed: u8, sink: Option<Sink>) {
    assert_eq!(reply.len(), bytes);
    match what {
        "descriptor" => {
            let got = sink.unwrap().finish();
            assert!(got.len() == bytes && is_content(&got, seed), "{what}");
        }
        "slice" => assert_eq!(reply.sum(1), 0),
        _ if bytes > LARGE => assert_eq!(reply.sum(64), seed as u64 * bytes as u64 / 64),
        _ => assert!(reply.to_vec() == content(bytes, seed), "{what}"),
    }
}

fn bytes() -> usize {
    std::env::var(BYTES).map_or(300_000, |bytes| bytes.parse().unwrap())
}

/// From here on a payload has one value in all its bytes, so that nobody needs a copy of it.
const LARGE: usize = 4 << 20;
pub(super) const INLINE_BYTES_MAX: &str = "SHORTHAUL_TEST_INLINE_BYTES_MAX";
const DEADLINE: std::time::Duration = PATIENCE.saturating_mul(3);
pub(super) const BYTES: &str = "SHORTHAUL_TEST_BYTES";
