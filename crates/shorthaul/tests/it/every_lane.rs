//! Every lane in both directions, at sizes around everything that is cut into pieces, byte
//! for byte, in one part and in several, with and without trust.

use std::io::Write;
use std::time::Duration;

use shorthaul::{
    Client, ClientOptions, DirectClient, FillMethod, FillPolicy, InboundCall, Lane, Parts, Reason,
    Reply, SealedObject, ServerOptions, Status, Wait, parts_bytes,
};
use shorthaul_platform::memory::Trust;

use super::service::{Running, pattern, start};

/// Up to 2 MiB + 1; the largest is tried apart from the others, for it takes its time.
const SIZES: [usize; 11] =
    [0, 1, 4095, 4096, 65_535, 65_536, 65_537, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1];
const LARGEST: usize = 64 << 20;

/// How a handler makes its payload.
const MAKERS: [&str; 5] = ["copy", "slice", "file", "object", "pwrite"];
/// How a handler reads the request's payload.
const READERS: [&str; 4] = ["slice", "copy", "file", "bytes"];

#[allow(clippy::large_enum_variant, reason = "there are two")]
enum Caller {
    Threads(Client),
    Direct(DirectClient),
}

macro_rules! send {
    ($caller:expr, $method:expr, $call:ident => $built:expr) => {
        match $caller {
            Caller::Threads(client) => {
                let $call = client.call($method);
                $built.send()
            }
            Caller::Direct(client) => {
                let $call = client.call($method);
                $built.send()
            }
        }
    };
}

impl Caller {
    fn buffer(&mut self, bytes: usize) -> shorthaul::Buffer {
        match self {
            Self::Threads(client) => client.buffer(bytes).unwrap(),
            Self::Direct(client) => client.buffer(bytes).unwrap(),
        }
    }
}

fn callers(running: &Running, options: &ClientOptions) -> [Caller; 2] {
    [
        Caller::Direct(DirectClient::connect_with(&running.path, options).unwrap()),
        Caller::Threads(Client::connect_with(&running.path, options).unwrap()),
    ]
}

/// "make-…" answers a pattern of as many bytes as the request says; "put-…" takes one and says what
/// it was.
fn serve(call: &mut InboundCall) -> Result<(), Status> {
    let method = call.method().to_owned();
    let bytes = u64::from_le_bytes(call.request()[..8].try_into().unwrap()) as usize;
    let seed = call.request()[8];
    match method.split_once('-').unwrap() {
        ("make", how) => {
            make(call, how, &pattern(bytes, seed))?;
            call.reply(&[seed])
        }
        ("put", how) => {
            let (payload, parts) = take(call, how)?;
            let is_right = payload == pattern(bytes, seed);
            let mut response = vec![u8::from(is_right)];
            response.extend(parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes()));
            call.reply(&response)
        }
        _ => unreachable!("{method}"),
    }
}

fn make(call: &mut InboundCall, how: &str, payload: &[u8]) -> Result<(), Status> {
    let bytes = payload.len();
    let method = if how == "pwrite" { FillMethod::Write } else { FillMethod::Map };
    if how == "object" {
        let object = SealedObject::copy_of(payload).unwrap();
        return call.payload_object(&object, 0..bytes);
    }
    let mut out = call.payload_with(bytes, FillPolicy { method, ..FillPolicy::default() })?;
    match how {
        "slice" => {
            // In two steps, so that the second begins somewhere.
            let (first, second) = payload.split_at(bytes / 3);
            let is_clients = out.lane() == Lane::FillMap;
            for half in [first, second] {
                out.write_with(half.len(), |slice| -> Result<(), Status> {
                    let is_zero = slice.iter().all(|&byte| byte == 0);
                    assert!(is_clients || is_zero, "others' bytes");
                    slice.copy_from_slice(half);
                    Ok(())
                })?;
            }
        }
        "file" => {
            let mut file = tempfile::tempfile()?;
            file.write_all(b"before")?;
            file.write_all(payload)?;
            out.copy_from_file(&file, 6, bytes)?;
        }
        _ => out.copy_from(payload)?,
    }
    Ok(())
}

