//! The limit of descriptors, in a process of its own: it is the whole process's.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shorthaul_platform::descriptors::raise_descriptor_limit;

#[test]
fn the_limit_is_raised_and_holds() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let low = Rlimit { current: Some(256), maximum };
    setrlimit(Resource::Nofile, low).unwrap();
    let raised = raise_descriptor_limit().unwrap();
    assert_eq!(raised, maximum.unwrap_or(u64::MAX));
    assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    if raised > 300 {
        let source = std::fs::File::open("/dev/null").unwrap();
        let number = rustix::io::fcntl_dupfd_cloexec(&source, 299).unwrap();
        assert!(number.as_raw_fd() >= 299);
    }
    // A second time there is nothing to do.
    assert_eq!(raise_descriptor_limit().unwrap(), raised);
}
