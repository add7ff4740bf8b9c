//! Connections that are sent into themselves: whoever holds the only way to their end, they end.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shorthaul::{Descriptors, ServerOptions, peer_policy};

use super::raw::{self, Place, Raw, Upload};
use super::{PATIENCE, Stage, eventually, isolated, pattern};

fn stage() -> Stage {
    Stage::with(ServerOptions { descriptors: Descriptors::Streams, ..ServerOptions::default() })
}

/// Frames that bring one descriptor each; of the last there is but a half.
fn carriers() -> Vec<Vec<u8>> {
    let register = raw::register(1, 4096);
    let half = register[..20].to_vec();
    vec![
        register,
        raw::fill(1, Place::one_shot(4096), 16, 1),
        raw::fill(1, Place::given(100), 100, 1),
        raw::echo(1, Place::inline(4096), Upload::sealed(0, 4096)),
        // One that never looks at it, and one that is a violation.
        raw::call(1, Place::given(100), b"echo", b""),
        raw::of_id(raw::CANCEL, 1),
        half,
    ]
}

/// The client's end goes to the server, and nobody else has it.
#[test]
fn a_connection_that_is_sent_its_own_other_end_ends() {
    isolated("hostile::cycles::a_connection_that_is_sent_its_own_other_end_ends", || {
        let mut stage = stage();
        for greets in [true, false] {
            for carrier in carriers() {
                let mut raw = Raw::connect(&stage.path);
                if greets {
                    raw.send(&raw::hello());
                }
                let own = raw.socket.try_clone().unwrap();
                raw.send_with(&carrier, &[own.as_fd()]);
                drop((raw, own));
            }
        }
        // One of them after the time in which a frame must grow, or a hello come.
        stage.ends_clean();
    });
}

/// It goes where the server reads nothing for now: behind calls whose bulk fills its share.
#[test]
fn a_connection_that_is_not_read_ends_too() {
    isolated("hostile::cycles::a_connection_that_is_not_read_ends_too", || {
        let mut stage = Stage::with(ServerOptions { workers: 1, ..ServerOptions::default() });
        let mut raw = Raw::open(&stage.path);
        let bulk = vec![1; 33 << 20];
        for id in 1..3 {
            raw.send(&raw::call_with(id, Place::inline(64), b"gate", b"", &bulk));
        }
        let own = raw.socket.try_clone().unwrap();
        raw.send_with(&raw::register(1, 4096), &[own.as_fd()]);
        drop((raw, own));
        stage.arrived.recv_timeout(PATIENCE).unwrap();
        // The second call may be begun, or end with its connection before that.
        (1..3).for_each(|_| stage.gate.send(()).unwrap());
        eventually("it ends", || stage.server.stats().connections == 1);
        stage.ends_clean();
    });
}

/// What goes into a connection's other end is what its client could have sent itself.
#[test]
fn a_payload_that_is_relayed_into_a_connection_is_its_clients_word() {
    isolated(
        "hostile::cycles::a_payload_that_is_relayed_into_a_connection_is_its_clients_word",
        || {
            let mut stage = stage();
            let mut raw = Raw::open(&stage.path);
            let mut other = Raw::open(&stage.path);
            // A whole frame: carried out, and answered where it was sent.
            let frame = raw::call(9, Place::NONE, b"echo", b"relayed");
            let place = Place::given(frame.len() as u64);
            raw.send_with(&raw::call_with(1, place, b"echo", b"", &frame), &[other.socket.as_fd()]);
            assert_eq!(raw.reply().lane, raw::LANE_DESCRIPTOR);
            let reply = other.reply();
            assert_eq!((reply.id, &reply.response[..]), (9, &b"relayed"[..]));
            // Into its own: a call out of a call, and no third.
            let own = raw.socket.try_clone().unwrap();
            raw.send_with(&raw::call_with(2, place, b"echo", b"", &frame), &[own.as_fd()]);
            let mut replies = [raw.reply(), raw.reply()];
            replies.sort_by_key(|reply| reply.id);
            assert_eq!(replies.map(|reply| reply.id), [2, 9]);
            // Whatever else: the end of that one.
            let garbage = raw::fill(3, Place::given(5000), 5000, 1);
            raw.send_with(&garbage, &[other.socket.as_fd()]);
            assert_eq!(raw.reply().code, raw::OK);
            assert_eq!(other.goodbye().code, raw::INVALID_ARGUMENT);
            raw.send(&raw::call(4, Place::NONE, b"echo", b"alive"));
            assert_eq!(raw.reply().response, b"alive");
            drop((raw, other, own));
            stage.ends_clean();
        },
    );
}

/// Whether the kernel still has the socket.
fn is_there(socket: u64) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().any(|line| line.split_whitespace().nth(6) == Some(&socket.to_string()))
}

fn number(socket: &UnixStream) -> u64 {
    let file = std::fs::File::from(std::os::fd::OwnedFd::from(socket.try_clone().unwrap()));
    file.metadata().unwrap().ino()
}

/// Sockets that hold themselves, or each other, in what nobody has read: once they are the
/// server's, and it has closed them, the kernel finds them.
#[test]
fn sockets_that_hold_themselves_are_not_kept() {
    isolated("hostile::cycles::sockets_that_hold_themselves_are_not_kept", || {
        let mut stage = stage();
        let mut numbers = Vec::new();
        for carrier in carriers() {
            let mut raw = Raw::open(&stage.path);
            let (near, far) = UnixStream::pair().unwrap();
            numbers.extend([number(&near), number(&far)]);
            assert!(is_there(numbers[0]));
            let mut into_far = Raw::over(near.try_clone().unwrap());
            let mut into_near = Raw::over(far.try_clone().unwrap());
            into_far.send_with(b"x", &[far.as_fd(), near.as_fd()]);
            into_near.send_with(b"x", &[far.as_fd(), raw.socket.as_fd()]);
            raw.send_with(&carrier, &[near.as_fd()]);
        }
        eventually("the kernel lets go of them", || {
            !numbers.iter().any(|&number| is_there(number))
        });
        stage.ends_clean();
    });
}

/// Descriptors that arrive with a client that is refused, or with one that is not served yet.
#[test]
fn what_is_sent_too_early_goes_with_its_connection() {
    isolated("hostile::cycles::what_is_sent_too_early_goes_with_its_connection", || {
        let is_open = Arc::new(AtomicBool::new(true));
        let open = Arc::clone(&is_open);
        let policy =
            peer_policy(
                move |_| {
                    if open.load(Ordering::Relaxed) { Ok(()) } else { Err("not now".into()) }
                },
            );
        let mut stage = Stage::with(ServerOptions { policy: Some(policy), ..Default::default() });
        is_open.store(false, Ordering::Relaxed);
        let (mut reader, writer) = std::io::pipe().unwrap();
        for _ in 0..50 {
            let mut raw = Raw::connect(&stage.path);
            let own = raw.socket.try_clone().unwrap();
            let both: [BorrowedFd<'_>; 2] = [own.as_fd(), writer.as_fd()];
            raw.send_with(&raw::hello(), &both);
            drop((raw, own));
        }
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "nobody has the pipe any more");
        drop(reader);
        is_open.store(true, Ordering::Relaxed);
        let mut raw = Raw::open(&stage.path);
        raw.send(&raw::fill(1, Place::inline(100), 100, 1));
        assert_eq!(raw.reply().payload, pattern(100, 1));
        drop(raw);
        stage.ends_clean();
    });
}
