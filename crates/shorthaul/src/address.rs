//! What can be the path of a socket.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, Result};

/// Checks that a path can be the address of a socket at all.
pub(crate) fn check_path(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    let trouble = if bytes.is_empty() {
        "it is empty".to_owned()
    } else if bytes.contains(&0) {
        "it contains a NUL byte".to_owned()
    } else if bytes.len() > SOCKET_PATH_BYTES_MAX {
        format!(
            "it has {} bytes, but the address of a socket holds {SOCKET_PATH_BYTES_MAX}: use a \
             shorter path, or a relative one",
            bytes.len()
        )
    } else {
        return Ok(());
    };
    Err(Error::Misuse(format!("{} can't be the path of a socket: {trouble}", path.display())))
}

/// Longest path of a socket, in bytes: what sockaddr_un holds, less its terminator.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
