//! Whether this process may have an io_uring. No lane uses one; those who ask why should know.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Makes the smallest ring there is, and closes it.
///
/// # Errors
/// `EPERM` where `kernel.io_uring_disabled` or a filter of system calls says so, `ENOSYS` where the
/// kernel has none, `ENOMEM` over a limit.
///
/// # References
/// io_uring_setup(2)
pub fn try_out() -> io::Result<()> {
    let mut parameters = [0_u64; PARAMETER_WORDS];
    // SAFETY: the kernel reads and writes one `io_uring_params`, all of which may be zero, and for
    // which there is room.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    let ring = i32::try_from(ring).map_err(io::Error::other)?;
    if ring < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has made for us just now, and nobody else has.
    drop(unsafe { OwnedFd::from_raw_fd(ring) });
    Ok(())
}

/// `struct io_uring_params` has 120 bytes, for ever.
const PARAMETER_WORDS: usize = 120 / 8;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_ring_or_a_reason() {
        if let Err(error) = try_out() {
            let reasons = [libc::EPERM, libc::ENOSYS, libc::ENOMEM, libc::EACCES];
            assert!(error.raw_os_error().is_some_and(|errno| reasons.contains(&errno)), "{error}");
        }
    }
}
