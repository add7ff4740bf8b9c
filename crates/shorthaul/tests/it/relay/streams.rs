//! What comes out of a stream comes once: none of it may be passed over, whoever refuses it.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use shorthaul::relay::{Fault, Method};

use super::relay;

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
