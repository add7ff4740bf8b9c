//! How many descriptors this process may have.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit of descriptors (the soft `RLIMIT_NOFILE`, mostly 1024) as far as it
/// may without privilege (to the hard one), and gives what it is then; [`u64::MAX`] is no limit.
///
/// A server needs a descriptor for each connection and each region. The limit belongs to the whole
/// process and is inherited by what it starts, so its owner calls this, early, and no library does:
/// code that still uses select(2) writes past its sets with descriptors of 1024 and more.
///
/// # Errors
/// Those of setrlimit(2); the limit is as it was.
///
/// # References
/// getrlimit(2); <https://0pointer.net/blog/file-descriptor-limits.html>
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    Ok(maximum.unwrap_or(u64::MAX))
}
