//! What a service takes: nothing by default, streams, or files too; and what none takes.

use std::fs::{File, OpenOptions};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketType};
use shorthaul::{Code, Descriptors, Error, Server, ServerOptions};

use super::ends::{Sink, SinkKind};
use super::{again, memory_file, send_into, serve, start_with};
use crate::service::{AnyClient, PATIENCE, request};

/// The code and the message of a call whose descriptor is refused; nothing was written, and the
/// next call works.
fn refusal(client: &mut AnyClient, descriptor: &OwnedFd) -> (Code, String) {
    let asked = request(5000, 1);
    let refused = send_into(client, "relay file", &asked, descriptor, PATIENCE).unwrap_err();
    assert_eq!(refused.descriptor_bytes(), Some(0), "{refused}");
    let sink = Sink::new(SinkKind::Pipe);
    send_into(client, "copy", &asked, &sink.descriptor, PATIENCE).unwrap();
    assert_eq!(sink.finish().len(), 5000);
    (refused.error().code(), refused.to_string())
}

fn file(options: &OpenOptions, path: &str) -> OwnedFd {
    options.open(path).unwrap().into()
}

/// What no service takes, and what is said of it.
fn never_taken() -> Vec<(OwnedFd, &'static str)> {
    let (mut write, mut read) = (OpenOptions::new(), OpenOptions::new());
    write.write(true);
    read.read(true);
    let plain = tempfile::NamedTempFile::new().unwrap();
    let path = plain.path().to_str().unwrap();
    let by_path = read.clone().custom_flags(OFlags::PATH.bits() as i32).open(path).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let pipe_path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
    let pipe_by_path =
        read.clone().custom_flags(OFlags::PATH.bits() as i32).open(pipe_path).unwrap();
    let unconnected = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("s")).unwrap();
    let packets = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    );
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let counter = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    vec![
        (file(&read, path), "not open for writing"),
        (by_path.into(), "O_PATH"),
        (pipe_by_path.into(), "O_PATH"),
        (reader.into(), "not open for writing"),
        (File::open(folder.path()).unwrap().into(), "not open for writing"),
        (file(&write, "/dev/null"), "is a device"),
        (file(&write, "/dev/zero"), "is a device"),
        (epoll, "is no pipe, socket or file"),
        (counter, "is no pipe, socket or file"),
        (UnixDatagram::pair().unwrap().0.into(), "no stream"),
        (packets.unwrap().0, "no stream"),
        (UdpSocket::bind("127.0.0.1:0").unwrap().into(), "no stream"),
        (unconnected.unwrap(), "not connected"),
        (listener.into(), "not connected"),
        (TcpListener::bind("127.0.0.1:0").unwrap().into(), "not connected"),
    ]
}

#[test]
fn what_none_takes() {
    for policy in [Descriptors::Streams, Descriptors::Any] {
        let running = start_with(policy);
        for is_direct in [true, false] {
            let mut client = AnyClient::connect(&running.path, is_direct).unwrap();
            for (descriptor, said) in never_taken() {
                let (code, message) = refusal(&mut client, &descriptor);
                assert_eq!(code, Code::InvalidArgument, "{message}");
                assert!(message.contains(said), "{message}, not {said}");
            }
        }
    }
}

#[test]
fn files_where_streams_are_taken() {
    let running = start_with(Descriptors::Streams);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    for kind in SinkKind::FILES {
        let sink = Sink::new(kind);
        let (code, message) = refusal(&mut client, &sink.descriptor);
        assert_eq!(code, Code::PermissionDenied, "{message}");
        assert!(message.contains("pipes and sockets only"), "{message}");
        assert!(sink.finish().is_empty());
    }
}

/// Files that are no data, where files are taken.
#[test]
fn files_of_the_kernel() {
    let running = start_with(Descriptors::Any);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    let write = OpenOptions::new().write(true).clone();
    for path in ["/proc/self/comm", "/proc/self/mem", "/sys/kernel/mm/ksm/run"] {
        let Ok(file) = write.open(path) else { continue };
        let (code, message) = refusal(&mut client, &file.into());
        assert_eq!(code, Code::InvalidArgument, "{message}");
        assert!(message.contains("file system of type"), "{message}");
    }
}

/// Each descriptor is closed, whatever came of it.
#[test]
fn refused_descriptors_are_closed() {
    let running = start_with(Descriptors::Streams);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    let (reader, writer) = UnixDatagram::pair().unwrap();
    refusal(&mut client, &writer.into());
    crate::service::eventually("the other end is gone", PATIENCE, || {
        matches!(rustix::net::send(&reader, b"x", rustix::net::SendFlags::NOSIGNAL), Err(error)
            if error == rustix::io::Errno::CONNREFUSED || error == rustix::io::Errno::PIPE)
    });
}

#[test]
fn by_default_none_is_taken() {
    for options in
        [ServerOptions::default(), ServerOptions { inline_handlers: true, ..Default::default() }]
    {
        let running = crate::service::start(options, serve);
        for is_direct in [true, false] {
            let mut client = AnyClient::connect(&running.path, is_direct).unwrap();
            let (socket, _reader) = UnixStream::pair().unwrap();
            let asked = request(5000, 1);
            let refused = send_into(&mut client, "copy", &asked, &socket, PATIENCE).unwrap_err();
            assert!(matches!(refused.error(), Error::Misuse(_)), "{refused}");
            assert!(refused.to_string().contains("takes no descriptors"), "{refused}");
            assert_eq!(refused.descriptor_bytes(), Some(0));
            assert_eq!(client.open_calls(), 0);
        }
        assert_eq!(running.server.stats().calls, 0, "nothing was sent");
    }
}

#[test]
fn reactors_relay_into_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions {
        inline_handlers: true,
        descriptors: Descriptors::Streams,
        ..ServerOptions::default()
    };
    let server = Server::bind_with(folder.path().join("s"), options).unwrap();
    assert!(matches!(server.start(serve), Err(Error::Misuse(_))));
}

/// Memory files and ordinary ones, wherever they stand.
#[test]
fn files_are_written_where_they_stand() {
    let running = start_with(Descriptors::Any);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    let file = memory_file(b"0123456789");
    std::io::Seek::seek(&mut &file, std::io::SeekFrom::Start(4)).unwrap();
    let sink = again(&file);
    send_into(&mut client, "fill", &request(3, b'x'), &sink, PATIENCE).unwrap();
    let mut found = [0; 10];
    rustix::io::pread(&file, &mut found[..], 0).unwrap();
    assert_eq!(&found, b"0123xxx789");
}
