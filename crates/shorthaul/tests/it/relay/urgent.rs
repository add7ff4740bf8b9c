//! Sockets that have more to tell than bytes: what was sent out of band, and error queues.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use shorthaul::relay::{Fault, Method, Relay};

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Two parts with a byte between them that is in neither.
fn send_with_urgent(stream: &mut TcpStream, after: &[u8]) {
    stream.write_all(b"before").unwrap();
    send(&*stream, b"!", SendFlags::OOB).unwrap();
    stream.write_all(after).unwrap();
}

#[test]
fn what_follows_an_urgent_byte_is_relayed_too() {
    for is_bounded in [false, true] {
        for into_pipe in [false, true] {
            for after in [&b""[..], b"after"] {
                let (mut sender, source) = connection();
                send_with_urgent(&mut sender, after);
                let sending = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(50));
                    sender.write_all(b", later")
                });
                let relay = Relay::new();
                let mut relay = if is_bounded { relay.deadline(PATIENCE) } else { relay };
                let mut got = String::new();
                let relayed = if into_pipe {
                    let (mut reader, writer) = io::pipe().unwrap();
                    let relayed = relay.run(&source, .., &writer);
                    drop(writer);
                    reader.read_to_string(&mut got).unwrap();
                    relayed
                } else {
                    let mut sink = tempfile::tempfile().unwrap();
                    let relayed = relay.run(&source, .., &sink);
                    sink.rewind().unwrap();
                    sink.read_to_string(&mut got).unwrap();
                    relayed
                };
                sending.join().unwrap().unwrap();
                let expected = [&b"before"[..], after, b", later"].concat();
                assert_eq!(relayed.unwrap().bytes, expected.len() as u64);
                assert_eq!(got.as_bytes(), expected);
            }
        }
    }
}

#[test]
fn splice_alone_says_that_it_cannot_pass_an_urgent_byte() {
    for is_bounded in [false, true] {
        let (mut sender, source) = connection();
        send_with_urgent(&mut sender, b"after");
        let relay = Relay::new().method(Method::Splice);
        let mut relay = if is_bounded { relay.deadline(PATIENCE) } else { relay };
        let error = relay.run(&source, .., tempfile::tempfile().unwrap()).unwrap_err();
        assert!(matches!(error.fault, Fault::Unsupported { .. }), "{error}");
        assert_eq!((error.relayed.bytes, error.bytes_lost), (6, 0));
        drop(sender);
    }
}

#[test]
fn a_full_pipe_is_no_urgent_byte() {
    let (mut sender, source) = connection();
    let sending = thread::spawn(move || sender.write_all(&[7; 1 << 20]));
    let (mut reader, writer) = io::pipe().unwrap();
    let reading = thread::spawn(move || {
        let mut all = Vec::new();
        // Slowly at first.
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(20));
            let mut some = [0; 5000];
            let bytes = reader.read(&mut some).unwrap();
            all.extend_from_slice(&some[..bytes]);
        }
        reader.read_to_end(&mut all).unwrap();
        all.len()
    });
    let mut relay = Relay::new().method(Method::Splice).deadline(PATIENCE);
    assert_eq!(relay.run(&source, .., &writer).unwrap().bytes, 1 << 20);
    drop(writer);
    sending.join().unwrap().unwrap();
    assert_eq!(reading.join().unwrap(), 1 << 20);
}

/// What poll(2) calls an error needn't be one.
#[test]
fn a_sink_with_a_report_in_its_error_queue_is_not_closed() {
    let (sink, mut receiver) = connection();
    if !has_sent_without_copying(&sink) {
        return;
    }
    let mut first = [0; 1000];
    receiver.read_exact(&mut first).unwrap();
    thread::sleep(Duration::from_millis(50));
    relay_a_late_byte(&sink);
    receiver.read_exact(&mut first[..1]).unwrap();
}

fn has_sent_without_copying(socket: &TcpStream) -> bool {
    let (fd, on, bytes) = (socket.as_raw_fd(), 1_i32, &[0_u8; 1000]);
    // SAFETY: the option's value is an int of ours.
    let set = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), 4)
    };
    // SAFETY: the bytes are constant, and stay.
    set == 0 && unsafe { libc::send(fd, bytes.as_ptr().cast(), 1000, libc::MSG_ZEROCOPY) } == 1000
}

/// A file of /sys that nobody has read tells poll(2) of an error.
#[test]
fn a_sink_in_sys_is_not_closed() {
    let file = file_of_sys();
    let Some((sink, now)) = file else { return };
    let (source, mut writer) = io::pipe().unwrap();
    let writing = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        writer.write_all(now.as_bytes())
    });
    let relayed = Relay::new().deadline(PATIENCE).run(&source, .., &sink);
    writing.join().unwrap().unwrap();
    relayed.unwrap();
}

/// One that takes what it holds already; none without the right.
fn file_of_sys() -> Option<(File, String)> {
    let path = "/sys/kernel/mm/ksm/sleep_millisecs";
    let now = std::fs::read_to_string(path).ok()?;
    Some((File::options().write(true).open(path).ok()?, now))
}

fn relay_a_late_byte(sink: &TcpStream) {
    let (source, mut writer) = io::pipe().unwrap();
    let writing = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        writer.write_all(b"x")
    });
    let relayed = Relay::new().deadline(PATIENCE).run(&source, .., sink);
    writing.join().unwrap().unwrap();
    assert_eq!(relayed.unwrap().bytes, 1);
}

const PATIENCE: Duration = Duration::from_secs(10);