fn take(call: &mut InboundCall, how: &str) -> Result<(Vec<u8>, Parts), Status> {
    let payload = call.upload()?;
    let parts = payload.parts().clone();
    let bytes = match how {
        "slice" => payload.into_slice()?.to_vec(),
        "bytes" => payload.into_bytes()?.to_vec(),
        "file" => {
            let file = tempfile::NamedTempFile::new()?;
            payload.write_to_file(&file, 0)?;
            std::fs::read(file.path())?
        }
        _ => {
            let mut copy = vec![0; payload.len()];
            let middle = copy.len() / 2;
            payload.copy_to(middle, &mut copy[middle..])?;
            payload.copy_to(0, &mut copy[..middle])?;
            assert!(payload.copy_to(1, &mut copy).is_err(), "past the end");
            copy
        }
    };
    Ok((bytes, parts))
}

fn request(bytes: usize, seed: u8) -> Vec<u8> {
    let mut request = (bytes as u64).to_le_bytes().to_vec();
    request.push(seed);
    request
}

fn check(reply: &Reply, bytes: usize, seed: u8, lane: Lane) {
    assert_eq!((reply.len(), reply.lane(), reply.response()), (bytes, lane, &[seed][..]));
    assert_eq!(reply.reason(), Reason::Asked);
    let expected = pattern(bytes, seed);
    assert!(reply.to_vec() == expected, "{bytes} bytes by {lane}");
    assert_eq!(reply.sum(1), expected.iter().map(|&byte| u64::from(byte)).sum::<u64>());
    if let Some(slice) = reply.as_slice() {
        assert!(slice == expected, "{bytes} bytes by {lane} in place");
    }
}

fn answers(caller: &mut Caller, sizes: &[usize], trusts: bool) {
    let mut buffer = caller.buffer(sizes.iter().max().unwrap() + 64);
    for (round, &bytes) in sizes.iter().enumerate() {
        for (step, how) in MAKERS.into_iter().enumerate() {
            let (method, seed) = (format!("make-{how}"), (round * 8 + step) as u8);
            let request = request(bytes, seed);
            // Room for nothing would be none.
            let room = bytes.max(1);
            let fill = if how == "pwrite" { Lane::FillWrite } else { Lane::FillMap };

            let inline = send!(caller, &method, c => c.request(&request).inline(room)).unwrap();
            check(&inline, bytes, seed, Lane::Inline);
            assert_eq!(inline.as_slice().map(<[u8]>::len), Some(bytes));
            assert_eq!(inline.into_bytes().unwrap(), pattern(bytes, seed));

            let range = 64..64 + bytes;
            let into = send!(caller, &method, c => c.request(&request).into_part(buffer, range));
            let reply = into.unwrap();
            check(&reply, bytes, seed, fill);
            assert_eq!(reply.as_slice().is_some(), trusts);
            let reply = if bytes > 0 { reply.into_bytes().unwrap_err() } else { reply };
            buffer = reply.into_buffer().unwrap();

            let fresh = send!(caller, &method, c => c.request(&request).into_fresh(bytes)).unwrap();
            check(&fresh, bytes, seed, fill);

            let sealed = send!(caller, &method, c => c.request(&request).sealed(room)).unwrap();
            check(&sealed, bytes, seed, Lane::Sealed);
            assert_eq!(sealed.into_bytes().unwrap(), pattern(bytes, seed));
        }
    }
}

