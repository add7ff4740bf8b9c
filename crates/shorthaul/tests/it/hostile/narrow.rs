//! Sockets that take next to nothing at a time, and readers that are slow or come last: every byte
//! comes once, in order, with its descriptor, and nobody waits for what waits for him.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt;
use shorthaul::{Client, ClientOptions, DirectClient};

use super::raw::{self, Place, Raw};
use super::{PATIENCE, Stage, isolated, pattern};

/// A pair whose ends hold as little as the kernel allows.
fn narrow_pair() -> (UnixStream, UnixStream) {
    let pair = UnixStream::pair().unwrap();
    for socket in [&pair.0, &pair.1] {
        sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
        let bytes = sockopt::socket_send_buffer_size(socket).unwrap();
        assert!(bytes < 8192, "{bytes} bytes fit into the smallest socket");
    }
    pair
}

/// A call that goes out in hundreds of pieces, with a descriptor on the first.
#[test]
fn a_descriptor_of_a_frame_in_many_pieces_is_sent_once() {
    let bulk = pattern(1 << 20, 3);
    for is_direct in [true, false] {
        let (ours, theirs) = narrow_pair();
        let expected = bulk.clone();
        let server = std::thread::spawn(move || {
            let mut server = Raw::over(ours);
            server.expect(raw::HELLO);
            server.send(&raw::hello());
            for _ in 0..20 {
                // Checks that the one descriptor came with the header, and no other later.
                let call = server.expect(raw::CALL);
                assert_eq!(call.descriptors.len(), 1);
                assert!(call.payload == expected);
                let id = raw::u64_at(&call.body, 0);
                let body = raw::reply_body(id, raw::OK, raw::LANE_FILL_WRITE, 5);
                rustix::io::pwrite(&call.descriptors[0], b"hello", 0).unwrap();
                server.send(&raw::frame(raw::REPLY, 0, &body, b""));
            }
        });
        let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
        if is_direct {
            let mut client = DirectClient::from_stream(theirs, &options).unwrap();
            for _ in 0..20 {
                let call = client.call("put").payload_inline(&bulk).into_fresh(4096);
                assert_eq!(call.send().unwrap().to_vec(), b"hello");
            }
        } else {
            let client = Client::from_stream(theirs, &options).unwrap();
            for _ in 0..20 {
                let call = client.call("put").payload_inline(&bulk).into_fresh(4096);
                assert_eq!(call.send().unwrap().to_vec(), b"hello");
            }
        }
        server.join().unwrap();
    }
}

/// A server's answers, of which each takes many writes and brings a file.
#[test]
fn an_answer_in_many_pieces_brings_its_file_once() {
    isolated("hostile::narrow::an_answer_in_many_pieces_brings_its_file_once", || {
        let mut stage = Stage::new();
        let (ours, theirs) = narrow_pair();
        stage.server.adopt(theirs);
        let mut raw = Raw::over(ours);
        raw.send(&raw::hello_with(raw::SEALED));
        raw.expect(raw::HELLO);
        for _ in 0..20 {
            for id in 0..3 {
                raw.send(&raw::call(id, Place::sealed(20_000), b"fill and tell", b""));
            }
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(2));
                let reply = raw.reply();
                assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_SEALED));
                assert!(reply.response == pattern(60_000, 8));
                let file = reply.file.unwrap();
                super::descriptor::check_bytes(&file, reply.offset, &pattern(20_000, 7));
            }
        }
        drop(raw);
        stage.ends_clean();
    });
}

/// A reader of 4 KiB at a time, who rests in between.
#[test]
fn a_slow_reader_gets_every_byte_once() {
    let mut stage = Stage::new();
    let (ours, theirs) = narrow_pair();
    stage.server.adopt(theirs);
    let mut raw = Raw::over(ours);
    raw.send(&raw::hello());
    raw.expect(raw::HELLO);
    let bytes = 8 << 20;
    raw.send(&raw::fill(1, Place::inline(bytes), bytes, 4));
    let mut found = Vec::new();
    let mut piece = [0; 4096];
    while found.len() < 16 + 40 + 1 + bytes as usize {
        // Slowly at first: two seconds are enough of that.
        if found.len() < 400 * piece.len() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let count = raw.socket.read(&mut piece).unwrap();
        assert!(count > 0, "the end after {} bytes", found.len());
        found.extend_from_slice(&piece[..count]);
    }
    assert_eq!((found[0], found[16 + 12]), (raw::REPLY, raw::LANE_INLINE));
    assert!(found[57..] == pattern(bytes as usize, 4));
    raw.send(&raw::call(2, Place::NONE, b"echo", b"alive"));
    assert_eq!(raw.reply().response, b"alive");
    stage.honest_calls();
}

/// Both sides send eight megabytes, and look at what came only then.
#[test]
fn who_reads_only_after_writing_is_no_deadlock() {
    let mut stage = Stage::new();
    let bytes = 8 << 20;
    let mut raw = Raw::open(&stage.path);
    raw.socket.set_write_timeout(Some(PATIENCE)).unwrap();
    let bulk = pattern(bytes, 5);
    for _ in 0..3 {
        raw.send(&raw::fill(1, Place::inline(bytes as u64), bytes as u64, 4));
        raw.send(&raw::call_with(2, Place::inline(bytes as u64), b"echo", b"", &bulk));
        let mut replies = [raw.reply(), raw.reply()];
        replies.sort_by_key(|reply| reply.id);
        assert!(replies[0].payload == pattern(bytes, 4));
        assert!(replies[1].payload == bulk);
    }
    stage.honest_calls();
}

/// A server that reads nothing of one call before it has written all of another's answer.
#[test]
fn a_client_reads_while_it_writes() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let bytes = 8 << 20;
    let server = std::thread::spawn(move || {
        let mut server = Raw::over(ours);
        server.socket.set_write_timeout(Some(PATIENCE)).unwrap();
        server.expect(raw::HELLO);
        server.send(&raw::hello());
        let first = server.expect(raw::CALL);
        // The second call is on its way, and fills the socket.
        std::thread::sleep(Duration::from_millis(100));
        let id = raw::u64_at(&first.body, 0);
        let body = raw::reply_body(id, raw::OK, raw::LANE_INLINE, bytes as u64);
        server.send(&raw::frame(raw::REPLY, 0, &body, &pattern(bytes, 1)));
        let second = server.expect(raw::CALL);
        assert!(second.payload == pattern(bytes, 2));
        let id = raw::u64_at(&second.body, 0);
        let body = raw::reply_body(id, raw::OK, raw::LANE_NONE, 0);
        server.send(&raw::frame(raw::REPLY, 0, &body, b""));
    });
    let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let client = Client::from_stream(theirs, &options).unwrap();
    let first = Client::start(client.call("get").inline(bytes)).unwrap();
    let bulk = pattern(bytes, 2);
    client.call("put").payload_inline(&bulk).send().unwrap();
    assert!(first.wait().unwrap().to_vec() == pattern(bytes, 1));
    server.join().unwrap();
}
