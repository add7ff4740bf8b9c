//! What comes out of a stream comes once: none of it may be passed over, whoever refuses it.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::net::{SendFlags, send};
use shorthaul::relay::{Fault, Method};

use super::ends::{Taking, To, tcp_pair};
use super::{assert_same, relay};

/// Files opened with O_DIRECT refuse what is no whole block, and take the next that is.
#[test]
fn what_a_sink_refuses_is_not_skipped() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let direct = OFlags::DIRECT.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).custom_flags(direct);
    let Ok(mut sink) = options.open(folder.path().join("sink")) else {
        return println!("/tmp has no O_DIRECT: not tried");
    };
    if sink.write(&[0; 100]).is_ok() {
        return println!("/tmp takes any length with O_DIRECT: not tried");
    }
    for method in [Method::Auto, Method::Splice, Method::ReadWrite] {
        let (source, mut sender) = UnixStream::pair().unwrap();
        sender.write_all(&[1; 100]).unwrap();
        let taken = source.try_clone().unwrap();
        let feeder = thread::spawn(move || {
            while rustix::io::ioctl_fionread(&taken).unwrap() > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            sender.write_all(&[2; 4096]).ok();
        });
        let failed = relay(method, 64 << 10).run(&source, .., &sink).expect_err(method.name());
        feeder.join().unwrap();
        assert!(matches!(failed.fault, Fault::Io { .. }), "{method}: {failed}");
        assert_eq!((failed.relayed.bytes, failed.bytes_lost), (0, 100), "{method}");
    }
}

/// Reading passes over it, splice(2) stops there as if that were the end.
#[test]
fn a_byte_out_of_band_is_not_the_end() {
    for to in [To::Pipe, To::Unix, To::File] {
        for method in [Method::Auto, Method::Splice, Method::ReadWrite] {
            let (source, mut sender) = tcp_pair();
            sender.write_all(b"before").unwrap();
            send(sender.as_fd(), b"!", SendFlags::OOB).unwrap();
            sender.write_all(b"behind").unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
            let sink = Taking::new(to);
            let what = format!("{method} to {to:?}");
            let outcome = relay(method, 64 << 10).run(&source, .., &sink);
            let got = sink.finish().unwrap();
            match outcome {
                Ok(relayed) => {
                    assert_eq!(relayed.bytes, 12, "{what}");
                    assert_same(&got, b"beforebehind", &what);
                }
                Err(failed) => {
                    assert_eq!(method, Method::Splice);
                    assert!(matches!(failed.fault, Fault::Unsupported { .. }), "{what}: {failed}");
                    assert_eq!((got.len() as u64, failed.bytes_lost), (failed.relayed.bytes, 0));
                }
            }
        }
    }
}

/// Descriptors that somebody has sent into a stream are no bytes of it: they go, and none of what
/// is around them.
#[test]
fn descriptors_in_a_stream_are_closed_and_nothing_else() {
    for method in [Method::Auto, Method::Splice, Method::ReadWrite] {
        let (source, sender) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        for piece in [&b"before "[..], b"with ", b"behind"] {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            let descriptors = [writer.as_fd(), sender.as_fd()];
            if piece == b"with " {
                let rights = rustix::net::SendAncillaryMessage::ScmRights(&descriptors);
                assert!(control.push(rights));
            }
            let parts = [std::io::IoSlice::new(piece)];
            rustix::net::sendmsg(&sender, &parts, &mut control, SendFlags::empty()).unwrap();
        }
        drop((sender, writer));
        // The sender's own end is in flight too: without it the stream would end.
        let sink = tempfile::tempfile().unwrap();
        let relayed = relay(method, 64 << 10).run(&source, 0..18, &sink).unwrap();
        assert_eq!(relayed.bytes, 18, "{method}");
        let mut found = [0; 18];
        std::os::unix::fs::FileExt::read_exact_at(&sink, &mut found, 0).unwrap();
        assert_eq!(&found, b"before with behind", "{method}");
        let end = std::io::Read::read(&mut reader, &mut [0]).unwrap();
        assert_eq!(end, 0, "{method}: nobody has the pipe any more");
        assert_eq!(rustix::io::read(&source, &mut [0; 1]).unwrap(), 0, "{method}: nor the sender");
    }
}