fn uploads(caller: &mut Caller, sizes: &[usize]) {
    let mut buffer = caller.buffer(sizes.iter().max().unwrap() + 64);
    for (round, &bytes) in sizes.iter().enumerate() {
        for (step, how) in READERS.into_iter().enumerate() {
            let (method, seed) = (format!("put-{how}"), (round * 8 + step) as u8);
            let (request, payload) = (request(bytes, seed), pattern(bytes, seed));
            let is_right = |reply: &Reply, lane: Lane| {
                assert_eq!(reply.response()[0], 1, "{bytes} bytes by {lane} read by {how}");
                let expected = if bytes > 0 || lane != Lane::Inline { lane } else { Lane::None };
                assert_eq!(reply.upload_lane(), expected);
            };

            let reply =
                send!(caller, &method, c => c.request(&request).payload_inline(&payload)).unwrap();
            is_right(&reply, Lane::Inline);

            buffer.copy_from(64, &payload);
            let range = 64..64 + bytes;
            let sent = send!(caller, &method, c => c.request(&request).payload_from(buffer, range));
            let reply = sent.unwrap();
            is_right(&reply, Lane::CopyOut);
            buffer = reply.into_upload_buffer().unwrap();

            // From the middle of an object.
            let mut whole = vec![9; 128];
            whole.extend_from_slice(&payload);
            whole.push(9);
            let (object, range) = (SealedObject::copy_of(&whole).unwrap(), 128..128 + bytes);
            let reply =
                send!(caller, &method, c => c.request(&request).payload_sealed(&object, range))
                    .unwrap();
            is_right(&reply, Lane::Sealed);
        }
    }
}

fn trusting() -> Trust {
    // SAFETY: both sides of these tests are this process, and keep the protocol.
    unsafe { Trust::vouch() }
}

#[test]
fn every_lane_both_ways() {
    for inline_handlers in [false, true] {
        for trust in [None, Some(trusting())] {
            // Both ways of looking, with and without workers.
            let wait = if trust.is_some() { Wait::Spin } else { Wait::Adaptive };
            let options =
                ServerOptions { inline_handlers, trust, wait, ..ServerOptions::default() };
            let running = start(options, serve);
            let options = ClientOptions { trust, wait, ..ClientOptions::default() };
            for mut caller in callers(&running, &options) {
                answers(&mut caller, &SIZES, trust.is_some());
                uploads(&mut caller, &SIZES);
            }
        }
    }
}

#[test]
fn every_lane_both_ways_with_much() {
    let running = start(ServerOptions::default(), serve);
    let [mut caller, _] = callers(&running, &ClientOptions::default());
    answers(&mut caller, &[LARGEST], false);
    uploads(&mut caller, &[LARGEST]);
}

const LENGTHS: [usize; 5] = [100, 0, 64, 4095, 70_001];

/// Answers five parts, each of a pattern of its own.
fn serve_parts(call: &mut InboundCall) -> Result<(), Status> {
    let mut out = call.payload(parts_bytes(&LENGTHS).unwrap())?;
    for (index, bytes) in LENGTHS.into_iter().enumerate() {
        if index > 0 {
            out.next_part()?;
        }
        out.copy_from(&pattern(bytes, index as u8))?;
    }
    call.reply(b"")
}

