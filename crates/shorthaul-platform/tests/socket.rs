//! Bytes and descriptors over a real socket.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use shorthaul_platform::socket::{self, DESCRIPTORS_MAX, Descriptors, Wait};

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

fn send(
    socket: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> std::io::Result<usize> {
    socket::send(socket.as_fd(), &[IoSlice::new(bytes)], descriptors, Wait::Never)
}

/// Sends without the bound that the library keeps.
fn send_raw(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let parts = [IoSlice::new(bytes)];
    let sent = rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
}

fn receive(socket: &UnixStream, buffer: &mut [u8]) -> (usize, Descriptors) {
    let received = socket::receive(socket.as_fd(), buffer, Wait::Block).unwrap();
    (received.bytes, received.descriptors)
}

fn count(descriptors: &Descriptors) -> usize {
    match descriptors {
        Descriptors::Arrived(list) => list.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn as_many_as_allowed_arrive_close_on_exec() {
    let (ours, mut theirs) = pair();
    for descriptors in 0..=DESCRIPTORS_MAX {
        let list = vec![ours.as_fd(); descriptors];
        assert_eq!(send(&ours, b"abc", &list).unwrap(), 3);
        let mut buffer = [0; 10];
        let (bytes, arrived) = receive(&theirs, &mut buffer);
        assert_eq!((bytes, count(&arrived)), (3, descriptors));
        let Descriptors::Arrived(list) = arrived else { panic!() };
        for descriptor in &list {
            let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }
    theirs.write_all(b"still usable").unwrap();
}

/// More than is allowed is an error on this side, before a byte is sent.
#[test]
fn more_than_allowed_are_not_sent_at_all() {
    let (ours, mut theirs) = pair();
    for descriptors in [DESCRIPTORS_MAX + 1, 253, 254, 1000] {
        let list = vec![ours.as_fd(); descriptors];
        let refused = send(&ours, b"abc", &list).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{descriptors}");
    }
    // The kernel would lose them.
    let refused = send(&ours, b"", &[ours.as_fd()]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    theirs.set_nonblocking(true).unwrap();
    let nothing = theirs.read(&mut [0; 10]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    assert_eq!(send(&ours, b"abc", &[ours.as_fd()]).unwrap(), 3);
    assert_eq!(count(&receive(&theirs, &mut [0; 10]).1), 1);
}

#[test]
fn more_than_allowed_are_not_taken() {
    let (ours, theirs) = pair();
    for descriptors in [DESCRIPTORS_MAX + 1, 10, 13, 64, 253] {
        send_raw(&ours, b"abc", &vec![ours.as_fd(); descriptors]);
        let (bytes, arrived) = receive(&theirs, &mut [0; 10]);
        assert_eq!(bytes, 3);
        assert!(matches!(arrived, Descriptors::TooMany(_)), "{descriptors}: {arrived:?}");
    }
}

/// With SO_PASSCRED the kernel puts credentials before the descriptors.
#[test]
fn credentials_leave_room_for_descriptors() {
    let (ours, theirs) = pair();
    rustix::net::sockopt::set_socket_passcred(&theirs, true).unwrap();
    for descriptors in 0..=DESCRIPTORS_MAX {
        send(&ours, b"abc", &vec![ours.as_fd(); descriptors]).unwrap();
        let (bytes, arrived) = receive(&theirs, &mut [0; 10]);
        assert_eq!((bytes, count(&arrived)), (3, descriptors));
    }
    send_raw(&ours, b"abc", &[ours.as_fd(); DESCRIPTORS_MAX + 1]);
    let (_, arrived) = receive(&theirs, &mut [0; 10]);
    assert!(matches!(arrived, Descriptors::TooMany(_)), "{arrived:?}");
}

/// One read joins earlier bytes to those of a descriptor, and stops right behind them.
#[test]
fn a_read_stops_behind_the_bytes_of_a_descriptor() {
    let (mut ours, theirs) = pair();
    ours.write_all(b"AAAA").unwrap();
    send(&ours, b"BBBB", &[ours.as_fd()]).unwrap();
    ours.write_all(b"CCCC").unwrap();
    let mut buffer = [0; 100];
    let (bytes, arrived) = receive(&theirs, &mut buffer);
    assert_eq!((&buffer[..bytes], count(&arrived)), (&b"AAAABBBB"[..], 1));
    // It is this side's own end: held open, the stream would never end.
    drop(arrived);
    let (bytes, arrived) = receive(&theirs, &mut buffer);
    assert_eq!((&buffer[..bytes], count(&arrived)), (&b"CCCC"[..], 0));
    drop(ours);
    assert_eq!(receive(&theirs, &mut buffer).0, 0, "the end");
}

#[test]
fn a_receive_that_fills_its_buffer_waits_for_all_of_it() {
    let (ours, theirs) = pair();
    let fill = |buffer: &mut [u8]| socket::receive(ours.as_fd(), buffer, Wait::Fill).unwrap().bytes;
    let sender = std::thread::spawn(move || {
        for piece in [&b"one "[..], b"two ", b"three"] {
            send(&theirs, piece, &[]).unwrap();
            std::thread::yield_now();
        }
        theirs
    });
    let mut buffer = [0; 13];
    assert_eq!(fill(&mut buffer), 13);
    assert_eq!(&buffer, b"one two three");
    // The socket's time-out, or the end, comes before the buffer is full.
    let theirs = sender.join().unwrap();
    send(&theirs, b"rest", &[]).unwrap();
    ours.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
    assert_eq!(fill(&mut buffer), 4);
    drop(theirs);
    assert_eq!(fill(&mut buffer), 0);
}
