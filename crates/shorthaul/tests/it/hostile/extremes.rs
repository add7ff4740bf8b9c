//! Extreme numbers in every field of every frame, sent by clients and by servers: an answer or a
//! named end, no memory beyond what is there, and everybody else goes on.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use shorthaul::{Client, ClientOptions, DirectClient};

use super::framing::resident_bytes;
use super::raw::{self, Place, Raw, Upload};
use super::uploads::sealed_file;
use super::{PATIENCE, Stage, isolated};

/// Fields of a frame: where each is, and its bytes.
type Fields<'a> = &'a [(usize, usize)];

/// What a field of 1, 2, 4 or 8 bytes is set to; cut to its width.
const NUMBERS: [u64; 14] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 63,
    (1 << 63) - 1,
    u64::MAX - 0x3f,
    u64::MAX - 0x1f,
    u64::MAX,
];

/// Where the fields of a frame are: the header's, and the body's as docs/PROTOCOL.md lays them out.
const HEADER: [(usize, usize); 5] = [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8)];
const HELLO: [(usize, usize); 11] = [
    (0, 8),
    (8, 2),
    (10, 2),
    (12, 4),
    (16, 8),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 4),
    (40, 8),
    (48, 8),
];
const CALL: [(usize, usize); 17] = [
    (0, 8),
    (8, 8),
    (16, 1),
    (17, 1),
    (18, 2),
    (20, 4),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 8),
    (88, 4),
    (92, 2),
    (94, 2),
];
const REPLY: [(usize, usize); 9] =
    [(0, 8), (8, 4), (12, 1), (13, 1), (14, 2), (16, 8), (24, 4), (28, 4), (32, 8)];
const ID: [(usize, usize); 1] = [(0, 8)];
const ID_AND_BYTES: [(usize, usize); 2] = [(0, 8), (8, 8)];
const STATUS: [(usize, usize); 3] = [(0, 8), (8, 4), (12, 4)];
const TWO_WORDS: [(usize, usize); 2] = [(0, 4), (4, 4)];

/// `frame` once for each number in each field.
fn altered(frame: &[u8], fields: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let fields = HEADER.iter().copied().chain(fields.iter().map(|&(at, width)| (at + 16, width)));
    let all = fields.flat_map(|(at, width)| NUMBERS.map(|number| (at, width, number)));
    all.map(|(at, width, number)| {
        let mut frame = frame.to_vec();
        frame[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
        frame
    })
    .collect()
}

/// Everything that the server says until the end of the connection.
fn hear_out(raw: &mut Raw) {
    raw.socket.shutdown(Shutdown::Write).ok();
    while let Some(frame) = raw.next() {
        let kinds = [raw::HELLO, raw::REPLY, raw::REGISTERED, raw::GOODBYE];
        assert!(kinds.contains(&frame.kind), "{frame:?}");
    }
}

#[test]
fn any_number_in_any_field_of_a_clients_frame() {
    isolated("hostile::extremes::any_number_in_any_field_of_a_clients_frame", || {
        let mut stage = Stage::new();
        let region = super::descriptor::sealed(4096);
        let file = sealed_file(&[1; 4096]);
        let every = Place {
            inline_bytes: 100,
            inline_first_bytes: 10,
            sealed_bytes: 100,
            ..Place::region(1, 64, 1000)
        };
        let parts = [64, 36];
        let subjects: [(Vec<u8>, Fields<'_>, usize); 10] = [
            (raw::hello_with(raw::SEALED), &HELLO, 0),
            (raw::fill(1, every, 100, 1), &CALL, 0),
            (raw::fill(1, Place::one_shot(4096), 100, 1), &CALL, 1),
            (raw::fill(1, Place::given(4096), 100, 1), &CALL, 1),
            (raw::echo_parts(1, every, Upload::region(1, 0, 100), &parts), &CALL, 0),
            (raw::echo_parts(1, every, Upload::sealed(0, 100), &parts), &CALL, 1),
            (raw::register(2, 4096), &ID_AND_BYTES, 1),
            (raw::of_id(raw::CANCEL, 1), &ID, 0),
            (raw::of_id(raw::RELEASE, 1), &ID, 0),
            (raw::frame(raw::GOODBYE, 0, &raw::goodbye_body(0, "bye"), b""), &TWO_WORDS, 0),
        ];
        let mut before = None;
        let mut tried = 0;
        for (frame, fields, descriptors) in subjects {
            for bad in altered(&frame, fields) {
                let mut raw = Raw::connect(&stage.path);
                if frame[0] != raw::HELLO {
                    raw.send(&raw::hello_with(raw::SEALED));
                    raw.send_with(&raw::register(1, 4096), &[region.as_fd()]);
                }
                let sent = if fields.len() == CALL.len() { file.as_fd() } else { region.as_fd() };
                raw.send_with(&bad, &[sent][..descriptors]);
                hear_out(&mut raw);
                drop(raw);
                tried += 1;
                if tried % 100 == 0 {
                    stage.honest_calls();
                }
                // What everybody's first use costs is behind.
                if tried == 500 {
                    before = Some(resident_bytes());
                }
            }
        }
        let grown = resident_bytes().saturating_sub(before.unwrap());
        assert!(grown < 4 << 20, "{grown} bytes more than before");
        assert!(tried > 1500, "{tried}");
        drop((region, file));
        stage.ends_clean();
    });
}

/// A server that says hello, and then `frame` as its answer to the first call; then hangs up.
fn with_server(hello: Vec<u8>, frame: Vec<u8>, client: impl FnOnce(UnixStream)) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut server = Raw::over(ours);
            server.next();
            server.send(&hello);
            if raw::u32_at(&hello, 4) != 56 || raw::u64_at(&hello, 8) != 0 {
                // What it announces doesn't come: the client needs not wait for it.
                server.socket.shutdown(Shutdown::Write).ok();
            }
            if server.next().is_some_and(|frame| frame.kind == raw::CALL) {
                server.send(&frame);
            }
            server.socket.shutdown(Shutdown::Write).ok();
            while server.next().is_some() {}
        });
        client(theirs);
    });
}