fn check_parts(reply: &Reply) {
    assert_eq!(reply.parts().count(), LENGTHS.len());
    for (index, bytes) in LENGTHS.into_iter().enumerate() {
        let range = reply.parts().get(index).unwrap();
        assert!(range.start.is_multiple_of(64) && range.len() == bytes);
        let mut part = vec![0; bytes];
        assert_eq!(reply.copy_part_to(index, &mut part), Some(bytes));
        assert!(part == pattern(bytes, index as u8), "part {index} by {}", reply.lane());
        if let Some(slice) = reply.as_slice() {
            assert_eq!(slice[range.clone()].as_ptr().addr() % 64, 0, "part {index} in memory");
            assert!(slice[range] == part);
        }
    }
    assert_eq!(reply.copy_part_to(LENGTHS.len(), &mut []), None);
    // Between the parts lies nothing of others.
    if let Some(slice) = reply.as_slice().filter(|_| reply.lane() != Lane::FillMap) {
        assert!(slice[100..128].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn answers_of_several_parts_by_every_lane() {
    let running = start(ServerOptions::default(), serve_parts);
    let trust = Some(trusting());
    for mut caller in callers(&running, &ClientOptions { trust, ..ClientOptions::default() }) {
        let bytes = parts_bytes(&LENGTHS).unwrap();
        // What others' payloads leave behind must not show.
        let dirt = vec![0xee; bytes];
        drop(send!(&mut caller, "", c => c.payload_inline(&dirt).inline(bytes)).unwrap());
        let buffer = caller.buffer(bytes);
        check_parts(&send!(&mut caller, "", c => c.inline(bytes)).unwrap());
        check_parts(&send!(&mut caller, "", c => c.into(buffer)).unwrap());
        check_parts(&send!(&mut caller, "", c => c.into_fresh(bytes)).unwrap());
        check_parts(&send!(&mut caller, "", c => c.sealed(bytes)).unwrap());
        let failed = send!(&mut caller, "", c => c.inline(bytes - 1)).unwrap_err();
        assert!(failed.to_string().contains(&bytes.to_string()), "{failed}");
    }
}

#[test]
fn uploads_of_several_parts_by_every_lane() {
    let running = start(ServerOptions::default(), serve);
    for mut caller in callers(&running, &ClientOptions::default()) {
        let payload = pattern(300, 5);
        let lengths = [100, 64, 108];
        let request = request(300, 5);
        let check = |reply: Reply, lane: Lane| {
            let expected = lengths.iter().flat_map(|&length| (length as u64).to_le_bytes());
            assert_eq!((reply.response()[0], reply.upload_lane()), (1, lane));
            assert_eq!(reply.response()[1..], expected.collect::<Vec<_>>());
        };
        let mut buffer = caller.buffer(300);
        buffer.copy_from(0, &payload);
        let object = SealedObject::copy_of(&payload).unwrap();
        macro_rules! put {
            ($call:ident => $built:expr) => {
                send!(&mut caller, "put-slice", $call => $built.part_lengths(&lengths))
            };
        }
        let sent = put!(c => c.request(&request).payload_inline(&payload));
        check(sent.unwrap(), Lane::Inline);
        let sent = put!(c => c.request(&request).payload_from(buffer, 0..300));
        check(sent.unwrap(), Lane::CopyOut);
        let sent = put!(c => c.request(&request).payload_sealed(&object, 0..300));
        check(sent.unwrap(), Lane::Sealed);
        let wrong = send!(&mut caller, "", c => c.payload(&payload).part_lengths(&[100, 64]));
        assert!(wrong.unwrap_err().to_string().contains("2 parts"));
    }
}

#[test]
fn pieces_are_laid_out_as_parts() {
    let echo = |call: &mut InboundCall| -> Result<(), Status> {
        let parts: Vec<u8> = call.upload()?.parts().iter().map(|part| part.start as u8).collect();
        let payload = call.upload()?.into_bytes()?;
        call.payload(payload.len())?.copy_from(&payload)?;
        call.reply(&parts)
    };
    let running = start(ServerOptions::default(), echo);
    for mut caller in callers(&running, &ClientOptions::default()) {
        // Small ones inline; large ones by a kept buffer from the second on.
        let small: [&[u8]; 3] = [b"one", b"", b"three"];
        let large = pattern(10_000, 1);
        let pieces: [&[u8]; 2] = [b"head", &large];
        for round in 0..3 {
            let reply = send!(&mut caller, "", c => c.payload_parts(&small).inline(1000)).unwrap();
            assert_eq!(reply.response(), [0, 64, 64]);
            let mut expected = vec![0; 69];
            expected[..3].copy_from_slice(b"one");
            expected[64..].copy_from_slice(b"three");
            assert_eq!(reply.to_vec(), expected);
            assert_eq!(reply.upload_lane(), Lane::Inline);

            let reply =
                send!(&mut caller, "large", c => c.payload_parts(&pieces).inline(20_000)).unwrap();
            assert_eq!(reply.response(), [0, 64]);
            let echoed = reply.to_vec();
            assert_eq!((&echoed[..4], &echoed[64..]), (&b"head"[..], &large[..]));
            let lane = if round == 0 { Lane::Inline } else { Lane::CopyOut };
            assert_eq!(reply.upload_lane(), lane, "round {round}");
        }
    }
}

#[test]
fn one_object_is_answered_to_many_from_the_same_pages() {
    let object = SealedObject::copy_of(&pattern(1 << 20, 3)).unwrap();
    let served = object.clone();
    let running = start(ServerOptions::default(), move |call: &mut InboundCall| {
        let start = usize::from(call.request()[0]) * 64;
        call.payload_object(&served, start..served.len())?;
        call.reply(b"")
    });
    let mut clients: Vec<_> =
        (0..4).map(|_| DirectClient::connect(&running.path).unwrap()).collect();
    let mut replies = Vec::new();
    for (index, client) in clients.iter_mut().enumerate() {
        let request = [index as u8];
        let reply = client.call("get").request(&request).sealed(1 << 20).send().unwrap();
        assert_eq!(reply.lane(), Lane::Sealed);
        assert!(reply.as_slice().unwrap() == &object[index * 64..]);
        replies.push(reply);
    }
    // One memory file, mapped by the object and by each reply.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let inodes: Vec<_> = maps
        .lines()
        .filter(|line| line.contains("shorthaul-sealed"))
        .filter_map(|line| line.split_whitespace().nth(4))
        .collect();
    let most = inodes.iter().map(|inode| inodes.iter().filter(|i| i == &inode).count()).max();
    assert!(most >= Some(5), "{maps}");
    // The pages live as long as anybody reads them.
    drop((running, object));
    assert!(replies[0].as_slice().unwrap() == pattern(1 << 20, 3));
    // Who takes no sealed memory gets a copy.
    let server = SealedObject::copy_of(b"small").unwrap();
    let running = start(ServerOptions::default(), move |call: &mut InboundCall| {
        call.payload_object(&server, 1..4)?;
        call.reply(b"")
    });
    let mut client = DirectClient::connect(&running.path).unwrap();
    let reply = client.call("get").inline(10).send().unwrap();
    assert_eq!((reply.lane(), reply.as_slice()), (Lane::Inline, Some(&b"mal"[..])));
    // What starts at no multiple of 64 is copied into a sealed file of its own.
    let reply = client.call("get").sealed(10).send().unwrap();
    assert_eq!((reply.lane(), reply.as_slice()), (Lane::Sealed, Some(&b"mal"[..])));
}

#[test]
fn both_sides_count_what_took_which_lane() {
    let running = start(ServerOptions::default(), serve);
    let [Caller::Direct(mut client), _] = callers(&running, &ClientOptions::default()) else {
        unreachable!()
    };
    let payload = pattern(1000, 1);
    let (make, put) = (request(5000, 1), request(1000, 1));
    for _ in 0..3 {
        client.call("make-copy").request(&make).inline(5000).send().unwrap();
    }
    client.call("make-copy").request(&make).sealed(5000).send().unwrap();
    client.call("make-copy").request(&make).inline(10).send().unwrap_err();
    let buffer = client.buffer(1000).unwrap();
    client.call("put-copy").request(&put).payload_from(buffer, 0..1000).send().unwrap();
    client.call("put-copy").request(&put).payload_inline(&payload).send().unwrap();
    for counts in [client.lanes(), running.server.stats().lanes] {
        let answers = |lane| (counts.answers(lane).calls, counts.answers(lane).bytes);
        assert_eq!(answers(Lane::Inline), (3, 15_000));
        assert_eq!(answers(Lane::Sealed), (1, 5000));
        assert_eq!(answers(Lane::FillMap), (0, 0));
        assert_eq!(answers(Lane::None), (2, 0));
        let uploads = |lane| (counts.uploads(lane).calls, counts.uploads(lane).bytes);
        assert_eq!(uploads(Lane::CopyOut), (1, 1000));
        assert_eq!(uploads(Lane::Inline), (1, 1000));
        assert_eq!(uploads(Lane::Sealed), (0, 0));
    }
    assert!(running.server.stop(Duration::from_secs(5)));
}