/// The call ends, whatever the number: well, if it makes no difference.
#[test]
fn any_number_in_any_field_of_a_servers_frame() {
    isolated("hostile::extremes::any_number_in_any_field_of_a_servers_frame", || {
        let of = |lane, bytes| raw::reply_body(1, raw::OK, lane, bytes);
        let none = raw::frame(raw::REPLY, 0, &of(raw::LANE_NONE, 0), b"");
        let inline = raw::frame(raw::REPLY, 0, &of(raw::LANE_INLINE, 5), b"hello");
        let fill = raw::frame(raw::REPLY, 0, &of(raw::LANE_FILL_MAP, 5), b"");
        let registered = [&1_u64.to_le_bytes()[..], &raw::goodbye_body(raw::OK, "")].concat();
        let registered = raw::frame(raw::REGISTERED, 0, &registered, b"");
        let notice = raw::frame(raw::NOTICE, 0, &raw::goodbye_body(4, "data"), b"");
        let goodbye = raw::frame(raw::GOODBYE, 0, &raw::goodbye_body(14, "bye"), b"");
        let subjects: [(Vec<u8>, Fields<'_>); 6] = [
            (none.clone(), &REPLY),
            (inline, &REPLY),
            (fill, &REPLY),
            (registered, &STATUS),
            (notice, &TWO_WORDS),
            (goodbye, &TWO_WORDS),
        ];
        let hellos = altered(&raw::hello(), &HELLO).into_iter().map(|bad| (bad, none.clone()));
        let frames = subjects.into_iter().flat_map(|(frame, fields)| {
            altered(&frame, fields).into_iter().map(|bad| (raw::hello(), bad))
        });
        let before = super::Census::take();
        let mut resident = None;
        for (index, (hello, frame)) in frames.chain(hellos).enumerate() {
            for is_direct in [true, false] {
                with_server(hello.clone(), frame.clone(), |stream| call_once(stream, is_direct));
            }
            if index == 200 {
                resident = Some(resident_bytes());
            }
        }
        let grown = resident_bytes().saturating_sub(resident.unwrap());
        assert!(grown < 4 << 20, "{grown} bytes more than before");
        before.returns();
    });
}

fn call_once(stream: UnixStream, is_direct: bool) {
    let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let ended = if is_direct {
        let Ok(mut client) = DirectClient::from_stream(stream, &options) else { return };
        client.call("fill").into_fresh(4096).send()
    } else {
        let Ok(client) = Client::from_stream(stream, &options) else { return };
        client.call("fill").into_fresh(4096).send()
    };
    match ended {
        Ok(reply) => assert!(reply.len() <= 4096),
        Err(failed) => {
            let timed_out = matches!(failed.error(), shorthaul::Error::DeadlineExceeded);
            assert!(!timed_out, "it hung: {failed}");
        }
    }
}
